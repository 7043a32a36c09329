"""The loop of one stream's watch: performs the machine's commands, and feeds their results back as
events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol

from msgspec.structs import replace

from watchrelay.core.errors import KubeError
from watchrelay.model.frames import Frame, ListQuery, Page, WatchQuery
from watchrelay.model.progress import StreamProgress
from watchrelay.model.resources import Availability, Resource, Selection
from watchrelay.model.streams import WatchPlan
from watchrelay.model.watch_output import ListDone, Watched, WatchOutput
from watchrelay.observe.metrics import StreamMetrics
from watchrelay.observe.status import StreamStatus
from watchrelay.watch import machine, messages
from watchrelay.watch.admission import LARGE_LIST_OBJECTS, Admission, StreamAdmission
from watchrelay.watch.context import WatchRules
from watchrelay.watch.history import Held, HistoryCheck
from watchrelay.watch.reporting import WatchReporter
from watchrelay.watch.states import State, Watching, keeps_list_slot, wants_version_check


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

    def take_now(self, output: Watched) -> None:
        """Take an output of the watch without waiting. Legal while `ready`."""
        ...


Discover = Callable[[Resource], Awaitable[Availability]]
"""What discovery reports about a resource, by a new request."""


SMALL_LIST_WITHIN_S = 10.0
"""A small list is given up after this time."""


@dataclass(frozen=True, slots=True)
class _ShownVersion:
    """The page of a version check, None without an answer; when that was requested, and up to where
    the watch had come then."""

    page: Page | None
    asked_at_s: float
    cursor: str


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
        self._history = HistoryCheck(outlet)
        self._version_check: asyncio.Task[_ShownVersion | None] | None = None
        """The version check that is in flight beside the watch, or beside a pause after it."""
        self._reading: asyncio.Timeout | None = None
        """The deadline of the read that waits, which a version check that ends brings forward."""
        self.state: State | None = None

    @property
    def cursor(self) -> str:
        """The version up to which everything was delivered."""
        state = self.state
        if state is None:
            return self._start_cursor
        return state.cursor if isinstance(state, Watching) else state.context.cursor

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
        with self._admission.register() as admission:
            try:
                state, commands = self._start(
                    self._rules, now_s=_now_s(), first_wait_s=admission.first_wait_s
                )
                self._reporter.stepped(state)
                while True:
                    if not keeps_list_slot(state):
                        admission.release_list_slot()
                    blocked_s = await self._deliver(commands)
                    self.state = state
                    event = await self._act(commands[-1], admission, blocked_s)
                    # frames that `_step_at_once` took during the read have advanced self.state
                    previous = self.state
                    assert previous is not None
                    state, commands = machine.step(self._rules, previous, event, _now_s())
                    watches_on = type(previous) is Watching and type(state) is Watching
                    if not (watches_on and type(event) is messages.FramesReceived):
                        self._refresh_server_version()
                        self._reporter.stepped(state, event)
            finally:
                await self._end_version_check()
                await self._close()
                self._reporter.stopped()

    async def _deliver(self, commands: tuple[messages.Command, ...]) -> float:
        """Deliver what the step brought. Returns the seconds it took: while events wait for room,
        the silence of the server is not measured."""
        if len(commands) == 1:
            return 0.0
        began_at_s = _now_s()
        for command in commands[:-1]:
            if isinstance(command, messages.Report):
                self._reporter.report(command)
            else:
                assert isinstance(command, WatchOutput), f"{command} is not the last command"
                self._reporter.delivering(command)
                await self._outlet.take(command)
        return _now_s() - began_at_s

    async def _act(
        self, action: messages.Command, admission: StreamAdmission, blocked_s: float
    ) -> messages.Event:
        match action:
            case messages.ReadWatch(until_s=until_s):
                return await self._read(until_s + blocked_s, admission)
            case messages.CheckVersion(query=query, until_s=until_s):
                self._begin_version_check(query, admission)
                return await self._read(until_s + blocked_s, admission)
            case messages.CheckLists(query=query):
                await self._close()
                return await self._check_lists(query, admission)
            case ListDone():
                return messages.ListFinished(await self._outlet.take(action))
            case messages.FetchPage(query=query) | messages.OpenWatch(query=query):
                return await self._request(query, admission)
            case messages.Sleep(until_s=until_s, wakeable=wakeable):
                await self._close()
                return messages.SleepEnded(await self._sleep(until_s, wakeable=wakeable))
            case messages.CheckDiscovery():
                await self._close()
                return messages.DiscoveryChecked(
                    await self._availability(self._rules.plan.selection.resource)
                )
            case _:
                raise AssertionError(f"{type(action).__name__} is not an action")

    async def _read(self, until_s: float, admission: StreamAdmission) -> messages.Event:
        """Wait for frames until `until_s`. A version check that ends meanwhile ends the wait early
        (`_end_read`); frames that `_step_at_once` takes meanwhile put off the deadline."""
        assert self._frames is not None, "read without an open watch"
        while True:
            if (checked := self._take_version_check()) is not None:
                return checked
            try:
                async with asyncio.timeout_at(until_s) as self._reading:
                    frames = await anext(self._frames)
                break
            except StopAsyncIteration:
                return messages.WatchEnded()
            except TimeoutError:
                if self._version_check_ended():
                    continue
                state = self.state
                if type(state) is not Watching or state.read_until_s <= until_s:
                    return messages.DeadlineReached()
                until_s = state.read_until_s
            except KubeError as error:
                admission.watch_broke(error)
                return messages.RequestFailed(error)
            finally:
                self._reading = None
        self._reporter.received(frames)
        return messages.FramesReceived(frames, _now_s())

    def _step_at_once(self, frames: list[Frame]) -> bool:
        """Perform the step of these frames at once, while `_read` waits for them, if the watch goes
        on as before and their delivery need not wait. False: nothing was done."""
        previous = self.state
        if type(previous) is not Watching or not self._outlet.ready():
            return False
        now_s = asyncio.get_running_loop().time()
        event = messages.FramesReceived(frames, now_s)
        state, commands = machine.step(self._rules, previous, event, now_s)
        # every step that skips an object, reports an error or ends the watch replaces the context.
        # Where it is still the same object, the commands are deliveries of the watch alone, and the
        # deadline of `_read` only moves to a later time
        if type(state) is not Watching or state.context is not previous.context:
            return False
        if type(commands[-1]) is not messages.ReadWatch:
            return False
        self._reporter.received(frames)
        for command in commands[:-1]:
            assert isinstance(command, Watched)
            self._outlet.take_now(command)
        self.state = state
        return True

    async def _request(
        self, query: ListQuery | WatchQuery, admission: StreamAdmission
    ) -> messages.Event:
        await self._close()
        self._recheck.clear()
        streaming = isinstance(query, WatchQuery) and query.send_initial_events
        listing = streaming or isinstance(query, ListQuery)
        if listing:
            await self._end_version_check()
            large = self._reporter.objects_listed > LARGE_LIST_OBJECTS
            await admission.acquire_list_slot(large=large)
        await admission.enter(self._reporter.paused)
        self._reporter.requesting(streaming=streaming, listing=listing)
        selection, asked_at_s = self._rules.plan.selection, _now_s()
        event: messages.Event
        try:
            if isinstance(query, ListQuery):
                page = await self._source.list_page(selection, query, stream=self.stream)
                event = messages.PageReceived(page)
            else:
                opened = self._source.watch(
                    selection, query, stream=self.stream, take=self._step_at_once
                )
                self._frames = await self._watch_stack.enter_async_context(opened)
                event = messages.WatchOpened(_now_s() - asked_at_s)
        except KubeError as error:
            # a 500 may come of this stream's cursor; 502 to 504, as of a proxy, concern all
            if not listing and error.status == 500:
                admission.answered()
            else:
                admission.failed(error)
            return messages.RequestFailed(error)
        admission.answered()
        if self._frames is not None:
            self._reporter.opened(streaming=streaming)
            if not streaming:
                self._on_accepted()
        return event

    async def _small_list(self, query: ListQuery) -> Page | None:
        """One page of the current state, None when the server does not answer in time; without
        admission, for it is one small request."""
        try:
            async with asyncio.timeout(SMALL_LIST_WITHIN_S):
                return await self._source.list_page(
                    self._rules.plan.selection, query, stream=self.stream
                )
        except (KubeError, TimeoutError):
            return None

    def _begin_version_check(self, query: ListQuery, admission: StreamAdmission) -> None:
        if self._version_check is None:
            check = self._make_version_check(query, admission)
            self._version_check = self._tasks.create_task(check, name=f"check {self.stream}")
            self._version_check.add_done_callback(self._end_read)

    async def _make_version_check(
        self, query: ListQuery, admission: StreamAdmission
    ) -> _ShownVersion | None:
        """Make a version check once it is this stream's turn; None if it is not wanted then."""
        await _sleep_until(admission.small_list_at_s(_now_s()))
        state, asked_at_s, cursor = self.state, _now_s(), self.cursor
        if state is None or not wants_version_check(state):
            return None
        return _ShownVersion(await self._small_list(query), asked_at_s, cursor)

    def _end_read(self, check: asyncio.Task[_ShownVersion | None]) -> None:
        """End the read of the watch that waits, so that it returns what the check showed."""
        if check is not self._version_check or self._reading is None or self._reading.expired():
            return
        if self._version_check_ended():
            self._reading.reschedule(_now_s())

    def _version_check_ended(self) -> bool:
        """Whether a version check has ended, for a watch that is read."""
        check = self._version_check
        return check is not None and check.done() and type(self.state) is Watching

    def _take_version_check(self) -> messages.VersionChecked | None:
        """What the version check showed that has ended, if one has, for a watch that is read."""
        if self._version_check is None or not self._version_check_ended():
            return None
        shown, self._version_check = self._version_check.result(), None
        if shown is None:
            return None
        if (page := shown.page) is None:
            return messages.VersionChecked("", shown.asked_at_s, shown.cursor, history="")
        # no object of a part may mean that the page had one of another part
        may_judge = self._rules.plan.selection.part is None or page.objects
        history = self._history.judge(page, self.cursor) if may_judge else "same"
        version = page.resource_version
        return messages.VersionChecked(version, shown.asked_at_s, shown.cursor, history)

    async def _check_lists(
        self, query: ListQuery, admission: StreamAdmission
    ) -> messages.ListsChecked:
        """Make a small list, if the pace of all streams' lists allows one that may follow it."""
        began_s, pace = _now_s(), self._admission.failing_lists
        if not pace.allows(began_s):
            return messages.ListsChecked("", may_list=False, asked_at_s=began_s)
        await _sleep_until(admission.small_list_at_s(began_s))
        asked_at_s = _now_s()
        page = await self._small_list(query)
        version = "" if page is None else page.resource_version
        may_list = version not in {"", self.cursor} and pace.take(_now_s())
        return messages.ListsChecked(version, may_list, asked_at_s)

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

    async def _end_version_check(self) -> None:
        if self._version_check is not None:
            check, self._version_check = self._version_check, None
            check.cancel()
            await asyncio.wait((check,))

    async def _close(self) -> None:
        if self._frames is not None:
            self._frames = None
            self._reporter.closed()
            await self._watch_stack.aclose()

    def _refresh_server_version(self) -> None:
        server_version = self._server_version()
        if server_version != self._rules.server_version:
            self._rules = replace(self._rules, server_version=server_version)


def _now_s() -> float:
    return asyncio.get_running_loop().time()


async def _sleep_until(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - _now_s()))
