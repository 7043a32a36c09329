"""Streams of one topic of an embedded Kafka that are read back at the same time: how often the
topic is read, and what each stream is given."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.sinkparts import QUICK, running_sink
from watchrelay.contract.wire import Batch, WireRecord
from watchrelay.core.errors import SinkUnavailable
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.range_reader import OffsetRange
from watchrelay.kafka.topic_reads import TopicReads
from watchrelay.model.reach import KeyRange

STREAMS = ["a", "b", "c"]
RECORDS = 60


@dataclass(frozen=True, kw_only=True)
class Counted(KafkaConnection):
    """`asked` has an item for each consumer."""

    asked: list[None] = field(default_factory=list)

    def arguments(self) -> dict[str, Any]:
        self.asked.append(None)
        return super().arguments()


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka.start() as broker:
        broker.create_topic("t", 1)
        yield broker


async def filled(kafka: EmbeddedKafka) -> Counted:
    """A topic whose records are of the streams in turn."""
    async with running_sink(kafka.bootstrap, QUICK) as running:
        records = [
            WireRecord(str(n).encode(), b"", [("ce_wrstream", STREAMS[n % 3].encode())])
            for n in range(RECORDS)
        ]
        await running.sink.deliver(Batch("t", 0, records, "s"))
    return Counted(bootstrap_servers=(kafka.bootstrap,))


class Stream:
    """What one stream was given."""

    def __init__(self, reads: TopicReads, name: str) -> None:
        self.offsets: list[int] = []
        self._reads, self._name = reads, name
        self.error: Exception | None = None
        self.whole: set[int] | None = None

    def take(self, _partition: int, records: Sequence[Any]) -> None:
        if self.error is not None:
            raise self.error
        self.offsets += [record.offset for record in records]

    async def read(self, start: int | None = None, stop: int = RECORDS) -> None:
        spans, name = [OffsetRange(0, start, stop)], self._name
        self.whole = await self._reads.read(
            "t", name, spans, self.take, lambda *_: None, keys=KeyRange()
        )


async def test_streams_that_are_read_back_together_read_their_topic_together(
    kafka: EmbeddedKafka,
) -> None:
    connection = await filled(kafka)
    reads = TopicReads(connection)
    streams = [Stream(reads, name) for name in STREAMS * 4]
    async with asyncio.TaskGroup() as tasks:
        for each in streams:
            tasks.create_task(each.read())
    assert [each.offsets for each in streams] == [[*range(n, RECORDS, 3)] for n in range(3)] * 4
    assert all(each.whole == {0} for each in streams)
    assert len(connection.asked) == 1


async def test_each_stream_is_given_its_own_range(kafka: EmbeddedKafka) -> None:
    reads = TopicReads(await filled(kafka))
    first, early, late = (Stream(reads, "a") for _ in range(3))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(first.read(stop=1))
        tasks.create_task(early.read(stop=10))
        tasks.create_task(late.read(start=RECORDS - 10))
    assert [each.whole for each in (first, early, late)] == [{0}, {0}, set()]
    assert early.offsets == [0, 3, 6, 9]
    assert late.offsets == [51, 54, 57]


async def test_where_the_reading_stream_is_cancelled_the_next_one_reads_on(
    kafka: EmbeddedKafka,
) -> None:
    reads = TopicReads(await filled(kafka))
    first, second = Stream(reads, "a"), Stream(reads, "b")
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(first.read())
        tasks.create_task(second.read())
        await asyncio.sleep(0)
        reading.cancel()
    assert second.whole == {0}
    assert second.offsets == [*range(1, RECORDS, 3)]


async def test_what_one_stream_cannot_take_does_not_concern_the_others(
    kafka: EmbeddedKafka,
) -> None:
    reads = TopicReads(await filled(kafka))
    first, wrong, right = (Stream(reads, "a") for _ in range(3))
    wrong.error = SinkUnavailable("odd")

    async def refused() -> None:
        with pytest.raises(SinkUnavailable, match="odd"):
            await wrong.read()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(first.read())
        tasks.create_task(refused())
        tasks.create_task(right.read())
    assert right.whole == {0}
    assert right.offsets == [*range(0, RECORDS, 3)]
