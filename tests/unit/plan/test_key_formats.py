"""The keys of a stream: those of its topic, as it was started."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.daemon.conftest import settings_of
from watchrelay.model.resources import Resource
from watchrelay.model.streams import StreamSpec
from watchrelay.plan.described import KeyFormats, pinned_conflict, topic_conflict
from watchrelay.plan.streams import plan_streams

PODS = Resource("", "v1", "pods", "Pod", True)
NODES = Resource("", "v1", "nodes", "Node", False)


def spec(
    stream: str, resource: Resource = PODS, *, prefixed: bool, topic: str = "t", **entry: Any
) -> StreamSpec:
    settings = settings_of([{"resource": resource.plural, "id": stream, "topic": topic, **entry}])
    return plan_streams(settings, settings.resources[0], resource, prefixed=prefixed)[0].spec


def described(*streams: StreamSpec) -> dict[str, dict[str, object]]:
    return {each.id: {**each.description, "epochBase": 1} for each in streams}


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_a_stream_keeps_the_keys_that_it_has_on_its_topic(pinned: bool, asked: bool) -> None:
    before = spec("pods", prefixed=pinned)
    kept = KeyFormats(described(before, spec("nodes", NODES, prefixed=True))).kept(
        spec("pods", prefixed=asked)
    )
    assert kept == before
    assert pinned_conflict(kept, described(before)["pods"]) == ""


@pytest.mark.parametrize("asked", [False, True])
def test_on_another_topic_or_with_another_resource_a_stream_is_as_the_config_asks(
    asked: bool,
) -> None:
    formats = KeyFormats(described(spec("s", prefixed=not asked)))
    for stream in (spec("s", prefixed=asked, topic="u"), spec("s", NODES, prefixed=asked)):
        assert formats.kept(stream) == stream
    assert pinned_conflict(
        spec("s", NODES, prefixed=asked), described(spec("s", prefixed=not asked))["s"]
    )


@pytest.mark.parametrize(
    ("there", "resource", "asked", "kept"),
    [
        (PODS, PODS, True, False),  # more of the one resource that the topic was started with
        (PODS, NODES, True, True),  # plain keys of another resource: `topic_conflict` refuses it
        (PODS, NODES, False, False),
    ],
)
def test_a_new_stream_has_plain_keys_beside_those_of_its_own_resource(
    there: Resource, resource: Resource, asked: bool, kept: bool
) -> None:
    formats = KeyFormats(described(spec("old", there, prefixed=False)))
    assert formats.kept(spec("new", resource, prefixed=asked)) == spec(
        "new", resource, prefixed=kept
    )


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("resource", [PODS, NODES])
def test_a_new_stream_has_prefixed_keys_beside_prefixed_ones(
    resource: Resource, asked: bool
) -> None:
    formats = KeyFormats(described(spec("old", prefixed=True)))
    assert formats.kept(spec("new", resource, prefixed=asked)) == spec(
        "new", resource, prefixed=True
    )


def test_beside_both_forms_a_new_stream_is_as_the_config_asks_and_refused() -> None:
    there = described(spec("one", prefixed=False), spec("two", prefixed=True))
    new = KeyFormats(there).kept(spec("new", NODES, prefixed=True))
    assert new == spec("new", NODES, prefixed=True)
    assert topic_conflict(new, [new], there)


def test_what_joins_a_topic_of_plain_keys_is_refused_with_a_cure_and_what_was_there_goes_on() -> (
    None
):
    there = described(spec("pods", prefixed=False))
    formats = KeyFormats(there)
    plans = [
        formats.kept(spec("pods", prefixed=True)),
        formats.kept(spec("nodes", NODES, prefixed=True)),
    ]
    assert topic_conflict(plans[0], plans, there) == ""
    assert topic_conflict(plans[1], plans, there) == (
        "stream nodes writes prefixed keys for nodes, stream pods on the same topic t plain "
        "ones for pods: take all of topic t out of the "
        "config, retire pods (`watchrelay retire pods`) and put all of it back; or name "
        "another topic"
    )


def test_plain_keys_of_two_resources_of_one_config_are_refused() -> None:
    there = described(spec("pods", prefixed=False), spec("nodes", NODES, prefixed=False))
    plans = [
        KeyFormats(there).kept(spec(name, kind, prefixed=True))
        for name, kind in (("pods", PODS), ("nodes", NODES))
    ]
    assert (
        "stream nodes on the same topic t plain ones for nodes: take all of topic t out"
        in topic_conflict(plans[0], plans, there)
    )
    assert (
        "stream pods on the same topic t plain ones for pods: take all of topic t out"
        in topic_conflict(plans[1], plans, there)
    )
    assert topic_conflict(plans[0], plans[:1], there) == "", (
        "what left the config is not looked for in a topic that goes on as it was"
    )
