"""What is wrong, worst first, since when, and what to do: a level per stream, a card per cause with
the streams that it affects, a headline; as JSON for the page and as text for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from watchrelay.core import clock
from watchrelay.core.causes import KUBERNETES, Cause, CauseKind
from watchrelay.core.text import counted, printable
from watchrelay.core.timestamps import rfc3339
from watchrelay.observe.group import GroupStatus
from watchrelay.observe.status import Readiness, StatusRegistry, StreamStatus

Level = Literal["person", "retrying", "behind", "notice", "starting", "live", "standby", "stopped"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
"""Worst first. `person`: an operator must act. `notice`: no stream suffers."""
BEHIND_AFTER_MS: Final = 5_000
"""Queued so long without an acknowledgement is behind; produce requests take milliseconds."""
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
        return self.cause.kind if self.cause is not None else None


@dataclass(frozen=True, slots=True)
class Advice:
    """The title of a cause, what to do about it, its runbook, and how bad it is: not "retrying"
    where it is not retried, or only a person can mend it all the same."""

    title: str
    todo: str
    runbook: str = ""
    level: Level = "retrying"


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
        level="person",
    ),
    CauseKind.DUPLICATE_ENTRY: Advice(
        "Two config entries define the same stream",
        "Give one of them an id, or take it out.",
        "WatchRelayConfigReloadFailed",
        level="person",
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
        "Files that the kubeconfig names are read again without a restart, and the relay retries "
        "by itself; after a change of the kubeconfig itself, restart it.",
        "WatchRelayWatchNotActive",
        level="person",
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
        level="person",
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
        level="notice",
    ),
    CauseKind.GROUP: Advice(
        "The group of the replicas cannot be used",
        "Streams that this replica writes go on, but it takes over no others. Correct the group as "
        "the message says.",
    ),
    CauseKind.RESTART_NEEDED: Advice(
        "A configuration change requires a restart",
        "Restart when it suits: a restart replays nothing.",
        level="notice",
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
_AT_THE_API_SERVER: Final = (
    CauseKind.MISSING_RIGHT,
    CauseKind.RESOURCE_NOT_SERVED,
    CauseKind.ENTRY_UNUSABLE,
)
"""While such an error is retried at once, the API server is the likelier cause."""
_FOLLOW_FROM_KAFKA: Final = ("signal", "group")
"""Problems that are no news while Kafka is away."""

_VARIES: Final = re.compile(r"^(?:watch|list|get) \S+ (?:in \S+ )?at | for \d+ s\b")
"""What differs between messages that a card shows once: the request, and how long it lasts."""


def judge(status: StreamStatus, now_ms: int) -> StreamVerdict:
    """The stream's level, and the trouble behind it. Units: wall milliseconds."""
    if status.state == "stopped":
        return StreamVerdict("stopped", status.state_ms)
    if (wait := status.wait) is not None:
        return StreamVerdict("person", wait.since_ms, wait.cause, wait.message)
    by_person = (
        each
        for each in reversed(status.troubles.values())
        if ADVICE[each.cause.kind].level == "person"
    )
    if (trouble := next(by_person, status.trouble)) is not None:
        cause = KUBERNETES if trouble.cause.kind in _AT_THE_API_SERVER else trouble.cause
        level = ADVICE[cause.kind].level
        return StreamVerdict(level, trouble.since_ms, cause, trouble.message)
    if status.state == "backoff":
        return StreamVerdict(
            "retrying",
            status.state_ms,
            KUBERNETES,
            "waiting for the API server with the other streams",
        )
    waiting_ms = status.waiting_since_ms()
    if status.dirty_keys or (waiting_ms and now_ms - waiting_ms > BEHIND_AFTER_MS):
        queued = f"{status.queued_records:,} records queued"
        if status.dirty_keys:
            queued += f", {status.dirty_keys:,} objects waiting to be queued"
        return StreamVerdict("behind", status.queued_ms, Cause(CauseKind.BACKLOG), queued)
    if status.state == "standby":
        return StreamVerdict("standby", status.state_ms)
    return StreamVerdict(
        "live" if status.complete and status.state != "waiting" else "starting", status.state_ms
    )


