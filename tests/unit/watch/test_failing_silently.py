"""Watches each of which ends before its time and shows nothing: a delete that was missed is found,
and a right server is not listed."""

from random import Random

import pytest

from tests.support.watchmachine import PODS, Played
from watchrelay.core.errors import Interrupted
from watchrelay.model.frames import Bookmark
from watchrelay.model.streams import WatchPlan
from watchrelay.watch.context import WatchRules
from watchrelay.watch.messages import (
    DeadlineReached,
    Event,
    FramesReceived,
    ListsChecked,
    RequestFailed,
    VersionChecked,
    WatchEnded,
)
from watchrelay.watch.states import Watching


class Silent(Played):
    """A stream whose watches show nothing: each is cut after `life_s`, cleanly or not, after one
    bookmark at the cursor or none. `right`: the server ends a watch in its time, and nothing is
    missed; else it ends none, and only a list shows the delete. Other resources change always."""

    def __init__(self, seed: int, *, right: bool) -> None:
        rng = Random(seed)
        super().__init__(WatchRules(WatchPlan(PODS), Random(seed), (1, 36)), cursor="100")
        self.right, self.checks, self.checking = right, 0, False
        self.life_s = rng.uniform(13.0, 90.0) if right else rng.choice([rng.uniform(0, 95), 1e9])
        self.by_error = rng.choice([None, Interrupted("cut"), Interrupted("500", status=500)])
        self.bookmark = rng.random() < 0.5

    def list_version(self) -> int:
        return 100 + int(self.now_s)

    def check_version(self, until_s: float) -> Event:
        self.checking = not self.checking
        if not self.checking:
            return self.read(until_s)
        self.checks += 1
        return VersionChecked(str(self.list_version() + 1), self.now_s)

    def check_lists(self) -> Event:
        self.checks += 1
        return ListsChecked(str(self.list_version() + 1), may_list=True, asked_at_s=self.now_s)

    def read(self, until_s: float) -> Event:
        watch = self.state
        assert isinstance(watch, Watching)
        if self.bookmark and not watch.any_frames:
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


@pytest.mark.parametrize("seed", range(25))
def test_a_delete_that_no_watch_shows_is_found_whatever_ends_them(seed: int) -> None:
    silent = Silent(seed, right=False)
    silent.run(3 * 3600.0)
    assert silent.listed_s[0] <= 1800.0
    assert len(silent.listed_s) <= 7, "after 5, 10, 20, 40 and each 60 minutes"
    assert silent.checks <= 3 * 66


@pytest.mark.parametrize("seed", range(25))
def test_a_right_server_behind_a_proxy_that_cuts_silent_watches_is_never_listed(seed: int) -> None:
    silent = Silent(seed, right=True)
    silent.run(3 * 3600.0)
    assert silent.listed_s == []
    assert silent.checks <= (3 * 66 if silent.life_s > 60 else 3 * 6 + 1)
    assert silent.watches <= 3 * 3600 / silent.life_s * 1.5 + 3 * 60
