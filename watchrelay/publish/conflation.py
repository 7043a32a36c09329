"""A sequencer whose queues stay bounded while Kafka takes less than the server says, or nothing.

Room: relay (pure). In: the same as a `Sequencer`, and the store's present state when there is room
again. Out: the same records, and past the bound, for each key, what leads from the published to the
present state. Source: WIRE 4.3, WIRE-WHY F6.

A partition past the bound gives up its queue and keeps the set of its keys. What was cut stays as
it is: it may be in the log already. From then on until the set is empty, changes of that partition
only enter the set; records are made of its oldest keys when the partition can send them, with the
values of that moment. So per key the order is that of the store, and nothing goes back in time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from watchrelay.contract.wire import MarkerKind, Reason, Verb
from watchrelay.model.changes import Entry, ObjectChange, Removed, Upserted
from watchrelay.publish.dirty_keys import Dirty, DirtyKeys
from watchrelay.publish.partition_queue import (
    PARTIAL,
    RECORD_COST_BYTES,
    Fit,
    Lane,
    Queued,
    QueuedMarker,
    Sequencer,
)
from watchrelay.publish.repair import belonging

LOOKED_AT = 4096
"""Keys of a set looked at in one step at most, so that a step over keys of which nothing is to be
said stays under some milliseconds."""


class Conflator(Sequencer):
    """A `Sequencer` with a bound. Shape: `bound_bytes` None: none, whoever pushes waits for room
    instead.

    `overflown` is called when a partition's queue has become a set.
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
        super().__init__(
            partitions,
            raw_bytes=raw_bytes,
            packed_max=packed_max,
            oversize=oversize,
            tombstones=tombstones,
        )
        self._bound_bytes = bound_bytes
        self._overflown = overflown
        self._conflating = 0
        self._skipped = 0

    @property
    def empty(self) -> bool:
        """Everything was acknowledged, and no key waits."""
        return self.held_records == 0 and not self._conflating

    @property
    def conflating(self) -> bool:
        """A partition is past its bound, or has not said all its keys yet."""
        return self._conflating > 0

    @property
    def dirty_keys(self) -> int:
        """Keys that wait to be said."""
        return sum(len(lane.dirty) for lane in self.lanes if lane.dirty) if self._conflating else 0

    def take_skipped(self) -> int:
        """States that no record will say, since the last call."""
        for lane in self.lanes if self._conflating else ():
            if lane.dirty is not None:
                self._skipped += lane.dirty.skipped
                lane.dirty.skipped = 0
        skipped, self._skipped = self._skipped, 0
        return skipped

    # ---- in ----

    def push(
        self, changes: Sequence[ObjectChange], *, reason: Reason, time_ms: int, received_s: float
    ) -> None:
        """As `Sequencer.push`; what belongs to a partition past its bound enters its set."""
        if self._conflating:
            changes = self._enter(changes, received_s)
        super().push(changes, reason=reason, time_ms=time_ms, received_s=received_s)
        if self._bound_bytes is not None and self.held_bytes > self._bound_bytes:
            self._relieve(self._bound_bytes)

    def _enter(self, changes: Sequence[ObjectChange], received_s: float) -> list[ObjectChange]:
        """Take what belongs to partitions past their bound; the rest."""
        rest: list[ObjectChange] = []
        for change in changes:
            key, entry = change.key, change.entry
            dirty = self.lanes[entry.partition].dirty
            if dirty is None:
                rest.append(change)
                continue
            published = change.before if isinstance(change, Upserted) else entry.hash
            if key in self.unpublished:
                self.unpublished.discard(key)
                published = None
            owed = published is None and (key in self.doubted or isinstance(change, Removed))
            if isinstance(change, Upserted):
                if self.trimmed:
                    self.trimmed.pop(key, None)
                dirty.upserted(key, entry.uid, published, owed=owed, received_s=received_s)
            else:
                self.forget(key)
                dirty.removed(
                    key,
                    entry.uid,
                    published,
                    change.resource_version,
                    owed=owed,
                    received_s=received_s,
                )
        return rest

    def heal(self, key: bytes, entry: Entry | None, partition: int, *, time_ms: int) -> None:
        """As `Sequencer.heal`; a key of a partition past its bound is said with the others."""
        dirty = self.lanes[partition].dirty
        if dirty is None:
            super().heal(key, entry, partition, time_ms=time_ms)
        elif key not in self.unpublished:
            dirty.owe(
                key, "" if entry is None else entry.uid, None if entry is None else entry.hash
            )

    def mark_lane(
        self, lane: Lane, kind: MarkerKind, *, frontier: str, time_ms: int, snapshot: str = ""
    ) -> None:
        """As `Sequencer.mark_lane`; past the bound it repeats the partition's last frontier.

        None at all within a difference that only a list could tell: behind that frontier, nothing
        would tell it again.
        """
        if lane.dirty is None:
            super().mark_lane(lane, kind, frontier=frontier, time_ms=time_ms, snapshot=snapshot)
        elif not lane.differs:
            lane.queue.append(QueuedMarker(kind, _claimed(lane), time_ms, PARTIAL, snapshot))
            self.held_records += 1

    # ---- past the bound ----

    def _relieve(self, bound_bytes: int) -> None:
        """Have the fullest partitions give up their queues, until the rest is within the bound."""
        sizes = [
            (_held_bytes(lane.queue), lane.partition)
            for lane in self.lanes
            if lane.dirty is None and lane.queue
        ]
        for _, partition in sorted(sizes, reverse=True):
            if self.held_bytes <= bound_bytes:
                return
            self._collapse(self.lanes[partition])
            self._overflown()

    def _collapse(self, lane: Lane) -> None:
        """Make the set of a partition's queue. Shape: the null behind a delete that was cut stays;
        markers are dropped."""
        queue, lane.queue, lane.dirty, lane.reads = lane.queue, deque(), DirtyKeys(), 0
        self._conflating += 1
        if type(queue[0]) is Queued and queue[0].tombstone:
            lane.queue.append(queue.popleft())
        for item in queue:
            if type(item) is Queued:
                self.held_bytes -= item.held_bytes
                self.object_records -= 1
                if not item.tombstone:
                    self._take(lane.dirty, item)
        self.held_records -= len(queue)

    def _take(self, dirty: DirtyKeys, item: Queued) -> None:
        key, uid, published = item.key, item.entry.uid, item.before
        if item.reason == "healed":
            dirty.owe(key, uid, published)
        elif item.verb == "deleted":
            dirty.removed(
                key,
                uid,
                published,
                item.version,
                owed=published is None,
                received_s=item.received_s,
            )
        elif item.reason != "snapshot" or published is None:
            # an object that is only said again needs no record of its own
            dirty.upserted(
                key,
                uid,
                published,
                owed=published is None and key in self.doubted,
                received_s=item.received_s,
            )

    # ---- out ----

    def refill(
        self, lane: Lane, get: Callable[[bytes], Entry | None], *, time_ms: int, limit_bytes: int
    ) -> bool:
        """Queue what leads to the present state, for the oldest keys of the set, about
        `limit_bytes` of it; True: the set is done with.

        Shape: `get` tells the present entry of a key. Legal while `lane.dirty` is not None.
        """
        dirty = lane.dirty
        assert dirty is not None, "a refill of a partition within its bound"
        for _ in range(LOOKED_AT):
            if not dirty or lane.waiting_bytes >= limit_bytes:
                break
            key, waiting = dirty.popitem(last=False)
            said = self._say(lane, key, waiting, belonging(get(key), lane.partition), time_ms)
            dirty.skipped += max(0, waiting.states - said)
        if dirty:
            return False
        self._skipped += dirty.skipped
        self._conflating -= 1
        lane.dirty = None
        return True

    def _say(
        self, lane: Lane, key: bytes, waiting: Dirty, entry: Entry | None, time_ms: int
    ) -> int:
        """Queue what leads from what the log holds of `key` to `entry`; how many of the states that
        waited are said by it."""
        published = waiting.hash is not None
        same = published and entry is not None and entry.uid == waiting.uid
        said = 0
        if not same and (published or (waiting.owed and waiting.gone)):
            version = waiting.gone or (
                entry.resource_version if entry is not None else lane.frontier
            )
            ghost = Entry(waiting.uid, "", 0, lane.partition, b"")
            self._queue_delete(lane, key, ghost, version, waiting, time_ms)
            said = 1
        if entry is None:
            if not said and waiting.owed:
                super().heal(key, None, lane.partition, time_ms=time_ms)
        elif not same or entry.hash != waiting.hash:
            fresh = not same and (said == 1 or key not in self.doubted)
            self._queue_upsert(
                lane,
                key,
                entry,
                "added" if fresh else "modified",
                waiting.hash if same else None,
                waiting,
                time_ms,
            )
            said += 1
        elif waiting.owed:
            super().heal(key, entry, lane.partition, time_ms=time_ms)
        return said

    def _queue_upsert(
        self,
        lane: Lane,
        key: bytes,
        entry: Entry,
        verb: Verb,
        before: int | None,
        waiting: Dirty,
        time_ms: int,
    ) -> None:
        self.number += 1
        entry.queued = self.number
        value, trimmed = self._present(key, entry, before)
        held = RECORD_COST_BYTES + len(entry.packed if value is None else value)
        version, now = entry.resource_version, entry.hash
        self._append(
            lane,
            Queued(
                key,
                entry,
                value,
                verb,
                "conflated",
                now,
                before,
                version,
                time_ms,
                waiting.received_s,
                held,
                trimmed,
            ),
        )

    def _queue_delete(
        self, lane: Lane, key: bytes, ghost: Entry, version: str, waiting: Dirty, time_ms: int
    ) -> None:
        self.number += 1
        cost, received_s = RECORD_COST_BYTES, waiting.received_s
        self._append(
            lane,
            Queued(
                key,
                ghost,
                None,
                "deleted",
                "conflated",
                0,
                waiting.hash,
                version,
                time_ms,
                received_s,
                cost,
            ),
        )
        if self.tombstones:
            self._append(
                lane,
                Queued(
                    key,
                    ghost,
                    None,
                    "deleted",
                    "conflated",
                    0,
                    None,
                    version,
                    time_ms,
                    0.0,
                    cost,
                    "",
                    True,
                ),
            )

    def _append(self, lane: Lane, item: Queued) -> None:
        lane.queue.append(item)
        self.held_bytes += item.held_bytes
        self.held_records += 1
        self.object_records += 1


def _held_bytes(queue: Iterable[Queued | QueuedMarker]) -> int:
    return sum(item.held_bytes for item in queue if type(item) is Queued)


def _claimed(lane: Lane) -> str:
    """The newest frontier that was handed over, or stands in the queue; "0" when the server has
    gone back behind it."""
    if lane.lowered:
        return "0"
    for item in reversed(lane.queue):
        if type(item) is QueuedMarker:
            return item.frontier
    for cut in (lane.next, lane.outstanding):
        for handed in reversed(cut.markers if cut is not None else ()):
            if handed.said.kind != "claim":
                return handed.said.frontier
    return lane.frontier
