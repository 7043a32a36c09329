"""The loop of one stream's watch: performs the machine's commands, and feeds their results back as
events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol, assert_never

from msgspec.structs import replace

from watchrelay.core.errors import KubeError
from watchrelay.model.frames import Frame, ListQuery, Page, WatchQuery
from watchrelay.model.progress import StreamProgress
from watchrelay.model.resources import Availability, Resource, Selection
from watchrelay.model.streams import WatchPlan
from watchrelay.model.watch_output import CursorMoved, WatchedObjects, WatchOutput
from watchrelay.observe.metrics import StreamMetrics
from watchrelay.observe.status import StreamStatus
from watchrelay.watch import machine
from watchrelay.watch.admission import LARGE_LIST_OBJECTS, Admission, StreamAdmission
from watchrelay.watch.context import WatchRules
from watchrelay.watch.looks import Held, History, Looks
from watchrelay.watch.reporting import WatchReporter


class Source(Protocol):
    """Where pages and frames come from: kube/client.py. Both methods raise KubeError: `watch` with
    the `reason` "inactive" where a wait received nothing for `idle_timeout_s`. Each `anext` is a
    wait of its own, and one that is cancelled loses nothing.

    `take` is offered the frames of each chunk first, while `anext` is awaited; those that it does
    not take (False) are yielded."""

    async def list_page(self, selection: Selection, query: ListQuery, *, stream: str) -> Page: ...

    def watch(
        self,
        selection: Selection,
        query: WatchQuery,
        *,
        stream: str,
        take: Callable[[list[Frame]], bool],
    ) -> AbstractAsyncContextManager[AsyncIterator[list[Frame]]]: ...


class Outlet(Held, Protocol):
    """Where the watch's output goes: store/reflector.py."""

    async def take(self, output: WatchOutput) -> bool:
        """Take one output. False is returned only for a `ListDone` that is suspicious and not
        `accept_any_size`: list the most recent state again."""
        ...

    def ready(self) -> bool:
        """Whether `take` would accept changes without waiting."""
        ...

    def take_now(self, output: WatchedObjects | CursorMoved) -> None:
        """Take an output of the watch without waiting. Legal while `ready`."""
        ...


Discover = Callable[[Resource], Awaitable[Availability]]
"""What discovery reports about a resource, by a new request."""


_NO_ANSWER: History = ""


@dataclass(frozen=True, slots=True)
class _Look:
    """A small list: what it showed, when it was requested, and up to where the watch had come."""

    page: Page | None
    asked_at_s: float
    cursor: str


def _leaves_list_slot(state: machine.State) -> bool:
    """Whether the next page waits for a slot again, after the lists that wait already: other
    streams must not wait for a list whose pages are all empty, which may be without end."""
    return isinstance(state, machine.ListingPages) and state.pages.all_empty


