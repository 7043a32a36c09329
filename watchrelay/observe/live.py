"""Server-sent events for the status page: one update a second for all viewers, if any."""

from __future__ import annotations

import asyncio
import html
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

import msgspec

from watchrelay.core import clock
from watchrelay.observe.overview import About, Overview, as_text, overview
from watchrelay.observe.status import Readiness, StatusRegistry

TICK_S: Final = 1.0
VIEWERS_MAX: Final = 32
"""Pages that are kept fresh at once. The next one gets 503 and polls every few seconds."""
RETRY_MS: Final = 1_000
"""How soon a browser connects again. Source: the HTML standard, server-sent events, `retry`."""

_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Picture:
    """The overview at one moment, encoded; `news` is the event that leads to it from the
    previous one."""

    number: int
    due_s: float
    seen: Overview
    rows: dict[str, bytes]
    cards: bytes
    relay: bytes
    news: bytes = b""
    whole: bytes | None = None

    @property
    def head(self) -> bytes:
        """The time, and the number by which the page orders what it receives: clocks are set."""
        return b'"at":%d,"number":%d' % (self.seen.at_ms, self.number)


class LiveStatus:
    """Encoded overviews, made on request once older than `TICK_S`, dropped with the last viewer."""

    def __init__(self, statuses: StatusRegistry, readiness: Readiness, about: About) -> None:
        self._statuses, self._readiness, self._about = statuses, readiness, about
        self._picture: _Picture | None = None
        self._number = 0
        self._ended = asyncio.Event()
        self.viewers = 0

    @property
    def full(self) -> bool:
        return self.viewers >= VIEWERS_MAX or self._ended.is_set()

    def end(self) -> None:
        """Every viewer's events end now: the admin server closes."""
        self._ended.set()

    def whole(self) -> bytes:
        """The present picture as one JSON object, at most a tick old."""
        picture = self._present()
        if picture.whole is None:
            streams = self._statuses.streams.items()
            history = _encode({name: status.event_rate.history() for name, status in streams})
            rows = b",".join(picture.rows.values())
            picture.whole = b'{%b,"relay":%b,"cards":%b,"rows":[%b],"history":%b}' % (
                picture.head,
                picture.relay,
                picture.cards,
                rows,
                history,
            )
        whole = picture.whole
        if not self.viewers:
            self._picture = None
        return whole

    def text(self) -> str:
        return as_text(self._statuses, self._readiness, self._about)

    def transitions(self, stream: str) -> bytes | None:
        """One stream with its recent transitions, newest first; None when there is no such
        stream."""
        status = self._statuses.streams.get(stream)
        if status is None:
            return None
        return _encode({**status.as_json(), "transitions": status.history_json()})

    async def events(self) -> AsyncGenerator[bytes]:
        """Events for one viewer: the whole picture, then each second what changed; a slow
        one gets the whole again."""
        self.viewers += 1
        try:
            yield b"retry: %d\n\n" % RETRY_MS
            shown = None
            while not self._ended.is_set():
                picture = self._present()
                if shown == picture.number - 1:
                    yield picture.news
                elif shown != picture.number:
                    yield b"event: all\ndata: %b\n\n" % self.whole()
                shown = picture.number
                await self._pause(picture.due_s - clock.now_s())
        finally:
            self.viewers -= 1
            if not self.viewers:
                self._picture = None

    async def _pause(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, wait_s)):
                await self._ended.wait()
        except TimeoutError:
            return

    def _present(self) -> _Picture:
        before, now_s = self._picture, clock.now_s()
        if before is not None and now_s < before.due_s:
            return before
        seen = overview(self._statuses, self._readiness, self._about)
        self._number += 1
        runbooks = self._about.runbook_base_url
        picture = self._picture = _Picture(
            number=self._number,
            due_s=now_s + TICK_S,
            seen=seen,
            rows={name: _encode(row) for name, row in seen.rows.items()},
            cards=_encode([card.as_json(runbooks) for card in seen.cards]),
            relay=_encode(seen.relay),
        )
        if before is not None:
            picture.news = _news(before, picture)
        return picture


def _news(before: _Picture, now: _Picture) -> bytes:
    """The event that leads from one picture to the next; the head alone where nothing happened."""
    parts = [now.head]
    changed = [row for name, row in now.rows.items() if row != before.rows.get(name)]
    if changed:
        parts.append(b'"rows":[%b]' % b",".join(changed))
    if now.rows.keys() != before.rows.keys():
        parts.append(b'"order":%b' % _encode(list(now.rows)))
    if now.cards != before.cards:
        parts.append(b'"cards":%b' % now.cards)
    if now.relay != before.relay:
        parts.append(b'"relay":%b' % now.relay)
    return b"event: news\ndata: {%b}\n\n" % b",".join(parts)


def first_paint(page: str, text: str, whole: bytes) -> str:
    """The page with what is true now: as text, and as data for its script, which paints it without
    asking again."""
    data = whole.decode().replace("<", "\\u003c")
    return page.replace("<!--text-->", html.escape(text), 1).replace("<!--first-->", data, 1)
