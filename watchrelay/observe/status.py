"""What each stream is doing; written and read on one event loop, without locks."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

from watchrelay.core import clock
from watchrelay.core.text import counted, short
from watchrelay.core.timestamps import rfc3339
from watchrelay.core.trouble import Trouble
from watchrelay.model.progress import State, StreamProgress
from watchrelay.observe.advice import ADVICE
from watchrelay.observe.group import GroupStatus

Role = Literal["owner", "warm", "standby"]

Reporter = Literal["daemon", "discovery", "config", "stream", "watch", "records", "size", "log"]
"""Who reports a trouble of a stream, each the only writer of its own: the daemon (credentials,
control topic), the supervisor (discovery, entries of the config), the stream's runner, the watch,
the producer, the writer (objects over a limit) and the reader of the stream's log."""

HISTORY_MAX: Final = 20
"""Transitions of a stream that are remembered; 200 streams hold less than 1 MB of them."""
_ONE_STEP_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Transition:
    """A step of a stream's history: the new state, and an error, `RECOVERED` or nothing."""

    at_ms: int
    state: State
    message: str = ""


RECOVERED: Final = "recovered"


class Troubles(dict[str, Trouble]):
    """What is wrong at present, by name."""

    def put(self, name: str, trouble: Trouble) -> bool:
        """Hold `trouble` until its name is popped; it began when the name came. Returns: whether it
        says something new."""
        before, now_ms = self.get(name), clock.wall_ms()
        since_ms = now_ms if before is None else before.since_ms
        self[name] = replace(trouble, since_ms=since_ms, at_ms=now_ms)
        return before is None or (before.message, before.operator) != (
            trouble.message,
            trouble.operator,
        )


BIN_MS: Final = 10_000
BINS: Final = 60


class EventRate:
    """Counts of events over the last ten minutes, without a timer: a ring of bins of `BIN_MS`, a
    bin named by its time over `BIN_MS`. 300 bytes, none before the first event."""

    __slots__ = ("_bins", "_newest")

    def __init__(self) -> None:
        self._bins: array[int] | None = None
        self._newest = 0

    def count(self, now_ms: int, events: int) -> None:
        """`events` came, at `now_ms` of the wall clock."""
        newest = now_ms // BIN_MS
        if newest != self._newest or self._bins is None:
            self._roll(newest)
        assert self._bins is not None
        self._bins[newest % BINS] += events

    def _roll(self, newest: int) -> None:
        """Begin the bin `newest`. A wall clock that is set back starts over."""
        if self._bins is None or not 0 < newest - self._newest < BINS:
            self._bins = array("I", bytes(4 * BINS))
        else:
            for each in range(self._newest + 1, newest + 1):
                self._bins[each % BINS] = 0
        self._newest = newest

    def latest(self) -> tuple[int, int, int]:
        """The newest bin counted in, what the one before it holds, and what it holds; else
        zeros."""
        if self._bins is None:
            return (0, 0, 0)
        newest = self._newest
        return newest, self._bins[(newest - 1) % BINS], self._bins[newest % BINS]

    def history(self) -> list[int]:
        """The bins up to the newest, oldest first, without the empty ones at the beginning."""
        if self._bins is None:
            return []
        bins = [self._bins[(self._newest + 1 + each) % BINS] for each in range(BINS)]
        first = next((index for index, events in enumerate(bins) if events), BINS)
        return bins[first:]

    def per_s(self, now_ms: int) -> float:
        """Events a second over the last ten: of the former bin the share that is that young."""
        newest, former, present = self.latest()
        now, into_ms = divmod(now_ms, BIN_MS)
        young = 1 - into_ms / BIN_MS
        if now == newest:
            return (former * young + present) * 1000 / BIN_MS
        return present * young * 1000 / BIN_MS if now == newest + 1 else 0.0


class Queued(Protocol):
    """What a stream has queued for Kafka; the writer's queues."""

    @property
    def queued_records(self) -> int: ...
    @property
    def queued_bytes(self) -> int: ...
    @property
    def dirty_keys(self) -> int:
        """Objects whose present state waits to be queued, because the queue was full."""
        ...

    @property
    def queued_ms(self) -> int:
        """Since when there is always something queued; of no meaning when nothing is."""
        ...


@dataclass(frozen=True, slots=True)
class QueuedNow:
    """A moment of `Queued`."""

    queued_records: int = 0
    queued_bytes: int = 0
    dirty_keys: int = 0
    queued_ms: int = 0


NOTHING_QUEUED: Final = QueuedNow()


