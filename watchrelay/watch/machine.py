"""The watch of one resource as a state machine: table, states, events, commands, then the steps.
Pure.

`step` takes a state, an event and the time; it returns the next state and commands, the last of
which is the one action whose result is the next event. `loop.py` performs them, and keeps the next
state only when everything before the action was delivered: the cursor moves last.

Moments of the monotonic clock are `now_s`, `*_at_s`, `*_since_s` and `*until_s`; every other `*_s`
is a duration in seconds. A bare `version` is a resourceVersion; the releases of the API server are
named `*server_version`. `Unavailable`, with `Unreachable` and `Throttled`, is an error of the
server, `Interrupted` one of a single response. The client is kube/client.py; it ends a silent read
with the reason "inactive". A watch is silent while no frame comes, and frozen once that takes too
long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

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
    WatchQuery,
)
from watchrelay.model.resources import Availability, comparable, compare, watchable
from watchrelay.model.watch_output import (
    CursorMoved,
    ListBegun,
    ListDone,
    ListedObjects,
    ResourceRemoved,
    Retrying,
    ServerSeen,
    WatchedObjects,
    WatchOutput,
)
from watchrelay.watch.context import (
    FORBIDDEN_GRACE_S,
    SILENCE_LIMIT_S,
    STREAMING_SINCE,
    StreamContext,
    WatchRules,
)
from watchrelay.watch.failing import (
    END_IN_TIME_S,
    PROVING_WATCH_S,
    may_be_the_minimum,
    shows_failing_cursor,
)
from watchrelay.watch.goals import CONSISTENCY, FAILING, RESTORED, ListCause, ListGoal
from watchrelay.watch.looks import History
from watchrelay.watch.pages import Pages

_AFTER_ERROR = ("Pausing", "ListingPages OpeningList OpeningWatch NotServed")
_TRIED_AGAIN = "ListingPages OpeningList OpeningWatch CheckingLists"

TRANSITIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Pausing": {"SleepEnded": ("ListingPages OpeningList OpeningWatch", "CheckingLists")},
    "CheckingLists": {"ListsChecked": ("ListingPages OpeningWatch", "OpeningList")},
    "ListingPages": {
        "PageReceived": ("FinishingList ListingPages", "OpeningList Pausing"),
        "RequestFailed": _AFTER_ERROR,
    },
    "OpeningList": {"WatchOpened": ("StreamingList", ""), "RequestFailed": _AFTER_ERROR},
    "StreamingList": {
        "FramesReceived": (
            "FinishingList StreamingList",
            "ListingPages OpeningList OpeningWatch Pausing NotServed",
        ),
        "WatchEnded": ("Pausing", "ListingPages"),
        "DeadlineReached": ("Pausing", "ListingPages"),
        "RequestFailed": _AFTER_ERROR,
    },
    "FinishingList": {
        "ListFinished": ("OpeningWatch Watching", "ListingPages OpeningList Pausing NotServed")
    },
    "OpeningWatch": {"WatchOpened": ("Watching", ""), "RequestFailed": _AFTER_ERROR},
    "Watching": {
        "FramesReceived": ("Watching", f"{_TRIED_AGAIN} Pausing NotServed"),
        "WatchEnded": ("OpeningWatch", "ListingPages OpeningList Pausing CheckingLists"),
        "DeadlineReached": ("Watching", _TRIED_AGAIN),
        "VersionChecked": ("Watching OpeningWatch", "ListingPages OpeningList"),
        "RequestFailed": ("Pausing NotServed", _TRIED_AGAIN),
    },
    "NotServed": {
        "DiscoveryChecked": ("NotServed", "ListingPages OpeningList"),
        "SleepEnded": ("NotServed", _TRIED_AGAIN),
    },
}
"""By state and event: the states that usually follow, and the others. Any other event is a bug. The
diagram (of the usual ones) and the table of docs/how-the-watch-works.md are generated from it; a
test compares it with what `step` does."""

# ---- limits --------------------------------------------------------------------------------------

END_BOOKMARK_WITHIN_S = 30.0
"""A streaming list has failed if its initial-events-end bookmark does not come within this time
after its newest object. Source: docs/watch-facts.md 3.6."""
PAGE_RETRIES = 10
"""A page after the first is requested again up to this many times while the server throttles,
before the whole list is begun again: else a list of many pages might never end, though few of its
requests are rejected. Source: client-go."""
RELIST_AGAIN_S = 600.0
"""A failed list with `watch_continues` is retried after this time, or after `relistInterval` where
that is shorter."""
REJECTED_AGAIN_WITHIN_S = 60.0
"""If a version is rejected again within this time after the list that followed the last rejection,
the next list waits for a backoff. Source: docs/watch-facts.md 6.4, class C."""
CHECK_AT_OPEN_AFTER_S = 600.0
"""If the server has not shown its current state for this long, as where the cursor comes from the
log, a small list is made as soon as the next watch is open: is the server's history the one from
which the held state was made? Source: docs/watch-facts.md 2.8."""
CHECK_WITHIN_S = 10.0
"""A small list is given up after this time."""
LOOK_AGAIN_S = 60.0
"""A small list without an answer, or that is not certain, is made again after this time."""
VERSION_CHECK_AFTER_S = 65.0
"""When a watch has sent nothing for this long since its opening, or since the initial events of a
streaming list, its silence is checked before it counts as frozen: a small list requests the current
resourceVersion. Reason: a watch opened at a version brings no bookmark before the server's cache
has passed that version, which takes minutes where nothing changes; the list makes the cache catch
up. Source: docs/watch-facts.md 0, D8."""
BRIEF_WATCH_S = 5
"""The `timeoutSeconds` of a watch that is opened to see whether the one before, which was silent
without bookmarks, lacks something: the server's clean end of it comes after all that it had to
send, and 2 s before that comes a bookmark if it has any. Source: docs/watch-facts.md 2.4."""
VERSION_CHECK_EARLY_S = 50.0
"""The same with `StreamContext.check_early`: the check makes the server's cache catch up, so
that the bookmark due after 60 s comes."""
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

# ---- states --------------------------------------------------------------------------------------


class Pausing(msgspec.Struct, frozen=True):
    """No request is sent before `until_s`, or before `recheck()` where the sleep is wakeable.
    `error` is why; None: to spread requests, or because a watch ended early. `listing`: the
    state to return to, whose page is then requested again."""

    context: StreamContext
    goal: ListGoal | None
    until_s: float
    error: KubeError | None = None
    listing: ListingPages | None = None


class ListingPages(msgspec.Struct, frozen=True):
    """The request for a page of a list, `query`, is in flight. `version`: that of the list, ""
    before the first page. `throttled`: how often this page was. `pages`: those that have come."""

    context: StreamContext
    goal: ListGoal
    query: ListQuery
    version: str = ""
    throttled: int = 0
    pages: Pages = Pages()


class OpeningList(msgspec.Struct, frozen=True):
    """The request for a streaming list is in flight."""

    context: StreamContext
    goal: ListGoal
    query: WatchQuery


class StreamingList(msgspec.Struct, frozen=True):
    """A watch is open whose initial events have not ended. `newest_object_at_s`: when the newest
    object came, or when the watch was opened; `any_objects`: at least one has come."""

    context: StreamContext
    goal: ListGoal
    query: WatchQuery
    opened_at_s: float
    newest_object_at_s: float
    any_objects: bool = False


class FinishingList(msgspec.Struct, frozen=True):
    """A list is complete; whether the store accepts it is awaited. `watch`: the streaming list
    continues as this watch, with the frames `rest`, which came at `rest_at_s`."""

    context: StreamContext
    goal: ListGoal
    version: str
    watch: Watching | None = None
    rest: tuple[Frame, ...] = ()
    rest_at_s: float = 0.0


class CheckingLists(msgspec.Struct, frozen=True):
    """The watch fails from its cursor each time. A small list is in flight: do lists work, and is
    there anything newer?"""

    context: StreamContext


class OpeningWatch(msgspec.Struct, frozen=True):
    """The request for a watch from the cursor is in flight."""

    context: StreamContext
    query: WatchQuery


VersionCheck = Literal["", "due", "silent", "checked"]


class Watching(msgspec.Struct, frozen=True):
    """A watch is open.

    `cursor` is the version up to which all was delivered; `context.cursor` stays that from which
    the watch was opened, and moves when it ends. After `frozen_after_s` of silence the watch counts
    as frozen; only a version check makes that higher. A watch is read several times: the loop ends
    a read at `read_until_s`, the client a silent one after `query.idle_timeout_s`, counted from the
    read's start or its newest bytes.

    `silent_since_s` is when the newest frame came, when the watch was opened, when the store took
    the streaming list that it continues, or when a check showed that nothing was missed; `objects`
    and `frames_received` count what came, and the newest bookmark came at `bookmark_at_s`.

    `version_check`, of the silence: "" none is made; "due": one is made unless a frame comes
    before; "silent": it is being made, and no frame has come; "checked": it was made, and showed no
    version, or another than the cursor. Beside it, one is due at `context.look_at_s`.
    """

    context: StreamContext
    cursor: str
    query: WatchQuery
    frozen_after_s: float
    opened_at_s: float
    silent_since_s: float
    objects: int = 0
    frames_received: int = 0
    bookmark_at_s: float = -math.inf
    version_check: VersionCheck = ""

    @property
    def read_until_s(self) -> float:
        """When a read must end, also for a list that is due."""
        silent_s, context = self.frozen_after_s, self.context
        if self.version_check == "due":
            silent_s = min(silent_s, self.check_after_s)
        return min(self.silent_since_s + silent_s, context.relist_at_s, context.look_at_s)

    @property
    def check_after_s(self) -> float:
        """The silence after which its check is made."""
        return VERSION_CHECK_EARLY_S if self.context.check_early else VERSION_CHECK_AFTER_S


class NotServed(msgspec.Struct, frozen=True):
    """The collection answered 404. At once, and every `CHECK_DISCOVERY_S`, discovery is asked
    whether it is served. The request itself is retried at `retry_at_s`; another 404 leads here
    again."""

    context: StreamContext
    goal: ListGoal | None
    retry_at_s: float


State = (
    Pausing | ListingPages | OpeningList | StreamingList | FinishingList | CheckingLists
    | OpeningWatch | Watching | NotServed
)  # fmt: skip

# ---- events --------------------------------------------------------------------------------------


class SleepEnded(msgspec.Struct, frozen=True):
    """The sleep is over. `rechecked`: `Watcher.recheck()` ended it early."""

    rechecked: bool = False


class PageReceived(msgspec.Struct, frozen=True):
    """A page of a list."""

    page: Page


class WatchOpened(msgspec.Struct, frozen=True):
    """The server accepted the watch."""


class FramesReceived(msgspec.Struct):
    """The frames of one chunk, at least one; `at_s` is when it came."""

    frames: list[Frame]
    at_s: float


class WatchEnded(msgspec.Struct, frozen=True):
    """The server ended the watch cleanly."""


class DeadlineReached(msgspec.Struct, frozen=True):
    """The read ended at its deadline."""


class RequestFailed(msgspec.Struct, frozen=True):
    """The request, or the watch that it opened, failed."""

    error: KubeError


class ListFinished(msgspec.Struct, frozen=True):
    """Whether the store accepts the list."""

    accepted: bool


class VersionChecked(msgspec.Struct, frozen=True):
    """The current resourceVersion, requested beside an open watch at `asked_at_s`, when the watch
    had come to `cursor`; "" when there was no answer. `history`: what the list shows of it."""

    version: str
    asked_at_s: float
    cursor: str = ""
    history: History = "same"


class ListsChecked(msgspec.Struct, frozen=True):
    """The current resourceVersion, requested at `asked_at_s`; "" when there was no answer.
    `may_list`: it is not the cursor's, and a list may be made now."""

    version: str
    may_list: bool
    asked_at_s: float


