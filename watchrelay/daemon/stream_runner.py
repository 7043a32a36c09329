"""Runs one stream: topic, claim, log, then watch, store and writer until it is stopped."""

from __future__ import annotations

import asyncio
import logging
from functools import cached_property
from typing import Literal

from watchrelay.config.streams import what_counts
from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.beside import beside
from watchrelay.core.errors import (
    EpochSpoiled,
    Fenced,
    ForeignRecords,
    Shared,
    TopicLost,
    TopicRefused,
    fenced_by,
    first_cause,
)
from watchrelay.core.tasks import UnexpectedErrors, first_of, must_run, unless
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.daemon.context import DaemonContext
from watchrelay.daemon.recovery import LogFold, LogReader, resume
from watchrelay.daemon.stream_topic import REFUSED, StreamTopic
from watchrelay.kafka.stream_transactions import StreamTransactions
from watchrelay.kafka.topic_reads import TopicReads
from watchrelay.model.progress import StreamProgress
from watchrelay.model.streams import StreamSpec
from watchrelay.observe.metrics import StreamMetrics
from watchrelay.observe.status import index_problem
from watchrelay.plan.kafka import transactional_id
from watchrelay.plan.streams import PlannedStream
from watchrelay.publish.ports import WriterContext
from watchrelay.publish.recovery import RecoveredState, WatchFrom
from watchrelay.publish.writer import StreamWriter
from watchrelay.replicas.ownership import Tenure, ownership_lost, show_owner
from watchrelay.replicas.standby import FollowedCopy, Standby
from watchrelay.store.objects import Store
from watchrelay.store.reflector import Reflector
from watchrelay.watch.loop import Watcher

log = logging.getLogger(__name__)

_AGAIN = Backoff(base_s=0.1, cap_s=30.0, jitter=0.5)
"""Between two lives of a stream whose topic was lost."""
_FAILED = Backoff(base_s=1.0, cap_s=300.0, jitter=0.1)
"""After an unexpected error, whose cause is probably there still; restarts claim and read."""
_HEALTHY_S = 60.0
_CLAIM_READ_S = 2.0
"""Less than the 5 s within which a superseded relay has ended."""
_CLAIM_AGAIN_S = 30.0
_FINISH_S = 1.0
"""How long a writer goes on after a newer claim; its successor waits no longer.
docs/record-contract.md, section 4.1."""

Order = Literal["run", "end with tenure", "stop"]
"""What a runner was asked for last: to write the stream, until another replica or part claims it,
or to drain and end."""
Distrust = Literal["", "foreign", "recreated"]
"""Why the log is not believed until it holds the whole state again: "foreign": it has records that
no claim explains; "recreated": its topic was recreated."""


