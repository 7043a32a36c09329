"""How long the watch waits before it reads on, so that the queues stay small, and within their
bound where the config demands it (`overload: block`)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from watchrelay.publish.ports import WriterContext
from watchrelay.publish.stream_queues import StreamQueues

SOFT_BYTES = 8 * 1024 * 1024
"""17 full batches. `soft_bytes` of a stream is this, or half of its queues' bound where that is
less. Up to `soft_bytes` of queued records, values are kept uncompressed; beyond it a value is
unpacked from the store's entry when it is sent (6 us), and the watch slows down."""
YIELD_S = 0.05
"""Beyond `soft_bytes` each read waits this long at most, and only while records are being
acknowledged."""
SNAPSHOT_STALL_S = 0.1
"""With `overload: block`, the watch is not read while a snapshot has been unable to go on for this
long. So a snapshot ends under any load."""
SNAPSHOT_STALL_MAX_S = 5.0
"""A snapshot that has not moved after this long, though the watch is not read, waits for Kafka (a
partition without a leader), so the watch is read again."""


class Backpressure:
    """Delays the watch: from `soft_bytes` on, each read waits up to `YIELD_S` while that helps;
    over `bound_bytes` (None with `overload: conflate`) there is no read at all."""

    def __init__(self, queues: StreamQueues, context: WriterContext, *, soft_bytes: int) -> None:
        self._queues, self._metrics, self._now_s = queues, context.metrics, context.now_s
        self._soft_bytes = soft_bytes
        self._bound_bytes = None if context.conflate else context.queue_bytes
        self._flowing = True  # something was acknowledged since the last wait in vain
        self._progress = asyncio.Event()
        self._stalled_since_s: float | None = None
        """Since when a snapshot with keys left has examined none."""

    def room_made(self) -> None:
        """Records were acknowledged, or no longer need to be published."""
        self._flowing = True
        self._progress.set()

    async def next_progress(self) -> None:
        """Return when room was made, or a snapshot moved on."""
        self._progress.clear()
        await self._progress.wait()

    def snapshot_stepped(self, *, keys_left: bool, moved: bool) -> None:
        """A snapshot has queued what fits. `moved`: it has examined keys; `keys_left`: it has
        more."""
        if moved or not keys_left:
            self._stalled_since_s = None
            self._progress.set()
        if keys_left and self._stalled_since_s is None:
            self._stalled_since_s = self._now_s()

    def _must_wait(self) -> bool:
        if self._bound_bytes is None:
            return False
        since_s = self._stalled_since_s
        stalled_s = 0.0 if since_s is None else self._now_s() - since_s
        stalled = SNAPSHOT_STALL_S < stalled_s < SNAPSHOT_STALL_MAX_S
        return stalled or self._queues.queued_bytes > self._bound_bytes

    def has_room(self) -> bool:
        """Whether `room` returns at once."""
        return not (self._should_yield() or self._must_wait())

    def _should_yield(self) -> bool:
        return self._flowing and self._queues.queued_bytes > self._soft_bytes

    async def room(self) -> None:
        """Return when more may be read."""
        if self._should_yield():
            try:  # let the sink catch up
                async with asyncio.timeout(YIELD_S):
                    await self.next_progress()
            except TimeoutError:
                self._flowing = False
        while self._must_wait():
            began_at_s = self._now_s()
            with suppress(TimeoutError):
                async with asyncio.timeout(SNAPSHOT_STALL_MAX_S):
                    await self.next_progress()
            self._metrics.backpressure_seconds_total.inc(max(0.0, self._now_s() - began_at_s))
