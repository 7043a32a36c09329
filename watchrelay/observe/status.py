"""What each stream is doing, for `/readyz`, `/api/streams` and the status page. Written and read on
one event loop, without locks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from watchrelay.core import causes, clock
from watchrelay.core.causes import Cause, CauseKind
from watchrelay.core.text import short
from watchrelay.core.timestamps import rfc3339
from watchrelay.observe.event_rate import EventRate

State = Literal["waiting", "listing", "resuming", "watching", "backoff", "standby", "stopped"]

Waiter = Literal["config", "stream", "watch", "records", "log"]
"""Who waits for an operator, each the only writer of its wait: the supervisor, the stream's runner,
the watch, the producer and the reader of the stream's log."""

HISTORY_MAX: Final = 20
"""Transitions of a stream that are remembered: enough for the hour before a page; 200 streams hold
less than 1 MB of them at worst."""
_ONE_STEP_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of a stream's history: the new state, and a message: an error, `RECOVERED` or
    nothing."""

    at_ms: int
    state: State
    message: str = ""


RECOVERED: Final = "recovered"


@dataclass(frozen=True, slots=True)
class Wait:
    """What only an operator can provide: a resource, a right, a topic."""

    message: str
    cause: Cause


@dataclass(slots=True)
class StreamStatus:
    """The present of one stream, and how it came to it. Units: `*_ms` are wall milliseconds since
    the epoch.

    `waits`: what the stream waits for an operator for, by who waits, the newest last. `cause`: of
    `last_error`; None without one. `unread`: why the stream's own log could not be read, until it
    was. `complete`: the whole
    state has been acknowledged by Kafka once in this process. `list_due`: a list is under way, or
    must come: what is held was overtaken, or nothing is. `dirty_keys`: objects whose present state
    waits to be queued, because the queue was full. `unacknowledged`: why records that were sent are
    not acknowledged, until the next acknowledgement; "" when they are. `trouble_ms`: when the first
    of the failures since the last progress was; 0 without one. `lag_ms`: how long the slowest event
    of the newest acknowledged batch took; 0 once heartbeats alone are acknowledged behind it, None
    before the first event. `queued_ms`: since when there is always something queued; 0 when nothing
    is. `transitions_count`: transitions since the start, so that a reader knows when there are new
    ones.
    """

    stream: str
    topic: str = ""
    objects: int = 0
    listed: int = 0
    epoch: int | None = None
    frontier: str | None = None
    owner: str | None = None
    last_error: str | None = None
    last_error_ms: int = 0
    cause: Cause | None = None
    next_attempt_ms: int | None = None
    last_snapshot: str | None = None
    last_event_ms: int | None = None
    last_bookmark_ms: int | None = None
    waits: dict[Waiter, Wait] = field(default_factory=dict)
    unread: str = ""
    complete: bool = False
    list_due: bool = False
    dirty_keys: int = 0
    unacknowledged: str = ""
    unacknowledged_ms: int = 0
    trouble_ms: int = 0
    lag_ms: float | None = None
    acked_ms: int = 0
    queued_ms: int = 0
    queued_records: int = 0
    queued_bytes: int = 0
    event_rate: EventRate = field(default_factory=EventRate)
    history: list[Transition] = field(default_factory=list)
    transitions_count: int = 0
    state_ms: int = field(default_factory=clock.wall_ms)
    _state: State = "waiting"

    @property
    def state(self) -> State:
        """What the stream does now; setting another one is remembered."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        if state != self._state:
            self._state, self.state_ms = state, clock.wall_ms()
            self._record(self.state_ms)

    def _record(self, at_ms: int, message: str = "") -> None:
        """Add to the history; a message right after a change of state joins that entry."""
        self.transitions_count += 1
        last = self.history[-1] if self.history else None
        if (
            message
            and last is not None
            and (last.state, last.message) == (self._state, "")
            and at_ms - last.at_ms < _ONE_STEP_MS
        ):
            self.history.pop()
        self.history.append(Transition(at_ms, self._state, short(message)))
        del self.history[:-HISTORY_MAX]

    @property
    def waits_for(self) -> str:
        """What an operator must provide, in one line; "" when nothing."""
        wait = self.wait
        return wait.message if wait is not None else ""

    @property
    def wait(self) -> Wait | None:
        """The newest wait."""
        return next(reversed(self.waits.values()), None)

    def wait_for(self, waiter: Waiter, message: str, cause: Cause) -> None:
        """Wait for an operator, until `end_wait` of the same waiter."""
        self.waits.pop(waiter, None)
        self.waits[waiter] = Wait(message, cause)

    def end_wait(self, *waiters: Waiter) -> None:
        """End the waits of `waiters`."""
        for waiter in waiters:
            self.waits.pop(waiter, None)

    def failed(
        self, message: str, *, next_attempt_ms: int | None = None, cause: Cause = causes.OTHER
    ) -> None:
        """Record a failure; it is shown until the next progress.

        Args:
            message: What failed, where, and the cure.
            next_attempt_ms: When it is tried again, in wall milliseconds; None when not known.
            cause: What is wrong.
        """
        now_ms = clock.wall_ms()
        if message != self.last_error:
            self._record(now_ms, message)
        self.trouble_ms = self.trouble_ms or now_ms
        self.last_error, self.cause = message, cause
        self.last_error_ms = now_ms
        self.next_attempt_ms = next_attempt_ms

    def progressed(self) -> None:
        """Something worked: the last error is over."""
        if self.last_error is not None:
            self._record(clock.wall_ms(), RECOVERED)
        self.last_error = self.cause = None
        self.trouble_ms = 0
        self.next_attempt_ms = None

    def renew(self) -> None:
        """The stream restarts, perhaps with other objects: none of its state is known to be in
        Kafka."""
        self.state, self.complete, self.listed = "waiting", False, 0
        self.waits.clear()
        self.acknowledged()
        self.progressed()

    def not_acknowledged(self, message: str, *, person: bool = False) -> None:
        """Kafka does not acknowledge, or refuses; the time kept is that of the first call. An error
        of the stream itself is shown before it.

        Args:
            message: What is wrong, where, and the cure.
            person: The stream waits for an operator: a right or a limit of the topic.
        """
        if person:
            self.wait_for("records", message, causes.TOPIC_UNUSABLE.about(self.topic))
        if not self.unacknowledged:
            self.unacknowledged_ms = clock.wall_ms()
            self._record(self.unacknowledged_ms, message)
        self.unacknowledged = message

    def acknowledged(self) -> None:
        """Kafka acknowledges again."""
        self.end_wait("records")
        if self.unacknowledged:
            self.unacknowledged = ""
            self._record(clock.wall_ms(), RECOVERED)

    def log_unreadable(self, message: str, *, next_attempt_ms: int, person: bool) -> None:
        """The stream's own log cannot be read now; `person` as for `not_acknowledged`."""
        self.unread = message
        if person:
            self.wait_for("log", message, causes.TOPIC_UNUSABLE.about(self.topic))
        else:
            self.end_wait("log")
        self.failed(message, next_attempt_ms=next_attempt_ms, cause=causes.KAFKA)

    def log_read(self) -> None:
        """The log was read: its wait and its error are over; other errors since are not."""
        if not self.unread:
            return
        self.end_wait("log")
        if self.last_error == self.unread:
            self.progressed()
        self.unread = ""

    def acked(self, *, lag_s: float | None, rest: bool) -> None:
        """A batch is acknowledged; its slowest event took `lag_s` seconds (None: it held none).
        `rest`: more is queued."""
        self.acked_ms = clock.wall_ms()
        if not rest:
            self.queued_ms = self.queued_records = self.queued_bytes = 0
        if lag_s is not None:
            self.lag_ms = lag_s * 1000

    def queues(self, *, records: int, size_bytes: int, dirty_keys: int) -> None:
        """What waits to be acknowledged."""
        self.queued_records, self.queued_bytes, self.dirty_keys = records, size_bytes, dirty_keys
        self.queued_ms = (self.queued_ms or clock.wall_ms()) if records or dirty_keys else 0

    def waiting_since_ms(self) -> int:
        """Since when what is queued waits without any acknowledgement; 0 when nothing is queued."""
        return max(self.queued_ms, self.acked_ms) if self.queued_ms else 0

    def as_json(self) -> dict[str, object]:
        """The public form. Source: the operations reference, `/api/streams`."""
        return {
            "stream": self.stream,
            "topic": self.topic,
            "state": self.state,
            "stateSince": _time(self.state_ms),
            "objects": self.objects,
            "epoch": self.epoch,
            "frontier": self.frontier,
            "owner": self.owner,
            "lastError": self._error(),
            "nextAttempt": _time(self.next_attempt_ms),
            "lastSnapshot": self.last_snapshot,
            "lastEvent": _time(self.last_event_ms),
            "lastBookmark": _time(self.last_bookmark_ms),
            "waitsFor": self.waits_for or None,
            "complete": self.complete,
            "dirtyKeys": self.dirty_keys,
        }

    def history_json(self) -> list[dict[str, str]]:
        """The public form of the history, newest first."""
        return [
            {"time": rfc3339(each.at_ms), "state": each.state, "said": each.message}
            for each in reversed(self.history)
        ]

    def trouble(self) -> tuple[str, int, int]:
        """What is wrong, since when, and when it was last reported; ("", 0, 0) when nothing is."""
        if self.last_error:
            return self.last_error, self.trouble_ms, self.last_error_ms
        return (
            (self.unacknowledged, self.unacknowledged_ms, self.unacknowledged_ms)
            if self.unacknowledged
            else ("", 0, 0)
        )

    def _error(self) -> dict[str, str] | None:
        message, _, at_ms = self.trouble()
        return {"message": message, "time": rfc3339(at_ms)} if message else None


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else rfc3339(at_ms)


