"""Watches that are silent: when they are checked, and when they count as frozen."""

from itertools import pairwise

import msgspec
import pytest

from tests.support.watchmachine import frame, last, rules, silent, watching
from watchrelay.core.errors import Unreachable
from watchrelay.model.frames import Bookmark, Frame
from watchrelay.model.watch_output import ListBegun, ListDone, ServerSeen
from watchrelay.watch.context import WatchRules
from watchrelay.watch.history import History
from watchrelay.watch.machine import BRIEF_WATCH_S, start, step
from watchrelay.watch.messages import (
    CheckLists,
    CheckVersion,
    DeadlineReached,
    FetchPage,
    FramesReceived,
    ListFinished,
    ListsChecked,
    OpenWatch,
    ReadWatch,
    RequestFailed,
    SleepEnded,
    VersionChecked,
    WatchClosed,
    WatchEnded,
    WatchOpened,
)
from watchrelay.watch.states import State, Watching


def test_after_ten_silent_minutes_the_next_watch_begins_with_a_liveness_check() -> None:
    by = rules()
    state, commands = step(by, watching(by, cursor="7"), WatchEnded(), 600.0)
    assert isinstance(commands[-1], OpenWatch)
    opened, commands = step(by, state, WatchOpened(), 600.0)
    assert last(commands, CheckVersion).until_s == 660.0, "the watch is read meanwhile"
    state, commands = step(by, opened, VersionChecked("8", 600.1), 600.1)
    assert isinstance(commands[-1], ReadWatch)
    state, _ = step(by, state, WatchEnded(), 900.0)
    _, commands = step(by, state, WatchOpened(), 900.0)
    assert isinstance(commands[-1], ReadWatch), "the check was made a moment ago"
    _, commands = step(by, opened, VersionChecked("6", 600.1), 600.1)
    assert isinstance(commands[-1], FetchPage), "the server was restored"


@pytest.mark.parametrize("answer", ["", "8"])
def test_after_a_check_at_the_opening_a_silent_watch_is_checked_as_any_other(answer: str) -> None:
    by = rules()
    opened = watching(
        by, cursor="7", expects_bookmarks=True, bookmarks_seen=True, history_check_at_s=70.0
    )
    state, commands = step(by, opened, VersionChecked(answer, 5.0, "7"), 5.0)
    assert commands == (ReadWatch(65.0),)
    state, commands = step(by, state, DeadlineReached(), 65.0)
    assert isinstance(commands[-1], CheckVersion)
    state, commands = step(by, state, VersionChecked("8", 65.0), 65.0)
    assert commands == (ReadWatch(130.0),), "until its second bookmark is late"


def test_the_first_bookmark_shortens_the_idle_deadline_at_once() -> None:
    by = rules()
    state, commands = step(by, watching(by), FramesReceived([Bookmark("105")], 60.0), 60.0)
    read = last(commands, ReadWatch)
    assert 130.0 <= read.until_s <= 133.0
    state, commands = step(by, state, DeadlineReached(), read.until_s)
    assert 70.0 <= last(commands, OpenWatch).query.idle_timeout_s <= 73.0
    state, commands = step(by, state, WatchOpened(), 140.0)
    state, commands = step(by, state, FramesReceived([Bookmark("110")], 200.0), 200.0)
    assert 270.0 <= last(commands, ReadWatch).until_s <= 273.0, (
        "from the newest frame, however it is read on"
    )


@pytest.mark.parametrize("answer", ["107", "", "8" * 40])
@pytest.mark.parametrize("bookmarks", [True, False])
def test_without_bookmarks_a_watch_that_may_lack_something_is_opened_again_for_a_moment(
    answer: str, *, bookmarks: bool
) -> None:
    by = rules(bookmarks=bookmarks)
    state, _ = step(by, watching(by), DeadlineReached(), 65.0)
    state, commands = step(by, state, VersionChecked(answer, 65.0), 65.0)
    closed, opened = commands
    assert closed == WatchClosed("silent", 65.0, any_frames=False), "it is no error"
    assert isinstance(opened, OpenWatch)
    assert (opened.query.resource_version, opened.query.timeout_s) == ("100", BRIEF_WATCH_S)
    state, _ = step(by, state, WatchOpened(), 65.2)
    _, commands = step(by, state, WatchEnded(), 66.5)
    assert ServerSeen() not in commands, "a proxy may have ended it, in mid line"
    state, commands = step(by, state, WatchEnded(), 70.2)
    assert ServerSeen() in commands
    assert last(commands, OpenWatch).query.timeout_s >= 300


def test_where_no_bookmarks_come_each_silence_after_objects_is_checked_too() -> None:
    by = rules()
    state, commands = step(by, watching(by), FramesReceived([frame("a", "101")], 30.0), 30.0)
    assert commands[-1] == ReadWatch(95.0)
    state, commands = step(by, state, FramesReceived([Bookmark("102")], 90.0), 90.0)
    read = last(commands, ReadWatch)
    assert 160.0 <= read.until_s <= 163.0, "a watch that brought a bookmark is frozen by then"


