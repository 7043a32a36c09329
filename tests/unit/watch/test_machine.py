"""The steps of the watch machine, with states and events as plain values."""

from random import Random
from typing import Any

import msgspec
import pytest

from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import (
    Expired,
    Interrupted,
    Invalid,
    KubeError,
    NotFound,
    Throttled,
    Unavailable,
    Undecodable,
    Unreachable,
    VersionTooLarge,
)
from watchrelay.model.frames import Bookmark, Failure, Frame, ListQuery, ObjectFrame, Page
from watchrelay.model.resources import Resource, Selection
from watchrelay.model.streams import WatchPlan
from watchrelay.model.watch_output import (
    CursorMoved,
    ListBegun,
    ListedObjects,
    ResourceRemoved,
    Retrying,
    WatchedObjects,
)
from watchrelay.watch.context import StreamContext, WatchRules
from watchrelay.watch.machine import (
    CheckDiscovery,
    CheckSilence,
    DeadlineReached,
    Deliver,
    DiscoveryChecked,
    FetchPage,
    FinishList,
    FramesReceived,
    ListFinished,
    ListGoal,
    ListingPages,
    NotServed,
    OpenWatch,
    PageReceived,
    Pausing,
    ReadWatch,
    ReportSkipped,
    RequestFailed,
    SilenceChecked,
    Sleep,
    SleepEnded,
    State,
    WatchEnded,
    Watching,
    WatchOpened,
    begin_watch,
    start,
    step,
)

PODS = Selection(Resource("", "v1", "pods", "Pod", namespaced=True))


def rules(version: tuple[int, int] | None = None, **plan: Any) -> WatchRules:
    return WatchRules(WatchPlan(PODS, **plan), Random(1), version)


def frame(name: str, version: str, kind: str = "MODIFIED") -> ObjectFrame:
    return ObjectFrame(kind, "shop", name, f"uid-{name}", version, {}, {}, 10)  # type: ignore[arg-type]


def watching(by: WatchRules, cursor: str = "100", **context: Any) -> Watching:
    state, _ = begin_watch(
        by, StreamContext(cursor=cursor, has_state=True, current_as_of_s=0.0, **context)
    )
    opened, _ = step(by, state, WatchOpened(), 0.0)
    assert isinstance(opened, Watching)
    return opened


def test_it_starts_with_a_list_or_with_a_cursor_as_a_watch() -> None:
    state, commands = start(rules(), now_s=0.0)
    assert commands == (Deliver(ListBegun()), FetchPage(ListQuery(limit=500)))
    by = rules()
    state, commands = start(by, cursor="7", now_s=0.0)
    assert isinstance(commands[0], OpenWatch)
    assert commands[0].query.resource_version == "7"
    assert 60 < commands[0].query.idle_timeout_s < 75
    _, commands = step(by, state, WatchOpened(), 1.0)
    assert isinstance(commands[-1], ReadWatch)


def test_after_ten_silent_minutes_the_next_watch_begins_with_a_liveness_check() -> None:
    by = rules()
    state, commands = step(by, watching(by, cursor="7"), WatchEnded(), 600.0)
    assert isinstance(commands[-1], OpenWatch)
    opened, commands = step(by, state, WatchOpened(), 600.0)
    assert isinstance(commands[-1], CheckSilence)
    assert commands[-1].until_s == 610.0, "no event is read until it is answered"
    state, commands = step(by, opened, SilenceChecked("8"), 600.1)
    assert isinstance(commands[-1], ReadWatch)
    state, _ = step(by, state, WatchEnded(), 900.0)
    _, commands = step(by, state, WatchOpened(), 900.0)
    assert isinstance(commands[-1], ReadWatch), "the check was made a moment ago"
    _, commands = step(by, opened, SilenceChecked("6"), 600.1)
    assert isinstance(commands[-1], FetchPage), "the server was restored"


