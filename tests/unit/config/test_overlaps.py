"""Streams of a config that take the same objects: found as by comparing each with each, without
doing so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchrelay.config.checks import warnings
from watchrelay.config.loading import load_settings
from watchrelay.config.settings import ResourceEntry, Settings
from watchrelay.config.streams import plan
from watchrelay.core.errors import ConfigError
from watchrelay.model.reach import Overlaps, Reach

SPACES = st.lists(st.sampled_from("abc"), max_size=2, unique=True)


def config(entries: list[dict[str, Any]]) -> Settings:
    return Settings.model_construct(
        cluster="c", kafka=Settings.model_fields["kafka"].annotation.model_construct(bootstrap_servers=["a:1"]),  # type: ignore[union-attr]
        resources=[ResourceEntry(resource="pods", **entry) for entry in entries],
    )  # fmt: skip


def entries() -> st.SearchStrategy[list[dict[str, Any]]]:
    narrow = st.fixed_dictionaries(
        {"namespaces": SPACES, "scope": st.sampled_from(["namespace", "cluster"])}
    )
    wide = st.fixed_dictionaries({"excludeNamespaces": SPACES})
    named = st.fixed_dictionaries(
        {"namespaces": st.lists(st.sampled_from("abc"), max_size=1), "name": st.sampled_from("xy")}
    )
    one = st.one_of(narrow, wide, named)
    return st.lists(one, min_size=1, max_size=8).map(
        lambda made: [{**entry, "id": f"s{number}"} for number, entry in enumerate(made)]
    )


@settings(deadline=None)
@given(entries())
def test_the_first_earlier_stream_with_some_of_the_same_objects_is_found(
    made: list[dict[str, Any]],
) -> None:
    planned = plan(config(made))
    overlaps = Overlaps[int]()
    for stream in planned:
        reach = stream.reach
        expected = next(
            (
                other.index
                for other in planned
                if other.index < stream.index and other.reach.meets(reach)
            ),
            None,
        )
        assert overlaps.first("pods", reach) == expected
        assert overlaps.first("nodes", reach) is None
        overlaps.add("pods", reach, stream.index)


NAMES = st.one_of(
    st.just(""),
    *(st.sampled_from([f"metadata.name{op}{name}" for op in ("=", "==", "!=") for name in "xyz"]),),
)


@given(st.lists(st.tuples(SPACES, NAMES, NAMES), min_size=2, max_size=2))
def test_two_selections_meet_when_an_object_can_be_in_both(
    selections: list[tuple[list[str], str, str]],
) -> None:
    def takes(spaces: list[str], terms: list[str], space: str, name: str) -> bool:
        return (not spaces or space in spaces) and all(
            ("!=" in term) != term.endswith(f"={name}") for term in terms if term
        )

    one, two = (Reach.of(spaces, ",".join(terms)) for spaces, *terms in selections)
    both = any(
        all(takes(spaces, terms, space, name) for spaces, *terms in selections)
        for space in "abcd"
        for name in "xyzw"
    )
    assert one.meets(two) == two.meets(one) == both


OVERLAPPING = [
    ("{resource: pods}", "{resource: pods, id: w, labelSelector: app=web}"),
    ("{resource: pods, labelSelector: app=web}", "{resource: po, id: w, labelSelector: app=db}"),
    ("{resource: pods, fieldSelector: spec.nodeName=a}", "{resource: Pod, id: w, fieldSelector: spec.nodeName=b}"),
    ("{resource: pods}", "{resource: pods, namespaces: [shop]}"),
    ("{resource: pods}", "{resource: pods, id: w, name: web-0}"),
    ("{resource: pods, name: web-0}", "{resource: pods, id: w, fieldSelector: metadata.name!=web-1}"),
    ("{resource: pods, excludeNamespaces: [a]}", "{resource: pods, id: w, excludeNamespaces: [b]}"),
    ("{resource: pods, excludeNamespaces: [a]}", "{resource: pods, id: w, namespaces: [a, b]}"),
    ("{resource: pods, namespaces: [a, b], scope: cluster}", "{resource: pods, id: w, namespaces: [b], labelSelector: x}"),
    ("{resource: deployments.apps/v1, topic: t}", "{resource: deploy, id: w, topic: t, metadataOnly: true}"),
    ("{resource: '*.apps'}", "{resource: deploy, id: w}"),
    ("{resource: '*.example.com'}", "{resource: widgets.example.com, id: w}"),
    ("{resource: Widget.example.com, id: w}", "{resource: '*.example.com'}"),
    ("{resource: '*.example.com', topic: t}", "{resource: widgets.example.com, id: w, topic: t}"),
    ("{resource: '*.example.com'}", "{resource: '*.example.com', namespaces: [a]}"),
    ("{resource: wd}", "{resource: wd, id: w, labelSelector: app=web}"),
    ("{resource: nodes, name: n1}", "{resource: nodes, id: w, labelSelector: app=web}"),
]  # fmt: skip
APART = [
    ("{resource: pods}", "{resource: pods, id: w, labelSelector: app=web, topic: t}"),
    ("{resource: pods, namespaces: [a]}", "{resource: pods, namespaces: [b], labelSelector: app=web}"),
    ("{resource: pods, excludeNamespaces: [a, b]}", "{resource: pods, id: w, namespaces: [a, b]}"),
    ("{resource: pods, excludeNamespaces: [a]}", "{resource: pods, id: w, fieldSelector: metadata.namespace=a}"),
    ("{resource: pods, name: web-0}", "{resource: pods, id: w, name: web-1}"),
    ("{resource: nodes, name: n1}", "{resource: nodes, id: w, fieldSelector: 'metadata.name!=n1,spec.unschedulable=true'}"),
    ("{resource: pods, topic: t}", "{resource: nodes, topic: t}"),
    ("{resource: '*.example.com'}", "{resource: widgets.example.com, id: w, topic: t}"),
    ("{resource: '*.example.com', namespaces: [a]}", "{resource: widgets.example.com, id: w, namespaces: [b]}"),
    ("{resource: '*.example.com', topic: t}", "{resource: '*.example.org', topic: t}"),
]  # fmt: skip


def write(tmp_path: Any, *entries: str) -> str:
    file = tmp_path / "w.yaml"
    file.write_text(
        "cluster: c\nkafka: {bootstrapServers: [k:9092]}\nresources:\n"
        + "".join(f"  - {entry}\n" for entry in entries)
    )
    return str(file)


@pytest.mark.parametrize(("one", "two"), OVERLAPPING)
def test_one_resource_twice_on_a_topic_is_refused_with_both_lines_and_the_cure(
    tmp_path: Any, one: str, two: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(write(tmp_path, one, "{resource: events}", two), environ={})
    (problem,) = caught.value.problems
    assert problem.line == 6
    assert str(problem).partition("resources[2]")[2]
    assert "can have the same objects as resources[0] on the same topic" in problem.message
    assert problem.hint.startswith("resources[0] is on line 4; give one of the two another `topic`")
    assert ("or both disjoint `namespaces`" in problem.hint) == ("nodes" not in one)


@pytest.mark.parametrize(("one", "two"), APART)
def test_what_namespaces_or_names_keep_apart_may_share_a_topic(
    tmp_path: Any, one: str, two: str
) -> None:
    assert len(load_settings(write(tmp_path, one, two), environ={}).resources) == 2
    assert len(load_settings(write(tmp_path, two, one), environ={}).resources) == 2


def test_of_an_entry_from_elsewhere_the_source_is_named(tmp_path: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(None, environ={
            "WATCHRELAY_CLUSTER": "c", "WATCHRELAY_KAFKA__BOOTSTRAP_SERVERS": "k:1", "WATCHRELAY_RESOURCES__0__RESOURCE": "pods",
            "WATCHRELAY_RESOURCES__1__RESOURCE": "po", "WATCHRELAY_RESOURCES__1__ID": "w",
        })  # fmt: skip
    problem = caught.value.problems[-1]
    assert problem.source == "WATCHRELAY_RESOURCES__1__RESOURCE"
    assert problem.hint.startswith(
        "resources[0] is from WATCHRELAY_RESOURCES__0__RESOURCE; give one of the two another "
        "`topic`"
    )


@pytest.mark.no_cover  # the limit is for the code, which the tracer makes twice as slow
@pytest.mark.parametrize(
    "entry", ["{{resource: pods, id: s{0}, namespaces: [n{0}], topic: one}}", "{{resource: pods}}"]
)
def test_five_thousand_entries_are_checked_in_seconds(tmp_path: Any, entry: str) -> None:
    file = tmp_path / "w.yaml"
    lines = "".join(f"  - {entry.format(number)}\n" for number in range(5000))
    file.write_text(f"cluster: c\nkafka: {{bootstrapServers: [k:9092]}}\nresources:\n{lines}")
    if "id:" in entry:
        assert not [
            path
            for _, path, _, _ in warnings(load_settings(str(file), environ={}))
            if path[0] == "resources"
        ]
    else:
        with pytest.raises(ConfigError):
            load_settings(str(file), environ={})
