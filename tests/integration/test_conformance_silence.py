"""The watch over real sockets, virtual time: watches that are silent and bring no bookmarks, as
those of Kubernetes Events."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support import virtualtime
from tests.support.following import Scene, following
from tests.support.scripted_apiserver import Api, pod, stream
from tests.support.virtualtime import virtual

HOUR_S = 3600.0
OLDEST_S = 71.0
"""A look after 65 s, and a watch of 5 s after it."""


@asynccontextmanager
async def others_written(api: Api) -> AsyncIterator[None]:
    """Other resources of the server are written."""

    async def write() -> None:
        while True:
            await asyncio.sleep(10)
            api.version += 1

    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(write(), name="others")
        yield
        writing.cancel()


def longest_unseen_s(s: Scene, since_s: float) -> float:
    moments = [since_s, *s.mirror.seen_s, asyncio.get_running_loop().time()]
    return max(later - earlier for earlier, later in itertools.pairwise(moments))


@pytest.mark.parametrize("server_version", [(1, 33), (1, 36)])
@pytest.mark.parametrize("bookmarks", [True, False])
@pytest.mark.parametrize("resumed", [False, True])
def test_a_quiet_watch_without_bookmarks_is_no_error_and_is_shown_to_be_whole_once_a_minute(
    server_version: tuple[int, int],
    caplog: pytest.LogCaptureFixture,
    *,
    bookmarks: bool,
    resumed: bool,
) -> None:
    async def scene() -> None:
        api = Api(pod("a", 1), version=100)
        api.bookmark_every_s = 0
        since_s = asyncio.get_running_loop().time()
        async with (
            others_written(api),
            following(
                api,
                server_version=server_version,
                bookmarks=bookmarks,
                cursor="100" if resumed else "",
                recovered=resumed,
            ) as s,
        ):
            await s.run_for(HOUR_S)
            assert longest_unseen_s(s, since_s) <= OLDEST_S
            looks = [each for each in api.list_requests if each.query.get("limit") == "1"]
            assert HOUR_S / 80 < len(looks) <= HOUR_S / 50
            assert s.count("watch_ends_total", reason="error") == 0
            assert s.count("watch_ends_total", reason="silent") == len(looks) - resumed
            assert len(api.watch_requests) <= 2 * len(looks) + 2
            assert s.status.last_error is None
            assert s.status.state == "watching"
            api.put(pod("b", 0))
            await s.until(lambda: "b" in s.mirror.names, 6)

    with caplog.at_level(logging.INFO, "watchrelay"):
        virtualtime.run(scene())
    messages = [each.message for each in caplog.records if each.message != "stream changed state"]
    assert messages == ["no bookmarks come; a silent watch is checked once a minute"]


@virtual
async def test_while_nothing_at_all_is_written_the_watch_stays_open() -> None:
    api = Api(pod("a", 1), version=100)
    api.bookmark_every_s = 0
    since_s = asyncio.get_running_loop().time()
    async with following(api) as s:
        await s.run_for(HOUR_S)
        assert longest_unseen_s(s, since_s) <= OLDEST_S
        assert len(api.watch_requests) <= HOUR_S / 300 + 1
        assert s.count("watch_ends_total", reason="timeout") == len(api.watch_requests) - 1


@virtual
async def test_a_dead_watch_without_bookmarks_lacks_a_change_for_a_minute_and_is_not_seen_meanwhile() -> (
    None
):
    api = Api(pod("a", 1), version=100)
    api.bookmark_every_s = 0
    api.watches.append(stream(then="hang"))
    async with following(api, settled=True) as s:
        listed_s = s.mirror.seen_s[-1]
        api.put(pod("b", 0))
        await s.run_for(60)
        assert s.mirror.seen_s[-1] == listed_s
        await s.until(lambda: s.mirror.names == ["a", "b"], 10)
        assert len(api.watch_requests) == 2


@virtual
async def test_the_small_lists_of_many_quiet_streams_come_one_after_another() -> None:
    api = Api(pod("a", 1), version=100)
    api.bookmark_every_s = 0
    async with others_written(api), following(api, watchers=120, settled=True) as s:
        began = len(api.list_requests)
        await s.run_for(150)
        looks = [each.at_s for each in api.list_requests[began:]]
        assert len(looks) >= 120 * 2
        in_a_second = [sum(1 for other in looks if at_s <= other < at_s + 1.0) for at_s in looks]
        assert max(in_a_second) <= 52
