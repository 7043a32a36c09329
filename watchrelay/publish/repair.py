"""Stale records between our own: found by their offsets, read, and mended.

Room: relay. In: which offsets our batches got. Out: keys of which the true state must be said
again. Source: WIRE 4.3, F7. An acknowledgement says where a batch stands. What stands between two
of them and is not this process's was put there by a former writer, or is a late copy of an own
batch: tables that ignore headers, and compaction, take it for the newest word on its key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from watchrelay.contract.records import Decoded, ObjectRecord
from watchrelay.core.errors import EpochAhead, EpochSpoiled
from watchrelay.model.changes import Entry
from watchrelay.publish.ports import Witness

SETTLE_S = 0.05
"""Other streams of this process write the same partition: their acknowledgements come in the same
moments as ours."""
PAUSE_MAX_S = 10.0
"""Where another process writes streams of its own to the topic, gaps never end, and each look costs
a consumer."""


class Healer:
    """Watches the offsets of one stream's partitions. Shape: `acked` is called for every batch and
    costs a comparison."""

    def __init__(self, stream: str, epoch: int, witness: Witness, checked: Sequence[int]) -> None:
        """`checked` is, per partition, the offset up to which the log was read already."""
        self._stream, self._epoch, self._witness = stream, epoch, witness
        self._next = list(checked)
        self._gaps: list[tuple[int, int, int, int, int]] = []
        """Partition; the gap's first offset; that of our record behind it; the sequence of that;
        the offset behind its batch."""
        self._wake = asyncio.Event()
        self._seen = self._looked = 0
        self._ending = ("", 0)
        self._pause_s = SETTLE_S

    def may_end(self, snapshot: str, *, said: bool) -> bool:
        """Whether every gap was looked into that had been seen when all keys of `snapshot` were
        said and its begins acknowledged.

        Whoever starts to read at a begin never sees what is stale before it, and all of that was
        seen by then. Later gaps do not count: where another process writes to the same topic there
        is always one.
        """
        if said and self._ending[0] != snapshot:
            self._ending = (snapshot, self._seen)
        return said and self._looked >= self._ending[1]

    def acked(self, partition: int, offsets: Sequence[int], first_sequence: int) -> None:
        """A batch stands at `offsets`, its first record under `first_sequence`."""
        expected = self._next[partition]
        for index, offset in (
            enumerate(offsets) if offsets[-1] - expected != len(offsets) - 1 else ()
        ):
            if offset > expected:
                self._gaps.append(
                    (partition, expected, offset, first_sequence + index, offsets[-1] + 1)
                )
                self._seen += 1
                self._wake.set()
            expected = offset + 1
        self._next[partition] = offsets[-1] + 1

    async def found(self) -> dict[bytes, int]:
        """The next stale keys, with their partition; returns when a gap was looked into, often with
        none.

        Raises:
            EpochAhead: A record of a higher epoch is there.
            EpochSpoiled: A record of this epoch is there, with a sequence that this process had not
            come to, and it is no copy of ours.
        """
        await self._wake.wait()
        await asyncio.sleep(self._pause_s)
        self._wake.clear()
        gaps, self._gaps = self._gaps, []
        stale, looked = dict[bytes, int](), False
        for partition, start, stop, below, end in gaps:
            ours: list[Decoded] = []
            for first, last in self._witness.strange(partition, start, stop):
                looked = True
                for _, record in await self._witness.read(partition, first, last):
                    if record.epoch > self._epoch:
                        raise EpochAhead(self._stream, record.epoch, self._epoch)
                    if record.epoch == self._epoch and record.sequence >= below:
                        ours = ours or [
                            each for _, each in await self._witness.read(partition, stop, end)
                        ]
                        if record not in ours:
                            raise EpochSpoiled(
                                self._stream, partition, self._epoch, record.sequence
                            )
                    elif isinstance(record, ObjectRecord):
                        stale[record.key] = partition
        self._looked += len(gaps)
        self._pause_s = min(PAUSE_MAX_S, self._pause_s * 2) if looked and not stale else SETTLE_S
        return stale


def belonging(entry: Entry | None, partition: int) -> Entry | None:
    """What `partition` has to hold of a key whose object is `entry`: nothing where the key belongs
    to another partition.

    A foreign writer can put a record anywhere; the object published there too would be in no count
    or digest of that partition.
    """
    return entry if entry is not None and entry.partition == partition else None
