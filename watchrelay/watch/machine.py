"""The watch of one resource as a state machine: table, states, events, commands, then the steps.
Pure.

`step` takes a state, an event and the time; it returns the next state and commands, the last of
which is the one action whose result is the next event. `loop.py` performs them, and keeps the next
state only when everything before the action was delivered: the cursor moves last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from watchrelay.core.backoff import Backoff, clamp_retry_after
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
    TransientlyForbidden,
    Unauthorized,
    Unavailable,
    Undecodable,
    VersionTooLarge,
)
from watchrelay.model.frames import (
    Bookmark,
    Failure,
    Frame,
    ListQuery,
    ObjectFrame,
    Page,
    WatchQuery,
)
from watchrelay.model.resources import comparable, compare, watchable
from watchrelay.model.watch_events import (
    Gone,
    ListBegun,
    ListDone,
    Listed,
    Observed,
    Progressed,
    Troubled,
    Watched,
)
from watchrelay.watch.context import (
    FORBIDDEN_GRACE_S,
    STREAMING_SINCE,
    TIMEOUT_SLACK_S,
    StreamContext,
    WatchRules,
)

TRANSITIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Waiting": {"SleepEnded": ("ListingPages OpeningList OpeningWatch", "")},
    "ListingPages": {
        "PageReceived": ("AwaitingCommit ListingPages", "OpeningList Waiting"),
        "RequestFailed": ("Waiting", "ListingPages OpeningList OpeningWatch NotServed"),
    },
    "OpeningList": {
        "WatchOpened": ("StreamingList", ""),
        "RequestFailed": ("Waiting", "ListingPages OpeningList OpeningWatch NotServed"),
    },
    "StreamingList": {
        "FramesReceived": (
            "AwaitingCommit StreamingList",
            "ListingPages OpeningList OpeningWatch Waiting NotServed",
        ),
        "WatchEnded": ("Waiting", "ListingPages"),
        "DeadlineReached": ("Waiting", "ListingPages"),
        "RequestFailed": ("Waiting", "ListingPages OpeningList OpeningWatch NotServed"),
    },
    "AwaitingCommit": {
        "CommitResult": (
            "OpeningWatch Watching",
            "ListingPages OpeningList Waiting NotServed",
        )
    },
    "OpeningWatch": {
        "WatchOpened": ("Watching", ""),
        "RequestFailed": ("Waiting", "ListingPages OpeningList OpeningWatch NotServed"),
    },
    "Watching": {
        "FramesReceived": (
            "Watching",
            "ListingPages OpeningList OpeningWatch Waiting NotServed",
        ),
        "WatchEnded": ("OpeningWatch", "ListingPages OpeningList Waiting"),
        "DeadlineReached": ("Watching", "ListingPages OpeningList OpeningWatch"),
        "LivenessChecked": ("Watching", "ListingPages OpeningList"),
        "RequestFailed": ("Waiting NotServed", "ListingPages OpeningList OpeningWatch"),
    },
    "NotServed": {
        "DiscoveryChecked": ("NotServed", "ListingPages OpeningList"),
        "SleepEnded": ("NotServed", "ListingPages OpeningList OpeningWatch"),
    },
}
"""State, event, the states that usually follow, and the others; every other event is a bug. The
diagram (of the usual ones) and the table of docs/how-the-watch-works.md are made from it, and a
test holds it equal to what `step` does."""

# ---- limits --------------------------------------------------------------------------------------

TIMEOUT_MIN_S, TIMEOUT_MAX_S = 300, 599
"""Of a watch; drawn for each one, or all watches of a restarted server end together every time.
Source: client-go; docs/watch-facts.md 2.2."""
END_MARK_WITHIN_S = 30.0
"""A streaming list without its initial-events-end bookmark this long after its newest object has
failed. Source: docs/watch-facts.md 3.6."""
RELIST_AGAIN_S = 600.0
"""A failed list that was to find what a watch missed is retried after this time, or after its
interval where that is shorter."""
SETBACK_WINDOW_S = 60.0
"""A second loss of history within this time of the list that repaired the first backs off. Source:
docs/watch-facts.md 6.4, class C."""
SILENT_S = 600.0
"""Ten minutes without a sign of the server's current state: the next watch begins with a liveness
check. Source: docs/watch-facts.md 2.8."""
LIVENESS_AFTER_S = 65.0
LIVENESS_EARLY_S = 50.0
"""A watch that was opened at a version brings no bookmark before the server's cache has passed that
version, which on an idle resource takes minutes. So when the first one is missing after 65 s, the
server's current version is requested, by a small list, before the watch counts as frozen. That list
makes the server's cache catch up. Where a first bookmark was late once, the check is made after
50 s: in time for the bookmark that is due after 60 s.
Source: docs/watch-facts.md 0, D8."""
SECOND_BOOKMARK_S = 130.0
QUIET_STALLS = 3
VERY_SHORT_S = 1.0
"""A watch that ends sooner and brought nothing is a failure, or a server that closes at once gets
requests in a hot loop (docs/watch-facts.md 2.9). Where it brought something it is none, but the
next is not opened before this time is up: each change of a busy resource would open another."""
HEALTHY_AFTER_S = 60.0
ABSENT_TWICE_S = 30.0
"""Discovery must report a resource as not served twice, this far apart, before its objects are
removed. Source: docs/watch-facts.md 8.4."""
CHECK_DISCOVERY_S = 30.0

# ---- what follows a wait or a failure ------------------------------------------------------------

ListCause = Literal[
    "first", "expired", "behind", "undecodable", "suspicious", "consistency", "restored",
    "returned", "refused", "resumed", "continue",
]  # fmt: skip
"""Why a list is made, a field of the log line. `expired`: the history is lost (410). `behind`: the
server does not have our version yet. `refused`: it did not accept the version of the watch.
`undecodable`: an object of the watch could not be decoded. `suspicious`: the former list lost most
objects. `consistency`: `relistInterval` has passed. `restored`: the server went back to a backup.
`returned`: the resource is served again. `resumed`: the log is to be compared. `continue`: the
pages of a list expired."""


class ToList(msgspec.Struct, frozen=True):
    """Make a list.

    `quorum`: request no version; the newest state counts, also one older than ours. `unbounded`: in
    one page, because the history expired between pages. `confirmed`: the result is accepted,
    however suspicious. `by_content`: the server went back, so versions may have been used twice.
    """

    cause: ListCause
    quorum: bool = False
    unbounded: bool = False
    confirmed: bool = False
    by_content: bool = False


Next = ToList | None
"""None: watch on from the cursor."""

# ---- states --------------------------------------------------------------------------------------


class Waiting(msgspec.Struct, frozen=True):
    """No request is sent before `until_s`. `error` is why; None: to spread requests, or because a
    watch ended early."""

    context: StreamContext
    then: Next
    until_s: float
    error: KubeError | None = None


class ListingPages(msgspec.Struct, frozen=True):
    """The request for a page of a list is in flight; for the first one `token` and `version` are
    "". `minimum`: the version that the list may not be older than, "" for none."""

    context: StreamContext
    goal: ToList
    minimum: str
    limit: int
    token: str = ""
    version: str = ""


class OpeningList(msgspec.Struct, frozen=True):
    """The request for a streaming list is in flight."""

    context: StreamContext
    goal: ToList
    minimum: str
    timeout_s: int
    idle_s: float


class StreamingList(msgspec.Struct, frozen=True):
    """A watch is open whose initial events have not ended. `added_s` is when the newest object
    came, or when the watch was opened; `any_objects`: at least one has come."""

    context: StreamContext
    goal: ToList
    minimum: str
    timeout_s: int
    idle_s: float
    opened_s: float
    added_s: float
    any_objects: bool = False


class AwaitingCommit(msgspec.Struct, frozen=True):
    """A list is complete and was delivered; the answer is awaited. `watch`: the streaming list
    continues as this watch, with the frames `rest` that came at `rest_s`."""

    context: StreamContext
    goal: ToList
    version: str
    watch: Watching | None = None
    rest: tuple[Frame, ...] = ()
    rest_s: float = 0.0


class OpeningWatch(msgspec.Struct, frozen=True):
    """The request for a watch from the cursor is in flight."""

    context: StreamContext
    timeout_s: int
    idle_s: float


class Watching(msgspec.Struct, frozen=True):
    """A watch is open.

    `cursor` is the version of everything delivered so far. `idle_s` is how long it may be silent,
    `source_idle_s` how long the source lets it be: where that ends the read first, the loop
    needs no deadline. `contact_s` is when the newest frame came, or when the watch was opened;
    `objects` and `lines` count what came. `liveness`: before the first frame of a watch that should
    bring bookmarks the server's current version is requested ("due"); after that it may be silent
    for `idle_s` and no longer ("checked").
    """

    context: StreamContext
    cursor: str
    timeout_s: int
    idle_s: float
    source_idle_s: float
    opened_s: float
    contact_s: float
    objects: int = 0
    lines: int = 0
    liveness: Literal["", "due", "checked"] = ""

    @property
    def due_s(self) -> float:
        """When a read must end; infinity where the source ends it."""
        silent_s = math.inf
        if self.liveness == "due":
            silent_s = LIVENESS_EARLY_S if self.context.late else LIVENESS_AFTER_S
        elif self.liveness or self.idle_s < self.source_idle_s:
            silent_s = self.idle_s
        return min(self.contact_s + silent_s, self.context.relist_due_s)


class NotServed(msgspec.Struct, frozen=True):
    """The collection answered 404: discovery is asked now and then whether it is served. `retry_s`:
    when the request itself is retried."""

    context: StreamContext
    then: Next
    retry_s: float


State = (
    Waiting | ListingPages | OpeningList | StreamingList | AwaitingCommit | OpeningWatch | Watching
    | NotServed
)  # fmt: skip

# ---- events --------------------------------------------------------------------------------------


class SleepEnded(msgspec.Struct, frozen=True):
    """The sleep is over. `rechecked`: it ended early, because a retry is likely to succeed now."""

    rechecked: bool = False


class PageReceived(msgspec.Struct, frozen=True):
    """A page of a list."""

    page: Page


class WatchOpened(msgspec.Struct, frozen=True):
    """The server accepted the watch."""


class FramesReceived(msgspec.Struct):
    """The frames of one chunk, never none; `at_s` is when it came."""

    frames: list[Frame]
    at_s: float


class WatchEnded(msgspec.Struct, frozen=True):
    """The server ended the watch cleanly."""


class DeadlineReached(msgspec.Struct, frozen=True):
    """The read ended at its deadline."""


class RequestFailed(msgspec.Struct, frozen=True):
    """The request, or the watch that it opened, failed."""

    error: KubeError


class CommitResult(msgspec.Struct, frozen=True):
    """Whether the list that was delivered is accepted."""

    accepted: bool


class LivenessChecked(msgspec.Struct, frozen=True):
    """The server's current version, requested beside an open watch; "" when there was no answer."""

    version: str


