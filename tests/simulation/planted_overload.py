"""Writers whose queues conflate wrongly, letter by letter of F6, two that publish at hand-over what
was true when they queued it, and those whose markers show a later time than is true (F33).

Classes of relays for `planted.py`. Source: docs/record-contract-reasons.md, F6 and F33.

Of (c) the form is planted that needs no overflow. A marker of a dirty partition that claims the
store's frontier can be expressed, but is seen only where a process dies between that marker and the
last dirty key, and that key is never written again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.simulation.process import Life, Outlet
from watchrelay.contract.records import DIGEST_MASK, Marker
from watchrelay.contract.wire import MarkerKind
from watchrelay.model.changes import Entry
from watchrelay.model.frames import ListQuery, Page
from watchrelay.model.watch_output import ListedObjects, WatchOutput
from watchrelay.publish.machine import frontier
from watchrelay.publish.partition_queue import (
    STATES_MAX,
    DirtyKey,
    DirtyKeys,
    PartitionQueue,
    QueuedMarker,
    QueuedRecord,
    RenderedBatch,
)
from watchrelay.publish.ports import StoreView
from watchrelay.publish.snapshots import Snapshot
from watchrelay.publish.stream_queues import StreamQueues
from watchrelay.publish.writer import StreamWriter
from watchrelay.watch.loop import Watcher


class OtherQueues(StreamWriter):
    """A relay on queues of another class."""

    queues_class: type[StreamQueues] = StreamQueues

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._queues.__class__ = self.queues_class


# ---- (a) -----------------------------------------------------------------------------------------


class EarlyPartitionQueue(PartitionQueue):
    """Publishes a marker with the values it had when it was queued."""

    __slots__ = ("early",)

    def __init__(self, partition: int) -> None:
        super().__init__(partition)
        self.early: dict[int, tuple[QueuedMarker, int, int]] = {}

    def _marker(self, item: QueuedMarker, count: int, digest: int) -> Marker:
        if (known := self.early.get(id(item))) is not None:
            _, count, digest = known
        return super()._marker(item, count, digest)


class CountedWhenQueued(StreamQueues):
    """A marker's count and digest are those of all that was pushed before it, published or
    conflated."""

    view: StoreView

    def mark_partition(
        self,
        queue: PartitionQueue,
        kind: MarkerKind,
        *,
        frontier: str,
        time_ms: int,
        snapshot: str = "",
    ) -> None:
        """As the real one, and counts at once."""
        waiting = len(queue.waiting)
        super().mark_partition(queue, kind, frontier=frontier, time_ms=time_ms, snapshot=snapshot)
        if len(queue.waiting) == waiting or kind == "claim":
            return
        assert isinstance(queue, EarlyPartitionQueue)
        keys = self.view.keys()
        held = [
            entry
            for key in keys
            if key not in self.uncounted_keys and (entry := self.view.get(key)) is not None
        ]
        hashes = [entry.hash for entry in held if entry.partition == queue.partition]
        marker = queue.waiting[-1]
        assert isinstance(marker, QueuedMarker)
        queue.early[id(marker)] = (marker, len(hashes), sum(hashes) & DIGEST_MASK)


class EarlyMarkers(OtherQueues):
    """F6 (a)."""

    queues_class = CountedWhenQueued

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        assert isinstance(self._queues, CountedWhenQueued)
        self._queues.view = self._store
        self._queues.partitions = [
            EarlyPartitionQueue(queue.partition) for queue in self._queues.partitions
        ]
        self._queues.by_partition = {queue.partition: queue for queue in self._queues.partitions}


# ---- (b) -----------------------------------------------------------------------------------------


class NumberedWhenQueued(StreamQueues):
    """What is conflated had its sequence already."""

    def _conflate(self, queue: PartitionQueue) -> None:
        numbered = len(queue.waiting)
        super()._conflate(queue)
        queue.sequence += numbered - len(queue.waiting)


class EarlySequences(OtherQueues):
    """F6 (b)."""

    queues_class = NumberedWhenQueued


# ---- (c) -----------------------------------------------------------------------------------------


class FrontierOfNow(StreamWriter):
    """F6 (c), as a queue that does not overflow shows it: a marker's frontier is that of the moment
    when it is handed over."""

    def _render(self, queue: PartitionQueue, *, limit_records: int | None = None) -> RenderedBatch:
        for item in queue.waiting:
            if isinstance(item, QueuedMarker) and item.kind != "claim":
                item.frontier = frontier(self._phase)
        return super()._render(queue, limit_records=limit_records)


# ---- (d) -----------------------------------------------------------------------------------------


class Unvoided(StreamWriter):
    """F6 (d): a snapshot goes on when a queue overflows, and its end is queued while keys wait.

    One whose begin or end went with the queue is void all the same: it could never be whole.
    """

    def _partition_conflated(self) -> None:
        snapshot = self._snapshot
        if snapshot is None or not self._still_valid(snapshot):
            super()._partition_conflated()
        else:
            self._reporter.partition_conflated(self._queues, self._now_s())

    def _still_valid(self, snapshot: Snapshot) -> bool:
        """Its newest markers are acknowledged, on their way, or queued, on every partition."""
        kind, done = ("end", snapshot._ends) if snapshot._ended else ("begin", snapshot._begins)
        for queue in self._queues.partitions:
            batches = [batch for batch in (queue.outstanding, queue.next) if batch is not None]
            sent = [
                (rendered.marker.kind, rendered.marker.snapshot)
                for batch in batches
                for rendered in batch.markers
            ]
            queued = [
                (item.kind, item.snapshot)
                for item in queue.waiting
                if isinstance(item, QueuedMarker)
            ]
            if queue.partition not in done and (kind, snapshot.id) not in (*sent, *queued):
                return False
        return True


# ---- (e) -----------------------------------------------------------------------------------------


class ReadOfNow(StreamWriter):
    """F6 (e): a `read` carries the value of the moment when it is handed over. The digest knows."""

    def _render(self, queue: PartitionQueue, *, limit_records: int | None = None) -> RenderedBatch:
        waiting = list(queue.waiting)
        for index, item in enumerate(waiting):
            if not isinstance(item, QueuedRecord) or item.reason != "snapshot":
                continue
            entry = self._store.get(item.key)
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
                    for each in waiting[index + 1 :]
                    if isinstance(each, QueuedRecord) and each.key == item.key
                ),
                None,
            )
            if later is not None and later.replaced_hash == old:
                later.replaced_hash = entry.hash
        return super()._render(queue, limit_records=limit_records)


# ---- (f) -----------------------------------------------------------------------------------------


class HidesTheDelete(StreamQueues):
    """From the published to the present state in one record, whosever that is."""

    def _publish_key(
        self,
        queue: PartitionQueue,
        key: bytes,
        dirty_key: DirtyKey,
        entry: Entry | None,
        time_ms: int,
    ) -> int:
        if entry is not None and dirty_key.hash is not None:
            dirty_key.uid = entry.uid
        return super()._publish_key(queue, key, dirty_key, entry, time_ms)


class HiddenDelete(OtherQueues):
    """F6 (f)."""

    queues_class = HidesTheDelete


# ---- (g) -----------------------------------------------------------------------------------------


class KeptKeys(DirtyKeys):
    """A key that came and went stays."""

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
        """As the real one, but for what nobody holds."""
        known = self.get(key)
        if removed_version is None or known is None or known.hash is not None or known.must_publish:
            super().changed(
                key,
                uid,
                published_hash,
                received_at_s,
                unverified=unverified,
                removed_version=removed_version,
                replaced=replaced,
            )
        else:
            known.uid, known.states = uid, min(STATES_MAX, known.states + 1)


class KeepsWhatNobodyHolds(StreamQueues):
    """Sets that only grow until they are published."""

    def _conflate(self, queue: PartitionQueue) -> None:
        super()._conflate(queue)
        assert queue.dirty is not None
        queue.dirty.__class__ = KeptKeys


class GrowingSet(OtherQueues):
    """F6 (g)."""

    queues_class = KeepsWhatNobodyHolds


# ---- F33 -----------------------------------------------------------------------------------------


class SeenNow(StreamWriter):
    """F33: a marker's `ce_wrseen` is that of the moment when it is handed over."""

    def _render(self, queue: PartitionQueue, *, limit_records: int | None = None) -> RenderedBatch:
        for item in queue.waiting:
            if isinstance(item, QueuedMarker):
                item.seen_ms = self._queues.seen_ms
        return super()._render(queue, limit_records=limit_records)


