"""The states of a stream's watch, and what a list is made for. Pure.

Each state says what is awaited: `machine.py` has the step that follows it. `context` is what
outlives the state.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from watchrelay.core.errors import KubeError
from watchrelay.model.frames import Frame, ListQuery, WatchQuery
from watchrelay.model.watch_output import ListDone
from watchrelay.watch.context import StreamContext
from watchrelay.watch.pages import Pages

VERSION_CHECK_AFTER_S = 65.0
"""When a watch has sent nothing for this long since its opening, or since the initial events of a
streaming list, its silence is checked before it counts as frozen: a small list requests the current
resourceVersion. Reason: a watch opened at a version brings no bookmark before the server's cache
has passed that version, which takes minutes where nothing changes; the list makes the cache catch
up. Source: docs/watch-facts.md 0, D8."""
VERSION_CHECK_EARLY_S = 50.0
"""The same with `StreamContext.check_early`: the check makes the server's cache catch up, so
that the bookmark due after 60 s comes."""

ListCause = Literal[
    "first", "expired", "version_too_large", "undecodable", "suspicious", "consistency", "restored",
    "too_old", "returned", "version_refused", "recovered", "continue", "failing",
]  # fmt: skip
"""Why a list is made, a field of the log line. `expired`: the history is lost (410).
`version_too_large`: the server does not have our version yet. `version_refused`: it did not accept
the version of the request. `undecodable`: an object of the watch could not be decoded.
`suspicious`: the last list lost most objects. `consistency`: `relistInterval` has passed; the list
checks for missed changes. `restored`: the server was restored from a backup, or is that of a
cluster which was rebuilt under the same name. `too_old`: the last list was older than requested, as
from a stale cache. `returned`: the resource is served again. `recovered`: the state that was read
back from the log is compared with the current one. `continue`: the server refused the continue
token of a page. `failing`: the watch fails from its cursor each time, and lists work."""


class ListGoal(msgspec.Struct, frozen=True):
    """What a list is made for. Where a state has None in its place, the watch continues from the
    cursor, without a list.

    `state`: which state the list must show.
      "not_older": one that is not older than ours.
      "most_recent": the server's most recent one, also where it is older than ours.
      "restored": the same, and the store compares objects by content: the server went back, so it
      may have used versions twice.
    `watch`: what is known of the watch meanwhile.
      "lost": it cannot continue. The list is made until one is complete; a watch from its version
      follows.
      "works": nothing is wrong with it. After the list, complete or failed, it continues from its
      cursor; what the list found and the watch then does not bring was missed.
      "fails": it fails from its cursor each time. A watch from the version of the complete list
      follows; after a failed one it continues from its cursor. Such a list is paged, as the small
      list was that showed that lists work.
    `in_one_page`: because the history expired between pages. `accept_any_size`: this list confirms
    a suspicious one, so the store accepts it however many objects it lacks.
    """

    cause: ListCause
    state: Literal["not_older", "most_recent", "restored"] = "not_older"
    watch: Literal["lost", "works", "fails"] = "lost"
    in_one_page: bool = False
    accept_any_size: bool = False


CONSISTENCY = ListGoal("consistency", "most_recent", watch="works")
RESTORED = ListGoal("restored", "restored")
FAILING = ListGoal("failing", watch="fails")


class Pausing(msgspec.Struct, frozen=True):
    """No request is sent before `until_s`: to spread requests, or because a watch ended early."""

    context: StreamContext
    goal: ListGoal | None
    until_s: float


class BackingOff(msgspec.Struct, frozen=True):
    """No request is sent before `until_s`, because of `error`; where the sleep is wakeable,
    `Watcher.recheck()` ends it."""

    context: StreamContext
    goal: ListGoal | None
    until_s: float
    error: KubeError


class ListingPages(msgspec.Struct, frozen=True):
    """The request for a page of a list, `query`, is in flight. `version`: that of the list, ""
    before the first page. `throttled`: how often this page was. `pages`: those that have come."""

    context: StreamContext
    goal: ListGoal
    query: ListQuery
    version: str = ""
    throttled: int = 0
    pages: Pages = Pages()


class RetryingPage(msgspec.Struct, frozen=True):
    """A page after the first was throttled: it is requested again at `until_s`, by the state
    `listing`."""

    listing: ListingPages
    until_s: float

    @property
    def context(self) -> StreamContext:
        """That of the list."""
        return self.listing.context


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
    """A list is complete; whether the store accepts it, as `done`, is awaited. `watch`: the
    streaming list continues as this watch, with the frames `rest`, which came at `rest_at_s`."""

    context: StreamContext
    goal: ListGoal
    done: ListDone
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
"""The version check of a silence. "": none is made. "due": one is made unless a frame comes before.
"silent": it is being made, and no frame has come. "checked": it was made, and showed no version, or
another than the cursor."""


class Watching(msgspec.Struct, frozen=True):
    """A watch is open.

    `cursor` is the version up to which all was delivered; `context.cursor` stays that from which
    the watch was opened, and moves when it ends. After `frozen_after_s` of silence the watch counts
    as frozen; only a version check makes that longer. A watch is read several times: the loop ends
    a read at `read_until_s`, the client a silent one after `query.idle_timeout_s`, counted from the
    read's start or its newest bytes.

    `silent_since_s` is when the newest frame came, when the watch was opened, when the store took
    the streaming list that it continues, or when a check showed that nothing was missed.
    `any_frames`, `any_objects`: whether some came; the newest bookmark came at `bookmark_at_s`.
    Beside the version check of the silence one of the history is due at
    `context.history_check_at_s`.
    """

    context: StreamContext
    cursor: str
    query: WatchQuery
    frozen_after_s: float
    opened_at_s: float
    silent_since_s: float
    any_frames: bool = False
    any_objects: bool = False
    bookmark_at_s: float = -math.inf
    version_check: VersionCheck = ""

    @property
    def read_until_s(self) -> float:
        """When a read must end, also for a list that is due."""
        silent_s, context = self.frozen_after_s, self.context
        if self.version_check == "due":
            silent_s = min(silent_s, self.check_after_s)
        return min(self.silent_since_s + silent_s, context.relist_at_s, context.history_check_at_s)

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
    Pausing | BackingOff | ListingPages | RetryingPage | OpeningList | StreamingList | FinishingList
    | CheckingLists | OpeningWatch | Watching | NotServed
)  # fmt: skip


def keeps_list_slot(state: State) -> bool:
    """Whether the server is asked for a list or sends it; not while the store takes its end.

    A list whose pages are all empty, which may be without end, waits for a slot again before each
    page, after the lists that wait already."""
    if isinstance(state, ListingPages):
        return not state.pages.all_empty
    return isinstance(state, OpeningList | StreamingList)


def list_due(state: State) -> bool:
    """Whether a list is due or under way. One that failed is due still, unless the watch goes on
    without it."""
    if isinstance(state, Pausing | BackingOff | NotServed):
        return state.goal is not None
    return not isinstance(state, Watching | OpeningWatch | CheckingLists)


def wants_version_check(state: State) -> bool:
    """Whether a version check tells something that is not known."""
    silent = isinstance(state, Watching) and state.version_check == "silent"
    return silent or state.context.history_check_at_s < math.inf
