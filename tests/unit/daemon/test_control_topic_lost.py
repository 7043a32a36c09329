"""Streams whose control topic was lost while no relay ran: their own topics tell how they were
started."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from tests.unit.daemon.conftest import Relay, World, running, until
from watchrelay.admin.retire import retire_stream
from watchrelay.config import Settings
from watchrelay.config.streams import control_topic
from watchrelay.consumer import TopicReader
from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.log_scan import descriptions
from watchrelay.kafka.reading import offset_ranges, open_reading, read_ranges
from watchrelay.plan.kafka import kafka_connection

TOPIC = "t"
PARTITIONS = 6
MAPS = {"resource": "configmaps", "topic": TOPIC}
PODS = {"resource": "pods", "topic": TOPIC}
NOTHING: dict[str, Any] = {"partitions": None}


@pytest.fixture
def stage(world: World) -> World:
    """A world with a topic of six partitions, and something to follow."""
    world.kafka.create_topic(TOPIC, PARTITIONS)
    for number in range(40):
        put(world, f"c{number}")
    return world


def put(world: World, name: str) -> None:
    world.cluster.registry.create(
        "configmaps", {"metadata": {"name": name, "namespace": "default"}, "data": {}}
    )


def lost(world: World, *entries: dict[str, Any], prefix: str, **kafka: Any) -> Settings:
    """Settings of a relay of the same topics, with another control topic, which is empty."""
    for name in ("control", "signal"):
        world.kafka.create_topic(f"{prefix}.test.{name}", 1)
    return world.settings(*entries, kafka={**NOTHING, **kafka, "topicPrefix": prefix})


async def whole(relay: Relay, *streams: str) -> None:
    await until(
        "all is published",
        lambda: all(
            (row := relay.row(stream)) and row.complete and row.state == "watching"
            for stream in streams
        ),
    )


async def life(settings: Settings, *streams: str) -> None:
    """A relay, until it has published all."""
    async with running(settings) as relay:
        await whole(relay, *streams)
        relay.daemon.stop()
        assert await relay.ended() == 0


async def pinned(settings: Settings, field: str = "partitions") -> dict[str, object]:
    """What the control topic describes, by stream."""
    connection = kafka_connection(settings, client_id="test")
    found = await descriptions(connection, control_topic(settings))
    return {stream: each[field] for stream, each in found.items()}


async def read(settings: Settings, stream: str) -> set[str]:
    """The keys that a reader of the topic rebuilds, all of it proven."""
    async with TopicReader(
        settings.kafka.bootstrap_servers[0],
        control_topic=control_topic(settings),
        streams=[stream],
        until_end=True,
    ) as reader:
        await reader.ready()
        async for _ in reader:
            pass
        assert reader.proven
        return set(reader.objects(stream))


async def held(settings: Settings) -> set[str]:
    """The keys that a table built from all partitions has, which ignores the headers."""
    table: dict[bytes, bytes | None] = {}
    async with open_reading(kafka_connection(settings, client_id="test")) as reading:
        consumer = reading.consumer
        places = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
        await read_ranges(
            consumer,
            await offset_ranges(consumer, places),
            lambda _, records: table.update((each.key, each.value) for each in records),
        )
    return {key.decode() for key, value in table.items() if value is not None}


async def test_a_stream_goes_on_with_the_partitions_of_its_topic_and_its_log_is_proof(
    stage: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "watchrelay")
    await life(stage.settings(MAPS, kafka={"partitions": PARTITIONS}), "configmaps")
    for number in range(0, 40, 2):
        stage.cluster.registry.delete("configmaps", "default", f"c{number}")
    put(stage, "new")
    left = {f"default/c{number}" for number in range(1, 40, 2)} | {"default/new"}
    caplog.clear()
    settings = lost(stage, MAPS, prefix="again")
    async with running(settings) as relay:
        await whole(relay, "configmaps")
        end_s = asyncio.get_running_loop().time() + 30.0
        while (found := await read(settings, "configmaps")) != left:
            assert asyncio.get_running_loop().time() < end_s, found
        relay.daemon.stop()
        assert await relay.ended() == 0
    assert await held(settings) == left
    assert await pinned(settings) == {"configmaps": PARTITIONS}
    assert [
        (getattr(each, "partitions", 0), each.levelname)
        for each in caplog.records
        if each.message.startswith("control topic has no claim of the stream")
    ] == [(PARTITIONS, "WARNING")]
    (back,) = [each for each in caplog.records if each.message == "log read back"]
    assert (vars(back)["objects"], vars(back)["then"]) == (40, "WatchFrom")


async def test_another_number_in_the_config_is_refused_until_it_is_that_of_the_topic(
    stage: World,
) -> None:
    await life(stage.settings(MAPS, kafka={"partitions": PARTITIONS}), "configmaps")
    settings = lost(stage, MAPS, prefix="again", partitions=1)
    async with running(settings) as relay:
        await until("it waits", lambda: relay.row("configmaps").waits_for)
        assert relay.row("configmaps").waits_for == (
            "stream configmaps on topic t has partitions 6, the config asks for 1: keep "
            "`partitions: 6`, or give the stream another topic"
        )
        assert await pinned(settings) == {}
        relay.daemon.adopt(
            stage.settings(MAPS, kafka={"partitions": PARTITIONS, "topicPrefix": "again"})
        )
        await whole(relay, "configmaps")
        relay.daemon.stop()
        assert await relay.ended() == 0
    assert await pinned(settings) == {"configmaps": PARTITIONS}


async def test_streams_that_share_the_topic_go_on_with_it_and_a_new_one_joins_them(
    stage: World,
) -> None:
    more = {"resource": "nodes", "topic": TOPIC}
    await life(stage.settings(MAPS, PODS, kafka={"partitions": PARTITIONS}), "configmaps", "pods")
    settings = lost(stage, MAPS, PODS, more, prefix="again")
    await life(settings, "configmaps", "pods", "nodes")
    assert await pinned(settings) == dict.fromkeys(("configmaps", "pods", "nodes"), PARTITIONS)
    alone = lost(stage, MAPS, prefix="alone")
    await life(alone, "configmaps")
    assert await pinned(alone, "keyFormat") == {"configmaps": "prefixed"}
    assert {key.partition("/")[0] for key in await read(alone, "configmaps")} == {"configmaps"}


async def test_a_stream_that_is_split_has_the_partitions_of_its_topic_in_all_its_parts(
    stage: World,
) -> None:
    entry = {**MAPS, "split": 2}
    parts = ("configmaps%0/2", "configmaps%1/2")
    await life(stage.settings(entry, kafka={"partitions": PARTITIONS}), *parts)
    settings = lost(stage, entry, prefix="again")
    async with running(settings) as relay:
        await whole(relay, "configmaps")
        relay.daemon.adopt(settings)  # as at the next look at what the API server serves
        await whole(relay, *parts)
        relay.daemon.stop()
        assert await relay.ended() == 0
    assert await pinned(settings) == {"configmaps": PARTITIONS}
    assert len(await read(settings, "configmaps")) == 40


async def test_a_stream_that_comes_back_to_a_topic_has_the_partitions_that_it_left_there(
    stage: World,
) -> None:
    stage.kafka.create_topic("u", 1)
    await life(stage.settings(MAPS, kafka={"partitions": PARTITIONS}), "configmaps")
    await life(stage.settings({**MAPS, "topic": "u"}, kafka=NOTHING), "configmaps")
    stage.cluster.registry.delete("configmaps", "default", "c0")
    back = stage.settings(MAPS, kafka=NOTHING)
    await life(back, "configmaps")
    assert await pinned(back) == {"configmaps": PARTITIONS}
    assert "default/c0" not in await held(back)


async def test_a_retired_stream_may_begin_with_another_number(
    stage: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "watchrelay")
    before = stage.settings(PODS, kafka={"partitions": PARTITIONS})
    await life(stage.settings(MAPS, PODS, kafka={"partitions": PARTITIONS}), "configmaps", "pods")
    assert (await retire_stream(before, "configmaps")).deletes == 40
    assert (await retire_stream(before, "pods")).deletes is not None
    caplog.clear()
    settings = stage.settings(MAPS, kafka={"partitions": 2})
    await life(settings, "configmaps")
    assert await pinned(settings) == {"configmaps": 2}
    assert len(await read(settings, "configmaps")) == len(await held(settings)) == 40
    assert not [each for each in caplog.messages if "verification failed" in each]
