"""The steps of the watch machine, with states and events as plain values."""

import pytest

from tests.support.watchmachine import frame, last, rules, watching
from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import (
    Expired,
    Interrupted,
    Unavailable,
    Undecodable,
)
from watchrelay.model.frames import Bookmark, Failure, Frame, ListQuery, Page
from watchrelay.model.watch_output import (
    ListBegun,
    Watched,
)
from watchrelay.watch.machine import start, step
from watchrelay.watch.messages import (
    CheckLists,
    CheckVersion,
    DeadlineReached,
    FetchPage,
    FramesReceived,
    ListsChecked,
    OpenWatch,
    PageReceived,
    ReadWatch,
    RequestFailed,
    Retrying,
    Skipped,
    Sleep,
    SleepEnded,
    VersionChecked,
    WatchClosed,
    WatchEnded,
    WatchOpened,
)
from watchrelay.watch.states import BackingOff, ListingPages, Pausing, State, Watching


def test_it_starts_with_a_list_or_with_a_cursor_as_a_watch() -> None:
    state, commands = start(rules(), now_s=0.0)
    assert commands == (ListBegun(), FetchPage(ListQuery(limit=500)))
    by = rules()
    state, commands = start(by, cursor="7", now_s=0.0)
    assert isinstance(commands[0], OpenWatch)
    assert commands[0].query.resource_version == "7"
    state, commands = step(by, state, WatchOpened(), 1.0)
    look = commands[-1]
    assert isinstance(look, CheckVersion), "is the server's history that of the log?"
    assert look.query == ListQuery(limit=1)
    _, commands = step(by, state, VersionChecked("8", 1.0, "7"), 1.1)
    assert commands[-1] == ReadWatch(66.0), "its silence is checked, whether bookmarks come or not"


def test_a_start_behind_a_log_lists_from_a_quorum_and_never_less_than_the_log_has() -> None:
    state, commands = start(rules(), recovered=True, newest_on_log="900", now_s=0.0)
    assert isinstance(state, ListingPages)
    assert (state.goal.cause, state.goal.state) == ("recovered", "most_recent")
    by = rules()
    state, _ = start(by, cursor="7", newest_on_log="900", recovered=True, now_s=0.0)
    state, _ = step(by, state, WatchOpened(), 1.0)
    state, commands = step(by, state, FramesReceived([Failure(Expired("too old"))], 1.1), 1.1)
    assert commands[-1] == FetchPage(
        ListQuery(limit=500, resource_version="900", version_match="NotOlderThan")
    )


def test_a_start_that_is_spread_sleeps_first() -> None:
    by = rules()
    state, commands = start(by, now_s=5.0, first_wait_s=2.0)
    assert commands == (Sleep(7.0),)
    state, commands = step(by, state, SleepEnded(), 7.0)
    assert isinstance(commands[-1], FetchPage)


def test_a_batch_of_objects_is_one_event_and_one_step_of_the_cursor() -> None:
    by = rules()
    frames = [frame("a", "101"), frame("b", "102"), frame("a", "103")]
    state, commands = step(by, watching(by), FramesReceived(list(frames), 3.0), 3.0)
    assert isinstance(state, Watching)
    assert commands == (
        Watched(list(frames), 3.0, "103"),
        ReadWatch(3.0 + 65.0),
    )
    assert (state.cursor, state.any_objects) == ("103", True)


def test_frames_before_an_error_in_the_same_chunk_are_delivered() -> None:
    by = rules()
    broken = Failure(Interrupted("500"))
    state, commands = step(
        by,
        watching(by),
        FramesReceived([frame("a", "101"), Bookmark("105"), broken, frame("b", "106")], 3.0),
        3.0,
    )
    assert isinstance(state, BackingOff)
    assert commands == (
        Watched([frame("a", "101")], 3.0, "105"),
        WatchClosed("error", 3.0, any_frames=True),
        Retrying(broken.error, state.until_s),
        Sleep(state.until_s),
    )
    assert (state.context.cursor, state.goal) == ("105", None)


def test_a_bookmark_of_the_same_version_shows_that_the_server_answers() -> None:
    by = rules()
    state, commands = step(by, watching(by), FramesReceived([Bookmark("100")], 3.0), 3.0)
    assert isinstance(state, Watching)
    assert commands == (Watched([], 3.0, "100"), ReadWatch(state.read_until_s))


def test_a_watch_that_outlived_the_longest_delay_is_reopened_after_the_shortest() -> None:
    by, now_s = rules(), 0.0
    state: State = watching(by)
    for _ in range(10):  # a proxy cuts what is silent for 35 s
        state, commands = step(by, state, RequestFailed(Unavailable("cut")), now_s + 35)
        assert 0.8 <= last(commands, Sleep).until_s - (now_s + 35) < 1.6
        now_s = last(commands, Sleep).until_s
        state, commands = step(by, state, SleepEnded(), now_s)
        if isinstance(commands[-1], CheckLists):
            unknown = ListsChecked("", may_list=False, asked_at_s=now_s)
            state, _ = step(by, state, unknown, now_s)
        state, _ = step(by, state, WatchOpened(), now_s)
    for number in range(1, 5):
        state, commands = step(by, state, RequestFailed(Unavailable("cut")), now_s + 20)
        assert last(commands, Sleep).until_s - (now_s + 20) >= 0.8 * 2**number, (
            "one that ends sooner is reopened after growing delays"
        )
        now_s = last(commands, Sleep).until_s
        state, commands = step(by, state, SleepEnded(), now_s)
        if isinstance(commands[-1], CheckLists):
            unknown = ListsChecked("", may_list=False, asked_at_s=now_s)
            state, _ = step(by, state, unknown, now_s)
        state, _ = step(by, state, WatchOpened(), now_s)


