"""One stream's writer: changes in, acknowledged records out.

Room: relay. In: `Outbox` calls of the store's reflector, each one step with the change of the
store. Out: batches through the `Sink` port, claims and index records through the `Control` port,
and what the receipts prove: status, frontier, metrics.

Tasks of one stream: a flusher, a beat (heartbeats, the claim check, due snapshots), and one per
batch that is on its way.
"""

from __future__ import annotations

import asyncio
import logging
import random
import zlib
from collections.abc import Awaitable, Callable, Sequence

from watchrelay.contract.records import CloudEvents, encoder_for
from watchrelay.contract.wire import Batch, Reason, Receipt
from watchrelay.core import clock
from watchrelay.core.errors import Fenced, RecordTooLarge, fenced_by
from watchrelay.model.changes import ObjectChange
from watchrelay.model.streams import StreamSpec
from watchrelay.observe.metrics import StreamMetrics, TopicMetrics
from watchrelay.observe.status import StreamStatus
from watchrelay.publish.alarm import Alarm
from watchrelay.publish.backpressure import SOFT_BYTES, Inflow
from watchrelay.publish.conflation import Conflator
from watchrelay.publish.oversize import Oversize, unread
from watchrelay.publish.partition_queue import Cut, Handed, Lane
from watchrelay.publish.phase import Course
from watchrelay.publish.ports import Control, Sink, StateView, Witness
from watchrelay.publish.pulse import Pulse
from watchrelay.publish.recovery import Found
from watchrelay.publish.repair import Healer, belonging
from watchrelay.publish.reporting import Accounts
from watchrelay.publish.snapshots import REQUESTS_MAX, REQUESTS_WAITING, Schedule, Snapshot
from watchrelay.publish.tempo import Tempo

log = logging.getLogger(__name__)

BATCH_BYTES = 480 * 1024
"""Uncompressed; the producer's batch holds 512 KiB, the rest is for what the estimate misses.
Source: KAFKA 9."""
FULL_BYTES = 128 * 1024
"""A lane with this much queued does not wait for the pulse."""
FIRST_BEAT_S = 0.5
"""After the watch goes on from the log: a history that has run out is said at once, behind the
answer to the request."""
BEAT_SLOTS = 10
"""Streams beat in this many groups: one produce request serves many heartbeats, yet not all of 200
streams fall in one step."""


