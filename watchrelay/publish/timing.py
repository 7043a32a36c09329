"""When queued records are flushed, and when heartbeats are due.

All streams of a process share one `FlushTimer`, as fewer produce requests save CPU: 360 us per
event with a request for each, 185 us with one flush of everything every 5 ms (`kafka.flushInterval`
is 3 ms by default).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class FlushTimer:
    """The common flush times of a process: two of them are at least `interval_s` apart.

    Reading from the API server's connections is aligned to them: what is read just before a flush
    is part of it, so that one wake-up reads, publishes and sends what came since the last one.
    """

    def __init__(self, interval_s: float = 0.003) -> None:
        self.interval_s = interval_s
        self._at_s = float("-inf")
        self._flushes: list[Callable[[], None]] = []
        self._resumes: list[Callable[[], None]] = []
        self._armed = False

    def at_flush(self, flush: Callable[[], None]) -> None:
        """Call `flush` at the next flush time; soon, when the last one is long past."""
        self._flushes.append(flush)
        self._arm()

    def before_flush(self, resume_reading: Callable[[], None]) -> None:
        """Call `resume_reading` of a transport once, ahead of the next flush."""
        self._resumes.append(resume_reading)
        self._arm()

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            loop = asyncio.get_running_loop()
            at_s = max(self._at_s + self.interval_s, loop.time())
            loop.call_at(at_s, self._due, at_s)

    def _due(self, at_s: float) -> None:
        self._at_s = at_s
        resumes, self._resumes = self._resumes, []
        if not resumes:
            self._flush()
            return
        # in each iteration of the event loop, timers that are due come after the sockets that are
        # read; requested first, as a transport that raises must not stop all flushes
        asyncio.get_running_loop().call_later(0, self._flush)
        for resume_reading in resumes:
            resume_reading()

    def _flush(self) -> None:
        self._armed = False
        flushes, self._flushes = self._flushes, []
        for flush in flushes:
            flush()
        if self._resumes:  # added meanwhile, when the timer counted as armed
            self._arm()


class FlushTrigger:
    """Requests flushes of one stream's records: one flush follows any number of requests. `flush`
    does not raise."""

    def __init__(self, timer: FlushTimer, flush: Callable[[], None]) -> None:
        self._timer, self._flush = timer, flush
        self._soon = False
        self.is_due_now = False
        """A flush from `now` is due."""

    def now(self) -> None:
        """Flush in the next iteration of the event loop."""
        if not self.is_due_now:
            self.is_due_now = True
            asyncio.get_running_loop().call_soon(self._due, True)

    def soon(self) -> None:
        """Flush at the next common flush time."""
        if not (self._soon or self.is_due_now):
            self._soon = True
            self._timer.at_flush(self._due)

    def _due(self, now: bool = False) -> None:
        is_requested = self.is_due_now if now else self._soon
        if is_requested:
            self._soon = self.is_due_now = False
            self._flush()

    def cancel(self) -> None:
        """Cancel the flushes that were requested."""
        self._soon = self.is_due_now = False


class HeartbeatInterval:
    """The heartbeat interval of all streams of a process, greater than 0 s; it may change while
    they run. One timer wakes all streams whose heartbeats are due at the same time."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._sleeping: dict[float, asyncio.Event] = {}
        """Keyed by the wake-up time."""

    def change(self, interval_s: float) -> None:
        """Use this interval from now on; ends all sleeps."""
        if interval_s == self.interval_s:
            return
        self.interval_s = interval_s
        for until_s in [*self._sleeping]:
            self._wake(until_s)

    def next_at_s(self, now_s: float, slot: float) -> float:
        """The first heartbeat after `now_s`, monotonic. Streams with the same `slot`, a
        share of the interval from 0 to 1, send theirs together."""
        heartbeat_at_s = (now_s // self.interval_s + slot) * self.interval_s
        while heartbeat_at_s <= now_s:
            heartbeat_at_s += self.interval_s
        return heartbeat_at_s

    async def sleep(self, now_s: float, until_s: float) -> None:
        """Return at `until_s`, monotonic, or when the interval changed."""
        woken = self._sleeping.get(until_s)
        if woken is None:
            woken = self._sleeping[until_s] = asyncio.Event()
            asyncio.get_running_loop().call_later(until_s - now_s, self._wake, until_s)
        await woken.wait()

    def _wake(self, until_s: float) -> None:
        if (woken := self._sleeping.pop(until_s, None)) is not None:
            woken.set()
