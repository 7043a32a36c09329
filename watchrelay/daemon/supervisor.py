"""Keeps one `StreamRunner` running per stream of the config, as discovery resolves it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import Fenced, KubeError, Unreachable
from watchrelay.core.joined import Joined
from watchrelay.core.tasks import UnexpectedErrors, first_of
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.daemon.context import DaemonContext
from watchrelay.daemon.reload import Objection
from watchrelay.daemon.stream_runner import StreamRunner
from watchrelay.kube.discovery.client import Discovery
from watchrelay.kube.discovery.resolve import Resolution
from watchrelay.model.progress import StreamProgress
from watchrelay.model.resources import UNKNOWN, Availability, Resource
from watchrelay.model.streams import StreamSpec
from watchrelay.observe.status import Readiness
from watchrelay.plan.described import (
    DEADLOCK_CURE,
    KeyFormats,
    deadlocked,
    in_versions_described,
    pinned_conflict,
    with_absent,
)
from watchrelay.plan.streams import (
    EntryPlan,
    PlannedStream,
    config_hash,
    overlapping,
    parts_of,
    plan_entries,
    plan_entry,
    plan_hash,
    provisional_ids,
    streams_by_id,
    why_overlapping,
)

if TYPE_CHECKING:
    from watchrelay.config import ResourceEntry, Settings

log = logging.getLogger(__name__)

DISCOVERY_INTERVAL_S = (30.0, 60.0)
"""Between two looks at what is served, drawn at random; two requests that cost a 304.
docs/watch-facts.md 8.1."""
_WAITING_INTERVAL_S = (5.0, 10.0)
"""The same while some entry waits for its resource."""
VERSION_INTERVAL_S = 600.0
_VERSION_TIMEOUT_S = 5.0
"""How long the first streams wait for /version: streaming lists come with 1.34."""

_NOT_KNOWN = (Cause.KUBERNETES, Cause.INTERNAL)
"""What an entry means may be known later."""
_STOP_GRACE_S = 1.0
"""Past the deadline of the drain, until streams that have not noticed it are cancelled."""


class _Wanted(NamedTuple):
    """What the config asks for, by id. `planned`: the streams; `parts`: the same as they run, each
    part of a split one; `refused`: why the others may not start."""

    planned: Mapping[str, PlannedStream]
    parts: Mapping[str, PlannedStream]
    refused: Mapping[str, str]


class Supervisor:
    """Keeps the running streams equal to what config and discovery ask for: `run()` as a task."""

    def __init__(
        self,
        context: DaemonContext,
        discovery: Discovery,
        *,
        tasks: asyncio.TaskGroup,
        readiness: Readiness,
        superseded: asyncio.Event,
    ) -> None:
        self._context = context
        self._discovery = discovery
        self._tasks = tasks
        self._readiness = readiness
        self._superseded = superseded
        self._running: dict[str, StreamRunner] = {}
        """By stream or part, the runner that the config asks for."""
        self._alive: dict[str, dict[StreamRunner, asyncio.Task[None]]] = {}
        """By stream, all runners that have not ended, also those that drain; the newest last."""
        self._waiting: set[str] = set()
        """Streams that cannot start, or whose change cannot be applied."""
        self._warned: set[str] = set()
        self._look = asyncio.Event()
        self._refreshes = Joined(self._refresh)
        self._described = False
        """`described` was called."""
        self._stopped = False
        """No further stream starts: `stop` and `abandon` know only the streams of that moment."""
        self._catalog_changed = False
        """Since the streams last rechecked."""
        self._version_due_s = 0.0
        self._unexpected = UnexpectedErrors()

    async def run(self) -> None:
        """Discover, reconcile, wait; until cancelled."""
        backoff = Backoff()
        self._wait_for_all()
        while True:
            # while the circuit is open, a stream is the probe, not discovery
            await self._context.server.admission.wait_while_open(within_s=DISCOVERY_INTERVAL_S[1])
            try:
                await self._refresh()
                await self._ask_version()
                self._reconcile()
            except KubeError as error:
                unreachable = isinstance(error, Unreachable)
                after = backoff.after_unreachable if unreachable else backoff.after_failure
                backoff, wait_s = after(clock.now_s(), healthy=False, rng=self._context.rng)
                wait_s = max(wait_s, error.retry_after_s)
                self._failed(error.trouble(), wait_s)
            except Exception as error:
                # logged: running streams go on, whatever an answer of the API server led to
                backoff, wait_s = backoff.after_failure(
                    clock.now_s(), healthy=False, rng=self._context.rng
                )
                message, new = self._unexpected.explain(error)
                extra = {"error": message, "retry_in_s": round(wait_s, 1)}
                log.error("discovery failed unexpectedly", extra=extra, exc_info=new)
                self._failed(Trouble("", Cause.INTERNAL, message), wait_s)
            else:
                backoff = Backoff()
                self._context.statuses.problems.pop("kubernetes", None)
                wait_s = self._context.rng.uniform(
                    *(_WAITING_INTERVAL_S if self._waiting else DISCOVERY_INTERVAL_S)
                )
                for stream in self._waiting:
                    status = self._context.statuses.open(stream)
                    status.recovered("discovery")
                    status.next_attempt_ms = clock.wall_ms_in(wait_s)
            self._look.clear()
            await first_of(self._look, timeout_s=wait_s)

    def described(self) -> None:
        """The control topic is read: reconcile with the versions, partitions and key formats that
        it names, before a stream claims. The plans depend on these, so the group gets them only
        from here on."""
        self._described = True
        if self._discovery.catalog is None:
            return
        try:
            self._reconcile()
        except Exception as error:
            # logged: it must not end the control topic's reading, and `run` tries again at once
            message, new = self._unexpected.explain(error)
            log.error(
                "streams could not be planned, retrying", extra={"error": message}, exc_info=new
            )
            self._look.set()

    async def availability(self, resource: Resource) -> Availability:
        """What discovery reports about `resource` now, by a new request, one for all streams that
        ask at the same time: a resource that is gone was one in each of their namespaces."""
        try:
            await self._refreshes.result(None)
        except KubeError:
            return UNKNOWN
        catalog = self._discovery.catalog
        if self._catalog_changed:
            self._look.set()
        return UNKNOWN if catalog is None else catalog.availability(resource)

    async def _refresh(self, *_: None) -> None:
        if await self._discovery.refresh():
            self._catalog_changed = True

    async def stop(self, *, deadline_s: float) -> bool:
        """Stop every stream, wait for the drains until `deadline_s` (monotonic). True: all
        drained."""
        self._stopped = True
        alive = {runner: task for each in self._alive.values() for runner, task in each.items()}
        for runner in alive:
            runner.stop(deadline_s=deadline_s)
        if alive:
            _, late = await asyncio.wait(
                alive.values(), timeout=max(0.0, deadline_s - clock.now_s()) + _STOP_GRACE_S
            )
            for task in late:
                task.cancel()
            return not late and all(runner.drained for runner in alive)
        return True

    def abandon(self) -> None:
        """End every stream now; what is queued is not sent."""
        self._stopped = True
        for each in self._alive.values():
            for task in each.values():
                task.cancel()

    def restart(self, why: str) -> None:
        """Restart every stream with a new claim: the control topic's content is lost."""
        for runner in self._running.values():
            runner.restart(why)

    # ---- edits of the config ---------------------------------------------------------------------

    def objections(self, settings: Settings) -> list[Objection]:
        """The entries whose streams would change a pinned shape, overlap, or block each other."""
        described = self._context.control.described_streams()
        formats = KeyFormats(described)
        plans = streams_by_id(self._plan(settings))
        # of the parts of a stream, the first one
        running = {each.spec.stream: each for each in reversed(self._running.values())}
        index = {id(entry): place for place, entry in enumerate(settings.resources)}
        found, startable = list[Objection](), list[StreamSpec]()

        def object_to(stream: str, why: str, cure: str = "") -> None:
            found.append(Objection(index[id(plans[stream].entry)], why, cure))

        for stream, each in plans.items():
            if why := self._why_pinned(each, formats, running.get(stream)):
                object_to(stream, why)
            else:
                startable.append(formats.kept(each.spec))
        for stream, (why, cure) in self._overlapping(settings, plans.values()).items():
            object_to(stream, why, cure)
        for stream, why in deadlocked(startable, described).items():
            object_to(stream, why, DEADLOCK_CURE.format(stream))
        return found

    def _overlapping(
        self, settings: Settings, plans: Iterable[PlannedStream]
    ) -> dict[str, tuple[str, str]]:
        """The streams that may not start beside another one, with why and the cure; running
        ones win."""
        running = {each.spec.stream for each in self._running.values()}
        ordered = sorted(plans, key=lambda each: each.spec.id not in running)
        return {
            each.spec.id: why_overlapping(settings, each, earlier)
            for each, earlier in overlapping(ordered)
            if each.spec.id not in running
        }

    def _why_pinned(
        self, planned: PlannedStream, formats: KeyFormats, running: StreamRunner | None
    ) -> str:
        """Why a running stream cannot take the shape that is planned for it; "" where it can, does
        not run, or has a shape that conflicts already."""
        described = self._context.control.described(planned.spec.id)
        if running is None or pinned_conflict(running.spec, described):
            return ""
        # where other resources join by this edit, report now what they would report later
        joined = bool(planned.spec.key_prefix) and not running.planned.spec.key_prefix
        return pinned_conflict(planned.spec if joined else formats.kept(planned.spec), described)

    def adopt(self, settings: Settings) -> None:
        """Run by these settings: streams that do not change keep watch and epoch. Nothing
        once stopped."""
        if self._stopped:
            return
        self._context.settings = settings
        self._context.heartbeat_interval.change(settings.heartbeat_interval_s)
        self._warned.clear()
        for stream in self._waiting - self._running.keys():
            self._context.statuses.close(stream)
        self._waiting &= self._running.keys()
        self._look.set()  # what an entry names may have come a moment ago
        if self._discovery.catalog is None:
            self._wait_for_all()
            return
        try:
            self._reconcile()
        except Exception as error:
            # logged: an edit never ends a relay that works, and `run` tries again at once
            message, new = self._unexpected.explain(error)
            extra = {"error": message}
            log.error("config change could not be applied, retrying", extra=extra, exc_info=new)
            self._failed(Trouble("", Cause.INTERNAL, message), 0.0)

    async def _ask_version(self) -> None:
        """Keep the server's version known, before the first stream starts: lists depend on it."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._version_due_s:
            return
        try:
            version = await self._context.server.client.version(within_s=_VERSION_TIMEOUT_S)
        except (KubeError, TimeoutError) as error:
            # lists are paged until it is: slower, not wrong
            log.debug("version is not known", extra={"error": str(error)})
        else:
            self._context.server.version = (version.major, version.minor)
            self._version_due_s = now_s + VERSION_INTERVAL_S

    # ---- reconciling -----------------------------------------------------------------------------

    def _failed(self, trouble: Trouble, wait_s: float) -> None:
        statuses = self._context.statuses
        if statuses.problems.put("kubernetes", trouble):
            extra = {"error": trouble.message, "retry_in_s": round(wait_s, 1)}
            log.warning("discovery failed", extra=extra)
        at_ms = clock.wall_ms_in(wait_s)
        for stream in self._waiting:
            statuses.open(stream).failed("discovery", trouble, next_attempt_ms=at_ms)

    def _plan(self, settings: Settings) -> list[EntryPlan]:
        """What each entry means now, in the versions in which its streams are described, or were
        started, and with those whose resource is absent now."""
        catalog, control = self._discovery.catalog, self._context.control
        described, by_entry = control.described_streams(), self._by_entry()
        started = {each.spec.stream: each.spec.description for each in self._running.values()}
        known = {**started, **described}

        def plan(
            settings: Settings, entry: ResourceEntry, resolution: Resolution, shared: set[str]
        ) -> EntryPlan:
            try:
                meant = in_versions_described(entry, resolution, known, catalog)
                if catalog is not None and control.is_caught_up:
                    selections = (each.spec.plan.selection for each in by_entry.get(entry, ()))
                    running = {each.resource.qualified for each in selections}
                    meant = with_absent(entry, meant, described, catalog, running=running)
                return plan_entry(settings, entry, meant, shared)
            except Exception as error:
                # logged: what is odd about one resource concerns its entry alone
                message, new = self._unexpected.explain(error)
                extra = {"resource": entry.resource, "error": message}
                log.error("entry cannot be planned", extra=extra, exc_info=new)
                return EntryPlan(entry, problem=Trouble(entry.resource, Cause.INTERNAL, message))

        return plan_entries(settings, self._discovery.resolve, plan)

    def _by_entry(self) -> dict[ResourceEntry, list[StreamRunner]]:
        found: dict[ResourceEntry, list[StreamRunner]] = {}
        for each in self._running.values():
            found.setdefault(each.planned.entry, []).append(each)
        return found

    def _reconcile(self) -> None:
        """Plan the streams; end, show and start accordingly."""
        if self._stopped:
            return
        settings = self._context.settings
        plans = self._plan(settings)
        planned = streams_by_id(plans)
        refused = {
            stream: ": ".join(why)
            for stream, why in self._overlapping(settings, planned.values()).items()
        }
        for stream in refused:
            del planned[stream]
        self._context.planned = {stream: each.spec for stream, each in planned.items()}
        formats = KeyFormats(self._context.control.described_streams())
        parts = {
            part.spec.id: part
            for each in planned.values()
            for part in parts_of(each, formats.kept(each.spec).partitions)
        }
        wanted = _Wanted(planned, parts, refused)
        self._end_unplanned(plans, wanted)
        covered = self._by_entry().keys()
        for plan in plans:
            self._show(plan, wanted, covered)
        duplicates = [each for plan in plans for each in self._duplicates(plan, wanted)]
        if duplicates:
            trouble = Trouble("", Cause.DUPLICATE_ENTRY, "; ".join(duplicates))
            self._context.statuses.problems.put("config", trouble)
        else:
            self._context.statuses.problems.pop("config", None)
        for each in parts.values():
            self._start(each, formats)
        if self._context.ownership.shares and self._described:
            self._offer_plans(settings, formats)
        self._readiness.started = True
        if self._catalog_changed:
            self._catalog_changed = False
            for running in self._running.values():
                running.recheck()

    def _end_unplanned(self, plans: Iterable[EntryPlan], wanted: _Wanted) -> None:
        """End what is neither a planned part nor may turn out to be one."""
        unresolved = {
            plan.entry.resource
            for plan in plans
            if plan.problem is not None and plan.problem.cause in _NOT_KNOWN
        }
        entries = set(self._context.settings.resources)
        for stream, running in list(self._running.items()):
            if stream in wanted.parts:
                continue
            entry = running.planned.entry
            if running.spec.stream in wanted.planned:
                self._replace_part(stream, running)
            elif entry not in entries and entry.resource not in unresolved:
                self._remove(stream, running)

    def _offer_plans(self, settings: Settings, formats: KeyFormats) -> None:
        """Tell the group what this replica can write."""
        self._context.ownership.offer_plans(
            {
                stream: plan_hash(
                    formats.kept(each.planned.spec),
                    suppress_unchanged=each.planned.suppress_unchanged,
                )
                for stream, each in self._running.items()
            },
            revision=settings.revision,
            config_hash=config_hash(settings),
        )

    def _show(self, plan: EntryPlan, wanted: _Wanted, covered: Container[ResourceEntry]) -> None:
        """Record in the status registry what the entry waits for; `covered`: the entries of streams
        that run."""
        entry = plan.entry
        if (problem := plan.problem) is not None:
            # streams that run notice by themselves when their resource goes
            if plan.resources or problem.cause is Cause.INTERNAL or entry not in covered:
                self._wait_for(entry, problem)
            return
        for warning in plan.warnings:
            self._warn("resource name is ambiguous", entry, warning)
        self._end_wait(plan, wanted)
        for each in plan.streams:
            if reason := wanted.refused.get(each.spec.id):
                trouble = Trouble(entry.resource, Cause.ENTRY_UNUSABLE, reason)
                self._wait_for(entry, trouble, streams=[each.spec.id])

    def _duplicates(self, plan: EntryPlan, wanted: _Wanted) -> list[str]:
        """A line for each stream of the entry that is planned for an earlier entry; logged once."""
        entry, duplicates = plan.entry, list[str]()
        for each in plan.streams:
            other = wanted.planned.get(each.spec.id, each).entry
            if other is not entry and not entry.resource.startswith("*"):
                twice = (
                    f"{other.resource} and {entry.resource} are both stream {each.spec.id}: "
                    "give one of them an id"
                )
                duplicates.append(twice)
                self._warn(
                    "two config entries define the same stream, ignoring the second", entry, twice
                )
        return duplicates

    def _warn(self, message: str, entry: ResourceEntry, warning: str) -> None:
        if warning not in self._warned:
            self._warned.add(warning)
            log.warning(message, extra={"resource": entry.resource, "warning": warning})

    def _wait_for_all(self) -> None:
        for entry in self._context.settings.resources:
            why = "the API server was not queried yet"
            self._wait_for(entry, Trouble(entry.resource, Cause.KUBERNETES, why))

    def _wait_for(
        self, entry: ResourceEntry, trouble: Trouble, *, streams: Sequence[str] = ()
    ) -> None:
        """Show why the entry's streams, or those of `streams`, cannot start, or what is wrong with
        those that run. What discovery does not know yet is shown by `_failed`."""
        for stream in streams or provisional_ids(entry):
            self._waiting.add(stream)
            status = self._context.statuses.open(stream)
            runs = stream in self._running
            operator = not runs and trouble.cause not in _NOT_KNOWN
            if not runs:
                status.follow(StreamProgress())
                status.assigned = not self._context.ownership.shares
            if trouble.cause is Cause.KUBERNETES:
                status.recovered("config")
                continue
            if status.failed("config", replace(trouble, operator=operator)) and operator:
                reason = trouble.message
                extra = {"stream": stream, "resource": entry.resource, "reason": reason}
                log.warning("stream waits", extra=extra)

    def _end_wait(self, plan: EntryPlan, wanted: _Wanted) -> None:
        """The entry is resolved: its provisional rows go, and no stream of it but those `refused`
        waits."""
        real = [each.spec.id for each in plan.streams]
        for stream in dict.fromkeys((*provisional_ids(plan.entry), *real)):
            if stream in self._waiting and stream not in wanted.refused:
                self._waiting.discard(stream)
                if stream in real and stream in wanted.parts:
                    self._context.statuses.open(stream).recovered("config", "discovery")
                else:
                    self._context.statuses.close(stream)

    # ---- streams ---------------------------------------------------------------------------------

    def _start(self, planned: PlannedStream, formats: KeyFormats) -> None:
        """Start the stream, or replace the one that is planned otherwise."""
        stream, running = planned.spec.id, self._running.get(planned.spec.id)
        if running is not None:
            before, now = (
                (formats.kept(each.spec), each.suppress_unchanged)
                for each in (running.planned, planned)
            )
            if before == now:
                running.planned = planned  # its entry may be written otherwise now
                return
            self._stop(running)
            log.info(
                "stream restarts with a changed definition",
                extra={"stream": stream, "resource": str(planned.spec.plan.selection.resource)},
            )
        alive = self._alive.setdefault(planned.spec.stream, {})
        awaited = {each: task for each, task in alive.items() if self._precedes(each, planned.spec)}
        for each in awaited:
            if each is not running:
                self._stop(each)  # of a layout that the config has again
        runner = self._running[stream] = StreamRunner(planned, self._context)
        alive[runner] = self._tasks.create_task(
            self._live(runner, awaited.values()), name=f"stream {stream}"
        )

    def _precedes(self, runner: StreamRunner, spec: StreamSpec) -> bool:
        """Whether `runner`, of the same stream, has to end before one with this `spec` begins: that
        of the same part, and one of another layout, which writes the same partitions. Where
        replicas share the streams, a claim ends the latter."""
        if runner.spec.id == spec.id:
            return True
        return runner.spec.part.of != spec.part.of and not self._context.ownership.shares

    def _replace_part(self, stream: str, running: StreamRunner) -> None:
        """The stream is split otherwise. Where replicas share the streams, the part is written
        until another layout claims its partitions."""
        log.info("stream is split otherwise", extra={"stream": stream})
        del self._running[stream]
        running.end_with_tenure(deadline_s=self._drain_deadline_s())

    def _remove(self, stream: str, running: StreamRunner) -> None:
        """The stream left the config; nothing is retired. Source: docs/record-contract.md, section
        2."""
        log.info("stream left the config", extra={"stream": stream, "topic": running.spec.topic})
        del self._running[stream]
        self._waiting.discard(stream)
        for each in self._alive.get(running.spec.stream, ()):
            self._stop(each)  # parts of a former layout too: no claim ends them now

    def _stop(self, runner: StreamRunner) -> None:
        runner.stop(deadline_s=self._drain_deadline_s())

    def _drain_deadline_s(self) -> float:
        return clock.now_s() + self._context.settings.shutdown.drain_timeout_s

    async def _live(self, runner: StreamRunner, awaited: Collection[asyncio.Task[None]]) -> None:
        """Run the stream once those `awaited` have ended."""
        stream = runner.spec.id
        if awaited:
            await asyncio.wait(awaited)
            self._context.statuses.open(stream).renew()
        try:
            await runner.run()
        except Fenced as error:
            if stream in self._running:
                extra = {"stream": stream, "error": str(error)}
                log.error("stream ownership lost to another relay", extra=extra)
                self._superseded.set()
            else:
                log.info(
                    "another relay took over a stream that was removed from the config",
                    extra={"stream": stream},
                )
        finally:
            self._ended(runner)

    def _ended(self, runner: StreamRunner) -> None:
        """A stream has ended; if it left the config, it is no longer shown."""
        stream = runner.spec.id
        alive, topic = self._alive[runner.spec.stream], runner.spec.topic
        del alive[runner]
        if not alive:
            del self._alive[runner.spec.stream]
        others = chain(self._running.values(), *self._alive.values())
        if not any(each.spec.topic == topic for each in others):
            self._context.metrics.forget_topic(topic)
        if stream not in self._running:
            self._context.metrics.forget(stream)
            if stream in self._waiting:
                self._context.statuses.open(stream).follow(StreamProgress())
            else:
                self._context.statuses.close(stream)
