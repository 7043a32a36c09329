"""Topics that a mirror copied to another Kafka cluster, with other offsets: readers there, a relay
that goes on there, and its way back."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from tests.support.extent import few
from tests.support.mirror import mirror, records_of
from tests.unit.daemon.conftest import Relay, World, running, until
from watchrelay.config import Settings
from watchrelay.consumer import PositionsLost, TopicReader
from watchrelay.demo.kafka import EmbeddedKafka

CONTROL, SIGNAL, STATE = "k8s.test.control", "k8s.test.signal", "k8s.test.core.pods"
TOPICS = (CONTROL, SIGNAL, STATE)


def pod(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": []},
    }


@pytest.fixture
def target() -> Iterator[EmbeddedKafka]:
    """The other cluster."""
    with EmbeddedKafka.start() as kafka:
        yield kafka


def make_topics(kafka: EmbeddedKafka, *topics: str) -> None:
    for topic in topics:
        kafka.create_topic(topic, 1)


def settings_on(world: World, kafka: EmbeddedKafka, *, topic: str = "") -> Settings:
    entry = {"resource": "pods", **({"topic": topic} if topic else {})}
    return world.settings(
        entry, kafka={"bootstrapServers": kafka.bootstrap.split(",")}, heartbeatInterval="1s"
    )


async def whole(relay: Relay) -> None:
    row = partial(relay.row, "pods")
    await until("the state is whole", lambda: (row := relay.row("pods")) and row.complete)
    assert row().state in {"watching", "resuming", "listing"}


async def live(settings: Settings, lives: int = 1) -> None:
    """Run a relay so often, each time until its state is whole."""
    for _ in range(lives):
        async with running(settings) as relay:
            await whole(relay)
            relay.daemon.stop()
            assert await relay.ended() == 0


async def read(kafka: EmbeddedKafka, **arguments: Any) -> tuple[set[str], list[dict[str, Any]]]:
    """The proven keys, and the positions."""
    async with TopicReader(kafka.bootstrap, until_end=True, **arguments) as reader:
        async for _ in reader:
            pass
        return set(reader.objects("pods")), reader.positions()


async def forget(kafka: EmbeddedKafka, stream: str) -> None:
    """The cure that the relay names: null for the stream's description."""
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap) as producer:
        await producer.send_and_wait(CONTROL, key=f"stream/{stream}".encode(), value=None)


@pytest.mark.parametrize("cured", few(["between two lives", "while it runs"], 1))
async def test_a_relay_goes_on_at_a_mirror_and_comes_back(
    world: World, target: EmbeddedKafka, cured: str
) -> None:
    make_topics(world.kafka, STATE)
    make_topics(target, *TOPICS)
    for name in ("kept", "old"):
        world.cluster.registry.create("pods", pod(name))
    await live(settings_on(world, world.kafka), lives=3)
    _, positions = await read(world.kafka, control_topic=CONTROL)
    await mirror(world.kafka.bootstrap, target.bootstrap, TOPICS)

    # readers of the mirror are right, before and after a relay goes on there
    assert (await read(target, control_topic=CONTROL))[0] == {"default/kept", "default/old"}
    async with TopicReader(target.bootstrap, control_topic=CONTROL, resume=positions) as reader:
        with pytest.raises(PositionsLost, match="start without them"):
            await reader.ready()

    # fail-over: what was deleted meanwhile is published there
    world.cluster.registry.delete("pods", "default", "old")
    async with running(settings_on(world, target)) as relay:
        await until(
            "it says what to do",
            lambda: (row := relay.row("pods")) and "delete the record stream/pods" in row.waits_for,
        )
        if cured == "while it runs":  # it looks again after half a minute
            await forget(target, "pods")
            await whole(relay)
        relay.daemon.stop()
        assert await relay.ended() == 0
    if cured == "between two lives":
        await forget(target, "pods")
        await live(settings_on(world, target))
    assert (await read(target, control_topic=CONTROL))[0] == {"default/kept"}
    last = [each for each in await records_of(target.bootstrap, STATE) if b"old" in each.key][-1]
    assert last.value is None

    # fail-back, to topics that were made again
    with EmbeddedKafka.start() as back:
        make_topics(back, *TOPICS)
        await mirror(target.bootstrap, back.bootstrap, (STATE,), ahead=7)
        world.cluster.registry.create("pods", pod("fresh"))
        await live(settings_on(world, back))
        assert (await read(back, control_topic=CONTROL))[0] == {"default/kept", "default/fresh"}


async def test_a_relay_goes_on_with_topics_that_a_mirror_renamed(
    world: World, target: EmbeddedKafka
) -> None:
    renamed = f"source.{STATE}"
    make_topics(world.kafka, STATE)
    make_topics(target, CONTROL, SIGNAL, renamed)
    for name in ("kept", "old"):
        world.cluster.registry.create("pods", pod(name))
    await live(settings_on(world, world.kafka), lives=2)
    await mirror(
        world.kafka.bootstrap, target.bootstrap, (STATE,), ahead=5, name="source.{}".format
    )
    assert (await read(target, topics=[renamed]))[0] == {"default/kept", "default/old"}
    world.cluster.registry.delete("pods", "default", "old")
    published = len(await records_of(target.bootstrap, renamed))
    await live(settings_on(world, target, topic=renamed))
    assert (await read(target, control_topic=CONTROL))[0] == {"default/kept"}
    added = (await records_of(target.bootstrap, renamed))[published:]
    # a control topic that knows no snapshot has one made at once, which may begin before the end
    assert [
        each.key
        for each in added
        if dict(each.headers).get("ce_wrreason") not in {None, b"snapshot"}
    ] == [b"default/old"]
