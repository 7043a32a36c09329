"""Writers whose queues collapse wrongly, letter by letter of F6, and two that say at hand-over what
was true when they queued it.

Room: simulation.  In: nothing.  Out: classes of relays for `planted.py`. Source:
docs/record-contract-reasons.md, F6.

Of (c) the form is planted that needs no overflow. A marker of a dirty partition that claims the
store's frontier can be expressed, but is seen only where a process dies between that marker and the
last dirty key, and that key is never written again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.process import Life
from watchrelay.contract.records import DIGEST_MASK, Marker
from watchrelay.contract.wire import MarkerKind
from watchrelay.model.changes import Entry
from watchrelay.publish.conflation import Conflator
from watchrelay.publish.dirty_keys import STATES_MAX, Dirty, DirtyKeys
from watchrelay.publish.partition_queue import Cut, Lane, Queued, QueuedMarker
from watchrelay.publish.ports import StateView
from watchrelay.publish.snapshots import Snapshot
from watchrelay.publish.writer import StreamRelay


class OtherQueues(StreamRelay):
    """A relay on queues of another class."""

    queues_class: type[Conflator] = Conflator

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._queues.__class__ = self.queues_class


# ---- (a) -----------------------------------------------------------------------------------------


class EarlyLane(Lane):
    """Says what a marker was given when it was queued."""

    __slots__ = ("early",)

    def __init__(self, partition: int) -> None:
        super().__init__(partition)
        self.early: dict[int, tuple[QueuedMarker, int, int]] = {}

    def _said(self, item: QueuedMarker, count: int, digest: int, seen_ms: int | None) -> Marker:
        if (known := self.early.get(id(item))) is not None:
            _, count, digest = known
        return super()._said(item, count, digest, seen_ms)


class CountedWhenQueued(Conflator):
    """A marker's count and digest are those of all that was pushed before it, said or collapsed."""

    view: StateView

    def mark_lane(
        self, lane: Lane, kind: MarkerKind, *, frontier: str, time_ms: int, snapshot: str = ""
    ) -> None:
        """As the real one, and counts at once."""
        waiting = len(lane.queue)
        super().mark_lane(lane, kind, frontier=frontier, time_ms=time_ms, snapshot=snapshot)
        if len(lane.queue) == waiting or kind == "claim":
            return
        assert isinstance(lane, EarlyLane)
        keys = self.view.keys()
        held = [
            entry
            for key in keys
            if key not in self.unpublished and (entry := self.view.get(key)) is not None
        ]
        hashes = [entry.hash for entry in held if entry.partition == lane.partition]
        marker = lane.queue[-1]
        assert isinstance(marker, QueuedMarker)
        lane.early[id(marker)] = (marker, len(hashes), sum(hashes) & DIGEST_MASK)


class EarlyMarkers(OtherQueues):
    """F6 (a)."""

    queues_class = CountedWhenQueued

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        assert isinstance(self._queues, CountedWhenQueued)
        self._queues.view = self._state
        self._queues.lanes = [EarlyLane(lane.partition) for lane in self._queues.lanes]


# ---- (b) -----------------------------------------------------------------------------------------


class NumberedWhenQueued(Conflator):
    """What collapses had its sequence already."""

    def _collapse(self, lane: Lane) -> None:
        numbered = len(lane.queue)
        super()._collapse(lane)
        lane.sequence += numbered - len(lane.queue)


class EarlySequences(OtherQueues):
    """F6 (b)."""

    queues_class = NumberedWhenQueued


# ---- (c) -----------------------------------------------------------------------------------------


class FrontierOfNow(StreamRelay):
    """F6 (c), as a queue that does not overflow shows it: a marker's frontier is that of the moment
    when it is handed over."""

    def _cut(self, lane: Lane) -> Cut:
        for item in lane.queue:
            if isinstance(item, QueuedMarker) and item.kind != "claim":
                item.frontier = self._course.frontier
        return super()._cut(lane)


