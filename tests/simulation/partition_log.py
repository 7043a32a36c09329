"""The log of one partition: records at their offsets, open transactions, and an eager cleaner.

Input: records, and the ends of transactions. Output: what readers of committed records see; what
compaction took.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from watchrelay.contract.headers import Header
from watchrelay.contract.records import Decoded, MarkerRecord, ObjectRecord, decode
from watchrelay.contract.state import judged
from watchrelay.core.errors import RecordRefused

Loss = Literal["truth", "proof", "claim", "reading"]
"""`reading`: a writer did not get all that it read back. The others are what compaction may take
where a relay is away for longer than the topic's lag. `truth`: a record that readers follow went in
favour of one that they do not (record contract, section 8). `proof`: what the newest marker of a
partition speaks of was thinned, or it went itself. `claim`: nothing left shows that a record is
stale, which those know who read on in time (section 8)."""

Raw = tuple[bytes, bytes | None, tuple[Header, ...]]
"""Key, value, headers."""


class Stored(NamedTuple):
    """One record at its offset. `decoded` is None on the control topic, and of what readers ignore;
    `heeded`: readers of
    the contract apply it."""

    offset: int
    at_s: float
    key: bytes
    value: bytes | None
    headers: tuple[Header, ...]
    decoded: Decoded | None
    heeded: bool
    partition: int = 0


def _passes_for_current(left: list[Stored]) -> bool:
    """Whether readers of what is left follow a stale record, as nothing left shows that it is."""
    position = (0, 0)
    for each in left:
        if each.decoded is None or (each.decoded.epoch, each.decoded.sequence) <= position:
            continue
        if not each.heeded:
            return True
        position = (each.decoded.epoch, each.decoded.sequence)
    return False


def _readable(key: bytes, value: bytes | None, headers: tuple[Header, ...]) -> Decoded | None:
    try:
        found = decode(key, value, headers)
    except RecordRefused:
        return None
    return judged(found) if isinstance(found, ObjectRecord) else found


@dataclass
class Log:
    """One partition, as readers of committed records see it. Offsets only grow; the cleaner leaves
    holes, and so do aborted records and the markers of transactions.

    `producer_id` is that of records within a transaction.
    """

    partition: int
    decoded: bool = True
    records: list[Stored] = field(default_factory=list)
    end: int = 0
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    uncommitted: list[Stored] = field(default_factory=list)
    """All records, for those who read uncommitted ones."""
    _hidden: deque[tuple[int | None, Stored]] = field(default_factory=deque)
    """From the first open transaction on, with the producer of each record that is in one."""
    _epoch: int = 0
    _last: int = 0
    _horizons: dict[int, float] = field(default_factory=dict)

    def append(
        self, at_s: float, records: list[Raw], producer_id: int | None = None
    ) -> tuple[int, list[Stored]]:
        """The offset of the first, and what readers see now."""
        first = self.end
        for key, value, headers in records:
            decoded_record = _readable(key, value, headers) if self.decoded else None
            stored = Stored(
                self.end, at_s, key, value, headers, decoded_record, False, self.partition
            )
            self._hidden.append((producer_id, stored))
            self.uncommitted.append(stored)
            self.end += 1
        return first, self._show()

    def end_transaction(self, producer_id: int, *, committed: bool) -> list[Stored]:
        """Append the marker; what readers see now."""
        self.end += 1
        hidden, self._hidden = self._hidden, deque()
        for producer, stored in hidden:
            if producer != producer_id:
                self._hidden.append((producer, stored))
            elif committed:
                self._hidden.append((None, stored))
        return self._show()

    def has_open(self, producer_id: int) -> bool:
        """Whether the producer has a transaction with records here."""
        return any(producer == producer_id for producer, _ in self._hidden)

    @property
    def stable(self) -> int:
        """The last stable offset: what is behind it waits for the end of a transaction."""
        return self._hidden[0][1].offset if self._hidden else self.end

    def _show(self) -> list[Stored]:
        """What comes before every open transaction is there for readers."""
        shown = len(self.records)
        while self._hidden and self._hidden[0][0] is None:
            stored = self._hidden.popleft()[1]
            decoded_record = stored.decoded
            heeded = (
                (decoded_record is None and not self.decoded)
                or (decoded_record is not None and decoded_record.epoch > self._epoch)
                or (
                    decoded_record is not None
                    and decoded_record.epoch == self._epoch
                    and decoded_record.sequence > self._last
                )
            )
            if decoded_record is not None and heeded:
                self._epoch, self._last = decoded_record.epoch, decoded_record.sequence
            self.records.append(stored._replace(heeded=heeded))
        self.grown.set()
        self.grown = asyncio.Event()
        return self.records[shown:]

    def read(self, start: int, stop: int, most: int = 1 << 30) -> list[Stored]:
        """What is left of [start, stop), and committed."""
        at = bisect_left(self.records, start, key=_offset)
        found = self.records[at : at + most]
        while found and found[-1].offset >= stop:
            found.pop()
        return found

    @property
    def start(self) -> int:
        """Where the partition begins: the cleaner takes records, not offsets."""
        return 0

    def clean(
        self, now_s: float, *, lag_s: float, retention_s: float
    ) -> tuple[set[Loss], list[ObjectRecord]]:
        """Compact all that is older than `lag_s`; a tombstone goes `retention_s` after it was first
        met.

        What was lost; the deletes of which nothing is left, or only the null of a repair, whose
        version does not count (F7).
        """
        bound = next(
            (at for at, each in enumerate(self.records) if each.at_s > now_s - lag_s),
            len(self.records),
        )
        head = self.records[:bound]
        newest = {each.key: each for each in head}
        heeded = {each.key: each for each in head if each.heeded}
        kept = [
            each
            for each in head
            if newest[each.key] is each
            and (
                each.value is not None
                or self._horizons.setdefault(each.offset, now_s + retention_s) > now_s
            )
        ]
        lost: set[Loss] = set()
        if len(kept) < len(head) and not any(map(proves, self.records[bound:])):
            lost.add("proof")
        if any(
            newest[key] is not each and isinstance(each.decoded, ObjectRecord)
            for key, each in heeded.items()
        ):
            lost.add("truth")
        if _passes_for_current([*kept, *self.records[bound:]]):
            lost.add("claim")
        left = {each.key for each in (*kept, *self.records[bound:]) if dates(each)}
        buried = [
            each.decoded
            for key, each in {each.key: each for each in head if dates(each)}.items()
            if key not in left and isinstance(each.decoded, ObjectRecord)
        ]
        self.records[:bound] = kept
        return lost, buried

    @property
    def frontier(self) -> int:
        """What the newest marker claims that readers follow; 0 where none does."""
        decoded_record = next(
            (each.decoded for each in reversed(self.records) if proves(each)), None
        )
        return int(decoded_record.frontier) if isinstance(decoded_record, MarkerRecord) else 0


def proves(record: Stored) -> bool:
    """A marker of which readers check count and digest."""
    return (
        record.heeded
        and isinstance(record.decoded, MarkerRecord)
        and record.decoded.kind != "claim"
    )


def dates(record: Stored) -> bool:
    """An object's record that readers follow, and whose version says how new its state is."""
    decoded_record = record.decoded
    return (
        record.heeded
        and isinstance(decoded_record, ObjectRecord)
        and not (decoded_record.verb == "deleted" and decoded_record.reason == "healed")
    )


def _offset(record: Stored) -> int:
    return record.offset
