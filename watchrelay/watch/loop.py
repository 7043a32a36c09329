"""The loop of one stream's watch: performs the machine's commands, and feeds their results back as
events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from random import Random
from typing import Protocol, assert_never

from msgspec.structs import replace

from watchrelay.core.errors import KubeError
from watchrelay.model.frames import Frame, ListQuery, Page, WatchQuery
from watchrelay.model.resources import Resource, Selection
from watchrelay.model.streams import WatchPlan
from watchrelay.model.watch_output import CursorMoved, WatchedObjects, WatchOutput
from watchrelay.observe.metrics import StreamMetrics
from watchrelay.observe.status import StreamStatus
from watchrelay.watch import machine
from watchrelay.watch.admission import LARGE_LIST_OBJECTS, Admission, StreamAdmission
from watchrelay.watch.context import WatchRules
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


class Outlet(Protocol):
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


IsServed = Callable[[Resource], Awaitable[bool | None]]
"""Whether discovery reports a resource as served; None when it cannot tell (a stale group, an
unavailable server)."""


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
        served: IsServed,
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
        self._served = served
        self._server_version = server_version
        self._rules = WatchRules(plan, rng or Random(), server_version())
        self._start_cursor = cursor
        self._start = partial(
            machine.start, cursor=cursor, newest_on_log=newest_on_log, recovered=recovered
        )
        self._on_accepted = on_accepted
        self._reporter = WatchReporter(stream, metrics, status)
        self._recheck = asyncio.Event()
        self._watch_stack = AsyncExitStack()
        self._frames: AsyncIterator[list[Frame]] | None = None
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
        loop = asyncio.get_running_loop()
        with self._admission.register() as admission:
            try:
                state, commands = self._start(
                    self._rules, now_s=loop.time(), first_wait_s=admission.first_wait_s
                )
                self._reporter.began(state)
                while True:
                    if not machine.needs_list_slot(state):
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
                return machine.VersionChecked(await self._current_resource_version(query, until_s))
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
                    await self._served(self._rules.plan.selection.resource)
                )
            case machine.Deliver() | machine.ReportSkipped():
                raise AssertionError(f"{type(action).__name__} is not an action")
            case _:
                assert_never(action)

    async def _read(self, until_s: float, admission: StreamAdmission) -> machine.Event:
        assert self._frames is not None, "read without an open watch"
        while True:
            try:
                async with asyncio.timeout_at(until_s):
                    frames = await anext(self._frames)
                break
            except StopAsyncIteration:
                return machine.WatchEnded()
            except TimeoutError:
                # frames that `_step_at_once` took meanwhile have moved the deadline
                state = self.state
                if type(state) is not machine.Watching or state.read_until_s <= until_s:
                    return machine.DeadlineReached()
                until_s = state.read_until_s
            except KubeError as error:
                admission.watch_broke(error)
                return machine.RequestFailed(error)
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
            admission.failed(error)
            return machine.RequestFailed(error)
        admission.answered()
        if self._frames is not None:
            self._reporter.opened(streaming=streaming)
            if not streaming:
                self._on_accepted()
        return event

    async def _current_resource_version(self, query: ListQuery, until_s: float) -> str:
        """The current resourceVersion, "" when the server does not answer in time; without
        admission, for it is one small request."""
        try:
            async with asyncio.timeout_at(until_s):
                page = await self._source.list_page(
                    self._rules.plan.selection, query, stream=self.stream
                )
        except (KubeError, TimeoutError):
            return ""
        return page.resource_version

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

    async def _close(self) -> None:
        if self._frames is not None:
            self._frames = None
            self._reporter.closed()
            await self._watch_stack.aclose()

    def _refresh_server_version(self) -> None:
        server_version = self._server_version()
        if server_version != self._rules.server_version:
            self._rules = replace(self._rules, server_version=server_version)
