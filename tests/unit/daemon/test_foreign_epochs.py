"""Records of another writer under an epoch of the relay, or one to come: the relay finds them, and
readers end with the server's state."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.support.extent import few
from tests.unit.daemon.conftest import Relay, World, running, until
from watchrelay.consumer import TopicReader
from watchrelay.contract.records import content_hash

TOPIC = "k8s.test.core.pods"


def pod(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": []},
    }


async def whole(relay: Relay) -> None:
    await until(
        "the state is whole",
        lambda: (
            relay.row("pods")
            and relay.row("pods").complete
            and relay.row("pods").state == "watching"
        ),
    )


async def read(world: World, topic: str) -> list[Any]:
    """All records of its one partition."""
    place = TopicPartition(topic, 0)
    async with AIOKafkaConsumer(
        bootstrap_servers=world.kafka.bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([place])
        end = (await consumer.end_offsets([place]))[place]
        return [await consumer.getone() for _ in range(end)]


async def forge(
    world: World, key: bytes, *, epoch: int | None = None, sequence: int = 0, ahead: int = 0
) -> None:
    """The newest record whose key begins so, again, under another position and, if it is an object,
    with another content.

    `epoch` None: the epoch that it has. `sequence` 0: `ahead` of the highest of that epoch.
    """
    records = await read(world, TOPIC)
    newest = [record for record in records if record.key.startswith(key)][-1]
    headers, value = dict(newest.headers), newest.value
    epoch = int(headers["ce_wrepoch"]) if epoch is None else epoch
    sequence = sequence or ahead + max(
        int(dict(record.headers)["ce_sequence"]) for record in records
    )
    headers |= {
        "ce_wrepoch": b"%d" % epoch,
        "ce_sequence": b"%020d" % sequence,
        "ce_id": b"pods.%d.0.%d" % (epoch, sequence),
    }
    if value is not None:
        value = json.dumps({**json.loads(value), "forged": True}).encode()
        headers["ce_wrhash"] = b"%016x" % content_hash(newest.key, value)
    async with AIOKafkaProducer(bootstrap_servers=world.kafka.bootstrap) as producer:
        await producer.send_and_wait(
            TOPIC, key=newest.key, value=value, headers=list(headers.items())
        )


async def assert_readers_agree(world: World, live: TopicReader) -> None:
    """Changes that follow reach a reader that was there and one that comes now, and both hold what
    the server holds."""
    world.cluster.registry.create("pods", pod("fresh"))
    world.cluster.registry.delete("pods", "default", "old")

    def right(reader: TopicReader) -> bool:
        states = {key: reader.get(key) for key in reader.objects("pods")}
        return (
            reader.proven
            and set(states) == {"default/kept", "default/fresh"}
            and not any("forged" in str(state) for state in states.values())
        )

    async def follow(reader: TopicReader) -> None:
        async for _ in reader:
            pass

    async with (
        TopicReader(
            world.kafka.bootstrap, control_topic="k8s.test.control", streams=["pods"]
        ) as new,
        asyncio.TaskGroup() as tasks,
    ):
        following = [tasks.create_task(follow(reader)) for reader in (live, new)]
        for who, reader in (("the reader that was there", live), ("the new reader", new)):
            await until(f"{who} holds what the server holds", partial(right, reader))
        for task in following:
            task.cancel()


@pytest.mark.parametrize(
    "key", few([b"default/kept", b"%wr/heartbeat"], 1), ids=["object", "heartbeat"]
)
@pytest.mark.parametrize(("ahead", "sequence"), few([(0, 500), (1, 500), (-1, 500), (0, 1)], 2))
async def test_a_record_of_an_epoch_to_come_is_not_taken_for_the_relays_own(
    world: World, key: bytes, ahead: int, sequence: int
) -> None:
    world.make_topic("core.pods")
    settings = world.settings("pods", heartbeatInterval="1s")
    for name in ("old", "kept"):
        world.cluster.registry.create("pods", pod(name))
    async with running(settings) as relay:
        await whole(relay)
        relay.daemon.stop()
        assert await relay.ended() == 0
    control = await read(world, "k8s.test.control")
    base = [
        json.loads(record.value)["epochBase"] for record in control if record.key == b"stream/pods"
    ][-1]
    async with TopicReader(
        world.kafka.bootstrap, control_topic="k8s.test.control", streams=["pods"]
    ) as live:
        await live.ready()
        await forge(world, key, epoch=base + len(control) + ahead, sequence=sequence)
        if ahead > 0:
            async with running(settings) as relay:
                await until(
                    "it waits",
                    lambda: (
                        relay.row("pods")
                        and "holds a record of epoch" in relay.row("pods").waits_for
                    ),
                )
        async with running(settings) as relay:
            await whole(relay)
            await assert_readers_agree(world, live)


@pytest.mark.parametrize("ahead", [1, 50])
async def test_a_record_of_the_epoch_that_the_relay_did_not_write_is_corrected(
    world: World, ahead: int
) -> None:
    world.make_topic("core.pods")
    for name in ("old", "kept"):
        world.cluster.registry.create("pods", pod(name))
    async with running(world.settings("pods", heartbeatInterval="1s")) as relay:
        await whole(relay)
        epoch = relay.row("pods").epoch
        async with TopicReader(
            world.kafka.bootstrap, control_topic="k8s.test.control", streams=["pods"]
        ) as live:
            await live.ready()
            await forge(world, b"default/kept", ahead=ahead)
            await until(
                "a new epoch is claimed",
                lambda: relay.row("pods").epoch > epoch and relay.row("pods").complete,
            )
            await assert_readers_agree(world, live)