@pytest.mark.parametrize("answer", ["", "8"])
def test_after_a_check_at_the_opening_a_silent_watch_is_checked_as_any_other(answer: str) -> None:
    by = rules()
    opened = watching(by, cursor="7", expects_bookmarks=True)
    state, commands = step(by, opened, SilenceChecked(answer), 5.0)
    assert commands == (ReadWatch(65.0),)
    state, commands = step(by, state, DeadlineReached(), 65.0)
    assert isinstance(commands[-1], CheckSilence)
    state, commands = step(by, state, SilenceChecked("8"), 65.0)
    assert commands == (ReadWatch(130.0),), "until its second bookmark is late"


def test_a_start_behind_a_log_lists_from_a_quorum_and_never_less_than_the_log_has() -> None:
    state, commands = start(rules(), recovered=True, newest_on_log="900", now_s=0.0)
    assert isinstance(state, ListingPages)
    assert (state.goal.cause, state.goal.most_recent) == ("recovered", True)
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
    assert commands == (
        Deliver(WatchedObjects(list(frames), 3.0)),
        Deliver(CursorMoved("103")),
        ReadWatch(float("inf")),
    )
    assert isinstance(state, Watching)
    assert (state.cursor, state.objects) == ("103", 3)


def test_frames_before_an_error_in_the_same_chunk_are_delivered() -> None:
    by = rules()
    broken = Failure(Interrupted("500"))
    state, commands = step(
        by,
        watching(by),
        FramesReceived([frame("a", "101"), Bookmark("105"), broken, frame("b", "106")], 3.0),
        3.0,
    )
    assert [type(c.output) for c in commands if isinstance(c, Deliver)] == [
        WatchedObjects,
        CursorMoved,
        Retrying,
    ]
    assert isinstance(state, Pausing)
    assert (state.context.cursor, state.goal) == ("105", None)


def test_a_bookmark_of_the_same_version_shows_that_the_server_answers() -> None:
    by = rules()
    state, commands = step(by, watching(by), FramesReceived([Bookmark("100")], 3.0), 3.0)
    assert isinstance(state, Watching)
    assert commands == (Deliver(CursorMoved("100")), ReadWatch(state.read_until_s))


def test_the_first_bookmark_shortens_the_idle_deadline_at_once() -> None:
    by = rules()
    state, commands = step(by, watching(by), FramesReceived([Bookmark("105")], 60.0), 60.0)
    read = commands[-1]
    assert isinstance(read, ReadWatch)
    assert 130.0 <= read.until_s <= 133.0
    state, commands = step(by, state, DeadlineReached(), read.until_s)
    assert isinstance(commands[-1], OpenWatch)
    assert 70.0 <= commands[-1].query.idle_timeout_s <= 73.0
    state, commands = step(by, state, WatchOpened(), 140.0)
    state, commands = step(by, state, FramesReceived([Bookmark("110")], 200.0), 200.0)
    assert commands[-1] == ReadWatch(float("inf")), "the source enforces this deadline"


def silent_from_its_start(by: WatchRules, *, late: bool = False) -> tuple[State, ReadWatch]:
    """A watch that was opened at 100, at second 0, after others had brought bookmarks; and its
    first read."""
    state = watching(by, expects_bookmarks=True, check_early=late)
    return state, ReadWatch(state.read_until_s)


def test_without_a_first_bookmark_a_liveness_check_keeps_the_watch_while_nothing_changes() -> None:
    by = rules()
    state, read = silent_from_its_start(by)
    assert read.until_s == 65.0, "past the moment of the first bookmark"
    for now_s in (65.0, 130.0, 195.0):
        state, commands = step(by, state, DeadlineReached(), now_s)
        assert isinstance(commands[-1], CheckSilence)
        assert now_s < commands[-1].until_s <= now_s + 8.0, (
            "a server that does not answer delays nothing"
        )
        state, commands = step(by, state, SilenceChecked("100"), now_s)
        assert commands == (ReadWatch(now_s + 65.0),)