# ---- (d) -----------------------------------------------------------------------------------------


class Unvoided(StreamRelay):
    """F6 (d): a snapshot goes on when a queue overflows, and its end is queued while keys wait.

    Shape: one whose begin or end went with the queue is void all the same: it could never be whole.
    """

    def _overflown(self) -> None:
        snapshot = self._snapshot
        if snapshot is None or not self._stands(snapshot):
            super()._overflown()
        else:
            self._accounts.overflown(self._queues, self._now_s())

    def _stands(self, snapshot: Snapshot) -> bool:
        """Its newest markers are acknowledged, on their way, or queued, on every partition."""
        kind, done = ("end", snapshot._ends) if snapshot._ended else ("begin", snapshot._begins)
        for lane in self._queues.lanes:
            cuts = [cut for cut in (lane.outstanding, lane.next) if cut is not None]
            sent = [
                (handed.said.kind, handed.said.snapshot) for cut in cuts for handed in cut.markers
            ]
            queued = [
                (item.kind, item.snapshot) for item in lane.queue if isinstance(item, QueuedMarker)
            ]
            if lane.partition not in done and (kind, snapshot.id) not in (*sent, *queued):
                return False
        return True


# ---- (e) -----------------------------------------------------------------------------------------


class ReadOfNow(StreamRelay):
    """F6 (e): a `read` carries the value of the moment when it is handed over. The digest knows."""

    def _cut(self, lane: Lane) -> Cut:
        queue = list(lane.queue)
        for index, item in enumerate(queue):
            if not isinstance(item, Queued) or item.reason != "snapshot":
                continue
            entry = self._state.get(item.key)
            if entry is None or entry is item.entry:
                continue
            old = item.value_hash
            item.entry, item.value, item.version, item.value_hash = (
                entry,
                None,
                entry.resource_version,
                entry.hash,
            )
            later = next(
                (
                    each
                    for each in queue[index + 1 :]
                    if isinstance(each, Queued) and each.key == item.key
                ),
                None,
            )
            if later is not None and later.before == old:
                later.before = entry.hash
        return super()._cut(lane)


# ---- (f) -----------------------------------------------------------------------------------------


class HidesTheDelete(Conflator):
    """From the published to the present state in one record, whosever that is."""

    def _say(
        self, lane: Lane, key: bytes, waiting: Dirty, entry: Entry | None, time_ms: int
    ) -> int:
        if entry is not None and waiting.hash is not None:
            waiting.uid = entry.uid
        return super()._say(lane, key, waiting, entry, time_ms)


class HiddenDelete(OtherQueues):
    """F6 (f)."""

    queues_class = HidesTheDelete


# ---- (g) -----------------------------------------------------------------------------------------


class KeptKeys(DirtyKeys):
    """A key that came and went stays."""

    def removed(
        self,
        key: bytes,
        uid: str,
        published: int | None,
        version: str,
        *,
        owed: bool,
        received_s: float,
    ) -> None:
        """As the real one, but for what nobody holds."""
        known = self.get(key)
        if known is None or known.hash is not None or known.owed:
            super().removed(key, uid, published, version, owed=owed, received_s=received_s)
        else:
            known.uid, known.states = uid, min(STATES_MAX, known.states + 1)


class KeepsWhatNobodyHolds(Conflator):
    """Sets that only grow until they are said."""

    def _collapse(self, lane: Lane) -> None:
        super()._collapse(lane)
        assert lane.dirty is not None
        lane.dirty.__class__ = KeptKeys


class GrowingSet(OtherQueues):
    """F6 (g)."""

    queues_class = KeepsWhatNobodyHolds


def life_of(relay: type[StreamRelay]) -> Callable[..., Life]:
    """A life with that writer."""
    made: Callable[..., Life] = type(f"{relay.__name__}Life", (Life,), {"relay_class": relay})
    return made
