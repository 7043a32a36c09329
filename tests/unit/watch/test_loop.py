"""What a watcher leaves behind that is cancelled, or whose source or outlet fails."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from random import Random

import pytest

from tests.support import virtualtime
from tests.support.virtualtime import virtual
from tests.support.watchmachine import PODS, frame
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
from watchrelay.model.resources import SERVED, Availability, Resource, Selection
from watchrelay.model.streams import WatchPlan
from watchrelay.model.watch_output import ListDone, Watched, WatchOutput
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StreamStatus
from watchrelay.watch import loop
from watchrelay.watch.admission import Admission
from watchrelay.watch.loop import Watcher

Take = Callable[[list[Frame]], bool]


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
        self, selection: Selection, query: WatchQuery, *, stream: str, take: Take
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

    async def take(self, output: WatchOutput) -> bool:
        await self.countdown.tick()
        if isinstance(output, Watched):
            if self.broken:
                raise RuntimeError("the store broke")
            self.newest = output.cursor or self.newest
        return True

    def ready(self) -> bool:
        return False

    def take_now(self, output: Watched) -> None:
        raise AssertionError("never ready")

    def lacks(self, frame: ObjectFrame) -> bool:
        return False

    def holds_up_to(self, version: str) -> bool:
        return False


async def served(_: Resource) -> Availability:
    return SERVED


def watcher(
    source: loop.Source,
    outlet: Outlet,
    admission: Admission,
    *,
    cursor: str = "",
    status: StreamStatus | None = None,
    relist_interval_s: float = 0.0,
    server_version: tuple[int, int] | None = None,
) -> Watcher:
    metrics, shown = Metrics(), status or StreamStatus("pods")
    return Watcher(
        "pods",
        WatchPlan(PODS, relist_interval_s=relist_interval_s),
        source=source,
        outlet=outlet,
        admission=admission,
        metrics=metrics.stream("pods", PODS.resource),
        status=shown,
        progress=shown.progress,
        availability=served,
        server_version=lambda: server_version,
        rng=Random(1),
        cursor=cursor,
    )


@asynccontextmanager
async def running(stream: Watcher) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(stream.run(), name="pods")
        yield
        task.cancel()


@pytest.mark.parametrize("awaits", range(1, 19))
@virtual
async def test_a_cancelled_watcher_leaves_no_slot_no_watch_and_no_cursor_ahead_of_what_was_delivered(
    awaits: int,
) -> None:
    countdown, admission = Countdown(awaits), Admission()
    source, outlet = Source(countdown), Outlet(countdown)
    stream = watcher(source, outlet, admission)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(stream.run(), name="pods")
        try:
            async with asyncio.timeout(5):
                await countdown.hung.wait()
        except TimeoutError:
            assert awaits > 15, "everything before was hung at"
        task.cancel()
    assert source.open == 0
    assert admission.starting == set()
    async with asyncio.timeout(1):
        for _ in range(3):
            await admission.slots.acquire()
    if stream.cursor not in {"", "100", "110"}:
        assert stream.cursor <= outlet.newest


@virtual
async def test_an_outlet_that_raises_ends_the_watcher_and_does_not_move_the_cursor() -> None:
    countdown = Countdown(-1)
    source = Source(countdown)
    stream = watcher(source, Outlet(countdown, broken=True), Admission())
    with pytest.raises(RuntimeError, match="the store broke"):
        await stream.run()
    assert (stream.cursor, source.open) == ("100", 0)


class Lasting:
    """What a generator yields. A wait for it that is cancelled loses nothing."""

    def __init__(self, frames: AsyncIterator[list[Frame]]) -> None:
        self._frames = frames
        self._next: asyncio.Task[list[Frame]] | None = None

    def __aiter__(self) -> AsyncIterator[list[Frame]]:
        return self

    async def __anext__(self) -> list[Frame]:
        if self._next is None:
            self._next = asyncio.get_running_loop().create_task(anext(self._frames))  # type: ignore[arg-type]
        await asyncio.wait((self._next,))
        done, self._next = self._next, None
        return done.result()


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
        self, selection: Selection, query: WatchQuery, *, stream: str, take: Take
    ) -> AsyncIterator[AsyncIterator[list[Frame]]]:
        yield Lasting(self._frames(query.resource_version))

    async def _frames(self, version: str) -> AsyncIterator[list[Frame]]:
        await asyncio.sleep(0.1)
        if version == "100":
            yield [Failure(Expired("too old resource version"))]
        await asyncio.Event().wait()


@virtual
async def test_a_list_is_due_from_the_loss_of_history_until_one_is_complete() -> None:
    source, status = Forgetful(), StreamStatus("pods")
    stream = watcher(source, Outlet(Countdown(-1)), Admission(), cursor="100", status=status)
    async with running(stream):
        await asyncio.sleep(0.05)
        assert (status.state, status.progress.list_due) == ("watching", False)
        await asyncio.sleep(0.1)
        assert (status.state, status.progress.list_due) == ("backoff", True)
        await asyncio.sleep(60)
        assert status.progress.list_due
        source.lists_fail = False
        await asyncio.sleep(60)
        assert (status.state, status.progress.list_due) == ("watching", False)


class Direct:
    """A source whose watches offer a frame every `every_s`, `count` times in all, then nothing."""

    def __init__(self, every_s: float, count: int) -> None:
        self.every_s, self.left = every_s, count
        self.watches = self.refused = self.lists = 0
        self.version = "100"

    async def list_page(self, selection: Selection, query: ListQuery, *, stream: str) -> Page:
        self.lists += 1
        return Page(self.version, None, [])

    @asynccontextmanager
    async def watch(
        self, selection: Selection, query: WatchQuery, *, stream: str, take: Take
    ) -> AsyncIterator[AsyncIterator[list[Frame]]]:
        self.watches += 1
        yield DirectFrames(self, take)


class DirectFrames:
    """One of its watches. What waits for frames may be cancelled, and wait again."""

    def __init__(self, source: Direct, take: Take) -> None:
        self._source, self._take = source, take

    def __aiter__(self) -> AsyncIterator[list[Frame]]:
        return self

    async def __anext__(self) -> list[Frame]:
        source = self._source
        while source.left:
            await asyncio.sleep(source.every_s)
            source.left -= 1
            frames: list[Frame] = [frame("a", str(200 - source.left))]
            if not self._take(frames):
                source.refused += 1
                return frames
        await asyncio.Event().wait()
        raise StopAsyncIteration


class Following(Outlet):
    """Follows at once while it is `ready`."""

    def __init__(self, *, broken: bool = False) -> None:
        super().__init__(Countdown(-1), broken=broken)
        self.followed: list[str] = []
        self.full = False

    def ready(self) -> bool:
        return not self.full

    def take_now(self, output: Watched) -> None:
        if self.broken:
            raise RuntimeError("the store broke")
        self.followed.append(type(output).__name__)


@virtual
async def test_frames_are_delivered_in_the_step_that_received_them_while_the_outlet_is_ready() -> (
    None
):
    source, outlet = Direct(1.0, 4), Following()
    stream = watcher(source, outlet, Admission(), cursor="100")
    async with running(stream):
        await asyncio.sleep(2.5)
        assert (stream.cursor, outlet.followed) == (
            "198",
            ["Watched"] * 2,
        )
        outlet.full = True
        await asyncio.sleep(1)
        assert (stream.cursor, source.refused, outlet.newest) == ("199", 1, "199")
        outlet.full = False
        await asyncio.sleep(1)
        assert (stream.cursor, source.refused) == ("200", 1)


class Streaming(Direct):
    """A source of a streaming list whose watch goes on."""

    @asynccontextmanager
    async def watch(
        self, selection: Selection, query: WatchQuery, *, stream: str, take: Take
    ) -> AsyncIterator[AsyncIterator[list[Frame]]]:
        async def frames() -> AsyncIterator[list[Frame]]:
            chunks: list[list[Frame]] = [
                [frame("a", "1"), Bookmark("100", initial_end=True)],
                [frame("a", "101")],
                [frame("a", "102")],
            ]
            for each in chunks:
                if not take(each):
                    yield each
            await asyncio.Event().wait()

        yield frames()


class SlowAtEnds(Following):
    """Takes 60 s for the end of a list."""

    async def take(self, output: WatchOutput) -> bool:
        self.followed.append(type(output).__name__)
        if isinstance(output, ListDone):
            await asyncio.sleep(60)
            self.followed.append("taken")
        return True


@virtual
async def test_nothing_of_a_watch_is_delivered_before_the_end_of_its_list_is_taken() -> None:
    outlet = SlowAtEnds()
    stream = watcher(Streaming(1.0, 0), outlet, Admission(), server_version=(1, 34))
    async with running(stream):
        await asyncio.sleep(59)
        assert outlet.followed[-1] == "ListDone"
        await asyncio.sleep(2)
        end = outlet.followed.index("taken")
        assert outlet.followed[end - 1] == "ListDone"
        assert outlet.followed[end:].count("Watched") == 2


@virtual
async def test_delivered_frames_move_the_deadline_of_a_read_and_another_deadline_is_kept() -> None:
    source, outlet = Direct(30.0, 6), Following()
    stream = watcher(source, outlet, Admission(), cursor="100", relist_interval_s=400.0)
    async with running(stream):
        await asyncio.sleep(300)  # a watch that brings nothing is checked after 65 s
        assert (stream.cursor, source.watches, source.lists) == ("200", 1, 1)
        await asyncio.sleep(200)
        assert source.lists > 1


@virtual
async def test_a_watch_whose_frames_go_on_after_its_time_is_ended_and_counted() -> None:
    source, outlet = Direct(30.0, 80), Following()
    stream = watcher(source, outlet, Admission(), cursor="100")
    async with running(stream):
        await asyncio.sleep(1990)
        assert source.watches > 2
        ends = stream._reporter._metrics.watch_ends_total
        assert ends["timeout"]._value.get() == source.watches - 1
        assert sum(each._value.get() for each in ends.values()) == source.watches - 1


@virtual
async def test_an_outlet_that_raises_in_that_step_ends_the_watcher_and_moves_no_cursor() -> None:
    stream = watcher(Direct(1.0, 1), Following(broken=True), Admission(), cursor="100")
    with pytest.raises(RuntimeError, match="the store broke"):
        await stream.run()
    assert stream.cursor == "100"


class Breaking:
    """A server whose watches bring a bookmark every minute, and break `lived_s` after they were
    opened."""

    def __init__(self, lived_s: float) -> None:
        self.lived_s = lived_s

    async def list_page(self, selection: Selection, query: ListQuery, *, stream: str) -> Page:
        return Page("100", None, [])

    @asynccontextmanager
    async def watch(
        self, selection: Selection, query: WatchQuery, *, stream: str, take: Take
    ) -> AsyncIterator[AsyncIterator[list[Frame]]]:
        yield Lasting(self._frames())

    async def _frames(self) -> AsyncIterator[list[Frame]]:
        yield [Bookmark("100")]
        for _ in range(int(self.lived_s // 60)):
            await asyncio.sleep(60)
            yield [Bookmark("100")]
        await asyncio.sleep(self.lived_s % 60)
        raise Interrupted("cut")


@pytest.mark.parametrize(("lived_s", "warnings"), [(290.0, 1), (310.0, 6)])
def test_an_error_that_comes_back_after_a_healthy_watch_is_a_warning_again(
    lived_s: float, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        stream = watcher(Breaking(lived_s), Following(), Admission(), cursor="100")
        async with running(stream):
            await asyncio.sleep(2000)

    with caplog.at_level(logging.WARNING):
        virtualtime.run(scene())
    assert [record.message for record in caplog.records] == ["stream error; retrying"] * warnings


class Marking(Direct):
    """Its first frames are bookmarks, `count` of them."""

    @asynccontextmanager
    async def watch(
        self, selection: Selection, query: WatchQuery, *, stream: str, take: Take
    ) -> AsyncIterator[AsyncIterator[list[Frame]]]:
        self.watches += 1
        yield MarkingFrames(self, take)


class MarkingFrames(DirectFrames):
    async def __anext__(self) -> list[Frame]:
        if self._source.left:
            self._source.left -= 1
            return [Bookmark("99")]
        return await super().__anext__()


@pytest.mark.parametrize(("bookmarks", "reason"), [(1, "error"), (0, "silent")])
def test_a_watch_that_was_silent_for_too_long_failed_where_bookmarks_came_before(
    bookmarks: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        source = Marking(1.0, bookmarks)  # its list shows a version that its watches do not bring
        stream = watcher(source, Following(), Admission(), cursor="99")
        async with running(stream):
            await asyncio.sleep(75)
            assert source.watches == 2
            ends = stream._reporter._metrics.watch_ends_total
            counts = {name: each._value.get() for name, each in ends.items()}
            assert counts == dict.fromkeys(counts, 0) | {reason: 1}

    with caplog.at_level(logging.WARNING):
        virtualtime.run(scene())
    assert len(caplog.records) == bookmarks


@virtual
async def test_small_lists_of_many_streams_are_spread_while_their_watches_are_read() -> None:
    admission = Admission()
    turns = [admission.take_small_list_turn(100.0) for _ in range(50)]
    assert turns == pytest.approx([100.0 + n / 50 for n in range(50)])

    source, outlet = Direct(4.0, 1), Following()
    source.version = "200"
    admission = Admission()
    now_s = asyncio.get_running_loop().time
    for _ in range(500):
        admission.take_small_list_turn(now_s())
    stream = watcher(source, outlet, admission, cursor="100")
    async with running(stream):
        await asyncio.sleep(9.5)
        assert (source.lists, len(outlet.followed)) == (0, 1), "its turn comes at 10 s"
        await asyncio.sleep(1)
        assert source.lists == 1


class Listed(Forgetful):
    """A server whose lists take two seconds and have this version."""

    def __init__(self, version: str) -> None:
        super().__init__()
        self.version = version

    async def list_page(self, selection: Selection, query: ListQuery, *, stream: str) -> Page:
        if query.limit == 1:
            raise Interrupted("no answer")
        await asyncio.sleep(2.0)
        return Page(self.version, None, [])


class Doubting(Following):
    """The first list is suspicious."""

    async def take(self, output: WatchOutput) -> bool:
        return not isinstance(output, ListDone) or output.accept_any_size


@pytest.mark.parametrize(
    ("source", "outlet"),
    [(Listed("50"), Following()), (Listed("200"), Doubting())],
    ids=["restored", "suspicious"],
)
@virtual
async def test_a_list_that_is_made_again_counts_as_failed_and_is_timed_by_itself(
    source: Listed, outlet: Following
) -> None:
    stream = watcher(source, outlet, Admission(), cursor="101", relist_interval_s=5.0)
    async with running(stream):
        await asyncio.sleep(10)
        metrics = stream._reporter._metrics
        counts = {result: each._value.get() for result, each in metrics.list_total.items()}
        assert counts == {"success": 1, "expired": 0, "error": 1}
        assert 2.0 <= metrics.list_duration_seconds._sum.get() < 3.0
