"""Lists that are made again, and those of `relistInterval`."""

from collections.abc import Iterable, Iterator
from itertools import chain, cycle, islice
from random import Random

import pytest
from msgspec.structs import replace

from tests.support.watchmachine import frame, last, rules, watching
from watchrelay.core.errors import (
    Expired,
    Interrupted,
    Invalid,
    KubeError,
    Throttled,
    Unavailable,
    Undecodable,
    Unreachable,
    VersionTooLarge,
)
from watchrelay.model.frames import ListQuery, Page
from watchrelay.model.watch_output import (
    ListBegun,
    ListDone,
    ListedObjects,
    Watched,
)
from watchrelay.watch.context import WatchRules
from watchrelay.watch.machine import PAGE_RETRIES, start, step
from watchrelay.watch.messages import (
    DeadlineReached,
    FetchPage,
    FramesReceived,
    ListFinished,
    OpenWatch,
    PageReceived,
    RequestFailed,
    Skipped,
    Sleep,
    SleepEnded,
    WatchOpened,
)
from watchrelay.watch.pages import EMPTY_PAGES
from watchrelay.watch.states import (
    BackingOff,
    FinishingList,
    ListGoal,
    ListingPages,
    RetryingPage,
    State,
    Watching,
)


def test_a_suspicious_list_is_repeated_from_a_quorum_and_then_accepted() -> None:
    by = rules()
    state, _ = start(by, now_s=0.0)
    state, _ = step(by, state, PageReceived(Page("5", None, [])), 0.0)
    state, commands = step(by, state, ListFinished(accepted=False), 0.0)
    assert isinstance(commands[-1], FetchPage)
    state, commands = step(by, state, RequestFailed(Interrupted("broken")), 1.0)
    state, commands = step(by, state, SleepEnded(), 5.0)
    state, commands = step(by, state, PageReceived(Page("5", None, [])), 6.0)
    assert last(commands, ListDone).accept_any_size


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
    assert isinstance(commands[0], Skipped)
    assert commands[1] == ListedObjects([], unreadable=1, damaged=(("shop", "bad"),))
    assert last(commands, ListDone).continue_from == "100"
    state, commands = step(by, state, ListFinished(accepted=True), 6.0)
    assert last(commands, OpenWatch).query.resource_version == "100"


def test_a_consistency_list_is_made_when_it_is_due_also_while_changes_keep_coming() -> None:
    by = rules(relist_interval_s=3600.0)
    quiet = after_a_consistency_list(by, "200")
    assert isinstance(quiet, Watching)
    due_s = quiet.context.relist_at_s
    assert 6.0 < due_s <= 6.0 + 3600.0 * 1.1, "the next one, from the list before"
    near = replace(quiet, silent_since_s=due_s - 1.0, opened_at_s=due_s - 1.0)
    assert near.read_until_s == due_s, "a read ends when the list is due"
    changed = frame("a", "300")
    for at_s, listed in ((due_s - 0.5, False), (due_s, True)):
        _, commands = step(by, near, FramesReceived([changed], at_s), at_s)
        assert isinstance(commands[-1], FetchPage) is listed, "a busy watch has no deadline"
        assert Watched([changed], at_s, "300") in commands


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
    assert last(commands, FetchPage).query.resource_version == "200"
    lost, commands = step(by, lost, PageReceived(Page("150", None, [])), 8.0)
    assert isinstance(lost, BackingOff)
    assert lost.goal == ListGoal("too_old", "restored")
    state, _ = step(by, state, FramesReceived([frame("a", "201")], 7.0), 7.0)
    _, commands = step(by, state, RequestFailed(Expired("410")), 8.0)
    assert last(commands, FetchPage).query.resource_version == "201", "the watch has passed it"


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
    assert last(commands, Sleep).until_s < 10.0
    assert not state.context.version_rejected
    _, commands = step(by, state, SleepEnded(), last(commands, Sleep).until_s)
    assert last(commands, OpenWatch).query.resource_version == "100"


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
    assert last(commands, ListDone).continue_from == "100"
    _, commands = step(by, state, ListFinished(accepted=True), 8.0)
    assert last(commands, OpenWatch).query.resource_version == "100"


def test_lists_of_a_restored_server_are_compared_by_content_until_one_is_complete() -> None:
    by = rules()
    state, _ = step(by, watching(by), RequestFailed(VersionTooLarge("504")), 1.0)
    state, commands = step(by, state, SleepEnded(), 2.0)
    assert commands[0] == ListBegun(by_content=True)
    state, _ = step(by, state, RequestFailed(Expired("410")), 3.0)
    state, commands = step(by, state, SleepEnded(), 10.0)
    assert commands[0] == ListBegun(by_content=True)
    state, _ = step(by, state, PageReceived(Page("50", None, [])), 11.0)
    state, commands = step(by, state, ListFinished(accepted=False), 11.0)
    assert commands[0] == ListBegun(by_content=True)


