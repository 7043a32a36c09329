"""How long the watch waits before more is read, so that what is queued stays small, and where the
config wants that, within its bound.

Room: relay. In: acknowledgements, bytes held. Out: the moment to read on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from watchrelay.observe.metrics import StreamMetrics
from watchrelay.publish.partition_queue import Sequencer

SOFT_BYTES = 8 * 1024 * 1024
"""Raw values are kept in the queue up to this (more than two full batches for each of six
partitions); behind it a record keeps what the store holds anyway, and is unpacked again (6 us)."""
YIELD_S = 0.05
"""With that much queued the watch waits for the sink so long at most: a sink that keeps up is never
given more to be unpacked."""


TURN_S = 0.1
"""Where the watch waits for room (`overload: block`), a snapshot that comes to no word for so long
has its turn: nothing more is read until it said something. So a snapshot ends under any load: it
needs as many turns as it has objects at most, and a turn costs this and the time that Kafka takes
for what is queued; the queue keeps Kafka busy meanwhile."""


class Inflow:
    """Holds the watch back. Shape: from `soft_bytes` on for a moment, where that helps; over
    `bound_bytes` (None: none) for good."""

    def __init__(
        self,
        queues: Sequencer,
        metrics: StreamMetrics,
        *,
        soft_bytes: int,
        bound_bytes: int | None,
        now_s: Callable[[], float],
    ) -> None:
        self._queues, self._metrics, self._now_s = queues, metrics, now_s
        self._soft_bytes, self._bound_bytes = soft_bytes, bound_bytes
        self._flowing = True  # something was acknowledged since waiting for it was in vain
        self._progress = asyncio.Event()
        self._mute_since_s: float | None = None
        """Since when a snapshot has objects to say and says none."""

    def progressed(self) -> None:
        """Something was acknowledged, or need not be said any more."""
        self._flowing = True
        self._progress.set()

    async def progress(self) -> None:
        """The next time that `progressed` is called."""
        self._progress.clear()
        await self._progress.wait()

    def stepped(self, *, cutting: bool, moved: bool) -> None:
        """A snapshot took what room there was: `moved`, it said something; `cutting`, it has more
        to say."""
        if moved or not cutting:
            self._mute_since_s = None
            self._progress.set()
        if cutting and self._mute_since_s is None:
            self._mute_since_s = self._now_s()

    def _must_wait(self, bound_bytes: int) -> bool:
        since_s = self._mute_since_s
        return self._queues.held_bytes > bound_bytes or (
            since_s is not None and self._now_s() - since_s > TURN_S
        )

    async def room(self) -> None:
        """Return when more may be read."""
        if self._flowing and self._queues.held_bytes > self._soft_bytes:
            try:  # let the sink catch up, if it does
                async with asyncio.timeout(YIELD_S):
                    await self.progress()
            except TimeoutError:
                self._flowing = False
        while self._bound_bytes is not None and self._must_wait(self._bound_bytes):
            began_s = self._now_s()
            await self.progress()
            self._metrics.backpressure_seconds_total.inc(max(0.0, self._now_s() - began_s))
