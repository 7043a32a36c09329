"""Streams that always have a full batch waiting, and one with a record at times: it gets its
turn."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.listed import await_equal
from tests.support.sinkparts import batch, running_sink
from tests.support.testbed import Testbed
from watchrelay.contract.wire import Batch
from watchrelay.demo.kafka import EmbeddedKafka

FLOODED, ROUNDS = 3, 20


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka.start() as broker:
        broker.create_topic("flood", FLOODED)
        broker.create_topic("quiet", 1)
        yield broker


@pytest.mark.parametrize(
    ("topic", "partition"),
    [("quiet", 0), ("flood", 1)],
    ids=["a topic of its own", "the same partition"],
)
async def test_a_flood_lets_another_stream_through_after_every_batch(
    kafka: EmbeddedKafka, topic: str, partition: int
) -> None:
    acked = [0] * FLOODED
    async with running_sink(kafka.bootstrap) as running:

        async def flood(at: int) -> None:
            names = [f"n{number}" for number in range(100)]
            full = batch("flood", at, *names, padding=4000)
            while True:
                await running.sink.deliver(Batch("flood", at, full.records, "flooding"))
                acked[at] += 1

        async with asyncio.TaskGroup() as tasks:
            flooding = [tasks.create_task(flood(at), name=f"flood {at}") for at in range(FLOODED)]
            for number in range(ROUNDS):
                before = list(acked)
                await running.sink.deliver(
                    Batch(topic, partition, batch(topic, partition, f"q{number}").records, "quiet")
                )
                passed = [after - earlier for after, earlier in zip(acked, before, strict=True)]
                assert max(passed) <= 2, (
                    f"round {number}: batches of the flood that went before, by partition: {passed}"
                )
            for task in flooding:
                task.cancel()
    assert min(acked) > 0


def test_a_stream_that_skips_states_holds_up_no_other(
    cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    paths = {"configmaps": "/api/v1/configmaps", "namespaces": "/api/v1/namespaces"}
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics(*paths)
    relay = testbed.relay(*paths, queueBytes="16KiB")
    skipped = partial(relay.metric, "watchrelay_events_conflated_total", stream="configmaps")
    with testbed.under_churn(
        relay, testbed.topics(*paths), namespaces=8, operations=600, per_s=400
    ) as (churn, reader):
        broker.kafka.set_rtt(200)
        relay.wait("states are skipped", skipped)
        for number in range(2):
            before = skipped()
            quiet = f"quiet-{number}"
            testbed.make(paths["namespaces"], [{"metadata": {"name": quiet}}])
            reader.read_until(
                "the other stream says its change", partial(reader.about, "namespaces", f"/{quiet}")
            )
            assert skipped() > before, "the flood was over too soon"
        assert relay.metric("watchrelay_events_conflated_total", stream="namespaces") == 0
        broker.kafka.set_rtt(0)
        churn.finish()
        await_equal(cluster, reader, paths)
        assert relay.stop() == 0
        reader.read()
    reader.assert_right(*paths, duplicates=True)
