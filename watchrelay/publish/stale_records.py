"""Finds stale records between our own by their offsets; the writer repairs.

An acknowledgement gives the offsets of a batch. A record of the stream between two of ours that no
acknowledgement of this process covers comes from a previous writer, or is a late copy of our own
batch: consumers that ignore headers, and compaction, take it for the newest record of its key. See
docs/record-contract.md.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from watchrelay.contract.records import Decoded, Foreign, LogRecord, ObjectRecord, OtherCluster
from watchrelay.core.errors import EpochAhead, EpochSpoiled, ForeignRecords, Shared
from watchrelay.publish.ports import GapReader
from watchrelay.publish.recovery import Repairs

PAUSE_MIN_S = 0.05
"""How long to wait before gaps are read, so that one check serves those of several partitions."""
PAUSE_MAX_S = 10.0
"""The longest such wait. Where another process writes its own streams to the topic, gaps never end,
and each check opens a Kafka consumer."""


class _Gap(NamedTuple):
    """Offsets [start, stop) of a partition, directly before our record with `next_sequence`;
    `batch_end` is the offset after the batch of that record."""

    partition: int
    start: int
    stop: int
    next_sequence: int
    batch_end: int


class StaleRecordFinder:
    """Finds the stale records of one stream. `acked` is called for every batch and costs a
    comparison."""

    def __init__(
        self,
        stream_id: str,
        epoch: int,
        gap_reader: GapReader,
        checked: Mapping[int, int],
        is_held: Callable[[bytes], bool],
    ) -> None:
        """`checked` is, by partition, the offset up to which the log is read back; `is_held`
        whether the stream has an object of this key."""
        self._stream_id, self._epoch, self._gap_reader = stream_id, epoch, gap_reader
        self._next = dict(checked)
        self._is_held = is_held
        self._gaps: list[_Gap] = []
        self._wake = asyncio.Event()
        self._gaps_found = self._gaps_checked = 0
        self._ending, self._gaps_at_ending = "", 0
        """The snapshot that is ready to end, and how many gaps were known at first then."""
        self._pause_s = PAUSE_MIN_S

    def may_end(self, snapshot: str, *, ready_to_end: bool) -> bool:
        """Whether `snapshot` may end: all gaps are checked that were known at the first call with
        `ready_to_end`. A later writer reads back from this begin, and would not find a stale record
        before it. Later gaps do not count, for where another process writes to the same topic there
        is always one."""
        if ready_to_end and self._ending != snapshot:
            self._ending, self._gaps_at_ending = snapshot, self._gaps_found
        return ready_to_end and self._gaps_checked >= self._gaps_at_ending

    def acked(self, partition: int, offsets: Sequence[int], first_sequence: int) -> None:
        """Take the offsets of an acknowledged batch whose first record has `first_sequence`.

        By now the sink has noted what other streams of this process wrote ahead of this batch:
        batches of a partition are acknowledged in the order of its log.
        """
        expected, end = self._next[partition], offsets[-1] + 1
        self._next[partition] = end
        if end - expected == len(offsets):
            return
        for sequence, offset in enumerate(offsets, first_sequence):
            if offset > expected and self._gap_reader.unacknowledged_ranges(
                partition, expected, offset
            ):
                self._gaps.append(_Gap(partition, expected, offset, sequence, end))
                self._gaps_found += 1
                self._wake.set()
            expected = offset + 1

    async def stale_keys(self) -> Repairs:
        """Wait for gaps, read them, and return the stale keys in them with their partition, often
        none.

        Raises: EpochAhead, Shared: A gap has a record of a higher epoch. EpochSpoiled: A gap has a
        record of this epoch that is no copy of ours, with a sequence that we had not reached before
        the gap.
        """
        await self._wake.wait()
        await asyncio.sleep(self._pause_s)
        self._wake.clear()
        gaps, self._gaps = self._gaps, []
        by_partition, ranges = dict[int, list[_Gap]](), dict[int, list[tuple[int, int]]]()
        for gap in gaps:
            by_partition.setdefault(gap.partition, []).append(gap)
            unread = self._gap_reader.unacknowledged_ranges(gap.partition, gap.start, gap.stop)
            if unread:
                ranges.setdefault(gap.partition, []).extend(unread)
        stale, resent = Repairs(), dict[_Gap, set[Decoded]]()
        owns = self._gap_reader.owns

        def judge(partition: int, offset: int, record: LogRecord) -> None:
            if isinstance(record, Foreign):
                if (record.named or self._is_held(record.key)) and owns(record.key):
                    stale[record.key, partition] = None
                return
            if record.epoch > self._epoch:
                raise self._ahead(record)
            known = by_partition[partition]
            gap = known[bisect_right(known, offset, key=lambda gap: gap.stop)]
            if record.epoch < self._epoch or record.sequence < gap.next_sequence:
                if isinstance(record, ObjectRecord) and owns(record.key):
                    stale[record.key, partition] = None
                return
            # readers take it for our next record: at best it is a copy of one of the batch that
            # follows the gap
            past_batch = record.sequence >= gap.next_sequence + gap.batch_end - gap.stop
            if past_batch or isinstance(record, OtherCluster):
                raise self._spoiled(gap, record)
            resent.setdefault(gap, set()).add(record)

        if ranges:
            await self._gap_reader.read(ranges, judge)
        if resent:
            await self._compare(resent)
        self._gaps_checked += len(gaps)
        self._pause_s = min(PAUSE_MAX_S, self._pause_s * 2) if ranges and not stale else PAUSE_MIN_S
        return stale

    async def _compare(self, resent: Mapping[_Gap, set[Decoded]]) -> None:
        """Read the batches after these gaps. Raises: EpochSpoiled: A record of a gap is no copy of
        one in its batch."""
        batches = dict[int, list[tuple[int, int]]]()
        for gap in resent:
            batches.setdefault(gap.partition, []).append((gap.stop, gap.batch_end))

        def compare(partition: int, offset: int, record: LogRecord) -> None:
            for gap, copies in resent.items():
                if gap.partition == partition and gap.stop <= offset < gap.batch_end:
                    copies.discard(record)

        await self._gap_reader.read(batches, compare)
        for gap, strange in resent.items():
            if strange:
                raise self._spoiled(gap, min(strange, key=lambda record: record.sequence))

    def _ahead(self, record: Decoded | OtherCluster) -> ForeignRecords:
        if isinstance(record, OtherCluster):
            return Shared(f"stream {self._stream_id}: {record.why}")
        return EpochAhead(self._stream_id, record.epoch, self._epoch)

    def _spoiled(self, gap: _Gap, record: Decoded | OtherCluster) -> EpochSpoiled:
        return EpochSpoiled(self._stream_id, gap.partition, self._epoch, record.sequence)