def test_a_server_ahead_of_a_silent_watch_gets_time_for_one_more_bookmark() -> None:
    by = rules()
    state, _ = silent_from_its_start(by)
    state, _ = step(by, state, DeadlineReached(), 65.0)
    state, commands = step(by, state, SilenceChecked("107"), 65.0)
    assert commands == (ReadWatch(130.0),)
    _, commands = step(by, state, DeadlineReached(), 130.0)
    assert isinstance(commands[-1], OpenWatch), "it is frozen"
    state, read = silent_from_its_start(by, late=True)
    assert read.until_s == 50.0
    state, _ = step(by, state, DeadlineReached(), 50.0)
    state, commands = step(by, state, SilenceChecked("107"), 50.0)
    assert isinstance(commands[-1], ReadWatch)
    assert 70.0 <= commands[-1].until_s <= 73.0
    state, commands = step(by, state, FramesReceived([Bookmark("107")], 60.0), 60.0)
    assert commands[-1] == ReadWatch(float("inf"))


@pytest.mark.parametrize("late", [False, True])
def test_a_check_that_is_answered_at_once_is_made_once_whatever_the_clock_shows(late: bool) -> None:
    by = rules()
    for opened_s in (0.1, 105.2, 127.2, 469.3, 1019.6):
        state = watching(by, expects_bookmarks=True, check_early=late)
        state = msgspec.structs.replace(state, opened_at_s=opened_s, silent_since_s=opened_s)
        now_s = state.read_until_s  # less than 50 s later, where the sum was rounded
        for answer in ("", "107"):
            checked, commands = step(by, state, DeadlineReached(), now_s)
            assert isinstance(commands[-1], CheckSilence)
            checked, _ = step(by, checked, SilenceChecked(answer), now_s)
            assert isinstance(checked, Watching)
            assert checked.read_until_s > now_s + 1.0


@pytest.mark.parametrize("late", [False, True])
def test_a_silent_watch_of_a_server_that_does_not_answer_is_closed_within_75_seconds(
    late: bool,
) -> None:
    by = rules()
    state, read = silent_from_its_start(by, late=late)
    state, _ = step(by, state, DeadlineReached(), read.until_s)
    state, commands = step(by, state, SilenceChecked(""), read.until_s)
    assert isinstance(commands[-1], ReadWatch)
    assert commands[-1].until_s <= 75.0
    _, commands = step(by, state, DeadlineReached(), commands[-1].until_s)
    assert isinstance(commands[-1], OpenWatch)


def test_a_server_behind_a_silent_watch_was_restored_and_is_relisted() -> None:
    by = rules()
    state, read = silent_from_its_start(by)
    state, _ = step(by, state, DeadlineReached(), read.until_s)
    _, commands = step(by, state, SilenceChecked("99"), read.until_s)
    assert isinstance(commands[-1], FetchPage)


def test_a_silent_watch_of_a_version_that_cannot_be_ordered_is_relisted_once_the_server_has_one() -> (
    None
):
    by = rules()
    opened = watching(by, "9" * 40, expects_bookmarks=True)
    state, _ = step(by, opened, DeadlineReached(), opened.read_until_s)
    _, commands = step(by, state, SilenceChecked("200"), 65.0)
    assert isinstance(commands[-1], FetchPage)
    _, commands = step(by, state, SilenceChecked("8" * 40), 65.0)
    assert isinstance(commands[-1], ReadWatch), "neither can be ordered: bookmarks may be late"


def test_three_silent_reconnects_double_the_idle_deadline_up_to_the_timeout() -> None:
    by = rules()
    silence_limit_s, state = 70.0, watching(by, expects_bookmarks=True)
    now_s = 0.0
    for _ in range(12):
        now_s += 100.0
        after, commands = step(by, state, RequestFailed(silent()), now_s)
        assert isinstance(commands[-1], OpenWatch)
        after, _ = step(by, after, WatchOpened(), now_s)
        assert isinstance(after, Watching)
        state = after
        assert silence_limit_s <= state.context.silence_limit_s <= 614
        silence_limit_s = state.context.silence_limit_s
    assert silence_limit_s > 300


def silent() -> Interrupted:
    error = Interrupted("nothing came")
    error.reason = "inactive"
    return error


def test_a_watch_that_lived_long_and_ended_cleanly_ends_the_row_of_failures() -> None:
    by, backoff = rules(), Backoff(failures=6, last_failure_at_s=-1000.0)
    for lived_s, failures in ((10.0, 6), (300.0, 0)):
        state, commands = step(by, watching(by, backoff=backoff), WatchEnded(), lived_s)
        assert isinstance(commands[-1], OpenWatch)
        assert state.context.backoff.failures == failures


