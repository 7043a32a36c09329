"""Which topics hold several resources: by the config, whatever of it is served."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.daemon.conftest import settings_of
from watchrelay.config.streams import shared_topics
from watchrelay.model.resources import Resource

PODS = Resource("", "v1", "pods", "Pod", True)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True)
WIDGETS = Resource("example.com", "v1", "widgets", "Widget", True)
GADGETS = Resource("example.com", "v1", "gadgets", "Gadget", True)

ALL, BY_GROUP, BY_RESOURCE = "all", "of-{group}", "{group}.{resource}"

Entry = str | dict[str, Any]


def shared(template: str, *entries: tuple[Entry, list[Resource]]) -> set[str]:
    settings = settings_of([entry for entry, _ in entries], kafka={"topicTemplate": template})
    return shared_topics(
        settings,
        ((entry, found) for entry, (_, found) in zip(settings.resources, entries, strict=True)),
    )


@pytest.mark.parametrize("found", [[], [WIDGETS]], ids=["missing", "found"])
@pytest.mark.parametrize("named", ["widgets.example.com", "Widget.example.com", "widgets", "wd"])
def test_an_entry_counts_whether_its_resource_is_served_or_not(
    named: str, found: list[Resource]
) -> None:
    assert shared(ALL, ("pods", [PODS]), (named, found)) == {"all"}
    assert shared(BY_RESOURCE, ("pods", [PODS]), (named, found)) == set()
    explicit: tuple[Entry, Entry] = (
        {"resource": "pods", "topic": "t"},
        {"resource": named, "topic": "t"},
    )
    assert shared(BY_RESOURCE, (explicit[0], [PODS]), (explicit[1], found)) == {"t"}


@pytest.mark.parametrize("found", [[], [WIDGETS], [WIDGETS, GADGETS]], ids=len)
def test_a_wildcard_counts_as_several_where_its_resources_share_a_topic(
    found: list[Resource],
) -> None:
    wild = "*.example.com"
    assert shared(ALL, (wild, found)) == {"all"}
    assert shared(BY_GROUP, (wild, found)) == {"of-example.com"}
    assert shared(BY_RESOURCE, ({"resource": wild, "topic": "t"}, found)) == {"t"}
    assert shared(BY_RESOURCE, (wild, found)) == set()


def test_one_resource_named_in_several_ways_is_one() -> None:
    def narrow(resource: str, number: int) -> Entry:
        return {"resource": resource, "namespaces": [f"n{number}"]}

    built_in = [
        narrow(name, number) for number, name in enumerate(["pods", "po", "Pod", "pods/v1", "pods"])
    ]
    assert shared(ALL, *((entry, []) for entry in built_in)) == set()
    assert shared(ALL, *((entry, [PODS]) for entry in built_in)) == set()
    named = ["widgets.example.com", "Widget.example.com", "wd", "widgets", "widgets.example.com/v1"]
    custom = [narrow(name, number) for number, name in enumerate(named)]
    assert shared(ALL, *((entry, [WIDGETS]) for entry in custom)) == set()
    assert shared(ALL, (custom[0], [WIDGETS]), (custom[4], [])) == set()
    assert shared(ALL, (custom[0], [WIDGETS]), (custom[1], [])) == {"all"}, (
        "nobody can say now whether they are one"
    )


def test_a_topic_per_group_may_come_to_hold_what_has_no_group_yet() -> None:
    assert (
        shared(BY_GROUP, ("deployments.apps", [DEPLOYMENTS]), ("widgets.example.com", [WIDGETS]))
        == set()
    )
    assert shared(BY_GROUP, ("gadgets.example.com", [GADGETS]), ("wd", [])) == {"of-example.com"}
    assert shared(BY_GROUP, ("gadgets.example.com", []), ("wd", [])) == {"of-example.com"}
    assert shared(BY_GROUP, ("gadgets.example.com", [GADGETS]), ("wd", [WIDGETS])) == {
        "of-example.com"
    }
    assert shared(BY_GROUP, ("deployments.apps", [DEPLOYMENTS]), ("wd", [])) == set(), (
        "nobody adds resources to a built-in group"
    )
    assert (
        shared(BY_GROUP, ({"resource": "gadgets.example.com", "topic": "t"}, [GADGETS]), ("wd", []))
        == set()
    )


def test_a_template_by_resource_alone_has_the_same_plural_of_two_groups_on_one_topic() -> None:
    assert shared("{resource}", ("pods", [PODS]), ("pods.metrics.k8s.io", [])) == {"pods"}
    assert shared("{resource}", ("pods", [PODS]), ("PodMetrics.metrics.k8s.io", [])) == set()