class DiscoveryChecked(msgspec.Struct, frozen=True):
    """Whether discovery reports the resource as served; None when it cannot tell."""

    served: bool | None


Event = (
    SleepEnded | PageReceived | WatchOpened | FramesReceived | WatchEnded | DeadlineReached
    | RequestFailed | CommitResult | LivenessChecked | DiscoveryChecked
)  # fmt: skip

# ---- commands: any number of `Deliver` and `ReportSkipped`, then one action ----------------------


class Deliver(msgspec.Struct):
    """Deliver `event` to the store, and wait until it is taken."""

    event: Watched


class ReportSkipped(msgspec.Struct, frozen=True):
    """Count and log undecodable objects that are skipped."""

    errors: tuple[KubeError, ...]


class Sleep(msgspec.Struct, frozen=True):
    """Wait until `until_s`, or, if `wakeable`, until `recheck()` -> `SleepEnded`."""

    until_s: float
    wakeable: bool = False


class FetchPage(msgspec.Struct, frozen=True):
    """Request a page -> `PageReceived`, `RequestFailed`."""

    query: ListQuery


class OpenWatch(msgspec.Struct, frozen=True):
    """Open a watch -> `WatchOpened`, `RequestFailed`."""

    query: WatchQuery


class ReadWatch(msgspec.Struct):
    """Read the open watch until `until_s` -> `FramesReceived`, `WatchEnded`, `DeadlineReached`,
    `RequestFailed`. Every other action but `CommitList` and `CheckLiveness` closes it."""

    until_s: float


