"""Watches that fail from their cursor each time while lists work."""

import math
from random import Random
from typing import Any

import pytest

from tests.support.watchmachine import PODS, Played, frame, last, rules, watching
from watchrelay.core.errors import (
    Expired,
    Forbidden,
    Interrupted,
    Invalid,
    KubeError,
    NotFound,
    NotWatchable,
    Throttled,
    Unauthorized,
    Unavailable,
    Unreachable,
    VersionTooLarge,
)
from watchrelay.kube.status import from_response, from_watch
from watchrelay.model.frames import Bookmark, Failure, Frame, ListQuery, Page
from watchrelay.model.resources import GONE, SERVED, UNKNOWN
from watchrelay.model.streams import WatchPlan
from watchrelay.model.watch_output import ListDone, ServerSeen
from watchrelay.watch.admission import PerMinute
from watchrelay.watch.context import WatchRules
from watchrelay.watch.failing import FailingWatch, shows_failing_cursor
from watchrelay.watch.machine import step
from watchrelay.watch.messages import (
    CheckDiscovery,
    CheckLists,
    DiscoveryChecked,
    Event,
    FetchPage,
    FramesReceived,
    ListFinished,
    ListsChecked,
    OpenWatch,
    PageReceived,
    RequestFailed,
    Sleep,
    SleepEnded,
    VersionChecked,
    WatchEnded,
    WatchOpened,
)
from watchrelay.watch.states import OpeningList, State, StreamingList, Watching

IN_STREAM = Interrupted("the server ended the watch: 500 PrevKv=nil", status=500)
BY_HTTP = Throttled("watch pods: 500 conversion webhook failed", status=500)
NEVER_COUNT: list[KubeError] = [
    Throttled("429", status=429),
    Throttled("503", status=503),
    Unavailable("no answer within 75 s"),
    Unavailable("408", status=408),
    Unreachable("refused"),
    Interrupted("cut"),
    Interrupted("the server ended the watch: 504 Timeout", status=504),
]
VERSION_TOO_LARGE = VersionTooLarge("504", status=504)
ENDED = Interrupted("")
"""Not raised: the server ends the watch at once, without a frame."""
BY_HTTP_TOO: list[KubeError] = [
    Invalid("400", status=400),
    NotFound("404", status=404),
    NotWatchable("501", status=501),
    Unavailable("502", status=502),
    Unavailable("599", status=599),
]
TREATED: list[KubeError] = [
    Expired("410", status=410),
    Expired("too old resource version", status=500),
    Invalid("500", about="version", status=500),
    VERSION_TOO_LARGE,
    Unauthorized("401", status=401),
    Forbidden("403", status=403),
]


@pytest.mark.parametrize("code", [*range(400, 420), 422, 429, *range(500, 506), 524, 599, 999])
def test_an_answer_counts_whatever_its_code_unless_that_is_of_no_cursor(code: int) -> None:
    counts = code not in {401, 403, 407, 408, 410, 429, 503, 504}
    shown = b'{"kind": "Status", "code": %d, "message": "it failed"}' % code
    assert shows_failing_cursor(from_watch(shown)) is counts
    by_http = from_response(code, {}, shown, what="watch pods", wall_ms=0)
    assert shows_failing_cursor(by_http) is counts


@pytest.mark.parametrize("error", TREATED)
def test_what_leads_to_a_list_by_another_rule_or_is_a_missing_right_never_counts(
    error: KubeError,
) -> None:
    assert not shows_failing_cursor(error)


class Retries(Played):
    """A stream that continues from the log's frontier, 100, and whose watches each fail with
    `error`."""

    def __init__(self, error: KubeError, **plan: Any) -> None:
        super().__init__(WatchRules(WatchPlan(PODS, **plan), Random(3), (1, 36)), cursor="100")
        self.error = error

    def open(self) -> Event:
        by_http = self.error is BY_HTTP or self.error in BY_HTTP_TOO
        return RequestFailed(self.error) if by_http else WatchOpened()

    def read(self, until_s: float) -> Event:
        if self.error is ENDED:
            return WatchEnded()
        return FramesReceived([Failure(self.error)], self.now_s)

    def check_version(self, until_s: float) -> Event:
        return VersionChecked("120", self.now_s)

    def checked(self, version: str = "120") -> None:
        """A small list that shows whether lists work has shown this version."""
        self.until(CheckLists)
        self.step(ListsChecked(version, may_list=version not in {"", "100"}, asked_at_s=self.now_s))


