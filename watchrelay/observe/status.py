"""What each stream is doing, for `/readyz`, `/api/streams` and people.

Room: observe. In: loops write what they decide. Out: server.py and the commands read it. One event
loop, so no locks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from watchrelay.core import clock
from watchrelay.core.text import short
from watchrelay.core.timestamps import rfc3339
from watchrelay.observe.pace import Pace

State = Literal["waiting", "listing", "resuming", "watching", "backoff", "standby", "stopped"]

STORY_MAX: Final = 20
"""Transitions of a stream that are remembered: enough for the hour before a page; 200 streams hold
less than 1 MB of them at worst."""
_ONE_STEP_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Moment:
    """One step of a stream's story: the state from then on, and what was said: an error, that it is
    over, or nothing."""

    at_ms: int
    state: State
    said: str = ""


OVER: Final = "well again"


@dataclass(slots=True)
class StreamStatus:
    """The present of one stream, and how it came to it. Units: `*_ms` are wall milliseconds since
    the epoch.

    `waits_for`: what only a person can mend (a resource, a right, a topic), in one line; "" when
    nothing. `refused`: that line where Kafka said it of the stream's records. `unread`: why the
    stream's own log could not be read, until it was. `cause`: what `last_error` is about, where the
    advice for it is another than for a server that is away; "" otherwise. `complete`: the whole
    state has been acknowledged by Kafka once in this process. `list_due`: a list is under way, or
    must come: what is held was overtaken, or nothing is. `dirty_keys`: objects whose present state
    waits to be queued, because the queue was full. `unacknowledged`: why records that were sent are
    not acknowledged, until the next acknowledgement; "" when they are. `trouble_ms`: when the first
    of the failures since the last progress was; 0 without one. `lag_ms`: how long the slowest event
    of the newest acknowledged batch took; 0 once heartbeats alone are acknowledged behind it, None
    before the first event. `queued_ms`: since when there is always something queued; 0 when nothing
    is. `told`: how many moments the story ever had, so that a reader knows when there is more of
    it.
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
    cause: str = ""
    next_attempt_ms: int | None = None
    last_snapshot: str | None = None
    last_event_ms: int | None = None
    last_bookmark_ms: int | None = None
    waits_for: str = ""
    refused: str = ""
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
    pace: Pace = field(default_factory=Pace)
    story: list[Moment] = field(default_factory=list)
    told: int = 0
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
            self._tell(self.state_ms)

    def _tell(self, at_ms: int, said: str = "") -> None:
        """Add to the story; what is said right after a change of state belongs to it."""
        self.told += 1
        last = self.story[-1] if self.story else None
        if (
            said
            and last is not None
            and (last.state, last.said) == (self._state, "")
            and at_ms - last.at_ms < _ONE_STEP_MS
        ):
            self.story.pop()
        self.story.append(Moment(at_ms, self._state, short(said)))
        del self.story[:-STORY_MAX]

    def failed(self, message: str, *, next_attempt_ms: int | None = None, cause: str = "") -> None:
        """Record a failure; it is shown until the next progress.

        Args:
            message: What failed, where, and the cure.
            next_attempt_ms: When it is tried again, in wall milliseconds; None when that is not
            known. cause: The name of the advice for it; "" where state and message tell.
        """
        now_ms = clock.wall_ms()
        if message != self.last_error:
            self._tell(now_ms, message)
        self.trouble_ms = self.trouble_ms or now_ms
        self.last_error, self.cause = message, cause
        self.last_error_ms = now_ms
        self.next_attempt_ms = next_attempt_ms

    def progressed(self) -> None:
        """Something worked: the last error is over."""
        if self.last_error is not None:
            self._tell(clock.wall_ms(), OVER)
        self.last_error, self.cause = None, ""
        self.trouble_ms = 0
        self.next_attempt_ms = None

    def renew(self) -> None:
        """The stream begins anew, perhaps with other objects: nothing of what it holds now is known
        to be in Kafka."""
        self.state, self.complete, self.listed = "waiting", False, 0
        self.waits_for = ""
        self.acknowledged()
        self.progressed()

    def not_acknowledged(self, message: str, *, person: bool = False) -> None:
        """Kafka is silent, or refuses; the moment kept is that of the first word of it. An error of
        the stream's own is shown before it.

        Shape: `person`: a right is missing, so that the stream waits for whoever can grant it.
        """
        if person:
            self.waits_for = self.refused = message
        if not self.unacknowledged:
            self.unacknowledged_ms = clock.wall_ms()
            self._tell(self.unacknowledged_ms, message)
        self.unacknowledged = message

    def acknowledged(self) -> None:
        """Kafka acknowledges again."""
        if self.refused and self.waits_for == self.refused:
            self.waits_for = ""
        self.refused = ""
        if self.unacknowledged:
            self.unacknowledged = ""
            self._tell(clock.wall_ms(), OVER)

    def not_read(self, message: str, *, next_attempt_ms: int, person: bool) -> None:
        """The stream's own log cannot be read now. Shape: `person`: as for `not_acknowledged`."""
        if self.unread and self.waits_for == self.unread:
            self.waits_for = ""
        self.unread = message
        if person:
            self.waits_for = message
        self.failed(message, next_attempt_ms=next_attempt_ms)

    def was_read(self) -> None:
        """The log was read after all: what was said of that is over, and what was said of anything
        else since is not."""
        if not self.unread:
            return
        if self.waits_for == self.unread:
            self.waits_for = ""
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

    def transitions(self) -> list[dict[str, str]]:
        """The public form of the story, newest first."""
        return [
            {"time": rfc3339(each.at_ms), "state": each.state, "said": each.said}
            for each in reversed(self.story)
        ]

    def trouble(self) -> tuple[str, int, int]:
        """What is wrong, since when, and when it was last said; ("", 0, 0) when nothing is."""
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
    """Process-wide trouble by name: one line each, absent when well.

    `since_ms` holds when each of them was first said; `causes` the name of its advice, where that
    is not the problem's own.
    """

    def __init__(self) -> None:
        super().__init__()
        self.since_ms: dict[str, int] = {}
        self.causes: dict[str, str] = {}

    def __setitem__(self, name: str, message: str) -> None:
        self.put(name, message)

    def put(self, name: str, message: str, *, cause: str = "") -> None:
        """Set a problem.

        Args:
            name: Which one.
            message: What is wrong, where, and the cure.
            cause: The name of the advice for it; "" for that of `name`.
        """
        if name not in self:
            self.since_ms[name] = clock.wall_ms()
        self.causes[name] = cause or name
        super().__setitem__(name, message)


@dataclass(slots=True)
class Board:
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
