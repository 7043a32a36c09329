"""The one reader of Kafka: where it ends, how long nothing may arrive, and what is another topic."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.protocol.metadata import MetadataResponse_v5

from tests.support.positioned import Positioned
from tests.support.virtualtime import run, virtual
from tests.unit.kafka.client.test_brokers import FakeBroker, serving
from watchrelay.core.errors import SinkUnavailable
from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.consumer import wait_for_topic
from watchrelay.kafka.cursor import Cursor
from watchrelay.kafka.reading import Reading, open_reading, read_ranges

PLACE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class Consumer(Positioned):
    """Logs as sets of offsets that are left; behind `silent_from` nothing arrives."""

    def __init__(self, logs: dict[TopicPartition, set[int]], *, silent_from: int = 1000) -> None:
        super().__init__()
        self._logs, self._silent_from = logs, silent_from

    async def getmany(
        self, *places: TopicPartition, timeout_ms: int, max_records: int
    ) -> dict[TopicPartition, list[Any]]:
        found: dict[TopicPartition, list[Any]] = {}
        for place in places or self.positions:
            left = sorted(offset for offset in self._logs[place] if offset >= self.positions[place])
            if left and left[0] < self._silent_from:
                found[place] = [SimpleNamespace(offset=offset) for offset in left[:2]]
                self.positions[place] = found[place][-1].offset + 1
            elif not left:
                self.positions[place] = 1000  # all behind it was compacted away
        if not found:
            await asyncio.sleep(timeout_ms / 1000)
        return found


def read(
    consumer: Consumer, ranges: dict[TopicPartition, tuple[int, int]]
) -> dict[TopicPartition, list[int]]:
    taken: dict[TopicPartition, list[int]] = {}

    def take(place: TopicPartition, records: Any) -> None:
        taken.setdefault(place, []).extend(record.offset for record in records)

    run(read_ranges(consumer, ranges, take))
    return taken


def test_each_partition_is_read_from_its_start_to_its_end() -> None:
    consumer = Consumer({PLACE: set(range(10)), OTHER: set(range(10))})
    taken = read(consumer, {PLACE: (3, 7), OTHER: (0, 2)})
    assert taken == {PLACE: [3, 4, 5, 6], OTHER: [0, 1]}


def test_an_end_whose_records_were_compacted_away_is_reached() -> None:
    assert read(Consumer({PLACE: {0, 1}}), {PLACE: (0, 9)}) == {PLACE: [0, 1]}


def test_nothing_is_read_of_ranges_that_are_empty() -> None:
    assert read(Consumer({PLACE: {5}}), {PLACE: (5, 5)}) == {}


def test_silence_before_the_end_is_an_error() -> None:
    with pytest.raises(TimeoutError, match="no records of t for 60 s, and its end is not reached"):
        read(Consumer({PLACE: set(range(9))}, silent_from=4), {PLACE: (0, 9)})


class Unanswered(Consumer):
    """No broker answers it."""

    def last_poll_timestamp(self, _: TopicPartition) -> int:
        return 7


def test_a_reading_without_ends_needs_answers_but_no_records() -> None:
    async def step_for_minutes(consumer: Consumer) -> None:
        reading = Reading(consumer, "b:1", silent_after_s=None)
        reading.assign({PLACE: Cursor()})
        with suppress(TimeoutError):
            async with asyncio.timeout(300.0):
                while True:
                    await reading.step(lambda *_: None)

    run(step_for_minutes(Consumer({PLACE: set()})))
    with pytest.raises(SinkUnavailable, match="kafka at b:1 has not answered for 20 s"):
        run(step_for_minutes(Unanswered({PLACE: set()})))


class NotAsked(Consumer):
    """No broker has answered it yet."""

    def last_poll_timestamp(self, _: TopicPartition) -> int:
        return 0


@pytest.mark.parametrize("silent_after_s", [None, 60.0])
@virtual
async def test_what_is_asked_before_the_first_partition_is_read_counts_for_no_silence(
    silent_after_s: float | None,
) -> None:
    async def read(reading: Reading) -> None:
        while True:
            reading.assign({PLACE: Cursor(end=9)})  # again and again: that brings nothing
            await reading.fetch()

    consumer = NotAsked({PLACE: set(range(9))}, silent_from=0)
    reading = Reading(consumer, "b:1", silent_after_s=silent_after_s)
    await asyncio.sleep(70.0)  # a broker is slow to tell where the topic is, and ends
    began_s = asyncio.get_running_loop().time()
    with pytest.raises((SinkUnavailable, TimeoutError)):
        await read(reading)
    waited_s = asyncio.get_running_loop().time() - began_s
    assert waited_s == pytest.approx(silent_after_s or 20.0, abs=1.0)


@pytest.mark.parametrize("goes_on", [False, True])
def test_offsets_that_go_back_are_of_another_topic_whose_records_are_taken_if_that_is_wanted(
    goes_on: bool,
) -> None:
    lost, taken, cursor = list[str](), list[int](), Cursor(7)

    def lose(_place: TopicPartition, why: str) -> bool:
        lost.append(why)
        cursor.next = 0
        return goes_on

    async def main() -> None:
        consumer = Consumer({PLACE: {3, 4}})
        reading = Reading(consumer, lost=lose)
        reading.assign({PLACE: cursor})
        consumer.positions[PLACE] = 3  # the offset that was requested does not exist
        await reading.step(lambda _, records: taken.extend(each.offset for each in records))

    run(main())
    assert lost == ["offset 3 comes after 7 were read"]
    assert taken == ([3, 4] if goes_on else [])
    assert cursor.next == 5


@virtual
async def test_a_topic_is_awaited_within_a_deadline_where_an_answer_ends_the_metadata_task() -> (
    None
):
    broker = FakeBroker()
    broker.metadata = lambda: MetadataResponse_v5(
        0, [(1, "127.0.0.1", broker.port, None)], "cluster", 1, [] if broker.asked == 1 else None
    )

    async with serving([broker]) as servers, asyncio.timeout(600.0):
        with pytest.raises(SinkUnavailable):
            async with open_reading(KafkaConnection(bootstrap_servers=servers)) as reading:
                await wait_for_topic(reading.consumer, "t")