def test_a_very_short_watch_fails_when_empty_and_else_waits_out_its_second() -> None:
    by = rules()
    _, commands = step(by, watching(by), WatchEnded(), 0.5)
    assert isinstance(commands[-1], Sleep)
    state, _ = step(by, watching(by), FramesReceived([frame("a", "101")], 0.3), 0.3)
    state, commands = step(by, state, WatchEnded(), 0.5)
    assert commands[-1] == Sleep(1.0)
    assert isinstance(state, Pausing)
    assert state.context.backoff.failures == 0
    _, commands = step(by, state, SleepEnded(), 1.0)
    assert last(commands, OpenWatch).query.resource_version == "101"
    state, _ = step(by, watching(by), FramesReceived([frame("a", "101")], 0.3), 0.3)
    _, commands = step(by, state, WatchEnded(), 1.5)
    assert isinstance(commands[-1], OpenWatch), "it lived long enough"


def test_after_a_reconnect_and_a_relist_only_undecodable_objects_are_skipped() -> None:
    by = rules()
    bad = Undecodable("?")
    state, commands = step(
        by,
        watching(by, undecodable_again=True, undecodable_at_s=0.0),
        FramesReceived([Failure(bad), frame("a", "101")], 3.0),
        3.0,
    )
    assert commands[0] == Skipped((bad,))
    assert isinstance(state, Watching)
    assert (state.cursor, state.context.undecodable_at_s) == ("101", 3.0)
    assert state.context.undecodable_again
    state, commands = step(by, state, FramesReceived([Failure(bad)], 700.0), 700.0)
    assert isinstance(commands[-1], Sleep), "ten clean minutes later it counts from one again"


def test_an_undecodable_object_of_a_streaming_list_is_skipped_by_the_next_one_which_streams_too() -> (
    None
):
    by = rules(initial_list="streaming")
    bad = Undecodable("?", about=("shop", "bad"))
    state, commands = start(by, now_s=0.0)
    state, _ = step(by, state, WatchOpened(), 0.0)
    state, commands = step(by, state, FramesReceived([Failure(bad)], 1.0), 1.0)
    assert isinstance(commands[-1], Sleep)
    state, commands = step(by, state, SleepEnded(), 60.0)
    assert last(commands, OpenWatch).query.send_initial_events, (
        "a list by pages would have the object too"
    )
    state, _ = step(by, state, WatchOpened(), 60.0)
    _, commands = step(by, state, FramesReceived([Failure(bad), frame("a", "9")], 61.0), 61.0)
    assert Skipped((bad,)) in commands


def test_a_relist_that_is_due_is_made_and_the_watch_is_not_called_silent() -> None:
    by = rules()
    _, commands = step(by, watching(by, relist_at_s=5.0), DeadlineReached(), 500.0)
    assert isinstance(commands[-1], FetchPage)
    assert not any(isinstance(command, Retrying) for command in commands)


def test_an_event_that_cannot_happen_is_named() -> None:
    by = rules()
    with pytest.raises(AssertionError, match="PageReceived in state Watching"):
        step(by, watching(by), PageReceived(Page("1", None, [])), 1.0)


@pytest.mark.parametrize("odd", ["", "0", "abc", "1e9", "0200", "9" * 30, "2" * 5_000_000])
def test_an_unusable_version_does_not_move_the_cursor(odd: str) -> None:
    by = rules()
    idle: list[list[Frame]] = [
        [Bookmark(odd)],
        [frame("a", odd)],
        [Bookmark("90"), Bookmark(odd)],
        [frame("a", odd), frame("b", "99")],
    ]
    for frames in idle:
        state, commands = step(by, watching(by), FramesReceived(frames, 1.0), 1.0)
        assert isinstance(state, Watching)
        assert state.cursor == "100"
        assert {each.cursor for each in commands if isinstance(each, Watched)} <= {"", "100"}
    moving: list[list[Frame]] = [
        [frame("a", "105"), frame("b", odd)],
        [frame("a", odd), Bookmark("105")],
        [Bookmark("105"), frame("a", odd)],
    ]
    for frames in moving:
        state, commands = step(by, watching(by), FramesReceived(frames, 1.0), 1.0)
        assert [each.cursor for each in commands if isinstance(each, Watched)] == ["105"]
    state, commands = step(by, state, WatchEnded(), 60.0)
    assert last(commands, OpenWatch).query.resource_version == "105"


def test_versions_that_are_no_numbers_move_the_cursor_where_none_is_one() -> None:
    by = rules()
    _, commands = step(
        by, watching(by, "v7"), FramesReceived([frame("a", "v3"), frame("b", "v1")], 1.0), 1.0
    )
    assert [each.cursor for each in commands if isinstance(each, Watched)] == ["v1"]


def test_a_frame_behind_an_undecodable_one_that_ends_the_watch_does_not_move_the_cursor() -> None:
    by = rules()
    state, _ = step(
        by,
        watching(by),
        FramesReceived([frame("a", "101"), Failure(Undecodable("?")), frame("b", "109")], 1.0),
        1.0,
    )
    assert isinstance(state, BackingOff)
    assert state.context.cursor == "101"


def test_a_watch_that_brings_only_an_error_is_not_healthy() -> None:
    by = rules()
    backoff = Backoff(failures=5, last_failure_at_s=-1000.0)
    failed = FramesReceived([Failure(Interrupted("500"))], 3.0)
    state, _ = step(by, watching(by, backoff=backoff), failed, 3.0)
    assert (state.context.backoff.failures, state.context.state_shown_at_s) == (6, 0.0)
    failed.frames.insert(0, Bookmark("100"))
    state, _ = step(by, watching(by, backoff=backoff), failed, 3.0)
    assert (state.context.backoff.failures, state.context.state_shown_at_s) == (1, 3.0)
