"""A stream that is split over several writers, between real sockets: resized while it changes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.unit.daemon.conftest import Relay, World, running, until
from watchrelay.consumer import TopicReader
from watchrelay.consumer.audit_run import open_auditor
from watchrelay.kafka.client.connection import KafkaConnection

TOPIC, CONTROL = "k8s.test.core.configmaps", "k8s.test.control"
PARTITIONS = 4


@pytest.fixture
def stage(world: World) -> World:
    """A world with a topic of four partitions, and something to follow."""
    world.kafka.create_topic(TOPIC, PARTITIONS)
    for number in range(40):
        put(world, f"c{number}", 0)
    return world


def put(world: World, name: str, value: int) -> None:
    """The object is created, or changed."""
    known = world.cluster.registry.get("configmaps", "default", name)
    change = world.cluster.registry.replace if known else world.cluster.registry.create
    body: dict[str, Any] = {
        "metadata": {"name": name, "namespace": "default"},
        "data": {"value": str(value)},
    }
    change("configmaps", body)


def churn(world: World, turn: int) -> None:
    """Objects change, go, come, and come and go."""
    for number in range(turn % 3, 40, 3):
        put(world, f"c{number}", turn)
    for number in range(20):
        put(world, f"t{turn}-{number}", turn)
    for number in range(0, 20, 2):
        world.cluster.registry.delete("configmaps", "default", f"t{turn}-{number}")


def split(world: World, count: int) -> Any:
    entry = {"resource": "configmaps", "split": count}
    return world.settings(entry, kafka={"partitions": PARTITIONS})


def names(count: int) -> list[str]:
    return (
        ["configmaps"] if count == 1 else [f"configmaps%{place}/{count}" for place in range(count)]
    )


async def live(relay: Relay, count: int) -> None:
    """Returns once the parts, and no others, are whole in Kafka and watched."""

    def true() -> bool:
        rows = relay.daemon.statuses.streams
        return sorted(rows) == names(count) and all(
            row.complete and row.state == "watching" for row in rows.values()
        )

    await until(f"{count} parts are live", true)


def shown(world: World) -> dict[str, str]:
    """What the cluster has, with resourceVersions."""
    held = world.cluster.registry.storage.collection("configmaps").objects.values()
    objects = [json.loads(each.body())["metadata"] for each in held]
    return {f"{each['namespace']}/{each['name']}": each["resourceVersion"] for each in objects}


async def up_to_date(world: World) -> None:
    """Returns once the topic holds what the cluster has, all of it proven."""
    end_s = asyncio.get_running_loop().time() + 30.0
    while (found := await read(world)) != shown(world):
        assert asyncio.get_running_loop().time() < end_s, found


async def read(world: World) -> dict[str, str]:
    """What a reader of the topic rebuilds, all of it proven."""
    async with TopicReader(
        world.kafka.bootstrap, control_topic=CONTROL, streams=["configmaps"], until_end=True
    ) as reader:
        await reader.ready()
        async for _ in reader:
            pass
        assert reader.proven
        assert not reader.problems
        return {
            key: each["metadata"]["resourceVersion"]
            for key, each in reader.objects("configmaps").items()
        }


async def test_a_stream_is_resized_under_churn_and_readers_see_one_stream(stage: World) -> None:
    async with running(split(stage, 2)) as relay:
        await live(relay, 2)
        await up_to_date(stage)
        lists = [each for each in stage.asked("configmaps") if each != "watch"]
        assert len(lists) == 2, "one of each part"
        for turn, count in enumerate((4, 3, 1, 2)):
            churn(stage, 2 * turn)
            relay.daemon.adopt(split(stage, count))
            churn(stage, 2 * turn + 1)
            await live(relay, count)
            await up_to_date(stage)
        assert [each for each in stage.asked("configmaps") if each != "watch"] == lists
        relay.daemon.stop()
        assert await relay.ended() == 0
    await up_to_date(stage)
    async with open_auditor(
        KafkaConnection(bootstrap_servers=(stage.kafka.bootstrap,)), control_topic=CONTROL
    ) as auditor:
        await auditor.read_to_end()
        assert [each.problems for each, _, _ in auditor.rows()] == [[]] * PARTITIONS
