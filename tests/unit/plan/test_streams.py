"""Config and discovery -> streams: ids, topics, keys, selectors, and what decides that a stream's
content is another."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support.pods import frame_of
from tests.unit.daemon.conftest import settings_of
from watchrelay.config.streams import control_topic
from watchrelay.model.resources import Resource
from watchrelay.model.streams import StreamSpec
from watchrelay.plan.described import deadlocked, resources_described, topic_conflict
from watchrelay.plan.kafka import control_spec, topic_spec
from watchrelay.plan.streams import (
    PlannedStream,
    parts_of,
    plan_hash,
    plan_streams,
    provisional_ids,
)
from watchrelay.replicas.assignor import MemberAssignment, MemberMetadata, encode

PODS = Resource("", "v1", "pods", "Pod", True)
SECRETS = Resource("", "v1", "secrets", "Secret", True)
NODES = Resource("", "v1", "nodes", "Node", False)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True)


def planned(
    entry: dict[str, Any], resource: Resource = PODS, *, prefixed: bool = False, **settings: Any
) -> list[PlannedStream]:
    made = settings_of([{"resource": "pods", **entry}], **settings)
    return plan_streams(made, made.resources[0], resource, prefixed=prefixed)


def one(entry: dict[str, Any], resource: Resource = PODS, **more: Any) -> PlannedStream:
    (stream,) = planned(entry, resource, **more)
    return stream


def ids(entry: dict[str, Any], resource: Resource = PODS) -> list[str]:
    return [stream.spec.id for stream in planned(entry, resource)]


def test_a_stream_is_called_by_plural_and_group_and_by_its_namespace() -> None:
    assert ids({}) == ["pods"]
    assert ids({}, DEPLOYMENTS) == ["deployments.apps"]
    assert ids({"namespaces": ["shop", "pay"]}, DEPLOYMENTS) == [
        "deployments.apps@shop",
        "deployments.apps@pay",
    ]
    assert ids({"id": "mine", "namespaces": ["shop", "pay"]}) == ["mine@shop", "mine@pay"]
    assert ids({"namespaces": ["shop", "pay"], "scope": "cluster"}) == ["pods"]


def test_until_discovery_answers_a_stream_is_called_as_it_was_written() -> None:
    def provisional(**entry: Any) -> list[str]:
        return provisional_ids(settings_of([{"resource": "Widget", **entry}]).resources[0])

    assert provisional() == ["Widget"]
    assert provisional(namespaces=["a", "b"]) == ["Widget@a", "Widget@b"]
    assert provisional(namespaces=["a", "b"], scope="cluster") == ["Widget"]
    assert provisional(id="mine", namespaces=["a"]) == ["mine@a"]


@pytest.mark.parametrize(
    ("entry", "meant"),
    [
        ({"resource": "widgets.example.com"}, ["widgets.example.com"]),
        ({"resource": "Widgets"}, ["widgets.example.com"]),
        ({"resource": "widgets.example.com/v1"}, ["widgets.example.com"]),
        ({"resource": "widgets.example.com/v2"}, []),
        ({"resource": "widgets.example.org"}, []),
        ({"resource": "gadgets"}, []),  # of two groups
        ({"resource": "*.example.com"}, ["widgets.example.com", "gadgets.example.com"]),
        ({"resource": "wd"}, []),
        ({"resource": "widgets", "id": "mine"}, []),
        ({"resource": "things", "id": "taken"}, []),
        ({"resource": "tools", "id": "taken"}, ["tools.example.net"]),
        ({"resource": "tools", "id": "taken", "namespaces": ["a", "b"]}, []),
        ({"resource": "parts", "namespaces": ["a", "b"]}, ["parts.example.net"]),
        ({"resource": "odd"}, []),
        ({"resource": "old.example.com"}, []),  # described before kinds were
    ],
    ids=str,
)
def test_the_descriptions_of_its_streams_say_what_an_entry_meant(
    entry: dict[str, Any], meant: list[str]
) -> None:
    resources = {
        "widgets.example.com": "widgets.example.com/v1",
        "gadgets.example.com": "gadgets.example.com/v1",
        "gadgets.example.org": "gadgets.example.org/v1",
        "taken": "tools.example.net/v1",
        "parts.example.net@b": "parts.example.net/v1",
        "odd": "odd/../../v1",
        "numbers": 7,
    }
    described = {stream: {"resource": each, "kind": "Thing"} for stream, each in resources.items()}
    described["old.example.com"] = {"resource": "old.example.com/v1"}
    found = resources_described(settings_of([entry]).resources[0], described)
    assert [each.qualified for each in found] == meant


def test_topics_come_from_the_template_unless_an_entry_names_its_own() -> None:
    assert one({}).spec.topic == "k8s.test.core.pods"
    assert one({}, DEPLOYMENTS).spec.topic == "k8s.test.apps.deployments"
    assert one({"topic": "mine"}).spec.topic == "mine"
    assert (
        one({}, DEPLOYMENTS, kafka={"topicTemplate": "{group}-{resource}-of-{cluster}"}).spec.topic
        == "apps-deployments-of-test"
    )
    assert control_topic(settings_of(["pods"], kafka={"topicPrefix": "x"})) == "x.test.control"


def test_a_topic_is_asked_for_as_entry_and_kafka_section_say() -> None:
    settings = settings_of(
        [{"resource": "pods", "partitions": 9, "snapshotInterval": "15m"}],
        kafka={"replicationFactor": 3},
    )
    (stream,) = plan_streams(settings, settings.resources[0], PODS, prefixed=False)
    spec = topic_spec(stream.spec, settings)
    assert (
        spec.name,
        spec.partitions,
        spec.replication_factor,
        spec.min_insync_replicas,
        spec.snapshot_interval_s,
    ) == (("k8s.test.core.pods", 9, 3, 1, 900.0))
    control = control_spec(settings)
    assert (control.name, control.kind, control.partitions) == ("k8s.test.control", "control", 1)


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        ({}, {}, "takes objects that stream first on the same topic t has too"),
        ({"namespaces": ["shop"]}, {}, "takes objects that stream first@shop"),
        ({"labelSelector": "a=b"}, {"labelSelector": "a=b"}, "takes objects"),
        ({"labelSelector": "a=b"}, {"labelSelector": "a=c"}, "takes objects"),
        ({}, {"labelSelector": "a=b"}, "takes objects"),
        ({"fieldSelector": "spec.nodeName=a"}, {"fieldSelector": "spec.nodeName=b"}, "takes objects"),
        ({"excludeNamespaces": ["shop"]}, {"excludeNamespaces": ["pay"]}, "takes objects"),
        ({"excludeNamespaces": ["shop"]}, {"namespaces": ["shop"]}, ""),
        ({"name": "web"}, {"labelSelector": "a=b"}, "takes objects"),
        ({"name": "web"}, {"fieldSelector": "metadata.name!=web"}, ""),
        ({"name": "web"}, {"name": "db"}, ""),
        ({"namespaces": ["shop"]}, {"namespaces": ["pay"]}, ""),
        ({"topic": "elsewhere"}, {}, ""),
    ],
)  # fmt: skip
def test_a_stream_whose_keys_are_another_streams_for_certain_is_refused(
    theirs: dict[str, Any], ours: dict[str, Any], words: str
) -> None:
    first, second = (
        one({"topic": "t", "id": name, **entry}).spec
        for name, entry in (("first", theirs), ("second", ours))
    )
    described = {first.id: first.description, second.id: second.description}
    found = topic_conflict(second, [], described)
    assert words in found
    assert bool(found) == bool(words)
    assert not found or f"`watchrelay retire {first.id}`" in found


def test_another_version_of_a_resource_has_the_same_objects() -> None:
    first, second = (
        one(
            {"topic": "t", "id": name}, Resource("apps", name, "deployments", "Deployment", True)
        ).spec
        for name in ("v1", "v2")
    )
    assert "takes objects that stream v1" in topic_conflict(second, [], {"v1": first.description})


@pytest.mark.parametrize(
    "selectors",
    [None, 7, [], {}, {"namespaces": 7, "fieldSelector": []}, {"namespaces": [7]}],
    ids=str,
)
def test_selectors_that_no_relay_writes_limit_nothing(selectors: Any) -> None:
    ours, theirs = (
        one({"topic": "t", "id": "a", "labelSelector": "x"}).spec,
        one({"topic": "t", "id": "b"}).spec,
    )
    assert "takes objects that stream b" in topic_conflict(
        ours, [], {"b": {**theirs.description, "selectors": selectors}}
    )


def at(name: str, *namespaces: str) -> StreamSpec:
    return one({"topic": "t", "id": name, "scope": "cluster", "namespaces": list(namespaces)}).spec


@pytest.mark.parametrize(
    ("before", "after", "stuck"),
    [
        ({"a": "x", "b": "y"}, {"a": "y", "b": "x"}, "ab"),
        ({"a": "xw", "b": "y"}, {"a": "wy", "b": "x"}, "ab"),
        ({"a": "x", "b": "y", "c": "z"}, {"a": "y", "b": "z", "c": "x"}, "abc"),
        ({"a": "x", "b": "y", "c": "z"}, {"a": "y", "b": "x", "c": "v"}, "ab"),
        ({"a": "x", "b": "y"}, {"a": "y", "b": "z"}, ""),  # b lets go by itself
        ({"a": "x", "b": "y", "c": "z"}, {"a": "y", "b": "z", "c": "w"}, ""),
        # b is not in the config: it must be retired, which `topic_conflict` says
        ({"a": "x", "b": "y"}, {"a": "y"}, ""),
        ({"a": "x", "b": "y"}, {"a": "xy", "b": "xy"}, ""),  # the config itself is wrong
        ({"a": "x", "b": "y"}, {"a": "x", "b": "y"}, ""),
    ],
)
def test_streams_of_one_config_that_would_wait_for_each_other_without_end_are_found(
    before: dict[str, str], after: dict[str, str], stuck: str
) -> None:
    described = {
        spec.id: spec.description for spec in (at(name, *held) for name, held in before.items())
    }
    plans = [at(name, *wanted) for name, wanted in after.items()]
    found = deadlocked(plans, described)
    assert "".join(sorted(found)) == stuck
    assert all(topic_conflict(plan, [], described) for plan in plans if plan.id in found)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            {"a": "x", "b": "y"},
            {"a": "y", "b": "x"},
            "take a out of the config, retire it (`watchrelay retire a`) and put it back",
        ),
        ({"a": "x", "b": "y"}, {"a": "y", "b": "z"}, "by this config that one lets go of them, and this one waits until it has"),
        ({"a": "x", "b": "y"}, {"a": "y"}, "retire that one first (`watchrelay retire b`)"),
        ({"a": "x", "b": "y"}, {"a": "z", "b": "y"}, ""),
    ],
)  # fmt: skip
def test_what_a_stream_waits_for_at_a_start_is_reported_with_what_can_be_done(
    before: dict[str, str], after: dict[str, str], words: str
) -> None:
    described = {
        spec.id: spec.description for spec in (at(name, *held) for name, held in before.items())
    }
    plans = [at(name, *wanted) for name, wanted in after.items()]
    conflict = topic_conflict(plans[0], plans, described)
    assert words in conflict
    assert bool(conflict) == bool(words)


def test_streams_of_one_topic_have_one_form_of_keys() -> None:
    plain, prefixed = one({"topic": "t"}).spec, one({"topic": "t"}, DEPLOYMENTS, prefixed=True).spec
    assert "writes prefixed keys, stream pods on the same topic t plain ones" in topic_conflict(
        prefixed, [], {plain.id: plain.description}
    )


def test_keys_are_prefixed_where_a_topic_holds_several_resources() -> None:
    plain, prefixed = one({}), one({}, DEPLOYMENTS, prefixed=True)
    assert (plain.spec.key_prefix, plain.spec.description["keyFormat"]) == (b"", "plain")
    assert (prefixed.spec.key_prefix, prefixed.spec.description["keyFormat"]) == (
        b"deployments.apps/",
        "prefixed",
    )


SELECTORS = [
    ({}, "", ""),
    ({"fieldSelector": "spec.nodeName=n1"}, "", "spec.nodeName=n1"),
    ({"labelSelector": "app=web"}, "app=web", ""),
    ({"name": "web"}, "", "metadata.name=web"),
    ({"name": "web", "fieldSelector": "spec.nodeName=n1"}, "", "spec.nodeName=n1,metadata.name=web"),
    ({"excludeNamespaces": ["kube-system", "dev"]}, "", "metadata.namespace!=kube-system,metadata.namespace!=dev"),
    ({"name": "web", "excludeNamespaces": ["dev"]}, "", "metadata.name=web,metadata.namespace!=dev"),
    ({"name": "web", "namespaces": ["shop"]}, "", "metadata.name=web"),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "label", "field"), SELECTORS, ids=lambda value: str(value)[:50])
def test_one_object_and_excluded_namespaces_become_field_selectors(
    entry: dict[str, Any], label: str, field: str
) -> None:
    selection = one(entry).spec.plan.selection
    assert (selection.label_selector, selection.field_selector) == (label, field)


def test_a_watch_of_one_namespace_asks_for_it_and_one_for_all_filters_on_arrival() -> None:
    shop, pay = planned({"namespaces": ["shop", "pay"]})
    assert [stream.spec.plan.selection.namespace for stream in (shop, pay)] == ["shop", "pay"]
    assert shop.spec.plan.arrival_namespaces == frozenset()
    whole = one({"namespaces": ["shop", "pay"], "scope": "cluster"}).spec.plan
    assert whole.selection.namespace is None
    assert whole.arrival_namespaces == {"shop", "pay"}


OTHER_CONTENT: list[dict[str, Any]] = [
    {"labelSelector": "app=web"},
    {"fieldSelector": "spec.nodeName=n1"},
    {"name": "web"},
    {"excludeNamespaces": ["dev"]},
    {"namespaces": ["shop"]},
    {"namespaces": ["shop"], "scope": "cluster"},
    {"metadataOnly": True},
    {"drop": ["status"]},
    {"redact": ["spec.containers"]},
    {"keepManagedFields": True},
    {"keepLastApplied": True},
    {"ignoreChanges": ["status"]},
    {"publishWhen": ["spec"]},
    {"publishWhen": []},
]
SAME_CONTENT: list[dict[str, Any]] = [
    {"id": "mine"},
    {"topic": "mine"},
    {"partitions": 3},
    {"pageSize": 7},
    {"bookmarks": False},
    {"initialList": "paged"},
    {"listSemantic": "any"},
    {"snapshotInterval": "15m"},
    {"suppressUnchanged": False},
    {"ignoreChanges": []},
]


@pytest.mark.parametrize("entry", OTHER_CONTENT, ids=str)
def test_the_config_hash_changes_with_what_is_published(entry: dict[str, Any]) -> None:
    assert one(entry).spec.config_hash != one({}).spec.config_hash


@pytest.mark.parametrize("entry", SAME_CONTENT, ids=str)
def test_the_config_hash_does_not_change_with_how_it_is_read_or_where_it_goes(
    entry: dict[str, Any],
) -> None:
    assert one(entry).spec.config_hash == one({}).spec.config_hash


def test_the_config_hash_is_of_the_resource_and_of_nothing_else_in_the_config() -> None:
    assert one({}, DEPLOYMENTS).spec.config_hash != one({}).spec.config_hash
    elsewhere = one(
        {},
        kafka={"partitions": 2, "topicPrefix": "x"},
        cluster="other",
        heartbeatInterval="9s",
        observe={"logLevel": "debug"},
    )
    assert elsewhere.spec.config_hash == one({}).spec.config_hash
    assert (
        one({"includeSecretData": True}, SECRETS).spec.config_hash
        != one({}, SECRETS).spec.config_hash
    )
    order = (
        one({"namespaces": ["a", "b"], "scope": "cluster"}),
        one({"namespaces": ["b", "a"], "scope": "cluster"}),
    )
    assert order[0].spec.config_hash == order[1].spec.config_hash


def test_the_config_hash_of_a_release_is_on_the_topics_of_its_users() -> None:
    """When this fails, bytes on topics change their meaning at an upgrade: raise CONTENT_VERSION
    and say so in the changelog."""
    assert (
        one({"labelSelector": "app=web", "drop": ["status"]}).spec.config_hash == "e64f74a6613970cb"
    )


@pytest.mark.parametrize("counted", [{"ignoreChanges": ["status", "a.b"]}, {"publishWhen": []}])
def test_a_description_says_which_fields_may_be_older(counted: dict[str, Any]) -> None:
    """And that of a stream of which everything counts is as ever."""
    described = one(counted).spec.description
    plain = one({}).spec.description
    for key, paths in counted.items():
        assert described[key] == sorted(paths)
    assert {**described, "configHash": ""} == {**plain, **counted, "configHash": ""} | {
        key: sorted(paths) for key, paths in counted.items()
    }
    assert one({}).counting is None


def test_what_counts_of_a_secret_is_its_hidden_payload() -> None:
    stream = one({"ignoreChanges": ["metadata.labels"]}, SECRETS)
    assert stream.counting is not None
    assert stream.counting.redacts
    frames = [
        frame_of(
            b'{"metadata":{"name":"s","uid":"u","resourceVersion":"%d"},"data":{"a":"%b"}}'
            % (version, payload)
        )
        for version, payload in ((1, b"YQ=="), (2, b"YQ=="), (3, b"Yg=="))
    ]
    hashes = [stream.counting.of_value(stream.counting.before.apply(each)) for each in frames]
    assert hashes[0] == hashes[1] != hashes[2]
    shown = [stream.transform.apply(each) for each in frames]
    assert not any(b"YQ==" in each or b"Yg==" in each for each in shown)
    (metadata,) = planned({"ignoreChanges": ["metadata.labels"], "metadataOnly": True}, SECRETS)
    assert metadata.counting is not None
    assert not metadata.counting.redacts


def test_what_only_discovery_shows_to_be_impossible_is_refused_in_one_line() -> None:
    with pytest.raises(
        ValueError, match=r"^nodes is cluster-scoped: remove namespaces from its entry$"
    ):
        planned({"namespaces": ["shop"]}, NODES)
    with pytest.raises(ValueError, match=r"^includeSecretData is for secrets only, not for pods$"):
        planned({"includeSecretData": True}, PODS)


@pytest.mark.parametrize(
    ("entry", "resource", "settings", "checked"),
    [
        ({}, PODS, {}, False),
        ({}, DEPLOYMENTS, {}, False),
        ({"drop": ["status"]}, PODS, {}, True),
        ({"redact": ["spec.a"]}, PODS, {}, True),
        ({}, SECRETS, {}, True),
        ({}, Resource("apps", "v1", "controllerrevisions", "ControllerRevision", True), {}, True),
        ({}, Resource("example.com", "v1", "widgets", "Widget", True), {}, True),
        # of an aggregated server: its group needs no dot
        ({}, Resource("custom", "v1", "widgets", "Widget", True), {}, True),
        ({}, PODS, {"kafka": {"format": "structured"}}, True),
        ({}, PODS, {"kafka": {"format": "debezium"}}, True),
    ],
)
def test_the_depth_of_objects_is_checked_unless_their_type_bounds_it_and_nothing_decodes_them_again(
    entry: dict[str, Any], resource: Resource, settings: dict[str, Any], checked: bool
) -> None:
    assert one(entry, resource, **settings).spec.plan.selection.depth_checked is checked


def test_a_split_stream_has_so_many_parts_and_is_one_stream_on_its_topic() -> None:
    whole = one({"resource": "pods", "split": 4, "partitions": 6})
    parts = [each.spec for each in parts_of(whole, 6)]
    assert [each.id for each in parts] == [f"pods%{place}/4" for place in range(4)]
    assert [each.own_partitions for each in parts] == [(0, 1), (2,), (3, 4), (5,)]
    assert {(each.stream, each.config_hash, str(each.description)) for each in parts} == {
        ("pods", whole.spec.config_hash, str(whole.spec.description))
    }
    unsplit = one({"resource": "pods", "partitions": 6})
    assert unsplit.spec.config_hash == whole.spec.config_hash, "readers see one stream"
    assert parts_of(unsplit, 6) == [unsplit]
    assert unsplit.spec.own_plan is unsplit.spec.plan


def test_a_topic_with_fewer_partitions_has_no_more_parts_than_these() -> None:
    whole = one({"resource": "pods", "split": 4, "partitions": 6})
    assert [each.spec.id for each in parts_of(whole, 2)] == ["pods%0/2", "pods%1/2"]
    assert [each.spec.id for each in parts_of(whole, 1)] == ["pods"]


def test_a_replica_plans_a_stream_alike_before_and_after_it_has_read_its_description() -> None:
    spec = one({}).spec
    read = dataclasses.replace(spec, partitions_from="topic")
    assert plan_hash(spec, suppress_unchanged=True) == plan_hash(read, suppress_unchanged=True)
    other = dataclasses.replace(spec, partitions=spec.partitions + 1)
    assert plan_hash(other, suppress_unchanged=True) != plan_hash(spec, suppress_unchanged=True)


def test_ten_replicas_of_five_thousand_streams_fit_into_the_groups_record() -> None:
    """A broker takes records of 1 MiB by default, and has the whole group in one."""
    spec = one({}).spec
    names = [f"pods@team-{number:04}-{'prod' if number % 3 else 'test'}" for number in range(5000)]
    plans = {
        each: plan_hash(dataclasses.replace(spec, id=each), suppress_unchanged=True)
        for each in names
    }
    size = 0
    for replica in range(10):
        own = names[500 * replica : 500 * (replica + 1)]
        size += len(
            encode(
                MemberMetadata(
                    f"watchrelay-{replica}",
                    plans=plans,
                    assigned=dict.fromkeys(own, 7),
                    writing={each: 10_000 + 37 * number for number, each in enumerate(own)},
                    warm=tuple(names[replica::10]),
                )
            )
        )
        size += len(encode(MemberAssignment(dict.fromkeys(own, ""), tuple(names[replica::10]))))
    assert size < 700 << 10
