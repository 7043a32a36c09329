"""How long the watch waits before it reads on, so that the queues stay small, and within their
bound where the config demands it (`overload: block`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from watchrelay.observe.metrics import StreamMetrics
from watchrelay.publish.stream_queues import StreamQueues

SOFT_BYTES = 8 * 1024 * 1024
"""Raw values are kept in the queues up to this (more than two full batches for each of six
partitions); beyond it a record refers to the packed value of the store, and is unpacked later
(6 us)."""
YIELD_S = 0.05
"""Beyond `SOFT_BYTES` the watch waits this long at most, so that a sink that keeps up is never
given packed values."""
SNAPSHOT_TURN_S = 0.1
"""With `overload: block`, nothing more is read once a snapshot could not queue a member for this
long, until it could. So a snapshot ends under any load: it needs as many turns as it has objects at
most, and each costs this and the time that Kafka needs for what is queued."""


class Backpressure:
    """Delays the watch.

    Args:
        soft_bytes: From this size on, each read waits up to `YIELD_S` while that helps.
        bound_bytes: Over this size, no read at all. None: no bound.
    """

    def __init__(
        self,
        queues: StreamQueues,
        metrics: StreamMetrics,
        *,
        soft_bytes: int,
        bound_bytes: int | None,
        now_s: Callable[[], float],
    ) -> None:
        self._queues, self._metrics, self._now_s = queues, metrics, now_s
        self._soft_bytes, self._bound_bytes = soft_bytes, bound_bytes
        self._flowing = True  # something was acknowledged since the last wait in vain
        self._progress = asyncio.Event()
        self._stalled_since_s: float | None = None
        """Since when a snapshot has members left and could queue none."""

    def progressed(self) -> None:
        """Records were acknowledged, or need not be published any more."""
        self._flowing = True
        self._progress.set()

    async def progress(self) -> None:
        """Return at the next call of `progressed`."""
        self._progress.clear()
        await self._progress.wait()

    def snapshot_stepped(self, *, unfinished: bool, moved: bool) -> None:
        """A snapshot took what room there was: `moved`, it queued members; `unfinished`, it has
        more."""
        if moved or not unfinished:
            self._stalled_since_s = None
            self._progress.set()
        if unfinished and self._stalled_since_s is None:
            self._stalled_since_s = self._now_s()

    def _must_wait(self, bound_bytes: int) -> bool:
        since_s = self._stalled_since_s
        return self._queues.held_bytes > bound_bytes or (
            since_s is not None and self._now_s() - since_s > SNAPSHOT_TURN_S
        )

    async def room(self) -> None:
        """Return when more may be read."""
        if self._flowing and self._queues.held_bytes > self._soft_bytes:
            try:  # let the sink catch up
                async with asyncio.timeout(YIELD_S):
                    await self.progress()
            except TimeoutError:
                self._flowing = False
        while self._bound_bytes is not None and self._must_wait(self._bound_bytes):
            began_s = self._now_s()
            await self.progress()
            self._metrics.backpressure_seconds_total.inc(max(0.0, self._now_s() - began_s))