@dataclass(slots=True)
class Card:
    """One cause of trouble and its streams; `messages`: pairs of stream ("": the process) and
    message."""

    level: Level
    kind: CauseKind
    since_ms: int
    next_ms: int | None = None
    streams: list[str] = field(default_factory=list)
    messages: list[tuple[str, str]] = field(default_factory=list)
    _gists: list[str] = field(default_factory=list)

    def add(
        self, level: Level, stream: str, message: str, since_ms: int, next_ms: int | None
    ) -> None:
        self.level = min(self.level, level, key=LEVELS.index)
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
        advice = ADVICE[self.kind]
        return {
            "level": self.level,
            "cause": self.kind,
            "title": advice.title,
            "todo": advice.todo,
            "runbook": advice.runbook,
            "since": self.since_ms,
            "next": self.next_ms,
            "streams": self.streams,
            "messages": [{"stream": stream, "text": text} for stream, text in self.messages],
        }


def cards(statuses: StatusRegistry, verdicts: dict[str, StreamVerdict]) -> list[Card]:
    """What is wrong, worst first. A problem of the process is on the card of its streams."""
    found: dict[CauseKind, Card] = {}
    for name, message in statuses.problems.items():
        since_ms = statuses.problems.since_ms[name]
        folded = name in _FOLLOW_FROM_KAFKA and "kafka" in statuses.problems
        kind = CauseKind.KAFKA if folded else statuses.problems.causes[name].kind
        card = found.setdefault(kind, Card(ADVICE[kind].level, kind, since_ms))
        card.add(card.level, "", message, since_ms, None)
    for stream, verdict in verdicts.items():
        if verdict.kind is not None:
            card = found.setdefault(
                verdict.kind, Card(verdict.level, verdict.kind, verdict.since_ms)
            )
            next_ms = statuses.streams[stream].next_attempt_ms
            card.add(verdict.level, stream, verdict.message, verdict.since_ms, next_ms)
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


_SETTLED_MS = 1_000
"""A wait for an acknowledgement is shown from here on; shorter ones are usual."""
_COLUMNS = ("STREAM", "STATE", "SINCE", "OBJECTS", "EVENTS/S", "LAG", "SNAPSHOT", "EPOCH")
_SHARED_COLUMNS = (*_COLUMNS, "OWNER")
_MARKS = {"person": "!!", "retrying": "! ", "behind": "! ", "notice": "- "}


@dataclass(frozen=True, slots=True)
class About:
    """Whose admin server this is."""

    cluster: str = ""
    instance: str = ""
    version: str = ""
    started_ms: int = 0


@dataclass(frozen=True, slots=True)
class Overview:
    """What is true at one moment. Units: wall milliseconds; `rows` in config order."""

    at_ms: int
    relay: dict[str, object]
    rows: dict[str, dict[str, object]]
    cards: list[Card]


def overview(statuses: StatusRegistry, readiness: Readiness, about: About) -> Overview:
    now_ms = clock.wall_ms()
    verdicts = {name: judge(status, now_ms) for name, status in statuses.streams.items()}
    wrong = cards(statuses, verdicts)
    relay: dict[str, object] = {
        "cluster": about.cluster,
        "instance": about.instance,
        "version": about.version,
        "started": about.started_ms,
        "ready": readiness.check()[0],
        "headline": headline(verdicts.values(), wrong),
        "group": None if statuses.group is None else statuses.group.as_json(),
    }
    return Overview(
        now_ms,
        relay,
        {name: row(statuses.streams[name], verdict, now_ms) for name, verdict in verdicts.items()},
        wrong,
    )


def row(status: StreamStatus, verdict: StreamVerdict, now_ms: int) -> dict[str, object]:
    """One stream. It changes only when something happened: a stream at rest is not sent again."""
    waiting_ms = status.waiting_since_ms()
    return {
        "stream": status.stream,
        "level": verdict.level,
        "state": status.state,
        "since": status.state_ms,
        "topic": status.topic,
        "owner": status.owner,
        "objects": status.objects,
        "listed": status.listed if status.state == "listing" else None,
        "epoch": status.epoch,
        "frontier": status.frontier,
        "complete": status.complete,
        "pace": status.event_rate.latest(),
        "lag": None
        if status.lag_ms is None
        else round(status.lag_ms, 1 if status.lag_ms < 10 else 0),
        "waiting": waiting_ms if waiting_ms and now_ms - waiting_ms > _SETTLED_MS else None,
        "queued": status.queued_records,
        "queuedBytes": status.queued_bytes,
        "dirtyKeys": status.dirty_keys,
        "error": verdict.message or None,
        "errorSince": verdict.since_ms if verdict.message else None,
        "next": status.next_attempt_ms,
        "lastEvent": status.last_event_ms,
        "lastBookmark": status.last_bookmark_ms,
        "lastSnapshot": status.last_snapshot,
        "transitionCount": status.transitions_count,
    }


