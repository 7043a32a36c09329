"""Parts of a topic, read once, from offset to offset, however long it takes.

Room: sink. In: which partitions, from where to where. Out: their records in order, in bounded
batches; nothing that was aborted.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from dataclasses import dataclass
from typing import Any

from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import SinkUnavailable
from watchrelay.kafka.client import KafkaError, TopicPartition
from watchrelay.kafka.client.client_log import listening
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.consumer import make_consumer, stop_consumer, wait_for_topic
from watchrelay.kafka.client.failures import unreachable

_log = logging.getLogger(__name__)

_REQUEST_TIMEOUT_S = 15.0
_START_TIMEOUT_S = 30.0
_SILENT_AFTER_S = 60.0
_STOP_TIMEOUT_S = 3.0
_POLL_MS = 500
_PARTITION_FETCH_BYTES = 512 * 1024
_FETCH_BYTES = 4 * 1024 * 1024
"""Compressed; what is fetched is unpacked one record batch at a time."""
_RECORDS_AT_ONCE = 500
_RETRY = Backoff(base_s=0.2, cap_s=10.0, jitter=0.5)


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `start` up to, not including, `stop`. Shape: `start` None, or one that is no longer
    there: what is left of the beginning."""

    partition: int
    start: int | None
    stop: int


Take = Callable[[int, Sequence[Any]], None]
"""(partition, records as aiokafka gives them: offset, key, value, headers)."""
Turn = AbstractAsyncContextManager[None]
"""Held for one attempt, as a semaphore is."""


class RangeReader:
    """Reads spans of one topic. `run` returns when all were taken, and goes on where it was after
    each outage.

    Shape: `begun` tells, once `run` returned, at which offset each partition was really begun, and
    `whole` which from their very start. `turn` is held while there is a consumer, not between two
    attempts: what cannot be read keeps nobody else from reading.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        spans: Sequence[OffsetRange],
        take: Take,
        *,
        failed: Callable[[SinkUnavailable, float], None] = lambda _error, _wait_s: None,
        turn: Turn | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.begun: dict[int, int] = {}
        self.whole: set[int] = set()
        self._connection, self._topic = connection, topic
        self._spans = {
            TopicPartition(topic, span.partition): span for span in spans if span.stop > 0
        }
        self._next: dict[TopicPartition, int] = {}
        self._take, self._failed = take, failed
        self._turn = turn or nullcontext()
        self._rng = rng or random.Random()

    async def run(self) -> None:
        """Read everything; the event loop gets its turn after each batch."""
        backoff = _RETRY
        while self._behind():
            try:
                async with self._turn:
                    began_s = clock.now_s()
                    await self._read()
            except SinkUnavailable as error:
                healthy = clock.now_s() - began_s > _SILENT_AFTER_S
                backoff, wait_s = backoff.after_failure(
                    clock.now_s(), healthy=healthy, rng=self._rng
                )
                _log.warning(
                    "log cannot be read back",
                    extra={
                        "topic": self._topic,
                        "error": str(error),
                        "retry_in_s": round(wait_s, 1),
                    },
                )
                self._failed(error, wait_s)
                await asyncio.sleep(wait_s)

    def _behind(self) -> list[TopicPartition]:
        return [
            place for place, span in self._spans.items() if self._next.get(place, -1) < span.stop
        ]

    async def _read(self) -> None:
        """One consumer's life. Raises: SinkUnavailable when it cannot go on."""
        with listening() as tail:
            consumer = make_consumer(
                self._connection.arguments(),
                request_timeout_ms=int(_REQUEST_TIMEOUT_S * 1000),
                isolation_level="read_committed",
                max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
                fetch_max_bytes=_FETCH_BYTES,
            )
            try:
                await self._begin(consumer)
                async with aclosing(self._batches(consumer)) as batches:
                    async for place, records in batches:
                        self._take(place.partition, records)
            except (KafkaError, OSError, TimeoutError, ValueError) as error:
                raise unreachable(self._connection, error, tail.reason) from error
            finally:
                await stop_consumer(consumer, within_s=_STOP_TIMEOUT_S)

    async def _begin(self, consumer: Any) -> None:
        behind = self._behind()
        async with asyncio.timeout(_START_TIMEOUT_S):
            await consumer.start()
            await wait_for_topic(consumer, self._topic)
            consumer.assign(behind)
            first = await consumer.beginning_offsets(behind)
        for place in behind:
            span = self._spans[place]
            if place not in self._next:
                # An offset behind the end is of a topic that was made anew since.
                start = (
                    first[place]
                    if span.start is None or span.start >= span.stop
                    else max(first[place], span.start)
                )
                self._next[place] = self.begun[place.partition] = start
                if start == first[place]:
                    self.whole.add(place.partition)
            consumer.seek(place, self._next[place])

    async def _batches(
        self, consumer: Any
    ) -> AsyncGenerator[tuple[TopicPartition, list[Any]], None]:
        progress_s = clock.now_s()
        while behind := self._behind():
            fetched = await consumer.getmany(
                *behind, timeout_ms=_POLL_MS, max_records=_RECORDS_AT_ONCE
            )
            for place, records in fetched.items():
                progress_s = clock.now_s()
                stop = self._spans[place].stop
                self._next[place] = records[-1].offset + 1
                yield (
                    place,
                    records
                    if records[-1].offset < stop
                    else [record for record in records if record.offset < stop],
                )
            if not fetched:
                for place in behind:
                    # Compaction may have taken the last records before the end: the position says
                    # so, records do not.
                    async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                        self._next[place] = max(self._next[place], await consumer.position(place))
            if clock.now_s() - progress_s > _SILENT_AFTER_S:
                raise TimeoutError(f"no records of topic {self._topic} for {_SILENT_AFTER_S:g} s")
            await asyncio.sleep(0)
