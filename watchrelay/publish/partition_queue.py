"""One partition's queue, and the one place that assigns sequences, counts and digests.

What is fixed when: a record's bytes when it is queued; its sequence, and a marker's count and
digest, when it is rendered, because only then the records before it are known. A marker's frontier
is that of the moment it was queued: everything up to it was queued before, and the queue is a FIFO,
so all of it precedes the marker. The frontier at the time of rendering would be wrong: changes
queued behind the marker may have moved it. See docs/record-contract.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from watchrelay.contract.records import DIGEST_MASK, CloudEvents, Marker, Trimmed
from watchrelay.contract.wire import MarkerKind, Reason, Verb, WireRecord
from watchrelay.model.changes import Entry
from watchrelay.model.resources import compare
from watchrelay.publish.conflation import DirtyKeys
from watchrelay.publish.snapshots import AHEAD_BYTES

RECORD_COST_BYTES = 600
"""Memory of a queued record besides its value: item, deque slot, key, and the entry with its uid,
version and hash, which the store replaces by a newer one. Measured on pods: 590 bytes of resident
set."""

PARTIAL = -1
"""`QueuedMarker.behind` of a marker that does not follow all that is to be published."""


class QueuedRecord(msgspec.Struct, gc=False):
    """One record of an object, without a sequence yet.

    `value` None: unpack `entry.packed` (a long queue keeps no raw values), or a delete. `before` is
    the hash of what the log holds for the key before this record, None for nothing. `received_s` is
    monotonic, 0 for what no watch event caused. `held_bytes` counts towards the bound. `tombstone`:
    the null that follows a delete with a value (formats with an envelope).
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
    """A marker without a sequence yet; its frontier is that of the moment it is queued.

    It follows all records of its partition up to record number `behind`; `PARTIAL`: not all of
    them. It does not count towards the bound: markers are few, and must not keep objects waiting.
    """

    kind: MarkerKind
    frontier: str
    time_ms: int
    behind: int
    snapshot: str = ""


class RenderedMarker(msgspec.Struct, frozen=True, gc=False):
    """A marker of a batch, at `index` of its records; `behind` as in `QueuedMarker`."""

    index: int
    sequence: int
    marker: Marker
    behind: int


