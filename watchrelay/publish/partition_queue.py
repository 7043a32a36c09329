"""Per-partition queues, and the one place where positions, counts and digests are given out.

Room: relay (pure). In: changes and markers, in store order. Out: `Cut`s, the records of one batch,
in hand-over order.

What is fixed when (WIRE 4.3): a record's bytes when it is queued; its sequence, and a marker's
count and digest, when it is cut, because only then is it known what stands before it. A marker's
frontier is the one of the moment it was queued: everything up to it was pushed before, and the
queue is a FIFO, so it all stands before the marker. The frontier of the moment of cutting would be
a lie: changes queued behind the marker may have moved it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from watchrelay.contract.records import DIGEST_MASK, CloudEvents, Marker, Trimmed
from watchrelay.contract.wire import MarkerKind, Reason, Verb, WireRecord
from watchrelay.model.changes import Entry, ObjectChange, Upserted
from watchrelay.model.resources import compare
from watchrelay.publish.dirty_keys import DirtyKeys
from watchrelay.publish.recovery import Found, ListAndDiff
from watchrelay.publish.snapshots import AHEAD_BYTES

RECORD_COST_BYTES = 600
"""What a queued record costs in memory besides its value: item, deque slot, key, and the entry with
its uid, version and hash, which the store gives up for a newer one. Measured on pods: 590, from the
growth of the resident set."""

PARTIAL = -1
"""A marker's `behind` when it stands within what is to be said."""


class Queued(msgspec.Struct, gc=False):
    """One object's record, not yet positioned.

    Shape: `value` None: unpack `entry.packed` (a deep queue keeps no raw bytes; also for deletes).
    `before` is the hash of what the log then holds for the key, None for nothing. `received_s` 0:
    was not received in a watch. `held_bytes` is its share of the bound. `tombstone`: the null
    behind a delete that is a value (formats with an envelope).
    """

    key: bytes
    entry: Entry
    value: bytes | None
    verb: Verb
    reason: Reason
    value_hash: int
    before: int | None
    version: str
    time_ms: int
    received_s: float
    held_bytes: int
    trimmed: Trimmed = ""
    tombstone: bool = False


class QueuedMarker(msgspec.Struct, gc=False):
    """A marker, not yet positioned; its frontier is that of now, when it is queued.

    Shape: everything that was pushed up to record number `behind` and is of its partition stands
    before it; `PARTIAL`: not all of it. It has no share of the bound: there are few, and what moves
    nothing else must not keep objects waiting.
    """

    kind: MarkerKind
    frontier: str
    time_ms: int
    behind: int
    snapshot: str = ""


class Handed(msgspec.Struct, frozen=True, gc=False):
    """A marker of a cut: what it said, and where. `index` is its place in the batch; `behind` as in
    the queue."""

    index: int
    sequence: int
    said: Marker
    behind: int


class Cut(msgspec.Struct):
    """One batch of one partition. Shape: `items` are what `records` were made of; `before` is
    (sequence, count, digest) before it."""

    items: list[Queued | QueuedMarker]
    records: list[WireRecord]
    markers: list[Handed]
    before: tuple[int, int, int]
    held_bytes: int
    payload_bytes: int

    def kinds(self) -> dict[str, int]:
        """Records by kind, as the metric names them."""
        snapshots = [
            item.reason for item in self.items if type(item) is Queued and item.verb != "deleted"
        ].count("snapshot")
        tombstones = [record.value for record in self.records].count(None) - len(self.markers)
        events = len(self.records) - len(self.markers) - tombstones - snapshots
        return {
            "event": events,
            "snapshot": snapshots,
            "tombstone": tombstones,
            "marker": len(self.markers),
        }

    def received_s(self) -> list[float]:
        """When each object's event was received, 0 where it was not."""
        return [item.received_s for item in self.items if type(item) is Queued]


