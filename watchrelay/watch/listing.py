"""A list, by pages or as a stream, from its first request to the verdict on it. Pure.

Room: watch. In: pages, frames, failures. Out: `Listed` and `ListDone`, then a watch; or a list
anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from watchrelay.core.errors import (
    Expired,
    Forbidden,
    Interrupted,
    Invalid,
    KubeError,
    Misconfigured,
    NotAcceptable,
    NotFound,
    NotWatchable,
    Unauthorized,
    Unavailable,
    Undecodable,
    VersionTooLarge,
)
from watchrelay.model.frames import Bookmark, Failure, ObjectFrame
from watchrelay.model.resources import compare, watchable
from watchrelay.model.watch_events import ListDone, Listed, Troubled
from watchrelay.watch.errors import failed, faster, lenient, recovered, strike
from watchrelay.watch.requests import (
    Rules,
    bar_streaming,
    begin_list,
    begin_watch,
    newest_of,
    next_page,
    relist_due_s,
    wait,
)
from watchrelay.watch.states import (
    Arrived,
    Command,
    Deliver,
    Due,
    Ended,
    Event,
    Failed,
    Held,
    Listing,
    Opened,
    Probing,
    Read,
    Received,
    Settle,
    Settling,
    Skipped,
    Step,
    Streaming,
    ToList,
    ToProbe,
    ToWatch,
    Verdict,
    Watching,
)
from watchrelay.watch.watching import received

RELIST_AGAIN_S = 600.0
"""A list that was to find what a watch missed, and failed, is tried again no sooner, or after its
interval where that is shorter."""
END_MARK_WITHIN_S = 30.0
"""A streaming list without its end mark this long after its newest object is given up. Source:
WATCH 3.6."""


def step_listing(rules: Rules, state: Listing, event: Event, now_s: float) -> Step:
    """One page came, or did not."""
    match event:
        case Arrived(page=page):
            return (
                _arrived(rules, state, event, now_s)
                if watchable(page.resource_version)
                else _unwatchable(rules, state, now_s)
            )
        case Failed(error=Expired() as error) if state.page > 1 and not state.goal.unbounded:
            # The history ran out between pages: one page cannot outlive it. Source: client-go
            # tools/pager.
            again, commands = begin_list(
                rules, state.held, replace(state.goal, unbounded=True), now_s
            )
            return again, (Deliver(Troubled(error, None)), *commands)
        case Failed(error=Invalid(about="continue") as error) if (
            state.page > 1 and state.goal.cause != "continue"
        ):
            again, commands = begin_list(
                rules, state.held, replace(state.goal, cause="continue"), now_s
            )
            return again, (Deliver(Troubled(error, None)), *commands)
        case Failed(error=error):
            return _failed(rules, state.held, state.goal, error, now_s, healthy=state.page > 1)
        case _:
            raise AssertionError(f"{type(event).__name__} while a page is out")


def _failed(
    rules: Rules, held: Held, goal: ToList, error: KubeError, now_s: float, *, healthy: bool = False
) -> Step:
    """A list failed. One that only compares is not worth being blind for: the watch goes on, and
    the list is due again a little later."""
    if goal.cause != "consistency":
        return failed(
            rules, held, error, now_s=now_s, again=replace(goal, unbounded=False), healthy=healthy
        )
    due_s = now_s + min(rules.plan.relist_interval_s, RELIST_AGAIN_S)
    return failed(
        rules,
        replace(held, relist_due_s=due_s),
        error,
        now_s=now_s,
        again=ToWatch(),
        healthy=healthy,
    )


def _unwatchable(rules: Rules, state: Listing, now_s: float) -> Step:
    error = NotWatchable(
        f"the list of {rules.plan.selection.path} has no usable resourceVersion: it cannot be "
        "watched; remove it from the config"
    )
    return _failed(rules, state.held, state.goal, error, now_s)


def _arrived(rules: Rules, state: Listing, event: Arrived, now_s: float) -> Step:
    page, held = event.page, recovered(state.held)
    version = state.version or page.resource_version
    if state.page == 1 and (older := _older(state.asked, version)) is not None:
        return _refuse_older(rules, replace(state, held=held), older, now_s)
    if _went_back(held, state.goal, version):
        return begin_list(rules, held, _by_content(state.goal), now_s)
    if page.failures and not _passes_over(held, state.goal, now_s):
        held = replace(strike(held, now_s), strikes=2)
        return _failed(rules, held, state.goal, page.failures[0], now_s)
    if page.continue_token and page.continue_token == state.token:
        error = Interrupted(
            f"the list of {rules.plan.selection.path} repeats a page: the server gave the same "
            "continue token twice"
        )
        return _failed(rules, held, state.goal, error, now_s)
    commands: list[Command] = []
    if page.failures:
        held = strike(held, now_s)
        commands.append(Skipped(page.failures))
    if page.objects or page.failures:
        commands.append(Deliver(_listed(page.objects, page.failures)))
    count = state.count + len(page.objects)
    if page.continue_token:
        more = replace(
            state,
            held=held,
            page=state.page + 1,
            token=page.continue_token,
            version=version,
            count=count,
        )
        return more, (*commands, next_page(more))
    return Settling(held, state.goal, version), (
        *commands,
        Settle(_done(held, state.goal, version)),
    )


def _passes_over(held: Held, goal: ToList, now_s: float) -> bool:
    """Whether what cannot be decoded is passed over at once. A list that only compares is not made
    again for it: while the watch is closed, changes pass that would count as missed."""
    return goal.cause == "consistency" or lenient(held, now_s)


def _listed(objects: list[ObjectFrame], errors: Sequence[KubeError]) -> Listed:
    damaged = tuple(
        error.about
        for error in errors
        if isinstance(error, Undecodable) and error.about is not None
    )
    return Listed(objects, unreadable=len(errors) - len(damaged), damaged=damaged)


def _done(held: Held, goal: ToList, version: str) -> ListDone:
    return ListDone(version, goal.confirmed, _since(held, goal, version))


def _since(held: Held, goal: ToList, version: str) -> str:
    """Where the watch goes on after a list that was made to find what it missed: where it stood, so
    that it can tell what it would have shown by itself, had it not been closed for the list. ""
    where it goes on from the list.
    """
    return (
        held.cursor if goal.cause == "consistency" and compare(held.cursor, version) == -1 else ""
    )


def _older(asked: str, got: str) -> KubeError | None:
    """A list that is older than what it was asked to be is not believed (WATCH 5.7)."""
    if asked and compare(got, asked) == -1:
        return Interrupted(
            f"the server answered with version {got}, older than {asked} that was asked for at "
            "least"
        )
    return None


def _went_back(held: Held, goal: ToList, version: str) -> bool:
    """Whether a list shows that the server was restored, which nothing said before: compared by
    version, it would hide changes."""
    return held.complete and not goal.by_content and compare(version, held.cursor) == -1


def _by_content(goal: ToList) -> ToList:
    return ToList("restored", quorum=True, confirmed=goal.confirmed, by_content=True)


def _refuse_older(rules: Rules, state: Listing | Streaming, error: KubeError, now_s: float) -> Step:
    held, delay_s = faster(rules, state.held, error, now_s, healthy=False)
    return wait(held, _by_content(state.goal), error, now_s + delay_s)


# ---- streaming list ------------------------------------------------------------------------------

_NOT_ABOUT_STREAMING = (
    Forbidden,
    NotFound,
    Unauthorized,
    Misconfigured,
    NotAcceptable,
    Expired,
    VersionTooLarge,
)


def step_streaming(rules: Rules, state: Streaming, event: Event, now_s: float) -> Step:
    """Frames of the initial state came, or they did not end as they should."""
    match event:
        case Received():
            return _initial(rules, state, event, now_s)
        case Opened():
            opened = replace(
                state, held=recovered(state.held, watched=True), opened_s=now_s, added_s=now_s
            )
            return opened, (Read(now_s + END_MARK_WITHIN_S),)
        case Failed(error=error):
            return _stream_failed(rules, state, error, now_s)
        case Ended():
            return _missed(
                rules, state, Interrupted("the streaming list ended before its end mark"), now_s
            )
        case Due():
            return _missed(
                rules,
                state,
                Interrupted(f"no end mark {END_MARK_WITHIN_S:.0f} s after the newest object"),
                now_s,
            )
        case _:
            raise AssertionError(f"{type(event).__name__} while a streaming list is open")


def _initial(rules: Rules, state: Streaming, event: Received, now_s: float) -> Step:
    held, objects, skipped = state.held, list[ObjectFrame](), list[KubeError]()
    commands: list[Command] = []
    for index, frame in enumerate(event.frames):
        if isinstance(frame, ObjectFrame):
            objects.append(frame)
        elif isinstance(frame, Failure):
            if not (isinstance(frame.error, Undecodable) and _passes_over(held, state.goal, now_s)):
                return _stream_failed(rules, replace(state, held=held), frame.error, now_s)
            held = strike(held, now_s)
            skipped.append(frame.error)
        elif frame.initial_end:
            if skipped:
                commands.append(Skipped(tuple(skipped)))
            if objects or skipped:
                commands.append(Deliver(_listed(objects, skipped)))
            state = replace(state, held=held, count=state.count + len(objects))
            return _end_mark(
                rules, state, frame, tuple(event.frames[index + 1 :]), event.at_s, commands, now_s
            )
    if skipped:
        commands.append(Skipped(tuple(skipped)))
    if objects or skipped:
        commands.append(Deliver(_listed(objects, skipped)))
    added_s = event.at_s if objects else state.added_s
    if now_s - added_s >= END_MARK_WITHIN_S:
        return step_streaming(rules, state, Due(), now_s)
    state = replace(state, held=held, count=state.count + len(objects), added_s=added_s)
    return state, (*commands, Read(added_s + END_MARK_WITHIN_S))


def _end_mark(
    rules: Rules, state: Streaming, mark: Bookmark,
    rest: tuple[ObjectFrame | Bookmark | Failure, ...], at_s: float,
    commands: list[Command], now_s: float,
) -> Step:  # fmt: skip
    version = mark.resource_version
    if not watchable(version):
        return _missed(
            rules,
            state,
            Interrupted("the end mark of a streaming list has no resourceVersion"),
            now_s,
        )
    if (older := _older(state.asked, version)) is not None:
        return _refuse_older(rules, state, older, now_s)
    if _went_back(state.held, state.goal, version):
        return begin_list(rules, state.held, _by_content(state.goal), now_s)
    assert state.opened_s is not None, "frames came from a watch that was never opened"
    # Servers that stream lists serve consistent lists from their cache, so asking early helps from
    # the first watch on.
    held = replace(state.held, misses=0, bookmarked=True, late=True)
    watch = Watching(
        held,
        version,
        state.timeout_s,
        state.idle_s,
        asked_idle_s=state.idle_s,
        opened_s=state.opened_s,
        heard_s=at_s,
        lines=1,
        vouch="due",
    )
    return Settling(held, state.goal, version, watch, rest, at_s), (
        *commands,
        Settle(_done(held, state.goal, version)),
    )


def _stream_failed(rules: Rules, state: Streaming, error: KubeError, now_s: float) -> Step:
    if isinstance(error, Invalid | NotWatchable):
        # The parameters are refused (gate off, old server, proxy): by pages now, and for six hours.
        # Source: WATCH 3.4.
        again, commands = begin_list(
            rules, bar_streaming(rules, state.held, now_s), state.goal, now_s
        )
        return again, (Deliver(Troubled(error, None)), *commands)
    if isinstance(error, Undecodable):
        return _missed(rules, replace(state, held=strike(state.held, now_s)), error, now_s)
    if isinstance(error, VersionTooLarge):
        # A lagging cache may fail so for ever while it lists well: this counts as a miss too.
        # Source: k/k#139766.
        held = replace(state.held, misses=state.held.misses + 1)
        held = bar_streaming(rules, held, now_s) if held.misses >= 2 else held
        return _failed(rules, held, state.goal, error, now_s)
    early = isinstance(error, Unavailable) and state.opened_s is None
    if early or isinstance(error, _NOT_ABOUT_STREAMING):
        return _failed(rules, state.held, state.goal, error, now_s, healthy=state.count > 0)
    return _missed(rules, state, error, now_s)


def _missed(rules: Rules, state: Streaming, error: KubeError, now_s: float) -> Step:
    """The stream broke before its end mark: once more, then by pages (client-go retries for ever:
    k/k#140890)."""
    misses = state.held.misses + 1
    if state.goal.cause == "consistency":
        held = replace(state.held, misses=misses)
        return _failed(
            rules,
            bar_streaming(rules, held, now_s) if misses >= 2 else held,
            state.goal,
            error,
            now_s,
            healthy=state.count > 0,
        )
    held, delay_s = faster(
        rules, replace(state.held, misses=misses), error, now_s, healthy=state.count > 0
    )
    if misses >= 2:
        held = bar_streaming(rules, held, now_s)
        if not isinstance(error, Unavailable):
            again, commands = begin_list(rules, held, state.goal, now_s)
            return again, (Deliver(Troubled(error, None)), *commands)
    return wait(held, state.goal, error, now_s + delay_s)


# ---- after a list --------------------------------------------------------------------------------


def step_settling(rules: Rules, state: Settling, event: Event, now_s: float) -> Step:
    """The list is believed: watch on from its version. Or not: once more, from a quorum, and then
    it counts (WATCH 5.8)."""
    assert isinstance(event, Verdict), f"{type(event).__name__} while a verdict is awaited"
    if not event.believed:
        again = ToList("implausible", quorum=True, confirmed=True, by_content=state.goal.by_content)
        return begin_list(rules, state.held, again, now_s)
    since = _since(state.held, state.goal, state.version)
    held = replace(
        state.held,
        cursor=since or state.version,
        complete=True,
        floor="",
        gone=False,
        absent_s=None,
        heard_s=now_s,
        setback_s=now_s if state.held.setback_listed else state.held.setback_s,
        setback_listed=False,
        relist_due_s=relist_due_s(rules, now_s),
    )
    if state.watch is None or since:
        return begin_watch(rules, held)
    watch = replace(state.watch, held=held)
    if state.rest:
        return received(rules, watch, Received(list(state.rest), state.rest_s), now_s)
    return watch, (Read(watch.due_s),)


def step_probing(rules: Rules, state: Probing, event: Event, now_s: float) -> Step:
    """A server whose present lies behind our cursor was restored from a backup: everything we hold
    is in doubt (WATCH 2.8)."""
    match event:
        case Arrived(page=page):
            held = recovered(state.held)
            if compare(page.resource_version, newest_of(held.cursor, held.floor)) == -1:
                return begin_list(
                    rules, held, ToList("restored", quorum=True, by_content=True), now_s
                )
            return begin_watch(rules, held)
        case Failed(error=Unavailable() | Unauthorized() | Misconfigured() | NotFound() as error):
            return failed(rules, state.held, error, now_s=now_s, again=ToProbe(), healthy=False)
        case Failed():
            # a probe that may not be made proves nothing: the watch decides
            return begin_watch(rules, state.held)
        case _:
            raise AssertionError(f"{type(event).__name__} while a probe is out")