class CommitList(msgspec.Struct, frozen=True):
    """Deliver the end of a list -> `CommitResult`."""

    event: ListDone


class CheckLiveness(msgspec.Struct, frozen=True):
    """Request the server's current version until `until_s`, while the watch stays open ->
    `LivenessChecked`."""

    query: ListQuery
    until_s: float


class CheckDiscovery(msgspec.Struct, frozen=True):
    """Ask discovery whether the resource is served -> `DiscoveryChecked`."""


Action = FetchPage | OpenWatch | ReadWatch | CheckLiveness | CommitList | Sleep | CheckDiscovery
Command = Deliver | ReportSkipped | Action
Step = tuple[State, tuple[Command, ...]]

# ---- start, step ---------------------------------------------------------------------------------


def start(
    rules: WatchRules,
    *,
    cursor: str = "",
    floor: str = "",
    resumed: bool = False,
    now_s: float,
    first_wait_s: float = 0.0,
) -> Step:
    """The first step: a list, or with a cursor a watch from there.

    No list is made to learn whether the server was restored to a version before the cursor: its
    watch would be silent, and its liveness is checked after a minute (docs/watch-facts.md 2.8).

    Args:
        rules: What the machine follows.
        cursor: The version whose state is in the store already, "" for none.
        floor: The newest version of the log that was read back.
        resumed: The store holds what a log contained and, without a cursor, needs a list of the
            current state to compare with.
        now_s: Monotonic seconds.
        first_wait_s: Delay that spreads streams which start together.
    """
    context = StreamContext(
        cursor=cursor,
        floor=floor,
        complete=bool(cursor),
        bookmarked=bool(cursor) and rules.plan.bookmarks,
        contact_s=now_s,
        relist_due_s=rules.relist_due_s(now_s) if cursor else math.inf,
        watched=resumed or bool(cursor),
        grace_s=FORBIDDEN_GRACE_S if resumed or cursor else 0.0,
    )
    first = ToList("resumed", quorum=True) if resumed else ToList("first")
    then = None if cursor else first
    if first_wait_s <= 0:
        return begin(rules, context, then, now_s)
    return Waiting(context, then, now_s + first_wait_s), (Sleep(now_s + first_wait_s),)


def step(rules: WatchRules, state: State, event: Event, now_s: float) -> Step:
    """The state after `event`, and what to do. Raises: AssertionError when the event cannot happen
    in that state."""
    if isinstance(state, Watching) and isinstance(event, FramesReceived):  # the hot path
        return _frames(rules, state, event, now_s)
    match state, event:
        case Watching() | OpeningWatch(), _:
            return _watch_step(rules, state, event, now_s)
        case Waiting(), SleepEnded():
            return begin(rules, state.context, state.then, now_s)
        case NotServed(), SleepEnded(rechecked=rechecked):
            if rechecked or now_s >= state.retry_s:
                return begin(rules, state.context, state.then, now_s)
            return state, (CheckDiscovery(),)
        case NotServed(), DiscoveryChecked(served=served):
            return _discovered(rules, state, served, now_s)
        case _:
            return _list_step(rules, state, event, now_s)


def _list_step(rules: WatchRules, state: State, event: Event, now_s: float) -> Step:
    match state, event:
        case ListingPages(), PageReceived(page=page):
            return _page(rules, state, page, now_s)
        case ListingPages(), RequestFailed(error=error):
            return _page_failed(rules, state, error, now_s)
        case OpeningList(), WatchOpened():
            opened = StreamingList(
                state.context.recovered(watched=True), state.goal, state.minimum, state.timeout_s,
                state.idle_s, opened_s=now_s, added_s=now_s,
            )  # fmt: skip
            return opened, (ReadWatch(now_s + END_MARK_WITHIN_S),)
        case OpeningList() | StreamingList(), RequestFailed(error=error):
            return _stream_failed(rules, state, error, now_s)
        case StreamingList(), FramesReceived():
            return _initial_events(rules, state, event, now_s)
        case StreamingList(), WatchEnded():
            error = Interrupted("the streaming list ended before its initial-events-end bookmark")
            return _stream_missed(rules, state, error, now_s)
        case StreamingList(), DeadlineReached():
            return _no_end_mark(rules, state, now_s)
        case AwaitingCommit(), CommitResult(accepted=accepted):
            return _committed(rules, state, now_s, accepted=accepted)
    raise AssertionError(_impossible(state, event))