class Watcher:
    """The watch of the stream with the id `stream`. `run` it as a task; cancel it to stop.

    Args:
        server_version: Returns (major, minor), None while unknown.
        cursor: A version whose state the outlet has already; this, `newest_on_log` and
            `recovered` as in `machine.start`.
        on_accepted: Called whenever the server accepts a watch that continues from the cursor.
    """

    def __init__(
        self,
        stream: str,
        plan: WatchPlan,
        *,
        source: Source,
        outlet: Outlet,
        admission: Admission,
        metrics: StreamMetrics,
        status: StreamStatus,
        progress: StreamProgress,
        availability: Discover,
        server_version: Callable[[], tuple[int, int] | None] = lambda: None,
        rng: Random | None = None,
        cursor: str = "",
        newest_on_log: str = "",
        recovered: bool = False,
        on_accepted: Callable[[], None] = lambda: None,
    ) -> None:
        self.stream = stream
        self._source = source
        self._outlet = outlet
        self._admission = admission
        self._availability = availability
        self._server_version = server_version
        self._rules = WatchRules(plan, rng or Random(), server_version())
        self._start_cursor = cursor
        self._start = partial(
            machine.start, cursor=cursor, newest_on_log=newest_on_log, recovered=recovered
        )
        self._on_accepted = on_accepted
        self._reporter = WatchReporter(stream, metrics, status, progress)
        self._recheck = asyncio.Event()
        self._watch_stack = AsyncExitStack()
        self._frames: AsyncIterator[list[Frame]] | None = None
        self._tasks = asyncio.TaskGroup()
        self._looks = Looks(outlet)
        self._look: asyncio.Task[_Look | None] | None = None
        """The small list that is in flight beside the watch, or beside a pause after it."""
        self._reading: asyncio.Timeout | None = None
        self.state: machine.State | None = None

    @property
    def cursor(self) -> str:
        """The version up to which everything was delivered."""
        state = self.state
        if state is None:
            return self._start_cursor
        return state.cursor if isinstance(state, machine.Watching) else state.context.cursor

    def recheck(self) -> None:
        """Retry now, if the watch waits for a resource or an operator."""
        self._recheck.set()

    async def run(self) -> None:
        """Watch the resource until cancelled. The machine's next state counts only once everything
        that came with it was delivered: an exception discards the state and its commands."""
        try:
            async with self._tasks:
                await self._run()
        except ExceptionGroup as failed:  # the group's wrapping: callers wait for the error itself
            raise failed.exceptions[0] from failed

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        with self._admission.register() as admission:
            try:
                state, commands = self._start(
                    self._rules, now_s=loop.time(), first_wait_s=admission.first_wait_s
                )
                self._reporter.began(state)
                while True:
                    if not machine.needs_list_slot(state) or _leaves_list_slot(state):
                        admission.release_list_slot()
                    blocked_s = await self._deliver(commands)
                    self.state = state
                    event = await self._act(commands[-1], admission, blocked_s)
                    # frames that `_step_at_once` took during the read have advanced self.state
                    previous, now_s = self.state, loop.time()
                    assert previous is not None
                    state, commands = machine.step(self._rules, previous, event, now_s)
                    if not (
                        type(event) is machine.FramesReceived
                        and type(previous) is machine.Watching
                        and type(state) is machine.Watching
                    ):
                        self._refresh_server_version()
                        self._reporter.stepped(previous, event, state, now_s)
            finally:
                await self._end_look()
                await self._close()
                self._reporter.stopped()

    async def _deliver(self, commands: tuple[machine.Command, ...]) -> float:
        """Deliver what the step brought. Returns the seconds it took: while events wait for room,
        the silence of the server is not measured."""
        if len(commands) == 1:
            return 0.0
        now_s = asyncio.get_running_loop().time
        began_at_s = now_s()
        for command in commands[:-1]:
            match command:
                case machine.Deliver(output=output):
                    self._reporter.delivering(output)
                    await self._outlet.take(output)
                case machine.ReportSkipped(errors=errors):
                    self._reporter.skipped(errors)
                case _:
                    raise AssertionError(f"{type(command).__name__} is not the last command")
        return now_s() - began_at_s

    async def _act(
        self, action: machine.Command, admission: StreamAdmission, blocked_s: float
    ) -> machine.Event:
        match action:
            case machine.ReadWatch(until_s=until_s):
                return await self._read(until_s + blocked_s, admission)
            case machine.CheckVersion(query=query, until_s=until_s):
                self._begin_look(query, admission)
                return await self._read(until_s + blocked_s, admission)
            case machine.CheckLists():
                await self._close()
                return await self._check_lists(action, admission)
            case machine.FinishList(done=done):
                return machine.ListFinished(await self._outlet.take(done))
            case machine.FetchPage(query=query) | machine.OpenWatch(query=query):
                return await self._request(query, admission)
            case machine.Sleep(until_s=until_s, wakeable=wakeable):
                await self._close()
                return machine.SleepEnded(await self._sleep(until_s, wakeable=wakeable))
            case machine.CheckDiscovery():
                await self._close()
                return machine.DiscoveryChecked(
                    await self._availability(self._rules.plan.selection.resource)
                )
            case machine.Deliver() | machine.ReportSkipped():
                raise AssertionError(f"{type(action).__name__} is not an action")
            case _:
                assert_never(action)

    async def _read(self, until_s: float, admission: StreamAdmission) -> machine.Event:
        assert self._frames is not None, "read without an open watch"
        while True:
            if (looked := self._looked()) is not None:
                return looked
            try:
                async with asyncio.timeout_at(until_s) as self._reading:
                    frames = await anext(self._frames)
                break
            except StopAsyncIteration:
                return machine.WatchEnded()
            except TimeoutError:
                if self._look is not None and self._look.done() and self._watches():
                    continue
                # frames that `_step_at_once` took meanwhile have moved the deadline
                state = self.state
                if type(state) is not machine.Watching or state.read_until_s <= until_s:
                    return machine.DeadlineReached()
                until_s = state.read_until_s
            except KubeError as error:
                admission.watch_broke(error)
                return machine.RequestFailed(error)
            finally:
                self._reading = None
        self._reporter.received(frames)
        return machine.FramesReceived(frames, asyncio.get_running_loop().time())

    def _step_at_once(self, frames: list[Frame]) -> bool:
        """Perform the step of these frames at once, while `_read` waits for them, if the watch goes
        on as before and their delivery need not wait. False: nothing was done."""
        previous = self.state
        if type(previous) is not machine.Watching or not self._outlet.ready():
            return False
        now_s = asyncio.get_running_loop().time()
        event = machine.FramesReceived(frames, now_s)
        state, commands = machine.step(self._rules, previous, event, now_s)
        # every step that skips an object, reports an error or ends the watch replaces the context.
        # Where it is still the same object, the commands are deliveries of the watch alone, and the
        # deadline of `_read` only moves to a later time
        if type(state) is not machine.Watching or state.context is not previous.context:
            return False
        if type(commands[-1]) is not machine.ReadWatch:
            return False
        self._reporter.received(frames)
        for command in commands[:-1]:
            assert isinstance(command, machine.Deliver)
            assert isinstance(command.output, WatchedObjects | CursorMoved)
            self._outlet.take_now(command.output)
        self.state = state
        return True

    async def _request(
        self, query: ListQuery | WatchQuery, admission: StreamAdmission
    ) -> machine.Event:
        await self._close()
        self._recheck.clear()
        streaming = isinstance(query, WatchQuery) and query.send_initial_events
        listing = streaming or isinstance(query, ListQuery)
        if listing:
            await self._end_look()
            large = self._reporter.objects_listed > LARGE_LIST_OBJECTS
            await admission.acquire_list_slot(large=large)
        await admission.enter(self._reporter.paused)
        self._reporter.requesting(streaming=streaming, listing=listing)
        selection = self._rules.plan.selection
        event: machine.Event = machine.WatchOpened()
        try:
            if isinstance(query, ListQuery):
                page = await self._source.list_page(selection, query, stream=self.stream)
                event = machine.PageReceived(page)
            else:
                opened = self._source.watch(
                    selection, query, stream=self.stream, take=self._step_at_once
                )
                self._frames = await self._watch_stack.enter_async_context(opened)
        except KubeError as error:
            if not listing and error.status == 500:
                admission.answered()  # of this stream; what a proxy sends may concern all
            else:
                admission.failed(error)
            return machine.RequestFailed(error)
        admission.answered()
        if self._frames is not None:
            self._reporter.opened(streaming=streaming)
            if not streaming:
                self._on_accepted()
        return event

    async def _small_list(self, query: ListQuery, until_s: float) -> Page | None:
        """One page of the current state, None when the server does not answer in time; without
        admission, for it is one small request."""
        try:
            async with asyncio.timeout_at(until_s):
                return await self._source.list_page(
                    self._rules.plan.selection, query, stream=self.stream
                )
        except (KubeError, TimeoutError):
            return None

    def _begin_look(self, query: ListQuery, admission: StreamAdmission) -> None:
        if self._look is None:
            look = self._look_at_turn(query, admission)
            self._look = self._tasks.create_task(look, name=f"look {self.stream}")
            self._look.add_done_callback(self._end_read)

    def _end_read(self, look: asyncio.Task[_Look | None]) -> None:
        """The read of the watch that waits ends, so that it returns what the small list showed."""
        if look is not self._look or self._reading is None or self._reading.expired():
            return
        if self._watches():
            self._reading.reschedule(asyncio.get_running_loop().time())

    def _watches(self) -> bool:
        return type(self.state) is machine.Watching

    async def _look_at_turn(self, query: ListQuery, admission: StreamAdmission) -> _Look | None:
        """Make the small list once it is this stream's turn; None if it is not wanted then."""
        now_s = asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, admission.look_turn_s(now_s()) - now_s()))
        state, asked_at_s, cursor = self.state, now_s(), self.cursor
        if state is None or not machine.wants_look(state):
            return None
        page = await self._small_list(query, asked_at_s + machine.CHECK_WITHIN_S)
        return _Look(page, asked_at_s, cursor)

    def _looked(self) -> machine.VersionChecked | None:
        """What the small list showed that has ended, if one has, for a watch that is read."""
        if self._look is None or not self._look.done() or not self._watches():
            return None
        look, self._look = self._look.result(), None
        if look is None:
            return None
        page, history = look.page, _NO_ANSWER
        if page is not None:
            # of a part, the page lacks what belongs to the others
            whole = self._rules.plan.selection.part is None or page.objects
            history = self._looks.judge(page, self.cursor) if whole else "same"
        version = "" if page is None else page.resource_version
        return machine.VersionChecked(version, look.asked_at_s, look.cursor, history)

    async def _check_lists(
        self, check: machine.CheckLists, admission: StreamAdmission
    ) -> machine.ListsChecked:
        now_s, lists = asyncio.get_running_loop().time, self._admission.failing_lists
        began_s = now_s()
        if not lists.allows(began_s):
            return machine.ListsChecked("", may_list=False, asked_at_s=began_s)
        turn_s = admission.look_turn_s(began_s)
        await asyncio.sleep(max(0.0, turn_s - began_s))
        asked_at_s = now_s()
        page = await self._small_list(check.query, check.until_s + asked_at_s - began_s)
        version = "" if page is None else page.resource_version
        may_list = version not in {"", check.cursor} and lists.take(now_s())
        return machine.ListsChecked(version, may_list, asked_at_s)

    async def _sleep(self, until_s: float, *, wakeable: bool) -> bool:
        """Sleep; True when `recheck` ended it."""
        woken = self._recheck if wakeable else asyncio.Event()
        try:
            async with asyncio.timeout_at(until_s):
                await woken.wait()
        except TimeoutError:
            return False
        self._recheck.clear()
        return True

    async def _end_look(self) -> None:
        if self._look is not None:
            look, self._look = self._look, None
            look.cancel()
            await asyncio.wait((look,))

    async def _close(self) -> None:
        if self._frames is not None:
            self._frames = None
            self._reporter.closed()
            await self._watch_stack.aclose()

    def _refresh_server_version(self) -> None:
        server_version = self._server_version()
        if server_version != self._rules.server_version:
            self._rules = replace(self._rules, server_version=server_version)