def as_text(statuses: StatusRegistry, readiness: Readiness, about: About) -> str:
    """The overview for a terminal: what is wrong, then a line for each stream, worst first."""
    seen = overview(statuses, readiness, about)
    up, ready = (
        duration(seen.at_ms - about.started_ms),
        "ready" if seen.relay["ready"] else "not ready",
    )
    levels = list[str](LEVELS)
    lines = [
        f"watchrelay {about.version} for {about.cluster}, {about.instance}, up {up}, {ready}",
        str(seen.relay["headline"]),
        *(line for card in seen.cards for line in _card_lines(card, seen.at_ms)),
        *_replica_lines(statuses.group),
        "",
        *_table(
            _COLUMNS if statuses.group is None else _SHARED_COLUMNS,
            (
                _cells(statuses.streams[str(each["stream"])], seen.at_ms)
                for each in sorted(
                    seen.rows.values(), key=lambda row: levels.index(str(row["level"]))
                )
            ),
        ),
    ]
    return "\n".join(printable(line) for line in lines) + "\n"


def _card_lines(card: Card, now_ms: int) -> Iterator[str]:
    yield ""
    advice = ADVICE[card.kind]
    again = (
        ""
        if card.next_ms is None or card.next_ms < now_ms
        else f", tried again in {duration(card.next_ms - now_ms)}"
    )
    since = f"{rfc3339(card.since_ms)} ({duration(now_ms - card.since_ms)})"
    yield f"{_MARKS.get(card.level, '- ')} {advice.title}, since {since}{again}"
    if card.streams:
        more = len(card.streams) - 8
        yield f"   streams: {', '.join(card.streams[:8])}{f' and {more} more' if more > 0 else ''}"
    for stream, message in card.messages:
        yield f"   {f'{stream}: ' if stream else ''}{message}"
    yield f"   do: {advice.todo}"
    if advice.runbook:
        yield f"   runbook: {advice.runbook}"


def _replica_lines(group: GroupStatus | None) -> Iterator[str]:
    if group is None:
        return
    yield ""
    yield f"replicas: {len(group.members) or 'not known yet'}"
    for each in group.members:
        marks = (
            ("leader", each.holder == group.leader),
            ("this one", each.holder == group.holder),
            ("unfit", not each.fit),
            ("leaving", each.leaving),
        )
        words = [counted(each.assigned, "stream"), *(word for word, true in marks if true)]
        yield f"   {each.holder}: {', '.join(words)}, config {each.config_hash}"


def _cells(status: StreamStatus, now_ms: int) -> tuple[str, ...]:
    per_s = status.event_rate.per_s(now_ms)
    waiting_ms = status.waiting_since_ms()
    lag_ms = max(status.lag_ms or 0.0, now_ms - waiting_ms if waiting_ms else 0)
    return (
        status.stream,
        status.state,
        duration(now_ms - status.state_ms),
        str(status.objects),
        f"{per_s:.1f}" if per_s < 10 else f"{per_s:.0f}",
        duration(lag_ms) if status.lag_ms is not None or waiting_ms else "-",
        status.last_snapshot or "-",
        "-" if status.epoch is None else str(status.epoch),
        status.owner or "-",
    )


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """`rows` below their columns; cells without a column are left out."""
    table = [columns, *(row[: len(columns)] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in table
    ]


def duration(took_ms: float) -> str:
    """How long, as people say it. Units: milliseconds."""
    took_s = int(max(0.0, took_ms) // 1000)
    if took_s < 1:
        return f"{max(0.0, took_ms):.0f} ms"
    if took_s < 60:
        return f"{took_s} s"
    if took_s < 3600:
        return f"{took_s // 60} min"
    hours, minutes = divmod(took_s // 60, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"