def test_a_list_older_than_requested_is_repeated_by_content_without_a_version() -> None:
    by = rules()
    state, _ = step(by, watching(by), RequestFailed(Expired("410")), 1.0)
    state, commands = step(by, state, PageReceived(Page("90", None, [])), 2.0)
    assert isinstance(state, BackingOff)
    assert state.goal == ListGoal("too_old", "restored")
    _, commands = step(by, state, SleepEnded(), state.until_s)
    assert commands == (ListBegun(by_content=True), FetchPage(ListQuery(limit=500)))


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
    assert isinstance(state, BackingOff)
    state, commands = step(by, state, SleepEnded(), state.until_s)
    assert commands[-1] == FetchPage(ListQuery(limit=500) if pages else at_once)
    state, _ = step(by, state, RequestFailed(Unavailable("503")), 90.0)
    _, commands = step(by, state, SleepEnded(), 100.0)
    assert commands[-1] == FetchPage(ListQuery(limit=500)), "and stays so"


def test_a_throttled_page_is_requested_again_and_the_list_goes_on() -> None:
    by = rules((1, 33))
    state, _ = start(by, now_s=0.0)
    state, commands = step(by, state, PageReceived(Page("100", "next", [])), 0.0)
    second = commands[-1]
    for failures in range(1, PAGE_RETRIES + 1):
        state, commands = step(by, state, RequestFailed(Throttled("429", retry_after_s=2)), 1.0)
        assert isinstance(state, RetryingPage)
        assert state.until_s >= 3.0
        state, commands = step(by, state, SleepEnded(), state.until_s)
        assert commands == (second,), "no list is begun"
        assert isinstance(state, ListingPages)
        assert (state.throttled, state.version) == (failures, "100")
    finishing, _ = step(by, state, PageReceived(Page("100", None, [])), 400.0)
    assert isinstance(finishing, FinishingList)
    state, _ = step(by, state, RequestFailed(Throttled("429")), 400.0)
    state, commands = step(by, state, SleepEnded(), 500.0)
    assert commands[0] == ListBegun(by_content=False), "the list begins again in the end"


def test_a_list_older_than_the_watch_is_repeated_by_content() -> None:
    by = rules(relist_interval_s=3600.0)
    state, _ = step(by, watching(by, relist_at_s=5.0), DeadlineReached(), 5.0)
    state, commands = step(by, state, PageReceived(Page("90", None, [])), 6.0)
    assert commands[0] == ListBegun(by_content=True)
    state, commands = step(by, state, PageReceived(Page("91", None, [])), 7.0)
    assert isinstance(commands[-1], ListDone)


def listing(names: Iterable[str], *, every_s: float) -> Iterator[tuple[str, float, State]]:
    """A list by pages of one object each ("" for none), each with a token that no other has, and
    the name, time and state of each: until the list has failed."""
    by = rules()
    state, _ = start(by, now_s=0.0)
    for number, name in enumerate(names, 1):
        objects = [frame(name, "1", "ADDED")] if name else []
        page, now_s = Page("100", f"token-{number}", objects), number * every_s
        state, _ = step(by, state, PageReceived(page), now_s)
        yield name, now_s, state
        if not isinstance(state, ListingPages):
            return


@pytest.mark.parametrize(
    ("names", "every_s", "says", "within_s"),
    [
        (cycle("ab"), 0.01, "more than one begins with shop/b", 0.05),
        (cycle(["a", ""]), 0.01, "more than one begins with shop/a", 0.05),
        (cycle([""]), 0.01, f"{EMPTY_PAGES} pages in 10 s without an object", 11),
        (cycle([""]), 70.0, "10 pages in 630 s without an object", 700),
    ],
)
def test_a_list_whose_pages_repeat_or_bring_nothing_fails(
    names: Iterable[str], every_s: float, says: str, within_s: float
) -> None:
    _, at_s, failed = list(islice(listing(names, every_s=every_s), 5000))[-1]
    assert isinstance(failed, BackingOff)
    assert says in str(failed.error)
    assert str(failed.error).startswith("the list of /api/v1/pods ")
    assert "pageSize: 0" in str(failed.error)
    assert at_s <= within_s
    assert failed.until_s > at_s, "after a backoff"


@pytest.mark.parametrize("seed", range(10))
def test_a_list_that_goes_in_a_circle_fails_wherever_the_circle_begins(seed: int) -> None:
    rng = Random(seed)
    before, around, empty = rng.randrange(300), rng.randint(1, 300), rng.randrange(3)
    circle = chain(map(str, range(before)), cycle([f"c{n}" for n in range(around)]))
    names = chain.from_iterable([name, *[""] * rng.randint(0, empty)] for name in circle)
    most = (3 * (before + around) + 1) * (empty + 1)
    pages = list(islice(listing(names, every_s=0.1), most))
    assert isinstance(pages[-1][-1], BackingOff)
    came = {name for name, _, _ in pages if name}
    assert len(came) == before + around, "not before the first has come again"


@pytest.mark.parametrize("every_s", [0.01, 70.0])
def test_a_list_of_any_length_at_any_speed_goes_on(every_s: float) -> None:
    empty = [""] * (EMPTY_PAGES - 1 if every_s < 1 else 8)
    names = [*empty, *(str(n) for n in range(2000)), *empty, "last", *empty]
    assert all(isinstance(state, ListingPages) for _, _, state in listing(names, every_s=every_s))
