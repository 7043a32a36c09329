"""Watches each of which ends before its time and shows nothing: a delete that was missed is found,
and a right server is not listed."""

from random import Random

import pytest

from tests.support.watchmachine import PODS
from watchrelay.core.errors import Interrupted
from watchrelay.model.frames import Bookmark, Page
from watchrelay.model.streams import WatchPlan
from watchrelay.watch.context import WatchRules
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
    State,
    VersionChecked,
    WatchEnded,
    Watching,
    WatchOpened,
    start,
    step,
)


class Silent:
    """A stream whose watches show nothing: each is cut after `life_s`, cleanly or not, after one
    bookmark at the cursor or none. `right`: the server ends a watch in its time, and nothing is
    missed; else it ends none, and only a list shows the delete. Other resources change always."""

    def __init__(self, seed: int, *, right: bool) -> None:
        self.rng = rng = Random(seed)
        self.by = WatchRules(WatchPlan(PODS), Random(seed), (1, 36))
        self.right, self.now_s, self.listed_s = right, 0.0, list[float]()
        self.life_s = rng.uniform(13.0, 90.0) if right else rng.choice([rng.uniform(0, 95), 1e9])
        self.by_error = rng.choice([None, Interrupted("cut"), Interrupted("500", status=500)])
        self.bookmark, self.looks, self.watches = rng.random() < 0.5, 0, 0
        self.last: Command | None = None

    def read(self, watch: Watching, until_s: float) -> Event:
        if self.bookmark and not watch.frames_received:
            return FramesReceived([Bookmark(watch.cursor)], self.now_s)
        timeout_s = watch.query.timeout_s
        in_time = self.right and timeout_s <= self.life_s
        client_s = watch.opened_at_s + timeout_s + 15.0
        end_s = watch.opened_at_s + (timeout_s if in_time else self.life_s)
        self.now_s = max(self.now_s, min(end_s, until_s, client_s))
        if self.now_s < min(end_s, client_s):
            return DeadlineReached()
        if end_s > client_s:
            return RequestFailed(Interrupted("the client's limit"))
        return WatchEnded() if in_time or not self.by_error else RequestFailed(self.by_error)

    def event(self, action: Command, state: State) -> Event:
        match action:
            case Sleep(until_s=until_s):
                self.now_s = max(self.now_s, until_s)
                return SleepEnded()
            case OpenWatch():
                self.watches += 1
                return WatchOpened()
            case FetchPage():
                self.listed_s.append(self.now_s)
                return PageReceived(Page(str(100 + int(self.now_s)), None, []))
            case FinishList():
                return ListFinished(accepted=True)
            case CheckLists():
                self.looks += 1
                return ListsChecked(
                    str(101 + int(self.now_s)), may_list=True, asked_at_s=self.now_s
                )
            case CheckVersion() if not isinstance(self.last, CheckVersion):
                self.looks += 1
                return VersionChecked(str(101 + int(self.now_s)), self.now_s)
            case CheckVersion(until_s=until_s) | ReadWatch(until_s=until_s):
                assert isinstance(state, Watching)
                return self.read(state, until_s)
            case other:
                raise AssertionError(other)

    def run(self, for_s: float) -> None:
        state, commands = start(self.by, cursor="100", now_s=0.0)
        while self.now_s < for_s:
            action = commands[-1]
            event = self.event(action, state)
            self.last = action
            state, commands = step(self.by, state, event, self.now_s)


@pytest.mark.parametrize("seed", range(25))
def test_a_delete_that_no_watch_shows_is_found_whatever_ends_them(seed: int) -> None:
    silent = Silent(seed, right=False)
    silent.run(3 * 3600.0)
    assert silent.listed_s[0] <= 1800.0
    assert len(silent.listed_s) <= 7, "after 5, 10, 20, 40 and each 60 minutes"
    assert silent.looks <= 3 * 66


@pytest.mark.parametrize("seed", range(25))
def test_a_right_server_behind_a_proxy_that_cuts_silent_watches_is_never_listed(seed: int) -> None:
    silent = Silent(seed, right=True)
    silent.run(3 * 3600.0)
    assert silent.listed_s == []
    assert silent.looks <= (3 * 66 if silent.life_s > 60 else 3 * 6 + 1)
    assert silent.watches <= 3 * 3600 / silent.life_s * 1.5 + 3 * 60