@pytest.mark.parametrize("error", [IN_STREAM, BY_HTTP, ENDED, *BY_HTTP_TOO])
def test_after_five_failures_in_a_minute_one_list_leads_past_the_cursor(error: KubeError) -> None:
    retries = Retries(error)
    retries.until(CheckLists)
    assert retries.watches >= 5
    slow = isinstance(error, Invalid | NotWatchable)
    assert 60.0 <= retries.now_s <= (1700.0 if slow else 250.0)
    check = last(retries.commands, CheckLists)
    assert check.query == ListQuery(limit=1)
    retries.step(ListsChecked("120", may_list=True, asked_at_s=retries.now_s))
    assert retries.action() == FetchPage(
        ListQuery(limit=500, resource_version="100", version_match="NotOlderThan")
    )
    retries.step(PageReceived(Page("121", None, [frame("a", "119")])))
    finish = last(retries.commands, ListDone)
    assert (finish.resource_version, finish.continue_from) == ("121", "")
    retries.step(ListFinished(accepted=True))
    opened = last(retries.commands, OpenWatch)
    assert opened.query.resource_version == "121"


@pytest.mark.parametrize("error", NEVER_COUNT)
def test_what_says_nothing_about_the_cursor_never_counts(error: KubeError) -> None:
    assert not shows_failing_cursor(error)
    retries = Retries(error)
    while retries.now_s < 3600:
        retries.until(Sleep)
        sleep = last(retries.commands, Sleep)
        retries.now_s = sleep.until_s
        retries.step(SleepEnded())
        assert not isinstance(retries.action(), CheckLists | FetchPage)


def test_a_watch_that_moves_the_cursor_or_ends_in_its_time_begins_the_count_again() -> None:
    failing = FailingWatch()
    for second in range(9):
        failing = failing.failed("100", second * 20.0)
    assert failing.list_due("100", 161.0)
    assert not failing.list_due("101", 161.0)
    assert not failing.worked().failed("100", 161.0).list_due("100", 161.0)
    assert not failing.failed("101", 161.0).list_due("101", 161.0)
    by = rules()
    watch = watching(by, failing=failing)
    for late_s, over in ((-30.0, False), (-1.0, True), (0.5, True), (3.0, True), (10.0, False)):
        state, _ = step(by, watch, WatchEnded(), watch.query.timeout_s + late_s)
        assert state.context.failing.fails_from("100") is not over
    for version in ("100", "101"):
        brought, _ = step(by, watch, FramesReceived([Bookmark(version)], 0.5), 0.5)
        state, _ = step(by, brought, WatchEnded(), 0.6)
        assert state.context.failing.fails_from("100") is (version == "100")
    state, _ = step(by, watch, VersionChecked("100", 0.5), 0.5)
    assert not state.context.failing.fails_from("100"), "nothing has happened"


@pytest.mark.parametrize(
    ("failed_s", "due"),
    [
        ([0, 1, 2, 2.5, 3], False),
        ([0, 15, 30, 45, 59.9], False),
        ([0, 15, 30, 45, 60], True),
        ([0, 20, 40, 60], False),
        ([0, 1, 2, 3, 4, 60], True),
    ],
)
def test_five_failures_count_by_the_time_between_the_first_and_the_newest(
    failed_s: list[float], *, due: bool
) -> None:
    failing = FailingWatch()
    for at_s in failed_s:
        failing = failing.failed("100", float(at_s))
    assert failing.list_due("100", 3600.0) is due, "what does not count may follow for an hour"


def an_end(rng: Random, watch: Watching, now_s: float) -> tuple[Event, bool, bool]:
    """What ends a watch; whether the row of failures before it is over, and whether it counts."""
    lived_s = now_s - watch.opened_at_s
    if rng.random() < 0.2:
        in_time = -1.0 <= lived_s - watch.query.timeout_s <= 3.0
        return WatchEnded(), in_time, not in_time
    frames: list[Frame] = [Bookmark(watch.cursor)] if rng.random() < 0.1 else []
    error = rng.choice([*[IN_STREAM] * 4, *BY_HTTP_TOO, *NEVER_COUNT])
    event = FramesReceived([*frames, Failure(error)], now_s)
    broke = not error.status and lived_s >= 1.0
    return event, False, broke or error not in NEVER_COUNT


