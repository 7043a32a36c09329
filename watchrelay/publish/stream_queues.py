"""The queues of one stream: changes, snapshot members, repairs and markers in; partitions over
their bound conflate intermediate states and publish the last one.

A partition over its bound gives up its queue and keeps the set of its dirty keys. What was rendered
stays as it is: it may be in the log already. From then on until the set is empty, changes of that
partition only enter the set; records are made of its oldest keys when the partition can send them,
with the values of that moment. So per key the order is that of the store, and nothing goes back in
time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from watchrelay.contract.records import Trimmed
from watchrelay.contract.wire import MarkerKind, Reason, Verb
from watchrelay.model.changes import Entry, ObjectChange, Removed, Upserted
from watchrelay.model.resources import compare
from watchrelay.publish.conflation import DirtyKey, DirtyKeys
from watchrelay.publish.partition_queue import (
    PARTIAL,
    RECORD_COST_BYTES,
    PartitionQueue,
    QueuedMarker,
    QueuedRecord,
    RenderedBatch,
    deletion,
    tombstone,
)
from watchrelay.publish.recovery import ListAndDiff, RecoveredState

REFILL_KEYS_MAX = 4096
"""Dirty keys examined in one step at most, so that a step over keys that need no record stays under
some milliseconds."""

Fit = Callable[[bytes, bytes | None, Entry], tuple[bytes, Trimmed]]
"""(key, value, entry) of an object that may be too large -> what to publish of it; sets the entry's
hash to the hash of that. Called for few objects."""


class StreamQueues:
    """All partition queues of one stream.

    Args:
        bound_bytes: The size at which the fullest partitions give up their queues. None: no bound;
            the caller waits for room instead.
        overflown: Called when a partition's queue became a set of dirty keys.
    """

    def __init__(
        self,
        partitions: int,
        *,
        raw_bytes: int,
        packed_max: int,
        oversize: Fit,
        tombstones: bool = False,
        bound_bytes: int | None = None,
        overflown: Callable[[], None] = lambda: None,
    ) -> None:
        self.partitions = [PartitionQueue(partition) for partition in range(partitions)]
        self.number = 0
        """Number of the newest record queued; `Entry.queued` is compared with it."""
        self.held_bytes = 0
        self.held_records = 0
        self.object_records = 0
        self.unpublished: set[bytes] = set()
        """Keys of the store that the log may not hold: the first snapshot has not reached them, or
        the topic does not accept them."""
        self.unverified: frozenset[bytes] = frozenset()
        """Keys that an unverified log holds: they are published again, but not as "added"."""
        self.trimmed: dict[bytes, Trimmed] = {}
        """Objects that a previous writer published in part; the store has no more of them
        either."""
        self.parts: dict[bytes, int] = {}
        """Objects that this writer published in part, with the hash of that part; the store holds
        them whole."""
        self.packed_max = packed_max
        """An entry whose packed value is not larger is published whole, unless a part of it was
        published before. Bytes."""
        self._raw_bytes, self._oversize = raw_bytes, oversize
        self.tombstones = tombstones
        """A delete has a value in this format; a tombstone follows as a record of its own."""
        self._bound_bytes, self._overflown = bound_bytes, overflown
        self._conflating = self._skipped = 0

    @property
    def empty(self) -> bool:
        """Every record is acknowledged, and no key is dirty."""
        return self.held_records == 0 and not self._conflating

    @property
    def conflating(self) -> bool:
        """A partition was over its bound and has dirty keys left."""
        return self._conflating > 0

    @property
    def dirty_keys(self) -> int:
        """Number of keys without a record for their present state yet."""
        return (
            sum(len(queue.dirty) for queue in self.partitions if queue.dirty)
            if self._conflating
            else 0
        )

    @property
    def frontier(self) -> str | None:
        """The lowest acknowledged frontier of all partitions; None before there is one."""
        lowest = self.partitions[0].frontier
        for queue in self.partitions:
            if queue.frontier == "0" or compare(queue.frontier, lowest) == -1:
                lowest = queue.frontier
        return None if lowest == "0" else lowest

    def take_skipped(self) -> int:
        """States skipped, for which there will be no record, since the last call."""
        for queue in self.partitions if self._conflating else ():
            if queue.dirty is not None:
                self._skipped += queue.dirty.skipped
                queue.dirty.skipped = 0
        skipped, self._skipped = self._skipped, 0
        return skipped

    def lower(self) -> None:
        """Let the frontier go back: the API server was restored from a backup."""
        for queue in self.partitions:
            queue.floor, queue.lowered = "0", True

    def resume(self, recovered: RecoveredState) -> None:
        """Continue from the recovered log. Only the claims may have been rendered before."""
        for queue, partition in zip(self.partitions, recovered.partitions, strict=True):
            queue.count, queue.digest = partition.count, partition.digest
            queue.last_snapshot = partition.last_snapshot
            queue.frontier = queue.floor = partition.frontier
            queue.differs = isinstance(recovered.decision, ListAndDiff)
        self.trimmed = dict(recovered.trimmed)

    # ---- changes, snapshots, repairs ----

    def push(
        self, changes: Sequence[ObjectChange], *, reason: Reason, time_ms: int, received_s: float
    ) -> None:
        """Queue one record per change, in the same step as the change of the store.

        A change of a partition that is over its bound enters the set of dirty keys instead.
        """
        if self._conflating:
            changes = self._enter(changes, received_s)
        partitions, unpublished, number = self.partitions, self.unpublished, self.number
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
                    before, fresh = None, fresh or key not in self.unverified
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
                item = QueuedRecord(
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
                    # This epoch did not publish it; an earlier one may have, so the delete is
                    # published all the same.
                    unpublished.discard(key)
                    before = None
                held = RECORD_COST_BYTES
                item = QueuedRecord(
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
                    partitions[entry.partition].waiting.append(item)
                    item = QueuedRecord(
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
            partitions[entry.partition].waiting.append(item)
        self.number = number
        self.held_bytes += held_total
        self.held_records += count
        self.object_records += count
        if self._bound_bytes is not None and self.held_bytes > self._bound_bytes:
            self._relieve(self._bound_bytes)

    def forget(self, key: bytes) -> None:
        """Drop what is known of how a deleted object was published."""
        self.trimmed.pop(key, None)
        self.parts.pop(key, None)

    def read(self, key: bytes, entry: Entry, *, time_ms: int) -> None:
        """Queue a snapshot member with its present value; "added" if the log does not hold it."""
        first = key in self.unpublished
        self.unpublished.discard(key)
        verb: Verb = "added" if first and key not in self.unverified else "read"
        queue = self.partitions[entry.partition]
        queue.reads += 1
        before = None if first else entry.hash
        self._queue_object(queue, key, entry, verb, "snapshot", before, time_ms, 0.0)

    def _queue_object(
        self,
        queue: PartitionQueue,
        key: bytes,
        entry: Entry,
        verb: Verb,
        reason: Reason,
        before: int | None,
        time_ms: int,
        received_s: float,
    ) -> None:
        """Queue the present state of an object that the store holds."""
        self.number += 1
        entry.queued = self.number
        value, trimmed = self._present(key, entry, before)
        held = RECORD_COST_BYTES + len(entry.packed if value is None else value)
        queue.waiting.append(
            QueuedRecord(
                key,
                entry,
                value,
                verb,
                reason,
                entry.hash,
                before,
                entry.resource_version,
                time_ms,
                received_s,
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
        """The value to publish of an object that the store holds, and how it was trimmed.

        Sets the hash of `entry`. `before` None: the log holds nothing of the object, so a part that
        was published earlier is not reused.

        Returns: A value of None means what `entry` unpacks to.
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

    def repair(self, key: bytes, entry: Entry | None, partition: int, *, time_ms: int) -> None:
        """Publish the true state of a key whose last record is stale: the object, or a null.

        Nothing is queued for a key that is published anyway. In a partition over its bound the key
        becomes dirty.
        """
        dirty = self.partitions[partition].dirty
        if dirty is None:
            self._queue_repair(key, entry, partition, time_ms)
        elif key not in self.unpublished:
            dirty.require(
                key, "" if entry is None else entry.uid, None if entry is None else entry.hash
            )

    def _queue_repair(self, key: bytes, entry: Entry | None, partition: int, time_ms: int) -> None:
        if key in self.unpublished:
            return
        queue = self.partitions[partition]
        if entry is not None:
            before = entry.hash
            self._queue_object(queue, key, entry, "read", "healed", before, time_ms, 0.0)
        else:
            self.number += 1
            absent = Entry("", "", 0, partition, b"")
            version = queue.frontier
            self._append(queue, deletion(key, absent, "healed", None, version, time_ms, 0.0))

    # ---- markers ----

    def mark(self, kind: MarkerKind, *, frontier: str, time_ms: int, snapshot: str = "") -> None:
        """Queue a marker on every partition, in one step."""
        for queue in self.partitions:
            self.mark_partition(queue, kind, frontier=frontier, time_ms=time_ms, snapshot=snapshot)

    def mark_partition(
        self,
        queue: PartitionQueue,
        kind: MarkerKind,
        *,
        frontier: str,
        time_ms: int,
        snapshot: str = "",
    ) -> None:
        """Queue a marker on one partition.

        Its frontier is not lower than that of a previous writer's markers. Over the bound it
        repeats the last frontier of the partition; there is no marker at all while the log differs
        from the store by what only a list can find: behind that frontier nothing would find it
        again.
        """
        if queue.dirty is not None:
            if queue.differs:
                return
            frontier, behind = _claimed(queue), PARTIAL
        else:
            behind = self.number
            if queue.floor != "0" and (frontier == "0" or compare(frontier, queue.floor) == -1):
                frontier = queue.floor
        queue.waiting.append(QueuedMarker(kind, frontier, time_ms, behind, snapshot))
        self.held_records += 1

    def heartbeat(self, *, frontier: str, time_ms: int) -> None:
        """Queue a heartbeat on each partition whose queue does not end in a marker already, so that
        heartbeats do not pile up while Kafka is away."""
        for queue in self.partitions:
            last = queue.waiting[-1] if queue.waiting else None
            if type(last) is not QueuedMarker:
                self.mark_partition(queue, "heartbeat", frontier=frontier, time_ms=time_ms)
            elif last.behind != PARTIAL:
                last.behind = self.number

    def settled(self, queue: PartitionQueue, batch: RenderedBatch, offsets: Sequence[int]) -> None:
        """Account for a batch of `queue` that the broker acknowledged."""
        queue.settled(batch, offsets)
        self.held_bytes -= batch.held_bytes
        self.held_records -= len(batch.records)
        assert self.held_records >= 0, "more was acknowledged than was queued"

    # ---- over the bound ----

    def _enter(self, changes: Sequence[ObjectChange], received_s: float) -> list[ObjectChange]:
        """Take the changes of partitions over their bound into their sets; returns the others."""
        rest: list[ObjectChange] = []
        for change in changes:
            key, entry = change.key, change.entry
            dirty = self.partitions[entry.partition].dirty
            if dirty is None:
                rest.append(change)
                continue
            published = change.before if isinstance(change, Upserted) else entry.hash
            if key in self.unpublished:
                self.unpublished.discard(key)
                published = None
            must_publish = published is None and (
                key in self.unverified or isinstance(change, Removed)
            )
            if isinstance(change, Upserted):
                if self.trimmed:
                    self.trimmed.pop(key, None)
                dirty.upserted(
                    key, entry.uid, published, must_publish=must_publish, received_s=received_s
                )
            else:
                self.forget(key)
                dirty.removed(
                    key,
                    entry.uid,
                    published,
                    change.resource_version,
                    must_publish=must_publish,
                    received_s=received_s,
                )
        return rest

    def _relieve(self, bound_bytes: int) -> None:
        """Collapse the fullest partitions until the rest is within the bound."""
        sizes = [
            (_held_bytes(queue.waiting), queue.partition)
            for queue in self.partitions
            if queue.dirty is None and queue.waiting
        ]
        for _, partition in sorted(sizes, reverse=True):
            if self.held_bytes <= bound_bytes:
                return
            self._collapse(self.partitions[partition])
            self._overflown()

    def _collapse(self, queue: PartitionQueue) -> None:
        """Replace the queue of a partition by its set of dirty keys. Markers are dropped; the
        tombstone of a delete that was rendered stays."""
        waiting, queue.waiting, queue.dirty, queue.reads = queue.waiting, deque(), DirtyKeys(), 0
        self._conflating += 1
        if type(waiting[0]) is QueuedRecord and waiting[0].tombstone:
            queue.waiting.append(waiting.popleft())
        for item in waiting:
            if type(item) is QueuedRecord:
                self.held_bytes -= item.held_bytes
                self.object_records -= 1
                if not item.tombstone:
                    self._take(queue.dirty, item)
        self.held_records -= len(waiting)

    def _take(self, dirty: DirtyKeys, item: QueuedRecord) -> None:
        key, uid, published = item.key, item.entry.uid, item.before
        if item.reason == "healed":
            dirty.require(key, uid, published)
        elif item.verb == "deleted":
            dirty.removed(
                key,
                uid,
                published,
                item.version,
                must_publish=published is None,
                received_s=item.received_s,
            )
        elif item.reason != "snapshot" or published is None:
            # an unchanged snapshot member needs no record of its own
            dirty.upserted(
                key,
                uid,
                published,
                must_publish=published is None and key in self.unverified,
                received_s=item.received_s,
            )

    def refill(
        self,
        queue: PartitionQueue,
        get: Callable[[bytes], Entry | None],
        *,
        time_ms: int,
        limit_bytes: int,
    ) -> bool:
        """Queue the present state of the oldest dirty keys.

        Args:
            get: Returns the present entry of a key.
            limit_bytes: About the wire size to queue.

        Returns: True when no key is left and the partition is back to a plain queue.
        """
        dirty = queue.dirty
        assert dirty is not None, "a refill of a partition within its bound"
        for _ in range(REFILL_KEYS_MAX):
            if not dirty or queue.waiting_bytes >= limit_bytes:
                break
            key, dirty_key = dirty.popitem(last=False)
            published = self._publish_key(
                queue, key, dirty_key, belonging(get(key), queue.partition), time_ms
            )
            dirty.skipped += max(0, dirty_key.states - published)
        if dirty:
            return False
        self._skipped += dirty.skipped
        self._conflating -= 1
        queue.dirty = None
        return True

    def _publish_key(
        self,
        queue: PartitionQueue,
        key: bytes,
        dirty_key: DirtyKey,
        entry: Entry | None,
        time_ms: int,
    ) -> int:
        """Queue what leads from the published state of `key` to `entry`; returns the number of
        states that got a record."""
        published, received_s = dirty_key.hash is not None, dirty_key.received_s
        same = published and entry is not None and entry.uid == dirty_key.uid
        records = 0
        if not same and (published or (dirty_key.must_publish and dirty_key.gone)):
            version = dirty_key.gone or (
                entry.resource_version if entry is not None else queue.frontier
            )
            self._queue_delete(queue, key, dirty_key, version, time_ms)
            records = 1
        if entry is None:
            if not records and dirty_key.must_publish:
                self._queue_repair(key, None, queue.partition, time_ms)
        elif not same or entry.hash != dirty_key.hash:
            fresh = not same and (records == 1 or key not in self.unverified)
            verb: Verb = "added" if fresh else "modified"
            before = dirty_key.hash if same else None
            self._queue_object(queue, key, entry, verb, "conflated", before, time_ms, received_s)
            records += 1
        elif dirty_key.must_publish:
            self._queue_repair(key, entry, queue.partition, time_ms)
        return records

    def _queue_delete(
        self, queue: PartitionQueue, key: bytes, dirty_key: DirtyKey, version: str, time_ms: int
    ) -> None:
        self.number += 1
        absent = Entry(dirty_key.uid, "", 0, queue.partition, b"")
        before, received_s = dirty_key.hash, dirty_key.received_s
        self._append(
            queue, deletion(key, absent, "conflated", before, version, time_ms, received_s)
        )
        if self.tombstones:
            self._append(queue, tombstone(key, absent, "conflated", version, time_ms))

    def _append(self, queue: PartitionQueue, item: QueuedRecord) -> None:
        queue.waiting.append(item)
        self.held_bytes += item.held_bytes
        self.held_records += 1
        self.object_records += 1


def belonging(entry: Entry | None, partition: int) -> Entry | None:
    """The state that `partition` must hold of a key: None where the key belongs to another
    partition.

    A foreign writer can write a key to any partition; an object published there too would be in no
    count or digest of that partition.
    """
    return entry if entry is not None and entry.partition == partition else None


def _held_bytes(waiting: Iterable[QueuedRecord | QueuedMarker]) -> int:
    return sum(item.held_bytes for item in waiting if type(item) is QueuedRecord)


def _claimed(queue: PartitionQueue) -> str:
    """The newest frontier rendered or queued; "0" when the API server has gone back behind it."""
    if queue.lowered:
        return "0"
    for item in reversed(queue.waiting):
        if type(item) is QueuedMarker:
            return item.frontier
    for batch in (queue.next, queue.outstanding):
        for rendered in reversed(batch.markers if batch is not None else ()):
            if rendered.marker.kind != "claim":
                return rendered.marker.frontier
    return queue.frontier
