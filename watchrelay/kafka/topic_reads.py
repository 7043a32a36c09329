"""Reads topics back for the streams of one process: the streams that ask for a topic at the same
time get their records from one reading of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from watchrelay.core.errors import SinkUnavailable
from watchrelay.kafka.by_stream import ByStream
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.cursor import Cursor
from watchrelay.kafka.range_reader import OffsetRange, RangeReader
from watchrelay.model.reach import KeyRange

READS_AT_ONCE: Final = 4
"""Topics that are read at the same time: each has connections and buffers of its own."""

_GATHER_S = 0.05
"""How long a reading waits for other streams: those of one assignment ask within this."""

Take = Callable[[int, Sequence[Any]], None]
Failed = Callable[[SinkUnavailable, float], None]


class _AllServedError(Exception):
    """Raised within `RangeReader.run`, which it ends: no request waits for the rest of a topic."""


@dataclass(slots=True, eq=False)
class _Request:
    """What one stream asks of a topic. `cursors`: by partition that was begun, what it was given;
    `whole`: the partitions that were read from their first offset."""

    stream: bytes
    keys: KeyRange
    spans: dict[int, OffsetRange]
    take: Take
    failed: Failed
    cursors: dict[int, Cursor] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)
    is_done: bool = False
    error: Exception | None = None

    def rest(self) -> list[OffsetRange]:
        """The ranges that it was not given."""
        begun = self.cursors
        return [
            OffsetRange(each, begun[each].next, span.stop) if each in begun else span
            for each, span in self.spans.items()
            if each not in begun or begun[each].is_behind
        ]

    def begin(self, partition: int, reader: RangeReader) -> None:
        """Note where the partition begins for the stream, once the reader has begun it."""
        begun = reader.begun.get(partition)
        if begun is not None and partition not in self.cursors:
            cursor = self.cursors[partition] = self.spans[partition].cursor(begun)
            if partition in reader.whole and cursor.next == begun:
                self.whole.add(partition)

    def give(self, partition: int, records: Sequence[Any], end: int) -> None:
        """Its share of the next records, which end before the offset `end`."""
        cursor, stop = self.cursors[partition], self.spans[partition].stop
        own = [each for each in records if cursor.next <= each.offset < stop]
        cursor.next = max(cursor.next, end)
        try:
            self.take(partition, own)
        except Exception as error:  # noqa: BLE001 - raised where the request was made
            self.error, self.is_done = error, True


@dataclass(slots=True)
class _Topic:
    requests: list[_Request] = field(default_factory=list)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


class TopicReads:
    """One of the streams that wait for a topic reads it for all of them; where that one is
    cancelled, the next one reads on. A stream that asks later waits for the next reading. `turns`
    bounds how many topics are read at once, as for `RangeReader`."""

    def __init__(self, connection: KafkaConnection) -> None:
        self.turns = asyncio.Semaphore(READS_AT_ONCE)
        self._connection = connection
        self._topics: dict[str, _Topic] = {}

    async def read(
        self,
        topic: str,
        stream: str,
        spans: Sequence[OffsetRange],
        take: Take,
        failed: Failed,
        *,
        keys: KeyRange,
    ) -> set[int]:
        """Pass the records of these ranges to `take` that are of `stream`, of none, or have one of
        its keys; through as many outages as there are.

        Args:
            keys: Those of the stream.
            failed: as for `RangeReader`.

        Returns: the partitions that were read from their first offset.
        Raises: what `take` raises.
        """
        wanted = {span.partition: span for span in spans if span.stop > 0}
        if not wanted:
            return set()
        request = _Request(stream.encode(), keys, wanted, take, failed)
        entry = self._topics.setdefault(topic, _Topic())
        entry.requests.append(request)
        try:
            async with entry.reading:
                if not request.is_done:
                    await self._read(topic, entry)
        finally:
            request.is_done = True
            entry.requests.remove(request)
            if not entry.requests:
                self._topics.pop(topic, None)
        if request.error is not None:
            raise request.error
        return request.whole

    async def _read(self, topic: str, entry: _Topic) -> None:
        await asyncio.sleep(_GATHER_S)
        requests = [each for each in entry.requests if not each.is_done]
        by_stream = ByStream({each.stream: each.keys for each in requests})

        def take(partition: int, records: Sequence[Any]) -> None:  # called by `reader`
            if not records:
                return
            waiting = [each for each in requests if not each.is_done]
            if not waiting:
                raise _AllServedError
            shares = by_stream.split(records)
            for each in waiting:
                if partition in each.spans:
                    each.begin(partition, reader)
                    each.give(partition, shares[each.stream], records[-1].offset + 1)

        def failed(error: SinkUnavailable, wait_s: float) -> None:
            for each in requests:
                if not each.is_done:
                    each.failed(error, wait_s)

        ranges = _union([span for each in requests for span in each.rest()])
        reader = RangeReader(self._connection, topic, ranges, take, failed=failed, turn=self.turns)
        try:
            await reader.run()
        except _AllServedError:
            return
        for each in requests:
            for partition in each.spans:
                each.begin(partition, reader)
            each.is_done = True


def _union(spans: Sequence[OffsetRange]) -> list[OffsetRange]:
    """By partition, one range that has all of them."""
    by_partition: dict[int, list[OffsetRange]] = {}
    for span in spans:
        by_partition.setdefault(span.partition, []).append(span)
    return [
        OffsetRange(each, min(span.cursor(0).next for span in own), max(span.stop for span in own))
        for each, own in by_partition.items()
    ]
