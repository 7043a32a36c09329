"""How many partitions a stream has: those that it was started with, else those of the config, else
one."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.unit.daemon.conftest import World, running, settings_of, until
from watchrelay.admin.preflight import CheckResult, check_everything, check_topics, resolve_streams
from watchrelay.config.streams import control_topic, plan
from watchrelay.consumer import Change, TopicReader
from watchrelay.kafka.log_scan import descriptions
from watchrelay.model.resources import Resource
from watchrelay.model.streams import StreamSpec
from watchrelay.plan.described import KeyFormats, pinned_conflict
from watchrelay.plan.kafka import kafka_connection, topic_spec
from watchrelay.plan.streams import plan_streams

PODS = Resource("", "v1", "pods", "Pod", True)
NOTHING: dict[str, Any] = {"partitions": None}


def spec(
    stream: str = "pods", *, kafka: int | None = None, topic: str = "t", **entry: Any
) -> StreamSpec:
    settings = settings_of(
        [{"resource": "pods", "id": stream, "topic": topic, **entry}], kafka={"partitions": kafka}
    )
    return plan_streams(settings, settings.resources[0], PODS, prefixed=False)[0].spec


def described(**partitions: object) -> dict[str, dict[str, object]]:
    return {
        stream: {**spec(stream).description, "partitions": count, "epochBase": 1}
        for stream, count in partitions.items()
    }


def test_a_new_stream_has_one_partition_unless_the_config_sets_another_number() -> None:
    assert [
        spec().partitions,
        spec(kafka=3).partitions,
        spec(kafka=3, partitions=5).partitions,
    ] == [1, 3, 5]
    (planned,) = plan(settings_of(["pods"], kafka=NOTHING))
    assert planned.partitions == 1


@pytest.mark.parametrize(
    "there", [{"pods": 6}, {"other": 6}, {"other": 6, "third": 6}, {"pods": 6, "other": 3}], ids=str
)
def test_where_the_config_sets_no_number_that_of_the_topic_is_kept(
    there: dict[str, object],
) -> None:
    kept = KeyFormats(described(**there)).kept(spec())
    assert (
        kept.partitions,
        kept.description["partitions"],
        topic_spec(kept, settings_of(["pods"])).pinned,
    ) == (6, 6, True)
    assert pinned_conflict(kept, described(**there).get("pods")) == ""


@pytest.mark.parametrize(
    "there",
    [
        {},
        {"other": 6, "third": 3},
        {"pods": None},
        {"pods": "6"},
        {"pods": [6]},
        {"pods": 0},
        {"pods": -1},
    ],
    ids=str,
)
def test_where_nothing_certain_is_pinned_the_default_holds(there: dict[str, object]) -> None:
    assert KeyFormats(described(**there)).kept(spec()).partitions == 1
    assert KeyFormats(described(pods=6)).kept(spec(topic="another")).partitions == 1


@pytest.mark.parametrize("asked", [{"kafka": 1}, {"partitions": 1}, {"partitions": 7}], ids=str)
def test_a_number_in_the_config_that_differs_from_the_pinned_one_is_refused_with_the_cure(
    asked: dict[str, int],
) -> None:
    there = described(pods=6)
    kept = KeyFormats(there).kept(spec(**asked))  # type: ignore[arg-type]
    assert "has partitions 6, the config asks for" in (
        conflict := pinned_conflict(kept, there["pods"])
    )
    assert "keep `partitions: 6`, or give the stream another topic" in conflict
    assert pinned_conflict(KeyFormats(there).kept(spec(partitions=6)), there["pods"]) == ""


async def test_a_stream_of_six_partitions_goes_on_without_a_word_where_the_config_sets_no_number(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.kafka.create_topic("t", 6)
    pods, nodes = ({"resource": name, "topic": "t"} for name in ("pods", "nodes"))
    async with running(world.settings(pods, nodes, kafka={"partitions": 6})) as relay:
        await relay.ready()
        relay.daemon.stop()
        assert await relay.ended() == 0
    caplog.clear()
    caplog.set_level(logging.WARNING)
    more = {"resource": "configmaps", "topic": "t"}
    unset = world.settings(pods, nodes, more, kafka=NOTHING)
    async with running(unset) as relay:
        await relay.ready()
        await until(
            "all are whole",
            lambda: all(relay.row(name).complete for name in ("pods", "nodes", "configmaps")),
        )
        assert relay.daemon.objections(unset) == []
        assert (
            relay.daemon.objections(
                world.settings({**pods, "partitions": 6}, nodes, more, kafka=NOTHING)
            )
            == []
        )
        ((index, message, _),) = relay.daemon.objections(
            world.settings(pods, {**nodes, "partitions": 1}, more, kafka=NOTHING)
        )
        assert (index, "keep `partitions: 6`, or give the stream another topic" in message) == (
            1,
            True,
        )
        facts = await check_everything(unset)
        assert [str(fact) for fact in facts if "partition" in fact.message] == [
            "ok: topic k8s.test.control: 1 partition, replication factor 1",
            "ok: topic k8s.test.signal: 1 partition, replication factor 1",
            "ok: topic t: 6 partitions, replication factor 1",
        ]
        relay.daemon.stop()
        assert await relay.ended() == 0
    warned = [
        record
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.message != "topic is not as configured"
    ]
    assert warned == []
    held = await descriptions(kafka_connection(unset, client_id="test"), control_topic(unset))
    assert {stream: each["partitions"] for stream, each in held.items()} == dict.fromkeys(
        ["pods", "nodes", "configmaps"], 6
    )


async def test_before_the_first_start_the_config_is_the_cure_for_a_topic_with_another_number(
    world: World,
) -> None:
    world.kafka.create_topic("few", 4)
    world.kafka.create_topic("many", 6)

    async def problems(entry: dict[str, Any]) -> list[CheckResult]:
        settings = world.settings(entry, kafka=NOTHING)
        streams, _ = await resolve_streams(settings)
        return [
            fact
            for fact in await check_topics(settings, streams, create=False)
            if "another" in fact.message or "partitions:" in fact.message
        ]

    (refused,) = await problems({"resource": "pods", "topic": "few", "partitions": 6})
    assert refused.level == "error"
    cure, _, command = refused.message.partition("or add partitions")
    assert cure.endswith(
        "it has 4 partitions, the config asks for 6: set `partitions: 4` in the config, "
    )
    assert "--alter --topic few --partitions 6" in command
    (warning,) = await problems({"resource": "pods", "topic": "many"})
    assert str(warning) == (
        "warning: topic many: it has 6 partitions, 1 is used: set `partitions: 6` in the config "
        "before the first start to use all of them"
    )


async def test_a_stream_gets_more_partitions_with_another_topic_and_readers_follow(
    world: World,
) -> None:
    world.kafka.create_topic("k8s.test.core.pods", 1)
    world.kafka.create_topic("pods-v2", 3)
    for number in range(6):
        metadata = {"name": f"p{number}", "namespace": "default"}
        world.cluster.registry.create("pods", {"kind": "Pod", "metadata": metadata, "spec": {}})
    given: list[Change] = []
    async with running(world.settings("pods")) as relay:
        await until("it is whole", lambda: (row := relay.row("pods")) and row.complete)
        async with (
            TopicReader(world.kafka.bootstrap, control_topic="k8s.test.control") as reader,
            asyncio.TaskGroup() as tasks,
        ):

            async def follow() -> None:
                async for change in reader:
                    given.append(change)  # noqa: PERF401  # read below while it grows; a comprehension gives nothing before its end

            following = tasks.create_task(follow())
            await until("all was given once", lambda: len(given) == 6)
            relay.daemon.adopt(
                world.settings({"resource": "pods", "topic": "pods-v2", "partitions": 3})
            )
            await until(
                "the reader has it from the new topic",
                lambda: (
                    len(given) == 18
                    and reader.proven
                    and {each.topic for each in reader.partitions()} == {"pods-v2"}
                ),
            )
            following.cancel()
    gone = [change for change in given if change.verb == "deleted"]
    assert {change.reason for change in gone} == {"moved"}
    assert (len(gone), len(reader.objects("pods"))) == (6, 6)