class StreamRelay:
    """Implements `Outbox` for the store and owns the stream's epoch.

    Use: `await claim()`, then `run()` as a task, then let the watch start; at the end stop the
    watch, `await drain()`, cancel `run()`.
    Shape: `concluded` is called when a snapshot is whole, `limit_again` reads the topic's limit
    (None: it cannot). `conflate`: past `queue_bytes` a partition's queue becomes the set of its
    keys; else the watch is not read on.
    """

    def __init__(
        self,
        spec: StreamSpec,
        *,
        sink: Sink,
        control: Control,
        state: StateView,
        metrics: StreamMetrics,
        topic_metrics: TopicMetrics,
        status: StreamStatus,
        heartbeat_interval_s: float | Tempo,
        queue_bytes: int,
        batch_bytes: int = BATCH_BYTES,
        flush_interval_s: float = 0.004,
        max_message_bytes: int = 1024 * 1024,
        conflate: bool = True,
        concluded: Callable[[], None] = lambda: None,
        limit_again: Callable[[], Awaitable[int | None]] = unread,
        pulse: Pulse | None = None,
        witness: Witness | None = None,
        rng: random.Random | None = None,
        now_s: Callable[[], float] = clock.now_s,
        wall_ms: Callable[[], int] = clock.wall_ms,
    ) -> None:
        self.spec = spec
        self._sink, self._control, self._state = sink, control, state
        self._metrics, self._status = metrics, status
        self._accounts = Accounts(
            metrics, topic_metrics, status, snapshot_interval_s=spec.snapshot_interval_s
        )
        self._tempo = (
            heartbeat_interval_s
            if isinstance(heartbeat_interval_s, Tempo)
            else Tempo(heartbeat_interval_s)
        )
        self._queue_bytes, self._batch_bytes, self._pulse = (
            queue_bytes,
            batch_bytes,
            pulse or Pulse(flush_interval_s),
        )
        self._now_s, self._wall_ms, self._concluded = now_s, wall_ms, concluded
        self._oversize = Oversize(
            spec,
            state,
            topic_metrics,
            status,
            max_message_bytes=max_message_bytes,
            limit_again=limit_again,
        )
        raw_bytes = min(SOFT_BYTES, queue_bytes // 2)
        self._queues = Conflator(
            spec.partitions,
            raw_bytes=raw_bytes,
            packed_max=self._oversize.fits_bytes,
            oversize=self._oversize.before_queueing,
            tombstones=spec.format != "cloudevents",
            bound_bytes=queue_bytes if conflate else None,
            overflown=self._overflown,
        )
        self._queues.parts = self._oversize.parts
        self._inflow = Inflow(
            self._queues,
            metrics,
            soft_bytes=raw_bytes,
            bound_bytes=None if conflate else queue_bytes,
            now_s=now_s,
        )
        self._names = [f"deliver {spec.id}/{lane}" for lane in range(spec.partitions)]
        self._schedule = Schedule(spec.snapshot_interval_s, rng or random.Random())
        self._epoch = 0
        self._origin: dict[str, object] | None = None
        self._encoder: CloudEvents | None = None
        self._course, self._witness = Course(), witness
        self._healer: Healer | None = None
        self._snapshot: Snapshot | None = None
        self._seen_ms: int | None = None
        self._snapshots, self._snapshot_began_s = 0, 0.0
        self._requests, self._closed = list[str](), False
        self._alarm = Alarm(self._pulse, now_s)
        self._tasks: asyncio.TaskGroup | None = None
        metrics.queue_capacity_bytes.set(queue_bytes)

    # ---- Outbox: called by the store's reflector -------------------------------------------------

    async def room(self) -> None:
        """Return when the queues take more. What is over the bound keeps the watch from being read
        (`overload: block`)."""
        await self._inflow.room()

    def push(self, changes: Sequence[ObjectChange], *, reason: Reason, received_s: float) -> None:
        """Queue the records of `changes`. One step with the store's change; the first list is not
        pushed (`synced`).

        Shape: the first changes after a log that is not believed are a list's; they stand within
        the first snapshot.
        """
        if self._closed or not changes:
            return
        if self._course.first:
            assert self._course.doubted, "a change before the first list was complete"
            self._begin_snapshot()
        self._queues.push(changes, reason=reason, time_ms=self._wall_ms(), received_s=received_s)
        self._wake()

    def synced(self, resource_version: str) -> None:
        """A list is complete and its difference is pushed; the first one begins the first snapshot,
        in this step."""
        if self._closed:
            return
        course = self._course
        awaited = course.relisting or not self._status.complete
        if course.synced(resource_version):
            self._queues.lower()
        if course.first:
            self._begin_snapshot()
        elif awaited and self._snapshot is None and course.published:
            course.queued(self._queues.number, self.spec.partitions)
            self._heartbeat()
            if course.snapshot_wanted and self._may_snapshot():
                self._begin_snapshot()
        self._heal(course.owed, unless_said=True)

    def progressed(self, resource_version: str) -> None:
        """Every change up to here was pushed before, or suppressed."""
        if not self._closed:
            self._course.progressed(resource_version)

    def followed(self) -> None:
        """The server accepted a watch that goes on from what is held: say soon that the log is
        alive, and whole."""
        if not self._closed and self._course.followed() and not self._status.complete:
            asyncio.get_running_loop().call_later(FIRST_BEAT_S, self._first_beat)

    def _first_beat(self) -> None:
        if self._tasks is None or self._closed or self._status.complete:
            return
        # else a list, to come or just come, tells when the state is whole
        if not (self._status.list_due or self._course.unshown):
            self._course.queued(self._queues.number, self.spec.partitions)
        self._heartbeat()

    def heard(self, at_ms: int) -> None:
        """The API server was heard."""
        self._seen_ms = at_ms

    def request_snapshot(self, request_id: str) -> None:
        """Begin a snapshot at the next beat, or when the open one has ended; its index record will
        name the request."""
        self._requests[:] = [*self._requests[1 - REQUESTS_WAITING :], request_id]

    # ---- claim, run, drain -----------------------------------------------------------------------

    async def claim(
        self, highest_epoch: Callable[[], Awaitable[int]], *, anew: bool = False
    ) -> int:
        """Open a new epoch: a claim in the control topic, then a claim marker on every partition,
        acknowledged. Source: WIRE 4.1.

        Shape: `anew`: the topic was made anew, so no starting point in it is known. Raises: Fenced
        if another writer claimed meanwhile.
        """
        assert self._encoder is None, "a relay claims once"
        stream = self.spec.id
        self._origin = origin = (
            None if anew else await self._control.origin(stream, self.spec.partitions)
        )
        self._epoch = await self._control.claim(
            stream, self.spec.description, starting_point=origin, highest_epoch=highest_epoch
        )
        self._encoder = encoder_for(self.spec, self._epoch)
        self._status.epoch = self._epoch
        self._metrics.stream_epoch.set(self._epoch)
        self._queues.mark("claim", frontier="", time_ms=self._wall_ms())
        await self._in_group(self._send_claims)
        self._tasks = None
        if self._witness is not None:
            self._healer = Healer(
                stream,
                self._epoch,
                self._witness,
                [lane.claimed_at + 1 for lane in self._queues.lanes],
            )
        return self._epoch

    @property
    def to_read(self) -> list[tuple[int | None, int]]:
        """Once claimed: per partition the starting point (None: its start) of what is to be read
        back, and where our claim stands."""
        begin = None if self._origin is None else self._origin.get("begin")
        starts = begin if isinstance(begin, list) else [None] * self.spec.partitions
        return list(zip(starts, (lane.claimed_at for lane in self._queues.lanes), strict=True))

    def resume(self, found: Found) -> None:
        """Go on from what the log says; the store was filled with the same. Shape: after `claim`,
        before `run`."""
        course = self._course
        course.resumed(found)
        if course.first:
            self._queues.doubted = frozenset(self._state.keys())
            return
        self._queues.resume(found)
        self._status.frontier = self._queues.frontier
        index = self._control.index(self.spec.id) or {}
        self._accounts.resumed(index, now_ms=self._wall_ms())
        self._schedule.resumed(
            self._now_s(),
            index,
            wall_ms=self._wall_ms(),
            records=self._queues.object_records - found.said,
        )
        if course.may_heal:
            self._heal(course.owed, unless_said=False)

    def _heal(self, owed: dict[bytes, int], *, unless_said: bool) -> None:
        """Say the true state of these keys again; `unless_said`: of those of which nothing was
        queued yet."""
        if not owed:
            return
        now_ms = self._wall_ms()
        for key, partition in owed.items():
            entry = belonging(self._state.get(key), partition)
            if entry is None or not (unless_said and entry.queued):
                self._queues.heal(key, entry, partition, time_ms=now_ms)
        log.info("stale records are healed", extra={"stream": self.spec.id, "objects": len(owed)})
        owed.clear()
        self._wake()

    async def run(self) -> None:
        """Write until cancelled. Shape: legal once claimed. Raises: Fenced when a newer writer owns
        the stream (exit 75)."""
        assert self._encoder is not None, "run before claim"
        try:
            await self._in_group(self._start)
        finally:
            self._closed = True
            self._tasks = None
            self._alarm.silence()
            self._metrics.snapshot_running.set(0)

    async def drain(self, deadline_s: float) -> bool:
        """Take nothing new, send what is queued, then a last heartbeat. True: all of it is
        acknowledged. Units: seconds from now."""
        self._closed = True
        try:
            async with asyncio.timeout(deadline_s):
                await self._settle()
                if not self._course.quiet:
                    self._queues.mark(
                        "heartbeat", frontier=self._course.frontier, time_ms=self._wall_ms()
                    )
                await self._settle()
        except TimeoutError:
            left = self._queues.held_records + self._queues.dirty_keys
            log.warning(
                "drain deadline passed", extra={"stream": self.spec.id, "records_left": left}
            )
            return False
        return True

    async def _in_group(self, start: Callable[[asyncio.TaskGroup], None]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                start(tasks)
        except BaseExceptionGroup as group:
            if group.subgroup(Fenced) is None:
                raise
            raise fenced_by(
                group, f"stream {self.spec.id}: a newer writer owns it; epoch {self._epoch} stops"
            ) from group

    def _send_claims(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._flush()

    def _start(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._alarm.ring()
        tasks.create_task(self._flush_forever(), name=f"flush {self.spec.id}")
        tasks.create_task(self._beat_forever(), name=f"beat {self.spec.id}")
        if self._healer is not None:
            tasks.create_task(self._heal_forever(self._healer), name=f"heal {self.spec.id}")

    async def _heal_forever(self, healer: Healer) -> None:
        while True:
            stale = await healer.found()
            if self._course.may_heal and not self._closed:
                self._heal(stale, unless_said=False)
            else:
                self._course.owed |= stale
            self._wake()

    async def _settle(self) -> None:
        while not self._queues.empty:
            self._alarm.ring()
            await self._inflow.progress()

    # ---- flushing --------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Something is queued: see to it that it leaves, at once if there is much of it, else with
        the pulse."""
        if self._alarm.rings() or self._tasks is None:
            return
        free = self._snapshot is not None
        for lane in self._queues.lanes:
            if lane.outstanding is None:
                if lane.waiting_bytes >= FULL_BYTES:
                    self._alarm.ring()
                    return
                free = free or bool(lane.queue) or lane.dirty is not None
            elif lane.next is None and lane.waiting_bytes >= self._batch_bytes:
                self._alarm.ring()
                return
        if not free:
            return  # every lane that holds something waits for an acknowledgement, which wakes us
        self._alarm.ring_soon()

    async def _flush_forever(self) -> None:
        while True:
            await self._alarm.wait()
            self._flush()

    def _flush(self) -> None:
        """Hand over what can be, on all partitions in one step: one outstanding batch each, the
        next one built if it is a full one."""
        assert self._tasks is not None
        self._step_snapshot()
        for lane in self._queues.lanes:
            if lane.dirty is not None and lane.outstanding is None:
                self._refill(lane)
            if not lane.queue:
                continue
            if lane.outstanding is None:
                lane.outstanding = self._cut(lane)
                self._tasks.create_task(self._deliver(lane), name=self._names[lane.partition])
            elif lane.next is None and lane.waiting_bytes >= self._batch_bytes:
                lane.next = self._cut(lane)
        self._accounts.queued(self._queues, self._now_s())

    def _refill(self, lane: Lane) -> None:
        """Past the bound, and the partition can send: queue a batch of what leads to the present
        state."""
        queues, now_ms = self._queues, self._wall_ms()
        if not queues.refill(lane, self._state.get, time_ms=now_ms, limit_bytes=self._batch_bytes):
            if not lane.queue:
                # nothing had to be said of the keys looked at: no receipt will come to wake us
                self._alarm.ring()
            return
        if not (self._course.quiet or self._closed):
            queues.mark_lane(lane, "heartbeat", frontier=self._course.frontier, time_ms=now_ms)
        if queues.empty:
            self._inflow.progressed()

    def _overflown(self) -> None:
        """A partition's queue became a set: an open snapshot is void on all of them. Source: WIRE
        4.3."""
        self._accounts.overflown(self._queues, self._now_s())
        snapshot = self._snapshot
        if snapshot is not None and not snapshot.complete:
            self._snapshot, self._course.snapshot_wanted = None, True
            self._requests[:0] = snapshot.requests
            self._metrics.snapshot_running.set(0)
            log.info(
                "snapshot is void: the queue overflowed",
                extra={"stream": self.spec.id, "snapshot": snapshot.id},
            )

    def _cut(self, lane: Lane) -> Cut:
        assert self._encoder is not None
        return lane.cut(
            self._encoder, self._state.unpack, limit_bytes=self._batch_bytes, seen_ms=self._seen_ms
        )

    async def _deliver(self, lane: Lane) -> None:
        while (cut := lane.outstanding) is not None:
            try:
                receipt = await self._sink.deliver(
                    Batch(self.spec.topic, lane.partition, cut.records, self.spec.id)
                )
            except RecordTooLarge as error:
                if error.acked:
                    self._acked(lane, lane.split(len(error.acked)), Receipt(list(error.acked)))
                if self._oversize.refused(self._queues, lane, error):
                    lane.outstanding = self._cut(lane) if lane.queue else None
                    self._inflow.progressed()
                else:
                    await self._oversize.wait(self._queues, lane.partition, error)
            else:
                self._acked(lane, cut, receipt)
                self._oversize.taken(lane.partition)
            if self._control.outclaimed(self.spec.id, self._epoch):
                raise Fenced(f"stream {self.spec.id}: a newer claim was read")
        if lane.queue or self._snapshot is not None or lane.dirty is not None:
            self._wake()

    def _acked(self, lane: Lane, cut: Cut, receipt: Receipt) -> None:
        self._queues.settled(lane, cut, receipt.offsets)
        if self._healer is not None:
            self._healer.acked(lane.partition, receipt.offsets, cut.before[0] + 1)
        self._accounts.acked(cut, self._queues, self._now_s())
        for handed in cut.markers:
            self._marker_acked(lane, handed, receipt.offsets[handed.index])
        self._inflow.progressed()

    # ---- markers and snapshots -------------------------------------------------------------------

    async def _beat_forever(self) -> None:
        place, tempo = zlib.crc32(self.spec.id.encode()) % BEAT_SLOTS / BEAT_SLOTS, self._tempo
        while True:
            now_s = self._now_s()
            beat_s = tempo.next_s(now_s, place)
            wait_s = beat_s - now_s
            if self._may_snapshot() and (snapshot_s := self._schedule.wait_s(now_s)) is not None:
                wait_s = min(wait_s, max(snapshot_s, 0.01))
            await tempo.sleep(wait_s)
            if self._control.outclaimed(self.spec.id, self._epoch):
                raise Fenced(f"stream {self.spec.id}: a newer claim was read")
            if not self._closed:
                if self._now_s() >= beat_s:
                    self._heartbeat()
                await self._snapshot_if_due()

    def _heartbeat(self) -> None:
        """A heartbeat on each partition that is not still busy with older ones: while Kafka is away
        they must not pile up."""
        self._accounts.queued(self._queues, self._now_s())
        if self._course.quiet:
            return
        self._queues.beat(frontier=self._course.frontier, time_ms=self._wall_ms())
        self._wake()

    def _may_snapshot(self) -> bool:
        return (
            self._snapshot is None
            and self._course.may_snapshot
            and not self._queues.conflating
            and not self._closed
        )

    async def _snapshot_if_due(self) -> None:
        due = self._schedule.due(
            self._now_s(), records=self._queues.object_records, live=len(self._state)
        )
        if self._may_snapshot() and (due or self._requests or self._course.snapshot_wanted):
            await self._oversize.before_snapshot(self._queues)
            if self._may_snapshot():
                self._begin_snapshot()

    def _begin_snapshot(self) -> None:
        """Queue begin on every partition; its frontier is the old one, "0" for the first (WIRE
        4.2)."""
        assert self._encoder is not None, "a list before the claim"
        course = self._course
        first, course.first, course.snapshot_wanted = course.first, False, False
        self._snapshots += 1
        keys = self._state.keys()
        self._oversize.forget_gone()
        if first:
            self._queues.unpublished = {*keys, *self._queues.doubted}
        snapshot = Snapshot(
            f"{self._epoch}-{self._snapshots}",
            keys=keys,
            begun_at=self._queues.number,
            partitions=self.spec.partitions,
            first=first,
            requests=tuple(self._requests[:REQUESTS_MAX]),
        )
        del self._requests[:REQUESTS_MAX]
        self._snapshot, self._snapshot_began_s = snapshot, self._now_s()
        self._schedule.restarted(self._snapshot_began_s, self._queues.object_records)
        self._queues.mark(
            "begin", frontier=self._course.frontier, time_ms=self._wall_ms(), snapshot=snapshot.id
        )
        self._metrics.snapshot_running.set(1)
        log.info(
            "snapshot begun",
            extra={"stream": self.spec.id, "snapshot": snapshot.id, "objects": len(keys)},
        )
        self._wake()

    def _step_snapshot(self) -> None:
        """Queue the next chunk of an open snapshot as far as there is room, or its end."""
        snapshot = self._snapshot
        if snapshot is None or self._closed:
            return
        lanes, now_ms, queues, place = (
            self._queues.lanes,
            self._wall_ms(),
            self._queues,
            snapshot.place,
        )
        # the rest is for live events: over the bound they would void it
        room_bytes = self._queue_bytes // 2
        if snapshot.cutting and queues.held_bytes <= room_bytes:
            ahead = snapshot.ahead_bytes(self._now_s(), queues.object_records)
            left = snapshot.chunk(
                self._state.get,
                lambda partition: (
                    lanes[partition].takes_reads(ahead) and queues.held_bytes <= room_bytes
                ),
                lambda key, entry: queues.read(key, entry, time_ms=now_ms),
            )
            if left and all(not lane.queue and lane.outstanding is None for lane in lanes):
                # a step that only passed keys over: no receipt will come to wake us
                self._alarm.ring()
        self._inflow.stepped(cutting=snapshot.cutting, moved=snapshot.place != place)
        if (
            self._healer is None or self._healer.may_end(snapshot.id, said=snapshot.said)
        ) and snapshot.ready_to_end():
            self._course.published = True
            queues.mark("end", frontier=self._course.frontier, time_ms=now_ms, snapshot=snapshot.id)

    def _marker_acked(self, lane: Lane, handed: Handed, offset: int) -> None:
        said, snapshot = handed.said, self._snapshot
        if said.kind == "claim":
            return
        self._status.frontier = self._queues.frontier
        if (
            said.kind == "heartbeat"
            and not self._status.list_due
            and self._course.shown(lane.partition, handed.behind)
        ):
            self._status.complete = True
        if snapshot is None or said.snapshot != snapshot.id:
            return
        if said.kind == "begin":
            snapshot.begin_acked(lane.partition, offset)
        elif said.kind == "end":
            snapshot.end_acked(lane.partition, offset=offset, count=said.count, digest=said.digest)
            if snapshot.complete:
                assert self._tasks is not None
                self._status.complete = True
                self._queues.doubted = frozenset()
                self._tasks.create_task(
                    self._conclude(snapshot, said.frontier), name=f"snapshot {self.spec.id}"
                )

    async def _conclude(self, snapshot: Snapshot, frontier: str) -> None:
        now_ms = self._wall_ms()
        await self._control.write(
            "snapshot",
            self.spec.id,
            snapshot.index_value(epoch=self._epoch, frontier=frontier, time_ms=now_ms),
        )
        self._snapshot, took_s = None, self._now_s() - self._snapshot_began_s
        self._concluded()
        self._accounts.concluded(snapshot, live=len(self._state), took_s=took_s, now_ms=now_ms)