class Lane:
    """One partition: its FIFO, and the state of the log behind what was handed over."""

    __slots__ = (
        "begin",
        "claimed_at",
        "count",
        "differs",
        "digest",
        "dirty",
        "floor",
        "frontier",
        "last_snapshot",
        "lowered",
        "mean_bytes",
        "next",
        "outstanding",
        "partition",
        "queue",
        "reads",
        "sequence",
    )

    def __init__(self, partition: int, *, count: int = 0, digest: int = 0) -> None:
        self.partition = partition
        self.queue: deque[Queued | QueuedMarker] = deque()
        self.sequence, self.count, self.digest = 0, count, digest
        self.frontier = "0"
        """The newest acknowledged frontier."""
        self.floor = "0"
        """What a former writer's markers claim here; ours claim no less, unless the server itself
        went back."""
        self.lowered = False
        """The server went back, and no acknowledged frontier shows it yet."""
        self.differs = False
        """The log differs from the store by what only a list could tell: until a marker of ours
        stands behind that difference, none may stand within."""
        self.dirty: DirtyKeys | None = None
        """While the queue is over its bound: the keys to be said behind what `queue` holds."""
        self.claimed_at = -1
        """Where our claim stands."""
        self.begin: tuple[str, int, int] = ("", 0, 0)
        """(snapshot, sequence, offset) of the newest acknowledged begin."""
        self.last_snapshot: tuple[str, int] | None = None
        """(snapshot, begin offset) of the last snapshot whose end is acknowledged here."""
        self.outstanding: Cut | None = None
        self.next: Cut | None = None
        """Built while `outstanding` is on its way."""
        self.mean_bytes = 4096
        """Wire size of a record, about, learned from what was cut: a packed value does not tell."""
        self.reads = 0
        """Members of a snapshot queued since the last cut."""

    @property
    def waiting_bytes(self) -> int:
        """Wire size of what is queued and not cut, about."""
        return len(self.queue) * self.mean_bytes

    def takes_reads(self, ahead_bytes: int) -> bool:
        """Whether a member of a snapshot may be queued: up to `ahead_bytes` a batch, whatever else
        waits, unless that is much by itself."""
        return self.reads * self.mean_bytes < ahead_bytes and self.waiting_bytes < AHEAD_BYTES

    def cut(
        self,
        encoder: CloudEvents,
        unpack: Callable[[Entry], bytes],
        *,
        limit_bytes: int,
        seen_ms: int | None,
    ) -> Cut:
        """The next batch: queued records in order, positioned and rendered. Shape: at least one
        record, else up to `limit_bytes`."""
        assert self.queue, "a cut of an empty lane"
        queue, partition, overhead = self.queue, self.partition, encoder.overhead_bytes
        sequence, count, digest = before = (self.sequence, self.count, self.digest)
        items: list[Queued | QueuedMarker] = []
        records: list[WireRecord] = []
        markers: list[Handed] = []
        held = wire = payload = 0
        render = encoder.object
        while queue:
            item = queue[0]
            if type(item) is Queued:
                value = item.value
                if value is None and item.verb != "deleted":
                    value = unpack(item.entry)
                size = overhead + len(value or b"")
                if wire + size > limit_bytes and records:
                    break
                sequence += 1
                if item.before is not None:
                    count -= 1
                    digest -= item.before
                if value is not None:
                    count += 1
                    digest += item.value_hash
                entry = item.entry
                records.append(
                    render(
                        partition,
                        sequence,
                        item.key,
                        value,
                        item.verb,
                        item.reason,
                        entry.uid,
                        item.version,
                        item.value_hash,
                        item.time_ms,
                        item.trimmed,
                        item.tombstone,
                    )
                )
                held += item.held_bytes
                wire += size
                payload += size - overhead + len(item.key)
            else:
                assert isinstance(item, QueuedMarker)
                sequence += 1
                said = self._said(item, count, digest & DIGEST_MASK, seen_ms)
                markers.append(Handed(len(records), sequence, said, item.behind))
                records.append(encoder.marker(partition, sequence, item.time_ms, said))
                wire += overhead
                payload += len(records[-1].key)
            items.append(queue.popleft())
        assert count >= 0, "a lane counts fewer than no objects"
        self.reads = 0
        self.sequence, self.count, self.digest = sequence, count, digest & DIGEST_MASK
        if len(records) > len(markers):
            self.mean_bytes = max(256, (3 * self.mean_bytes + wire // len(records)) // 4)
        return Cut(items, records, markers, before, held, payload)

    def _said(self, item: QueuedMarker, count: int, digest: int, seen_ms: int | None) -> Marker:
        if item.kind == "claim":
            return Marker("claim")
        begin_sequence = begin_offset = 0
        last, last_offset = "", 0
        if item.kind == "end":
            snapshot, begin_sequence, begin_offset = self.begin
            assert snapshot == item.snapshot, "an end whose begin is not acknowledged"
        elif item.kind == "heartbeat" and self.last_snapshot is not None:
            last, last_offset = self.last_snapshot
        return Marker(
            item.kind,
            item.frontier,
            count,
            digest,
            seen_ms,
            item.snapshot,
            begin_sequence,
            begin_offset,
            last,
            last_offset,
        )

    def split(self, count: int) -> Cut:
        """Cut the outstanding batch in two behind its first `count` records and return them; the
        rest stays outstanding behind them."""
        cut = self.outstanding
        assert cut is not None, "no batch to split"
        sequence, live, digest = cut.before
        held = payload = 0
        for item, record in zip(cut.items[:count], cut.records, strict=False):
            sequence += 1
            payload += len(record.key) + len(record.value or b"")
            if isinstance(item, Queued):
                held += item.held_bytes
                live += (item.verb != "deleted") - (item.before is not None)
                digest += (item.value_hash if item.verb != "deleted" else 0) - (item.before or 0)
        rest = [
            Handed(each.index - count, each.sequence, each.said, each.behind)
            for each in cut.markers
            if each.index >= count
        ]
        head = [each for each in cut.markers if each.index < count]
        middle = (sequence, live, digest & DIGEST_MASK)
        tail = Cut(
            cut.items[count:],
            cut.records[count:],
            rest,
            middle,
            cut.held_bytes - held,
            cut.payload_bytes - payload,
        )
        self.outstanding = tail
        return Cut(cut.items[:count], cut.records[:count], head, cut.before, held, payload)

    def put_back(self) -> None:
        """Undo every cut of which nothing was sent: records stand in the queue again, position and
        digest as before them."""
        for cut in (self.next, self.outstanding):
            if cut is not None:
                self.queue.extendleft(reversed(cut.items))
                self.sequence, self.count, self.digest = cut.before
        self.next = self.outstanding = None

    def replace(self, index: int, value: bytes, value_hash: int, trimmed: Trimmed) -> None:
        """Say `value` instead in the queued record `index`, and let the next record of its key know
        what it replaces.

        Shape: the entry's hash changes with it, for it must be that of what was published; so does
        the same state, if queued once more.
        """
        item = self.queue[index]
        assert isinstance(item, Queued)
        old = item.value_hash
        for later in list(self.queue)[index + 1 :]:
            if isinstance(later, Queued) and later.key == item.key:
                if later.before == old:
                    later.before = value_hash
                if (
                    later.entry is not item.entry
                    or later.verb == "deleted"
                    or later.value_hash != old
                ):
                    break
                later.value, later.value_hash, later.trimmed = value, value_hash, trimmed
        else:
            if (
                self.dirty is not None
                and (waiting := self.dirty.get(item.key)) is not None
                and waiting.hash == old
            ):
                waiting.hash = value_hash
        item.value, item.value_hash, item.trimmed = value, value_hash, trimmed
        if item.entry.hash == old:
            item.entry.hash = value_hash

    def settled(self, cut: Cut, offsets: Sequence[int]) -> None:
        """The broker acknowledged `cut`."""
        assert len(offsets) == len(cut.records), "a receipt of another length than its batch"
        if cut is self.outstanding:
            self.outstanding, self.next = self.next, None
        for handed in cut.markers:
            said = handed.said
            if said.kind == "begin":
                self.begin = (said.snapshot, handed.sequence, offsets[handed.index])
            elif said.kind == "end":
                self.last_snapshot = (said.snapshot, said.begin_offset)
            if said.kind == "claim":
                self.claimed_at = offsets[handed.index]
            else:
                if self.lowered and (
                    said.frontier == "0" or compare(said.frontier, self.frontier) == -1
                ):
                    self.lowered = False
                self.frontier, self.differs = said.frontier, False


Fit = Callable[[bytes, bytes | None, Entry], tuple[bytes, Trimmed]]
"""(key, value, entry) of an object that may be too large -> what to publish; sets the entry's hash
to that of it. Called for few."""


class Sequencer:
    """All lanes of one stream, and what is queued in them."""

    def __init__(
        self,
        partitions: int,
        *,
        raw_bytes: int,
        packed_max: int,
        oversize: Fit,
        tombstones: bool = False,
    ) -> None:
        self.lanes = [Lane(partition) for partition in range(partitions)]
        self.number = 0
        """Of the newest record queued; what `Entry.queued` is compared with."""
        self.held_bytes = 0
        self.held_records = 0
        self.object_records = 0
        self.unpublished: set[bytes] = set()
        """Keys of the store that the log does not hold for sure: the first snapshot has not come to
        them."""
        self.doubted: frozenset[bytes] = frozenset()
        """Those of them that were said once, in a log that is not believed: said again, but not as
        new."""
        self.trimmed: dict[bytes, Trimmed] = {}
        """Objects that a former writer published in part; the store has no more of them."""
        self.parts: dict[bytes, int] = {}
        """Objects that this writer published in part, with the hash of that; the store holds them
        whole."""
        self.packed_max = packed_max
        """An entry that is not larger packed is published whole, unless a part of it was published
        before."""
        self._raw_bytes, self._oversize = raw_bytes, oversize
        self.tombstones = tombstones
        """A delete is a value here, so a tombstone follows it as a record of its own."""

    @property
    def empty(self) -> bool:
        """Everything queued was acknowledged."""
        return self.held_records == 0

    @property
    def frontier(self) -> str | None:
        """The stream's: the lowest that its partitions have acknowledged; None before any."""
        lowest = self.lanes[0].frontier
        for lane in self.lanes:
            if lane.frontier == "0" or compare(lane.frontier, lowest) == -1:
                lowest = lane.frontier
        return None if lowest == "0" else lowest

    def lower(self) -> None:
        """The server itself went back: so may the frontier."""
        for lane in self.lanes:
            lane.floor, lane.lowered = "0", True

    def resume(self, found: Found) -> None:
        """Count on from what the log says. Shape: nothing but the claims was handed over before."""
        for lane, said in zip(self.lanes, found.lanes, strict=True):
            lane.count, lane.digest, lane.last_snapshot = (
                said.count,
                said.digest,
                said.last_snapshot,
            )
            lane.frontier = lane.floor = said.frontier
            lane.differs = isinstance(found.decision, ListAndDiff)
        self.trimmed = dict(found.trimmed)

    def push(
        self, changes: Sequence[ObjectChange], *, reason: Reason, time_ms: int, received_s: float
    ) -> None:
        """Queue one record per change. One step with the change of the store."""
        lanes, unpublished, number = self.lanes, self.unpublished, self.number
        raw_room = self._raw_bytes - self.held_bytes
        held_total, count = 0, len(changes)
        for change in changes:
            number += 1
            key, entry = change.key, change.entry
            value: bytes | None
            if type(change) is Upserted:
                before, value, version = change.before, change.value, entry.resource_version
                entry.queued = number
                verb: Verb = "modified"
                trimmed: Trimmed = ""
                fresh = before is None
                if key in unpublished:
                    unpublished.discard(key)
                    before, fresh = None, fresh or key not in self.doubted
                if fresh:
                    verb = "added"
                if self.trimmed:
                    self.trimmed.pop(key, None)
                packed = len(entry.packed)
                if packed > self.packed_max:
                    value, trimmed = self._oversize(key, value, entry)
                elif held_total > raw_room:
                    value = None
                held = RECORD_COST_BYTES + (packed if value is None else len(value))
                item = Queued(
                    key,
                    entry,
                    value,
                    verb,
                    reason,
                    entry.hash,
                    before,
                    version,
                    time_ms,
                    received_s,
                    held,
                    trimmed,
                )
            else:
                assert not isinstance(change, Upserted)
                before = entry.hash
                self.forget(key)
                if key in unpublished:
                    # The log of this epoch does not hold it; that of an earlier one may, so the
                    # delete is said all the same.
                    unpublished.discard(key)
                    before = None
                held = RECORD_COST_BYTES
                item = Queued(
                    key,
                    entry,
                    None,
                    "deleted",
                    reason,
                    0,
                    before,
                    change.resource_version,
                    time_ms,
                    received_s,
                    held,
                )
                if self.tombstones:
                    lanes[entry.partition].queue.append(item)
                    item = Queued(
                        key,
                        entry,
                        None,
                        "deleted",
                        reason,
                        0,
                        None,
                        change.resource_version,
                        time_ms,
                        0.0,
                        held,
                        "",
                        True,
                    )
                    held_total += held
                    count += 1
            held_total += held
            lanes[entry.partition].queue.append(item)
        self.number = number
        self.held_bytes += held_total
        self.held_records += count
        self.object_records += count

    def forget(self, key: bytes) -> None:
        """The object is gone: what is remembered of how it was published goes too."""
        self.trimmed.pop(key, None)
        self.parts.pop(key, None)

    def read(self, key: bytes, entry: Entry, *, time_ms: int) -> None:
        """Queue the object again with the value it has now, as a snapshot does; "added" if the log
        does not hold it yet."""
        self.number += 1
        entry.queued = self.number
        first = key in self.unpublished
        self.unpublished.discard(key)
        before = None if first else entry.hash
        value, trimmed = self._present(key, entry, before)
        held = RECORD_COST_BYTES + len(entry.packed if value is None else value)
        verb: Verb = "added" if first and key not in self.doubted else "read"
        lane = self.lanes[entry.partition]
        lane.reads += 1
        lane.queue.append(
            Queued(
                key,
                entry,
                value,
                verb,
                "snapshot",
                entry.hash,
                before,
                entry.resource_version,
                time_ms,
                0.0,
                held,
                trimmed,
            )
        )
        self.held_bytes += held
        self.held_records += 1
        self.object_records += 1

    def _present(
        self, key: bytes, entry: Entry, before: int | None
    ) -> tuple[bytes | None, Trimmed]:
        """What is said of an object that the store holds: its value, None where that is what
        `entry` unpacks to; sets the entry's hash.

        Shape: `before` None: the log holds nothing of it, so a part that was tried once is
        forgotten.
        """
        part = (
            None
            if not self.parts
            else self.parts.get(key)
            if before is not None
            else self.parts.pop(key, None)
        )
        if len(entry.packed) > self.packed_max or part == entry.hash:
            value, trimmed = self._oversize(key, None, entry)
            return value, trimmed or self.trimmed.get(key, "")
        return None, self.trimmed.get(key, "") if self.trimmed else ""

    def heal(self, key: bytes, entry: Entry | None, partition: int, *, time_ms: int) -> None:
        """Queue the true state of a key on which a stale record stands: the object, or a null. What
        is to be said anyway is not."""
        if key in self.unpublished:
            return
        self.number += 1
        lane = self.lanes[partition]
        if entry is None:
            ghost = Entry("", "", 0, partition, b"")
            item = Queued(
                key,
                ghost,
                None,
                "deleted",
                "healed",
                0,
                None,
                lane.frontier,
                time_ms,
                0.0,
                RECORD_COST_BYTES,
            )
        else:
            entry.queued = self.number
            held = RECORD_COST_BYTES + len(entry.packed)
            before = entry.hash
            value, trimmed = self._present(key, entry, before)
            version = entry.resource_version
            item = Queued(
                key,
                entry,
                value,
                "read",
                "healed",
                entry.hash,
                before,
                version,
                time_ms,
                0.0,
                held,
                trimmed,
            )
        lane.queue.append(item)
        self.held_bytes += item.held_bytes
        self.held_records += 1
        self.object_records += 1

    def mark(self, kind: MarkerKind, *, frontier: str, time_ms: int, snapshot: str = "") -> None:
        """Queue a marker on every partition, in one step."""
        for lane in self.lanes:
            self.mark_lane(lane, kind, frontier=frontier, time_ms=time_ms, snapshot=snapshot)

    def mark_lane(
        self, lane: Lane, kind: MarkerKind, *, frontier: str, time_ms: int, snapshot: str = ""
    ) -> None:
        """Queue a marker on one partition; its frontier is not below the one that stands there
        already."""
        if lane.floor != "0" and (frontier == "0" or compare(frontier, lane.floor) == -1):
            frontier = lane.floor
        lane.queue.append(QueuedMarker(kind, frontier, time_ms, self.number, snapshot))
        self.held_records += 1

    def beat(self, *, frontier: str, time_ms: int) -> None:
        """Queue a heartbeat on each partition; where a marker stands last, that one will do: while
        Kafka is away they must not pile up."""
        for lane in self.lanes:
            last = lane.queue[-1] if lane.queue else None
            if type(last) is not QueuedMarker:
                self.mark_lane(lane, "heartbeat", frontier=frontier, time_ms=time_ms)
            elif last.behind != PARTIAL:
                last.behind = self.number

    def settled(self, lane: Lane, cut: Cut, offsets: Sequence[int]) -> None:
        """The broker acknowledged `cut` of `lane`."""
        lane.settled(cut, offsets)
        self.held_bytes -= cut.held_bytes
        self.held_records -= len(cut.records)
        assert self.held_records >= 0, "more was acknowledged than was queued"
