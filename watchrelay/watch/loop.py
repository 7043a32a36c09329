"""The loop of one stream's watch: performs what the machine asks for, and tells it what came of it.

Room: watch. In: pages and frames of the `Source` port. Out: `Watched` values through the `Outlet`
port, in order; status, metrics, logs. The machine's new state counts only once everything that came
with it was taken: a raise discards both.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from random import Random
from typing import Protocol, assert_never

from watchrelay.core.errors import KubeError
from watchrelay.model.frames import Frame, ListQuery, Page, WatchQuery
from watchrelay.model.resources import Resource, Selection
from watchrelay.model.streams import WatchPlan
from watchrelay.model.watch_events import Watched
from watchrelay.observe.metrics import StreamMetrics
from watchrelay.observe.status import StreamStatus
from watchrelay.watch.admission import LARGE_LIST_OBJECTS, Passage, Turnstile
from watchrelay.watch.machine import at_work, start, step
from watchrelay.watch.reporting import Journal
from watchrelay.watch.requests import Rules
from watchrelay.watch.states import (
    Answered,
    Arrived,
    AskServed,
    Command,
    Deliver,
    Due,
    Ended,
    Event,
    Failed,
    FetchPage,
    Opened,
    OpenWatch,
    Probing,
    Read,
    Received,
    Settle,
    Skipped,
    Sleep,
    State,
    Verdict,
    Vouch,
    Vouched,
    Watching,
    Woke,
)


class Source(Protocol):
    """Where pages and frames come from. Source: kube/client.py."""

    async def list_page(self, selection: Selection, query: ListQuery, *, stream: str) -> Page:
        """One page of a list. Raises: KubeError."""
        ...

    def watch(
        self, selection: Selection, query: WatchQuery, *, stream: str
    ) -> AbstractAsyncContextManager[AsyncIterator[list[Frame]]]:
        """A watch: each item holds the frames of one chunk, never none; it ends where the server
        ended it cleanly.

        Raises: KubeError, on entering and while iterating; one whose `reason` is "inactive" after
        `idle_timeout_s` without bytes.
        """
        ...


class Outlet(Protocol):
    """Who keeps the state. Source: store/reflector.py."""

    async def take(self, event: Watched) -> bool:
        """Take one event. False only ever answers an unconfirmed `ListDone`: implausible, ask once
        more with a quorum list."""
        ...


Served = Callable[[Resource], Awaitable[bool | None]]
"""Whether discovery knows a resource; None when it cannot say (a group that is stale, a server that
is away)."""


class Watcher:
    """One stream's watch. `run` it as a task; cancel it to stop.

    Shape: `server_version` gives (major, minor) or None while unknown; `cursor` is a version whose
    state the outlet holds already; `floor` and `resumed` as in `start`; `followed` is called
    whenever the server accepts a watch that goes on from the cursor.
    """

    def __init__(
        self,
        stream: str,
        plan: WatchPlan,
        *,
        source: Source,
        outlet: Outlet,
        turnstile: Turnstile,
        metrics: StreamMetrics,
        status: StreamStatus,
        served: Served,
        server_version: Callable[[], tuple[int, int] | None] = lambda: None,
        rng: Random | None = None,
        cursor: str = "",
        floor: str = "",
        resumed: bool = False,
        followed: Callable[[], None] = lambda: None,
    ) -> None:
        self.stream = stream
        self._source = source
        self._outlet = outlet
        self._turnstile = turnstile
        self._served = served
        self._server_version = server_version
        self._rules = Rules(plan, rng or Random(), server_version())
        self._start_cursor = cursor
        self._floor, self._resumed, self._followed = floor, resumed, followed
        self._journal = Journal(stream, metrics, status)
        self._recheck = asyncio.Event()
        self._open = AsyncExitStack()
        self._frames: AsyncIterator[list[Frame]] | None = None
        self.state: State | None = None

    @property
    def cursor(self) -> str:
        """The version up to which everything was taken."""
        match self.state:
            case None:
                return self._start_cursor
            case Watching(cursor=cursor):
                return cursor
            case state:
                return state.held.cursor

    def recheck(self) -> None:
        """Try now what waits for a resource or a right: discovery changed, or a right was
        granted."""
        self._recheck.set()

    async def run(self) -> None:
        """Keep the resource followed until cancelled."""
        loop = asyncio.get_running_loop()
        with self._turnstile.membership() as passage:
            try:
                state, commands = start(
                    self._rules,
                    cursor=self._start_cursor,
                    floor=self._floor,
                    resumed=self._resumed,
                    now_s=loop.time(),
                    first_wait_s=passage.first_wait_s,
                )
                self._journal.began(state)
                while True:
                    if not at_work(state):
                        passage.stand()
                    blocked_s = await self._deliver(commands)
                    self.state = state
                    event = await self._act(commands[-1], passage, blocked_s)
                    before, now_s = state, loop.time()
                    state, commands = step(self._rules, before, event, now_s)
                    if (
                        type(state) is not Watching
                        or type(event) is not Received
                        or type(before) is not Watching
                    ):
                        self._refresh_version()
                        self._journal.stepped(before, event, state, now_s)
            finally:
                await self._close()
                self._journal.stopped()

    async def _deliver(self, commands: tuple[Command, ...]) -> float:
        """Hand over what the step brought. Units: the seconds it took."""
        if len(commands) == 1:
            return 0.0
        now_s = asyncio.get_running_loop().time
        began_s = now_s()
        for command in commands[:-1]:
            match command:
                case Deliver(event=event):
                    self._journal.delivering(event)
                    await self._outlet.take(event)
                case Skipped(errors=errors):
                    self._journal.skipped(errors)
                case _:
                    raise AssertionError(f"{type(command).__name__} is not the last command")
        return now_s() - began_s

    async def _act(self, action: Command, passage: Passage, blocked_s: float) -> Event:
        match action:
            case Read(until_s=until_s):
                return await self._read(until_s + blocked_s, passage)
            case Vouch(query=query, until_s=until_s):
                return Vouched(await self._present(query, until_s))
            case Settle(event=done):
                return Verdict(await self._outlet.take(done))
            case FetchPage(query=query):
                return await self._fetch(query, passage)
            case OpenWatch(query=query):
                return await self._open_watch(query, passage)
            case Sleep(until_s=until_s, wakeable=wakeable):
                await self._close()
                return Woke(await self._sleep(until_s, wakeable=wakeable))
            case AskServed():
                await self._close()
                return Answered(await self._served(self._rules.plan.selection.resource))
            case Deliver() | Skipped():
                raise AssertionError(f"{type(action).__name__} is no action")
            case _:
                assert_never(action)

    async def _read(self, until_s: float, passage: Passage) -> Event:
        assert self._frames is not None, "a watch is read that is not open"
        try:
            if until_s == math.inf:
                frames = await anext(self._frames)
            else:
                async with asyncio.timeout_at(until_s):
                    frames = await anext(self._frames)
        except StopAsyncIteration:
            return Ended()
        except TimeoutError:
            return Due()
        except KubeError as error:
            passage.broke(error)
            return Failed(error)
        self._journal.received(frames)
        return Received(frames, asyncio.get_running_loop().time())

    async def _fetch(self, query: ListQuery, passage: Passage) -> Event:
        await self._close()
        self._recheck.clear()
        if not isinstance(self.state, Probing):
            await passage.sit(large=self._journal.objects_listed > LARGE_LIST_OBJECTS)
        await self._enter(passage)
        self._journal.requesting(streaming=False, listing=not isinstance(self.state, Probing))
        try:
            page = await self._source.list_page(
                self._rules.plan.selection, query, stream=self.stream
            )
        except KubeError as error:
            passage.failed(error)
            return Failed(error)
        passage.answered()
        return Arrived(page)

    async def _present(self, query: ListQuery, until_s: float) -> str:
        """The server's present version, "" when it does not say in time; without seat and gate, for
        it is one small request."""
        try:
            async with asyncio.timeout_at(until_s):
                page = await self._source.list_page(
                    self._rules.plan.selection, query, stream=self.stream
                )
        except (KubeError, TimeoutError):
            return ""
        return page.resource_version

    async def _open_watch(self, query: WatchQuery, passage: Passage) -> Event:
        await self._close()
        self._recheck.clear()
        if query.send_initial_events:
            await passage.sit(large=self._journal.objects_listed > LARGE_LIST_OBJECTS)
        await self._enter(passage)
        self._journal.requesting(
            streaming=query.send_initial_events, listing=query.send_initial_events
        )
        try:
            opened = self._source.watch(self._rules.plan.selection, query, stream=self.stream)
            self._frames = await self._open.enter_async_context(opened)
        except KubeError as error:
            passage.failed(error)
            return Failed(error)
        passage.answered()
        self._journal.opened(streaming=query.send_initial_events)
        if not query.send_initial_events:
            self._followed()
        return Opened()

    async def _enter(self, passage: Passage) -> None:
        await passage.enter(self._journal.held_back)
        self._journal.let_through()

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
        """Close the open watch, if any."""
        if self._frames is not None:
            self._frames = None
            self._journal.closed()
            await self._open.aclose()

    def _refresh_version(self) -> None:
        version = self._server_version()
        if version != self._rules.server_version:
            self._rules = replace(self._rules, server_version=version)