@dataclass(slots=True)
class StreamStatus:
    """What is shown of one stream's present, and how it came to it; it decides nothing. Units:
    `*_ms` are wall milliseconds since the epoch.

    `progress`: of the stream's newest run. `troubles`: what is wrong, by reporter, the newest last.
    `assigned`: False where replicas share the streams,
    and this one cannot start anywhere. `warm`: of a stream that another replica writes, the log was
    read to its end, and is followed.
    `lag_ms`: how long the slowest event of the newest acknowledged batch took; None before the
    first event.
    `counted`: which changes are published, "" for all of them.
    `objects` and `owner` of a stream that another replica writes are those of its newest snapshot
    and claim. `transitions_count`: transitions since the start, so that a reader knows when there
    are new ones."""

    stream: str
    topic: str = ""
    counted: str = ""
    objects: int = 0
    listed: int = 0
    epoch: int | None = None
    frontier: str | None = None
    owner: str | None = None
    assigned: bool = True
    warm: bool = False
    troubles: Troubles = field(default_factory=Troubles)
    next_attempt_ms: int | None = None
    last_snapshot: str | None = None
    last_event_ms: int | None = None
    last_bookmark_ms: int | None = None
    queues: Queued = NOTHING_QUEUED
    lag_ms: float | None = None
    acked_ms: int = 0
    event_rate: EventRate = field(default_factory=EventRate)
    history: list[Transition] = field(default_factory=list)
    transitions_count: int = 0
    state_ms: int = field(default_factory=clock.wall_ms)
    progress: StreamProgress = field(default_factory=StreamProgress)

    def __post_init__(self) -> None:
        self.progress.entered = self._entered

    def follow(self, progress: StreamProgress) -> None:
        """Show this run of the stream from now on, and none before."""
        former, self.progress = self.progress, progress
        former.entered, progress.entered = progress.entered, self._entered
        if former.state != progress.state:
            self._entered(progress.state)

    @property
    def state(self) -> State:
        return self.progress.state

    @property
    def complete(self) -> bool:
        return self.progress.whole

    def _entered(self, _state: State) -> None:
        self.state_ms = clock.wall_ms()
        self._record(self.state_ms)

    def _record(self, at_ms: int, message: str = "") -> None:
        """Add to the history; a message right after a change of state joins that entry."""
        self.transitions_count += 1
        last = self.history[-1] if self.history else None
        if (
            message
            and last is not None
            and (last.state, last.message) == (self.state, "")
            and at_ms - last.at_ms < _ONE_STEP_MS
        ):
            self.history.pop()
        self.history.append(Transition(at_ms, self.state, short(message)))
        del self.history[:-HISTORY_MAX]

    def failed(self, by: Reporter, trouble: Trouble, *, next_attempt_ms: int | None = None) -> bool:
        """Report a trouble, shown until `recovered` of the same reporter. Returns: whether it says
        something new."""
        before, new = self.troubles.get(by), self.troubles.put(by, trouble)
        self.troubles[by] = newest = self.troubles.pop(by)
        # what the producer reports counts the seconds, and what is over a limit may alternate: only
        # its begin is news
        if before is None or (newest.message != before.message and by not in {"records", "size"}):
            self._record(newest.at_ms, newest.message)
        if by not in {"records", "size"}:
            self.next_attempt_ms = next_attempt_ms
        return new

    def recovered(self, *by: Reporter) -> None:
        """The troubles of these reporters are over; by default all but the producer's."""
        over = [each for each in by or self.troubles if by or each != "records"]
        known = len(self.troubles)
        for each in over:
            self.troubles.pop(each, None)
        if len(self.troubles) < known and not self.troubles:
            self._record(clock.wall_ms(), RECOVERED)
        if self.last_error is None and by != ("records",):
            self.next_attempt_ms = None

    def renew(self) -> None:
        """Another run of the stream begins, perhaps with other objects."""
        self.listed, self.lag_ms = 0, None
        self.recovered("records")
        self.recovered()

    @property
    def wait(self) -> Trouble | None:
        """The newest trouble that only an operator can end."""
        return next((each for each in reversed(self.troubles.values()) if each.operator), None)

    @property
    def waits_for(self) -> str:
        return self.wait.message if self.wait is not None else ""

    @property
    def last_error(self) -> str | None:
        """The message of the newest trouble that is not the producer's."""
        newest = (self.troubles[by].message for by in reversed(self.troubles) if by != "records")
        return next(newest, None)

    @property
    def trouble(self) -> Trouble | None:
        """The newest trouble; the producer's where there is no other."""
        newest = (self.troubles[by] for by in reversed(self.troubles) if by != "records")
        return next(newest, self.troubles.get("records"))

    def acked(self, *, lag_s: float | None, idle: bool = False) -> None:
        """A batch is acknowledged; its slowest event took `lag_s` (None: no event). `idle`: the
        batch held markers alone, so that the lag falls back to 0."""
        self.acked_ms = clock.wall_ms()
        if lag_s is not None:
            self.lag_ms = lag_s * 1000
        elif idle and self.lag_ms:
            self.lag_ms = 0.0

    def received(self, now_ms: int, *, bookmarks: int, objects: int, others: int = 0) -> None:
        """Count what a chunk of a watch brought."""
        if bookmarks:
            self.last_bookmark_ms = now_ms
        if objects or others:
            self.last_event_ms = now_ms
            self.event_rate.count(now_ms, objects)

    def waiting_since_ms(self) -> int:
        """Since when what is queued waits without any acknowledgement; 0 when nothing is queued."""
        queues = self.queues
        if not queues.queued_records and not queues.dirty_keys:
            return 0
        return max(queues.queued_ms, self.acked_ms)

    @property
    def role(self) -> Role:
        """Whether this process writes the stream, or is to, or another replica, which this one
        follows where it is warm."""
        if self.state != "standby" and self.assigned:
            return "owner"
        return "warm" if self.warm else "standby"

    def as_json(self) -> dict[str, object]:
        """The public form. Source: the operations reference, `/api/streams`."""
        return {
            "stream": self.stream,
            "topic": self.topic,
            "role": self.role,
            "state": self.state,
            "stateSince": _time(self.state_ms),
            "objects": self.objects,
            "epoch": self.epoch,
            "frontier": self.frontier,
            "owner": self.owner,
            "lastError": None if (trouble := self.trouble) is None else _trouble_json(trouble),
            "nextAttempt": _time(self.next_attempt_ms),
            "lastSnapshot": self.last_snapshot,
            "lastEvent": _time(self.last_event_ms),
            "lastBookmark": _time(self.last_bookmark_ms),
            "waitsFor": self.waits_for or None,
            "complete": self.complete,
            "dirtyKeys": self.queues.dirty_keys,
            "changesThatCount": self.counted or None,
        }

    def history_json(self) -> list[dict[str, str]]:
        return [
            {"time": rfc3339(each.at_ms), "state": each.state, "message": each.message}
            for each in reversed(self.history)
        ]