def _watch_step(
    rules: WatchRules, state: Watching | OpeningWatch, event: Event, now_s: float
) -> Step:
    match state, event:
        case Watching(), WatchEnded():
            return _watch_ended(rules, state, now_s)
        case Watching(), DeadlineReached():
            return _read_deadline(rules, state, now_s)
        case Watching(), LivenessChecked(version=version):
            return _liveness(rules, state, version, now_s)
        case Watching(), RequestFailed(error=error):
            return _watch_failed(rules, state, error, now_s)
        case OpeningWatch(), WatchOpened():
            return _watch_opened(rules, state, now_s)
        case OpeningWatch(), RequestFailed(error=error):
            return _after_error(rules, state.context, error, None, now_s, healthy=False)
    raise AssertionError(_impossible(state, event))


def _impossible(state: State, event: Event) -> str:
    return f"{type(event).__name__} in state {type(state).__name__}"


def needs_list_slot(state: State) -> bool:
    """True while a list is running."""
    return isinstance(state, ListingPages | OpeningList | StreamingList)


def begin(rules: WatchRules, context: StreamContext, then: Next, now_s: float) -> Step:
    """The state for `then`, and its first request."""
    if then is None:
        return begin_watch(rules, context)
    return begin_list(rules, context, then, now_s)


def resume(rules: WatchRules, context: StreamContext, now_s: float) -> Step:
    """Watch on from the cursor, unless a list is due."""
    due = context.relist_due_s <= now_s
    return begin(rules, context, ToList("consistency", quorum=True) if due else None, now_s)


def wait(
    context: StreamContext, then: Next, error: KubeError, until_s: float, *, wakeable: bool = False
) -> Step:
    """Send nothing until `until_s`, and report why."""
    return Waiting(context, then, until_s, error), (
        Deliver(Troubled(error, until_s)),
        Sleep(until_s, wakeable),
    )


def _at_once(
    rules: WatchRules, context: StreamContext, then: Next, error: KubeError, now_s: float
) -> Step:
    """Report `error`, and begin `then` without a delay."""
    state, commands = begin(rules, context, then, now_s)
    return state, (Deliver(Troubled(error, None)), *commands)


# ---- lists ---------------------------------------------------------------------------------------


def begin_list(rules: WatchRules, context: StreamContext, goal: ToList, now_s: float) -> Step:
    """A list, streaming where the server supports it. A version is sent only together with
    NotOlderThan, or as "0"."""
    minimum = _newer(context.cursor, context.floor) if context.complete and not goal.quorum else ""
    first_any = not context.complete and not goal.quorum and rules.plan.list_semantic == "any"
    begun = Deliver(ListBegun(goal.by_content))
    if context.streams_lists(rules, now_s) and not first_any and not goal.unbounded:
        timeout_s = rules.rng.randint(TIMEOUT_MIN_S, TIMEOUT_MAX_S)
        # its initial events end with a bookmark
        idle_s = context.idle_s(rules, timeout_s, bookmarked=True)
        query = WatchQuery(
            resource_version=minimum,
            timeout_s=timeout_s,
            idle_timeout_s=idle_s,
            bookmarks=True,
            send_initial_events=True,
            plain=context.plain,
        )
        return OpeningList(context, goal, minimum, timeout_s, idle_s), (begun, OpenWatch(query))
    limit = 0 if goal.unbounded else rules.plan.page_size
    if minimum and rules.server_version is not None and rules.server_version < STREAMING_SINCE:
        # these servers answer later pages from etcd: one page keeps a relist in the server's cache
        # (docs/watch-facts.md 1.10)
        limit = 0
    version, match = ("0", "") if first_any else (minimum, "NotOlderThan" if minimum else "")
    page = ListQuery(
        limit=limit, resource_version=version, version_match=match, plain=context.plain
    )
    return ListingPages(context, goal, minimum, limit), (begun, FetchPage(page))


def _newer(cursor: str, floor: str) -> str:
    """The newer of the two where they can be compared, else the cursor."""
    return floor if cursor and floor and compare(cursor, floor) == -1 else cursor


def _page_failed(rules: WatchRules, state: ListingPages, error: KubeError, now_s: float) -> Step:
    context, goal, later = state.context, state.goal, bool(state.token)
    if later and isinstance(error, Expired) and not goal.unbounded:
        # The history expired between pages: one page cannot outlive it. Source: client-go
        # tools/pager.
        return _at_once(rules, context, replace(goal, unbounded=True), error, now_s)
    refused = isinstance(error, Invalid) and error.about == "continue"
    if later and refused and goal.cause != "continue":
        return _at_once(rules, context, replace(goal, cause="continue"), error, now_s)
    return _list_failed(rules, context, goal, error, now_s, healthy=later)


def _page(rules: WatchRules, state: ListingPages, page: Page, now_s: float) -> Step:
    if not watchable(page.resource_version):
        unusable = NotWatchable(
            f"the list of {rules.plan.selection.path} has no usable resourceVersion: it cannot be "
            "watched; remove it from the config"
        )
        return _list_failed(rules, state.context, state.goal, unusable, now_s)
    context, goal = state.context.recovered(), state.goal
    version = state.version or page.resource_version
    minimum = "" if state.token else state.minimum
    if again := _went_back(rules, context, goal, minimum, version, now_s):
        return again
    if page.failures and not _skips(context, goal, now_s):
        context = replace(context.with_undecodable(now_s), undecodable=2)
        return _list_failed(rules, context, goal, page.failures[0], now_s)
    if page.continue_token and page.continue_token == state.token:
        error = Interrupted(
            f"the list of {rules.plan.selection.path} repeats a page: the server sent the same "
            "continue token twice"
        )
        return _list_failed(rules, context, goal, error, now_s)
    if page.failures:
        context = context.with_undecodable(now_s)
    commands = _objects(page.objects, page.failures)
    if page.continue_token:
        # with a token the server refuses version and match (docs/watch-facts.md 1.6)
        more = replace(state, context=context, token=page.continue_token, version=version)
        query = ListQuery(
            limit=state.limit, continue_token=page.continue_token, plain=context.plain
        )
        return more, (*commands, FetchPage(query))
    return AwaitingCommit(context, goal, version), (*commands, _commit(context, goal, version))


