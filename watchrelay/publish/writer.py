"""One stream's writer: changes in, acknowledged records out.

It gives the events to `machine.py` and performs their effects. Tasks of one stream: a heartbeat
task (heartbeats, ownership check, due snapshots), one for repairs, and short ones where a step must
wait: to prepare a snapshot, to write its index record, to adjust a batch that the topic refused.
Flushes, acknowledgements and early heartbeats are callbacks; what they raise ends the tasks, and so
the stream.
"""

from __future__ import annotations

import asyncio
import logging
import random
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from watchrelay.contract.control_state import Origin, claim_origins
from watchrelay.contract.records import CloudEvents, encoder_for
from watchrelay.contract.wire import Batch, Reason, Receipt
from watchrelay.core.errors import Fenced, RecordTooLarge, fenced_by
from watchrelay.model.changes import ObjectChange
from watchrelay.model.streams import StreamSpec
from watchrelay.publish import machine
from watchrelay.publish.backpressure import SOFT_BYTES, Backpressure
from watchrelay.publish.machine import (
    AwaitedHeartbeats,
    AwaitingList,
    Draining,
    Effect,
    Event,
    Phase,
)
from watchrelay.publish.oversize import Oversize
from watchrelay.publish.partition_queue import PartitionQueue, RenderedBatch, RenderedMarker
from watchrelay.publish.ports import GapReader, WriterContext
from watchrelay.publish.recovery import ListAndDiff, RecoveredState
from watchrelay.publish.repairs import RepairQueue
from watchrelay.publish.reporting import PublishReporter
from watchrelay.publish.snapshots import Snapshot, SnapshotSchedule
from watchrelay.publish.stale_records import StaleRecordFinder
from watchrelay.publish.stream_queues import StreamQueues
from watchrelay.publish.timing import FlushTimer, FlushTrigger

log = logging.getLogger(__name__)

FLUSH_NOW_BYTES = 128 * 1024
"""A partition with this much queued, and no batch in flight, is flushed at once."""
EARLY_HEARTBEAT_S = 0.5
"""From the moment when a watch is accepted to the early heartbeat: a server whose history
has expired sends its 410 within this time."""
RELEASE_WAIT_S = 1.0
"""How long a writer that takes over waits for the last records of a running one
(docs/record-contract.md, section 4)."""
HEARTBEAT_SLOTS = 10
"""Streams send heartbeats in this many groups: one produce request serves many heartbeats, yet 200
streams do not all send at once."""


