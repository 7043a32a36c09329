"""Lists from whose versions no watch works: they follow at a growing pace."""

from itertools import pairwise

import pytest

from tests.support.watchmachine import frame, rules
from watchrelay.core.errors import Expired, Invalid, KubeError, Undecodable, VersionTooLarge
from watchrelay.model.frames import Failure, ListQuery, ObjectFrame, Page
from watchrelay.watch.machine import (
    CheckLists,
    CheckVersion,
    Command,
    DeadlineReached,
    Event,
    FetchPage,
    FinishList,
    FramesReceived,
    ListFinished,
    ListsChecked,
    OpenWatch,
    PageReceived,
    ReadWatch,
    RequestFailed,
    Sleep,
    SleepEnded,
    WatchEnded,
    WatchOpened,
    start,
    step,
)

GARBAGE = Undecodable("a watch line cannot be decoded: it is not JSON")
FOR_S = 2 * 3600.0


class Vain:
    """A server that answers each list, and from whose versions no watch works: each is refused with
    `error`, or brings a line that is no JSON and ends. `then_works_at_s`: from then on each brings
    an object first."""

    def __init__(self, error: KubeError, *, then_works_at_s: float = FOR_S) -> None:
        self.error, self.works_at_s = error, then_works_at_s
        self.now_s, self.reads = 0.0, 0
        self.listed_s = list[float]()

    def read(self) -> Event:
        self.reads += 1
        if self.now_s >= self.works_at_s:
            self.now_s += 5.0
            object_frame: ObjectFrame = frame("a", str(10**9 + self.reads))
            return FramesReceived([object_frame, Failure(self.error)], self.now_s)
        if self.reads % 2:
            return FramesReceived([Failure(self.error)], self.now_s)
        return WatchEnded()

    def event(self, action: Command) -> Event:
        match action:
            case Sleep(until_s=until_s):
                self.now_s = max(self.now_s, until_s)
                return SleepEnded()
            case OpenWatch() if self.error is GARBAGE or self.now_s >= self.works_at_s:
                self.reads = 0 if self.now_s < self.works_at_s else self.reads
                return WatchOpened()
            case OpenWatch():
                return RequestFailed(self.error)
            case FetchPage():
                self.listed_s.append(self.now_s)
                return PageReceived(Page(str(1000 + int(self.now_s)), None, []))
            case FinishList():
                return ListFinished(accepted=True)
            case CheckLists():
                return ListsChecked("", may_list=False, asked_at_s=self.now_s)
            case ReadWatch():
                return self.read()
            case CheckVersion():
                return DeadlineReached()
            case other:
                raise AssertionError(other)

    def run(self, for_s: float = FOR_S) -> list[float]:
        by = rules()
        state, commands = start(by, now_s=0.0)
        while self.now_s < for_s:
            state, commands = step(by, state, self.event(commands[-1]), self.now_s)
        return self.listed_s


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
    listed_s = Vain(error).run()
    gaps_s = [later - before for before, later in pairwise(listed_s)]
    assert len([each for each in listed_s if each < 120.0]) >= 4, "the first ones follow soon"
    assert len(listed_s) <= 40
    assert 250.0 < max(gaps_s) < 400.0


def test_such_a_pace_ends_with_a_watch_that_brought_something() -> None:
    server = Vain(GARBAGE, then_works_at_s=3600.0)
    listed_s = [each for each in server.run(3600.0 + 1800.0) if each > 3700.0]
    gaps_s = [later - before for before, later in pairwise(listed_s)]
    assert not gaps_s or max(gaps_s) < 120.0


def test_a_list_from_the_servers_cache_that_cannot_be_decoded_is_followed_by_pages() -> None:
    by = rules(list_semantic="any", page_size=500)
    state, commands = start(by, now_s=0.0)
    assert commands[-1] == FetchPage(ListQuery(limit=500, resource_version="0"))
    state, _ = step(by, state, RequestFailed(Undecodable("more than 1000 items")), 1.0)
    _, commands = step(by, state, SleepEnded(), 5.0)
    assert commands[-1] == FetchPage(ListQuery(limit=500)), "the cache ignores the limit"