def test_a_watch_that_outlived_the_longest_delay_is_reopened_after_the_shortest() -> None:
    by, now_s = rules(), 0.0
    state: State = watching(by)
    for _ in range(10):  # a proxy cuts what is silent for 35 s
        state, commands = step(by, state, RequestFailed(Unavailable("cut")), now_s + 35)
        assert isinstance(commands[-1], Sleep)
        assert 0.8 <= commands[-1].until_s - (now_s + 35) < 1.6
        now_s = commands[-1].until_s
        state, _ = step(by, state, SleepEnded(), now_s)
        state, _ = step(by, state, WatchOpened(), now_s)
    for number in range(1, 5):
        state, commands = step(by, state, RequestFailed(Unavailable("cut")), now_s + 20)
        assert isinstance(commands[-1], Sleep)
        assert commands[-1].until_s - (now_s + 20) >= 0.8 * 2**number, (
            "one that ends sooner is reopened after growing delays"
        )
        now_s = commands[-1].until_s
        state, _ = step(by, state, SleepEnded(), now_s)
        state, _ = step(by, state, WatchOpened(), now_s)


def test_a_very_short_watch_fails_when_empty_and_else_waits_out_its_second() -> None:
    by = rules()
    _, commands = step(by, watching(by), WatchEnded(), 0.5)
    assert isinstance(commands[-1], Sleep)
    state, _ = step(by, watching(by), FramesReceived([frame("a", "101")], 0.3), 0.3)
    state, commands = step(by, state, WatchEnded(), 0.5)
    assert commands == (Sleep(1.0),)
    assert isinstance(state, Pausing)
    assert state.context.backoff.failures == 0
    _, commands = step(by, state, SleepEnded(), 1.0)
    assert isinstance(commands[-1], OpenWatch)
    assert commands[-1].query.resource_version == "101"
    state, _ = step(by, watching(by), FramesReceived([frame("a", "101")], 0.3), 0.3)
    _, commands = step(by, state, WatchEnded(), 1.5)
    assert isinstance(commands[-1], OpenWatch), "it lived long enough"


def test_after_a_reconnect_and_a_relist_only_undecodable_objects_are_skipped() -> None:
    by = rules()
    bad = Undecodable("?")
    state, commands = step(
        by,
        watching(by, undecodable=2, undecodable_at_s=0.0),
        FramesReceived([Failure(bad), frame("a", "101")], 3.0),
        3.0,
    )
    assert commands[0] == ReportSkipped((bad,))
    assert isinstance(state, Watching)
    assert (state.cursor, state.context.undecodable, state.context.undecodable_at_s) == (
        "101",
        3,
        3.0,
    )
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
    assert isinstance(commands[-1], OpenWatch)
    assert commands[-1].query.send_initial_events, "a list by pages would have the object too"
    state, _ = step(by, state, WatchOpened(), 60.0)
    _, commands = step(by, state, FramesReceived([Failure(bad), frame("a", "9")], 61.0), 61.0)
    assert ReportSkipped((bad,)) in commands


def test_a_relist_that_is_due_is_made_and_the_watch_is_not_called_silent() -> None:
    by = rules()
    _, commands = step(by, watching(by, relist_at_s=5.0), DeadlineReached(), 500.0)
    assert isinstance(commands[-1], FetchPage)
    assert not any(
        isinstance(command, Deliver) and isinstance(command.output, Retrying)
        for command in commands
    )


def test_a_resource_is_gone_after_discovery_reports_it_twice_half_a_minute_apart() -> None:
    by = rules()
    state: State
    state, commands = step(by, watching(by), RequestFailed(NotFound("404")), 10.0)
    assert commands[-1] == CheckDiscovery()
    gone, now_s = 0, 10.0
    for _ in range(40):
        state, commands = step(by, state, DiscoveryChecked(served=False), now_s)
        gone += Deliver(ResourceRemoved()) in commands
        assert gone == 0 or now_s >= 40.0
        sleep = commands[-1]
        assert isinstance(sleep, Sleep)
        now_s = sleep.until_s
        state, commands = step(by, state, SleepEnded(), now_s)
        if isinstance(commands[-1], FetchPage | OpenWatch):
            state, commands = step(by, state, RequestFailed(NotFound("404")), now_s)
    assert gone == 1
    assert isinstance(state, NotServed)


