"""Keeps a store equal to the server, and hands every change on in the step that made it.

Room: store. In: what the watch says (the watch's `Outlet`). Out: changes and progress, to an
`Outbox`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from watchrelay.contract.wire import Reason
from watchrelay.core import clock
from watchrelay.model.changes import ObjectChange
from watchrelay.model.frames import ObjectFrame
from watchrelay.model.resources import compare
from watchrelay.model.watch_events import (
    Gone,
    ListBegun,
    ListDone,
    Listed,
    Observed,
    Progressed,
    Troubled,
    Watched,
)
from watchrelay.observe.metrics import StreamMetrics
from watchrelay.observe.status import StreamStatus
from watchrelay.store.objects import Store

log = logging.getLogger(__name__)

GAUGE_EVERY_MS = 250
"""Timestamps are shown this late at most: setting a gauge costs as much as looking up an object."""


class Outbox(Protocol):
    """Whoever publishes."""

    async def room(self) -> None:
        """Returns when more is taken."""
        ...

    def push(self, changes: Sequence[ObjectChange], *, reason: Reason, received_s: float) -> None:
        """Queue `changes`, in the step that changed the store. Units: `received_s` is monotonic,
        0.0 for what no watch brought."""
        ...

    def synced(self, resource_version: str) -> None:
        """The store is whole at this version. After the first time the first snapshot may be cut
        from it."""
        ...

    def progressed(self, resource_version: str) -> None:
        """Every change up to this version was pushed before, or was suppressed."""
        ...

    def heard(self, at_ms: int) -> None:
        """The API server was heard. Units: wall milliseconds."""
        ...


@dataclass(slots=True)
class _Doubt:
    """What a list found, until the watch, which goes on from before the list, has passed it. Shape:
    `keys` that it has not shown yet."""

    until: str
    keys: set[bytes]


class Reflector:
    """One stream's store, fed by one task. No await stands between a change of the store and its
    push."""

    def __init__(
        self,
        store: Store,
        outbox: Outbox,
        *,
        metrics: StreamMetrics,
        status: StreamStatus,
        resumed: bool = False,
        version: str = "",
        wall_ms: Callable[[], int] = clock.wall_ms,
    ) -> None:
        """Shape: `resumed`: the store was filled from a log, whose newest version is `version`; of
        the server nothing was heard since."""
        self._store = store
        self._resumed = resumed
        self._outbox = outbox
        self._metrics = metrics
        self._status = status
        self._wall_ms = wall_ms
        self._version = version or "0"
        """The newest version that a list, a bookmark or a batch gave: what a removal carries that
        no list dates."""
        self._gone = False
        self._doubt: _Doubt | None = None
        self._counted = -1
        self._event_shown_ms = 0
        self._heard_shown_ms = 0

    async def take(self, event: Watched) -> bool:
        """Take what the watch says. False: the list that ended is implausible and changed nothing;
        ask once more (WATCH 5.8)."""
        match event:
            case Observed():
                await self._outbox.room()
                if self._doubt is not None:
                    event = Observed(self._news(event.frames, self._doubt), event.received_s)
                if event.frames:
                    self._observed(event)
            case Progressed():
                if (
                    self._doubt is not None
                    and compare(event.resource_version, self._doubt.until) == -1
                ):
                    self._heard()
                    return True
                self._conclude()
                self._version = event.resource_version
                self._resumed = False
                self._heard()
                self._store.passed(event.resource_version)
                self._outbox.progressed(event.resource_version)
            case ListBegun(by_content=by_content):
                self._store.begin_list(by_content=by_content)
                self._status.listed = 0
            case Listed():
                self._heard()
                self._filtered(
                    self._store.stage(
                        event.objects, unreadable=event.unreadable, damaged=event.damaged
                    )
                )
                self._status.listed = self._store.staged
            case ListDone():
                self._heard()
                if not event.confirmed and self._store.implausible():
                    self._disbelieve()
                    return False
                await self._outbox.room()
                self._done(event)
            case Gone():
                await self._outbox.room()
                self._cleared()
            case Troubled():
                pass
            case _:
                assert_never(event)
        return True

    def _observed(self, event: Observed) -> None:
        applied = self._store.apply(event.frames)
        if applied.changes:
            self._outbox.push(applied.changes, reason="watch", received_s=event.received_s)
        now_ms = self._heard()
        self._status.last_event_ms = now_ms
        metrics = self._metrics
        if now_ms - self._event_shown_ms >= GAUGE_EVERY_MS:
            self._event_shown_ms = now_ms
            metrics.last_event_timestamp_seconds.set(now_ms / 1000)
        if applied.suppressed:
            metrics.events_filtered_total["suppressed"].inc(applied.suppressed)
        if applied.repeated:
            metrics.events_deduplicated_total.inc(applied.repeated)
        self._filtered(applied.elsewhere)
        self._count()

    def _done(self, event: ListDone) -> None:
        replaced = self._store.replace(event.resource_version)
        resumed, self._resumed = self._resumed, False
        if replaced.changes:
            self._outbox.push(
                replaced.changes, reason="resume" if resumed else "relist", received_s=0.0
            )
        self._version = event.resource_version
        self._outbox.synced(event.resource_version)
        if resumed:
            log.info(
                "list compared with the log",
                extra={"stream": self._status.stream, "differences": replaced.missed},
            )
        if event.since:
            # Where the log was all that was known, and where an earlier such list is in doubt
            # still: the watch shows it all the same.
            earlier = self._doubt.keys if self._doubt is not None else set[bytes]()
            self._doubt = _Doubt(
                event.resource_version, earlier | {change.key for change in replaced.changes}
            )
        else:
            self._conclude()
            if replaced.missed and not (resumed or self._gone):
                self._missed(replaced.missed, logging.INFO)
        if replaced.kept:
            log.warning(
                "list has objects that cannot be decoded: their last states are kept",
                extra={"stream": self._status.stream, "kept": replaced.kept},
            )
        self._gone = False
        self._count()

    def _news(self, frames: Sequence[ObjectFrame], doubt: _Doubt) -> list[ObjectFrame]:
        """Those of `frames` that came after the list; what came before stands in the list, and was
        not missed."""
        news: list[ObjectFrame] = []
        for frame in frames:
            if compare(frame.resource_version, doubt.until) in {-1, 0}:
                doubt.keys.discard(self._store.key_of(frame))
            else:
                news.append(frame)
        if len(news) < len(frames):
            self._heard()
            self._metrics.events_deduplicated_total.inc(len(frames) - len(news))
        if news:
            self._conclude()
        return news

    def _conclude(self) -> None:
        """The watch has shown all that it would have shown of what the list found."""
        doubt, self._doubt = self._doubt, None
        if doubt is not None and doubt.keys:
            self._missed(len(doubt.keys), logging.WARNING)

    def _missed(self, changes: int, level: int) -> None:
        self._metrics.missed_changes_total.inc(changes)
        log.log(
            level,
            "list found changes that the watch did not show",
            extra={"stream": self._status.stream, "missed": changes},
        )

    def _disbelieve(self) -> None:
        log.warning(
            "list lost more than half of the objects held and is asked once more",
            extra={
                "stream": self._status.stream,
                "held": len(self._store),
                "listed": self._store.staged,
            },
        )
        self._store.void_list()

    def _cleared(self) -> None:
        """The resource is served no longer; nothing dates the removals but the last version
        heard."""
        changes = self._store.clear(self._version)
        if changes:
            self._outbox.push(changes, reason="relist", received_s=0.0)
        self._gone = True
        self._count()

    def _heard(self) -> int:
        now_ms = self._wall_ms()
        self._outbox.heard(now_ms)
        if now_ms - self._heard_shown_ms >= GAUGE_EVERY_MS:
            self._heard_shown_ms = now_ms
            self._metrics.last_heard_timestamp_seconds.set(now_ms / 1000)
        return now_ms

    def _filtered(self, elsewhere: int) -> None:
        if elsewhere:
            self._metrics.events_filtered_total["namespace"].inc(elsewhere)

    def _count(self) -> None:
        held = len(self._store)
        if held != self._counted:
            self._counted = self._status.objects = held
            self._metrics.store_objects.set(held)