def index_problem(stream: str) -> str:
    """The name of the problem that the index record of `stream` was left out; for as long as this
    process writes the stream."""
    return f"index {stream}"


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else rfc3339(at_ms)


def _trouble_json(trouble: Trouble) -> dict[str, str]:
    return {
        "message": trouble.message,
        "time": rfc3339(trouble.at_ms),
        "since": rfc3339(trouble.since_ms),
        "cause": trouble.cause,
        "cure": trouble.cure or ADVICE[trouble.cause].todo,
    }


@dataclass(slots=True)
class StatusRegistry:
    """All streams of this process, in config order, and what concerns none of them alone."""

    streams: dict[str, StreamStatus] = field(default_factory=dict)
    problems: Troubles = field(default_factory=Troubles)
    """Of the process, by name: "kafka", "kubernetes", "config", "reload", "restart", "control",
    "signal", "group", "assignment", "clock", "setting ..." and "index STREAM"."""
    endpoints: dict[str, str] = field(default_factory=dict)
    """The addresses between which this process relays, by "kubernetes" and "kafka"."""
    group: GroupStatus | None = None
    """Where replicas share the streams."""

    def open(self, stream: str, topic: str = "") -> StreamStatus:
        """The status of `stream`, made on first use."""
        status = self.streams.get(stream)
        if status is None:
            status = self.streams[stream] = StreamStatus(stream)
        status.topic = topic or status.topic
        return status

    def close(self, stream: str) -> None:
        self.streams.pop(stream, None)
        self.problems.pop(index_problem(stream), None)

    @property
    def standing_by(self) -> list[str]:
        """The streams of which another replica's writer is shown."""
        return [each for each, status in self.streams.items() if status.state == "standby"]

    def fail_all(self, trouble: Trouble, wait_s: float) -> None:
        """Show of every stream what the daemon waits for, and that it tries again in `wait_s`."""
        next_ms = clock.wall_ms_in(wait_s)
        for status in self.streams.values():
            status.failed("daemon", trouble, next_attempt_ms=next_ms)

    def recover_all(self) -> None:
        for status in self.streams.values():
            status.recovered("daemon")


@dataclass(slots=True)
class Readiness:
    """Ready once every stream has its whole state acknowledged, waits for an operator, or is
    another replica's; then it stays: an outage of either side must not take the pod out of its
    rollout."""

    statuses: StatusRegistry
    started: bool = False
    """The streams of the config are known: an empty registry before that is not readiness."""
    reached: bool = False

    def check(self) -> tuple[bool, dict[str, object]]:
        """Whether to answer 200, and the body."""
        streams = self.statuses.streams
        if self.started and all(map(_is_well, streams.values())):
            self.reached = True
        body: dict[str, object] = {
            "ready": self.reached,
            "streams": {
                name: {"state": status.state, **({"reason": reason} if reason else {})}
                for name, status in streams.items()
                for reason in (_reason(status),)
            },
        }
        if self.statuses.problems:
            problems = self.statuses.problems.items()
            body["problems"] = {name: trouble.message for name, trouble in problems}
        return self.reached, body


def _is_well(status: StreamStatus) -> bool:
    return status.complete or status.wait is not None or status.state == "standby"


def _reason(status: StreamStatus) -> str:
    """Why this stream's state is not wholly in Kafka, or what it waits for; "" when all is well."""
    if status.waits_for:
        return status.waits_for
    if status.complete:
        return status.last_error or ""
    if (trouble := status.trouble) is not None:
        return trouble.message
    return {
        "waiting": "not started yet",
        "listing": f"listing: {counted(status.listed, 'object')} so far",
        "resuming": "reading its own log back",
        "watching": "the first snapshot is not acknowledged yet",
        "backoff": "waiting to try again",
        "standby": "owned by another process",
        "stopped": "stopped",
    }[status.state]