class Problems(dict[str, str]):
    """Process-wide problems by name: one line each, absent when there is none.

    `since_ms` holds when each of them began, `causes` what is wrong.
    """

    def __init__(self) -> None:
        super().__init__()
        self.since_ms: dict[str, int] = {}
        self.causes: dict[str, Cause] = {}

    def __setitem__(self, name: str, message: str) -> None:
        self.put(name, message)

    def put(self, name: str, message: str, *, cause: Cause | None = None) -> None:
        """Set a problem.

        Args:
            name: Which one.
            message: What is wrong, where, and the cure.
            cause: What is wrong; by default the kind that has the problem's name.
        """
        if name not in self:
            self.since_ms[name] = clock.wall_ms()
        self.causes[name] = cause or Cause(CauseKind(name))
        super().__setitem__(name, message)


@dataclass(slots=True)
class StatusRegistry:
    """All streams of this process, in config order, and what concerns none of them alone."""

    streams: dict[str, StreamStatus] = field(default_factory=dict)
    problems: Problems = field(default_factory=Problems)
    """By name: "kafka", "kubernetes", "config", "reload", "restart", "control", "signal"."""

    def open(self, stream: str, topic: str = "") -> StreamStatus:
        """The status of `stream`, made on first use."""
        status = self.streams.get(stream)
        if status is None:
            status = self.streams[stream] = StreamStatus(stream)
        status.topic = topic or status.topic
        return status

    def close(self, stream: str) -> None:
        """Forget a stream that left the config."""
        self.streams.pop(stream, None)