def _list_failed(
    rules: WatchRules, context: StreamContext, goal: ToList, error: KubeError, now_s: float, *,
    healthy: bool = False,
) -> Step:  # fmt: skip
    """After a failed list. One that only compares is not worth a gap in the watch: the watch
    continues, and the list is due again a little later."""
    then: Next = replace(goal, unbounded=False)
    if goal.cause == "consistency":
        then = None
        due_s = now_s + min(rules.plan.relist_interval_s, RELIST_AGAIN_S)
        context = replace(context, relist_due_s=due_s)
    return _after_error(rules, context, error, then, now_s, healthy=healthy)


def _skips(context: StreamContext, goal: ToList, now_s: float) -> bool:
    """Whether undecodable objects are skipped at once. A list that only compares is not repeated
    for them: changes during the gap in the watch would count as missed."""
    return goal.cause == "consistency" or context.skips_undecodable(now_s)


def _objects(objects: list[ObjectFrame], errors: Sequence[KubeError]) -> list[Command]:
    """Deliver what a list brought."""
    about = [error.about for error in errors if isinstance(error, Undecodable)]
    damaged = tuple(each for each in about if each is not None)
    listed = Listed(objects, unreadable=len(errors) - len(damaged), damaged=damaged)
    if errors:
        return [ReportSkipped(tuple(errors)), Deliver(listed)]
    return [Deliver(listed)] if objects else []


def _commit(context: StreamContext, goal: ToList, version: str) -> CommitList:
    return CommitList(ListDone(version, goal.confirmed, _since(context, goal, version)))


def _since(context: StreamContext, goal: ToList, version: str) -> str:
    """Where the watch continues after a list that was to find what it missed: at its cursor, so
    that it shows what it would have brought had it not been closed for the list. "" where it
    continues from the list."""
    behind = goal.cause == "consistency" and compare(context.cursor, version) == -1
    return context.cursor if behind else ""


def _went_back(
    rules: WatchRules, context: StreamContext, goal: ToList, minimum: str, version: str,
    now_s: float,
) -> Step | None:  # fmt: skip
    """The step after a list that may not be used: one older than requested (docs/watch-facts.md
    5.7), or the first to show that the server was restored: compared by version, it would hide
    changes."""
    again = ToList("restored", quorum=True, confirmed=goal.confirmed, by_content=True)
    if minimum and compare(version, minimum) == -1:
        error = Interrupted(
            f"the server returned resourceVersion {version}, older than the requested minimum "
            f"{minimum}"
        )
        context, delay_s = context.retry(rules, error, now_s, healthy=False)
        return wait(context, again, error, now_s + delay_s)
    if context.complete and not goal.by_content and compare(version, context.cursor) == -1:
        return begin_list(rules, context, again, now_s)
    return None


# ---- streaming lists -----------------------------------------------------------------------------


def _no_end_mark(rules: WatchRules, state: StreamingList, now_s: float) -> Step:
    within = f"{END_MARK_WITHIN_S:.0f} s after the newest object"
    return _stream_missed(
        rules, state, Interrupted(f"no initial-events-end bookmark {within}"), now_s
    )


def _initial_events(
    rules: WatchRules, state: StreamingList, event: FramesReceived, now_s: float
) -> Step:
    context, objects, skipped = state.context, list[ObjectFrame](), list[KubeError]()
    for index, frame in enumerate(event.frames):
        if isinstance(frame, ObjectFrame):
            objects.append(frame)
        elif isinstance(frame, Failure):
            error = frame.error
            if not (isinstance(error, Undecodable) and _skips(context, state.goal, now_s)):
                return _stream_failed(rules, replace(state, context=context), error, now_s)
            context = context.with_undecodable(now_s)
            skipped.append(error)
        elif frame.initial_end:
            any_objects = state.any_objects or bool(objects)
            state = replace(state, context=context, any_objects=any_objects)
            rest = tuple(event.frames[index + 1 :])
            commands = _objects(objects, skipped)
            return _end_mark(rules, state, frame, rest, event.at_s, commands, now_s)
    added_s = event.at_s if objects else state.added_s
    if now_s - added_s >= END_MARK_WITHIN_S:
        return _no_end_mark(rules, state, now_s)
    any_objects = state.any_objects or bool(objects)
    state = replace(state, context=context, any_objects=any_objects, added_s=added_s)
    return state, (*_objects(objects, skipped), ReadWatch(added_s + END_MARK_WITHIN_S))


def _end_mark(
    rules: WatchRules, state: StreamingList, mark: Bookmark, rest: tuple[Frame, ...], at_s: float,
    commands: list[Command], now_s: float,
) -> Step:  # fmt: skip
    version, goal = mark.resource_version, state.goal
    if not watchable(version):
        error = Interrupted("the initial-events-end bookmark has no usable resourceVersion")
        return _stream_missed(rules, state, error, now_s)
    if again := _went_back(rules, state.context, goal, state.minimum, version, now_s):
        return again
    # Servers that stream lists serve consistent lists from their cache, so an early liveness check
    # helps from the first watch on.
    context = replace(state.context, stream_misses=0, bookmarked=True, late=True)
    watch = Watching(
        context, version, state.timeout_s, state.idle_s, source_idle_s=state.idle_s,
        opened_s=state.opened_s, contact_s=at_s, lines=1, liveness="due",
    )  # fmt: skip
    return AwaitingCommit(context, goal, version, watch, rest, at_s), (
        *commands,
        _commit(context, goal, version),
    )


