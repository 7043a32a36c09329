"""Keeps a store equal to the API server, and publishes every change in the step that made it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

from watchrelay.contract.wire import Reason
from watchrelay.core import clock
from watchrelay.model.changes import ObjectChange
from watchrelay.model.frames import ObjectFrame
from watchrelay.model.resources import compare
from watchrelay.model.watch_output import (
    ListBegun,
    ListDone,
    ListedObjects,
    ResourceRemoved,
    ServerSeen,
    Watched,
    WatchOutput,
)
from watchrelay.observe.metrics import StreamMetrics
from watchrelay.observe.status import StreamStatus
from watchrelay.store.objects import Pieces, Store

log = logging.getLogger(__name__)


class ChangePublisher(Protocol):
    """Publishes the changes of one store. Implemented and described by publish/writer.py.
    `received_at_s` is monotonic, 0.0 for changes of a list; `at_ms` is wall time."""

    async def room(self) -> None: ...
    def has_room(self) -> bool: ...
    def push(
        self, changes: Sequence[ObjectChange], *, reason: Reason, received_at_s: float
    ) -> None: ...
    def list_completed(self, resource_version: str) -> None: ...
    def version_reached(self, resource_version: str) -> None: ...
    def resource_removed(self) -> None: ...
    def server_seen(self, at_ms: int) -> None: ...


class Reflector:
    """Feeds one stream's store, in one task. There is no await between a change of the store and
    its push."""

    def __init__(
        self,
        stream: str,
        store: Store,
        publisher: ChangePublisher,
        *,
        metrics: StreamMetrics,
        status: StreamStatus,
        recovered: bool = False,
        version: str = "",
        wall_ms: Callable[[], int] = clock.wall_ms,
    ) -> None:
        """`recovered`: the store was recovered from a log whose newest version is `version`."""
        self._store, self._publisher, self._recovered = store, publisher, recovered
        self._stream, self._metrics, self._status, self._wall_ms = stream, metrics, status, wall_ms
        self._version = version or "0"
        """The newest version of a list, a bookmark or a batch: that of removals without one."""
        self._resource_removed = False
        self._unshown = set[bytes]()
        """Changes found by a list that the watch, which continues from before the list, has not
        shown yet."""
        self._kept = set[bytes]()
        """Keys that are missing in that list, and stay because it had undecodable objects."""
        self._list_version: str | None = None
        """The version of that list, until the watch has passed it; else None."""
        self._counted = -1

    async def take(self, output: WatchOutput) -> bool:
        """Apply an output of the watch.

        Returns: False when the list that ended is suspicious: nothing was changed, and a second
            list must confirm it. See docs/watch-facts.md 5.8.
        """
        match output:
            case Watched():
                at_ms = self._wall_ms()
                if output.frames:
                    await self._publisher.room()
                self.take_now(output, at_ms)
            case ListBegun(by_content=by_content):
                self._store.begin_list(by_content=by_content)
            case ListedObjects():
                elsewhere = self._store.stage(
                    output.objects, unreadable=output.unreadable, damaged=output.damaged
                )
                self._filtered(elsewhere)
            case ListDone():
                if not output.accept_any_size and self._store.suspicious():
                    log.warning(
                        "list lost more than half of the held objects: relisting",
                        extra={
                            "stream": self._stream,
                            "held": len(self._store),
                            "listed": self._store.staged,
                        },
                    )
                    self._store.void_list()
                    return False
                at_ms = self._wall_ms()
                await self._publisher.room()
                await self._done(output, at_ms)
            case ResourceRemoved():
                await self._publisher.room()
                await self._cleared()
            case ServerSeen(ago_s=ago_s):
                self._server_seen(self._wall_ms() - math.ceil(ago_s * 1000))
            case _:
                assert_never(output)
        return True

    def ready(self) -> bool:
        """Whether there is room for changes."""
        return self._publisher.has_room()

    def lacks(self, frame: ObjectFrame) -> bool:
        """Whether the store lacks an object, in the state of the server or in a newer one."""
        return self._store.lacks(frame)

    def holds_up_to(self, version: str) -> bool:
        """Whether the store has an object last changed at `version` or before."""
        return self._store.holds_up_to(version)

    def take_now(self, output: Watched, at_ms: int | None = None) -> None:
        """Apply at once what the watch shows; changes only while there is room. `at_ms`: when it
        was received, wall time; now if absent."""
        frames, version = output.frames, output.cursor
        if self._list_version is not None:
            frames = self._newer_than_list(frames, self._list_version)
        if frames:
            self._apply(frames, output.received_at_s)
        self._publisher.server_seen(self._wall_ms() if at_ms is None else at_ms)
        if not version:
            return
        if self._list_version is not None:
            if compare(version, self._list_version) == -1:
                return
            self._count_missed()
        self._version, self._recovered = version, False
        self._store.passed(version)
        self._publisher.version_reached(version)

    def _apply(self, frames: Sequence[ObjectFrame], received_at_s: float) -> None:
        applied = self._store.apply(frames)
        if applied.changes:
            self._publisher.push(applied.changes, reason="watch", received_at_s=received_at_s)
        metrics = self._metrics
        if applied.suppressed:
            reason = "ignored" if self._store.counts else "suppressed"
            metrics.events_filtered_total[reason].inc(applied.suppressed)
        if applied.repeated:
            metrics.events_deduplicated_total.inc(applied.repeated)
        self._filtered(applied.elsewhere)
        self._count()

    async def _push(self, pieces: Pieces, reason: Reason) -> set[bytes]:
        """Push the changes in `pieces`, and let the event loop have its turn between two of them.
        Returns their keys.

        Cancelled in between, it leaves store and log as if the server had shown no more than this.
        """
        keys = set[bytes]()
        for piece in pieces:
            if piece:
                self._publisher.push(piece, reason=reason, received_at_s=0.0)
                keys.update(change.key for change in piece)
            if self._store.in_difference:
                await self._turn()
        return keys

    async def _turn(self) -> None:
        await asyncio.sleep(0)

    async def _done(self, event: ListDone, at_ms: int) -> None:
        replaced = self._store.replace(event.resource_version)
        recovered, self._recovered = self._recovered, False
        changed = await self._push(replaced.pieces, "resume" if recovered else "relist")
        self._server_seen(at_ms)
        self._version = event.resource_version
        self._publisher.list_completed(event.resource_version)
        if recovered:
            log.info(
                "list compared with the log",
                extra={"stream": self._stream, "differences": replaced.missed},
            )
        if event.continue_from:
            # Where the log was all that was known, and where an earlier such list is in `_unshown`
            # still: the watch shows it all the same.
            self._list_version = event.resource_version
            self._unshown |= changed - replaced.unsure
            self._kept = replaced.kept
        else:
            self._count_missed()
            if replaced.missed and not (recovered or self._resource_removed):
                self._missed(replaced.missed, logging.INFO)
        if replaced.kept:
            log.warning(
                "list has objects that cannot be decoded: keeping their last states",
                extra={"stream": self._stream, "kept": len(replaced.kept)},
            )
        self._resource_removed = False
        self._count()

    def _newer_than_list(self, frames: Sequence[ObjectFrame], until: str) -> list[ObjectFrame]:
        """The frames newer than the list, and those of keys that it kept: all others are part of
        it, and were not missed."""
        news: list[ObjectFrame] = []
        has_passed = False
        for frame in frames:
            if compare(frame.resource_version, until) not in {-1, 0}:
                has_passed = True
            elif (key := self._store.key_of(frame.namespace, frame.name)) not in self._kept:
                self._unshown.discard(key)
                continue
            news.append(frame)
        if len(news) < len(frames):
            self._metrics.events_deduplicated_total.inc(len(frames) - len(news))
        if has_passed:
            self._count_missed()
        return news

    def _count_missed(self) -> None:
        """Count the listed changes that the watch has not shown by now."""
        if self._unshown:
            self._missed(len(self._unshown), logging.WARNING)
            self._unshown = set()
        self._kept = set()
        self._list_version = None

    def _missed(self, changes: int, level: int) -> None:
        self._metrics.missed_changes_total.inc(changes)
        log.log(
            level,
            "list found changes missed by the watch",
            extra={"stream": self._stream, "missed": changes},
        )

    async def _cleared(self) -> None:
        """The resource is no longer served: remove all objects, at the last version seen."""
        # first: after a stop between two pieces the next start must list, as no watch would show
        # the removed objects if they were served again
        self._publisher.resource_removed()
        await self._push(self._store.clear(self._version), "relist")
        self._resource_removed = True
        self._count()

    def _server_seen(self, at_ms: int) -> None:
        """Called once all that the server sent up to `at_ms` is pushed: not for the pages of a
        list, whose changes come with its end."""
        self._publisher.server_seen(at_ms)

    def _filtered(self, elsewhere: int) -> None:
        if elsewhere:
            self._metrics.events_filtered_total["namespace"].inc(elsewhere)

    def _count(self) -> None:
        held = len(self._store)
        if held != self._counted:
            self._counted = self._status.objects = held
            self._metrics.store_objects.set(held)