class StreamWriter:
    """The writer of one stream: publishes its changes and owns its epoch. As `ChangePublisher` it
    is called by the reflector (store/reflector.py), which applies watch events to the store.

    Use: `await claim()`, read back what `to_read` says into the store, `resume()` with the result,
    `run()` as a task, then start the watch; at the end stop the watch, `await drain()`, cancel
    `run()`. "In the same step" means without an `await` in between.
    """

    def __init__(self, spec: StreamSpec, context: WriterContext) -> None:
        self.spec, self._context = spec, context
        self._control, self._store = context.control, context.store
        self._now_s, self._wall_ms = context.now_s, context.wall_ms
        bound_bytes = context.queue_bytes
        soft_bytes = min(SOFT_BYTES, bound_bytes // 2)
        self._reporter = PublishReporter(spec, context)
        self._oversize = Oversize(spec, context)
        self._queues = StreamQueues(
            spec.own_partitions,
            soft_bytes=soft_bytes,
            fitting=self._oversize.fitting,
            settle=self._store.settle if self._store.counts else None,
            trailing_tombstones=spec.format != "cloudevents",
            bound_bytes=bound_bytes if context.conflate else None,
            partition_conflated=self._partition_conflated,
        )
        self._backpressure = Backpressure(self._queues, context, soft_bytes=soft_bytes)
        self._flush_trigger = FlushTrigger(
            context.flush_timer or FlushTimer(), partial(self._guarded, self._flush)
        )
        self._schedule = SnapshotSchedule(spec.snapshot_interval_s, context.rng or random.Random())
        self._snapshot: Snapshot | None = None
        self._repairs = RepairQueue(self._queues, context.store.get, room_bytes=context.room_bytes)
        self._stale_finder: StaleRecordFinder | None = None
        self._phase: Phase = AwaitingList()
        self._epoch = 0
        self._starting_point: dict[str, object] | None = None
        self._encoder: CloudEvents | None = None
        self._tasks: asyncio.TaskGroup | None = None

    # ---- ChangePublisher: called by the reflector ------------------------------------------------

    async def room(self) -> None:
        """Return when the queues take more; over the bound, `overload: block` waits here."""
        await self._backpressure.room()

    def has_room(self) -> bool:
        """Whether `room` returns at once."""
        return self._backpressure.has_room()

    def push(
        self, changes: Sequence[ObjectChange], *, reason: Reason, received_at_s: float
    ) -> None:
        """Queue the records of `changes`, in the same step as the change of the store.

        What comes of the first list depends on the log. Empty: nothing is pushed, and
        `list_completed` begins the first snapshot. Verified (`ListAndDiff`): the difference is
        pushed, and there is no first snapshot. Unverified (`log_unverified`): the difference is
        pushed, and its first change begins the first snapshot.
        """
        if not changes or isinstance(self._phase, Draining):
            return
        if isinstance(self._phase, AwaitingList):
            self._handle(machine.FirstChange())
        self._queues.push(
            changes, reason=reason, time_ms=self._wall_ms(), received_at_s=received_at_s
        )
        self._request_flush()

    def list_completed(self, resource_version: str) -> None:
        """Note a complete list whose difference is pushed; in `AwaitingList` it begins the first
        snapshot in the same step."""
        floors = frozenset(queue.frontier_floor for queue in self._queues.partitions)
        # `list_due` is still set, for this list
        self._handle(machine.ListCompleted(resource_version, self._awaited_now(), floors))

    def version_reached(self, resource_version: str) -> None:
        """Note that every change up to this version was pushed or suppressed."""
        self._handle(machine.VersionReached(resource_version))

    def resource_removed(self) -> None:
        """Note that the resource is no longer served; the removal of its objects follows."""
        self._handle(machine.ResourceRemoved())

    def server_seen(self, at_ms: int) -> None:
        """Note that the API server sent something, and that all changes that it sent are pushed.
        Wall milliseconds."""
        self._queues.seen_ms = at_ms

    # ---- called by the watcher, and for requests on the signal topic -----------------------------

    def watch_accepted(self) -> None:
        """The API server accepted a watch that continues from the held state. In `Replaying` and
        `Live`, an early heartbeat then shows that the log is complete, unless one did before."""
        self._handle(machine.WatchAccepted())

    def request_snapshot(self, request_id: str) -> None:
        """Begin a snapshot at the next heartbeat, or after the running one; its index record names
        the request."""
        self._schedule.request(request_id)

    # ---- claim, run, drain -----------------------------------------------------------------------

    async def claim(
        self,
        highest_epoch: Callable[[], Awaitable[int]],
        *,
        recreated: bool = False,
        awaits_release: bool = False,
    ) -> int:
        """Open a new epoch: a claim in the control topic, then an acknowledged claim marker on
        every partition.

        Args:
            highest_epoch: Returns the highest epoch on the topic.
            recreated: The topic was recreated, so no starting point in it is known.
            awaits_release: The writer of the newest claim is alive and hands the stream over: its
                last records are to be before the markers.

        Raises:
            Fenced: Another writer claimed meanwhile.
        """
        assert self._encoder is None, "a writer claims once"
        stream, transactions = self.spec.id, self._context.transactions
        if not recreated:
            self._starting_point = await self._control.read_starting_point(
                stream, self.spec.partitions
            )
        previous = self._control.newest_claims(stream) if awaits_release else {}
        self._epoch = await self._control.claim(
            stream,
            self.spec.description,
            starting_point=self._starting_point,
            highest_epoch=highest_epoch,
            transactional_id="" if transactions is None else transactions.id,
        )
        self._encoder = encoder_for(self.spec, self._epoch)
        self._reporter.claimed(self._epoch)
        if previous:
            await self._await_release(previous)
        if transactions is not None:
            await transactions.begin(self._epoch)
        self._queues.mark("claim", frontier="", time_ms=self._wall_ms())
        await self._run_tasks(self._send_claim_markers)
        if (reader := self._context.gap_reader) is not None:
            queues = self._queues.partitions
            checked = {each.partition: each.claim_marker_offset + 1 for each in queues}
            self._stale_finder = StaleRecordFinder(
                stream, self._epoch, reader, checked, lambda key: self._store.get(key) is not None
            )
        return self._epoch

    async def _await_release(self, previous: Mapping[str, int]) -> None:
        began_at_s = self._now_s()
        released = await self._control.released(previous, within_s=RELEASE_WAIT_S)
        took_s, epoch = round(self._now_s() - began_at_s, 3), max(previous.values())
        extra = {"stream": self.spec.id, "epoch": epoch, "released": released, "took_s": took_s}
        log.info("waited for the previous writer", extra=extra)
        self._check_ownership()

    @property
    def to_read(self) -> dict[int, tuple[int | None, int]]:
        """By partition, the offsets to read back: the starting point (None: the earliest) and that
        of our claim marker. Legal after `claim`."""
        starts = claim_origins(self._starting_point, self.spec.partitions)
        return {
            queue.partition: (
                starts.get(queue.partition, Origin()).offset,
                queue.claim_marker_offset,
            )
            for queue in self._queues.partitions
        }

    def resume(self, recovered: RecoveredState) -> None:
        """Continue from the recovered log, whose entries the store holds; call it after `claim` and
        before `run`."""
        queues, decision = self._queues, recovered.decision
        self._phase = machine.start(decision, recovered.newest_on_log)
        self._repairs.found |= recovered.pending_repairs
        if isinstance(self._phase, AwaitingList):
            queues.unverified_keys = frozenset(self._store.keys())
            return
        queues.resume(recovered)
        for key in recovered.trimmed:
            if (entry := self._store.get(key)) is not None:
                self._store.published_in_part(entry)
        index, now_ms = self._control.index(self.spec.id) or {}, self._wall_ms()
        self._reporter.resumed(queues, index, now_ms=now_ms)
        records = queues.object_records - recovered.records_since_snapshot
        self._schedule.resumed(self._now_s(), index, wall_ms=now_ms, records=records)
        if isinstance(decision, ListAndDiff):
            self._schedule.wanted = decision.config_changed or any(
                queue.last_snapshot is None for queue in queues.partitions
            )
        self._repair_keys()

    async def run(self) -> None:
        """Publish until cancelled; call it after `claim`.

        Raises:
            Fenced: A newer writer owns the stream. A single relay then ends with exit code 75; a
                replica makes the stream a standby.
        """
        assert self._encoder is not None, "run before claim"
        with self._reporter.showing_age(self._queues):
            try:
                await self._run_tasks(self._start)
            finally:
                self._phase = Draining()

    async def drain(self, within_s: float) -> bool:
        """Stop accepting changes, send what is queued and a last heartbeat.

        Returns: Whether everything was acknowledged within `within_s`.
        """
        self._handle(machine.DrainBegun())
        try:
            async with asyncio.timeout(within_s):
                await self._send_all()
                last = self._phase.frontier if isinstance(self._phase, Draining) else None
                if last is not None and not self._context.must_stop(self._epoch):
                    self._queues.mark("heartbeat", frontier=last, time_ms=self._wall_ms())
                await self._send_all()
        except TimeoutError:
            left = self._queues.queued_records + self._queues.dirty_keys
            left += len(self._repairs.waiting)
            extra = {"stream": self.spec.id, "records_left": left}
            log.warning("drain deadline passed", extra=extra)
            return False
        return True

    async def _send_all(self) -> None:
        while self._repairs.waiting or not self._queues.empty:
            self._flush_trigger.now()
            await self._backpressure.next_progress()

    def _send_claim_markers(self, tasks: asyncio.TaskGroup) -> None:
        tasks.create_task(self._send_all(), name=f"claim {self.spec.id}")

    async def _run_tasks(self, start: Callable[[asyncio.TaskGroup], None]) -> None:
        try:
            with self._reporter.showing_queues(self._queues):
                async with asyncio.TaskGroup() as self._tasks:
                    start(self._tasks)
        except BaseExceptionGroup as group:
            if group.subgroup(Fenced) is None:
                raise
            message = f"a newer writer owns the stream; epoch {self._epoch} stops"
            raise fenced_by(group, f"stream {self.spec.id}: {message}") from group
        finally:
            self._tasks = None
            self._oversize.ended()
            self._flush_trigger.cancel()
            for queue in self._queues.partitions:
                if queue.delivery is not None:
                    self._context.sink.withdraw(queue.delivery)
                    queue.delivery = None

    def _guarded(self, step: Callable[..., None], *arguments: Any) -> None:
        """Perform a step outside of any task; an exception of it ends the stream's tasks. Without
        running tasks nothing is done: the writer has not started, or has ended."""
        if self._tasks is not None:
            try:
                step(*arguments)
            except Exception as error:  # noqa: BLE001 - whatever it is, it ends the tasks
                self._spawn(_raise(error), "failure")

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        """Run `work` as a task of the stream, unless its tasks are ending already."""
        assert self._tasks is not None, "work comes while the tasks run"
        try:
            self._tasks.create_task(work, name=f"{name} {self.spec.id}")
        except RuntimeError:
            work.close()

    def _start(self, tasks: asyncio.TaskGroup) -> None:
        self._flush_trigger.now()
        tasks.create_task(self._heartbeat_forever(), name=f"heartbeat {self.spec.id}")
        if self._stale_finder is not None:
            tasks.create_task(self._repair_stale(self._stale_finder), name=f"repair {self.spec.id}")

    # ---- the machine -----------------------------------------------------------------------------

    def _handle(self, event: Event) -> None:
        self._phase, effects = machine.step(self._phase, event)
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Effect.BEGIN_FIRST_SNAPSHOT:
                self._begin_snapshot(first=True)
            case Effect.BEGIN_WANTED_SNAPSHOT:
                if self._schedule.wanted and self._may_snapshot():
                    self._begin_snapshot()
            case Effect.LOWER_FRONTIER:
                self._queues.lower_frontier()
            case Effect.HEARTBEAT:
                self._heartbeat()
            case Effect.HEARTBEAT_SOON:
                loop = asyncio.get_running_loop()
                loop.call_later(EARLY_HEARTBEAT_S, self._guarded, self._early_heartbeat)
            case Effect.REPAIR:
                self._repair_keys()
            case Effect.REPORT_COMPLETE:
                self._context.progress.whole = True

    def _awaited_now(self) -> AwaitedHeartbeats:
        """Heartbeats queued now confirm the state of now."""
        return AwaitedHeartbeats(
            frozenset(self._queues.by_partition), self._queues.last_record_number
        )

    def _early_heartbeat(self) -> None:
        self._handle(machine.EarlyHeartbeatDue(self._awaited_unless_list_due()))

    def _awaited_unless_list_due(self) -> AwaitedHeartbeats | None:
        # until the list is done, the state is not complete
        return None if self._context.progress.list_due else self._awaited_now()

    async def _repair_stale(self, finder: StaleRecordFinder) -> None:
        while True:
            stale = await finder.stale_keys()
            # no await before: the gaps count as checked, a snapshot may end once these are queued
            self._repairs.found |= stale
            self._repair_keys()
            # also with nothing to repair: a snapshot may have waited for this check
            self._request_flush()

    def _repair_keys(self) -> None:
        """Publish the true state of the keys found stale, if the phase permits it."""
        repairs = self._repairs
        if repairs.found and machine.may_repair(self._phase):
            extra = {"stream": self.spec.id, "objects": len(repairs.found)}
            log.info("repairing stale records", extra=extra)
            repairs.permit()
            self._step_repairs()
            self._request_flush()

    def _step_repairs(self) -> None:
        has_room = self._repairs.step(time_ms=self._wall_ms())
        if not self._repairs.waiting:
            self._backpressure.room_made()  # a drain may wait for this alone
        elif has_room:
            self._flush_trigger.now()  # without room, the next receipt leads to a flush

    # ---- flushing --------------------------------------------------------------------------------

    def _request_flush(self) -> None:
        """Request a flush if something can be sent: at once if it is much, else the next common
        flush. What waits for an acknowledgement is flushed after that."""
        if self._flush_trigger.is_due_now or self._tasks is None:
            return
        can_send = self._snapshot is not None or bool(self._repairs.waiting)
        for queue in self._queues.partitions:
            if queue.outstanding is None:
                if queue.waiting and queue.waiting_bytes >= FLUSH_NOW_BYTES:
                    self._flush_trigger.now()
                    return
                can_send = can_send or bool(queue.waiting) or queue.dirty is not None
            elif queue.next is None and queue.waiting_bytes >= self._context.batch_bytes:
                self._flush_trigger.now()
                return
        if can_send:
            self._flush_trigger.soon()

    def _flush(self) -> None:
        """Send what can be sent on all partitions in one step: one outstanding batch each, and the
        next one rendered if it is full."""
        self._check_ownership()
        if self._repairs.waiting:
            self._step_repairs()
            if not self._repairs.waiting:
                self._heartbeat()  # while they wait, none is queued
        if self._snapshot is not None:
            self._step_snapshot()
        for queue in self._queues.partitions:
            if queue.dirty is not None and queue.outstanding is None:
                self._refill(queue)
            if not queue.waiting:
                continue
            if queue.outstanding is None:
                self._send(queue, self._render(queue))
            elif queue.next is None and queue.waiting_bytes >= self._context.batch_bytes:
                queue.next = self._render(queue)
        if self._queues.skipped is not None:
            self._reporter.skipped(self._queues, self._now_s())

    def _refill(self, queue: PartitionQueue) -> None:
        """Queue a batch of dirty keys of a conflated partition."""
        queues, now_ms = self._queues, self._wall_ms()
        if not queues.refill(
            queue, self._store.get, time_ms=now_ms, limit_bytes=self._context.batch_bytes
        ):
            if not queue.waiting:
                # no key examined needed a record: no receipt will wake us
                self._flush_trigger.now()
            return
        if machine.may_send_heartbeat(self._phase) and not self._repairs.waiting:
            frontier = machine.frontier(self._phase)
            queues.mark_partition(queue, "heartbeat", frontier=frontier, time_ms=now_ms)
        if queues.empty:
            self._backpressure.room_made()

    def _partition_conflated(self) -> None:
        """Report a conflated partition, and abandon the running snapshot."""
        self._reporter.partition_conflated(self._queues, self._now_s())
        snapshot = self._snapshot
        if snapshot is not None and not snapshot.complete:
            self._snapshot, self._queues.snapshot_remaining = None, set()
            self._schedule.abandoned(snapshot)
            self._reporter.snapshot_abandoned(snapshot)

    def _render(self, queue: PartitionQueue, *, limit_records: int | None = None) -> RenderedBatch:
        assert self._encoder is not None
        return queue.render(
            self._encoder,
            self._store.unpack,
            limit_bytes=self._context.batch_bytes,
            limit_records=limit_records,
        )

    def _send(self, queue: PartitionQueue, batch: RenderedBatch) -> None:
        queue.outstanding = batch
        queue.delivery = self._context.sink.send(
            Batch(self.spec.topic, queue.partition, batch.records, self.spec.id),
            partial(self._guarded, self._answered, queue, batch),
        )

    def _answered(
        self, queue: PartitionQueue, batch: RenderedBatch, answer: Receipt | Exception
    ) -> None:
        queue.delivery = None
        if isinstance(answer, RecordTooLarge):
            self._spawn(self._refused(queue, answer), "refused")
            return
        if isinstance(answer, Exception):
            raise answer
        self._acked(queue, batch, answer.offsets)
        self._oversize.accepted(queue.partition)
        self._send_next(queue)

    def _send_next(self, queue: PartitionQueue) -> None:
        if queue.outstanding is not None:
            self._check_ownership()
            self._send(queue, queue.outstanding)
        elif queue.waiting or queue.dirty is not None or self._snapshot or self._repairs.waiting:
            self._request_flush()

    def _check_ownership(self) -> None:
        if self._context.must_stop(self._epoch):
            raise Fenced(f"stream {self.spec.id}: a newer claim was read")

    async def _refused(self, queue: PartitionQueue, error: RecordTooLarge) -> None:
        """Render again what was not appended, with less of the refused object or without it."""
        queue.put_back()
        if appended := len(error.acked):
            # the same records with the same sequences: count what is on the log
            queue.outstanding = self._render(queue, limit_records=appended)
            self._acked(queue, queue.outstanding, error.acked)
        adjusted = self._oversize.shrink_or_withhold(self._queues, queue, error.index - appended)
        queue.outstanding = self._render(queue) if queue.waiting else None
        if adjusted:
            self._backpressure.room_made()
        else:
            await self._oversize.wait(queue.partition, error)
        self._send_next(queue)

    def _acked(self, queue: PartitionQueue, batch: RenderedBatch, offsets: Sequence[int]) -> None:
        self._queues.acked(queue, batch, offsets)
        if self._stale_finder is not None:
            self._stale_finder.acked(queue.partition, offsets, batch.start[0] + 1)
        self._reporter.acked(batch, self._queues, self._now_s())
        for rendered in batch.markers:
            self._marker_acked(queue, rendered, offsets[rendered.index])
        self._backpressure.room_made()

    # ---- markers and snapshots -------------------------------------------------------------------

    async def _heartbeat_forever(self) -> None:
        slot = zlib.crc32(self.spec.id.encode()) % HEARTBEAT_SLOTS / HEARTBEAT_SLOTS
        interval = self._context.heartbeat_interval
        while True:
            now_s = self._now_s()
            heartbeat_at_s = until_s = interval.next_at_s(now_s, slot)
            if self._may_snapshot() and (wait_s := self._schedule.wait_s(now_s)) is not None:
                # not at once: a timer may fire a moment before its time
                until_s = min(heartbeat_at_s, now_s + max(wait_s, 0.01))
            await interval.sleep(now_s, until_s)
            self._check_ownership()
            if self._now_s() >= heartbeat_at_s:
                self._heartbeat()
            records, objects = self._queues.object_records, len(self._store)
            due = self._schedule.due(self._now_s(), records=records, objects=objects)
            if due and self._may_snapshot():
                # a task of its own: it may wait for a broker, and a heartbeat may not
                self._schedule.preparing = True
                self._spawn(self._prepare_snapshot(), "snapshot")

    def _heartbeat(self) -> None:
        """Queue a heartbeat on each partition, unless repairs are to come before it."""
        if self._queues.skipped is not None:
            self._reporter.skipped(self._queues, self._now_s())
        if machine.may_send_heartbeat(self._phase) and not self._repairs.waiting:
            self._queues.heartbeat(frontier=machine.frontier(self._phase), time_ms=self._wall_ms())
            self._request_flush()
            if (reader := self._context.gap_reader) is not None and self._may_snapshot():
                self._replace_removed_snapshot(reader)

    def _replace_removed_snapshot(self, reader: GapReader) -> None:
        """Let a snapshot begin where the log of a partition starts after the begin of the newest
        one: objects that have not changed since may have no record."""
        for queue in self._queues.partitions:
            if (last := queue.last_snapshot) is None:
                continue
            start = reader.log_start(queue.partition)
            if start > last.begin_offset and self._schedule.want_again(self._now_s()):
                extra = {
                    "stream": self.spec.id,
                    "topic": self.spec.topic,
                    "partition": queue.partition,
                    "log_start": start,
                    "snapshot": last.id,
                    "begin": last.begin_offset,
                    "hint": "find out who deletes records, or whether retention is too short",
                }
                log.warning("records removed: publishing a snapshot", extra=extra)
                return

    def _may_snapshot(self) -> bool:
        idle = self._snapshot is None and not self._queues.conflating and not self._repairs.waiting
        ready = not self._schedule.preparing and not self._store.in_difference
        return idle and ready and machine.may_snapshot(self._phase)

    async def _prepare_snapshot(self) -> None:
        await self._oversize.before_snapshot(self._queues)
        self._schedule.preparing = False
        if self._may_snapshot():
            self._begin_snapshot()

    def _begin_snapshot(self, *, first: bool = False) -> None:
        """Queue begin on every partition, with the frontier reached so far, "0" for the first.
        `first`: as in `StreamQueues.begin_snapshot`."""
        assert self._encoder is not None, "a snapshot before the claim"
        queues, keys, now_s = self._queues, self._store.keys(), self._now_s()
        queues.begin_snapshot(keys, first=first)
        requests = self._schedule.begun(now_s, queues.object_records)
        self._snapshot = snapshot = Snapshot(
            f"{self._epoch}-{self._schedule.number}",
            keys=keys,
            partitions=len(self._queues.partitions),
            began_at_s=now_s,
            requests=requests,
        )
        frontier, now_ms = machine.frontier(self._phase), self._wall_ms()
        queues.mark("begin", frontier=frontier, time_ms=now_ms, snapshot=snapshot.id)
        self._reporter.snapshot_started(snapshot, objects=len(keys))
        self._request_flush()

    def _step_snapshot(self) -> None:
        """Queue the next members of the running snapshot as far as there is room, or its end."""
        snapshot, queues = self._snapshot, self._queues
        if snapshot is None or isinstance(self._phase, Draining):
            return
        now_ms, partitions, examined = self._wall_ms(), queues.by_partition, snapshot.examined
        room_bytes = self._context.room_bytes
        if snapshot.keys_left and queues.queued_bytes <= room_bytes:
            members_limit_bytes = snapshot.members_limit_bytes(self._now_s(), queues.object_records)
            snapshot.queue_members(
                queues.snapshot_remaining,
                self._store.get,
                lambda partition: (
                    partitions[partition].takes_members(members_limit_bytes)
                    and queues.queued_bytes <= room_bytes
                ),
                lambda key, entry: queues.push_member(key, entry, time_ms=now_ms),
            )
            if not any(queue.waiting or queue.outstanding for queue in queues.partitions):
                # a step that only passed keys over: no receipt will wake us
                self._flush_trigger.now()
        self._backpressure.snapshot_stepped(
            keys_left=snapshot.keys_left, moved=snapshot.examined != examined
        )
        may_end = self._stale_finder is None or self._stale_finder.may_end(
            snapshot.id, ready_to_end=snapshot.ready_to_end
        )
        if may_end and not self._repairs.waiting and snapshot.take_end():
            self._handle(machine.SnapshotEndDue(self._awaited_unless_list_due()))
            frontier = machine.frontier(self._phase)
            queues.mark("end", frontier=frontier, time_ms=now_ms, snapshot=snapshot.id)

    def _marker_acked(self, queue: PartitionQueue, rendered: RenderedMarker, offset: int) -> None:
        marker, snapshot = rendered.marker, self._snapshot
        if marker.kind == "claim":
            return
        # as in `_awaited_unless_list_due`
        if marker.kind != "begin" and not self._context.progress.list_due:
            self._handle(machine.MarkerAcked(queue.partition, rendered.after_record))
        if snapshot is None or marker.snapshot != snapshot.id:
            return
        if marker.kind == "begin":
            snapshot.begin_acked(queue.partition, offset)
        else:
            snapshot.end_acked(
                queue.partition, offset=offset, count=marker.count, digest=marker.digest
            )
            if snapshot.complete:
                self._queues.unverified_keys = frozenset()
                # the ends' frontiers may differ (`frontier_floor`): the index record has the lowest
                frontier = self._queues.frontier or "0"
                self._spawn(self._write_index_record(snapshot, frontier), "snapshot")

    async def _write_index_record(self, snapshot: Snapshot, frontier: str) -> None:
        now_ms = self._wall_ms()
        value = snapshot.index_value(epoch=self._epoch, frontier=frontier, time_ms=now_ms)
        await self._control.write("snapshot", self.spec.id, value)
        self._snapshot = None
        self._context.snapshot_completed()
        took_s = self._now_s() - snapshot.began_at_s
        self._reporter.snapshot_completed(
            snapshot, objects=len(self._store), took_s=took_s, now_ms=now_ms
        )


async def _raise(error: Exception) -> None:
    raise error
