"""How often markers come, which may change while streams run.

Room: relay. In: the heartbeat interval, now and after each edit of the config. Out: when the next
beat of a stream is, and a sleep until then that a change ends.
"""

from __future__ import annotations

import asyncio


class Tempo:
    """The heartbeat interval of all streams of a process. Units: `interval_s`, over 0."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._changed = asyncio.Event()

    def change(self, interval_s: float) -> None:
        """Beat at this interval from now on."""
        if interval_s == self.interval_s:
            return
        self.interval_s = interval_s
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def next_s(self, now_s: float, place: float) -> float:
        """The first beat after `now_s` (monotonic). Shape: streams with the same `place`, 0 to 1,
        beat together."""
        beat_s = (now_s // self.interval_s + place) * self.interval_s
        while beat_s <= now_s:
            beat_s += self.interval_s
        return beat_s

    async def sleep(self, wait_s: float) -> None:
        """Return after `wait_s`, or when the interval changed."""
        try:
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        except TimeoutError:
            return
