"""Measures how late the event loop's timers run, and how long the garbage collector pauses it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator, Mapping

from prometheus_client import Histogram

from watchrelay.observe.metrics import Metrics

_EVERY_S = 0.5


class _LagTimer:
    """A timer that measures how late it ran. A loop that was held up for long is seen
    once, with all of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lag: Histogram) -> None:
        self._loop, self._lag = loop, lag
        self._set()

    def _set(self) -> None:
        self._due_s = self._loop.time() + _EVERY_S
        self._timer = self._loop.call_at(self._due_s, self._beat)

    def _beat(self) -> None:
        self._lag.observe(max(0.0, self._loop.time() - self._due_s))
        self._set()

    def stop(self) -> None:
        self._timer.cancel()


class _Pauses:
    """Adds up what collections take: `seconds` by generation, plain numbers: a collection
    may begin wherever memory is asked for, also while a counter of the library holds its lock,
    a deadlock."""

    def __init__(self, seconds: list[float]) -> None:
        self._seconds = seconds
        self._began_s = 0.0

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began_s = time.perf_counter()
        else:
            self._seconds[info["generation"]] += time.perf_counter() - self._began_s


@contextlib.contextmanager
def measure_interpreter(metrics: Metrics) -> Iterator[None]:
    """Both are measured within the block, which an event loop runs."""
    pulse = _LagTimer(asyncio.get_running_loop(), metrics.histogram("event_loop_lag_seconds"))
    pauses = _Pauses(metrics.gc_pause_seconds)
    gc.callbacks.append(pauses)
    try:
        yield
    finally:
        gc.callbacks.remove(pauses)
        pulse.stop()
