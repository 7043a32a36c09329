"""One partition's queue, the set of dirty keys that replaces it while the partition is conflated,
and the one place that assigns sequences, counts and digests.

A record's content is fixed when it is queued, unless the topic refuses it; its sequence, and a
marker's count and digest, when it is rendered, because only then the records before it are known. A
marker's frontier and `seen_ms` are those of the moment it was queued: all changes up to them are
ahead of the marker, which is not true of later ones. See docs/record-contract.md.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from watchrelay.contract.records import DIGEST_MASK, CloudEvents, Marker, Trimmed
from watchrelay.contract.wire import MarkerKind, Reason, Verb, WireRecord
from watchrelay.model.changes import Entry
from watchrelay.publish.recovery import SnapshotPlace
from watchrelay.publish.snapshots import WAITING_MAX_BYTES

RECORD_COST_BYTES = 600
"""Memory of a queued record besides its value: item, uid, deque slot, key, hash, and the entry
with its version once the store has a newer one. Measured on pods: 590 bytes of resident set."""
NOT_ALL = -1
"""`QueuedMarker.after_record` of a marker that does not follow all that is to be published."""
STATES_MAX = 2
"""A dirty key needs records for two states at most: a delete, and the object under its new uid."""


class QueuedRecord(msgspec.Struct, gc=False):
    """One record of an object, without a sequence yet.

    `uid` is that of the object. `value` None: unpack `entry.packed` (a long queue keeps no raw
    values), or a delete.
    `value_hash` is that of the value as published. `replaced_hash` is that of what the log holds
    for the key before this record, None for nothing, or nothing verified. `received_at_s` is
    monotonic, 0 for what no watch event caused. `queued_bytes` counts towards the bound.
    `trailing_tombstone`: this is the null that follows a delete, in formats whose record of a
    delete has a value (an envelope); in the others the delete is a null itself. `replaced`: the
    state of `replaced_hash`, if the store compares by what counts.
    """

    key: bytes
    entry: Entry
    uid: str
    value: bytes | None
    verb: Verb
    reason: Reason
    value_hash: int
    replaced_hash: int | None
    version: str
    time_ms: int
    received_at_s: float
    queued_bytes: int = RECORD_COST_BYTES
    trimmed: Trimmed = ""
    trailing_tombstone: bool = False
    replaced: Entry | None = None

    @classmethod
    def deletion(
        cls, key: bytes, entry: Entry, reason: Reason, replaced_hash: int | None, version: str,
        time_ms: int, received_at_s: float,
    ) -> QueuedRecord:  # fmt: skip
        """A delete at `version` of the object with the uid of `entry`."""
        return cls(
            key, entry, entry.uid, None, "deleted", reason, 0, replaced_hash,
            version, time_ms, received_at_s,
        )  # fmt: skip


class QueuedMarker(msgspec.Struct, gc=False):
    """A marker without a sequence yet.

    It comes after all records of its partition up to record number `after_record`, counted over all
    partitions as records are queued (`StreamQueues.last_record_number`; not a sequence); `NOT_ALL`:
    not all of them. It does not count towards the bound: markers are few, and must not keep objects
    waiting. `seen_ms`: when the API server was last seen, None for never (`StreamQueues.seen_ms`).
    `lowerings`: `PartitionQueue.lowerings` at the time when it was queued.
    """

    kind: MarkerKind
    frontier: str
    time_ms: int
    after_record: int
    seen_ms: int | None
    snapshot: str = ""
    lowerings: int = 0


class RenderedMarker(msgspec.Struct, frozen=True, gc=False):
    """A marker of a batch, at `index` of its records; `after_record` as in `QueuedMarker`."""

    index: int
    sequence: int
    marker: Marker
    after_record: int


class RenderedBatch(msgspec.Struct):
    """One batch of one partition: `records` rendered from `items`; `start` is (sequence, count,
    digest) ahead of it. `kinds`: the number of records by kind, as the metric names them;
    `received_at_s`: when each object's event was received, monotonic; 0 for none."""

    items: list[QueuedRecord | QueuedMarker]
    records: list[WireRecord]
    markers: list[RenderedMarker]
    start: tuple[int, int, int]
    kinds: dict[str, int]
    received_at_s: list[float]
    queued_bytes: int
    payload_bytes: int


class DirtyKey(msgspec.Struct, gc=False):
    """One key of a conflated partition.

    `uid` and `hash` are those that the log will hold once what is rendered or in the queue is
    written. `hash` None: nothing, or nothing verified; `uid` is then for a delete, if needed.
    `deleted_version` is that of the newest removal, "" for none. `must_publish`: a record is needed
    whatever the state, for the log may hold something else. `states`: how many states wait for a
    record, counted up to `STATES_MAX`; the oldest of them was received at `received_at_s`, 0 where
    the key became dirty without an event. `replaced`: the state of that `hash`, if the store
    compares by what counts.
    """

    uid: str
    hash: int | None
    deleted_version: str
    must_publish: bool
    states: int
    received_at_s: float
    replaced: Entry | None = None