def _stream_failed(
    rules: WatchRules, state: OpeningList | StreamingList, error: KubeError, now_s: float
) -> Step:
    context, goal = state.context, state.goal
    opened = isinstance(state, StreamingList)
    healthy = isinstance(state, StreamingList) and state.any_objects
    if isinstance(error, Invalid | NotWatchable):
        # The parameters are refused (gate off, old server, proxy): page lists for six hours.
        # Source: docs/watch-facts.md 3.4.
        return _at_once(rules, context.paging(rules, now_s), goal, error, now_s)
    if isinstance(error, Undecodable):
        state = replace(state, context=context.with_undecodable(now_s))
        return _stream_missed(rules, state, error, now_s)
    if isinstance(error, VersionTooLarge):
        # A lagging cache may fail so every time while it lists well: this counts as a miss too.
        # Source: k/k#139766.
        context = replace(context, stream_misses=context.stream_misses + 1)
        context = context.paging(rules, now_s) if context.stream_misses >= 2 else context
        return _list_failed(rules, context, goal, error, now_s)
    other_cause = Forbidden | NotFound | Unauthorized | Misconfigured | NotAcceptable | Expired
    if (isinstance(error, Unavailable) and not opened) or isinstance(error, other_cause):
        return _list_failed(rules, context, goal, error, now_s, healthy=healthy)
    return _stream_missed(rules, state, error, now_s)


def _stream_missed(
    rules: WatchRules, state: OpeningList | StreamingList, error: KubeError, now_s: float
) -> Step:
    """The stream broke before its end mark: once more, then by pages (client-go retries without
    end: k/k#140890)."""
    misses = state.context.stream_misses + 1
    context = replace(state.context, stream_misses=misses)
    healthy = isinstance(state, StreamingList) and state.any_objects
    if state.goal.cause == "consistency":
        context = context.paging(rules, now_s) if misses >= 2 else context
        return _list_failed(rules, context, state.goal, error, now_s, healthy=healthy)
    context, delay_s = context.retry(rules, error, now_s, healthy=healthy)
    if misses >= 2:
        context = context.paging(rules, now_s)
        if not isinstance(error, Unavailable):
            return _at_once(rules, context, state.goal, error, now_s)
    return wait(context, state.goal, error, now_s + delay_s)


# ---- after a list -------------------------------------------------------------------------------


def _committed(rules: WatchRules, state: AwaitingCommit, now_s: float, *, accepted: bool) -> Step:
    """An accepted list: watch on from its version. A suspicious one: once more, from a quorum, and
    then it is accepted (docs/watch-facts.md 5.8)."""
    context, goal = state.context, state.goal
    if not accepted:
        again = ToList("suspicious", quorum=True, confirmed=True, by_content=goal.by_content)
        return begin_list(rules, context, again, now_s)
    since = _since(context, goal, state.version)
    context = replace(
        context,
        cursor=since or state.version,
        complete=True,
        floor="",
        gone=False,
        absent_s=None,
        contact_s=now_s,
        setback_s=now_s if context.setback_listed else context.setback_s,
        setback_listed=False,
        relist_due_s=rules.relist_due_s(now_s),
    )
    if state.watch is None or since:
        return begin_watch(rules, context)
    watch = replace(state.watch, context=context)
    if state.rest:
        rest = FramesReceived(list(state.rest), state.rest_s)
        return _frames(rules, watch, rest, now_s)
    return watch, (ReadWatch(watch.due_s),)


# ---- watches -------------------------------------------------------------------------------------


def begin_watch(rules: WatchRules, context: StreamContext) -> Step:
    """A plain watch from the cursor. Never from "" or "0", whose first events come in no order
    (docs/watch-facts.md 2.11)."""
    assert watchable(context.cursor), "a watch starts at a version"
    timeout_s = rules.rng.randint(TIMEOUT_MIN_S, TIMEOUT_MAX_S)
    idle_s = context.idle_s(rules, timeout_s, bookmarked=context.bookmarked)
    query = WatchQuery(
        resource_version=context.cursor,
        timeout_s=timeout_s,
        idle_timeout_s=idle_s,
        bookmarks=rules.plan.bookmarks,
        plain=context.plain,
    )
    return OpeningWatch(context, timeout_s, idle_s), (OpenWatch(query),)


def _watch_opened(rules: WatchRules, state: OpeningWatch, now_s: float) -> Step:
    context = state.context
    watch = Watching(
        context.recovered(watched=True), context.cursor, state.timeout_s, state.idle_s,
        source_idle_s=state.idle_s, opened_s=now_s, contact_s=now_s,
        liveness="due" if rules.plan.bookmarks and context.bookmarked else "",
    )  # fmt: skip
    if now_s - context.contact_s >= SILENT_S:
        return _check_liveness(watch)
    return watch, (ReadWatch(watch.due_s),)


_OBJECTS_ALONE: frozenset[type] = frozenset({ObjectFrame})


