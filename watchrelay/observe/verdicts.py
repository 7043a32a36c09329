"""What is wrong, worst first, since when, and what to do: a level per stream, a card per cause with
the streams that it affects. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from watchrelay.core.causes import KAFKA, KUBERNETES, Cause, CauseKind
from watchrelay.observe.status import StatusRegistry, StreamStatus

Level = Literal["person", "retrying", "behind", "notice", "starting", "live", "standby", "stopped"]
LEVELS: Final[tuple[Level, ...]] = (
    "person",
    "retrying",
    "behind",
    "notice",
    "starting",
    "live",
    "standby",
    "stopped",
)
"""Worst first. `person`: nothing helps but what a person does. `retrying`: the relay tries on by
itself. `notice`: no stream suffers."""
BEHIND_AFTER_MS: Final = 5_000
"""What is queued so long without any acknowledgement is behind; a pulse of produce requests takes
milliseconds."""
MESSAGES_MAX: Final = 3
"""Messages that a card repeats; the others are shown with their streams."""


@dataclass(frozen=True, slots=True)
class StreamVerdict:
    """The level of one stream, and why; `cause` is None and `message` "" where nothing is wrong."""

    level: Level
    since_ms: int
    cause: Cause | None = None
    message: str = ""

    @property
    def kind(self) -> CauseKind | None:
        """The kind of the cause."""
        return self.cause.kind if self.cause is not None else None


@dataclass(frozen=True, slots=True)
class Advice:
    """What a cause is called, what to do about it, and the runbook that says more."""

    title: str
    todo: str
    runbook: str = ""


ADVICE: Final = {
    CauseKind.MISSING_RIGHT: Advice(
        "A permission is missing in the cluster",
        "Grant list and watch: apply what `watchrelay rbac` prints, or upgrade the release "
        "with rbac.create: true. "
        "The relay tries again by itself.",
        "WatchRelayForbidden",
    ),
    CauseKind.RESOURCE_NOT_SERVED: Advice(
        "The API server does not serve a resource",
        "Install its CRD, or take the entry out of the config. The relay notices by itself.",
        "WatchRelayStreamWaiting",
    ),
    CauseKind.TOPIC_UNUSABLE: Advice(
        "A topic cannot be used as it is",
        "Correct the topic as the message says. The relay checks again by itself.",
        "WatchRelayStreamWaiting",
    ),
    CauseKind.ENTRY_UNUSABLE: Advice(
        "An entry of the config cannot be followed",
        "Correct the entry as the message says; an edit of the file is taken without a restart.",
        "WatchRelayStreamWaiting",
    ),
    CauseKind.CONFIG_REFUSED: Advice(
        "The edited config is refused",
        "The previous config stays in effect. Correct the file: `watchrelay validate` names every "
        "mistake.",
        "WatchRelayConfigReloadFailed",
    ),
    CauseKind.DUPLICATE_ENTRY: Advice(
        "Two config entries define the same stream",
        "Give one of them an id, or take it out.",
        "WatchRelayConfigReloadFailed",
    ),
    CauseKind.KUBERNETES: Advice(
        "The API server cannot be followed",
        "Nothing to do while it restarts: the relay tries again and catches up, deletes included. "
        "If it lasts: the API server, the way to it.",
        "WatchRelayWatchErrors",
    ),
    CauseKind.CREDENTIALS: Advice(
        "The credentials for the API server do not work",
        "Renew or correct the token, the client certificate, the exec plugin or the CA that "
        "the message names. "
        "Files are read again without a restart; the relay retries by itself.",
        "WatchRelayWatchNotActive",
    ),
    CauseKind.KAFKA: Advice(
        "Kafka does not acknowledge",
        "Nothing is lost: the relay keeps the present state and goes on when Kafka does. "
        "If it lasts: the brokers, the way to them, the credentials.",
        "WatchRelayKafkaSilent",
    ),
    CauseKind.CONTROL_TOPIC: Advice(
        "The control topic cannot be used",
        "Streams that run go on; none can start. Correct the topic as the message says.",
        "WatchRelayStreamWaiting",
    ),
    CauseKind.BACKLOG: Advice(
        "Kafka accepts less than the relay receives",
        "Past queueBytes only states in between are skipped, the last state of each object is not. "
        "If it lasts: the brokers' disks and replicas, the CPU of this process.",
        "WatchRelayLagHigh",
    ),
    CauseKind.SIGNAL_TOPIC: Advice(
        "Snapshot requests are not read",
        "Streams go on without. Correct the signal topic as the message says.",
    ),
    CauseKind.RESTART_NEEDED: Advice(
        "A configuration change requires a restart",
        "Restart when it suits: a restart replays nothing.",
    ),
    CauseKind.INTERNAL: Advice(
        "An unexpected error in the relay",
        "The relay tries again by itself, and nothing else stops. Please report the error with "
        "the log.",
        "WatchRelayStreamUnowned",
    ),
    CauseKind.OTHER: Advice(
        "A stream is in trouble",
        "The relay tries again by itself; the message says why.",
        "WatchRelayWatchErrors",
    ),
}
_LEVELS: Final[dict[CauseKind, Level]] = {
    CauseKind.DUPLICATE_ENTRY: "person", CauseKind.CREDENTIALS: "person",
    CauseKind.CONFIG_REFUSED: "person", CauseKind.RESTART_NEEDED: "notice",
    CauseKind.SIGNAL_TOPIC: "notice",
}  # fmt: skip
"""Of causes that are not retried, or that only a person can mend all the same."""
_AT_THE_API_SERVER: Final = (
    CauseKind.MISSING_RIGHT,
    CauseKind.RESOURCE_NOT_SERVED,
    CauseKind.ENTRY_UNUSABLE,
)
"""While such an error is retried at once, without waiting for an operator, the API server is the
likelier cause."""
_FOLLOW_FROM_KAFKA: Final = ("control", "signal")
"""Problems that are no news while Kafka is away."""

_VARIES: Final = re.compile(r"^(?:watch|list|get) \S+ (?:in \S+ )?at | for \d+ s\b")
"""What differs between messages that a card shows once: the request, and how long it lasts."""


def judge(status: StreamStatus, now_ms: int) -> StreamVerdict:
    """The stream's level, and the trouble behind it. Units: wall milliseconds."""
    if status.state == "stopped":
        return StreamVerdict("stopped", status.state_ms)
    message, since_ms, _ = status.trouble()
    if (wait := status.wait) is not None:
        return StreamVerdict(
            "person", status.trouble_ms or status.state_ms, wait.cause, wait.message
        )
    if message:
        cause = status.cause or KAFKA
        if cause.kind in _AT_THE_API_SERVER:
            cause = KUBERNETES
        return StreamVerdict(_LEVELS.get(cause.kind, "retrying"), since_ms, cause, message)
    if status.state == "backoff":
        return StreamVerdict(
            "retrying",
            status.state_ms,
            KUBERNETES,
            "waiting for the API server with the other streams",
        )
    waiting_ms = status.waiting_since_ms()
    if status.dirty_keys or (waiting_ms and now_ms - waiting_ms > BEHIND_AFTER_MS):
        return StreamVerdict("behind", status.queued_ms, Cause(CauseKind.BACKLOG), _queued(status))
    if status.state == "standby":
        return StreamVerdict("standby", status.state_ms)
    return StreamVerdict(
        "live" if status.complete and status.state != "waiting" else "starting", status.state_ms
    )


