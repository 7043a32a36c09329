"""What a watcher leaves behind that is cancelled, or whose source or outlet fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random

import pytest

from tests.support import virtualtime
from watchrelay.core.errors import Expired, Interrupted
from watchrelay.model.frames import (
    Bookmark,
    Failure,
    Frame,
    ListQuery,
    ObjectFrame,
    Page,
    WatchQuery,
)
from watchrelay.model.resources import Resource, Selection
from watchrelay.model.streams import WatchPlan
from watchrelay.model.watch_events import Observed, Watched
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StreamStatus
from watchrelay.watch import loop
from watchrelay.watch.admission import Admission
from watchrelay.watch.loop import Watcher

PODS = Resource("", "v1", "pods", "Pod", namespaced=True)


def frame(name: str, version: str) -> ObjectFrame:
    return ObjectFrame("ADDED", "shop", name, f"uid-{name}", version, {}, {}, 10)


class Countdown:
    """Hangs at the n-th await of those that share it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.hung = asyncio.Event()

    async def tick(self) -> None:
        await asyncio.sleep(0)
        self.count -= 1
        if self.count == 0:
            self.hung.set()
            await asyncio.Event().wait()


class Source:
    def __init__(self, countdown: Countdown) -> None:
        self.countdown = countdown
        self.open = 0

    async def list_page(self, selection: Selection, query: ListQuery, *, stream: str) -> Page:
        await self.countdown.tick()
        return Page("100", None if query.continue_token else "more", [frame("a", "1")])

    def watch(
        self, selection: Selection, query: WatchQuery, *, stream: str
    ) -> AbstractAsyncContextManager[AsyncIterator[list[Frame]]]:
        return self._watch()

    @asynccontextmanager
    async def _watch(self) -> AsyncIterator[AsyncIterator[list[Frame]]]:
        await self.countdown.tick()
        self.open += 1
        try:
            yield self._frames()
        finally:
            self.open -= 1

    async def _frames(self) -> AsyncIterator[list[Frame]]:
        for version in range(101, 104):
            await self.countdown.tick()
            yield [frame("b", str(version))]
        await self.countdown.tick()
        yield [Bookmark("110")]
        await asyncio.Event().wait()


class Outlet:
    def __init__(self, countdown: Countdown, *, broken: bool = False) -> None:
        self.countdown = countdown
        self.broken = broken
        self.newest = ""

    async def take(self, event: Watched) -> bool:
        await self.countdown.tick()
        if isinstance(event, Observed):
            if self.broken:
                raise RuntimeError("the store broke")
            self.newest = event.frames[-1].resource_version
        return True


async def served(_: Resource) -> bool | None:
    return True


def watcher(
    source: loop.Source,
    outlet: Outlet,
    admission: Admission,
    *,
    cursor: str = "",
    status: StreamStatus | None = None,
) -> Watcher:
    metrics = Metrics()
    return Watcher(
        "pods",
        WatchPlan(Selection(PODS)),
        source=source,
        outlet=outlet,
        admission=admission,
        metrics=metrics.stream("pods", PODS),
        status=status or StreamStatus("pods"),
        served=served,
        rng=Random(1),
        cursor=cursor,
    )


@pytest.mark.parametrize("awaits", range(1, 20))
def test_a_cancelled_watcher_leaves_no_slot_no_watch_and_no_cursor_ahead_of_what_was_delivered(
    awaits: int,
) -> None:
    async def scene() -> None:
        countdown, admission = Countdown(awaits), Admission()
        source, outlet = Source(countdown), Outlet(countdown)
        stream = watcher(source, outlet, admission)
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(stream.run(), name="pods")
            try:
                async with asyncio.timeout(5):
                    await countdown.hung.wait()
            except TimeoutError:
                assert awaits > 16, "everything before was hung at"
            task.cancel()
        assert source.open == 0
        assert admission.streams == 0
        async with asyncio.timeout(1):
            for _ in range(3):
                await admission.slots.acquire()
        if stream.cursor not in {"", "100", "110"}:
            assert stream.cursor <= outlet.newest

    virtualtime.run(scene())


def test_an_outlet_that_raises_ends_the_watcher_and_does_not_move_the_cursor() -> None:
    async def scene() -> None:
        countdown = Countdown(-1)
        source = Source(countdown)
        stream = watcher(source, Outlet(countdown, broken=True), Admission())
        with pytest.raises(RuntimeError, match="the store broke"):
            await stream.run()
        assert (stream.cursor, source.open) == ("100", 0)

    virtualtime.run(scene())


class Forgetful:
    """A server that accepts a watch from a version it has forgotten, and cannot list for a
    while."""

    def __init__(self) -> None:
        self.lists_fail = True

    async def list_page(self, selection: Selection, query: ListQuery, *, stream: str) -> Page:
        if self.lists_fail:
            raise Interrupted("etcdserver: request timed out", status=500)
        return Page("200", None, [])

    @asynccontextmanager
    async def watch(
        self, selection: Selection, query: WatchQuery, *, stream: str
    ) -> AsyncIterator[AsyncIterator[list[Frame]]]:
        yield self._frames(query.resource_version)

    async def _frames(self, version: str) -> AsyncIterator[list[Frame]]:
        await asyncio.sleep(0.1)
        if version == "100":
            yield [Failure(Expired("too old resource version"))]
        await asyncio.Event().wait()


def test_a_list_is_due_from_the_loss_of_history_until_one_is_complete() -> None:
    async def scene() -> None:
        source, status = Forgetful(), StreamStatus("pods")
        stream = watcher(source, Outlet(Countdown(-1)), Admission(), cursor="100", status=status)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(stream.run())
            await asyncio.sleep(0.05)
            assert (status.state, status.list_due) == ("watching", False)
            await asyncio.sleep(0.1)
            assert (status.state, status.list_due) == ("backoff", True)
            await asyncio.sleep(60)
            assert status.list_due
            source.lists_fail = False
            await asyncio.sleep(60)
            assert (status.state, status.list_due) == ("watching", False)
            running.cancel()

    virtualtime.run(scene())
