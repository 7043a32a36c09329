"""The words of the watch machine: states, what happens to them, what they ask for.

Room: watch. In: nothing. Out: frozen values; `machine.py` steps through them, `loop.py` performs
the commands. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import KubeError
from watchrelay.model.frames import Frame, ListQuery, Page, WatchQuery
from watchrelay.model.watch_events import ListDone, Watched

Cause = Literal[
    "first",
    "expired",
    "behind",
    "undecodable",
    "implausible",
    "consistency",
    "restored",
    "returned",
    "refused",
    "resumed",
    "continue",
]
"""Why a list is made: said in the log."""

# ---- what comes next -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToList:
    """Make a list. `quorum`: name no version, the newest state counts, also one older than ours.

    `unbounded`: in one page, for the history ran out between pages. `confirmed`: whatever it says
    is believed. `by_content`: the server went back, so versions may have been given twice.
    """

    cause: Cause
    quorum: bool = False
    unbounded: bool = False
    confirmed: bool = False
    by_content: bool = False


@dataclass(frozen=True, slots=True)
class ToWatch:
    """Open a watch at the cursor."""


@dataclass(frozen=True, slots=True)
class ToProbe:
    """Ask whether the server's present is behind our cursor, then watch. Source: WATCH 2.8."""


Next = ToList | ToWatch | ToProbe

_FRESH = Backoff()

VOUCH_AFTER_S = 65.0
VOUCH_EARLY_S = 50.0
"""A watch that was opened at a version brings no bookmark before the server's cache has passed that
version, which on an idle resource takes minutes. So when the first one is missing, the server's
present is asked for before the watch is thought frozen. That list makes the cache catch up: where a
bookmark was missing once, it is made in time for the next watch's first, after 60 s. Source: WATCH
0, D8."""
SECOND_BOOKMARK_S = 130.0
FORBIDDEN_GRACE_S = 30.0
"""A 403 for what was allowed before is retried quickly for this long: while an API server starts,
its RBAC caches are empty."""

# ---- what outlives a request ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """What the stream knows, whatever it does. Units: `*_s` are monotonic moments but for
    `deadline_s`.

    `cursor`: the version the next watch starts from; it is put here only by a state whose events
    were all taken. `complete`: a list was completed (or a cursor handed in), so relists may say
    "not older than". `floor`: a version that was published already, so that no list may show less;
    "" for none. `slow`: the delays of a failure that only a person or the cluster can mend, and
    which failure that is. `watched`: the server accepted a watch once, of this process or of the
    one that wrote the log. `grace_s`: how much longer a 403 is retried quickly: `FORBIDDEN_GRACE_S`
    since the last request that was allowed, less the delays since; 0 where none ever was.
    `strikes`: undecodable things in a row: reconnect, list again, then skip them (WATCH 6.4 class
    L). `late`: a watch's first bookmark was missing while the server lived, or the server is of
    those where that is to be expected. `misses`: streaming lists that did not reach their end mark.
    """

    cursor: str = ""
    floor: str = ""
    complete: bool = False
    backoff: Backoff = _FRESH
    slow: Backoff = _FRESH
    slow_reason: str = ""
    watched: bool = False
    grace_s: float = 0.0
    setback_s: float = -math.inf
    setback_listed: bool = False
    strikes: int = 0
    struck_s: float = -math.inf
    misses: int = 0
    barred_until_s: float = -math.inf
    barred_version: tuple[int, int] | None = None
    plain: bool = False
    bookmarked: bool = False
    late: bool = False
    deadline_s: float = 70.0
    quiet_stalls: int = 0
    heard_s: float = -math.inf
    absent_s: float | None = None
    gone: bool = False
    relist_due_s: float = math.inf


# ---- states --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listing:
    """A paged list: the request for page `page` is out."""

    held: Held
    goal: ToList
    asked: str
    limit: int
    page: int = 1
    token: str = ""
    version: str = ""
    count: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class Streaming:
    """A streaming list: a watch whose initial events have not ended. `added_s` is when the newest
    came (or it was opened)."""

    held: Held
    goal: ToList
    asked: str
    timeout_s: int
    idle_s: float
    opened_s: float | None = None
    added_s: float = 0.0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Settling:
    """A list is complete and was handed over; the answer is awaited. `watch`: the streaming list
    goes on as this watch."""

    held: Held
    goal: ToList
    version: str
    watch: Watching | None = None
    rest: tuple[Frame, ...] = ()
    rest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Watching:
    """A watch is open, or its request is out (`opened_s` None).

    `cursor` is everything taken so far; `objects` counts what came; `heard_s` is when the newest
    line came (or it was opened); `idle_s` is how long silence is believed, `asked_idle_s` how long
    the source was told to believe it when the watch was opened: where that is no longer, reads need
    no deadline of ours. `vouch`: before the first line (of a streaming list: the first behind its
    end mark) of a watch that should bring bookmarks, the server's present is asked for ("due"), and
    then silence is believed to `idle_s` and no longer ("asked").
    """

    held: Held
    cursor: str
    timeout_s: int
    idle_s: float
    asked_idle_s: float
    opened_s: float | None = None
    heard_s: float = 0.0
    objects: int = 0
    lines: int = 0
    vouch: Literal["", "due", "asked"] = ""

    @property
    def due_s(self) -> float:
        """When a read must end; infinity where the source sees to it."""
        if self.vouch == "due":
            silent_s = self.heard_s + (VOUCH_EARLY_S if self.held.late else VOUCH_AFTER_S)
        else:
            silent_s = (
                self.heard_s + self.idle_s
                if self.vouch or self.idle_s < self.asked_idle_s
                else math.inf
            )
        return min(silent_s, self.held.relist_due_s)


@dataclass(frozen=True, slots=True)
class Probing:
    """A list of one object is out, only for the server's present version."""

    held: Held


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing is asked before `until_s`. `error` is why (None: spreading out at start); `slow`: a
    person or the cluster must act."""

    held: Held
    then: Next
    until_s: float
    error: KubeError | None = None
    slow: bool = False


@dataclass(frozen=True, slots=True)
class Absent:
    """The collection answered 404. `asking`: discovery is being asked; else asleep until it is
    asked again, or `retry_s`."""

    held: Held
    then: Next
    retry_s: float
    error: KubeError
    asking: bool


State = Listing | Streaming | Settling | Watching | Probing | Waiting | Absent

# ---- events --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """The server accepted the watch."""


@dataclass(slots=True)
class Received:
    """The frames of one chunk, never none; `at_s` is when it came."""

    frames: list[Frame]
    at_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The server ended the watch as it should."""


