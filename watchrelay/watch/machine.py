"""The watch of one resource as a state machine: limits, then the steps. Pure.

`step` takes a state (states.py), an event and the time; it returns the next state and commands
(messages.py), the last of which is the one action whose result is the next event. `loop.py`
performs them, and keeps the next state only when everything before the action was delivered: the
cursor moves last.

Moments of the monotonic clock are `now_s`, `*_at_s`, `*_since_s` and `*until_s`; every other `*_s`
is a duration in seconds. A bare `version` is a resourceVersion; the releases of the API server are
named `*server_version`. `Unavailable`, with `Unreachable` and `Throttled`, is an error of the
server, `Interrupted` one of a single response. The client is kube/client.py; it ends a silent read
with the reason "inactive". A watch is silent while no frame comes, and frozen once that takes too
long. A small list is one with `limit=1`, which shows the server's current version; made beside an
open watch it is a version check.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from watchrelay.core.backoff import clamp_retry_after
from watchrelay.core.errors import (
    Expired,
    Forbidden,
    Hidden,
    Interrupted,
    Invalid,
    KubeError,
    Misconfigured,
    NotAcceptable,
    NotFound,
    NotWatchable,
    Throttled,
    TransientlyForbidden,
    Unanswered,
    Unauthorized,
    Unavailable,
    Undecodable,
    Unreachable,
    VersionTooLarge,
)
from watchrelay.model.frames import (
    WATCH_GRACE_S,
    Bookmark,
    Failure,
    Frame,
    ListQuery,
    ObjectFrame,
    Page,
)
from watchrelay.model.resources import Availability, advances, compare, watchable
from watchrelay.model.watch_output import (
    ListBegun,
    ListDone,
    ListedObjects,
    ResourceRemoved,
    ServerSeen,
    Watched,
)
from watchrelay.watch.context import (
    FORBIDDEN_GRACE_S,
    SILENCE_LIMIT_S,
    STREAMING_SINCE,
    StreamContext,
    WatchRules,
)
from watchrelay.watch.failing import END_IN_TIME_S, PROVING_WATCH_S, blames_minimum
from watchrelay.watch.messages import (
    CheckDiscovery,
    CheckLists,
    CheckVersion,
    Command,
    DeadlineReached,
    DiscoveryChecked,
    EndReason,
    Event,
    FetchPage,
    FramesReceived,
    ListFinished,
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
from watchrelay.watch.states import (
    CONSISTENCY,
    FAILING,
    RESTORED,
    BackingOff,
    CheckingLists,
    FinishingList,
    ListCause,
    ListGoal,
    ListingPages,
    NotServed,
    OpeningList,
    OpeningWatch,
    Pausing,
    RetryingPage,
    State,
    StreamingList,
    VersionCheck,
    Watching,
)

# ---- limits --------------------------------------------------------------------------------------

END_BOOKMARK_WITHIN_S = 30.0
"""A streaming list has failed if its initial-events-end bookmark does not come within this time
after its newest object. Source: docs/watch-facts.md 3.6."""
PAGE_RETRIES = 10
"""A page after the first is requested again up to this many times while the server throttles,
before the whole list is begun again: else a list of many pages might never end, though few of its
requests are rejected. Source: client-go."""
RELIST_AGAIN_S = 600.0
"""A failed list during which the watch can continue is made again after this time, or after
`relistInterval` where that is shorter."""
REJECTED_AGAIN_WITHIN_S = 60.0
"""If a version is rejected again within this time after the list that followed the last rejection,
the next list waits for a backoff. Source: docs/watch-facts.md 6.4, class C."""
CHECK_AT_OPEN_AFTER_S = 600.0
"""If the server has not shown its current state for this long, as where the cursor comes from the
log, a version check is made as soon as the next watch is open: is the server's history the one from
which the held state was made? Source: docs/watch-facts.md 2.8."""
VERSION_CHECK_AGAIN_S = 60.0
"""A version check without an answer, or that is not certain, is made again after this time."""
BRIEF_WATCH_S = 5
"""The `timeoutSeconds` of a watch that is opened to see whether the one before, which was silent
without bookmarks, lacks something: the server's clean end of it comes after all that it had to
send, and 2 s before that comes a bookmark if it has any. Source: docs/watch-facts.md 2.4."""
SECOND_BOOKMARK_S = 130.0
"""How long a watch may be silent from its opening on if a version check without `check_early` shows
a newer version: until its second bookmark, due after 120 s, is late too."""
FROZEN_WATCHES = 3
"""After this many frozen watches since one that brought an object, the next ones may be silent for
twice as long; after as many more, for twice that, at most until their timeout. Two bookmarks within
`SILENCE_LIMIT_S` of each other end it."""
SHORT_WATCH_S = 1.0
"""A watch that ends sooner without moving the cursor counts as a failure, and the next one waits
for a backoff. After one that ends sooner with events, the next one opens when this time is up.
Otherwise a server that closes its watches at once would get requests in a hot loop
(docs/watch-facts.md 2.9)."""
NOT_SERVED_CONFIRM_S = 30.0
"""Discovery must report twice, at least this far apart, that a resource is not served, before its
objects are removed. Source: docs/watch-facts.md 8.4."""
CHECK_DISCOVERY_S = 30.0
"""Discovery is asked at least this often meanwhile."""

Step = tuple[State, tuple[Command, ...]]

# ---- start, step ---------------------------------------------------------------------------------


def start(
    rules: WatchRules,
    *,
    cursor: str = "",
    newest_on_log: str = "",
    recovered: bool = False,
    now_s: float,
    first_wait_s: float = 0.0,
) -> Step:
    """The first step: a list, or with a cursor a watch from there.

    Whether the server was restored to a version before the cursor, or is that of another cluster, a
    small list tells beside the watch (docs/watch-facts.md 2.8).

    Args:
        cursor: The version whose state is in the store already, "" for none.
        newest_on_log: The newest version of the log that was read back.
        recovered: The store holds what a log contained and, without a cursor, needs a list of the
            current state to compare with.
        first_wait_s: Delay that spreads streams which start together.
    """
    context = StreamContext(
        cursor=cursor,
        held_version=newest_on_log,
        has_state=bool(cursor),
        expects_bookmarks=bool(cursor) and rules.plan.bookmarks,
        relist_at_s=rules.relist_at_s(now_s) if cursor else math.inf,
        watch_was_allowed=recovered or bool(cursor),
        forbidden_grace_s=FORBIDDEN_GRACE_S if recovered or cursor else None,
    )
    first = ListGoal("recovered", "most_recent") if recovered else ListGoal("first")
    goal = None if cursor else first
    if first_wait_s <= 0:
        return _begin(rules, context, goal, now_s)
    until_s = now_s + first_wait_s
    return Pausing(context, goal, until_s), (Sleep(until_s),)


def step(rules: WatchRules, state: State, event: Event, now_s: float) -> Step:
    """The state after `event`, and what to do. Raises: AssertionError when the event cannot happen
    in that state."""
    if isinstance(state, Watching) and isinstance(event, FramesReceived):  # the hot path
        return _frames_received(rules, state, event, now_s)
    match state, event:
        case Watching() | OpeningWatch(), _:
            return _watch_step(rules, state, event, now_s)
        case RetryingPage(listing=listing), SleepEnded():
            return listing, (FetchPage(listing.query),)
        case Pausing() | BackingOff(), SleepEnded():
            return _try_again(rules, state.context, state.goal, now_s)
        case CheckingLists(), ListsChecked():
            return _lists_checked(rules, state, event, now_s)
        case NotServed(), SleepEnded(rechecked=rechecked):
            if rechecked or now_s >= state.retry_at_s:
                return _try_again(rules, state.context, state.goal, now_s)
            return state, (CheckDiscovery(),)
        case NotServed(), DiscoveryChecked(availability=availability):
            return _discovery_checked(rules, state, availability, now_s)
        case _:
            return _list_step(rules, state, event, now_s)


def _list_step(rules: WatchRules, state: State, event: Event, now_s: float) -> Step:
    match state, event:
        case ListingPages(), PageReceived(page=page):
            return _page_received(rules, state, page, now_s)
        case ListingPages(), RequestFailed(error=error):
            return _page_failed(rules, state, error, now_s)
        case OpeningList(), WatchOpened():
            opened = StreamingList(
                state.context.after_success(of_watch=True), state.goal, state.query,
                opened_at_s=now_s, newest_object_at_s=now_s,
            )  # fmt: skip
            return opened, (ReadWatch(now_s + END_BOOKMARK_WITHIN_S),)
        case OpeningList(), RequestFailed(error=error):
            return _streaming_list_failed(rules, state, error, now_s)
        case StreamingList(), RequestFailed(error=error):
            return _streaming_list_broke(rules, state, error, now_s)
        case StreamingList(), FramesReceived():
            return _initial_events(rules, state, event, now_s)
        case StreamingList(), WatchEnded():
            error = Interrupted("the streaming list ended before its initial-events-end bookmark")
            return _streaming_list_broke(rules, state, error, now_s, "eof")
        case StreamingList(), DeadlineReached():
            return _streaming_list_broke(rules, state, Interrupted(_NO_END), now_s)
        case FinishingList(), ListFinished(accepted=accepted):
            return _list_finished(rules, state, now_s, accepted=accepted)
    raise AssertionError(f"{type(event).__name__} in state {type(state).__name__}")


def _watch_step(
    rules: WatchRules, state: Watching | OpeningWatch, event: Event, now_s: float
) -> Step:
    match state, event:
        case Watching(), WatchEnded():
            return _watch_ended(rules, state, now_s)
        case Watching(), DeadlineReached():
            return _deadline_reached(rules, state, now_s)
        case Watching(), VersionChecked():
            return _version_checked(rules, state, event, now_s)
        case Watching(), RequestFailed(error=error):
            return _watch_failed(rules, state, error, now_s)
        case OpeningWatch(), WatchOpened(waited_s=waited_s):
            return _watch_opened(state, waited_s, now_s)
        case OpeningWatch(), RequestFailed(error=error):
            return _watch_error(rules, state.context, error, now_s)
    raise AssertionError(f"{type(event).__name__} in state {type(state).__name__}")


# ---- how a step goes on --------------------------------------------------------------------------
# `_begin_list` and `_begin_watch` send a request. `_watch_again` chooses between the watch and the
# consistency list, `_begin` between these and a list that is wanted. `_try_again`, after a failure,
# asks before that whether lists work. `_wait` and `_begin_at_once` report an error first.


def _begin(rules: WatchRules, context: StreamContext, goal: ListGoal | None, now_s: float) -> Step:
    """The state for `goal`, and its first request."""
    if goal is None:
        return _watch_again(rules, context, now_s)
    return _begin_list(rules, context, goal, now_s)


def _watch_again(rules: WatchRules, context: StreamContext, now_s: float) -> Step:
    """Continue the watch from the cursor, unless a list is due."""
    if context.relist_at_s > now_s:
        timeout_s = 0
        if context.failing.proof_due(context.cursor, now_s):
            timeout_s = rules.rng.randint(*PROVING_WATCH_S)
        return _begin_watch(rules, context, timeout_s)
    fails = context.failing.fails_from(context.cursor)
    goal = replace(CONSISTENCY, watch="fails") if fails else CONSISTENCY
    return _begin_list(rules, context, goal, now_s)


def _wait(
    context: StreamContext, goal: ListGoal | None, error: KubeError, until_s: float, *,
    wakeable: bool = False,
) -> Step:  # fmt: skip
    """Send nothing until `until_s`, and report why."""
    return BackingOff(context, goal, until_s, error), (
        Retrying(error, until_s),
        Sleep(until_s, wakeable),
    )


def _begin_at_once(
    rules: WatchRules, context: StreamContext, goal: ListGoal | None, error: KubeError, now_s: float
) -> Step:
    """Report `error`, and begin `goal` without a delay."""
    return _after(Retrying(error, None), then=_begin(rules, context, goal, now_s))


def _after(*commands: Command, then: Step) -> Step:
    """`then`, after these commands."""
    state, others = then
    return state, (*commands, *others)


# ---- lists ---------------------------------------------------------------------------------------


def _begin_list(rules: WatchRules, context: StreamContext, goal: ListGoal, now_s: float) -> Step:
    """A list, streaming where the server supports it. A version is sent only together with
    NotOlderThan, or as "0"."""
    not_older = goal.state == "not_older"
    minimum = context.newest_known if context.has_state and not_older else ""
    any_version = rules.plan.list_semantic == "any" and not context.has_state and not_older
    begun = ListBegun(by_content=goal.state == "restored")
    paged = any_version or goal.in_one_page or goal.watch == "fails"
    if context.streams_lists(rules, now_s) and not paged:
        query = context.watch_query(rules, minimum, initial_events=True)
        return OpeningList(context, goal, query), (begun, OpenWatch(query))
    limit = 0 if goal.in_one_page else rules.plan.page_size
    if minimum and rules.server_version is not None and rules.server_version < STREAMING_SINCE:
        # these servers answer later pages from etcd: one page keeps a relist in the server's cache
        # (docs/watch-facts.md 1.10)
        limit = 0
    list_query = ListQuery(
        limit=limit,
        resource_version="0" if any_version else minimum,
        version_match="NotOlderThan" if minimum else "",
        whole_objects=context.whole_objects,
    )
    return ListingPages(context, goal, list_query), (begun, FetchPage(list_query))


def _page_failed(rules: WatchRules, state: ListingPages, error: KubeError, now_s: float) -> Step:
    context, goal, not_first = state.context, state.goal, bool(state.query.continue_token)
    match error:
        case Expired() if not_first and not goal.in_one_page:
            # The history expired between pages: one page cannot outlive it. Source: client-go
            # tools/pager.
            return _begin_at_once(rules, context, replace(goal, in_one_page=True), error, now_s)
        case Invalid(about="continue") if not_first and goal.cause != "continue":
            return _begin_at_once(rules, context, replace(goal, cause="continue"), error, now_s)
        case Throttled() if not_first and goal.watch == "lost" and state.throttled < PAGE_RETRIES:
            context, delay_s = context.retry(rules, error, now_s, healthy=True)
            listing = replace(state, context=context, throttled=state.throttled + 1)
            until_s = now_s + delay_s
            retrying = Retrying(error, until_s, list_goes_on=True)
            return RetryingPage(listing, until_s), (retrying, Sleep(until_s))
        case _ if goal.watch == "fails" and state.query.version_match and blames_minimum(error):
            context, delay_s = context.retry(rules, error, now_s, healthy=False)
            return _wait(context, replace(goal, state="most_recent"), error, now_s + delay_s)
    if _too_much_from_the_cache(rules, state, error):
        goal = replace(goal, state="most_recent")  # without a minimum the next list is paged
    return _list_failed(rules, context, goal, error, now_s, healthy=not_first)


def _too_much_from_the_cache(rules: WatchRules, state: ListingPages, error: KubeError) -> bool:
    """Whether a list failed that the server's cache answers in one page, and that may succeed in
    several. A server that throttles or cannot be reached shows nothing about its size."""
    if state.query.resource_version == "0":  # there the server ignores the limit
        return rules.plan.page_size > 0 and isinstance(error, Undecodable)
    if state.query.limit or not rules.plan.page_size or state.goal.in_one_page:
        return False
    shows_nothing = isinstance(error, Throttled | Unreachable)
    return isinstance(error, Unavailable | Undecodable) and not shows_nothing


def _page_received(rules: WatchRules, state: ListingPages, page: Page, now_s: float) -> Step:
    if not watchable(page.resource_version):
        unusable = NotWatchable(
            f"the list of {rules.plan.selection.path} has no usable resourceVersion: it cannot be "
            "watched; remove it from the config"
        )
        return _list_failed(rules, state.context, state.goal, unusable, now_s)
    context, goal = state.context.after_success(), state.goal
    version = state.version or page.resource_version
    minimum = state.query.resource_version if state.query.version_match else ""
    if another := _list_again(rules, context, goal, minimum, version, now_s):
        return another
    if goal == FAILING and version == context.cursor:
        # the small list before it was newer, so this one is of a cache that has stopped
        return _begin_list(rules, context, replace(goal, state="most_recent"), now_s)
    if page.failures and not _skips_at_once(context, goal, now_s):
        context = context.with_undecodable(now_s, listed=True)
        return _list_failed(rules, context, goal, page.failures[0], now_s)
    if page.failures:
        context = context.with_undecodable(now_s)
    commands = _objects(page.objects, page.failures)
    if page.continue_token:
        pages = state.pages.then(page, state.query.continue_token, now_s)
        if isinstance(pages, str):
            where = f"the list of {rules.plan.selection.path}"
            error = Interrupted(f"{where} {pages}, or set pageSize: 0")
            return _list_failed(rules, context, goal, error, now_s)
        # with a token the server refuses version and match (docs/watch-facts.md 1.6)
        query = ListQuery(
            limit=state.query.limit,
            continue_token=page.continue_token,
            whole_objects=context.whole_objects,
        )
        return ListingPages(context, goal, query, version, 0, pages), (*commands, FetchPage(query))
    done = _list_done(context, goal, version)
    return FinishingList(context, goal, done), (*commands, done)


def _list_failed(
    rules: WatchRules, context: StreamContext, goal: ListGoal, error: KubeError, now_s: float, *,
    healthy: bool = False,
) -> Step:  # fmt: skip
    """After a failed list. Where the watch can continue, the list is made later."""
    if goal.watch != "lost":
        if context.relist_at_s <= now_s:
            relist_at_s = now_s + min(rules.plan.relist_interval_s, RELIST_AGAIN_S)
            context = replace(context, relist_at_s=relist_at_s)
        if isinstance(error, Expired | VersionTooLarge | Invalid | Undecodable):
            # it was the list that could not be served: the watch may well be
            context, delay_s = context.retry(rules, error, now_s, healthy=healthy)
            return _wait(context, None, error, now_s + delay_s)
        return _after_error(rules, context, error, None, now_s, healthy=healthy)
    goal = replace(goal, in_one_page=False)
    return _after_error(rules, context, error, goal, now_s, healthy=healthy)


def _skips_at_once(context: StreamContext, goal: ListGoal, now_s: float) -> bool:
    """Whether undecodable objects are skipped at once. Where the watch can continue, they are: such
    a list, once failed, is made again only after `RELIST_AGAIN_S`."""
    return goal.watch != "lost" or context.skips_undecodable(now_s)


def _objects(objects: list[ObjectFrame], errors: Sequence[KubeError]) -> list[Command]:
    """The commands that deliver objects of a list, and report those that are skipped: by namespace
    and name where these could be read, the others as a number."""
    about = [error.about for error in errors if isinstance(error, Undecodable)]
    damaged = tuple(each for each in about if each is not None)
    listed = ListedObjects(objects, unreadable=len(errors) - len(damaged), damaged=damaged)
    if errors:
        return [Skipped(tuple(errors)), listed]
    return [listed] if objects else []


def _list_done(context: StreamContext, goal: ListGoal, version: str) -> ListDone:
    """The end of a list of this version. A watch that works continues from its cursor, if that is
    older."""
    continues = goal.watch == "works" and compare(context.cursor, version) == -1
    return ListDone(version, goal.accept_any_size, context.cursor if continues else "")


def _list_again(
    rules: WatchRules, context: StreamContext, goal: ListGoal, minimum: str, version: str,
    now_s: float,
) -> Step | None:  # fmt: skip
    """The step after a list of `version` that must be made again, None where it need not. That is
    one that is older than requested (docs/watch-facts.md 5.7), and the first one that shows that
    the server was restored: it was to be compared by version, but such a server may use versions
    twice."""
    restored = replace(RESTORED, accept_any_size=goal.accept_any_size)
    if minimum and compare(version, minimum) == -1:
        error = Interrupted(
            f"the server returned resourceVersion {version}, older than the requested minimum "
            f"{minimum}"
        )
        context, delay_s = context.retry(rules, error, now_s, healthy=False)
        return _wait(context, replace(restored, cause="too_old"), error, now_s + delay_s)
    by_version = context.has_state and goal.state != "restored"
    if by_version and compare(version, context.newest_known) == -1:
        return _begin_list(rules, context, restored, now_s)
    return None


# ---- streaming lists -----------------------------------------------------------------------------


_NO_END = f"no initial-events-end bookmark {END_BOOKMARK_WITHIN_S:.0f} s after the newest object"


def _initial_events(
    rules: WatchRules, state: StreamingList, event: FramesReceived, now_s: float
) -> Step:
    context, objects, skipped = state.context, list[ObjectFrame](), list[KubeError]()
    for index, frame in enumerate(event.frames):
        if isinstance(frame, ObjectFrame):
            objects.append(frame)
        elif isinstance(frame, Failure):
            error = frame.error
            if not (isinstance(error, Undecodable) and _skips_at_once(context, state.goal, now_s)):
                return _streaming_list_broke(rules, replace(state, context=context), error, now_s)
            context = context.with_undecodable(now_s)
            skipped.append(error)
        elif frame.initial_end:
            any_objects = state.any_objects or bool(objects)
            state = replace(state, context=context, any_objects=any_objects)
            rest = tuple(event.frames[index + 1 :])
            commands = _objects(objects, skipped)
            return _end_bookmark(rules, state, frame, rest, event.at_s, commands, now_s)
    newest_object_at_s = event.at_s if objects else state.newest_object_at_s
    if now_s - newest_object_at_s >= END_BOOKMARK_WITHIN_S:
        return _streaming_list_broke(rules, state, Interrupted(_NO_END), now_s)
    any_objects = state.any_objects or bool(objects)
    state = replace(
        state, context=context, any_objects=any_objects, newest_object_at_s=newest_object_at_s
    )
    return state, (
        *_objects(objects, skipped),
        ReadWatch(newest_object_at_s + END_BOOKMARK_WITHIN_S),
    )


def _end_bookmark(
    rules: WatchRules, state: StreamingList, bookmark: Bookmark, rest: tuple[Frame, ...],
    at_s: float, commands: list[Command], now_s: float,
) -> Step:  # fmt: skip
    version, goal = bookmark.resource_version, state.goal
    if not watchable(version):
        error = Interrupted("the initial-events-end bookmark has no usable resourceVersion")
        return _streaming_list_broke(rules, state, error, now_s)
    minimum = state.query.resource_version
    if another := _list_again(rules, state.context, goal, minimum, version, now_s):
        return _closed(state, "error", now_s, then=another)
    # Servers that stream lists serve consistent lists from their cache, so an early version check
    # helps from the first watch on.
    context = replace(
        state.context, streaming_list_failed=False, expects_bookmarks=True, check_early=True
    )
    watch = Watching(
        context, version, state.query, frozen_after_s=state.query.idle_timeout_s,
        opened_at_s=state.opened_at_s, silent_since_s=at_s, any_frames=True, version_check="due",
    )  # fmt: skip
    done = _list_done(context, goal, version)
    return FinishingList(context, goal, done, watch, rest, at_s), (*commands, done)


def _streaming_list_broke(
    rules: WatchRules, state: StreamingList, error: KubeError, now_s: float,
    reason: EndReason = "error",
) -> Step:  # fmt: skip
    """An open streaming list failed."""
    reason = "gone" if isinstance(error, Expired) else reason
    then = _streaming_list_failed(rules, state, error, now_s)
    return _closed(state, reason, now_s, then=then)


_PAGES_FAIL_TOO = (
    Expired, Forbidden, Misconfigured, NotAcceptable, NotFound, Unauthorized, Undecodable,
)  # fmt: skip


def _pages_may_succeed(state: OpeningList | StreamingList, error: KubeError) -> bool:
    """Whether a list by pages may succeed where this one failed."""
    unavailable = isinstance(error, Unavailable) and not isinstance(error, Unanswered)
    not_begun = isinstance(state, OpeningList) and unavailable
    return not (not_begun or isinstance(error, _PAGES_FAIL_TOO))


def _streaming_list_failed(
    rules: WatchRules, state: OpeningList | StreamingList, error: KubeError, now_s: float
) -> Step:
    """A list that does not come to its initial-events-end bookmark is streamed once more, then made
    by pages (client-go retries without end: k/k#140890)."""
    context, goal = state.context, state.goal
    healthy = isinstance(state, StreamingList) and state.any_objects
    match error:
        case Invalid() | NotWatchable():
            # The parameters are refused (feature gate off, old server, proxy): page lists for 6
            # hours. Source: docs/watch-facts.md 3.4.
            return _begin_at_once(rules, context.with_paged_lists(rules, now_s), goal, error, now_s)
        case VersionTooLarge():
            # A lagging cache may fail like this each time, though it answers paged lists. Source:
            # k/k#139766.
            context = context.with_failed_streaming_list(rules, now_s)
            return _list_failed(rules, context, goal, error, now_s)
        case Undecodable():
            context = context.with_undecodable(now_s, listed=True)
    if _pages_may_succeed(state, error):
        failed_before = context.streaming_list_failed
        context = context.with_failed_streaming_list(rules, now_s)
        if goal.watch == "lost":
            context, delay_s = context.retry(rules, error, now_s, healthy=healthy)
            if failed_before and not isinstance(error, Unavailable):
                return _begin_at_once(rules, context, goal, error, now_s)
            return _wait(context, goal, error, now_s + delay_s)
    return _list_failed(rules, context, goal, error, now_s, healthy=healthy)


# ---- after a list -------------------------------------------------------------------------------


def _list_finished(
    rules: WatchRules, state: FinishingList, now_s: float, *, accepted: bool
) -> Step:
    """After an accepted list a watch. After a suspicious one another list, of the most recent
    state, which is then accepted (docs/watch-facts.md 5.8)."""
    context, goal, done = state.context, state.goal, state.done
    if not accepted:
        most_recent = "restored" if goal.state == "restored" else "most_recent"
        again = replace(
            goal, cause="suspicious", state=most_recent, in_one_page=False, accept_any_size=True
        )
        return _begin_list(rules, context, again, now_s)
    context = replace(
        context,
        cursor=done.continue_from or done.resource_version,
        has_state=True,
        held_version=done.resource_version if done.continue_from else "",
        history_check_at_s=math.inf,
        vain_lists=context.vain_lists + 1,
        removal_reported=False,
        not_served_since_s=None,
        state_shown_at_s=now_s,
        version_rejected_at_s=now_s if context.version_rejected else context.version_rejected_at_s,
        version_rejected=False,
        relist_at_s=rules.relist_at_s(now_s),
    )
    if state.watch is None or done.continue_from:
        return _begin_watch(rules, context)
    # nothing was read while the list waited for room in the queues
    watch = replace(state.watch, context=context, silent_since_s=now_s)
    if state.rest:
        rest = FramesReceived(list(state.rest), state.rest_at_s)
        return _frames_received(rules, watch, rest, now_s)
    return _read(watch)


# ---- watches -------------------------------------------------------------------------------------


def _begin_watch(rules: WatchRules, context: StreamContext, timeout_s: int = 0) -> Step:
    """A watch from the cursor. Never from "" or "0", whose first events come in no order
    (docs/watch-facts.md 2.11). `timeout_s`: its timeout, 0 for the usual one."""
    assert watchable(context.cursor), "a watch starts at a version"
    query = context.watch_query(rules, context.cursor, timeout_s=timeout_s)
    return OpeningWatch(context, query), (OpenWatch(query),)


def _watch_opened(state: OpeningWatch, waited_s: float, now_s: float) -> Step:
    context, query = state.context.after_opening(waited_s), state.query
    unshown_s = now_s - context.state_shown_at_s
    if context.history_check_at_s == math.inf and unshown_s >= CHECK_AT_OPEN_AFTER_S:
        context = replace(context, history_check_at_s=now_s)
    # an answer that was held back came long after the server had opened the watch
    opened_at_s = now_s - waited_s if context.answers_late else now_s
    watch = Watching(
        context, context.cursor, query, frozen_after_s=query.idle_timeout_s,
        opened_at_s=opened_at_s, silent_since_s=now_s, version_check="due",
    )  # fmt: skip
    return _check_version(watch, now_s) if context.history_check_at_s <= now_s else _read(watch)


def _read(watch: Watching) -> Step:
    return watch, (ReadWatch(watch.read_until_s),)


_ONLY_OBJECTS: frozenset[type] = frozenset({ObjectFrame})


class _Chunk(msgspec.Struct):
    """The frames of one chunk, sorted. `newest`: where the cursor moves to; `bookmark`: one came;
    `skipped`: undecodable objects; `end`: the error that ended the watch, if one did."""

    newest: str
    objects: list[ObjectFrame] = []
    skipped: list[KubeError] = []
    bookmark: bool = False
    end: KubeError | None = None


def _frames_received(
    rules: WatchRules, state: Watching, event: FramesReceived, now_s: float
) -> Step:
    """The frames of one chunk. Its objects are delivered together; an error ends the watch."""
    frames, cursor, end, bookmark = event.frames, state.cursor, None, False
    commands: list[Command] = []
    if set(map(type, frames)) == _ONLY_OBJECTS:  # the hot path: nothing to sort
        objects: list[ObjectFrame] = frames  # type: ignore[assignment]  # just checked for each one
        newest = objects[-1].resource_version
        if not advances(newest, cursor):
            versions = (each.resource_version for each in reversed(objects))
            newest = next((each for each in versions if advances(each, cursor)), cursor)
    else:
        chunk = _split_frames(frames, state.context, cursor, now_s)
        objects, newest, end, bookmark = chunk.objects, chunk.newest, chunk.end, chunk.bookmark
        if chunk.skipped:
            state = replace(state, context=state.context.with_undecodable(now_s))
            commands.append(Skipped(tuple(chunk.skipped)))
        if bookmark:
            state = _after_bookmark(rules, state, event.at_s)
    # also a bookmark at the cursor: it shows that the server answers
    moved = newest if newest != cursor or bookmark else ""
    if objects or moved:
        commands.append(Watched(objects, event.at_s, moved))
    if end is None or objects or bookmark:  # an error alone shows neither health nor the state
        state = replace(
            state,
            cursor=newest,
            # `FinishingList.rest` came before the store took the list: the later moment counts
            silent_since_s=max(event.at_s, state.silent_since_s),
            any_frames=True,
            any_objects=state.any_objects or bool(objects),
            # where bookmarks come, none is needed: without the next one it is frozen
            version_check="" if state.context.bookmarks_seen else "due",
        )
    if end is not None:
        return _after(*commands, then=_watch_failed(rules, state, end, now_s))
    ends_s = state.opened_at_s + state.query.timeout_s + WATCH_GRACE_S
    if now_s >= min(ends_s, state.context.relist_at_s):
        # The server did not end its watch in time, or a list is due while frames keep coming.
        again = _watch_again(rules, _context_after(state, now_s), now_s)
        return _after(*commands, then=_closed(state, "timeout", now_s, then=again))
    if now_s >= state.context.history_check_at_s:
        return _after(*commands, then=_check_version(state, now_s))
    return state, (*commands, ReadWatch(state.read_until_s))


def _after_bookmark(rules: WatchRules, state: Watching, at_s: float) -> Watching:
    """The watch after a bookmark: the next one is due in a minute."""
    context, frozen_after_s = state.context, state.frozen_after_s
    if not context.bookmarks_seen:
        context = context.with_bookmark(state.opened_at_s + state.query.timeout_s - at_s)
    if not context.expects_bookmarks:
        context = replace(context, expects_bookmarks=True)
        frozen_after_s = context.frozen_after_s(rules, state.query.timeout_s, bookmarks=True)
    if at_s - state.bookmark_at_s <= SILENCE_LIMIT_S < context.silence_limit_s:
        context = replace(context, silence_limit_s=SILENCE_LIMIT_S)
    return replace(state, context=context, frozen_after_s=frozen_after_s, bookmark_at_s=at_s)


def _split_frames(frames: list[Frame], context: StreamContext, cursor: str, now_s: float) -> _Chunk:
    chunk = _Chunk(cursor)
    for frame in frames:
        match frame:
            case ObjectFrame():
                chunk.objects.append(frame)
            case Bookmark():
                chunk.bookmark = True
            case Failure(error=Undecodable() as error) if context.skips_undecodable(now_s):
                chunk.skipped.append(error)
                continue
            case Failure(error=error):
                chunk.end = error
                break
        if advances(frame.resource_version, chunk.newest):
            chunk.newest = frame.resource_version
    return chunk


def _closed(
    state: Watching | StreamingList, reason: EndReason, now_s: float, *, then: Step
) -> Step:
    """`then`, after a report of the watch that is over."""
    any_frames = isinstance(state, Watching) and state.any_frames
    return _after(WatchClosed(reason, now_s - state.opened_at_s, any_frames), then=then)


def _context_after(state: Watching, now_s: float) -> StreamContext:
    """The context once the watch is over."""
    context = state.context.after_watch(state.cursor, now_s - state.opened_at_s)
    if state.any_objects:
        context = replace(context, frozen_watches=0)
    if state.any_frames:
        context = replace(context, state_shown_at_s=state.silent_since_s)
    return context


def _context_after_failure(state: Watching, now_s: float) -> StreamContext:
    """The context after a watch that did not end in its time: unless it moved the cursor, it counts
    as one that failed from there."""
    context = _context_after(state, now_s)
    return context if context.cursor != state.context.cursor else context.with_failed_watch(now_s)


def _watch_ended(rules: WatchRules, state: Watching, now_s: float) -> Step:
    """The server ended the watch cleanly."""
    soonest_s, latest_s = END_IN_TIME_S
    late_s = now_s - state.opened_at_s - state.query.timeout_s
    if soonest_s <= late_s <= latest_s:
        context = _context_after(state, now_s)
        context = replace(context, failing=context.failing.worked())
        # the server's own end comes after all that it had sent
        then = _after(ServerSeen(), then=_watch_again(rules, context, now_s))
    else:
        then = _watch_ended_out_of_time(rules, state, now_s)
    return _closed(state, "eof" if late_s < soonest_s else "timeout", now_s, then=then)


def _watch_ended_out_of_time(rules: WatchRules, state: Watching, now_s: float) -> Step:
    context = _context_after_failure(state, now_s)
    if now_s - state.opened_at_s >= SHORT_WATCH_S:
        return _try_again(rules, context, None, now_s)
    if state.cursor != state.context.cursor:
        again_at_s = state.opened_at_s + SHORT_WATCH_S
        return Pausing(context, None, again_at_s), (Sleep(again_at_s),)
    error = Interrupted("the server closed the watch at once, without an event")
    context, delay_s = context.retry(rules, error, now_s, healthy=False)
    # A line of the response over the limit is reported as an undecodable object, and the watch
    # ends. While undecodable objects are skipped, such a line shows only as a clean end, and each
    # new watch ends at the same line: only a list leads past it.
    if context.skips_undecodable(now_s):
        until_s = now_s + delay_s + context.list_pace_s
        return _wait(context, ListGoal("undecodable"), error, until_s)
    return _wait(context, None, error, now_s + delay_s)


def _deadline_reached(rules: WatchRules, state: Watching, now_s: float) -> Step:
    """A list, the end of a silence, or a version check is due."""
    if now_s < state.context.relist_at_s:
        if now_s >= state.silent_since_s + state.frozen_after_s:
            return _watch_frozen(rules, state, now_s)
        checks_history = state.context.history_check_at_s < math.inf
        # the check of the silence is the only deadline where none of the history is due: then its
        # timer may have been a moment early
        silent = now_s - state.silent_since_s >= state.check_after_s or not checks_history
        if state.version_check == "due" and silent:
            return _check_version(replace(state, version_check="silent"), now_s)
        if checks_history:
            return _check_version(state, now_s)
    again = _watch_again(rules, _context_after(state, now_s), now_s)
    return _closed(state, "timeout", now_s, then=again)


def _check_version(state: Watching, now_s: float) -> Step:
    """Make a version check, and read on. The next one for the history is due after
    `VERSION_CHECK_AGAIN_S` at the soonest, unless the watch is silent."""
    context = state.context
    if context.history_check_at_s < math.inf:
        context = replace(context, history_check_at_s=now_s + VERSION_CHECK_AGAIN_S)
        state = replace(state, context=context)
    return state, (CheckVersion(_small_list(context), state.read_until_s),)


def _small_list(context: StreamContext) -> ListQuery:
    return ListQuery(limit=1, whole_objects=context.whole_objects)


def _version_checked(
    rules: WatchRules, state: Watching, event: VersionChecked, now_s: float
) -> Step:
    """After a version check: the watch is read on, opened again for a moment, or replaced by a
    list, if the server was restored from a backup (docs/watch-facts.md 2.8) or is that of a cluster
    built again.

    A server whose version is older than the cursor, or than the log's, was restored, or the log has
    a record of another writer with a version to come."""
    context, version, silent = state.context, event.version, state.version_check == "silent"
    closed = _context_after(state, now_s)
    # not by the cursor of now: the watch was read meanwhile, and may have come past the list
    at_request = replace(closed, cursor=event.cursor or closed.cursor)
    rebuilt = event.history == "other" and context.history_check_at_s < math.inf
    if rebuilt or at_request.was_restored(version):
        return _closed(state, "error", now_s, then=_begin_list(rules, closed, RESTORED, now_s))
    if version:
        context = replace(context, state_shown_at_s=event.asked_at_s)
        if event.history == "same":
            context = replace(context, history_check_at_s=math.inf)
        state = replace(state, context=context)
    if version == state.cursor:
        # nothing has happened before it was requested; what came since may not be delivered yet
        seen = ServerSeen(now_s - event.asked_at_s)
        context = replace(context, failing=context.failing.worked())
        check: VersionCheck = "due" if silent else state.version_check
        state = replace(state, context=context, silent_since_s=now_s, version_check=check)
        return state, (seen, ReadWatch(state.read_until_s))
    if not silent:
        return _read(state)
    # newer, or no answer: it may concern other objects, or the watch lacks some, or is frozen
    if not context.bookmarks_seen:
        brief = _begin_watch(rules, _context_after(state, now_s), BRIEF_WATCH_S)
        return _closed(state, "silent", now_s, then=brief)
    state = replace(state, version_check="checked")
    if version and not context.check_early:
        context = replace(context, check_early=True)
        frozen_after_s = max(SECOND_BOOKMARK_S, state.frozen_after_s)
        state = replace(state, context=context, frozen_after_s=frozen_after_s)
    return _read(state)


def _watch_failed(rules: WatchRules, state: Watching, error: KubeError, now_s: float) -> Step:
    if error.reason == "inactive":  # the client ended it, for it was silent for too long
        return _watch_frozen(rules, state, now_s)
    lived_s = now_s - state.opened_at_s
    if isinstance(error, Interrupted) and lived_s >= state.query.timeout_s + WATCH_GRACE_S - 1:
        # The client ended it, long after the server should have: no error.
        then = _try_again(rules, _context_after_failure(state, now_s), None, now_s)
    else:
        context = _context_after(state, now_s)
        then = _watch_error(
            rules, context, error, now_s, any_frames=state.any_frames, lived_s=lived_s
        )
    return _closed(state, "gone" if isinstance(error, Expired) else "error", now_s, then=then)


def _watch_frozen(rules: WatchRules, state: Watching, now_s: float) -> Step:
    """Open another watch, for the connection may be dead. If `FROZEN_WATCHES` were frozen since one
    brought an object, the server is taken for one that sends few bookmarks."""
    context = _context_after_failure(state, now_s)
    frozen, limit_s = context.frozen_watches, context.silence_limit_s
    if not state.any_objects:
        frozen += 1
    if frozen >= FROZEN_WATCHES:
        longest_s = state.query.timeout_s + WATCH_GRACE_S
        frozen, limit_s = 0, max(limit_s, min(limit_s * 2, longest_s))
    context = replace(context, frozen_watches=frozen, silence_limit_s=limit_s)
    list_due = context.relist_at_s <= now_s or context.failing.list_due(context.cursor, now_s)
    if not (context.bookmarks_seen or list_due):  # it was not checked in time
        brief = _begin_watch(rules, context, BRIEF_WATCH_S)
        return _closed(state, "silent", now_s, then=brief)
    then = _try_again(rules, context, None, now_s)
    if context.bookmarks_seen:
        silent_s = now_s - state.silent_since_s
        error = Interrupted(f"the watch was silent for {silent_s:.0f} s: opened again")
        then = _after(Retrying(error, None), then=then)
    return _closed(state, "error", now_s, then=then)


# ---- watches that fail from their cursor ---------------------------------------------------------


def _watch_error(
    rules: WatchRules, context: StreamContext, error: KubeError, now_s: float, *,
    any_frames: bool = False, lived_s: float = 0.0,
) -> Step:  # fmt: skip
    """A watch from the cursor failed, or the request for it. `any_frames`: it had brought some."""
    context = context.after_watch_error(error, lived_s, now_s)
    return _after_error(rules, context, error, None, now_s, healthy=any_frames)


def _try_again(
    rules: WatchRules, context: StreamContext, goal: ListGoal | None, now_s: float
) -> Step:
    """As `_begin`; where the watch fails from its cursor each time, do lists work?"""
    relist_due = context.relist_at_s <= now_s
    list_due = context.failing.list_due(context.cursor, now_s)
    if goal is None and list_due and not relist_due:
        return CheckingLists(context), (CheckLists(_small_list(context)),)
    return _begin(rules, context, goal, now_s)


def _lists_checked(
    rules: WatchRules, state: CheckingLists, event: ListsChecked, now_s: float
) -> Step:
    """Where lists work and are newer than the cursor, one list leads past it. At the cursor:
    nothing has happened."""
    context = state.context
    if context.was_restored(event.version):
        return _begin_list(rules, context, RESTORED, now_s)
    if event.may_list:
        context = replace(context, failing=context.failing.listed(now_s))
        return _begin_list(rules, context, FAILING, now_s)
    failing = context.failing.checked(now_s)
    if event.version != context.cursor:
        return _watch_again(rules, replace(context, failing=failing), now_s)
    again = _watch_again(rules, replace(context, failing=failing.worked()), now_s)
    return _after(ServerSeen(now_s - event.asked_at_s), then=again)


# ---- errors, by the classes of docs/watch-facts.md 6.4 -------------------------------------------


def _after_error(
    rules: WatchRules, context: StreamContext, error: KubeError, goal: ListGoal | None,
    now_s: float, *, healthy: bool,
) -> Step:  # fmt: skip
    """After an error. `goal`: the list to make again; None: the watch continues, after its own
    error or that of a list during which it can. `healthy`: the request had brought something, so
    the row of failures before it may be over."""
    if isinstance(error, Unreachable) and context.history_check_at_s == math.inf:
        context = replace(context, history_check_at_s=now_s)  # it may return as another cluster
    match error:
        case Expired() | VersionTooLarge() | Invalid(about="version"):
            return _version_rejected(rules, context, error, goal, now_s, healthy=healthy)
        case Undecodable():
            context = context.with_undecodable(now_s)
            if goal is None and context.skips_undecodable(now_s):
                goal = ListGoal("undecodable")
        case NotAcceptable() if rules.plan.selection.metadata_only and not context.whole_objects:
            return _begin_at_once(rules, replace(context, whole_objects=True), goal, error, now_s)
        case NotFound():
            context, delay_s = context.retry_by_kind(rules, error, now_s)
            retry_at_s = now_s + delay_s
            shown = Hidden(context.hidden) if context.hidden else error
            return NotServed(context, goal, retry_at_s), (
                Retrying(shown, retry_at_s),
                CheckDiscovery(),
            )
        # a watch that was never allowed, though a list was, lacks the right
        case Forbidden() if context.in_forbidden_grace and (
            context.watch_was_allowed or goal is not None
        ):
            return _forbidden(rules, context, error, goal, now_s)
        case Invalid(about="continue" | "streaming"):
            pass  # the form of a request was refused, not what the config selects
        case _ if isinstance(error, NOT_CURED_BY_RETRY):
            context, delay_s = context.retry_by_kind(rules, error, now_s)
            delay_s = max(delay_s, clamp_retry_after(error.retry_after_s))
            return _wait(context, goal, error, now_s + delay_s, wakeable=True)
    context, delay_s = context.retry(rules, error, now_s, healthy=healthy)
    return _wait(context, goal, error, now_s + delay_s)


NOT_CURED_BY_RETRY = (Forbidden, Invalid, Misconfigured, NotAcceptable, NotWatchable, Unauthorized)
"""Retried at the delays of `context.DELAYS_BY_KIND`, and logged as the error "operator action
required", except where an `Invalid` is about the form of the request. The status has another set,
`reporting.SHOWN_AS_WAITING`: with resources that are not served (logged as a warning), without
what concerns all streams."""


def _forbidden(
    rules: WatchRules, context: StreamContext, error: Forbidden, goal: ListGoal | None, now_s: float
) -> Step:
    """A 403 for what was allowed before. Operator action is required only after
    `FORBIDDEN_GRACE_S`."""
    grace_s = context.forbidden_grace_s or 0.0
    refused = TransientlyForbidden(
        f"{error.what}; it was allowed before: the API server may be starting", status=error.status
    )
    context, delay_s = context.retry_by_kind(rules, refused, now_s)
    context = replace(context, forbidden_grace_s=grace_s - delay_s)
    delay_s = max(delay_s, clamp_retry_after(error.retry_after_s))
    return _wait(context, goal, refused, now_s + delay_s)


def _version_rejected(
    rules: WatchRules, context: StreamContext, error: KubeError, goal: ListGoal | None,
    now_s: float, *, healthy: bool,
) -> Step:  # fmt: skip
    """The requested version cannot be served: list, after a backoff if this is `repeated`. After
    `VersionTooLarge` never sooner than after 1 s."""
    repeated = now_s - context.version_rejected_at_s <= REJECTED_AGAIN_WITHIN_S
    too_large = isinstance(error, VersionTooLarge)
    cause: ListCause = "version_too_large" if too_large else "expired"
    if isinstance(error, Invalid):
        cause = "version_refused"
    restored = too_large or (goal is not None and goal.state == "restored")
    # after a first 410 of a watch, the newest known version will do as the minimum
    not_older = cause == "expired" and goal is None and not repeated
    relist = ListGoal(
        cause,
        "restored" if restored else "not_older" if not_older else "most_recent",
        accept_any_size=goal is not None and goal.accept_any_size,
    )
    # a list with a minimum is not repeated as it was: the next one has none
    had_minimum = goal is not None and context.has_state and goal.state == "not_older"
    context = replace(context, version_rejected_at_s=now_s, version_rejected=True)
    if (repeated or goal is not None) and not had_minimum:
        context, delay_s = context.retry(rules, error, now_s, healthy=healthy)
        return _wait(context, relist, error, now_s + max(delay_s, 1.0 if too_large else 0.0))
    if too_large:
        delay_s = clamp_retry_after(error.retry_after_s) or 1.0
        return _wait(context, relist, error, now_s + delay_s)
    return _begin_at_once(rules, context, relist, error, now_s)


# ---- resources that are not served ---------------------------------------------------------------


def _discovery_checked(
    rules: WatchRules, state: NotServed, availability: Availability, now_s: float
) -> Step:
    """What discovery reports about a resource whose collection is 404. Its objects are removed
    after a "gone" at least `NOT_SERVED_CONFIRM_S` after the first, without a "served" or "hidden"
    in between; "served" after "gone" begins a list at once."""
    context, goal, retry_at_s = state.context, state.goal, state.retry_at_s
    delivered: tuple[Command, ...] = ()
    returned = ListGoal("returned", "most_recent")
    match availability.state:
        case "gone":
            goal = returned
            since_s = now_s if context.not_served_since_s is None else context.not_served_since_s
            context = replace(context, hidden="", not_served_since_s=since_s)
            if now_s - since_s >= NOT_SERVED_CONFIRM_S and not context.removal_reported:
                delivered = (ResourceRemoved(),)
                context = replace(context, removal_reported=True, has_state=False, cursor="")
        case "hidden":
            if context.hidden != availability.reason:
                delivered = (Retrying(Hidden(availability.reason), retry_at_s),)
            context = replace(context, hidden=availability.reason, not_served_since_s=None)
        case "served":
            was_gone = context.not_served_since_s is not None
            context = replace(context, hidden="", not_served_since_s=None)
            if was_gone:
                return _begin_list(rules, context, returned, now_s)
    sleep = Sleep(min(retry_at_s, now_s + CHECK_DISCOVERY_S), wakeable=True)
    return NotServed(context, goal, retry_at_s), (*delivered, sleep)