def silent_from_its_start(by: WatchRules, *, late: bool = False) -> tuple[State, ReadWatch]:
    """A watch that was opened at 100, at second 0, after others had brought bookmarks; and its
    first read."""
    state = watching(by, expects_bookmarks=True, bookmarks_seen=True, check_early=late)
    return state, ReadWatch(state.read_until_s)


def test_without_a_first_bookmark_a_liveness_check_keeps_the_watch_while_nothing_changes() -> None:
    by = rules()
    state, read = silent_from_its_start(by)
    assert read.until_s == 65.0, "past the moment of the first bookmark"
    for now_s in (65.0, 130.0, 195.0):
        state, commands = step(by, state, DeadlineReached(), now_s)
        assert now_s < last(commands, CheckVersion).until_s <= now_s + 8.0, (
            "a server that does not answer delays nothing"
        )
        state, commands = step(by, state, VersionChecked("100", now_s - 0.25), now_s)
        assert commands == (ServerSeen(0.25), ReadWatch(now_s + 65.0))


def test_a_server_ahead_of_a_silent_watch_gets_time_for_one_more_bookmark() -> None:
    by = rules()
    state, _ = silent_from_its_start(by)
    state, _ = step(by, state, DeadlineReached(), 65.0)
    state, commands = step(by, state, VersionChecked("107", 65.0), 65.0)
    assert commands == (ReadWatch(130.0),)
    _, commands = step(by, state, DeadlineReached(), 130.0)
    assert isinstance(commands[-1], OpenWatch), "it is frozen"
    state, read = silent_from_its_start(by, late=True)
    assert read.until_s == 50.0
    state, _ = step(by, state, DeadlineReached(), 50.0)
    state, commands = step(by, state, VersionChecked("107", 50.0), 50.0)
    assert 70.0 <= last(commands, ReadWatch).until_s <= 73.0
    state, commands = step(by, state, FramesReceived([Bookmark("107")], 60.0), 60.0)
    assert 130.0 <= last(commands, ReadWatch).until_s <= 133.0


@pytest.mark.parametrize("late", [False, True])
def test_a_check_that_is_answered_at_once_is_made_once_whatever_the_clock_shows(late: bool) -> None:
    by = rules()
    for opened_s in (0.1, 105.2, 127.2, 469.3, 1019.6):
        state = watching(by, expects_bookmarks=True, bookmarks_seen=True, check_early=late)
        state = msgspec.structs.replace(state, opened_at_s=opened_s, silent_since_s=opened_s)
        now_s = state.read_until_s  # less than 50 s later, where the sum was rounded
        for answer in ("", "107"):
            checked, commands = step(by, state, DeadlineReached(), now_s)
            assert isinstance(commands[-1], CheckVersion)
            checked, _ = step(by, checked, VersionChecked(answer, now_s), now_s)
            assert isinstance(checked, Watching)
            assert checked.read_until_s > now_s + 1.0


@pytest.mark.parametrize("late", [False, True])
def test_a_silent_watch_of_a_server_that_does_not_answer_is_closed_within_75_seconds(
    late: bool,
) -> None:
    by = rules()
    state, read = silent_from_its_start(by, late=late)
    state, _ = step(by, state, DeadlineReached(), read.until_s)
    state, commands = step(by, state, VersionChecked("", read.until_s), read.until_s)
    assert last(commands, ReadWatch).until_s <= 75.0
    _, commands = step(by, state, DeadlineReached(), last(commands, ReadWatch).until_s)
    assert isinstance(commands[-1], OpenWatch)


def test_a_server_behind_a_silent_watch_was_restored_and_is_relisted() -> None:
    by = rules()
    state, read = silent_from_its_start(by)
    state, _ = step(by, state, DeadlineReached(), read.until_s)
    _, commands = step(by, state, VersionChecked("99", read.until_s), read.until_s)
    assert isinstance(commands[-1], FetchPage)


def test_a_silent_watch_of_a_version_that_cannot_be_ordered_is_relisted_once_the_server_has_one() -> (
    None
):
    by = rules()
    opened = watching(by, "9" * 40, expects_bookmarks=True, bookmarks_seen=True)
    state, _ = step(by, opened, DeadlineReached(), opened.read_until_s)
    _, commands = step(by, state, VersionChecked("200", 65.0), 65.0)
    assert isinstance(commands[-1], FetchPage)
    _, commands = step(by, state, VersionChecked("8" * 40, 65.0), 65.0)
    assert isinstance(commands[-1], ReadWatch), "neither can be ordered: bookmarks may be late"


def test_three_silent_reconnects_double_the_idle_deadline_up_to_the_timeout() -> None:
    by = rules()
    silence_limit_s, state = 70.0, watching(by, expects_bookmarks=True, bookmarks_seen=True)
    now_s = 0.0
    for _ in range(12):
        now_s += 100.0
        after, commands = step(by, state, RequestFailed(silent()), now_s)
        if isinstance(commands[-1], CheckLists):
            unknown = ListsChecked("", may_list=False, asked_at_s=now_s)
            after, commands = step(by, after, unknown, now_s)
        assert isinstance(commands[-1], OpenWatch)
        after, _ = step(by, after, WatchOpened(), now_s)
        assert isinstance(after, Watching)
        state = after
        assert silence_limit_s <= state.context.silence_limit_s <= 614
        silence_limit_s = state.context.silence_limit_s
    assert silence_limit_s > 300


