"""Ranges of offsets of one topic, read once, through as many outages as there are."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from watchrelay.core.errors import SinkUnavailable
from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.consumer import wait_for_topic
from watchrelay.kafka.cursor import Cursor
from watchrelay.kafka.reading import SILENT_AFTER_S, open_reading, through_outages

_log = logging.getLogger(__name__)

_PARTITION_FETCH_BYTES = 512 * 1024
_FETCH_BYTES = 4 * 1024 * 1024
"""Compressed; what is fetched is unpacked one record batch at a time."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `start` up to, not including, `stop`.

    `start` None, or an offset that was deleted, means the first offset that is left; so does one
    that is not before `stop`: it is of a topic that was recreated since.
    """

    partition: int
    start: int | None
    stop: int

    def cursor(self, first: int) -> Cursor:
        """Where reading it begins in a log that begins at `first`."""
        is_first = self.start is None or self.start >= self.stop
        return Cursor(first if is_first else max(first, self.start or 0), self.stop)


Turn = AbstractAsyncContextManager[None]
"""Held for one attempt, as a semaphore is."""


class _NotTakenError(Exception):
    """The records are not taken, for `why`: an error of Kafka would have them read again."""

    def __init__(self, why: Exception) -> None:
        super().__init__(str(why))
        self.why = why


class RangeReader:
    """Reads ranges of one topic. `run` returns when all were taken, and resumes after each outage.

    After `run`, `begun` has the offset at which each partition was begun, and `whole` those that
    were read from their first offset.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        spans: Sequence[OffsetRange],
        take: Callable[[int, Sequence[Any]], None],
        *,
        failed: Callable[[SinkUnavailable, float], None] = lambda _error, _wait_s: None,
        turn: Turn | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Prepare to read; aborted transactions are left out.

        Args:
            take: gets a partition and records as aiokafka gives them (offset, key, value, headers).
            failed: gets each error and the seconds until the next attempt.
            turn: held while there is a consumer, not between two attempts, so that a range that
                cannot be read does not block other readers.
        """
        self.begun: dict[int, int] = {}
        self.whole: set[int] = set()
        self._connection, self._topic = connection, topic
        self._spans = {
            TopicPartition(topic, span.partition): span for span in spans if span.stop > 0
        }
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._take, self._failed = take, failed
        self._turn = turn or nullcontext()
        self._rng = rng or random.Random()

    async def run(self) -> None:
        """Read everything; the event loop gets its turn after each batch. Raises: what `take`
        raises."""
        if not self._spans:
            return
        try:
            await through_outages(
                self._read_in_turn, self._report, healthy_after_s=SILENT_AFTER_S, rng=self._rng
            )
        except _NotTakenError as error:
            raise error.why from None

    async def _read_in_turn(self) -> bool:
        async with self._turn:
            await self._read()
        return True

    def _report(self, error: SinkUnavailable, wait_s: float) -> None:
        extra = {"topic": self._topic, "error": str(error), "retry_in_s": round(wait_s, 1)}
        _log.warning("cannot read the log back; retrying", extra=extra)
        self._failed(error, wait_s)

    async def _read(self) -> None:
        """One consumer's life. Raises: SinkUnavailable when it cannot go on."""
        async with open_reading(
            self._connection,
            isolation_level="read_committed",
            max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
            fetch_max_bytes=_FETCH_BYTES,
        ) as reading:
            await wait_for_topic(reading.consumer, self._topic)
            if not self._cursors:
                first = await reading.consumer.beginning_offsets(list(self._spans))
                for place, span in self._spans.items():
                    cursor = self._cursors[place] = span.cursor(first[place])
                    self.begun[place.partition] = cursor.next
                    if cursor.next == first[place]:
                        self.whole.add(place.partition)
            reading.assign({place: each for place, each in self._cursors.items() if each.is_behind})
            await reading.read_to_end(self._pass_on)

    def _pass_on(self, place: TopicPartition, records: Sequence[Any]) -> None:
        stop = self._spans[place].stop
        if records[-1].offset >= stop:
            records = [record for record in records if record.offset < stop]
        try:
            self._take(place.partition, records)
        except Exception as error:
            raise _NotTakenError(error) from error
