"""Lists from whose versions no watch works: they follow at a growing pace."""

from itertools import pairwise

import pytest

from tests.support.watchmachine import Played, frame, rules
from watchrelay.core.errors import Expired, Invalid, KubeError, Undecodable, VersionTooLarge
from watchrelay.model.frames import Failure, ListQuery
from watchrelay.watch.machine import start, step
from watchrelay.watch.messages import (
    Event,
    FetchPage,
    FramesReceived,
    RequestFailed,
    SleepEnded,
    WatchEnded,
    WatchOpened,
)

GARBAGE = Undecodable("a watch line cannot be decoded: it is not JSON")
FOR_S = 2 * 3600.0


class Vain(Played):
    """A server that answers each list, and from whose versions no watch works: each is refused with
    `error`, or brings a line that is no JSON and ends. `then_works_at_s`: from then on each brings
    an object first."""

    def __init__(self, error: KubeError, *, then_works_at_s: float = FOR_S) -> None:
        super().__init__(rules())
        self.error, self.works_at_s, self.reads = error, then_works_at_s, 0

    def list_version(self) -> int:
        return 1000 + int(self.now_s)

    def open(self) -> Event:
        if self.now_s >= self.works_at_s:
            return WatchOpened()
        self.reads = 0
        return WatchOpened() if self.error is GARBAGE else RequestFailed(self.error)

    def read(self, until_s: float) -> Event:
        self.reads += 1
        if self.now_s >= self.works_at_s:
            self.now_s += 5.0
            brought = frame("a", str(10**9 + self.reads))
            return FramesReceived([brought, Failure(self.error)], self.now_s)
        if self.reads % 2:
            return FramesReceived([Failure(self.error)], self.now_s)
        return WatchEnded()


def gaps_s(listed_s: list[float]) -> list[float]:
    return [later - before for before, later in pairwise(listed_s)]


@pytest.mark.parametrize(
    "error",
    [
        GARBAGE,
        Expired("410", status=410),
        Invalid("400", about="version", status=400),
        VersionTooLarge("504", status=504),
    ],
)
def test_lists_from_whose_versions_no_watch_works_follow_at_a_growing_pace(
    error: KubeError,
) -> None:
    server = Vain(error)
    server.run(FOR_S)
    assert len([each for each in server.listed_s if each < 120.0]) >= 4, "the first follow soon"
    assert len(server.listed_s) <= 40
    assert 250.0 < max(gaps_s(server.listed_s)) < 400.0


def test_such_a_pace_ends_with_a_watch_that_brought_something() -> None:
    server = Vain(GARBAGE, then_works_at_s=3600.0)
    server.run(3600.0 + 1800.0)
    after = gaps_s([each for each in server.listed_s if each > 3700.0])
    assert not after or max(after) < 120.0


def test_a_list_from_the_servers_cache_that_cannot_be_decoded_is_followed_by_pages() -> None:
    by = rules(list_semantic="any", page_size=500)
    state, commands = start(by, now_s=0.0)
    assert commands[-1] == FetchPage(ListQuery(limit=500, resource_version="0"))
    state, _ = step(by, state, RequestFailed(Undecodable("more than 1000 items")), 1.0)
    _, commands = step(by, state, SleepEnded(), 5.0)
    assert commands[-1] == FetchPage(ListQuery(limit=500)), "the cache ignores the limit"