class DiscoveryChecked(msgspec.Struct, frozen=True):
    """What discovery reports about the resource."""

    availability: Availability


Event = (
    SleepEnded | PageReceived | WatchOpened | FramesReceived | WatchEnded | DeadlineReached
    | RequestFailed | ListFinished | VersionChecked | ListsChecked | DiscoveryChecked
)  # fmt: skip

# ---- commands: any number of `Deliver` and `ReportSkipped`, then one action ----------------------
# An arrow, `->`, points to the events that the action may result in.


class Deliver(msgspec.Struct):
    """Deliver `output` to the store, and wait until it is taken. The store ignores `Retrying`,
    which is for the reporter."""

    output: WatchOutput


class ReportSkipped(msgspec.Struct, frozen=True):
    """Count and log undecodable objects that are skipped."""

    errors: tuple[KubeError, ...]


class Sleep(msgspec.Struct, frozen=True):
    """Wait until `until_s`, or, if `wakeable`, until `Watcher.recheck()` -> `SleepEnded`."""

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
    `RequestFailed`, and `VersionChecked` once a small list has ended. Every other action but
    `FinishList` and `CheckVersion` closes it; another list gives up a small one."""

    until_s: float


class FinishList(msgspec.Struct, frozen=True):
    """Deliver the end of a list -> `ListFinished`."""

    done: ListDone


class CheckVersion(msgspec.Struct, frozen=True):
    """Request a small list, unless one is in flight, and read the open watch meanwhile, as
    `ReadWatch`."""

    query: ListQuery
    until_s: float


class CheckLists(msgspec.Struct, frozen=True):
    """Request the current resourceVersion once, giving up at `until_s`, where a list of a failing
    watch may be made now -> `ListsChecked`."""

    query: ListQuery
    cursor: str
    until_s: float


class CheckDiscovery(msgspec.Struct, frozen=True):
    """Ask discovery whether the resource is served -> `DiscoveryChecked`."""


Action = (
    FetchPage | OpenWatch | ReadWatch | CheckVersion | CheckLists | FinishList | Sleep
    | CheckDiscovery
)  # fmt: skip
Command = Deliver | ReportSkipped | Action
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
    first = ListGoal("recovered", most_recent=True) if recovered else ListGoal("first")
    goal = None if cursor else first
    if first_wait_s <= 0:
        return begin(rules, context, goal, now_s)
    return Pausing(context, goal, now_s + first_wait_s), (Sleep(now_s + first_wait_s),)


def step(rules: WatchRules, state: State, event: Event, now_s: float) -> Step:
    """The state after `event`, and what to do. Raises: AssertionError when the event cannot happen
    in that state."""
    if isinstance(state, Watching) and isinstance(event, FramesReceived):  # the hot path
        return _frames_received(rules, state, event, now_s)
    match state, event:
        case Watching() | OpeningWatch(), _:
            return _watch_step(rules, state, event, now_s)
        case Pausing(listing=ListingPages() as listing), SleepEnded():
            return listing, (FetchPage(listing.query),)
        case Pausing(), SleepEnded():
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
        case OpeningList() | StreamingList(), RequestFailed(error=error):
            return _streaming_list_failed(rules, state, error, now_s)
        case StreamingList(), FramesReceived():
            return _initial_events(rules, state, event, now_s)
        case StreamingList(), WatchEnded():
            error = Interrupted("the streaming list ended before its initial-events-end bookmark")
            return _streaming_list_incomplete(rules, state, error, now_s)
        case StreamingList(), DeadlineReached():
            return _no_end_bookmark(rules, state, now_s)
        case FinishingList(), ListFinished(accepted=accepted):
            return _list_finished(rules, state, now_s, accepted=accepted)
    raise AssertionError(_impossible(state, event))


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
        case OpeningWatch(), WatchOpened():
            return _watch_opened(state, now_s)
        case OpeningWatch(), RequestFailed(error=error):
            return _watch_error(rules, state.context, error, now_s)
    raise AssertionError(_impossible(state, event))


def _impossible(state: State, event: Event) -> str:
    return f"{type(event).__name__} in state {type(state).__name__}"


def needs_list_slot(state: State) -> bool:
    """True while the server is asked for a list or sends it; not while the store takes its end."""
    return isinstance(state, ListingPages | OpeningList | StreamingList)


def wants_look(state: State) -> bool:
    """Whether a small list tells something that is not known."""
    silent = isinstance(state, Watching) and state.version_check == "silent"
    return silent or state.context.look_at_s < math.inf


def begin(rules: WatchRules, context: StreamContext, goal: ListGoal | None, now_s: float) -> Step:
    """The state for `goal`, and its first request."""
    if goal is None:
        return watch_again(rules, context, now_s)
    return begin_list(rules, context, goal, now_s)


def watch_again(rules: WatchRules, context: StreamContext, now_s: float) -> Step:
    """Continue the watch from the cursor, unless a list is due."""
    if context.relist_at_s > now_s:
        proves = context.failing.proof_due(context.cursor, now_s)
        return begin_watch(rules, context, rules.rng.randint(*PROVING_WATCH_S) if proves else 0)
    fails = context.failing.fails_from(context.cursor)
    return begin_list(rules, context, replace(CONSISTENCY, past_cursor=fails), now_s)


def wait(
    context: StreamContext,
    goal: ListGoal | None,
    error: KubeError,
    until_s: float,
    *,
    wakeable: bool = False,
) -> Step:
    """Send nothing until `until_s`, and report why."""
    return Pausing(context, goal, until_s, error), (
        Deliver(Retrying(error, until_s)),
        Sleep(until_s, wakeable),
    )


def _begin_at_once(
    rules: WatchRules, context: StreamContext, goal: ListGoal | None, error: KubeError, now_s: float
) -> Step:
    """Report `error`, and begin `goal` without a delay."""
    state, commands = begin(rules, context, goal, now_s)
    return state, (Deliver(Retrying(error, None)), *commands)


# ---- lists ---------------------------------------------------------------------------------------


def begin_list(rules: WatchRules, context: StreamContext, goal: ListGoal, now_s: float) -> Step:
    """A list, streaming where the server supports it. A version is sent only together with
    NotOlderThan, or as "0"."""
    minimum = context.newest_known if context.has_state and not goal.most_recent else ""
    any_version = (
        rules.plan.list_semantic == "any" and not context.has_state and not goal.most_recent
    )
    begun = Deliver(ListBegun(goal.by_content))
    paged = any_version or goal.unbounded or goal.past_cursor
    if context.streams_lists(rules, now_s) and not paged:
        query = context.watch_query(rules, minimum, initial_events=True)
        return OpeningList(context, goal, query), (begun, OpenWatch(query))
    limit = 0 if goal.unbounded else rules.plan.page_size
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
    if not_first and isinstance(error, Expired) and not goal.unbounded:
        # The history expired between pages: one page cannot outlive it. Source: client-go
        # tools/pager.
        return _begin_at_once(rules, context, replace(goal, unbounded=True), error, now_s)
    refused = isinstance(error, Invalid) and error.about == "continue"
    if not_first and refused and goal.cause != "continue":
        return _begin_at_once(rules, context, replace(goal, cause="continue"), error, now_s)
    if (
        not_first
        and isinstance(error, Throttled)
        and not goal.watch_continues
        and state.throttled < PAGE_RETRIES
    ):
        context, delay_s = context.retry(rules, error, now_s, healthy=True)
        listing = replace(state, context=context, throttled=state.throttled + 1)
        until_s = now_s + delay_s
        pausing = Pausing(context, goal, until_s, error, listing)
        return pausing, (Deliver(Retrying(error, until_s)), Sleep(until_s))
    if goal.past_cursor and state.query.version_match and may_be_the_minimum(error):
        context, delay_s = context.retry(rules, error, now_s, healthy=False)
        return wait(context, replace(goal, most_recent=True), error, now_s + delay_s)
    one_page_from_cache = state.query.limit == 0 < rules.plan.page_size and not goal.unbounded
    if state.query.resource_version == "0":  # there the server ignores the limit
        one_page_from_cache = rules.plan.page_size > 0 and isinstance(error, Undecodable)
    # A server that throttles or cannot be reached shows nothing about the size of the list.
    tells_nothing = isinstance(error, Throttled | Unreachable)
    if one_page_from_cache and isinstance(error, Unavailable | Undecodable) and not tells_nothing:
        goal = replace(goal, most_recent=True)  # without a minimum the next list is paged
    return _list_failed(rules, context, goal, error, now_s, healthy=not_first)


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
        # a cache that has stopped at the cursor: the small list was newer
        return begin_list(rules, context, replace(goal, most_recent=True), now_s)
    if page.failures and not _skips_at_once(context, goal, now_s):
        context = context.with_undecodable_listed(now_s)
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
    return FinishingList(context, goal, version), (*commands, _finish(context, goal, version))


def _list_failed(
    rules: WatchRules, context: StreamContext, goal: ListGoal, error: KubeError, now_s: float, *,
    healthy: bool = False,
) -> Step:  # fmt: skip
    """After a failed list. Where the watch continues, the list is made later."""
    if goal.watch_continues:
        if context.relist_at_s <= now_s:
            relist_at_s = now_s + min(rules.plan.relist_interval_s, RELIST_AGAIN_S)
            context = replace(context, relist_at_s=relist_at_s)
        if isinstance(error, Expired | VersionTooLarge | Invalid | Undecodable):
            # it was the list that could not be served: the watch may well be
            context, delay_s = context.retry(rules, error, now_s, healthy=healthy)
            return wait(context, None, error, now_s + delay_s)
        return _after_error(rules, context, error, None, now_s, healthy=healthy)
    goal = replace(goal, unbounded=False)
    return _after_error(rules, context, error, goal, now_s, healthy=healthy)


def _skips_at_once(context: StreamContext, goal: ListGoal, now_s: float) -> bool:
    """Whether undecodable objects are skipped at once. Where the watch continues from its previous
    cursor, they are: such a list, once failed, is made again only after `RELIST_AGAIN_S`."""
    return goal.watch_continues or context.skips_undecodable(now_s)


def _objects(objects: list[ObjectFrame], errors: Sequence[KubeError]) -> list[Command]:
    """The commands that deliver objects of a list, and report those that are skipped: by namespace
    and name where these could be read, the others as a number."""
    about = [error.about for error in errors if isinstance(error, Undecodable)]
    damaged = tuple(each for each in about if each is not None)
    listed = ListedObjects(objects, unreadable=len(errors) - len(damaged), damaged=damaged)
    if errors:
        return [ReportSkipped(tuple(errors)), Deliver(listed)]
    return [Deliver(listed)] if objects else []


def _finish(context: StreamContext, goal: ListGoal, version: str) -> FinishList:
    return FinishList(
        ListDone(version, goal.accept_any_size, _continue_from(context, goal, version))
    )


def _continue_from(context: StreamContext, goal: ListGoal, version: str) -> str:
    """Where the watch continues after a list, "" for the list's version. With `watch_continues` it
    is the previous cursor, if older: what the watch then does not bring was missed."""
    continues = goal.watch_continues and not goal.past_cursor
    return context.cursor if continues and compare(context.cursor, version) == -1 else ""


def _list_again(
    rules: WatchRules, context: StreamContext, goal: ListGoal, minimum: str, version: str,
    now_s: float,
) -> Step | None:  # fmt: skip
    """The step after a list that must be made again: it is older than requested
    (docs/watch-facts.md 5.7), or it is the first to show that the server was restored. That
    list was to be compared by version, but a restored server may use versions twice, so another
    one is made, to be compared by content. None: the list need not be made again."""
    again = ListGoal(
        "too_old", most_recent=True, accept_any_size=goal.accept_any_size, by_content=True
    )
    if minimum and compare(version, minimum) == -1:
        error = Interrupted(
            f"the server returned resourceVersion {version}, older than the requested minimum "
            f"{minimum}"
        )
        context, delay_s = context.retry(rules, error, now_s, healthy=False)
        return wait(context, again, error, now_s + delay_s)
    if context.has_state and not goal.by_content and compare(version, context.newest_known) == -1:
        return begin_list(rules, context, replace(again, cause="restored"), now_s)
    return None


# ---- streaming lists -----------------------------------------------------------------------------


def _no_end_bookmark(rules: WatchRules, state: StreamingList, now_s: float) -> Step:
    within = f"{END_BOOKMARK_WITHIN_S:.0f} s after the newest object"
    return _streaming_list_incomplete(
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
            if not (isinstance(error, Undecodable) and _skips_at_once(context, state.goal, now_s)):
                return _streaming_list_failed(rules, replace(state, context=context), error, now_s)
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
        return _no_end_bookmark(rules, state, now_s)
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
        return _streaming_list_incomplete(rules, state, error, now_s)
    minimum = state.query.resource_version
    if another := _list_again(rules, state.context, goal, minimum, version, now_s):
        return another
    # Servers that stream lists serve consistent lists from their cache, so an early version check
    # helps from the first watch on.
    context = replace(state.context, streaming_failures=0, expects_bookmarks=True, check_early=True)
    watch = Watching(
        context, version, state.query, state.query.idle_timeout_s, state.opened_at_s,
        silent_since_s=at_s, frames_received=1, version_check="due",
    )  # fmt: skip
    return FinishingList(context, goal, version, watch, rest, at_s), (
        *commands,
        _finish(context, goal, version),
    )


def _streaming_list_failed(
    rules: WatchRules, state: OpeningList | StreamingList, error: KubeError, now_s: float
) -> Step:
    context, goal = state.context, state.goal
    healthy = isinstance(state, StreamingList) and state.any_objects
    if isinstance(error, Invalid | NotWatchable):
        # The parameters are refused (feature gate off, old server, proxy): page lists for 6 hours.
        # Source: docs/watch-facts.md 3.4.
        return _begin_at_once(rules, context.with_paged_lists(rules, now_s), goal, error, now_s)
    if isinstance(error, Undecodable):
        context = context.with_undecodable_listed(now_s)
        return _list_failed(rules, context, goal, error, now_s, healthy=healthy)
    if isinstance(error, VersionTooLarge):
        # A lagging cache may fail like this each time, though it answers paged lists: so it counts
        # as a failed streaming list. Source: k/k#139766.
        context = replace(context, streaming_failures=context.streaming_failures + 1)
        context = (
            context.with_paged_lists(rules, now_s) if context.streaming_failures >= 2 else context
        )
        return _list_failed(rules, context, goal, error, now_s)
    errors_of_paged_lists_too = (
        Forbidden | NotFound | Unauthorized | Misconfigured | NotAcceptable | Expired
    )
    unavailable = isinstance(error, Unavailable) and isinstance(state, OpeningList)
    if unavailable or isinstance(error, errors_of_paged_lists_too):
        return _list_failed(rules, context, goal, error, now_s, healthy=healthy)
    return _streaming_list_incomplete(rules, state, error, now_s)


def _streaming_list_incomplete(
    rules: WatchRules, state: OpeningList | StreamingList, error: KubeError, now_s: float
) -> Step:
    """The streaming list broke before its initial-events-end bookmark: once more, then by pages
    (client-go retries without end: k/k#140890)."""
    failures = state.context.streaming_failures + 1
    context = replace(state.context, streaming_failures=failures)
    healthy = isinstance(state, StreamingList) and state.any_objects
    if state.goal.watch_continues:
        context = context.with_paged_lists(rules, now_s) if failures >= 2 else context
        return _list_failed(rules, context, state.goal, error, now_s, healthy=healthy)
    context, delay_s = context.retry(rules, error, now_s, healthy=healthy)
    if failures >= 2:
        context = context.with_paged_lists(rules, now_s)
        if not isinstance(error, Unavailable):
            return _begin_at_once(rules, context, state.goal, error, now_s)
    return wait(context, state.goal, error, now_s + delay_s)


# ---- after a list -------------------------------------------------------------------------------


def _list_finished(
    rules: WatchRules, state: FinishingList, now_s: float, *, accepted: bool
) -> Step:
    """After an accepted list a watch from its version, or from the cursor with `watch_continues`.
    After a suspicious one another list, of the most recent state, which is then accepted
    (docs/watch-facts.md 5.8)."""
    context, goal = state.context, state.goal
    if not accepted:
        again = ListGoal(
            "suspicious", most_recent=True, accept_any_size=True, by_content=goal.by_content,
            watch_continues=goal.watch_continues, past_cursor=goal.past_cursor,
        )  # fmt: skip
        return begin_list(rules, context, again, now_s)
    continue_from = _continue_from(context, goal, state.version)
    context = replace(
        context,
        cursor=continue_from or state.version,
        has_state=True,
        held_version=state.version if continue_from else "",
        look_at_s=math.inf,
        vain_lists=context.vain_lists + 1,
        removal_reported=False,
        not_served_since_s=None,
        state_shown_at_s=now_s,
        version_rejected_at_s=now_s if context.version_rejected else context.version_rejected_at_s,
        version_rejected=False,
        relist_at_s=rules.relist_at_s(now_s),
    )
    if state.watch is None or continue_from:
        return begin_watch(rules, context)
    # nothing was read while the list waited for room in the queues
    watch = replace(state.watch, context=context, silent_since_s=now_s)
    if state.rest:
        rest = FramesReceived(list(state.rest), state.rest_at_s)
        return _frames_received(rules, watch, rest, now_s)
    return _read(watch)


# ---- watches -------------------------------------------------------------------------------------


def begin_watch(rules: WatchRules, context: StreamContext, timeout_s: int = 0) -> Step:
    """A watch from the cursor. Never from "" or "0", whose first events come in no order
    (docs/watch-facts.md 2.11). `timeout_s`: its timeout, 0 for the usual one."""
    assert watchable(context.cursor), "a watch starts at a version"
    query = context.watch_query(rules, context.cursor, timeout_s=timeout_s)
    return OpeningWatch(context, query), (OpenWatch(query),)


def _watch_opened(state: OpeningWatch, now_s: float) -> Step:
    context, query = state.context.after_success(of_watch=True), state.query
    if context.look_at_s == math.inf and now_s - context.state_shown_at_s >= CHECK_AT_OPEN_AFTER_S:
        context = replace(context, look_at_s=now_s)
    watch = Watching(
        context, context.cursor, query, query.idle_timeout_s,
        opened_at_s=now_s, silent_since_s=now_s, version_check="due",
    )  # fmt: skip
    return _look(watch, now_s) if context.look_at_s <= now_s else _read(watch)


def _read(watch: Watching) -> Step:
    return watch, (ReadWatch(watch.read_until_s),)


_ONLY_OBJECTS: frozenset[type] = frozenset({ObjectFrame})


def _frames_received(
    rules: WatchRules, state: Watching, event: FramesReceived, now_s: float
) -> Step:
    """The frames of one chunk. Its objects are delivered together; an error ends the watch."""
    frames = event.frames
    context, cursor, end, bookmark = state.context, state.cursor, None, False
    commands: list[Command] = []
    if set(map(type, frames)) == _ONLY_OBJECTS:  # the hot path: nothing to sort
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
        objects, newest, bookmark, skipped, end = _split_frames(frames, context, cursor, now_s)
        if skipped:
            context = context.with_undecodable(now_s)
            commands.append(ReportSkipped(skipped))
        if end is not None and not (objects or bookmark):
            # an error alone shows neither health nor the current state
            after, more = _watch_failed(rules, replace(state, context=context), end, now_s)
            return after, (*commands, *more)
        if bookmark and not context.bookmarks_seen:
            context = replace(context, bookmarks_seen=True)
        if bookmark and not context.expects_bookmarks:
            context = replace(context, expects_bookmarks=True)
            frozen_after_s = context.frozen_after_s(rules, state.query.timeout_s, bookmarks=True)
            state = replace(state, frozen_after_s=frozen_after_s)
        if bookmark:
            if event.at_s - state.bookmark_at_s <= SILENCE_LIMIT_S < context.silence_limit_s:
                context = replace(context, silence_limit_s=SILENCE_LIMIT_S)
            state = replace(state, bookmark_at_s=event.at_s)
    if objects:
        commands.append(Deliver(WatchedObjects(objects, event.at_s)))
    if newest != cursor or bookmark:  # also one at the cursor: it shows that the server answers
        cursor = newest
        commands.append(Deliver(CursorMoved(cursor)))
    # `FinishingList.rest` came before the store took the list: the later moment counts
    since_s = max(event.at_s, state.silent_since_s)
    state = Watching(
        context, cursor, state.query, state.frozen_after_s, state.opened_at_s, since_s,
        state.objects + len(objects), state.frames_received + len(frames), state.bookmark_at_s,
        # where bookmarks come, none is needed: without the next one it is frozen
        "" if context.bookmarks_seen else "due",
    )  # fmt: skip
    if end is not None:
        after, more = _watch_failed(rules, state, end, now_s)
        return after, (*commands, *more)
    after, more = _read_on(rules, state, now_s)
    return after, (*commands, *more)


def _read_on(rules: WatchRules, state: Watching, now_s: float) -> Step:
    """What follows the frames of a watch that goes on."""
    opened_s = now_s - state.opened_at_s
    if opened_s > state.query.timeout_s + WATCH_GRACE_S or now_s >= state.context.relist_at_s:
        # The server did not end its watch in time, or a list is due while frames keep coming.
        return watch_again(rules, _context_after(state, now_s), now_s)
    if state.context.look_at_s <= now_s:
        return _look(state, now_s)
    return state, (ReadWatch(state.read_until_s),)


def _advances(version: str, cursor: str) -> bool:
    """Whether the cursor may move to `version`. A version that is not a number never replaces a
    cursor that is one."""
    # Longer, or equally long and later in the alphabet: newer where both are numbers. Where the
    # cursor is not a number, there is no order.
    if (len(version), version) > (len(cursor), cursor) and comparable(version):
        return True
    return version != cursor and not comparable(cursor) and watchable(version)


def _split_frames(
    frames: list[Frame], context: StreamContext, cursor: str, now_s: float
) -> tuple[list[ObjectFrame], str, bool, tuple[KubeError, ...], KubeError | None]:
    """Objects, where the cursor moves to, whether a bookmark came, what was skipped, and the error
    that ended the watch."""
    objects: list[ObjectFrame] = []
    skipped: list[KubeError] = []
    newest, bookmark = cursor, False
    for frame in frames:
        match frame:
            case ObjectFrame():
                objects.append(frame)
            case Bookmark():
                bookmark = True
            case Failure(error=Undecodable() as error) if context.skips_undecodable(now_s):
                skipped.append(error)
                continue
            case Failure(error=error):
                return objects, newest, bookmark, tuple(skipped), error
        if _advances(frame.resource_version, newest):
            newest = frame.resource_version
    return objects, newest, bookmark, tuple(skipped), None


def _context_after(state: Watching, now_s: float) -> StreamContext:
    context = state.context
    return replace(
        context.after_watch(state.cursor, now_s - state.opened_at_s),
        state_shown_at_s=state.silent_since_s
        if state.frames_received
        else context.state_shown_at_s,
        frozen_watches=0 if state.objects else context.frozen_watches,
    )


def _after_no_error(state: Watching, now_s: float) -> StreamContext:
    """The context after a watch that ended otherwise than in its time."""
    context = _context_after(state, now_s)
    return context if context.cursor != state.context.cursor else context.with_failed_watch(now_s)


def _watch_ended(rules: WatchRules, state: Watching, now_s: float) -> Step:
    lived_s, (soonest_s, latest_s) = now_s - state.opened_at_s, END_IN_TIME_S
    early = lived_s < SHORT_WATCH_S
    if soonest_s <= lived_s - state.query.timeout_s <= latest_s:
        context = _context_after(state, now_s)
        context = replace(context, failing=context.failing.worked())
        after, commands = watch_again(rules, context, now_s)
        # the server's own end comes after all that it had sent
        return after, (Deliver(ServerSeen()), *commands)
    context = _after_no_error(state, now_s)
    if early and state.cursor == state.context.cursor:
        error = Interrupted("the server closed the watch at once, without an event")
        context, delay_s = context.retry(rules, error, now_s, healthy=False)
        # A line of the response over the limit is reported as an undecodable object, and the watch
        # ends. While undecodable objects are skipped, such a line shows only as a clean end, and
        # each new watch ends at the same line: only a list leads past it.
        goal = ListGoal("undecodable") if context.skips_undecodable(now_s) else None
        return wait(context, goal, error, now_s + delay_s + (context.list_pace_s if goal else 0.0))
    if early:
        again_at_s = state.opened_at_s + SHORT_WATCH_S
        return Pausing(context, None, again_at_s), (Sleep(again_at_s),)
    return _try_again(rules, context, None, now_s)


def _deadline_reached(rules: WatchRules, state: Watching, now_s: float) -> Step:
    if now_s < state.context.relist_at_s:
        silent_s, look_at_s = now_s - state.silent_since_s, state.context.look_at_s
        if now_s >= state.silent_since_s + state.frozen_after_s:
            return _watch_frozen(rules, state, now_s)
        # where no other look is due, the clock is a little early
        silent = silent_s >= state.check_after_s or look_at_s == math.inf
        if state.version_check == "due" and silent:
            return _look(replace(state, version_check="silent"), now_s)
        if look_at_s < math.inf:
            return _look(state, now_s)
    return watch_again(rules, _context_after(state, now_s), now_s)


def _look(state: Watching, now_s: float) -> Step:
    """Request a small list, and read on. The next one is due after `LOOK_AGAIN_S` at the
    soonest, unless the watch is silent."""
    context = state.context
    if context.look_at_s < math.inf:
        context = replace(context, look_at_s=now_s + LOOK_AGAIN_S)
        state = replace(state, context=context)
    query = ListQuery(limit=1, whole_objects=context.whole_objects)
    return state, (CheckVersion(query, state.read_until_s),)


def _version_checked(
    rules: WatchRules, state: Watching, event: VersionChecked, now_s: float
) -> Step:
    """What a small list beside the watch shows.

    A server whose version is lower than the cursor, or than the log's, was restored from a backup
    (docs/watch-facts.md 2.8), or the log has a record of another writer with a version to come; so
    was one whose version can be ordered while the cursor cannot. One with another history is a
    cluster built again.
    At the cursor: nothing has happened, and the silence counts from now.
    Newer or no answer, after a silence, where no watch has brought a bookmark yet: perhaps it
    concerns other objects. The watch is opened again for a moment, to see whether it lacks some.
    Newer or no answer, where bookmarks come: it stays open until its limit, as it may be frozen.
    Where newer, that becomes at least `SECOND_BOOKMARK_S` if `check_early` was not set.
    """
    context, version = state.context, event.version
    silent, after = state.version_check == "silent", _context_after(state, now_s)
    # the watch was read meanwhile, and may have come further than the list
    then = replace(after, cursor=event.cursor or after.cursor)
    if then.was_restored(version) or (event.history == "other" and context.look_at_s < math.inf):
        return begin_list(rules, after, RESTORED, now_s)
    if version:
        look_at_s = math.inf if event.history == "same" else context.look_at_s
        context = replace(context, state_shown_at_s=event.asked_at_s, look_at_s=look_at_s)
        state = replace(state, context=context)
    if version == state.cursor:
        # when it was requested: what came since may not be delivered yet
        seen = Deliver(ServerSeen(now_s - event.asked_at_s))
        context = replace(context, failing=context.failing.worked())
        check: VersionCheck = "due" if silent else state.version_check
        state = replace(state, context=context, silent_since_s=now_s, version_check=check)
        return state, (seen, ReadWatch(state.read_until_s))
    if not silent:
        return _read(state)
    if not context.bookmarks_seen:
        return begin_watch(rules, _context_after(state, now_s), BRIEF_WATCH_S)
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
        return _try_again(rules, _after_no_error(state, now_s), None, now_s)
    context, any_frames = _context_after(state, now_s), state.frames_received > 0
    return _watch_error(rules, context, error, now_s, any_frames=any_frames, lived_s=lived_s)


def _watch_frozen(rules: WatchRules, state: Watching, now_s: float) -> Step:
    """Open another watch, for the connection may be dead. If `FROZEN_WATCHES` were frozen since one
    brought an object, the server is taken for one that sends few bookmarks."""
    context = _after_no_error(state, now_s)
    frozen, limit_s = context.frozen_watches + (not state.objects), context.silence_limit_s
    if frozen >= FROZEN_WATCHES:
        longest_s = state.query.timeout_s + WATCH_GRACE_S
        frozen, limit_s = 0, max(limit_s, min(limit_s * 2, longest_s))
    context = replace(context, frozen_watches=frozen, silence_limit_s=limit_s)
    after, commands = _try_again(rules, context, None, now_s)
    if not context.bookmarks_seen:  # its check did not get its turn
        opens = isinstance(after, OpeningWatch)
        return begin_watch(rules, context, BRIEF_WATCH_S) if opens else (after, commands)
    silent_s = now_s - state.silent_since_s
    error = Interrupted(f"the watch was silent for {silent_s:.0f} s: opened again")
    return after, (Deliver(Retrying(error, None)), *commands)


# ---- watches that fail from their cursor ---------------------------------------------------------


def _watch_error(
    rules: WatchRules, context: StreamContext, error: KubeError, now_s: float, *,
    any_frames: bool = False, lived_s: float = 0.0,
) -> Step:  # fmt: skip
    """A watch from the cursor failed, or the request for it. `any_frames`: it had brought some."""
    if shows_failing_cursor(error, lived_s):
        context = context.with_failed_watch(now_s)
    return _after_error(rules, context, error, None, now_s, healthy=any_frames)


def _try_again(
    rules: WatchRules, context: StreamContext, goal: ListGoal | None, now_s: float
) -> Step:
    """As `begin`; where the watch fails from its cursor each time, do lists work?"""
    relist_due = context.relist_at_s <= now_s
    list_due = context.failing.list_due(context.cursor, now_s)
    if goal is None and list_due and not relist_due:
        query = ListQuery(limit=1, whole_objects=context.whole_objects)
        until_s = now_s + CHECK_WITHIN_S
        return CheckingLists(context), (CheckLists(query, context.cursor, until_s),)
    return begin(rules, context, goal, now_s)


def _lists_checked(
    rules: WatchRules, state: CheckingLists, event: ListsChecked, now_s: float
) -> Step:
    """Where lists work and are newer than the cursor, one list leads past it. At the cursor:
    nothing has happened."""
    context = state.context
    if context.was_restored(event.version):
        return begin_list(rules, context, RESTORED, now_s)
    if event.may_list:
        context = replace(context, failing=context.failing.listed(now_s))
        return begin_list(rules, context, FAILING, now_s)
    failing = context.failing.looked(now_s)
    if event.version == context.cursor:
        failing = failing.worked()
    after, commands = watch_again(rules, replace(context, failing=failing), now_s)
    if event.version != context.cursor:
        return after, commands
    return after, (Deliver(ServerSeen(now_s - event.asked_at_s)), *commands)


# ---- errors, by the classes of docs/watch-facts.md 6.4 -------------------------------------------


def _after_error(
    rules: WatchRules, context: StreamContext, error: KubeError, goal: ListGoal | None,
    now_s: float, *, healthy: bool,
) -> Step:  # fmt: skip
    """After an error. `goal`: the list to make again; None: the watch continues, after an error of
    a watch or of a list with `watch_continues`. `healthy`: the request had brought something, so
    the row of failures before it may be over."""
    if isinstance(error, Unreachable) and context.look_at_s == math.inf:
        context = replace(context, look_at_s=now_s)  # it may return as another cluster
    match error:
        case Expired() | VersionTooLarge() | Invalid(about="version"):
            return _version_rejected(rules, context, error, goal, now_s, healthy=healthy)
        case Undecodable():
            context = context.with_undecodable(now_s)
            if goal is None and context.undecodable >= 2:
                goal = ListGoal("undecodable")
        case NotAcceptable() if rules.plan.selection.metadata_only and not context.whole_objects:
            return _begin_at_once(rules, replace(context, whole_objects=True), goal, error, now_s)
        case NotFound():
            context, delay_s = context.retry_by_kind(rules, error, now_s)
            retry_at_s = now_s + delay_s
            shown = Hidden(context.hidden) if context.hidden else error
            return NotServed(context, goal, retry_at_s), (
                Deliver(Retrying(shown, retry_at_s)),
                CheckDiscovery(),
            )
        # not for a watch that was never allowed though a list was: its 403 is a missing right
        case Forbidden() if (context.watch_was_allowed or goal is not None) and (
            (left_s := context.forbidden_grace_s or 0.0) > 0
        ):
            return _forbidden(rules, context, error, goal, left_s, now_s)
        case Invalid(about="continue" | "streaming"):
            pass  # the form of a request was refused, not what the config selects
        case _ if isinstance(error, NOT_CURED_BY_RETRY):
            context, delay_s = context.retry_by_kind(rules, error, now_s)
            delay_s = max(delay_s, clamp_retry_after(error.retry_after_s))
            return wait(context, goal, error, now_s + delay_s, wakeable=True)
    context, delay_s = context.retry(rules, error, now_s, healthy=healthy)
    return wait(context, goal, error, now_s + delay_s)


NOT_CURED_BY_RETRY = (Forbidden, Invalid, Misconfigured, NotAcceptable, NotWatchable, Unauthorized)
"""Retried at the delays of `context.DELAYS_BY_KIND`, and logged as the error "operator action
required", except where an `Invalid` is about the form of the request. The status has another set,
`reporting.SHOWN_AS_WAITING`: with resources that are not served (logged as a warning), without
what concerns all streams."""


def _forbidden(
    rules: WatchRules,
    context: StreamContext,
    error: Forbidden,
    goal: ListGoal | None,
    left_s: float,
    now_s: float,
) -> Step:
    """A 403 for what was allowed before. Operator action is required only after
    `FORBIDDEN_GRACE_S`, of which `left_s` is left."""
    refused = TransientlyForbidden(
        f"{error.what}; it was allowed before: the API server may be starting", status=error.status
    )
    context, delay_s = context.retry_by_kind(rules, refused, now_s)
    context = replace(context, forbidden_grace_s=left_s - delay_s)
    delay_s = max(delay_s, clamp_retry_after(error.retry_after_s))
    return wait(context, goal, refused, now_s + delay_s)


def _version_rejected(
    rules: WatchRules, context: StreamContext, error: KubeError, goal: ListGoal | None,
    now_s: float, *, healthy: bool,
) -> Step:  # fmt: skip
    """The requested version cannot be served: list, after a backoff if this is `repeated`. After
    `VersionTooLarge` never sooner than after 1 s."""
    repeated = now_s - context.version_rejected_at_s <= REJECTED_AGAIN_WITHIN_S
    too_large = isinstance(error, VersionTooLarge)
    had_minimum = goal is not None and context.has_state and not goal.most_recent
    cause: ListCause = "version_too_large" if too_large else "expired"
    if isinstance(error, Invalid):
        cause = "version_refused"
    relist = ListGoal(
        cause,
        # only after a first 410 of a watch: the newest known version, as the minimum, will do
        most_recent=goal is not None or repeated or cause != "expired",
        accept_any_size=goal is not None and goal.accept_any_size,
        by_content=too_large or (goal is not None and goal.by_content),
    )
    context = replace(context, version_rejected_at_s=now_s, version_rejected=True)
    # a list with a minimum is not repeated as it was: the next one has none
    if (repeated or goal is not None) and not had_minimum:
        context, delay_s = context.retry(rules, error, now_s, healthy=healthy)
        return wait(context, relist, error, now_s + max(delay_s, 1.0 if too_large else 0.0))
    if too_large:
        delay_s = clamp_retry_after(error.retry_after_s) or 1.0
        return wait(context, relist, error, now_s + delay_s)
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
    returned = ListGoal("returned", most_recent=True)
    match availability.state:
        case "gone":
            goal = returned
            since_s = now_s if context.not_served_since_s is None else context.not_served_since_s
            context = replace(context, hidden="", not_served_since_s=since_s)
            if now_s - since_s >= NOT_SERVED_CONFIRM_S and not context.removal_reported:
                delivered = (Deliver(ResourceRemoved()),)
                context = replace(context, removal_reported=True, has_state=False, cursor="")
        case "hidden":
            if context.hidden != availability.reason:
                delivered = (Deliver(Retrying(Hidden(availability.reason), retry_at_s)),)
            context = replace(context, hidden=availability.reason, not_served_since_s=None)
        case "served":
            gone, context = context.not_served_since_s, replace(context, hidden="")
            if gone is not None:
                return begin_list(rules, replace(context, not_served_since_s=None), returned, now_s)
    sleep = Sleep(min(retry_at_s, now_s + CHECK_DISCOVERY_S), wakeable=True)
    return NotServed(context, goal, retry_at_s), (*delivered, sleep)