def test_a_suspicious_list_is_repeated_from_a_quorum_and_then_accepted() -> None:
    by = rules()
    state, _ = start(by, now_s=0.0)
    state, _ = step(by, state, PageReceived(Page("5", None, [])), 0.0)
    state, commands = step(by, state, ListFinished(accepted=False), 0.0)
    assert isinstance(commands[-1], FetchPage)
    state, commands = step(by, state, RequestFailed(Interrupted("broken")), 1.0)
    state, commands = step(by, state, SleepEnded(), 5.0)
    state, commands = step(by, state, PageReceived(Page("5", None, [])), 6.0)
    assert isinstance(commands[-1], FinishList)
    assert commands[-1].done.accept_any_size


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
        assert not any(
            isinstance(each, Deliver)
            and isinstance(each.output, CursorMoved)
            and each.output.resource_version != "100"
            for each in commands
        )
    moving: list[list[Frame]] = [
        [frame("a", "105"), frame("b", odd)],
        [frame("a", odd), Bookmark("105")],
        [Bookmark("105"), frame("a", odd)],
    ]
    for frames in moving:
        state, commands = step(by, watching(by), FramesReceived(frames, 1.0), 1.0)
        assert Deliver(CursorMoved("105")) in commands
    state, commands = step(by, state, WatchEnded(), 60.0)
    assert isinstance(commands[-1], OpenWatch)
    assert commands[-1].query.resource_version == "105"


def test_versions_that_are_no_numbers_move_the_cursor_where_none_is_one() -> None:
    by = rules()
    _, commands = step(
        by, watching(by, "v7"), FramesReceived([frame("a", "v3"), frame("b", "v1")], 1.0), 1.0
    )
    assert Deliver(CursorMoved("v1")) in commands


def test_a_frame_behind_an_undecodable_one_that_ends_the_watch_does_not_move_the_cursor() -> None:
    by = rules()
    state, _ = step(
        by,
        watching(by),
        FramesReceived([frame("a", "101"), Failure(Undecodable("?")), frame("b", "109")], 1.0),
        1.0,
    )
    assert isinstance(state, Pausing)
    assert state.context.cursor == "101"


@pytest.mark.parametrize("version", ["", "0", "7" * 5_000_000])
def test_a_list_without_a_version_to_watch_from_is_tried_again_later(version: str) -> None:
    by = rules()
    state, _ = start(by, now_s=0.0)
    state, commands = step(by, state, PageReceived(Page(version, None, [])), 0.0)
    assert isinstance(commands[-1], Sleep)


def test_a_consistency_list_skips_undecodable_objects_and_the_watch_continues_from_its_cursor() -> (
    None
):
    """Made again, it would count as missed what changed while the watch was closed."""
    by = rules(relist_interval_s=3600.0)
    state, commands = step(by, watching(by, relist_at_s=5.0), DeadlineReached(), 5.0)
    assert isinstance(commands[-1], FetchPage)
    bad = Undecodable("?", about=("shop", "bad"))
    state, commands = step(
        by, state, PageReceived(Page("200", None, [], (bad, Undecodable("?")))), 6.0
    )
    assert isinstance(commands[0], ReportSkipped)
    assert commands[1] == Deliver(ListedObjects([], unreadable=1, damaged=(("shop", "bad"),)))
    assert isinstance(commands[-1], FinishList)
    assert commands[-1].done.continue_from == "100"
    state, commands = step(by, state, ListFinished(accepted=True), 6.0)
    assert isinstance(commands[-1], OpenWatch)
    assert commands[-1].query.resource_version == "100"


def after_a_consistency_list(by: WatchRules, version: str) -> State:
    """It was complete at `version`; the watch is open again, from 100."""
    state, _ = step(by, watching(by, relist_at_s=5.0), DeadlineReached(), 5.0)
    state, _ = step(by, state, PageReceived(Page(version, None, [])), 6.0)
    state, _ = step(by, state, ListFinished(accepted=True), 6.0)
    state, _ = step(by, state, WatchOpened(), 6.0)
    assert isinstance(state, Watching)
    assert state.cursor == "100"
    return state


