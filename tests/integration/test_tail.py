"""`tail` on a topic that a relay writes: the real sink, the real control topic, an embedded
Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest
from aiokafka import TopicPartition

from tests.support.anyclient import write
from tests.support.pod_topics import LogAppender
from tests.support.relays import DictStore, spec_of, until
from tests.support.stream_log import PODS
from watchrelay.consumer.errors import NothingPublished
from watchrelay.consumer.reader import TailReader, TailRecord
from watchrelay.consumer.replica import Replica
from watchrelay.contract.records import CloudEvents, ObjectRecord
from watchrelay.core.errors import SinkUnavailable
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.reading import Reading
from watchrelay.kafka.sink import KafkaSink
from watchrelay.model.progress import StreamProgress
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry
from watchrelay.publish.ports import WriterContext
from watchrelay.publish.timing import HeartbeatInterval
from watchrelay.publish.writer import StreamWriter

CONTROL = "k8s.test.control"


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka.start() as embedded:
        embedded.create_topic(CONTROL, 1)
        embedded.create_topic("k8s.test.core.pods", 2)
        yield embedded


def connection(kafka: EmbeddedKafka) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=(kafka.bootstrap,))


@asynccontextmanager
async def writing(kafka: EmbeddedKafka, store: DictStore) -> AsyncIterator[StreamWriter]:
    spec, metrics, statuses = spec_of(), Metrics(), StatusRegistry()
    progress = StreamProgress()
    sink = KafkaSink(connection(kafka), metrics=metrics, statuses=statuses)
    control = ControlTopic(connection(kafka), CONTROL, sink)
    relay = StreamWriter(
        spec,
        WriterContext(
            sink=sink,
            control=control,
            store=store,
            metrics=metrics.stream(spec.id, PODS),
            topic_metrics=metrics.topic(spec.topic),
            status=statuses.open(spec.id, spec.topic),
            progress=progress,
            heartbeat_interval=HeartbeatInterval(1.0),
            must_stop=lambda epoch: control.superseded(spec.id, epoch),
            queue_bytes=1 << 20,
        ),
    )

    async def nothing_there() -> int:
        return 0

    async with asyncio.TaskGroup() as tasks:
        parts = [tasks.create_task(sink.run()), tasks.create_task(control.run())]
        await relay.claim(nothing_there)
        parts.append(tasks.create_task(relay.run()))
        relay.list_completed(str(store.version))
        await until(lambda: progress.whole)
        yield relay
        assert await relay.drain(10.0)
        for part in reversed(parts):
            part.cancel()


def reader(
    kafka: EmbeddedKafka, *streams: str, from_beginning: bool = False, until_end: bool = False
) -> TailReader:
    return TailReader(
        connection(kafka),
        control_topic=CONTROL,
        streams=streams,
        from_beginning=from_beginning,
        until_end=until_end,
    )


async def everything(tail: TailReader) -> list[TailRecord]:
    return [seen async for batch in tail.batches() for seen in batch]


async def test_a_reader_of_the_topic_rebuilds_the_store_and_follows_it(
    kafka: EmbeddedKafka,
) -> None:
    store = DictStore(2)
    for number in range(20):
        store.put(b"shop/%d" % number, b'{"n":%d}' % number)
    async with writing(kafka, store) as relay:
        for number in range(0, 20, 2):
            relay.push(
                store.put(b"shop/%d" % number, b'{"changed":%d}' % number),
                reason="watch",
                received_at_s=0.0,
            )
        relay.push(store.remove(b"shop/1"), reason="watch", received_at_s=0.0)

    replicas = {0: Replica(), 1: Replica()}
    written = await everything(reader(kafka, "pods", from_beginning=True, until_end=True))
    for seen in written:
        assert seen.record is not None
        replicas[seen.partition].apply(seen.record)
    assert {
        key: held.value for replica in replicas.values() for key, held in replica.held.items()
    } == store.values()
    assert all(replica.proven for replica in replicas.values())
    assert await everything(reader(kafka, until_end=True)) == []

    new: list[TailRecord] = []
    async with asyncio.TaskGroup() as tasks:

        async def look_on() -> None:
            async with aclosing(reader(kafka).batches()) as batches:
                async for batch in batches:
                    new.extend(batch)
                    if any(
                        isinstance(each.record, ObjectRecord) and each.record.key == b"shop/live"
                        for each in new
                    ):
                        return

        looking = tasks.create_task(look_on())
        async with writing(kafka, store) as relay:
            while not looking.done():
                relay.push(store.put(b"shop/live", b"{}"), reason="watch", received_at_s=0.0)
                await asyncio.sleep(0.05)
    former = max((seen.partition, seen.offset) for seen in written)
    assert all(
        (seen.partition, seen.offset) > former for seen in new if seen.partition == former[0]
    )


async def test_a_stream_that_nobody_published_is_named_with_those_that_are(
    kafka: EmbeddedKafka,
) -> None:
    with pytest.raises(
        NothingPublished, match=r"stream pods@nowhere has not been published yet; published: pods$"
    ):
        await everything(reader(kafka, "pods@nowhere", until_end=True))


async def test_without_a_control_topic_it_says_what_to_check(kafka: EmbeddedKafka) -> None:
    tail = TailReader(connection(kafka), control_topic="k8s.other.control", until_end=True)
    with pytest.raises(
        NothingPublished,
        match=r"k8s.other.control is not there, .*: start the relay, check cluster and kafka\.topicPrefix",
    ):
        await everything(tail)


async def test_a_stream_that_is_neither_published_nor_awaited_is_refused_at_once(
    kafka: EmbeddedKafka,
) -> None:
    tail = TailReader(
        connection(kafka), control_topic=CONTROL, streams=("pods@typo",), awaited=lambda _: False
    )
    with pytest.raises(NothingPublished, match=r"the config has no stream pods@typo either$"):
        await everything(tail)


async def test_an_end_that_is_never_written_is_reported_and_not_waited_for_forever() -> None:
    """The broker goes away while most of the topic has still to come: eight megabytes more than a
    client fetches ahead."""
    with EmbeddedKafka.start() as broker:
        for topic in (CONTROL, "t"):
            broker.create_topic(topic, 1)
        for _ in range(12):
            write(broker.bootstrap, "t", "k", b"x" * 900_000, partition=0)
        write(
            broker.bootstrap,
            CONTROL,
            "stream/pods",
            b'{"topic":"t","partitions":1,"epochBase":1}',
            partition=0,
        )
        tail = TailReader(
            connection(broker),
            control_topic=CONTROL,
            from_beginning=True,
            until_end=True,
            silent_after_s=1.0,
        )
        seen: list[TailRecord] = []

        async def read() -> None:
            async for batch in tail.batches():
                seen.extend(batch)
                broker.stop()

        with pytest.raises(
            SinkUnavailable,
            match=f"kafka at {broker.bootstrap} stopped answering: no records of t for 1 s, and "
            "its end",
        ):
            await read()
    assert 0 < len(seen) < 12


@asynccontextmanager
async def published(
    *partitions: list[int],
) -> AsyncIterator[tuple[EmbeddedKafka, Callable[[int, list[int]], Awaitable[None]]]]:
    """A topic of pods of which each partition holds records of these moments, in this order; and
    what appends more."""
    encoder, sequences = CloudEvents(spec_of(partitions=len(partitions)), 17), [0] * len(partitions)
    with EmbeddedKafka.start() as broker:
        broker.create_topic(CONTROL, 1)
        broker.create_topic("t", len(partitions))
        async with LogAppender(broker.bootstrap) as appender:
            await appender.send(
                CONTROL,
                "stream/pods",
                {"topic": "t", "partitions": len(partitions), "epochBase": 1},
            )

            async def append(partition: int, moments_ms: list[int]) -> None:
                sent: list[Awaitable[object]] = []
                for moment_ms in moments_ms:
                    sequences[partition] += 1
                    at = (partition, sequences[partition])
                    record = encoder.object(
                        *at,
                        b"shop/%d" % moment_ms,
                        b"{}",
                        "added",
                        "watch",
                        "u",
                        "1",
                        5,
                        moment_ms,
                        "",
                    )
                    sent.append(
                        await appender._producer.send(
                            "t", record.value, record.key, partition, headers=list(record.headers)
                        )
                    )
                for each in sent:
                    await each

            for partition, moments_ms in enumerate(partitions):
                await append(partition, moments_ms)
            yield broker, append


def moments(seen: list[TailRecord]) -> list[int]:
    return [
        int(each.record.key.decode().partition("/")[2])
        for each in seen
        if isinstance(each.record, ObjectRecord)
    ]


async def test_the_past_of_all_partitions_comes_in_order_of_time() -> None:
    logs = [[5 * number + partition for number in range(2000)] for partition in range(3)]
    logs[1] = logs[1][:10]
    async with published(*logs, []) as (broker, _):
        tail = TailReader(
            connection(broker),
            control_topic=CONTROL,
            from_beginning=True,
            until_end=True,
        )
        assert moments(await everything(tail)) == sorted(moment for log in logs for moment in log)


async def test_a_tail_says_to_what_it_is_attached_and_from_which_offsets() -> None:
    attached = list[str]()
    with EmbeddedKafka.start() as kafka:
        for topic in (CONTROL, "k8s.test.core.pods"):
            kafka.create_topic(topic, 1 if topic == CONTROL else 2)
        store = DictStore(2)
        store.put(b"shop/a", b"{}")
        async with writing(kafka, store):
            pass
        ends = [0, 0]
        for from_beginning in (True, False):
            tail = TailReader(
                connection(kafka),
                control_topic=CONTROL,
                from_beginning=from_beginning,
                until_end=True,
                attached=lambda topics: attached.extend(map(str, topics)),
            )
            for seen in await everything(tail):
                ends[seen.partition] = seen.offset + 1
    assert attached == [
        "k8s.test.core.pods: stream pods, from 0@0 1@0",
        f"k8s.test.core.pods: stream pods, from 0@{ends[0]} 1@{ends[1]}",
    ]


async def test_live_records_follow_the_past_at_once() -> None:
    async with published([10, 30], [20]) as (broker, append), asyncio.timeout(60.0):
        tail = TailReader(connection(broker), control_topic=CONTROL, from_beginning=True)
        seen: list[TailRecord] = []
        async with aclosing(tail.batches()) as batches:
            async for batch in batches:
                seen += batch
                if len(seen) == 3:
                    await append(1, [15])
                if len(seen) == 4:
                    break
        assert moments(seen) == [10, 20, 30, 15]


class Stalled(TailReader):
    """Gets nothing of partition 1 until three records of others were shown."""

    shown = 0

    async def _fetch(
        self, reading: Reading, merge: Any, places: Collection[TopicPartition]
    ) -> set[TopicPartition]:
        return await super()._fetch(
            reading,
            merge,
            [place for place in places if place.partition != 1 or self.shown >= 3],
        )


async def test_a_partition_of_which_nothing_comes_holds_up_the_others_for_a_moment_only() -> None:
    async with published([10, 30], [20], [15]) as (broker, _), asyncio.timeout(60.0):
        tail, seen = (
            Stalled(
                connection(broker),
                control_topic=CONTROL,
                from_beginning=True,
                until_end=True,
            ),
            list[TailRecord](),
        )
        async for batch in tail.batches():
            seen += batch
            tail.shown = len(seen)
        assert moments(seen) == [10, 15, 30, 20]