class RenderedBatch(msgspec.Struct):
    """One batch of one partition: `records` rendered from `items`; `before` is (sequence, count,
    digest) ahead of it."""

    items: list[QueuedRecord | QueuedMarker]
    records: list[WireRecord]
    markers: list[RenderedMarker]
    before: tuple[int, int, int]
    held_bytes: int
    payload_bytes: int

    def kinds(self) -> dict[str, int]:
        """Number of records by kind, as the metric names them."""
        snapshots = [
            item.reason
            for item in self.items
            if type(item) is QueuedRecord and item.verb != "deleted"
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
        """When each object's event was received, monotonic; 0 for none."""
        return [item.received_s for item in self.items if type(item) is QueuedRecord]


class PartitionQueue:
    """One partition: its FIFO, and the state of its log after all that was rendered."""

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
        "reads",
        "sequence",
        "waiting",
    )

    def __init__(self, partition: int, *, count: int = 0, digest: int = 0) -> None:
        self.partition = partition
        self.waiting: deque[QueuedRecord | QueuedMarker] = deque()
        self.sequence, self.count, self.digest = 0, count, digest
        self.frontier = "0"
        """The newest acknowledged frontier."""
        self.floor = "0"
        """The frontier of a previous writer's markers; ours are not lower, unless the API server
        itself went back."""
        self.lowered = False
        """The API server went back, and no acknowledged frontier shows it yet."""
        self.differs = False
        """The log differs from the store by what only a list can find: no marker may be placed
        within that difference until one of ours follows it."""
        self.dirty: DirtyKeys | None = None
        """While the queue is over its bound: the keys to publish after `waiting`."""
        self.claimed_at = -1
        """Offset of our claim."""
        self.begin: tuple[str, int, int] = ("", 0, 0)
        """(snapshot, sequence, offset) of the newest acknowledged begin."""
        self.last_snapshot: tuple[str, int] | None = None
        """(snapshot, begin offset) of the last snapshot whose end is acknowledged here."""
        self.outstanding: RenderedBatch | None = None
        self.next: RenderedBatch | None = None
        """Rendered while `outstanding` is in flight."""
        self.mean_bytes = 4096
        """Mean wire size of a record, estimated from what was rendered."""
        self.reads = 0
        """Snapshot members queued since the last batch was rendered."""

    @property
    def waiting_bytes(self) -> int:
        """Estimated wire size of what is queued and not rendered."""
        return len(self.waiting) * self.mean_bytes

    def takes_reads(self, ahead_bytes: int) -> bool:
        """Whether a snapshot member may be queued: up to `ahead_bytes` per batch, unless much waits
        already."""
        return self.reads * self.mean_bytes < ahead_bytes and self.waiting_bytes < AHEAD_BYTES

    def render(
        self,
        encoder: CloudEvents,
        unpack: Callable[[Entry], bytes],
        *,
        limit_bytes: int,
        seen_ms: int | None,
    ) -> RenderedBatch:
        """The next batch of queued records, in order, with sequences: at least one record, else up
        to `limit_bytes` of wire size. `seen_ms`: when the API server was last seen."""
        assert self.waiting, "rendering an empty queue"
        waiting, partition, overhead = self.waiting, self.partition, encoder.overhead_bytes
        sequence, count, digest = before = (self.sequence, self.count, self.digest)
        items: list[QueuedRecord | QueuedMarker] = []
        records: list[WireRecord] = []
        markers: list[RenderedMarker] = []
        held = wire = payload = 0
        render = encoder.object
        while waiting:
            item = waiting[0]
            if type(item) is QueuedRecord:
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
                marker = self._marker(item, count, digest & DIGEST_MASK, seen_ms)
                markers.append(RenderedMarker(len(records), sequence, marker, item.behind))
                records.append(encoder.marker(partition, sequence, item.time_ms, marker))
                wire += overhead
                payload += len(records[-1].key)
            items.append(waiting.popleft())
        assert count >= 0, "a partition has a negative object count"
        self.reads = 0
        self.sequence, self.count, self.digest = sequence, count, digest & DIGEST_MASK
        if len(records) > len(markers):
            self.mean_bytes = max(256, (3 * self.mean_bytes + wire // len(records)) // 4)
        return RenderedBatch(items, records, markers, before, held, payload)

    def _marker(self, item: QueuedMarker, count: int, digest: int, seen_ms: int | None) -> Marker:
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

    def split(self, count: int) -> RenderedBatch:
        """Split the outstanding batch after `count` records; returns the first part, the rest stays
        outstanding."""
        batch = self.outstanding
        assert batch is not None, "no batch to split"
        sequence, live, digest = batch.before
        held = payload = 0
        for item, record in zip(batch.items[:count], batch.records, strict=False):
            sequence += 1
            payload += len(record.key) + len(record.value or b"")
            if isinstance(item, QueuedRecord):
                held += item.held_bytes
                live += (item.verb != "deleted") - (item.before is not None)
                digest += (item.value_hash if item.verb != "deleted" else 0) - (item.before or 0)
        rest = [
            RenderedMarker(each.index - count, each.sequence, each.marker, each.behind)
            for each in batch.markers
            if each.index >= count
        ]
        head = [each for each in batch.markers if each.index < count]
        middle = (sequence, live, digest & DIGEST_MASK)
        tail = RenderedBatch(
            batch.items[count:],
            batch.records[count:],
            rest,
            middle,
            batch.held_bytes - held,
            batch.payload_bytes - payload,
        )
        self.outstanding = tail
        return RenderedBatch(
            batch.items[:count], batch.records[:count], head, batch.before, held, payload
        )

    def put_back(self) -> None:
        """Undo the rendering of batches of which nothing was appended: their records are queued
        again, and sequence, count and digest are those before them."""
        for batch in (self.next, self.outstanding):
            if batch is not None:
                self.waiting.extendleft(reversed(batch.items))
                self.sequence, self.count, self.digest = batch.before
        self.next = self.outstanding = None

    def replace(self, index: int, value: bytes, value_hash: int, trimmed: Trimmed) -> None:
        """Publish `value` in the queued record `index` instead, and adjust the next record of its
        key.

        The hash of the entry, which is that of what was published, changes with it; so does the
        same state if it is queued once more.
        """
        item = self.waiting[index]
        assert isinstance(item, QueuedRecord)
        old = item.value_hash
        for later in list(self.waiting)[index + 1 :]:
            if isinstance(later, QueuedRecord) and later.key == item.key:
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
                and (dirty_key := self.dirty.get(item.key)) is not None
                and dirty_key.hash == old
            ):
                dirty_key.hash = value_hash
        item.value, item.value_hash, item.trimmed = value, value_hash, trimmed
        if item.entry.hash == old:
            item.entry.hash = value_hash

    def settled(self, batch: RenderedBatch, offsets: Sequence[int]) -> None:
        """Account for a batch that the broker acknowledged."""
        assert len(offsets) == len(batch.records), "a receipt does not match its batch"
        if batch is self.outstanding:
            self.outstanding, self.next = self.next, None
        for rendered in batch.markers:
            marker = rendered.marker
            if marker.kind == "begin":
                self.begin = (marker.snapshot, rendered.sequence, offsets[rendered.index])
            elif marker.kind == "end":
                self.last_snapshot = (marker.snapshot, marker.begin_offset)
            if marker.kind == "claim":
                self.claimed_at = offsets[rendered.index]
            else:
                if self.lowered and (
                    marker.frontier == "0" or compare(marker.frontier, self.frontier) == -1
                ):
                    self.lowered = False
                self.frontier, self.differs = marker.frontier, False


def deletion(
    key: bytes,
    entry: Entry,
    reason: Reason,
    before: int | None,
    version: str,
    time_ms: int,
    received_s: float,
) -> QueuedRecord:
    """The record of a deleted object."""
    cost = RECORD_COST_BYTES
    return QueuedRecord(
        key, entry, None, "deleted", reason, 0, before, version, time_ms, received_s, cost
    )


def tombstone(key: bytes, entry: Entry, reason: Reason, version: str, time_ms: int) -> QueuedRecord:
    """The null that follows a delete with a value."""
    record = deletion(key, entry, reason, None, version, time_ms, 0.0)
    record.tombstone = True
    return record