class Ruled(Played):
    """A watch beside a table of what happened: five failures from one cursor, over at least 60 s;
    the next list of the stream at least 5 min later, the next small one after 60 s."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        super().__init__(WatchRules(WatchPlan(PODS), Random(seed), (1, 36)), cursor="100")
        self.row, self.began_s, self.checked_s = list[float](), -math.inf, -math.inf
        self.pauses = self.rng.choice([[0.0], [0.0, 0.5, 20.0], [59.0, 61.0]])

    @property
    def due(self) -> bool:
        return len(self.row) >= 5 and self.row[-1] - self.row[0] >= 60.0

    def answer(self) -> Event:
        answer = super().answer()
        if isinstance(answer, SleepEnded):
            self.now_s += self.rng.choice(self.pauses)
        return answer

    def check_lists(self) -> Event:
        assert self.due, self.row
        assert self.now_s - self.began_s >= 300.0
        assert self.now_s - self.checked_s >= 60.0
        newer = self.rng.random() < 0.5
        if newer:
            self.began_s = self.now_s
        else:
            self.checked_s = self.now_s
        return ListsChecked(str(self.version + 20) if newer else "", newer, self.now_s)

    def list_version(self) -> int:
        self.row, self.version = [], self.version + 20
        return self.version

    def read(self, until_s: float) -> Event:
        self.now_s += self.rng.choice([0.0, 0.1, 10.0])
        assert isinstance(self.state, Watching)
        event, begins_again, counts = an_end(self.rng, self.state, self.now_s)
        self.row = [*([] if begins_again else self.row), *([self.now_s] if counts else [])]
        return event


@pytest.mark.parametrize("seed", range(30))
def test_a_list_is_due_exactly_by_the_rule(seed: int) -> None:
    ruled = Ruled(seed)
    for _ in range(400):
        slept = isinstance(ruled.action(), Sleep)
        ruled.step(ruled.answer())
        long_ago = ruled.now_s - ruled.began_s >= 3600.0 and ruled.now_s - ruled.checked_s >= 60.0
        if slept and ruled.due and long_ago:
            assert isinstance(ruled.action(), CheckLists), (ruled.row, ruled.now_s, ruled.began_s)


class Hour(Played):
    """A stream each of whose watches is opened, then ends alike: one bookmark at the cursor at
    most, then an error, or nothing. Seeds from `len(ENDS)` on: each in another way."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.codes = ENDS if seed >= len(ENDS) else [ENDS[seed]]
        self.bookmark, self.newer = rng.random() < 0.5, rng.random() < 0.5
        self.in_lists = rng.random() < 0.2
        by = WatchRules(WatchPlan(PODS), Random(seed), (1, 36))
        super().__init__(by, cursor="100" if rng.random() < 0.5 else "")

    def list_version(self) -> int:
        self.version += self.newer
        return self.version

    def check_lists(self) -> Event:
        return ListsChecked(str(self.version + self.newer), self.newer, self.now_s)

    def answer(self) -> Event:
        if isinstance(self.action(), CheckDiscovery):
            return DiscoveryChecked(self.rng.choice([SERVED, GONE, UNKNOWN]))
        return super().answer()

    def read(self, until_s: float) -> Event:
        self.now_s += self.rng.choice([0.0, 0.2])
        state = self.state
        if isinstance(state, StreamingList) and not self.in_lists:
            bookmark = Bookmark(str(self.version), initial_end=True)
            return FramesReceived([bookmark], self.now_s)
        frames = list[Frame]()
        if self.bookmark and isinstance(state, Watching) and not state.any_frames:
            frames.append(Bookmark(state.cursor))
        if code := self.rng.choice(self.codes):
            shown = b'{"kind": "Status", "code": %d, "message": "it failed"}' % code
            frames.append(Failure(from_watch(shown)))
        return FramesReceived(frames, self.now_s) if frames else WatchEnded()


ENDS = [0, 1, 200, *range(400, 412), 422, 429, *range(500, 505), 599, 999]
"""Codes within a watch; 0: it ends without an error."""


@pytest.mark.parametrize("seed", range(2 * len(ENDS)))
def test_what_follows_the_200_of_each_watch_leads_to_few_requests(seed: int) -> None:
    hour = Hour(seed)
    hour.run(3600.0)
    assert hour.watches + len(hour.listed_s) <= 120


def test_a_frame_at_the_cursor_ends_no_row_and_a_broken_connection_counts_after_a_second() -> None:
    by = rules()
    for at_s, failures in ((0.9, 1), (1.0, 2)):
        watch = watching(by, failing=FailingWatch().failed("100", 0.0))
        brought, _ = step(by, watch, FramesReceived([Bookmark("100")], 0.5), 0.5)
        state, _ = step(by, brought, RequestFailed(Unreachable("reset")), at_s)
        assert state.context.failing.failures == failures