def _queued(status: StreamStatus) -> str:
    waiting = f"{status.queued_records:,} records queued"
    return (
        f"{waiting}, {status.dirty_keys:,} objects waiting to be queued"
        if status.dirty_keys
        else waiting
    )


@dataclass(slots=True)
class Card:
    """One cause of trouble and the streams that it affects; `messages`: pairs of the stream ("" for
    the process) and the message."""

    level: Level
    kind: CauseKind
    since_ms: int
    next_ms: int | None = None
    streams: list[str] = field(default_factory=list)
    messages: list[tuple[str, str]] = field(default_factory=list)
    _gists: list[str] = field(default_factory=list)

    @property
    def advice(self) -> Advice:
        """What to do."""
        return ADVICE[self.kind]

    def add(self, stream: str, message: str, since_ms: int, next_ms: int | None) -> None:
        """One more says so."""
        if stream:
            self.streams.append(stream)
        gist = _VARIES.sub("", message)
        if len(self.messages) < MESSAGES_MAX and not any(
            known.startswith(gist) for known in self._gists
        ):
            self._gists.append(gist)
            self.messages.append((stream, message))
        self.since_ms = min(self.since_ms, since_ms)
        if next_ms is not None and (self.next_ms is None or next_ms < self.next_ms):
            self.next_ms = next_ms

    def as_json(self) -> dict[str, object]:
        """For the page."""
        return {
            "level": self.level,
            "cause": self.kind,
            "title": self.advice.title,
            "todo": self.advice.todo,
            "runbook": self.advice.runbook,
            "since": self.since_ms,
            "next": self.next_ms,
            "streams": self.streams,
            "messages": [{"stream": stream, "text": text} for stream, text in self.messages],
        }


