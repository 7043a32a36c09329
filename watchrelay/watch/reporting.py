"""What a stream's watch says about itself: status, metrics and logs, from the machine's
transitions.

Room: watch. In: states, events, requests, as the loop sees them. Out: `StreamStatus`,
`StreamMetrics`, one log line per transition.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter

from watchrelay.core import clock
from watchrelay.core.errors import (
    Expired,
    Forbidden,
    Invalid,
    KubeError,
    Misconfigured,
    NotAcceptable,
    NotFound,
    NotWatchable,
    Unauthorized,
    Undecodable,
)
from watchrelay.core.text import short
from watchrelay.model.frames import Bookmark, Failure, Frame, ObjectFrame
from watchrelay.model.watch_events import (
    Gone,
    ListBegun,
    Listed,
    Observed,
    Progressed,
    Troubled,
    Watched,
)
from watchrelay.observe.loglimit import LogLimit
from watchrelay.observe.metrics import StreamMetrics
from watchrelay.observe.status import State, StreamStatus
from watchrelay.watch import states as machine
from watchrelay.watch.errors import is_resuming

log = logging.getLogger(__name__)

STAMP_EVERY_MS = 50
"""The two gauges of time are set at most so often: a set costs more than counting a batch."""

_FOR_A_PERSON = (Forbidden, Invalid, Misconfigured, NotAcceptable, NotWatchable, Unauthorized)
_WAITED_FOR = (Forbidden, Invalid, NotAcceptable, NotFound, NotWatchable)
"""What `waiting` means: the resource, or the right to it, or an entry of the config, is missing."""


_AWAY = ("backoff", "waiting")


class Journal:
    """The visible side of one watcher. Shape: `objects_listed` is what the newest complete list
    held."""

    def __init__(self, stream: str, metrics: StreamMetrics, status: StreamStatus) -> None:
        self._stream = stream
        self._metrics = metrics
        self._status = status
        self._said: str | None = None
        self._troubled = False
        self._list_began_s: float | None = None
        self._started = False
        self._state: machine.State | None = None
        self._stamped_ms = 0
        self._passed_over = LogLimit()
        self.objects_listed = 0

    # ---- the machine's transitions ---------------------------------------------------------------

    def began(self, state: machine.State) -> None:
        """The watcher starts."""
        self._state, self._status.list_due = state, _wants_list(state)
        self._show(self._public(state))

    def stepped(
        self, before: machine.State, event: machine.Event, after: machine.State, now_s: float
    ) -> None:
        """A step that was not merely frames of a watch."""
        self._state, self._status.list_due = after, _wants_list(after)
        if isinstance(before, machine.Listing | machine.Streaming) and not _goes_on(
            before, event, after
        ):
            self._list_broke(event)
        match event:
            case machine.Failed(error=error):
                self._failed(before, error)
            case machine.Verdict(believed=True):
                self._listed(now_s)
            case machine.Ended():
                self._ended(before, now_s)
            case machine.Due() if _left(after):
                self._metrics.watch_ends_total[
                    "error" if isinstance(before, machine.Streaming) else "timeout"
                ].inc()
            case machine.Received(frames=frames) if _left(after):
                self._metrics.watch_ends_total["gone" if _says_expired(frames) else "error"].inc()
            case _:
                pass
        if isinstance(
            event, machine.Arrived | machine.Opened | machine.Received
        ) and not isinstance(after, machine.Waiting | machine.Absent):
            self._progressed(proven=not isinstance(event, machine.Opened))
        self._show(self._public(after))

    def _failed(self, before: machine.State, error: KubeError) -> None:
        if isinstance(before, machine.Watching | machine.Streaming) and before.opened_s is not None:
            self._metrics.watch_ends_total["gone" if isinstance(error, Expired) else "error"].inc()
            log.debug("watch ended", extra={"stream": self._stream, "reason": error.reason})

    def _list_broke(self, event: machine.Event) -> None:
        if isinstance(event, machine.Failed):
            expired = isinstance(event.error, Expired)
        else:
            expired = isinstance(event, machine.Received) and _says_expired(event.frames)
        self._metrics.list_total["expired" if expired else "error"].inc()
        self._list_began_s = None

    def _ended(self, before: machine.State, now_s: float) -> None:
        lived_s, timely = 0.0, False
        if isinstance(before, machine.Watching | machine.Streaming) and before.opened_s is not None:
            lived_s = now_s - before.opened_s
            timely = isinstance(before, machine.Watching) and lived_s >= before.timeout_s - 1
        self._metrics.watch_ends_total["timeout" if timely else "eof"].inc()
        log.debug(
            "watch ended",
            extra={
                "stream": self._stream,
                "reason": "timeout" if timely else "eof",
                "lived_s": round(lived_s, 3),
            },
        )

    def _listed(self, now_s: float) -> None:
        self.objects_listed = self._status.listed
        self._metrics.list_total["success"].inc()
        self._metrics.list_objects.set(self._status.listed)
        if self._list_began_s is not None:
            self._metrics.list_duration_seconds.observe(now_s - self._list_began_s)
            self._list_began_s = None

    def _public(self, state: machine.State) -> State:
        match state:
            case machine.Listing() | machine.Streaming() | machine.Settling():
                return "listing"
            case machine.Probing():
                return "watching" if self._started else "resuming"
            case machine.Watching(opened_s=None) if self._status.state in _AWAY:
                return self._status.state  # an attempt is out; it may fail like those before it
            case machine.Watching(opened_s=opened_s):
                self._started = self._started or opened_s is not None
                return "watching" if self._started else "resuming"
            case machine.Waiting(error=None, then=then):
                return (
                    "listing"
                    if not is_resuming(then)
                    else "watching"
                    if self._started
                    else "resuming"
                )
            case machine.Waiting(error=error):
                return "waiting" if isinstance(error, _WAITED_FOR) else "backoff"
            case machine.Absent():
                return "waiting"

    def _show(self, state: State) -> None:
        status = self._status
        if status.state == state:
            return
        extra: dict[str, object] = {"stream": self._stream, "state": state, "was": status.state}
        if isinstance(self._state, machine.Listing | machine.Streaming):
            extra |= {
                "because": self._state.goal.cause,
                "mode": "pages" if isinstance(self._state, machine.Listing) else "stream",
            }
        status.state = state
        log.info("stream changed state", extra=extra)

    def stopped(self) -> None:
        """The watcher ends."""
        self._metrics.watch_active.set(0)
        self._show("stopped")

    # ---- requests --------------------------------------------------------------------------------

    def requesting(self, *, streaming: bool, listing: bool) -> None:
        """A request goes out."""
        if listing and self._list_began_s is None:
            self._list_began_s = asyncio.get_running_loop().time()
        if not listing or streaming:
            log.debug(
                "watch is being opened", extra={"stream": self._stream, "streaming": streaming}
            )

    def opened(self, *, streaming: bool) -> None:
        """The server accepted a watch."""
        self._metrics.watch_starts_total["watchlist" if streaming else "watch"].inc()
        self._metrics.watch_active.set(1)

    def closed(self) -> None:
        """The open watch was closed."""
        self._metrics.watch_active.set(0)

    def held_back(self, until_s: float) -> None:
        """The gate is closed to us."""
        self._status.next_attempt_ms = None if until_s == math.inf else _wall_ms(until_s)
        self._show("backoff")

    def let_through(self) -> None:
        """The gate let us pass."""
        if self._state is not None and self._status.state == "backoff":
            self._show(self._public(self._state))

    # ---- what goes by ----------------------------------------------------------------------------

    def received(self, frames: list[Frame]) -> None:
        """Count one chunk's frames."""
        counts = Counter(map(_kind, frames))
        for kind, count in counts.items():
            self._metrics.events_received_total[kind].inc(count)
        now_ms = clock.wall_ms()
        if "BOOKMARK" in counts:
            self._status.last_bookmark_ms = now_ms
        if len(counts) > 1 or "BOOKMARK" not in counts:
            self._status.last_event_ms = now_ms
            self._status.event_rate.count(
                now_ms, len(frames) - counts["BOOKMARK"] - counts["ERROR"]
            )
        if now_ms - self._stamped_ms >= STAMP_EVERY_MS:
            self._stamped_ms = now_ms
            self._metrics.last_heard_timestamp_seconds.set(now_ms / 1000)
            if self._status.last_event_ms is not None:
                self._metrics.last_event_timestamp_seconds.set(self._status.last_event_ms / 1000)

    def delivering(self, event: Watched) -> None:
        """An event is about to be handed over."""
        match event:
            case Observed() | Progressed():
                return
            case ListBegun():
                self._status.listed = 0
            case Listed(objects=objects):
                self._status.listed += len(objects)
            case Troubled():
                self._trouble(event)
            case Gone():
                log.warning(
                    "resource is gone, its objects are removed", extra={"stream": self._stream}
                )
            case _:
                pass

    def skipped(self, errors: tuple[KubeError, ...]) -> None:
        """What could not be decoded was passed over: the rest flows on, and a person should
        look."""
        self._metrics.events_filtered_total["quarantined"].inc(len(errors))
        now_s = asyncio.get_running_loop().time()
        for error in errors:
            about = error.about if isinstance(error, Undecodable) else None
            named = "" if about is None else short("/".join(about))
            if count := self._passed_over.due((named, str(error)), now_s):
                extra = {
                    "stream": self._stream,
                    "object": named,
                    "error": str(error),
                    "count": count,
                }
                log.error("undecodable object passed over", extra=extra)

    def _trouble(self, event: Troubled) -> None:
        error, status = event.error, self._status
        at_once = event.retry_at_s is None
        if at_once and isinstance(error, Expired):
            log.info(
                "history expired, listing again",
                extra={"stream": self._stream, "error": str(error)},
            )
            return
        next_ms = None if event.retry_at_s is None else _wall_ms(event.retry_at_s)
        status.failed(str(error), next_attempt_ms=next_ms, cause=error.cause)
        self._troubled = True
        if isinstance(error, _WAITED_FOR) and not at_once:
            status.wait_for("watch", str(error), error.cause)
        else:
            status.end_wait("watch")
        level = (
            logging.ERROR if isinstance(error, _FOR_A_PERSON) and not at_once else logging.WARNING
        )
        if error.reason == self._said:
            level = logging.DEBUG
        self._said = error.reason
        retry_in_s = (
            0.0
            if event.retry_at_s is None
            else round(event.retry_at_s - asyncio.get_running_loop().time(), 3)
        )
        extra = {
            "stream": self._stream,
            "error": str(error),
            "reason": error.reason,
            "retry_in_s": retry_in_s,
        }
        log.log(
            level,
            "stream needs a person, trying on"
            if level == logging.ERROR
            else "stream in trouble, trying again",
            extra=extra,
        )

    def _progressed(self, *, proven: bool) -> None:
        """Something worked. `proven`: data came, so that the same trouble later is news again."""
        if proven:
            self._said = None
        if self._troubled:
            self._troubled = False
            self._status.end_wait("watch")
            self._status.progressed()