@pytest.mark.parametrize("version", ["", "100"])
def test_without_an_answer_or_with_nothing_newer_the_watch_is_tried_on(version: str) -> None:
    retries = Retries(IN_STREAM)
    retries.until(CheckLists)
    retries.step(ListsChecked(version, may_list=False, asked_at_s=retries.now_s - 0.25))
    seen = () if not version else (ServerSeen(0.25),)
    assert retries.commands[:-1] == seen, "at the cursor the server has shown that nothing is newer"
    assert isinstance(retries.action(), OpenWatch)
    retries.until(Sleep)
    retries.until(CheckLists)


def test_a_server_that_went_back_is_listed_as_restored() -> None:
    retries = Retries(IN_STREAM)
    retries.checked("90")
    assert isinstance(retries.state, OpeningList)
    assert retries.state.goal.cause == "restored"


def test_the_lists_of_a_stream_follow_after_5_10_20_40_and_60_minutes() -> None:
    failing, now_s, waits = FailingWatch(), 1000.0, []
    for _ in range(6):
        failing = failing.listed(now_s)
        waits.append((failing.no_list_before_s - now_s) / 60)
        now_s = failing.no_list_before_s + 50.0
    assert waits == [5, 10, 20, 40, 60, 60]
    assert failing.listed(now_s + 3700).list_wait_s == 300.0, "a new row"


def test_a_list_that_fails_leads_back_to_the_watch() -> None:
    retries = Retries(IN_STREAM)
    retries.checked()
    began_s = retries.now_s
    retries.step(RequestFailed(Throttled("503", status=503)))
    retries.until(OpenWatch)
    retries.until(CheckLists)
    assert retries.now_s >= began_s + 300.0


@pytest.mark.parametrize("code", [500, 504])
def test_a_list_whose_minimum_is_refused_is_made_once_without_one(code: int) -> None:
    retries = Retries(IN_STREAM)
    retries.checked()
    refused = BY_HTTP if code == 500 else VERSION_TOO_LARGE
    retries.step(RequestFailed(refused))
    retries.until(FetchPage)
    assert retries.action() == FetchPage(ListQuery(limit=500))
    retries.step(RequestFailed(BY_HTTP))
    retries.until(OpenWatch)


def test_a_cache_that_stopped_at_the_cursor_is_passed_by() -> None:
    retries = Retries(IN_STREAM)
    retries.checked()
    retries.step(PageReceived(Page("100", None, [])))
    assert retries.action() == FetchPage(ListQuery(limit=500))


def test_a_due_consistency_list_is_made_while_the_watch_fails_and_leads_past_the_cursor() -> None:
    retries = Retries(Interrupted("500", status=500), relist_interval_s=40.0)
    retries.until(FetchPage)
    assert retries.now_s < 60.0 + 44.0
    retries.step(PageReceived(Page("130", None, [])))
    retries.step(ListFinished(accepted=True))
    opened = last(retries.commands, OpenWatch)
    assert opened.query.resource_version == "130"


def test_a_due_consistency_list_is_made_while_the_watch_is_throttled_and_the_watch_continues() -> (
    None
):
    retries = Retries(Throttled("503", status=503), relist_interval_s=40.0)
    retries.until(FetchPage)
    retries.step(PageReceived(Page("130", None, [])))
    retries.step(ListFinished(accepted=True))
    opened = last(retries.commands, OpenWatch)
    assert opened.query.resource_version == "100", "what the watch does not show was missed"


def test_a_watch_that_brings_bookmarks_before_it_fails_is_not_taken_for_stuck() -> None:
    by = rules()
    state: State = watching(by)
    now_s = 0.0
    for number in range(20):
        frames: list[Frame] = [Bookmark(str(101 + number)), Failure(IN_STREAM)]
        state, commands = step(by, state, FramesReceived(frames, now_s), now_s)
        sleep = last(commands, Sleep)
        now_s = sleep.until_s
        state, commands = step(by, state, SleepEnded(), now_s)
        assert isinstance(commands[-1], OpenWatch)
        state, _ = step(by, state, WatchOpened(), now_s)


def test_three_lists_a_minute_for_all_streams() -> None:
    lists = PerMinute(3)
    assert [lists.take(now_s) for now_s in (0.0, 1.0, 2.0, 3.0, 59.0)] == [True] * 3 + [False] * 2
    assert [lists.take(now_s) for now_s in (60.0, 60.5, 61.0)] == [True, False, True]