class SeenWhileKeysWait(StreamQueues):
    """A marker of a conflated partition has the `ce_wrseen` of the moment when it is queued."""

    def mark_partition(
        self,
        queue: PartitionQueue,
        kind: MarkerKind,
        *,
        frontier: str,
        time_ms: int,
        snapshot: str = "",
    ) -> None:
        """As the real one, but for what keys wait."""
        waiting = len(queue.waiting)
        super().mark_partition(queue, kind, frontier=frontier, time_ms=time_ms, snapshot=snapshot)
        if len(queue.waiting) > waiting:
            marker = queue.waiting[-1]
            assert isinstance(marker, QueuedMarker)
            marker.seen_ms = self.seen_ms


class SeenInOverload(OtherQueues):
    """F33, as only a queue that overflows shows it."""

    queues_class = SeenWhileKeysWait


class SeenByPage(Outlet):
    """Markers know of each page of a list at once."""

    async def take(self, output: WatchOutput) -> bool:
        """As the real one."""
        if isinstance(output, ListedObjects):
            self._server_seen(self._wall_ms())
        return await super().take(output)


class SeenByPageLife(Life):
    """F33, as only a list of several pages shows it."""

    reflector_class = SeenByPage


class SeenByLook(Watcher):
    """A small list that shows a newer version than the watch is taken for one that shows none."""

    async def _small_list(self, query: ListQuery) -> Page | None:
        """As the real one, but for what is newer."""
        page = await super()._small_list(query)
        return None if page is None else replace(page, resource_version=self.cursor)


class SeenByLookLife(Life):
    """F36."""

    watcher_class = SeenByLook


def life_of(relay: type[StreamWriter]) -> Callable[..., Life]:
    """A life with that writer."""
    made: Callable[..., Life] = type(f"{relay.__name__}Life", (Life,), {"relay_class": relay})
    return made