def test_bookmarks_a_minute_apart_shorten_a_doubled_idle_deadline_again() -> None:
    by = rules()
    for pause_s, limit_s in ((300.0, 280.0), (60.0, 70.0)):
        state: State = watching(
            by, expects_bookmarks=True, bookmarks_seen=True, silence_limit_s=280.0
        )
        for now_s in (10.0, 10.0 + pause_s):
            state, _ = step(by, state, FramesReceived([frame("a", "101")], now_s - 5), now_s - 5)
            state, _ = step(by, state, FramesReceived([Bookmark("105")], now_s), now_s)
        assert state.context.silence_limit_s == limit_s


@pytest.mark.parametrize("rest", [[], [Bookmark("101")]])
def test_the_silence_of_a_streaming_list_counts_from_when_the_store_has_taken_it(
    rest: list[Frame],
) -> None:
    by = rules((1, 36))
    state, _ = start(by, now_s=0.0)
    state, _ = step(by, state, WatchOpened(), 0.0)
    end = [frame("a", "90", "ADDED"), Bookmark("100", initial_end=True), *rest]
    state, commands = step(by, state, FramesReceived(end, 1.0), 1.0)
    assert isinstance(commands[-1], ListDone)
    state, commands = step(by, state, ListFinished(accepted=True), 200.0)
    assert last(commands, ReadWatch).until_s >= 250.0
    assert isinstance(state, Watching)
    assert state.silent_since_s == 200.0


def resumed(newest_on_log: str) -> tuple[WatchRules, State]:
    """A watch from version 100 of a recovered log."""
    by = rules()
    state, _ = start(by, cursor="100", newest_on_log=newest_on_log, recovered=True, now_s=0.0)
    state, _ = step(by, state, WatchOpened(), 0.0)
    return by, state


def test_a_watch_from_the_log_is_read_while_the_servers_version_is_asked_for() -> None:
    by, state = resumed("900")
    _, commands = step(by, state, VersionChecked("120", 0.0, "100"), 1.1)
    assert isinstance(commands[-1], FetchPage), "the server is not there yet, or was restored"
    lagging, commands = step(by, state, VersionChecked("900", 0.0, "100"), 1.1)
    assert isinstance(commands[-1], ReadWatch)
    _, commands = step(by, lagging, FramesReceived([Bookmark("112")], 61.0), 61.0)
    assert isinstance(commands[-1], ReadWatch), "the server has this version: its cache lags"


def test_without_an_answer_one_look_a_minute_is_made_however_much_the_watch_brings() -> None:
    by, state = resumed("900")
    looks, number = [0.0], 100
    for tenth in range(1, 2801):
        now_s, number = tenth / 10, number + 1
        state, commands = step(by, state, FramesReceived([frame("a", str(number))], now_s), now_s)
        if isinstance(commands[-1], CheckVersion):
            looks.append(now_s)
            state, commands = step(by, state, VersionChecked("", now_s, str(number)), now_s)
        assert isinstance(commands[-1], ReadWatch)
    assert len(looks) == 5
    assert all(later - one >= 60.0 for one, later in pairwise(looks))


def test_a_list_that_is_older_than_what_the_watch_brought_meanwhile_shows_no_restored_server() -> (
    None
):
    by, state = resumed("")
    state, _ = step(by, state, FramesReceived([frame("a", "130")], 0.5), 0.5)
    state, commands = step(by, state, VersionChecked("120", 0.1, "100"), 1.0)
    assert isinstance(commands[-1], ReadWatch)
    _, commands = step(by, state, VersionChecked("120", 0.6, "130"), 1.0)
    assert isinstance(commands[-1], FetchPage)


@pytest.mark.parametrize("history", ["other", "unclear", ""])
def test_a_server_with_another_history_is_listed_by_content(history: History) -> None:
    by, state = resumed("")
    version = "500" if history else ""
    after, commands = step(by, state, VersionChecked(version, 0.0, "100", history), 0.1)
    if history == "other":
        assert isinstance(commands[-1], FetchPage)
        assert ListBegun(by_content=True) in commands
        return
    assert isinstance(after, Watching)
    assert commands[-1] == ReadWatch(60.0), "it is looked at again"
    after, commands = step(by, after, DeadlineReached(), 60.0)
    assert isinstance(commands[-1], CheckVersion)
    assert isinstance(after, Watching)
    assert after.version_check == "due", "nothing is known of the silence yet"


def test_a_server_that_could_not_be_reached_may_return_as_another_cluster() -> None:
    by = rules()
    broken, _ = step(by, watching(by), RequestFailed(Unreachable("refused")), 5.0)
    state, _ = step(by, broken, SleepEnded(), 6.0)
    state, commands = step(by, state, WatchOpened(), 6.0)
    assert isinstance(commands[-1], CheckVersion)
    _, commands = step(by, state, VersionChecked("200", 6.0, "100"), 6.1)
    assert isinstance(commands[-1], ReadWatch)