def cards(statuses: StatusRegistry, verdicts: dict[str, StreamVerdict]) -> list[Card]:
    """What is wrong, worst first; of one level what began first. A problem of the process
    is on the card of its streams."""
    found: dict[CauseKind, Card] = {}
    for name, message in statuses.problems.items():
        since_ms = statuses.problems.since_ms[name]
        folded = name in _FOLLOW_FROM_KAFKA and "kafka" in statuses.problems
        kind = CauseKind.KAFKA if folded else statuses.problems.causes[name].kind
        card = found.setdefault(kind, Card(_LEVELS.get(kind, "retrying"), kind, since_ms))
        card.add("", message, since_ms, None)
    for stream, verdict in verdicts.items():
        if verdict.kind is not None:
            card = found.setdefault(
                verdict.kind, Card(verdict.level, verdict.kind, verdict.since_ms)
            )
            card.add(
                stream, verdict.message, verdict.since_ms, statuses.streams[stream].next_attempt_ms
            )
    return sorted(found.values(), key=lambda card: (LEVELS.index(card.level), card.since_ms))


def headline(verdicts: Iterable[StreamVerdict], wrong: list[Card]) -> str:
    """All of it in one sentence."""
    levels = [verdict.level for verdict in verdicts]
    if not levels:
        return "The config names no stream."
    needed, retried = (
        sum(card.level in each for card in wrong) for each in (("person",), ("retrying", "behind"))
    )
    starting, total = levels.count("starting"), len(levels)
    trouble = "" if needed else " trouble" if retried == 1 else " troubles"
    parts = [
        f"{needed} {'thing needs' if needed == 1 else 'things need'} you" if needed else "",
        f"{retried}{trouble} {'is' if retried == 1 else 'are'} being retried" if retried else "",
        f"{starting} of {total} streams {'is' if starting == 1 else 'are'} starting"
        if starting
        else "",
    ]
    if any(parts):
        return ", ".join(filter(None, parts)) + f"; {_live(levels.count('live'), total)}."
    stopped = levels.count("stopped")
    if stopped:
        return f"The relay is stopping: {stopped} of {total} streams have stopped."
    standby = levels.count("standby")
    return (
        f"{total - standby} of {total} streams are live here, {standby} stand by."
        if standby
        else f"{_live(total, total)}.".capitalize()
    )


def _live(live: int, total: int) -> str:
    if live == total:
        return "the only stream is live" if total == 1 else f"all {total} streams are live"
    if not live:
        return f"none of {total} streams is live" if total > 1 else "the only stream is not live"
    return f"{live} of {total} streams {'is' if live == 1 else 'are'} live"