@dataclass(frozen=True, slots=True)
class Due:
    """The moment that a read was bounded by has come."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The request, or the stream it opened, failed."""

    error: KubeError


@dataclass(frozen=True, slots=True)
class Arrived:
    """A page of a list."""

    page: Page


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the list that was handed over is believed."""

    believed: bool


@dataclass(frozen=True, slots=True)
class Woke:
    """The sleep is over; `rechecked`: someone knows that it is worth trying now."""

    rechecked: bool = False


@dataclass(frozen=True, slots=True)
class Answered:
    """Whether discovery knows the resource; None when it cannot say."""

    served: bool | None


@dataclass(frozen=True, slots=True)
class Vouched:
    """The server's present version, asked for beside an open watch; "" when there was no answer."""

    version: str


Event = Opened | Received | Ended | Due | Failed | Arrived | Verdict | Woke | Answered | Vouched

# ---- commands: any number of `Deliver` and `Skipped`, then exactly one action whose result is the


@dataclass(slots=True)
class Deliver:
    """Hand `event` over, and wait until it is taken."""

    event: Watched


@dataclass(frozen=True, slots=True)
class Skipped:
    """Count and say aloud what could not be decoded and is passed over."""

    errors: tuple[KubeError, ...]


@dataclass(frozen=True, slots=True)
class FetchPage:
    """Ask for a page -> `Arrived`, `Failed`."""

    query: ListQuery


@dataclass(frozen=True, slots=True)
class OpenWatch:
    """Open a watch -> `Opened`, `Failed`."""

    query: WatchQuery


@dataclass(slots=True)
class Read:
    """Read the open watch until `until_s` -> `Received`, `Ended`, `Due`, `Failed`. Any other action
    but `Settle` and `Vouch` closes it."""

    until_s: float


@dataclass(frozen=True, slots=True)
class Vouch:
    """Ask for the server's present version until `until_s`, while the watch stays open ->
    `Vouched`."""

    query: ListQuery
    until_s: float


@dataclass(frozen=True, slots=True)
class Settle:
    """Hand the end of a list over -> `Verdict`."""

    event: ListDone


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait until `until_s`, or, if `wakeable`, until `recheck()` -> `Woke`."""

    until_s: float
    wakeable: bool = False


@dataclass(frozen=True, slots=True)
class AskServed:
    """Ask discovery whether the resource is served -> `Answered`."""


Action = FetchPage | OpenWatch | Read | Vouch | Settle | Sleep | AskServed
Command = Deliver | Skipped | Action
Step = tuple[State, tuple[Command, ...]]
