"""The queues of one stream: changes, snapshot members, repairs and markers in; when the
stream is over its bound, the fullest partitions are conflated: of each key they publish the last
state alone.

A conflated partition gives up its queue and keeps the set of its dirty keys. What was rendered
stays as it is: it may be in the log already. From then on until the set is empty, changes of that
partition only enter the set; records are made of its oldest keys when the partition can send them,
with the values of that moment. So per key the order is that of the store, and nothing goes back in
time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from watchrelay.contract.records import Trimmed, content_hash
from watchrelay.contract.wire import MarkerKind, Reason, Verb
from watchrelay.model.changes import Entry, ObjectChange, Removed, Upserted
from watchrelay.model.resources import compare
from watchrelay.publish.partition_queue import (
    NOT_ALL,
    RECORD_COST_BYTES,
    DirtyKey,
    DirtyKeys,
    PartitionQueue,
    QueuedMarker,
    QueuedRecord,
    RenderedBatch,
)
from watchrelay.publish.recovery import ListAndDiff, RecoveredState

REFILL_KEYS_MAX = 4096
"""Dirty keys examined in one step at most, so that a step over keys that need no record stays under
a few milliseconds."""
_CHANGE_REASONS: frozenset[Reason] = frozenset({"watch", "relist", "resume", "conflated"})
"""Reasons of changes, as opposed to snapshot members and repairs. "resume": of the first list after
a start that could not continue the watch from the log."""

Settle = Callable[[bytes, Entry], bool]
"""As `StoreView.settle`."""
Fit = Callable[[bytes, bytes | None, Entry, int | None], tuple[bytes, Trimmed]]
"""(key, value or None to unpack it, entry, `form_hash`) -> what to publish of an object that may be
too large: the form with `form_hash`, which the log has, or where that is None the largest one that
fits. Called for few objects."""


@dataclass(slots=True)
class Fitting:
    """What the topic takes of an object. An entry whose block is not larger than `packed_max`
    bytes is published whole, unless a trimmed form of it was published before; `fit` is called for
    the others."""

    packed_max: int
    fit: Fit


class _Bounds(NamedTuple):
    """Sizes of all queues together, in bytes; `conflated` None: no limit."""

    uncompressed: int
    conflated: int | None


class StreamQueues:
    """All partition queues of one stream.

    Args:
        partitions: Those that are written.
        soft_bytes: Up to this size of the queues, values are kept uncompressed; beyond it they are
            unpacked from the entry when they are sent.
        fitting: Its `packed_max` may change.
        settle: None where the store compares all that is published.
        trailing_tombstones: A delete has a value in this format; a tombstone follows as its own
            record.
        bound_bytes: The size at which the fullest partitions give up their queues; None: never.
        partition_conflated: Called when a partition's queue became a set of dirty keys.
    """

    def __init__(
        self,
        partitions: Iterable[int],
        *,
        soft_bytes: int,
        fitting: Fitting,
        settle: Settle | None = None,
        trailing_tombstones: bool = False,
        bound_bytes: int | None = None,
        partition_conflated: Callable[[], None] = lambda: None,
    ) -> None:
        self.partitions = [PartitionQueue(partition) for partition in partitions]
        self.by_partition = {queue.partition: queue for queue in self.partitions}
        self.last_record_number = 0
        """Number of the newest record queued, over all partitions; markers have none."""
        self.seen_ms: int | None = None
        """When the API server was last seen, wall time: every change received up to then is pushed.
        For the markers queued from now on."""
        self.queued_bytes = self.queued_records = 0
        """Of what is queued or not acknowledged yet: `queued_records` with markers, `queued_bytes`
        without."""
        self.queued_ms = 0
        """Since when there is always something queued, wall time; of no meaning while `empty`."""
        self.object_records = 0
        """Records of objects queued so far, except those that were removed before they were
        sent."""
        self.uncounted_keys: set[bytes] = set()
        """Keys that are not in this writer's count and digest: those that the first snapshot has
        not reached (the log may lack them, or hold a state that was not verified), and all of
        `withheld`."""
        self.withheld: set[bytes] = set()
        """Those of which the topic does not accept anything: the log holds nothing of them."""
        self.snapshot_remaining: set[bytes] = set()
        """Keys that the running snapshot still has to publish: no record since its begin. While the
        first one runs, this is `uncounted_keys` itself."""
        self.unverified_keys: frozenset[bytes] = frozenset()
        """Keys that an unverified log holds: they are published again, but not as "added"."""
        self.trimmed_before: dict[bytes, Trimmed] = {}
        """Objects that a previous writer published in a trimmed form: the store, too, holds only
        that."""
        self.trimmed_hashes: dict[bytes, tuple[int, int]] = {}
        """Objects that this writer published in a trimmed form: the hash of the object, and that of
        the form. Where the object has another hash by now, it is another state."""
        self._fitting, self._settle = fitting, settle
        self._bounds = _Bounds(soft_bytes, bound_bytes)
        self._trailing_tombstones = trailing_tombstones
        self._partition_conflated = partition_conflated
        self._conflating = 0
        self.skipped: int | None = None
        """States of ended conflations, for which there will be no record, since the last
        `take_skipped`; None unless a partition is conflated, or was since then."""

    @property
    def empty(self) -> bool:
        """Every record is acknowledged, and no key is dirty."""
        return self.queued_records == 0 and not self._conflating

    @property
    def conflating(self) -> bool:
        """A partition is conflated."""
        return self._conflating > 0

    @property
    def dirty_keys(self) -> int:
        """Number of keys without a record for their present state yet."""
        if not self._conflating:
            return 0
        return sum(len(queue.dirty) for queue in self.partitions if queue.dirty)

    @property
    def frontier(self) -> str | None:
        """The lowest acknowledged frontier of all partitions; None while one of them is "0"."""
        lowest = self.partitions[0].frontier
        for queue in self.partitions:
            if queue.frontier == "0" or compare(queue.frontier, lowest) == -1:
                lowest = queue.frontier
        return None if lowest == "0" else lowest

    @property
    def oldest_seen_ms(self) -> int | None:
        """The lowest `seen_ms` of the acknowledged markers of all partitions; None while one has
        none."""
        seen_ms = [queue.seen_ms for queue in self.partitions if queue.seen_ms is not None]
        return min(seen_ms) if len(seen_ms) == len(self.partitions) else None

    def take_skipped(self) -> int:
        """States skipped, for which there will be no record, since the last call."""
        skipped = self.skipped or 0
        for queue in self.partitions:
            if queue.dirty is not None:
                skipped += queue.dirty.skipped
                queue.dirty.skipped = 0
        self.skipped = 0 if self._conflating else None
        return skipped

    def lower_frontier(self) -> None:
        """Let the frontier go back: the API server was restored from a backup, or the resource is
        no longer served."""
        for queue in self.partitions:
            queue.frontier_floor, queue.lowering_unconfirmed = "0", True
            queue.lowerings += 1

    def resume(self, recovered: RecoveredState) -> None:
        """Continue from the recovered log. Only the claim markers may have been rendered before."""
        for queue, partition in zip(self.partitions, recovered.partitions, strict=True):
            queue.count, queue.digest = partition.count, partition.digest
            queue.last_snapshot = partition.last_snapshot
            queue.frontier = queue.frontier_floor = partition.frontier
            queue.difference_unconfirmed = isinstance(recovered.decision, ListAndDiff)
        self.trimmed_before = dict(recovered.trimmed)

    def published_hash(self, key: bytes, object_hash: int) -> int:
        """The hash that the log has of the state with this `object_hash`: that of its trimmed form,
        where that was published."""
        whole_hash, form_hash = self.trimmed_hashes.get(key, (object_hash, object_hash))
        return form_hash if whole_hash == object_hash else object_hash

    # ---- changes, snapshots, repairs -------------------------------------------------------------

    def push(
        self, changes: Sequence[ObjectChange], *, reason: Reason, time_ms: int, received_at_s: float
    ) -> None:
        """Queue one record per change, in the same step as the change of the store.

        In a conflated partition the key becomes dirty instead.
        """
        if self._conflating:
            changes = self._mark_dirty(changes, received_at_s)
        elif not self.queued_records:
            self.queued_ms = time_ms
        partitions, uncounted_keys = self.by_partition, self.uncounted_keys
        remaining, settles = self.snapshot_remaining, self._settle is not None
        bounds, packed_max = self._bounds, self._fitting.packed_max
        raw_room = bounds.uncompressed - self.queued_bytes
        added_bytes = upserted = 0
        for change in changes:
            key, entry = change.key, change.entry
            if type(change) is Upserted:
                replaced, value, value_hash = change.replaced, change.value, change.hash
                replaced_hash = None if replaced is None else replaced.hash
                trimmed: Trimmed = ""
                verb: Verb = "modified" if replaced_hash is not None else "added"
                if uncounted_keys or self.trimmed_hashes or self.trimmed_before:
                    replaced_hash, verb = self._take_hash_and_verb(key, replaced_hash)
                block_bytes = len(entry.block)
                if block_bytes > packed_max:
                    value, trimmed, value_hash = self._form_and_hash(key, value, entry, None)
                elif added_bytes > raw_room:
                    value = None
                record_bytes = RECORD_COST_BYTES + (block_bytes if value is None else len(value))
                item = QueuedRecord(
                    key,
                    entry,
                    change.uid,
                    value,
                    verb,
                    reason,
                    value_hash,
                    replaced_hash,
                    entry.resource_version,
                    time_ms,
                    received_at_s,
                    record_bytes,
                    trimmed,
                )
                if settles:
                    item.replaced = replaced
                partitions[entry.partition].waiting.append(item)
                added_bytes += record_bytes
                upserted += 1
            else:
                assert not isinstance(change, Upserted)
                self._queue_removal(change, reason, time_ms, received_at_s)
            if remaining:
                remaining.discard(key)
        self.last_record_number += upserted
        self.queued_bytes += added_bytes
        self.queued_records += upserted
        self.object_records += upserted
        if bounds.conflated is not None and self.queued_bytes > bounds.conflated:
            self._conflate_fullest(bounds.conflated)

    def _take_replaced_hash(self, key: bytes, object_hash: int | None) -> int | None:
        """The `replaced_hash` of the record of an object that is about to be queued, or its dirty
        key. `object_hash`: of the state before, None for none. From here on the key counts."""
        if key in self.uncounted_keys:
            self.uncounted_keys.discard(key)
            self.withheld.discard(key)
            return None
        return None if object_hash is None else self.published_hash(key, object_hash)

    def _take_hash_and_verb(self, key: bytes, object_hash: int | None) -> tuple[int | None, Verb]:
        """`replaced_hash` and verb of the record of a new state. From here on the key counts, and
        the form in which the former state was published is forgotten."""
        replaced_hash = self._take_replaced_hash(key, object_hash)
        self._forget(key)
        is_new = object_hash is None or (replaced_hash is None and key not in self.unverified_keys)
        return replaced_hash, "added" if is_new else "modified"

    def _queue_removal(
        self, change: Removed, reason: Reason, time_ms: int, received_at_s: float
    ) -> None:
        """Queue a delete; also of what this epoch did not publish, for an earlier one may have."""
        key, entry, version = change.key, change.entry, change.resource_version
        replaced_hash = self._take_replaced_hash(key, entry.hash)
        self._forget(key)
        deletion = QueuedRecord.deletion(
            key, entry, reason, replaced_hash, version, time_ms, received_at_s
        )
        deletion.replaced = None if self._settle is None else entry
        self._append(self.by_partition[entry.partition], *self._with_trailing_tombstone(deletion))

    def _forget(self, key: bytes) -> None:
        """Drop what is known of how the former state of an object was published."""
        self.trimmed_before.pop(key, None)
        self.trimmed_hashes.pop(key, None)

    def _form_and_hash(
        self, key: bytes, value: bytes | None, entry: Entry, form_hash: int | None
    ) -> tuple[bytes, Trimmed, int]:
        """What to publish of an object that may be too large (`Fit`), and the hash of that."""
        value, trimmed = self._fitting.fit(key, value, entry, form_hash)
        if not trimmed:
            return value, trimmed, entry.hash
        value_hash = content_hash(key, value)
        self.trimmed_hashes[key] = (entry.hash, value_hash)
        return value, trimmed, value_hash

    def _append(self, queue: PartitionQueue, *items: QueuedRecord) -> None:
        if self.empty:
            self.queued_ms = items[0].time_ms
        queue.waiting.extend(items)
        self.last_record_number += len(items)
        for item in items:
            self._account(item)

    def _account(self, item: QueuedRecord, count: int = 1) -> None:
        """Account for a record that was queued, or with `count` -1 for one that was removed."""
        self.queued_bytes += count * item.queued_bytes
        self.queued_records += count
        self.object_records += count

    def _with_trailing_tombstone(self, deletion: QueuedRecord) -> list[QueuedRecord]:
        """The records of a deleted object."""
        if not self._trailing_tombstones:
            return [deletion]
        return [
            deletion,
            replace(deletion, replaced_hash=None, received_at_s=0.0, trailing_tombstone=True),
        ]

    def begin_snapshot(self, keys: Iterable[bytes], *, first: bool) -> None:
        """Let a snapshot publish all `keys` of the store. `first`: none is in count and digest
        yet. An abandoned first snapshot begins again without it, for what was published meanwhile
        is counted."""
        if first:
            self.uncounted_keys = {*keys, *self.unverified_keys}
        # shared, not copied: what enters or leaves `uncounted_keys` does so here too
        self.snapshot_remaining = self.uncounted_keys if first else set(keys)

    def push_member(self, key: bytes, entry: Entry, *, time_ms: int) -> None:
        """Queue a snapshot member with its present value; "added" if the log does not hold it."""
        replaced_hash = self._take_replaced_hash(key, entry.hash)
        verb: Verb = (
            "added" if replaced_hash is None and key not in self.unverified_keys else "read"
        )
        self.by_partition[entry.partition].members_since_batch += 1
        self._queue_object(key, entry, verb, "snapshot", replaced_hash, time_ms)

    def _queue_object(
        self, key: bytes, entry: Entry, verb: Verb, reason: Reason, replaced_hash: int | None,
        time_ms: int, received_at_s: float = 0.0,
    ) -> None:  # fmt: skip
        """Queue the present state of an object that the store holds. `replaced_hash` None: the log
        holds nothing of it, or nothing verified, so a trimmed form that was published earlier is
        not reused."""
        self.snapshot_remaining.discard(key)
        whole_hash, form_hash = self.trimmed_hashes.pop(key, (None, None))
        if replaced_hash is None or whole_hash != entry.hash:
            form_hash = None
        value, trimmed, value_hash = None, self.trimmed_before.get(key, ""), entry.hash
        if form_hash is not None or len(entry.block) > self._fitting.packed_max:
            value, trimmed_now, value_hash = self._form_and_hash(key, None, entry, form_hash)
            trimmed = trimmed_now or trimmed
        record_bytes = RECORD_COST_BYTES + len(entry.block if value is None else value)
        item = QueuedRecord(
            key, entry, entry.uid, value, verb, reason, value_hash, replaced_hash,
            version=entry.resource_version, time_ms=time_ms, received_at_s=received_at_s,
            queued_bytes=record_bytes, trimmed=trimmed,
        )  # fmt: skip
        self._append(self.by_partition[entry.partition], item)

    def repair(self, key: bytes, entry: Entry | None, partition: int, *, time_ms: int) -> None:
        """Publish the true state of a key whose last record in `partition` does not show it: the
        object `entry`, or a null if there is none, it is withheld, or it belongs to another
        partition. Nothing is queued for a key that the first snapshot publishes anyway; in a
        conflated partition the others, but for withheld ones, become dirty."""
        queue, here = self.by_partition[partition], _belonging(entry, partition)
        if key in self.withheld:
            self._queue_repair(key, None, queue, time_ms)
        elif key in self.uncounted_keys and here is entry:
            return
        elif queue.dirty is not None:
            published_hash = None if here is None else self.published_hash(key, here.hash)
            uid, replaced = ("", None) if here is None else (here.uid, here)
            queue.dirty.require(key, uid, published_hash, replaced)
        else:
            self._queue_repair(key, here, queue, time_ms)

    def _queue_repair(
        self, key: bytes, entry: Entry | None, queue: PartitionQueue, time_ms: int
    ) -> None:
        if entry is not None:
            published_hash = self.published_hash(key, entry.hash)
            self._queue_object(key, entry, "read", "healed", published_hash, time_ms)
        else:
            # the version of the delete is not known: docs/record-contract.md, section 3
            absent, version = Entry.of("", "", queue.partition), queue.frontier
            null = QueuedRecord.deletion(key, absent, "healed", None, version, time_ms, 0.0)
            self._append(queue, null)

    # ---- markers ---------------------------------------------------------------------------------

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
        """Queue a marker on one partition, with a frontier that is not lower than that of a
        previous writer's markers. On a conflated partition it is that of the newest marker, and
        while `difference_unconfirmed` no marker is queued there."""
        after_record, seen_ms = self.last_record_number, self.seen_ms
        if queue.dirty is not None:
            # what only a list found may be dirty still: the next start would take a marker as proof
            # that it is on the log, and it would be lost
            if queue.difference_unconfirmed:
                return
            # changes received since the newest marker may be dirty still
            after_record, (frontier, seen_ms) = NOT_ALL, queue.newest_marker
            if queue.lowering_unconfirmed:
                frontier = "0"
        elif queue.frontier_floor != "0" and (
            frontier == "0" or compare(frontier, queue.frontier_floor) == -1
        ):
            frontier = queue.frontier_floor
        marker = QueuedMarker(
            kind, frontier, time_ms, after_record, seen_ms, snapshot, queue.lowerings
        )
        if self.empty:
            self.queued_ms = time_ms
        queue.waiting.append(marker)
        self.queued_records += 1

    def heartbeat(self, *, frontier: str, time_ms: int) -> None:
        """Queue a heartbeat on each partition whose queue does not end in a marker already, so that
        heartbeats do not pile up while Kafka is away."""
        for queue in self.partitions:
            last = queue.waiting[-1] if queue.waiting else None
            if type(last) is not QueuedMarker:
                self.mark_partition(queue, "heartbeat", frontier=frontier, time_ms=time_ms)
            elif last.after_record != NOT_ALL:
                # what was queued since is in other partitions: the marker confirms as much as one
                # that is queued now. Its frontier and `seen_ms` stay older
                last.after_record = self.last_record_number

    def acked(self, queue: PartitionQueue, batch: RenderedBatch, offsets: Sequence[int]) -> None:
        """Account for a batch of `queue` that the broker acknowledged."""
        queue.acked(batch, offsets)
        self.queued_bytes -= batch.queued_bytes
        self.queued_records -= len(batch.records)
        assert self.queued_records >= 0, "more was acknowledged than was queued"

    # ---- records that the topic refuses ----------------------------------------------------------

    def replace_value(
        self, queue: PartitionQueue, index: int, value: bytes, trimmed: Trimmed
    ) -> None:
        """Publish `value` in the queued record `index` instead, and in the records of the same
        state that follow it; adjust the next record or dirty key of its key."""
        item = queue.waiting[index]
        assert isinstance(item, QueuedRecord)
        key, old, new = item.key, item.value_hash, content_hash(item.key, value)
        for later in queue.later(index + 1, key):
            if later.replaced_hash == old:
                later.replaced_hash = new
            if later.entry is not item.entry or later.verb == "deleted" or later.value_hash != old:
                break  # another state
            later.value, later.value_hash, later.trimmed = value, new, trimmed
        else:  # the newest state that is queued
            dirty_key = None if queue.dirty is None else queue.dirty.get(key)
            if dirty_key is None or not dirty_key.deleted_version:
                self.trimmed_hashes[key] = (item.entry.hash, new)
            if dirty_key is not None and dirty_key.hash == old:
                dirty_key.hash = new
        item.value, item.value_hash, item.trimmed = value, new, trimmed

    def withhold(self, queue: PartitionQueue, index: int) -> bool:
        """Remove the queued record `index`, or replace it by a delete where the log holds an
        earlier state of the object: the log then holds nothing of it.

        Returns: False, and nothing is changed, where the record cannot be left out: a marker, or
            the deletion of what the log holds.
        """
        item = queue.waiting[index]
        if type(item) is not QueuedRecord or (
            item.verb == "deleted" and item.replaced_hash is not None
        ):
            return False
        del queue.waiting[index]
        self._account(item, -1)
        if item.verb == "deleted":
            return True
        self._will_not_be_held(queue, index, item)
        if item.replaced_hash is not None:
            # this delete is neither a snapshot member nor a repair: "conflated" fits best
            reason: Reason = item.reason if item.reason in _CHANGE_REASONS else "conflated"
            deletion = QueuedRecord.deletion(
                item.key, item.entry, reason, item.replaced_hash, item.version, item.time_ms,
                item.received_at_s,
            )  # fmt: skip
            for at, each in enumerate(self._with_trailing_tombstone(deletion), index):
                queue.waiting.insert(at, each)
                self._account(each)
        return True

    def _will_not_be_held(self, queue: PartitionQueue, index: int, item: QueuedRecord) -> None:
        """Adjust what follows `item`, whose state is not published, so that count and digest agree:
        the next record of the key from `index` on; else its dirty key; else the key is `withheld`,
        so that the object is "added" once a state of it fits, and each snapshot tries again."""
        key = item.key
        if (later := next(queue.later(index, key), None)) is not None:
            if later.replaced_hash == item.value_hash:
                later.replaced_hash = None
                if later.verb != "deleted" and key not in self.unverified_keys:
                    later.verb = "added"
        elif queue.dirty is None or (dirty_key := queue.dirty.get(key)) is None:
            self.trimmed_hashes.pop(key, None)
            self.uncounted_keys.add(key)
            self.withheld.add(key)
        elif dirty_key.hash == item.value_hash:
            dirty_key.hash = None

    # ---- conflation ------------------------------------------------------------------------------

    def _mark_dirty(
        self, changes: Sequence[ObjectChange], received_at_s: float
    ) -> list[ObjectChange]:
        """Take the changes of conflated partitions into their sets; returns the others."""
        rest: list[ObjectChange] = []
        for change in changes:
            key, entry = change.key, change.entry
            dirty = self.by_partition[entry.partition].dirty
            if dirty is None:
                rest.append(change)
                continue
            if isinstance(change, Upserted):
                uid, replaced, removed_version = change.uid, change.replaced, None
            else:
                uid, replaced, removed_version = entry.uid, entry, change.resource_version
            object_hash = None if replaced is None else replaced.hash
            published_hash = self._take_replaced_hash(key, object_hash)
            self.trimmed_before.pop(key, None)
            if removed_version is not None:
                self.trimmed_hashes.pop(key, None)
            dirty.changed(
                key,
                uid,
                published_hash,
                received_at_s,
                unverified=key in self.unverified_keys,
                removed_version=removed_version,
                replaced=None if self._settle is None else replaced,
            )
        return rest

    def _conflate_fullest(self, bound_bytes: int) -> None:
        """Conflate the fullest partitions until the rest is within the bound."""
        sizes = [
            (
                sum(item.queued_bytes for item in queue.waiting if type(item) is QueuedRecord),
                queue.partition,
            )
            for queue in self.partitions
            if queue.dirty is None and queue.waiting
        ]
        for _, partition in sorted(sizes, reverse=True):
            if self.queued_bytes <= bound_bytes:
                return
            self._conflate(self.by_partition[partition])
            self._partition_conflated()

    def _conflate(self, queue: PartitionQueue) -> None:
        """Replace the queue of a partition by its set of dirty keys. Markers are dropped. Two kinds
        of records stay: the tombstone of a delete that was rendered, and nulls queued as repairs of
        withheld keys: were such a key dirty, its object would be published."""
        waiting, queue.waiting = queue.waiting, deque()
        dirty = queue.dirty = DirtyKeys()
        queue.members_since_batch = 0
        self._conflating += 1
        self.skipped = self.skipped or 0
        if type(waiting[0]) is QueuedRecord and waiting[0].trailing_tombstone:
            queue.waiting.append(waiting.popleft())
        for item in waiting:
            if type(item) is not QueuedRecord:
                self.queued_records -= 1
                continue
            key, uid, published_hash = item.key, item.uid, item.replaced_hash
            if item.reason == "healed" and key in self.withheld:
                queue.waiting.append(item)
                continue
            self._account(item, -1)
            unchanged_member = item.reason == "snapshot" and item.value_hash == published_hash
            if item.reason == "healed":
                dirty.require(key, uid, published_hash, item.entry)
            elif not (item.trailing_tombstone or unchanged_member):
                dirty.changed(
                    key,
                    uid,
                    published_hash,
                    item.received_at_s,
                    unverified=key in self.unverified_keys,
                    removed_version=item.version if item.verb == "deleted" else None,
                    replaced=item.replaced,
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
            limit_bytes: About how much to queue, uncompressed.

        Returns: True when no key is left and the partition is back to a plain queue.
        """
        dirty, settle = queue.dirty, self._settle
        assert dirty is not None, "a refill of a partition that is not conflated"
        for _ in range(REFILL_KEYS_MAX):
            if not dirty or queue.waiting_bytes >= limit_bytes:
                break
            key, dirty_key = dirty.popitem(last=False)
            if settle is not None and dirty_key.replaced is not None and dirty_key.hash is not None:
                settle(key, dirty_key.replaced)
            entry = _belonging(get(key), queue.partition)
            published = self._publish_key(queue, key, dirty_key, entry, time_ms)
            dirty.skipped += max(0, dirty_key.states - published)
        if dirty:
            return False
        self.skipped = (self.skipped or 0) + dirty.skipped
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
        held_hash, received_at_s = dirty_key.hash, dirty_key.received_at_s
        same_object = held_hash is not None and entry is not None and entry.uid == dirty_key.uid
        may_be_held = held_hash is not None or (
            dirty_key.must_publish and dirty_key.deleted_version
        )
        published = 0
        if may_be_held and not same_object:
            version = dirty_key.deleted_version or (
                queue.frontier if entry is None else entry.resource_version
            )
            absent = Entry.of(dirty_key.uid, "", queue.partition)
            deletion = QueuedRecord.deletion(
                key, absent, "conflated", held_hash, version, time_ms, received_at_s
            )
            self._append(queue, *self._with_trailing_tombstone(deletion))
            published = 1
        if entry is not None and not (
            same_object and self.published_hash(key, entry.hash) == held_hash
        ):
            is_new = not same_object and (published or key not in self.unverified_keys)
            verb: Verb = "added" if is_new else "modified"
            replaced_hash = held_hash if same_object else None
            self._queue_object(key, entry, verb, "conflated", replaced_hash, time_ms, received_at_s)
            return published + 1
        if dirty_key.must_publish and not published:
            self._queue_repair(key, entry, queue, time_ms)
        return published


def _belonging(entry: Entry | None, partition: int) -> Entry | None:
    """The state that `partition` must hold of a key: None where the key belongs to another
    partition.

    A foreign writer can write a key to any partition. An object repaired in a wrong partition would
    be held by readers, but missing from that partition's count and digest, which a repair leaves as
    they are.
    """
    return entry if entry is not None and entry.partition == partition else None