def test_after_a_consistency_list_no_list_may_be_older_than_it() -> None:
    by = rules(relist_interval_s=3600.0)
    state = after_a_consistency_list(by, "200")
    lost, commands = step(by, state, RequestFailed(Expired("410")), 7.0)
    assert isinstance(commands[-1], FetchPage)
    assert commands[-1].query.resource_version == "200"
    lost, commands = step(by, lost, PageReceived(Page("150", None, [])), 8.0)
    assert isinstance(lost, Pausing)
    assert lost.goal == ListGoal("too_old", most_recent=True, by_content=True)
    state, _ = step(by, state, FramesReceived([frame("a", "201")], 7.0), 7.0)
    _, commands = step(by, state, RequestFailed(Expired("410")), 8.0)
    assert isinstance(commands[-1], FetchPage)
    assert commands[-1].query.resource_version == "201", "the watch has passed it"


@pytest.mark.parametrize(
    "error",
    [
        VersionTooLarge("504"),
        Expired("410"),
        Invalid("400", about="version"),
        Invalid("400"),
        Undecodable("over 2 GiB"),
    ],
)
def test_a_consistency_list_that_cannot_be_served_loses_no_history(error: KubeError) -> None:
    by = rules(relist_interval_s=3600.0)
    state, _ = step(by, watching(by, relist_at_s=5.0), DeadlineReached(), 5.0)
    state, commands = step(by, state, RequestFailed(error), 6.0)
    assert isinstance(commands[-1], Sleep)
    assert commands[-1].until_s < 10.0
    assert not state.context.history_lost
    _, commands = step(by, state, SleepEnded(), commands[-1].until_s)
    assert isinstance(commands[-1], OpenWatch)
    assert commands[-1].query.resource_version == "100"


def test_a_consistency_list_made_again_for_its_token_or_its_size_lets_the_watch_continue() -> None:
    by = rules(relist_interval_s=3600.0)
    state, _ = step(by, watching(by, relist_at_s=5.0), DeadlineReached(), 5.0)
    state, _ = step(by, state, PageReceived(Page("200", "t", [])), 6.0)
    state, commands = step(by, state, RequestFailed(Invalid("400", about="continue")), 6.0)
    assert isinstance(commands[-1], FetchPage)
    state, _ = step(by, state, PageReceived(Page("201", None, [])), 7.0)
    state, commands = step(by, state, ListFinished(accepted=False), 7.0)
    assert isinstance(commands[-1], FetchPage)
    state, commands = step(by, state, PageReceived(Page("202", None, [])), 8.0)
    assert isinstance(commands[-1], FinishList)
    assert commands[-1].done.continue_from == "100"
    _, commands = step(by, state, ListFinished(accepted=True), 8.0)
    assert isinstance(commands[-1], OpenWatch)
    assert commands[-1].query.resource_version == "100"


def test_lists_of_a_restored_server_are_compared_by_content_until_one_is_complete() -> None:
    by = rules()
    state, _ = step(by, watching(by), RequestFailed(VersionTooLarge("504")), 1.0)
    state, commands = step(by, state, SleepEnded(), 2.0)
    assert commands[0] == Deliver(ListBegun(by_content=True))
    state, _ = step(by, state, RequestFailed(Expired("410")), 3.0)
    state, commands = step(by, state, SleepEnded(), 10.0)
    assert commands[0] == Deliver(ListBegun(by_content=True))
    state, _ = step(by, state, PageReceived(Page("50", None, [])), 11.0)
    state, commands = step(by, state, ListFinished(accepted=False), 11.0)
    assert commands[0] == Deliver(ListBegun(by_content=True))