def _goes_on(
    before: machine.Listing | machine.Streaming, event: machine.Event, after: machine.State
) -> bool:
    """True when `event` brought a list on, or to its end."""
    if isinstance(event, machine.Failed | machine.Ended | machine.Due):
        return False
    if isinstance(before, machine.Streaming) and isinstance(after, machine.Streaming):
        return before.opened_s is None or after.opened_s is not None
    return isinstance(after, machine.Settling) or type(after) is type(before)


def _wants_list(state: machine.State) -> bool:
    """True until a list is complete, however often it fails."""
    if isinstance(state, machine.Waiting | machine.Absent):
        return not is_resuming(state.then)
    return not isinstance(state, machine.Watching | machine.Probing)


def _kind(frame: Frame) -> str:
    return (
        frame.type
        if type(frame) is ObjectFrame
        else "BOOKMARK"
        if type(frame) is Bookmark
        else "ERROR"
    )


def _left(after: machine.State) -> bool:
    """True when what follows frames is not the watch that they came from. A streaming list not
    opened yet is another one."""
    if isinstance(after, machine.Watching | machine.Streaming):
        return after.opened_s is None
    return not isinstance(after, machine.Settling)


def _says_expired(frames: list[Frame]) -> bool:
    return any(isinstance(frame, Failure) and isinstance(frame.error, Expired) for frame in frames)


def _wall_ms(at_s: float) -> int:
    return clock.wall_ms() + int(1000 * max(0.0, at_s - asyncio.get_running_loop().time()))
