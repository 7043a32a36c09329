"""Measures how late the event loop's timers run, and how long the garbage collector pauses it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator, Mapping

from watchrelay.observe.metrics import Metrics

_EVERY_S = 0.5


@contextlib.contextmanager
def measure_interpreter(metrics: Metrics) -> Iterator[None]:
    """Both are measured within the block, which an event loop runs.

    A collection may begin while a counter of the library holds its lock, so its seconds are
    added to plain numbers."""
    loop, lag = asyncio.get_running_loop(), metrics.histogram("event_loop_lag_seconds")
    began_s = 0.0
    timer = loop.call_later(_EVERY_S, lambda: fired())

    def fired() -> None:
        nonlocal timer
        lag.observe(max(0.0, loop.time() - timer.when()))
        timer = loop.call_later(_EVERY_S, fired)

    def collected(phase: str, info: Mapping[str, int]) -> None:
        nonlocal began_s
        if phase == "start":
            began_s = time.perf_counter()
        else:
            metrics.gc_pause_seconds[info["generation"]] += time.perf_counter() - began_s

    gc.callbacks.append(collected)
    try:
        yield
    finally:
        gc.callbacks.remove(collected)
        timer.cancel()
