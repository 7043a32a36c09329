"""What is wrong, worst first, since when, and what to do: a level per stream, a card per cause with
the streams that it affects, a headline; as JSON for the page and as text for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from watchrelay.core import clock
from watchrelay.core.text import counted, printable
from watchrelay.core.timestamps import rfc3339
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.observe.advice import ADVICE, LEVELS, Level
from watchrelay.observe.group import GroupStatus
from watchrelay.observe.status import Readiness, StatusRegistry, StreamStatus

BEHIND_AFTER_MS: Final = 5_000
"""Queued for this time without an acknowledgement is behind; produce requests take milliseconds."""
MESSAGES_MAX: Final = 3
"""Messages that a card repeats; the others are shown with their streams."""


@dataclass(frozen=True, slots=True)
class StreamVerdict:
    """The level of one stream, and why; None where nothing is wrong."""

    level: Level
    trouble: Trouble | None = None


_AT_THE_API_SERVER: Final = (
    Cause.MISSING_RIGHT,
    Cause.RESOURCE_NOT_SERVED,
    Cause.ENTRY_UNUSABLE,
)
"""While such an error is retried at once, the API server is the likelier cause."""
_FOLLOW_FROM_KAFKA: Final = ("signal", "group")
"""Problems that are no news while Kafka is away."""

_FOLLOW_TOO: Final = {Cause.BACKLOG: "kafka"}
"""Causes of streams that are the same trouble as a problem of the process while that is there."""

_VARIES: Final = re.compile(r"^(?:watch|list|get) \S+ (?:in \S+ )?at | for \d+ s\b")
"""What differs between messages that a card shows once: the request, and how long it lasts."""


def judge(status: StreamStatus, now_ms: int) -> StreamVerdict:
    """The stream's level, and its trouble. Units: wall milliseconds."""
    if status.state == "stopped":
        return StreamVerdict("stopped")
    if (wait := status.wait) is not None:
        return StreamVerdict("person", wait)
    by_person = (
        each for each in reversed(status.troubles.values()) if ADVICE[each.cause].level == "person"
    )
    if (trouble := next(by_person, status.trouble)) is not None:
        if trouble.cause in _AT_THE_API_SERVER:
            trouble = replace(trouble, cause=Cause.KUBERNETES)
        return StreamVerdict(ADVICE[trouble.cause].level, trouble)
    if status.state == "backoff":
        why = "waiting for the API server with the other streams"
        return StreamVerdict(
            "retrying", Trouble("", Cause.KUBERNETES, why, since_ms=status.state_ms)
        )
    waiting_ms = status.waiting_since_ms()
    if status.queues.dirty_keys or (waiting_ms and now_ms - waiting_ms > BEHIND_AFTER_MS):
        queued = f"{status.queues.queued_records:,} records queued"
        if status.queues.dirty_keys:
            queued += f", {status.queues.dirty_keys:,} objects waiting to be queued"
        return StreamVerdict(
            "behind", Trouble("", Cause.BACKLOG, queued, since_ms=status.queues.queued_ms)
        )
    if status.state == "standby":
        return StreamVerdict("standby")
    return StreamVerdict("live" if status.complete and status.state != "waiting" else "starting")


@dataclass(slots=True)
class Card:
    """One cause of trouble and its streams; `messages`: pairs of stream ("": the process) and
    message."""

    level: Level
    cause: Cause
    since_ms: int
    next_ms: int | None = None
    streams: list[str] = field(default_factory=list)
    messages: list[tuple[str, str]] = field(default_factory=list)
    _gists: list[str] = field(default_factory=list)

    def add(self, level: Level, stream: str, trouble: Trouble, next_ms: int | None) -> None:
        self.level = min(self.level, level, key=LEVELS.index)
        if stream:
            self.streams.append(stream)
        gist = _VARIES.sub("", trouble.message)
        if len(self.messages) < MESSAGES_MAX and not any(
            known.startswith(gist) for known in self._gists
        ):
            self._gists.append(gist)
            self.messages.append((stream, trouble.message))
        self.since_ms = min(self.since_ms, trouble.since_ms)
        if next_ms is not None and (self.next_ms is None or next_ms < self.next_ms):
            self.next_ms = next_ms

    def as_json(self, runbook_base_url: str = "") -> dict[str, object]:
        advice = ADVICE[self.cause]
        return {
            "level": self.level,
            "cause": self.cause,
            "title": advice.title,
            "todo": advice.todo,
            "runbook": advice.runbook,
            "runbookUrl": advice.runbook_url(runbook_base_url),
            "since": self.since_ms,
            "next": self.next_ms,
            "streams": self.streams,
            "messages": [{"stream": stream, "text": text} for stream, text in self.messages],
        }


def cards(statuses: StatusRegistry, verdicts: dict[str, StreamVerdict]) -> list[Card]:
    """What is wrong, worst first. A problem of the process is on the card of its streams."""
    found: dict[Cause, Card] = {}
    for name, trouble in statuses.problems.items():
        folded = name in _FOLLOW_FROM_KAFKA and "kafka" in statuses.problems
        cause = Cause.KAFKA if folded else trouble.cause
        card = found.setdefault(cause, Card(ADVICE[cause].level, cause, trouble.since_ms))
        card.add(card.level, "", trouble, None)
    for stream, verdict in verdicts.items():
        if (trouble_of := verdict.trouble) is not None:
            follows = statuses.problems.get(_FOLLOW_TOO.get(trouble_of.cause, ""), trouble_of)
            new = Card(verdict.level, follows.cause, trouble_of.since_ms)
            card = found.setdefault(follows.cause, new)
            card.add(verdict.level, stream, trouble_of, statuses.streams[stream].next_attempt_ms)
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
    runbook_base_url: str = ""


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
        "endpoints": dict(statuses.endpoints),
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
    waiting_ms, trouble = status.waiting_since_ms(), verdict.trouble
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
        "queued": status.queues.queued_records,
        "queuedBytes": status.queues.queued_bytes,
        "dirtyKeys": status.queues.dirty_keys,
        "counted": status.counted,
        "error": None if trouble is None else trouble.message,
        "errorSince": None if trouble is None else trouble.since_ms,
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
        *(
            line
            for card in seen.cards
            for line in _card_lines(card, seen.at_ms, about.runbook_base_url)
        ),
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


def _card_lines(card: Card, now_ms: int, runbook_base_url: str) -> Iterator[str]:
    yield ""
    advice = ADVICE[card.cause]
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
        yield f"   runbook: {advice.runbook_url(runbook_base_url)}"


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
