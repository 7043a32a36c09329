"""What each stream is doing, for `/readyz`, `/api/streams` and people.

Room: observe. In: loops write what they decide. Out: server.py and the commands read it. One event loop, so no locks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from watchrelay import clock

State = Literal["waiting", "listing", "resuming", "watching", "backoff", "standby", "stopped"]


@dataclass(slots=True)
class StreamStatus:
    """The present of one stream. Units: `*_ms` are wall milliseconds since the epoch.

    `waits_for`: what only a person can mend (a resource, a right, a topic), in one line; "" when nothing.
    `complete`: the whole state has been acknowledged by Kafka once in this process.
    `dirty_keys`: objects whose present state waits to be queued, because the queue was full.
    `unacknowledged`: why records that were sent are not acknowledged, until the next acknowledgement; "" when they are.
    """

    stream: str
    topic: str = ""
    state: State = "waiting"
    objects: int = 0
    listed: int = 0
    epoch: int | None = None
    frontier: str | None = None
    owner: str | None = None
    last_error: str | None = None
    last_error_ms: int = 0
    next_attempt_ms: int | None = None
    last_snapshot: str | None = None
    last_event_ms: int | None = None
    last_bookmark_ms: int | None = None
    waits_for: str = ""
    complete: bool = False
    dirty_keys: int = 0
    unacknowledged: str = ""
    unacknowledged_ms: int = 0

    def failed(self, message: str, *, next_attempt_ms: int | None = None) -> None:
        """Record a failure; it stands until the next progress."""
        self.last_error = message
        self.last_error_ms = clock.wall_ms()
        self.next_attempt_ms = next_attempt_ms

    def progressed(self) -> None:
        """Something worked: the last error is over."""
        self.last_error = None
        self.next_attempt_ms = None

    def renew(self) -> None:
        """The stream begins anew, perhaps with other objects: nothing of what it holds now is known to be in Kafka."""
        self.state, self.complete, self.listed = "waiting", False, 0
        self.waits_for = self.unacknowledged = ""
        self.progressed()

    def not_acknowledged(self, message: str) -> None:
        """Kafka is silent, or refuses; the moment kept is that of the first word of it. An error of the stream's own is shown before it."""
        self.unacknowledged_ms = self.unacknowledged_ms if self.unacknowledged else clock.wall_ms()
        self.unacknowledged = message

    def as_json(self) -> dict[str, object]:
        """The public form. Source: the operations reference, `/api/streams`."""
        return {
            "stream": self.stream,
            "topic": self.topic,
            "state": self.state,
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

    def _error(self) -> dict[str, str] | None:
        message, at_ms = (self.last_error, self.last_error_ms) if self.last_error else (self.unacknowledged, self.unacknowledged_ms)
        return {"message": message, "time": clock.rfc3339(at_ms)} if message else None


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else clock.rfc3339(at_ms)


@dataclass(slots=True)
class Board:
    """All streams of this process, in config order, and what concerns none of them alone."""

    streams: dict[str, StreamStatus] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    """Process-wide trouble by name ("kafka", "kubernetes", "config", "reload", "restart"): one line each; absent when well."""

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