class DirtyKeys(OrderedDict[bytes, DirtyKey]):
    """The dirty keys of one partition, oldest first. Bounded by the number of objects: a key is
    kept while the log or the store holds it. Every state that came in is counted once: as
    published, as `skipped`, or in `states` of its key."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0
        """States without a record; `take_skipped` sets it back to 0."""

    def require(
        self, key: bytes, uid: str, published_hash: int | None, replaced: Entry | None
    ) -> None:
        """Publish `key` whatever its state: its last record on the log is stale. `replaced` as in
        `changed`."""
        known = self.setdefault(key, DirtyKey(uid, published_hash, "", True, 0, 0.0, replaced))
        known.must_publish = True

    def changed(
        self,
        key: bytes,
        uid: str,
        published_hash: int | None,
        received_at_s: float,
        *,
        unverified: bool,
        removed_version: str | None,
        replaced: Entry | None,
    ) -> None:
        """Take a new state, or the removal of the object with this `uid` at `removed_version`.

        Args:
            published_hash: That of the object on the log, None for none, or none verified. That
                object has the same `uid`: a new uid comes as two changes, the removal of the old
                object, then an upsert. Used only if the key was not dirty, as `unverified` and
                `replaced`.
            unverified: The log may hold a state of the key that was not verified.
        """
        known = self.get(key)
        if known is None:
            must_publish = published_hash is None and (unverified or removed_version is not None)
            version = removed_version or ""
            self[key] = DirtyKey(
                uid, published_hash, version, must_publish, 1, received_at_s, replaced
            )
            return
        if removed_version is not None:
            if known.hash is None and not known.must_publish:
                # neither the object nor its removal gets a record: the log holds nothing of it
                del self[key]
                self.skipped += known.states + 1
                return
            known.deleted_version = removed_version
            if known.hash is None:
                known.uid = uid
        if known.states < STATES_MAX:
            known.states += 1
        else:
            self.skipped += 1


class PartitionQueue:
    """One partition: its FIFO, and the state of its log after all that was rendered."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.waiting: deque[QueuedRecord | QueuedMarker] = deque()
        self.sequence = self.count = self.digest = 0
        self.frontier = "0"
        """The newest acknowledged frontier."""
        self.seen_ms: int | None = None
        """`Marker.seen_ms` of the newest acknowledged marker."""
        self.frontier_floor = "0"
        """The last frontier of the previous writer, below which our markers do not go; "0", that is
        none, once it was lowered (`lowerings`)."""
        self.lowerings = 0
        """How often the frontier was lowered: the API server was restored from a backup, or the
        resource was no longer served."""
        self.lowering_unconfirmed = False
        """It was lowered, and no marker that was queued since is acknowledged yet."""
        self.difference_unconfirmed = False
        """The stream started with a list that is compared with the log, and no marker after that
        difference is acknowledged yet: no marker may come between its records."""
        self.dirty: DirtyKeys | None = None
        """While this partition is conflated: the keys to publish after `waiting`."""
        self.claim_marker_offset = -1
        """Offset of our claim marker in this partition."""
        self.begin: tuple[str, int, int] = ("", 0, 0)
        """(snapshot, sequence, offset) of the newest acknowledged begin."""
        self.last_snapshot: SnapshotPlace | None = None
        """The last snapshot whose end is acknowledged here."""
        self.outstanding: RenderedBatch | None = None
        """In flight; or, once the one before it is acknowledged, to be sent next."""
        self.next: RenderedBatch | None = None
        """Rendered while `outstanding` is in flight."""
        self.delivery: Any = None
        """What `RecordSink.withdraw` takes to give up `outstanding`."""
        self.mean_bytes = 4096
        """Mean uncompressed size of a record, estimated from what was rendered."""
        self.members_since_batch = 0
        """Snapshot members queued since the last batch was rendered."""

    @property
    def waiting_bytes(self) -> int:
        """Estimated uncompressed size of what is queued and not rendered."""
        return len(self.waiting) * self.mean_bytes

    def takes_members(self, members_limit_bytes: int) -> bool:
        """Whether a snapshot member may be queued: up to `members_limit_bytes` per batch, unless
        `WAITING_MAX_BYTES` of anything wait already."""
        return (
            self.members_since_batch * self.mean_bytes < members_limit_bytes
            and self.waiting_bytes < WAITING_MAX_BYTES
        )

    def later(self, index: int, key: bytes) -> Iterator[QueuedRecord]:
        """The queued records of `key` from `index` on."""
        for item in islice(self.waiting, index, None):
            if type(item) is QueuedRecord and item.key == key:
                yield item

    @property
    def newest_marker(self) -> tuple[str, int | None]:
        """Frontier and `seen_ms` of the newest marker rendered or queued."""
        for item in reversed(self.waiting):
            if type(item) is QueuedMarker:
                return item.frontier, item.seen_ms
        for batch in (self.next, self.outstanding):
            for rendered in reversed(batch.markers if batch is not None else ()):
                if rendered.marker.kind != "claim":
                    return rendered.marker.frontier, rendered.marker.seen_ms
        return self.frontier, self.seen_ms

    def render(
        self,
        encoder: CloudEvents,
        unpack: Callable[[Entry], bytes],
        *,
        limit_bytes: int,
        limit_records: int | None = None,
    ) -> RenderedBatch:
        """The next batch of queued records, in order, with sequences: up to `limit_bytes`
        uncompressed, but at least one record."""
        assert self.waiting, "rendering an empty queue"
        waiting, partition, overhead = self.waiting, self.partition, encoder.overhead_bytes
        sequence, count, digest = start = (self.sequence, self.count, self.digest)
        items: list[QueuedRecord | QueuedMarker] = []
        records: list[WireRecord] = []
        markers: list[RenderedMarker] = []
        received_at_s: list[float] = []
        queued_bytes = batch_bytes = payload_bytes = nulls = members = 0
        render = encoder.object
        while waiting and len(records) != limit_records:
            item = waiting[0]
            if type(item) is QueuedRecord:
                value = item.value
                if value is None and item.verb != "deleted":
                    value = unpack(item.entry)
                value_bytes = len(value or b"")
                if batch_bytes + overhead + value_bytes > limit_bytes and records:
                    break
                sequence += 1
                if item.replaced_hash is not None:
                    count -= 1
                    digest -= item.replaced_hash
                if value is not None:
                    count += 1
                    digest += item.value_hash
                record = render(
                    partition, sequence, item.key, value, item.verb, item.reason, item.uid,
                    item.version, item.value_hash, item.time_ms, item.trimmed,
                    item.trailing_tombstone,
                )  # fmt: skip
                if record.value is None:
                    nulls += 1
                elif item.reason == "snapshot":
                    members += 1
                received_at_s.append(item.received_at_s)
                queued_bytes += item.queued_bytes
                batch_bytes += overhead + value_bytes
                payload_bytes += value_bytes + len(item.key)
            else:
                assert isinstance(item, QueuedMarker)
                sequence += 1
                marker = self._marker(item, count, digest & DIGEST_MASK)
                markers.append(RenderedMarker(len(records), sequence, marker, item.after_record))
                record = encoder.marker(partition, sequence, item.time_ms, marker)
                batch_bytes += overhead
                payload_bytes += len(record.key)
            records.append(record)
            items.append(waiting.popleft())
        assert count >= 0, "a partition has a negative object count"
        self.members_since_batch = 0
        self.sequence, self.count, self.digest = sequence, count, digest & DIGEST_MASK
        if received_at_s:
            self.mean_bytes = max(256, (3 * self.mean_bytes + batch_bytes // len(records)) // 4)
        objects = len(received_at_s)
        kinds = {
            "event": objects - nulls - members,
            "snapshot": members,
            "tombstone": nulls,
            "marker": len(markers),
        }
        return RenderedBatch(
            items, records, markers, start, kinds, received_at_s, queued_bytes, payload_bytes
        )

    def _marker(self, item: QueuedMarker, count: int, digest: int) -> Marker:
        kind, frontier, seen_ms = item.kind, item.frontier, item.seen_ms
        if kind == "claim":
            return Marker("claim")
        marker = partial(Marker, kind, frontier, count, digest, seen_ms)
        if kind == "end":
            snapshot, sequence, offset = self.begin
            assert snapshot == item.snapshot, "an end whose begin is not acknowledged"
            return marker(snapshot, begin_sequence=sequence, begin_offset=offset)
        if kind == "heartbeat" and self.last_snapshot is not None:
            last = self.last_snapshot
            return marker(last_snapshot=last.id, last_snapshot_offset=last.begin_offset)
        return marker(item.snapshot)

    def put_back(self) -> None:
        """Undo the rendering of the batches that are not acknowledged: their records are queued
        again, and sequence, count and digest are those before them."""
        for batch in (self.next, self.outstanding):
            if batch is not None:
                self.waiting.extendleft(reversed(batch.items))
                self.sequence, self.count, self.digest = batch.start
        self.next = self.outstanding = None

    def acked(self, batch: RenderedBatch, offsets: Sequence[int]) -> None:
        """Account for the outstanding `batch`, which the broker acknowledged."""
        assert batch is self.outstanding, "a batch is acknowledged out of order"
        assert len(offsets) == len(batch.records), "a receipt does not match its batch"
        self.outstanding, self.next = self.next, None
        for rendered in batch.markers:
            marker, offset = rendered.marker, offsets[rendered.index]
            if marker.kind == "claim":
                self.claim_marker_offset = offset
                continue
            if marker.kind == "begin":
                self.begin = (marker.snapshot, rendered.sequence, offset)
            elif marker.kind == "end":
                self.last_snapshot = SnapshotPlace(marker.snapshot, marker.begin_offset)
            item = batch.items[rendered.index]
            assert isinstance(item, QueuedMarker)
            if item.lowerings == self.lowerings:
                self.lowering_unconfirmed = False
            self.frontier, self.seen_ms = marker.frontier, marker.seen_ms
            self.difference_unconfirmed = False