def _frames(rules: WatchRules, state: Watching, event: FramesReceived, now_s: float) -> Step:
    """One chunk's frames: objects go on together, the cursor follows the newest version, an error
    ends the watch."""
    frames = event.frames
    context, cursor, end = state.context, state.cursor, None
    commands: list[Command] = []
    if set(map(type, frames)) == _OBJECTS_ALONE:  # the hot path: nothing to sort
        objects: list[ObjectFrame] = frames  # type: ignore[assignment]  # just checked for each one
        newest = objects[-1].resource_version
        if not _advances(newest, cursor):
            newest = next(
                (
                    each.resource_version
                    for each in reversed(objects)
                    if _advances(each.resource_version, cursor)
                ),
                cursor,
            )
    else:
        objects, newest, marked, skipped, end = _sorted_out(frames, context, cursor, now_s)
        if skipped:
            context = context.with_undecodable(now_s)
            commands.append(ReportSkipped(skipped))
        if marked and not context.bookmarked:
            context = replace(context, bookmarked=True)
            idle_s = context.idle_s(rules, state.timeout_s, bookmarked=True)
            state = replace(state, idle_s=idle_s)
    if objects:
        commands.append(Deliver(Observed(objects, event.at_s)))
    if newest != cursor:
        cursor = newest
        commands.append(Deliver(Progressed(cursor)))
    state = Watching(
        context, cursor, state.timeout_s, state.idle_s, state.source_idle_s, state.opened_s,
        event.at_s, state.objects + len(objects), state.lines + len(frames),
    )  # fmt: skip
    if end is not None:
        then, more = _watch_failed(rules, state, end, now_s)
        return then, (*commands, *more)
    if now_s - state.opened_s > state.timeout_s + TIMEOUT_SLACK_S or now_s >= context.relist_due_s:
        # The server did not end its watch in time, or a list is due while frames keep coming.
        then, more = resume(rules, _kept(state), now_s)
        return then, (*commands, *more)
    commands.append(ReadWatch(state.due_s))
    return state, tuple(commands)


def _advances(version: str, cursor: str) -> bool:
    """Whether the cursor may move to `version`. A single one that is not a number does not move it
    where all others are numbers."""
    # Longer, or equally long and later in the alphabet: newer where both are numbers. Where the
    # cursor is not a number, there is no order.
    if (len(version), version) > (len(cursor), cursor) and comparable(version):
        return True
    return version != cursor and not comparable(cursor) and watchable(version)


def _sorted_out(
    frames: list[Frame], context: StreamContext, cursor: str, now_s: float
) -> tuple[list[ObjectFrame], str, bool, tuple[KubeError, ...], KubeError | None]:
    """Objects, where the cursor moves to, whether a bookmark came, what was skipped, and the error
    that ended the watch."""
    objects: list[ObjectFrame] = []
    skipped: list[KubeError] = []
    newest, marked = cursor, False
    for frame in frames:
        match frame:
            case ObjectFrame():
                objects.append(frame)
            case Bookmark():
                marked = True
            case Failure(error=Undecodable() as error) if context.skips_undecodable(now_s):
                skipped.append(error)
                continue
            case Failure(error=error):
                return objects, newest, marked, tuple(skipped), error
        if _advances(frame.resource_version, newest):
            newest = frame.resource_version
    return objects, newest, marked, tuple(skipped), None


def _kept(state: Watching) -> StreamContext:
    """What outlives this watch."""
    contact_s = state.contact_s if state.lines else state.context.contact_s
    quiet = 0 if state.objects else state.context.quiet_stalls
    return replace(state.context, cursor=state.cursor, contact_s=contact_s, quiet_stalls=quiet)


def _watch_ended(rules: WatchRules, state: Watching, now_s: float) -> Step:
    context = _kept(state)
    early = now_s - state.opened_s < VERY_SHORT_S
    if early and state.cursor == state.context.cursor:
        error = Interrupted("the server closed the watch at once, without an event")
        context, delay_s = context.retry(rules, error, now_s, healthy=False)
        # A line too long to read ends the watch here each time; where lines are skipped already,
        # only a list leads past it.
        then = ToList("undecodable") if context.skips_undecodable(now_s) else None
        return wait(context, then, error, now_s + delay_s)
    if early:
        again_s = state.opened_s + VERY_SHORT_S
        return Waiting(context, None, again_s), (Sleep(again_s),)
    return resume(rules, context, now_s)


def _read_deadline(rules: WatchRules, state: Watching, now_s: float) -> Step:
    if now_s - state.contact_s >= state.idle_s:
        return _stalled(rules, state, now_s)
    if state.liveness == "due" and now_s < state.context.relist_due_s:
        return _check_liveness(state)
    return resume(rules, _kept(state), now_s)


def _check_liveness(state: Watching) -> Step:
    query = ListQuery(limit=1, plain=state.context.plain)
    return state, (CheckLiveness(query, state.contact_s + state.idle_s),)


def _liveness(rules: WatchRules, state: Watching, version: str, now_s: float) -> Step:
    """What the server's current version, requested beside the watch, shows.

    A server behind the cursor, or behind the log, was restored from a backup (docs/watch-facts.md
    2.8). At the cursor: nothing has happened, so silence is no sign of a dead watch.
    """
    context = state.context
    if version and compare(version, _newer(state.cursor, context.floor)) == -1:
        restored = ToList("restored", quorum=True, by_content=True)
        return begin_list(rules, _kept(state), restored, now_s)
    if version:
        context = replace(context, contact_s=now_s)
    if version == state.cursor:
        state = replace(state, context=context, contact_s=now_s)
    elif version and not context.late:
        context = replace(context, late=True)
        idle_s = max(SECOND_BOOKMARK_S, state.idle_s)
        state = replace(state, context=context, idle_s=idle_s, liveness="checked")
    else:
        state = replace(state, context=context, liveness="checked")
    return state, (ReadWatch(state.due_s),)


def _watch_failed(rules: WatchRules, state: Watching, error: KubeError, now_s: float) -> Step:
    if error.reason == "inactive":
        return _stalled(rules, state, now_s)
    lived_s, context = now_s - state.opened_s, _kept(state)
    if isinstance(error, Interrupted) and lived_s >= state.timeout_s + TIMEOUT_SLACK_S - 1:
        # closed by the source, because the server did not end it in time
        return resume(rules, context, now_s)
    if lived_s >= context.backoff.cap_s:
        context = replace(context, backoff=Backoff())
    healthy = state.lines > 0 or lived_s >= HEALTHY_AFTER_S
    return _after_error(rules, context, error, None, now_s, healthy=healthy)