def test_a_list_older_than_requested_is_repeated_by_content_without_a_version() -> None:
    by = rules()
    state, _ = step(by, watching(by), RequestFailed(Expired("410")), 1.0)
    state, commands = step(by, state, PageReceived(Page("90", None, [])), 2.0)
    assert isinstance(state, Pausing)
    assert state.goal == ListGoal("too_old", most_recent=True, by_content=True)
    _, commands = step(by, state, SleepEnded(), state.until_s)
    assert commands == (Deliver(ListBegun(by_content=True)), FetchPage(ListQuery(limit=500)))


@pytest.mark.parametrize(
    ("error", "pages"),
    [
        (Unavailable("no whole answer within 75 s"), True),
        (Undecodable("longer than 2 GiB"), True),
        (Throttled("429"), False),
        (Unreachable("refused"), False),
    ],
)
def test_a_list_that_an_older_server_cannot_answer_at_once_is_repeated_in_pages(
    error: KubeError, pages: bool
) -> None:
    by = rules((1, 33))
    state, commands = step(by, watching(by), RequestFailed(Expired("410")), 1.0)
    at_once = ListQuery(limit=0, resource_version="100", version_match="NotOlderThan")
    assert commands[-1] == FetchPage(at_once)
    state, _ = step(by, state, RequestFailed(error), 76.0)
    assert isinstance(state, Pausing)
    state, commands = step(by, state, SleepEnded(), state.until_s)
    assert commands[-1] == FetchPage(ListQuery(limit=500) if pages else at_once)
    state, _ = step(by, state, RequestFailed(Unavailable("503")), 90.0)
    _, commands = step(by, state, SleepEnded(), 100.0)
    assert commands[-1] == FetchPage(ListQuery(limit=500)), "and stays so"


def test_a_list_older_than_the_watch_is_repeated_by_content() -> None:
    by = rules(relist_interval_s=3600.0)
    state, _ = step(by, watching(by, relist_at_s=5.0), DeadlineReached(), 5.0)
    state, commands = step(by, state, PageReceived(Page("90", None, [])), 6.0)
    assert commands[0] == Deliver(ListBegun(by_content=True))
    state, commands = step(by, state, PageReceived(Page("91", None, [])), 7.0)
    assert isinstance(commands[-1], FinishList)


def test_bookmarks_a_minute_apart_shorten_a_doubled_idle_deadline_again() -> None:
    by = rules()
    for pause_s, limit_s in ((300.0, 280.0), (60.0, 70.0)):
        state: State = watching(by, expects_bookmarks=True, silence_limit_s=280.0)
        for now_s in (10.0, 10.0 + pause_s):
            state, _ = step(by, state, FramesReceived([frame("a", "101")], now_s - 5), now_s - 5)
            state, _ = step(by, state, FramesReceived([Bookmark("105")], now_s), now_s)
        assert state.context.silence_limit_s == limit_s


def test_a_watch_that_brings_only_an_error_is_not_healthy() -> None:
    by = rules()
    backoff = Backoff(failures=5, last_failure_at_s=-1000.0)
    failed = FramesReceived([Failure(Interrupted("500"))], 3.0)
    state, _ = step(by, watching(by, backoff=backoff), failed, 3.0)
    assert (state.context.backoff.failures, state.context.current_as_of_s) == (6, 0.0)
    failed.frames.insert(0, Bookmark("100"))
    state, _ = step(by, watching(by, backoff=backoff), failed, 3.0)
    assert (state.context.backoff.failures, state.context.current_as_of_s) == (1, 3.0)


@pytest.mark.parametrize("rest", [[], [Bookmark("101")]])
def test_the_silence_of_a_streaming_list_counts_from_when_the_store_has_taken_it(
    rest: list[Frame],
) -> None:
    by = rules((1, 36))
    state, _ = start(by, now_s=0.0)
    state, _ = step(by, state, WatchOpened(), 0.0)
    end = [frame("a", "90", "ADDED"), Bookmark("100", initial_end=True), *rest]
    state, commands = step(by, state, FramesReceived(end, 1.0), 1.0)
    assert isinstance(commands[-1], FinishList)
    state, commands = step(by, state, ListFinished(accepted=True), 200.0)
    assert isinstance(commands[-1], ReadWatch)
    assert commands[-1].until_s >= 250.0
    assert isinstance(state, Watching)
    assert state.silent_since_s == 200.0
