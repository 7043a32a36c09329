"""What a consumer of aiokafka has fetched, handed on in pieces.

aiokafka 0.14 hands on as many records as it is asked for, whatever their size, and passes over
others without a pause: one answer can hold the event loop for minutes, and fill the memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from typing import Any, Final

from aiokafka.consumer import fetcher as plain
from aiokafka.errors import CorruptRecordException
from aiokafka.structs import ConsumerRecord, TopicPartition

from watchrelay.core.turns import Turns
from watchrelay.kafka.client.batches import FetchedBatches
from watchrelay.kafka.client.decompress import STATE_BYTES_MAX
from watchrelay.kafka.client.leader_epochs import LeaderEpochs

BYTES_AT_ONCE: Final = 1024 * 1024
"""Of keys and values that are handed on at once, and one record."""
_RECORDS_PER_LOOK = 16
"""The clock is read after each of this number of records."""
_ABORT: Final = b"\0\0\0\0"
"""Version and type of the key of a control record that ends an aborted transaction."""

Limits = Mapping[str, int]
"""By topic, the most that a batch of it may come to; others are state topics."""


class PauseDue(Exception):
    """Nothing was found so far, and the event loop must have its turn."""


class Share:
    """What may be handed on at once: by time, and by size."""

    def __init__(self) -> None:
        self._turns = Turns()
        self.room_bytes = BYTES_AT_ONCE
        self.is_empty = True
        """Nothing was taken of it."""
        self.was_used = False
        """The last call ended because the share was used up: more may have arrived already."""

    def begin(self) -> None:
        """The event loop has had its turn."""
        self._turns.begin()
        self.room_bytes, self.is_empty = BYTES_AT_ONCE, True

    def is_used(self) -> bool:
        """Whether nothing more may be handed on."""
        return self.room_bytes <= 0 or self._turns.over


class FetchedRecords(plain.PartitionRecords):  # type: ignore[misc]  # aiokafka has no types
    """The records of one answer, and None where nothing was found for a while."""

    next_fetch_offset: int
    _records_iterator: Iterator[Any]

    def __init__(
        self,
        place: TopicPartition,
        records: FetchedBatches,
        *more: Any,
        limits: Limits,
        epochs: LeaderEpochs | None = None,
    ) -> None:
        self._epochs = epochs
        records.unpacked_bytes_max = limits.get(place.topic, STATE_BYTES_MAX)
        super().__init__(place, records, *more)

    def __iter__(self) -> Iterator[Any]:
        return self._records_iterator  # without a call of `__next__` for each

    def _unpack_records(self) -> Iterator[Any]:
        while self._records.has_next():
            yield None
            batch = self._records.next_batch()
            if self._check_crcs and not batch.validate_crc():
                raise CorruptRecordException(f"Invalid CRC - {self._tp}")
            if self._epochs is not None:
                self._epochs.note(self._tp, batch.base_offset, batch.leader_epoch)
            if not self._is_passed_over(batch):
                for record in batch:
                    if record is None or record.offset < self.next_fetch_offset:
                        yield None
                        continue
                    found = self._consumer_record(self._tp, record)
                    self.next_fetch_offset = record.offset + 1
                    yield found
            # by its last offset: compaction may have removed its last records
            self.next_fetch_offset = batch.next_offset

    def _is_passed_over(self, batch: Any) -> bool:
        """Whether no record of the batch is handed on: aborted, or written by the broker."""
        if self._isolation_level == plain.READ_COMMITTED and batch.producer_id is not None:
            self._consume_aborted_up_to(batch.base_offset)
            if batch.is_control_batch and batch.control_key().startswith(_ABORT):
                self._aborted_producers.discard(batch.producer_id)
            if batch.is_transactional and batch.producer_id in self._aborted_producers:
                return True
        return bool(batch.is_control_batch)


class FetchedPart(plain.FetchResult):  # type: ignore[misc]  # aiokafka has no types
    """The records of one answer, in aiokafka's shape."""

    _partition_records: Any

    def __init__(self, place: TopicPartition, *, share: Share, **more: Any) -> None:
        super().__init__(place, **more)
        self._share = share

    def getall(self, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records, as many as the share has room for. Raises: PauseDue where nothing was
        taken of the share, and its time is over."""
        found: list[ConsumerRecord] = []
        share = self._share
        if share.is_used():
            if share.is_empty:
                raise PauseDue
            return found
        if not self.check_assignment(self._topic_partition):
            return found
        for record in self._partition_records:
            if record is not None:
                found.append(record)
                share.is_empty = False
                share.room_bytes -= len(record.key or b"") + len(record.value or b"")
                taken = len(found)
                if taken % _RECORDS_PER_LOOK and share.room_bytes > 0 and taken != max_records:
                    continue
            if share.is_used() or len(found) == max_records:
                self._update_position()
                if share.is_empty:
                    raise PauseDue
                return found
        self._update_position()
        self._partition_records = None
        return found

    def getone(self) -> ConsumerRecord | None:
        """The next record; None where there is none."""
        if not self.check_assignment(self._topic_partition):
            return None
        found = next((each for each in self._partition_records if each is not None), None)
        self._update_position()
        if found is None:
            self._partition_records = None
        return found


Fetch = Callable[..., Awaitable[dict[TopicPartition, list[ConsumerRecord]]]]


def in_pieces(fetched: Fetch, share: Share) -> Fetch:
    """`fetched_records` of a fetcher whose results are `FetchedPart`s of this share: it returns
    when a share is used up, and goes on by itself where no record was found in it."""
    now_s = asyncio.get_running_loop().time

    async def fetched_records(
        partitions: Collection[TopicPartition], timeout: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        until_s = now_s() + timeout
        while True:
            share.begin()
            try:
                found = await fetched(partitions, max(0.0, until_s - now_s()), max_records)
            except PauseDue:
                await asyncio.sleep(0)
            else:
                share.was_used = share.is_used()
                return found

    return fetched_records
