"""Status, metrics and log lines of one stream's watch, from the steps of its machine."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Literal

from watchrelay.core import clock
from watchrelay.core.errors import (
    Expired,
    Forbidden,
    Invalid,
    KubeError,
    NotAcceptable,
    NotFound,
    NotWatchable,
    Undecodable,
)
from watchrelay.core.text import short
from watchrelay.model.frames import Bookmark, Frame, ObjectFrame
from watchrelay.model.progress import State, StreamProgress
from watchrelay.model.watch_output import (
    ListBegun,
    ListedObjects,
    ResourceRemoved,
    ServerSeen,
    WatchOutput,
)
from watchrelay.observe.loglimit import LINE_EVERY_S, LogLimit
from watchrelay.observe.metrics import StreamMetrics
from watchrelay.observe.status import StreamStatus
from watchrelay.watch import machine, messages, states

log = logging.getLogger(__name__)

# Two labels of metrics are older than the words of the code, and stay: "gone" of `watch_ends_total`
# is the history that has expired, "quarantined" of `events_filtered_total` an undecodable object
# that is skipped.

GAUGE_INTERVAL_MS = 50
"""The two timestamp gauges are set at most this often: setting a gauge costs more than counting a
batch."""

SHOWN_AS_WAITING = (Forbidden, Invalid, NotAcceptable, NotFound, NotWatchable)
"""Errors shown as `waiting`, and as trouble that only an operator can end: the resource, the
permission for it, or a valid entry of the config is missing. What concerns all streams
(`Misconfigured`, `Unauthorized`) is shown as `backoff`, as is every other error of the state
`BackingOff`. The log level has another set, `machine.NOT_CURED_BY_RETRY`."""

_STATES_AFTER_FAILURE = ("backoff", "waiting")
"""They stay shown while the next attempt opens a watch."""


class WatchReporter:
    """Reports one watcher. `objects_listed` is the size of the newest complete list."""

    def __init__(
        self, stream: str, metrics: StreamMetrics, status: StreamStatus, progress: StreamProgress
    ) -> None:
        self._stream = stream
        self._metrics = metrics
        self._status, self._progress = status, progress
        self._last_event_ms = self._objects = 0
        self._last_logged_reason: str | None = None
        self._list_under_way = False
        """A list is under way; its first request was sent at `_list_began_at_s`."""
        self._list_began_at_s: float | None = None
        self._has_watched = self._logged_silent = False
        self._state: states.State | None = None
        self._gauges_at_ms = 0
        self._log_limit = LogLimit()
        self.objects_listed = 0

    # ---- steps -----------------------------------------------------------------------------------

    def stepped(self, state: states.State, event: messages.Event | None = None) -> None:
        """`event` led to `state`; None: the watch begins. Not called for frames between two
        `Watching` states."""
        self._state, self._progress.list_due = state, states.list_due(state)
        self._has_watched = self._has_watched or isinstance(state, states.Watching)
        if isinstance(event, messages.PageReceived):
            self._server_sent(clock.wall_ms())
        if isinstance(event, messages.ListFinished):
            self._list_ended("success" if event.accepted else "error")
        failed = isinstance(state, states.BackingOff | states.NotServed)
        brought = isinstance(event, messages.PageReceived | messages.FramesReceived)
        if brought and not failed:
            self._last_logged_reason = None  # the same error is logged again
        if (brought or isinstance(event, messages.WatchOpened)) and not failed:
            self._status.recovered("watch")
        self._show_state(self._status_state(state))

    def report(self, report: messages.Report) -> None:
        """What the step reports beside its state."""
        match report:
            case messages.Retrying():
                if self._list_under_way and not report.list_goes_on:
                    self._list_ended("expired" if isinstance(report.error, Expired) else "error")
                self._retrying(report)
            case messages.Skipped(errors=errors):
                self.skipped(errors)
            case messages.WatchClosed():
                self._watch_closed(report)

    def _watch_closed(self, closed: messages.WatchClosed) -> None:
        self._metrics.watch_ends_total[closed.reason].inc()
        if closed.reason == "silent" and not self._logged_silent:
            self._logged_silent = True
            silent = {"stream": self._stream}
            log.info("no bookmarks come; a silent watch is checked once a minute", extra=silent)
        # after a watch that lived long enough, the next error is a warning even if it is the same
        # as the last one; not while a proxy cuts each watch after a moment
        worked = closed.any_frames or closed.reason == "timeout"
        if worked and closed.lived_s >= LINE_EVERY_S:
            self._last_logged_reason = None
        lived_s = round(closed.lived_s, 3)
        extra = {"stream": self._stream, "reason": closed.reason, "lived_s": lived_s}
        log.debug("watch ended", extra=extra)

    def _list_ended(self, result: Literal["success", "expired", "error"]) -> None:
        self._metrics.list_total[result].inc()
        self._list_under_way = False
        if result == "success":
            self.objects_listed = self._objects
            self._metrics.list_objects.set(self._objects)
            if self._list_began_at_s is not None:
                took_s = asyncio.get_running_loop().time() - self._list_began_at_s
                self._metrics.list_duration_seconds.observe(took_s)

    def _status_state(self, state: states.State) -> State:
        match state:
            case states.CheckingLists():
                return self._progress.state
            case states.OpeningWatch() if self._progress.state in _STATES_AFTER_FAILURE:
                return self._progress.state  # this attempt may fail like those before it
            case states.Watching():
                return "watching"
            case states.OpeningWatch() | states.Pausing(goal=None):
                return "watching" if self._has_watched else "resuming"
            case states.BackingOff(error=error):
                return "waiting" if _is_lasting(error, SHOWN_AS_WAITING) else "backoff"
            case states.RetryingPage():
                return "backoff"
            case states.NotServed():
                return "waiting"
            case _:
                return "listing"

    def _show_state(self, state: State) -> None:
        was = self._progress.state
        if state == was:
            return
        extra: dict[str, object] = {"stream": self._stream, "state": state, "was": was}
        match self._state:
            case states.ListingPages(goal=goal):
                extra |= {"because": goal.cause, "mode": "pages"}
            case states.OpeningList(goal=goal) | states.StreamingList(goal=goal):
                extra |= {"because": goal.cause, "mode": "stream"}
        self._progress.state = state
        log.info("stream changed state", extra=extra)

    def stopped(self) -> None:
        self._metrics.watch_active.set(0)
        self._show_state("stopped")

    # ---- requests --------------------------------------------------------------------------------

    def requesting(self, *, streaming: bool, listing: bool) -> None:
        """A request is about to be sent: the circuit breaker has admitted it."""
        if self._state is not None and self._progress.state == "backoff":
            self._show_state(self._status_state(self._state))
        if listing and self._list_began_at_s is None:
            self._list_began_at_s = asyncio.get_running_loop().time()
        if not listing or streaming:
            log.debug("opening watch", extra={"stream": self._stream, "streaming": streaming})

    def opened(self, *, streaming: bool) -> None:
        self._metrics.watch_starts_total["watchlist" if streaming else "watch"].inc()
        self._metrics.watch_active.set(1)

    def closed(self) -> None:
        self._metrics.watch_active.set(0)

    def paused(self, until_s: float) -> None:
        """The circuit breaker does not admit the request before `until_s` (infinity: unknown)."""
        self._status.next_attempt_ms = None if until_s == math.inf else _wall_ms(until_s)
        self._show_state("backoff")

    # ---- frames and events -----------------------------------------------------------------------

    def received(self, frames: list[Frame]) -> None:
        """Count the frames of one chunk."""
        kinds = [_kind(frame) for frame in frames]
        for kind in set(kinds):
            self._metrics.events_received_total[kind].inc(kinds.count(kind))
        now_ms, bookmarks, errors = clock.wall_ms(), kinds.count("BOOKMARK"), kinds.count("ERROR")
        objects = len(kinds) - bookmarks - errors
        if objects or errors:
            self._last_event_ms = now_ms
        self._status.received(now_ms, bookmarks=bookmarks, objects=objects, others=errors)
        self._server_sent(now_ms)

    def _server_sent(self, now_ms: int) -> None:
        # not in between: the clock may have been set back by days
        if not 0 <= now_ms - self._gauges_at_ms < GAUGE_INTERVAL_MS:
            self._gauges_at_ms = now_ms
            self._metrics.last_heard_timestamp_seconds.set(now_ms / 1000)
            self._metrics.last_heard_age_seconds.restart()
            if self._last_event_ms:
                self._metrics.last_event_timestamp_seconds.set(self._last_event_ms / 1000)
                ago_ms = max(0, now_ms - self._last_event_ms)
                self._metrics.last_event_age_seconds.restart(ago_s=ago_ms / 1000)

    def delivering(self, output: WatchOutput) -> None:
        match output:
            case ListBegun():
                if self._list_under_way:  # made again without an error
                    self._list_ended("error")
                self._list_under_way, self._list_began_at_s = True, None
                self._objects = self._status.listed = 0
            case ListedObjects(objects=objects):
                self._objects += len(objects)
                self._status.listed = self._objects
            case ServerSeen():
                self._server_sent(clock.wall_ms())
            case ResourceRemoved():
                extra = {"stream": self._stream}
                log.warning("resource is no longer served; removing its objects", extra=extra)

    def skipped(self, errors: tuple[KubeError, ...]) -> None:
        """Objects could not be decoded and were skipped; the others are published."""
        self._metrics.events_filtered_total["quarantined"].inc(len(errors))
        now_s = asyncio.get_running_loop().time()
        for error in errors:
            about = error.about if isinstance(error, Undecodable) else None
            named = "" if about is None else short("/".join(about))
            if count := self._log_limit.due((named, str(error)), now_s):
                extra = {
                    "stream": self._stream,
                    "object": named,
                    "error": str(error),
                    "count": count,
                }
                log.error("undecodable object skipped", extra=extra)

    def _retrying(self, event: messages.Retrying) -> None:
        error, status, at_s = event.error, self._status, event.retry_at_s
        if at_s is None and isinstance(error, Expired):
            extra: dict[str, object] = {"stream": self._stream, "error": str(error)}
            if isinstance(self._state, states.ListingPages) and self._state.goal.in_one_page:
                log.info("history expired between pages; listing again in one page", extra=extra)
            else:
                log.info("watch history expired; relisting", extra=extra)
            return
        operator = _is_lasting(error, SHOWN_AS_WAITING) and at_s is not None
        next_attempt_ms = None if at_s is None else _wall_ms(at_s)
        status.failed("watch", error.trouble(operator=operator), next_attempt_ms=next_attempt_ms)
        retry_in_s = 0.0 if at_s is None else at_s - asyncio.get_running_loop().time()
        extra = {
            "stream": self._stream,
            "error": str(error),
            "reason": error.reason,
            "retry_in_s": round(retry_in_s, 3),
        }
        if error.reason == self._last_logged_reason:
            log.debug("stream error; retrying", extra=extra)
        elif _is_lasting(error, machine.NOT_CURED_BY_RETRY) and at_s is not None:
            log.error("operator action required; retrying", extra=extra)
        else:
            log.warning("stream error; retrying", extra=extra)
        self._last_logged_reason = error.reason


def _is_lasting(error: KubeError, kinds: tuple[type[KubeError], ...]) -> bool:
    """Whether `error` is one of `kinds`, and not about the form of a request: the next request has
    another form."""
    about_form = isinstance(error, Invalid) and error.about != "selector"
    return isinstance(error, kinds) and not about_form


def _kind(frame: Frame) -> str:
    if type(frame) is ObjectFrame:
        return frame.type
    return "BOOKMARK" if type(frame) is Bookmark else "ERROR"


def _wall_ms(at_s: float) -> int:
    return clock.wall_ms() + int(1000 * max(0.0, at_s - asyncio.get_running_loop().time()))