def _stalled(rules: WatchRules, state: Watching, now_s: float) -> Step:
    """Nothing came for too long: the connection may be half open. Three times in vain means a
    server that is silent by nature."""
    context = _kept(state)
    quiet = context.quiet_stalls + 1 if not state.objects else 0
    deadline_s = context.deadline_s
    if quiet >= QUIET_STALLS:
        longest_s = state.timeout_s + TIMEOUT_SLACK_S
        quiet, deadline_s = 0, max(deadline_s, min(deadline_s * 2, longest_s))
    context = replace(context, quiet_stalls=quiet, deadline_s=deadline_s)
    silent_s = now_s - state.contact_s
    error = Interrupted(f"the watch was silent for {silent_s:.0f} s: opened again")
    then, commands = resume(rules, context, now_s)
    return then, (Deliver(Troubled(error, None)), *commands)


# ---- errors, by the classes of docs/watch-facts.md 6.4 -------------------------------------------


def _after_error(
    rules: WatchRules, context: StreamContext, error: KubeError, again: Next, now_s: float, *,
    healthy: bool,
) -> Step:  # fmt: skip
    """What follows `error` while doing `again`. `healthy` as in `Backoff.after_failure`."""
    match error:
        case Expired() | VersionTooLarge() | Invalid(about="version"):
            return _history_lost(rules, context, error, again, now_s, healthy=healthy)
        case Undecodable():
            context = context.with_undecodable(now_s)
            if again is None and context.undecodable >= 2:
                again = ToList("undecodable")
        case NotAcceptable() if rules.plan.selection.metadata_only and not context.plain:
            return _at_once(rules, replace(context, plain=True), again, error, now_s)
        case NotFound():
            context, delay_s = context.retry_slowly(rules, error, now_s)
            retry_s = now_s + delay_s
            return NotServed(context, again, retry_s), (
                Deliver(Troubled(error, retry_s)),
                CheckDiscovery(),
            )
        case Forbidden() if context.grace_s > 0 and (context.watched or again is not None):
            return _refused(rules, context, error, again, now_s)
        case Invalid(about="continue" | "streaming"):
            pass
        case _ if isinstance(error, NEEDS_OPERATOR):
            context, delay_s = context.retry_slowly(rules, error, now_s)
            delay_s = max(delay_s, clamp_retry_after(error.retry_after_s))
            return wait(context, again, error, now_s + delay_s, wakeable=True)
    context, delay_s = context.retry(rules, error, now_s, healthy=healthy)
    return wait(context, again, error, now_s + delay_s)


NEEDS_OPERATOR = (Forbidden, Invalid, Misconfigured, NotAcceptable, NotWatchable, Unauthorized)


def _refused(
    rules: WatchRules, context: StreamContext, error: Forbidden, again: Next, now_s: float
) -> Step:
    """A 403 for what was allowed before: no operator is needed until it has lasted."""
    refused = TransientlyForbidden(
        f"{error.what}; it was allowed before, as while an API server starts", status=error.status
    )
    context, delay_s = context.retry_slowly(rules, refused, now_s)
    context = replace(context, grace_s=context.grace_s - delay_s)
    delay_s = max(delay_s, clamp_retry_after(error.retry_after_s))
    return wait(context, again, refused, now_s + delay_s)


def _history_lost(
    rules: WatchRules, context: StreamContext, error: KubeError, again: Next, now_s: float, *,
    healthy: bool,
) -> Step:  # fmt: skip
    """The requested version cannot be served: make a list that is not older than it; where that
    failed, or too soon after the last time, one without a version."""
    repeated = now_s - context.setback_s <= SETBACK_WINDOW_S
    behind = isinstance(error, VersionTooLarge)
    had_minimum = again is not None and context.complete and not again.quorum
    cause: ListCause = "behind" if behind else "expired"
    if isinstance(error, Invalid):
        cause = "refused"
    then = ToList(
        cause,
        quorum=again is not None or repeated or cause != "expired",
        confirmed=again is not None and again.confirmed,
        by_content=behind or (again is not None and again.by_content),
    )
    context = replace(context, setback_s=now_s, setback_listed=True)
    if (repeated or again is not None) and not had_minimum:
        context, delay_s = context.retry(rules, error, now_s, healthy=healthy)
        return wait(context, then, error, now_s + max(delay_s, 1.0 if behind else 0.0))
    if behind:
        delay_s = clamp_retry_after(error.retry_after_s) or 1.0
        return wait(context, then, error, now_s + delay_s)
    return _at_once(rules, context, then, error, now_s)


# ---- resources that are not served ---------------------------------------------------------------


def _discovered(rules: WatchRules, state: NotServed, served: bool | None, now_s: float) -> Step:
    """Discovery answered about a resource whose collection is 404: a no counts when it was given
    twice, a yes at once after a no."""
    context, then = state.context, state.then
    delivered: tuple[Command, ...] = ()
    if served is False:
        then = ToList("returned", quorum=True)
        if context.absent_s is None:
            context = replace(context, absent_s=now_s)
        elif now_s - context.absent_s >= ABSENT_TWICE_S and not context.gone:
            delivered = (Deliver(Gone()),)
            context = replace(context, gone=True, complete=False, cursor="")
    elif served and context.absent_s is not None:
        returned = ToList("returned", quorum=True)
        return begin_list(rules, replace(context, absent_s=None), returned, now_s)
    sleep = Sleep(min(state.retry_s, now_s + CHECK_DISCOVERY_S), wakeable=True)
    return NotServed(context, then, state.retry_s), (*delivered, sleep)