def _is_cancelled() -> bool:
    """Whether the task that asks was cancelled. A task group within it that has an error as well
    raises that one instead of the cancellation."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class StreamRunner:
    """Runs one stream. `stop()` ends the watch, then drains; `run()` returns when that is done.
    `drained` is True unless queued records were left at the deadline."""

    def __init__(self, planned: PlannedStream, context: DaemonContext) -> None:
        self.planned = planned
        self.drained = True
        self._context = context
        spec = planned.spec
        self._status = context.statuses.open(spec.id, spec.topic)
        self._status.counted = what_counts(planned.entry)
        self._progress = StreamProgress()
        self._topic = StreamTopic(spec, context, self._status, self._progress)
        self._watcher: Watcher | None = None
        self._order: Order = "run"
        self._deadline_s = 0.0
        self._ended = asyncio.Event()
        """This life is over: the stream is stopped, begins again, or is another replica's."""
        self._distrust: Distrust = ""
        self._delays = {"lost": _AGAIN, "refused": REFUSED, "failed": _FAILED}
        self._unexpected = UnexpectedErrors()

    @property
    def spec(self) -> StreamSpec:
        """The stream, with the keys and the partitions of its topic once that is usable."""
        return self._topic.spec

    @cached_property
    def _tenure(self) -> Tenure:
        return self._context.ownership.tenure(self.spec.id, self._progress, self._ended.set)

    @cached_property
    def _metrics(self) -> StreamMetrics:
        """Made in the turn of this stream; made again where it was a standby, which has none."""
        return self._new_metrics()

    def _new_metrics(self) -> StreamMetrics:
        resource = self.spec.plan.selection.resource
        return self._context.metrics.stream(self.spec.id, resource)

    def stop(self, *, deadline_s: float) -> None:
        """Ask for the end: take nothing new, send what is held until `deadline_s` (monotonic)."""
        self._order, self._deadline_s = "stop", deadline_s
        self._ended.set()

    def end_with_tenure(self, *, deadline_s: float) -> None:
        """Ask for the end once another replica, or part, has claimed what this writes; where no
        claim will end it, as `stop`."""
        if not self._tenure.ends_by_claim:
            self.stop(deadline_s=deadline_s)
        elif self._order == "run":
            self._order = "end with tenure"

    def restart(self, why: str) -> None:
        """What the stream is built on is lost: claim and read back as at a start."""
        if self._order != "stop":
            log.warning("restarting stream", extra={"stream": self.spec.id, "reason": why})
            self._trust_what_is_whole()
            self._progress.whole = False
            self._status.failed("stream", Trouble(self.spec.topic, Cause.KAFKA, why))
            self._ended.set()

    def _trust_what_is_whole(self) -> None:
        if self._progress.whole:
            self._distrust = ""

    def recheck(self) -> None:
        """Discovery changed: try now what waits for a resource."""
        if self._watcher is not None:
            self._watcher.recheck()

    async def run(self) -> None:
        """Write the stream until stopped; an unexpected error restarts this stream after a
        growing delay.

        Raises: Fenced: a newer relay claimed the stream, and the process exits with 75; where
        replicas share the streams, this one becomes a standby instead."""
        self._status.follow(self._progress)
        try:
            await self._context.one_by_one.turn()
            self._metrics.stream_owned.set(0)  # its metrics are made now
            while self._order == "run":
                self._ended.clear()
                began_s = clock.now_s()
                error = await self._until_ended()
                self._metrics.stream_owned.set(0)
                if self._close_tenure():
                    if error is not None:
                        self._show_end(error, 0.0)
                elif self._order == "run":
                    self._progress.whole = False
                    await self._wait_to_begin_again(error, lived_s=clock.now_s() - began_s)
        finally:
            self._context.sink.close(self.spec.topic, self.spec.id)
            self._progress.state = "stopped"
            self._metrics.stream_owned.set(0)
            self._tenure.ended()

    async def _wait_to_begin_again(self, error: Exception | None, *, lived_s: float) -> None:
        """Show why the life that lasted `lived_s` ended, and wait: the longer the more of them
        ended so in a row."""
        refused = isinstance(error, ForeignRecords)
        why = "lost" if error is None else "refused" if refused else "failed"
        self._delays[why], wait_s = self._delays[why].after_failure(
            clock.now_s(), healthy=lived_s > _HEALTHY_S, rng=self._context.rng
        )
        self._show_end(error, wait_s)
        self._ended.clear()  # an end, or a topic that is lost, ends the wait
        await first_of(self._ended, timeout_s=wait_s)

    async def _until_ended(self) -> Exception | None:
        """Claim, read the log back and follow the resource; why that ended: None when it was asked
        for, else an unexpected error, or records that no claim explains. Raises: Fenced."""
        try:
            begun = await unless(self._ended, self._begin(), name=f"begin {self.spec.id}")
            if begun is not None:
                await self._follow(*begun)
            elif self._tenure.over and self._tenure.superseded:
                await self._finish(None)
        except Fenced as error:
            if _is_cancelled():
                raise asyncio.CancelledError from error
            if isinstance(error, ForeignRecords) and not await self._explained_by_claim(error):
                self._distrust = self._distrust or "foreign"
                self.drained = self._order != "stop"
                return error
            self._lose(error)
        except Exception as error:
            # returned to run(), which logs it: it concerns this stream alone
            if _is_cancelled():
                raise  # tasks that were cancelled with this one call that an error
            return self._failed(error)
        return None

    async def _explained_by_claim(self, error: ForeignRecords) -> bool:
        """Whether the records are of a newer writer of this cluster, waiting a moment for its
        claim."""
        if isinstance(error, Shared):
            return False
        try:
            async with asyncio.timeout(_CLAIM_READ_S):
                await self._context.control.until(lambda: self._tenure.superseded)
        except TimeoutError:
            return False
        return True

    def _failed(self, error: Exception) -> Exception | None:
        """`error`, unless the stream begins again at once: its epoch is spoiled. Raises: as
        `_lose`, where it came during a hand-over."""
        self.drained = self._order != "stop"
        if self._tenure.over and self._tenure.superseded:
            self._lose(error)  # the hand-over is not finished
        # a group where tasks of the stream ran; wrapped, so that both are asked alike
        group = error if isinstance(error, ExceptionGroup) else ExceptionGroup("", [error])
        if (spoiled := group.subgroup(EpochSpoiled)) is None:
            return error
        self.restart(str(first_cause(spoiled)))
        self._distrust = self._distrust or "foreign"
        return None

    def _fenced(self) -> Fenced:
        return Fenced(f"stream {self.spec.id}: a newer claim was read")

    def _lose(self, error: Exception) -> None:
        """Note that another relay writes the stream. Raises: Fenced, unless replicas share the
        streams; there it is logged, and counted by whether that relay is one of the group."""
        control, stream = self._context.control, self.spec.id
        why = ownership_lost(control.holder_of(stream), stream, control.holder)
        by_outsider = self._tenure.lose()
        self._metrics.ownership_changes_total["fenced" if by_outsider else "revoked"].inc()
        if not self._tenure.over:
            raise Fenced(why) from error
        if by_outsider:
            extra = {"stream": stream, "error": why}
            log.warning("stream ownership lost to another relay", extra=extra)
        else:
            extra = {"stream": stream, "error": str(error)}
            log.info("stream taken over by another replica", extra=extra)

    def _close_tenure(self) -> bool:
        """The writer has ended. Whether the stream is now a standby, for another replica writes it,
        or will."""
        if over := self._tenure.ended():
            self._distrust = ""
            self._context.sink.close(self.spec.topic, self.spec.id, taken_over=True)
            self._progress.renew()
            self._status.renew()
            self._status.objects = 0
            self._status.epoch = self._status.frontier = None
        return over

    def _show_end(self, error: Exception | None, wait_s: float) -> None:
        """Log, count and show why the stream restarts in `wait_s`."""
        if error is None:
            self._progress.state = "waiting"
            return
        if isinstance(error, ForeignRecords):
            self._topic.refuse(error, wait_s)
            return
        message, cause = self._unexpected.explain(error)
        extra = {"stream": self.spec.id, "error": message, "retry_in_s": round(wait_s, 1)}
        log.error("stream restarts after an unexpected error", extra=extra, exc_info=cause)
        self._metrics.stream_failures_total.inc()
        self._progress.state = "backoff"
        shown = f"{message}; only this stream restarts; please report it with the log"
        trouble = Trouble(self.spec.id, Cause.INTERNAL, shown)
        self._status.failed("stream", trouble, next_attempt_ms=clock.wall_ms_in(wait_s))

    # ---- claiming --------------------------------------------------------------------------------

    async def _begin(self) -> tuple[Store, StreamWriter, RecoveredState] | None:
        """Wait for the control topic, then claim and read back, a standby beside it until then.
        Nothing is promised before, so this may be cancelled anywhere. None: restart."""
        context = self._context
        if not context.control_made.is_set():
            problems = context.statuses.problems
            if problem := problems.get("control") or problems.get("kafka"):
                self._status.failed("daemon", problem)
            await context.control_made.wait()
        await context.control.caught_up()
        standby = self._new_standby()
        try:
            claiming = self._claim_and_read_back(standby)
            return await beside(standby.run(), claiming, name=f"standby {self.spec.id}")
        finally:
            standby.end()

    async def _claim_and_read_back(
        self, standby: Standby[LogFold]
    ) -> tuple[Store, StreamWriter, RecoveredState] | None:
        """Once the stream is assigned and its topic is usable: claim it, and read its log back, on
        from where the standby has read it."""
        if await self._tenure.assigned(standby, self._stand_by):
            self._metrics = self._new_metrics()
            self._metrics.ownership_changes_total["assigned"].inc()
            self._progress.state, self._status.assigned = "waiting", True
        if self._tenure.superseded:
            raise self._fenced()
        message_bytes = await self._topic_ready()
        if (store := standby.store) is None:
            store = self._new_store(self.spec)
            standby.end()  # else it begins a copy, and reads what is written from here on
        reader = self._reader(self.spec, self._context.reads.reading_back)
        writer = self._writer(store, message_bytes, reader)
        if not await self._claimed(writer):
            return None
        self._status.owner = self._context.control.holder
        self._metrics.stream_owned.set(1)
        self._metrics.ownership_changes_total["claim"].inc()
        self._tenure.claimed()
        followed = None
        if self._distrust != "recreated":
            stops = {each: claim_marker + 1 for each, (_, claim_marker) in writer.to_read.items()}
            followed = await standby.read_rest(self.spec, store, stops)
        return store, writer, await self._resumed(writer, store, reader, followed)

    async def _claimed(self, writer: StreamWriter) -> bool:
        """Claim the stream. False: it is to begin again, for what it is built on is lost, or kept
        it from being claimed until now."""
        try:
            self._tenure.epoch = await writer.claim(
                self._topic.highest_epoch,
                recreated=self._distrust == "recreated" or self._topic.moved(),
                awaits_release=self._tenure.awaits_release,
            )
        except TopicLost as lost:  # the control topic; the supervisor will know it later
            self.restart(str(lost))
            return False
        except TopicRefused as error:
            await self._wait_claimable(error)
            return False
        if any(
            start is not None and start >= claim_marker
            for start, claim_marker in writer.to_read.values()
        ):
            self.restart(
                f"topic {self.spec.topic} ends before the snapshot that its stream was to go on "
                "from: it was recreated, or has lost records"
            )
            self._distrust = "recreated"
            return False
        return True

    def _new_store(self, spec: StreamSpec) -> Store:
        return Store(
            self.planned.transform,
            partitions=spec.partitions,
            key_prefix=spec.key_prefix,
            suppress_unchanged=self.planned.suppress_unchanged,
            counting=self.planned.counting,
            namespaces=spec.plan.arrival_namespaces,
        )

    def _stand_by(self) -> None:
        """Another replica writes the stream, or none does yet: show that."""
        statuses, stream = self._context.statuses, self.spec.id
        self._context.metrics.forget_gauges(stream)
        statuses.problems.pop(index_problem(stream), None)
        self._status.recovered("stream")
        self._progress.state = "standby"
        show_owner(stream, statuses, self._context.control, self._context.metrics)

    def _new_standby(self) -> Standby[LogFold]:
        """That which follows the stream's log while it is to be warm."""
        context, stream = self._context, self.spec.id
        lag = context.metrics.gauge("warm_lag_records")

        def warmed(is_warm: bool) -> None:
            self._status.warm = is_warm
            context.metrics.gauge("stream_warm").labels(stream).set(is_warm)
            if not is_warm:
                lag.remove(stream)
            self._tenure.warmed(is_warm)

        def make_copy() -> FollowedCopy[LogFold]:
            context.formats.take(context.control.described_streams())
            spec = context.formats.kept(self.planned.spec)  # with what its topic has
            return FollowedCopy(
                spec,
                LogFold(spec, self._new_store(spec)),
                self._reader(spec, context.reads.catching_up),
                context.control,
                lag=lambda records: lag.labels(stream).set(records),
            )

        return Standby(
            self.planned.spec,
            make_copy,
            control=context.control,
            sink=context.sink,
            follower=context.reads.follower,
            warmed=warmed,
            dropped=lambda: self._status.recovered("log"),
            rng=context.rng,
        )

    async def _wait_claimable(self, error: TopicRefused) -> None:
        """Return once the control topic holds nothing that keeps the stream from being claimed, or
        its claim is to be tried again."""
        self._progress.state = "waiting"
        self._status.failed("stream", error.trouble(operator=True))
        log.error("stream cannot be claimed", extra={"stream": self.spec.id, "error": str(error)})
        control = self._context.control
        if control.blocked(self.spec.id):
            await control.until(lambda: not control.blocked(self.spec.id))
        else:  # its records do not fit the topic
            await asyncio.sleep(_CLAIM_AGAIN_S)
        self._status.recovered("stream")

    async def _topic_ready(self) -> int:
        """The size that the topic takes, once it exists and is safe. Where it is another one than
        the stream was written to, its log is distrusted as "recreated"."""
        facts = await self._topic.ready(self.planned.spec)
        if self._distrust != "foreign":
            self._status.recovered()
        is_another_topic = self._context.sink.open(
            self.spec.topic, self.spec.id, self.restart, made=facts.created, topic_id=facts.topic_id
        )
        # a topic that is created for a stream that never started replaces none
        started = not facts.created or self._context.control.described(self.spec.id) is not None
        if is_another_topic and started:
            self._distrust = "recreated"
        return facts.max_message_bytes

    def _reader(self, spec: StreamSpec, reads: TopicReads) -> LogReader:
        return LogReader(
            spec,
            self._context.reads.connection,
            self._context.sink,
            failed=self._topic.unreadable,
            succeeded=lambda: self._status.recovered("log"),
            reads=reads,
            control=self._context.control,
        )

    def _writer(self, store: Store, message_bytes: int, reader: LogReader) -> StreamWriter:
        settings = self._context.settings
        return StreamWriter(
            self.spec,
            WriterContext(
                sink=self._context.sink,
                control=self._context.control,
                store=store,
                metrics=self._metrics,
                topic_metrics=self._context.metrics.topic(self.spec.topic),
                status=self._status,
                progress=self._progress,
                heartbeat_interval=self._context.heartbeat_interval,
                must_stop=self._tenure.must_stop,
                queue_bytes=settings.queue_bytes,
                conflate=settings.overload == "conflate",
                max_message_bytes=message_bytes,
                reread_limit=self._topic.limit_again,
                snapshot_completed=self._context.trim,
                flush_timer=self._context.flush_timer,
                gap_reader=reader,
                transactions=self._transactions(),
                rng=self._context.rng,
            ),
        )

    def _transactions(self) -> StreamTransactions | None:
        context, spec = self._context, self.spec
        own = transactional_id(context.settings, spec.id)
        if not own:
            return None
        return StreamTransactions(own, spec.topic, spec.id, context.sink, context.control)

    async def _resumed(
        self, writer: StreamWriter, store: Store, reader: LogReader, followed: LogFold | None
    ) -> RecoveredState:
        self._progress.state = "resuming"
        found = await resume(
            self.spec,
            writer,
            store,
            reader,
            self._tenure.epoch,
            followed=followed,
            empty_before={} if self._distrust else self._topic.empty_before,
            recreated=self._distrust == "recreated",
            foreign=self._distrust == "foreign",
        )
        self._status.objects = len(store)
        self._metrics.store_objects.set(len(store))
        self._status.recovered()
        return found

    # ---- following -------------------------------------------------------------------------------

    async def _follow(self, store: Store, writer: StreamWriter, found: RecoveredState) -> None:
        """Watch the resource and write the stream until this life is over."""
        context, decision, newest = self._context, found.decision, found.newest_on_log
        recovered = store.has_state  # from the log: nothing was watched yet
        self._watcher = Watcher(
            self.spec.id,
            self.spec.own_plan,
            source=context.server.client,
            outlet=Reflector(
                self.spec.id,
                store,
                writer,
                metrics=self._metrics,
                status=self._status,
                recovered=recovered,
                version=newest,
            ),
            admission=context.server.admission,
            metrics=self._metrics,
            status=self._status,
            progress=self._progress,
            availability=context.server.availability,
            server_version=lambda: context.server.version,
            rng=context.rng,
            cursor=decision.frontier if isinstance(decision, WatchFrom) else "",
            newest_on_log=newest,
            recovered=recovered,
            on_accepted=writer.watch_accepted,
        )
        try:
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(
                    must_run(writer.run(), name=f"writer {self.spec.id}", stopping=self._ended)
                )
                watching = group.create_task(
                    must_run(
                        self._watcher.run(), name=f"watch {self.spec.id}", stopping=self._ended
                    )
                )
                with context.requests.serving(self.spec.id, writer.request_snapshot):
                    await self._ended.wait()
                watching.cancel()
                await asyncio.wait((watching,))
                if self._tenure.over:
                    await self._finish(writer)
                elif self._order == "stop":
                    self.drained = await writer.drain(max(0.0, self._deadline_s - clock.now_s()))
                writing.cancel()
                # not left to the group: before Python 3.13 an error that comes while a group ends
                # cancels the task around it for good, and the stream would end unnoticed
                await asyncio.wait((writing,))
        except BaseExceptionGroup as group_error:
            if group_error.subgroup(Fenced) is None:
                raise
            raise fenced_by(group_error) from group_error
        finally:
            self._trust_what_is_whole()
            self._watcher = None

    async def _finish(self, writer: StreamWriter | None) -> None:
        """Hand the stream over to the replica that was assigned and claimed it: send what is
        queued, and release the stream if all is acknowledged. `writer` None: nothing was queued.
        Raises: Fenced where the claim is of another relay, which must not be delayed."""
        control, stream, began_s = self._context.control, self.spec.id, clock.now_s()
        if not self._tenure.may_finish():
            raise self._fenced()
        released = writer is None or await writer.drain(_FINISH_S)
        if not await self._tenure.handed_over():
            raise self._fenced()
        if released:
            try:
                async with asyncio.timeout(max(0.0, began_s + _FINISH_S - clock.now_s())):
                    await control.write("release", stream, {"epoch": self._tenure.epoch})
            except TimeoutError:
                released = False
        self._metrics.ownership_changes_total["handed_over"].inc()
        took_s = round(clock.now_s() - began_s, 3)
        epoch = self._tenure.epoch
        extra = {"stream": stream, "epoch": epoch, "released": released, "took_s": took_s}
        log.info("stream handed over", extra={**extra, "holder": control.holder_of(stream)})
