"""The overview of all streams: rows, cards and a headline, as JSON for the page and as text for a
terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from watchrelay.core import clock
from watchrelay.core.text import printable
from watchrelay.core.timestamps import rfc3339
from watchrelay.observe.health import Readiness
from watchrelay.observe.status import StatusRegistry, StreamStatus
from watchrelay.observe.verdicts import LEVELS, Card, StreamVerdict, cards, headline, judge

_SETTLED_MS = 1_000
"""A wait for an acknowledgement is shown from here on; shorter ones are usual."""
_COLUMNS = ("STREAM", "STATE", "SINCE", "OBJECTS", "EVENTS/S", "LAG", "SNAPSHOT", "EPOCH")
_MARKS = {"person": "!!", "retrying": "! ", "behind": "! ", "notice": "- "}


@dataclass(frozen=True, slots=True)
class About:
    """Whose window this is."""

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
    """Look at the statuses."""
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
    }
    return Overview(
        now_ms,
        relay,
        {name: row(statuses.streams[name], verdict, now_ms) for name, verdict in verdicts.items()},
        wrong,
    )


def row(status: StreamStatus, verdict: StreamVerdict, now_ms: int) -> dict[str, object]:
    """One stream. It changes only when something happened, so that a stream at rest is not sent
    again."""
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
        "told": status.transitions_count,
    }


def as_text(statuses: StatusRegistry, readiness: Readiness, about: About) -> str:
    """The overview for a terminal: what is wrong, then a table: printable, one line a
    stream; worst first."""
    seen = overview(statuses, readiness, about)
    up, ready = (
        duration(seen.at_ms - about.started_ms),
        "ready" if seen.relay["ready"] else "not ready",
    )
    lines = [
        f"watchrelay {about.version} for {about.cluster}, {about.instance}, up {up}, {ready}",
        str(seen.relay["headline"]),
        *(line for card in seen.cards for line in _card_lines(card, seen.at_ms)),
        "",
        *_table(
            _cells(statuses.streams[str(each["stream"])], seen.at_ms) for each in _worst_first(seen)
        ),
    ]
    return "\n".join(printable(line) for line in lines) + "\n"


def _worst_first(seen: Overview) -> list[dict[str, object]]:
    return sorted(
        seen.rows.values(), key=lambda each: [*map(str, LEVELS)].index(str(each["level"]))
    )


def _card_lines(card: Card, now_ms: int) -> Iterator[str]:
    yield ""
    again = (
        ""
        if card.next_ms is None or card.next_ms < now_ms
        else f", tried again in {duration(card.next_ms - now_ms)}"
    )
    since = f"{rfc3339(card.since_ms)} ({duration(now_ms - card.since_ms)})"
    yield f"{_MARKS.get(card.level, '- ')} {card.advice.title}, since {since}{again}"
    if card.streams:
        more = len(card.streams) - 8
        yield f"   streams: {', '.join(card.streams[:8])}{f' and {more} more' if more > 0 else ''}"
    for stream, message in card.messages:
        yield f"   {f'{stream}: ' if stream else ''}{message}"
    yield f"   do: {card.advice.todo}"
    if card.advice.runbook:
        yield f"   runbook: {card.advice.runbook}"


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
    )


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    table = [_COLUMNS, *rows]
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
