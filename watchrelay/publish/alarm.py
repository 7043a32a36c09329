"""Wakes the one task that hands batches over: at once, or with the common pulse.

Room: relay. In: calls of whoever has queued something. Out: the moment to flush.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from watchrelay.publish.pulse import Pulse


class Alarm:
    """Of one stream. Law: whatever rings it, and however often, one flush follows."""

    def __init__(self, pulse: Pulse, now_s: Callable[[], float]) -> None:
        self._pulse, self._now_s = pulse, now_s
        self._due = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.ring = self._due.set
        """Flush at once."""
        self.rings = self._due.is_set
        """A flush follows anyway."""

    def ring_soon(self) -> None:
        """Flush with the next pulse."""
        if self._timer is None:
            wait_s = self._pulse.wait_s(self._now_s())
            if wait_s <= 0:
                self._due.set()
            else:
                self._timer = asyncio.get_running_loop().call_later(wait_s, self._due.set)

    async def wait(self) -> None:
        """Return when it is time."""
        await self._due.wait()
        self._due.clear()
        self.silence()

    def silence(self) -> None:
        """Forget the pulse that was waited for."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
