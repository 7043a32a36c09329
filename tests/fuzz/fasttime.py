"""Time that runs fast while the event loop is idle, for a whole process with real sockets and the
embedded Kafka's own threads.

While the loop has work, time passes as usual. While it waits, time passes fifty times as fast: a
delay of five minutes takes six seconds, and an answer that takes a millisecond takes 50.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import Any

from aiokafka import AIOKafkaConsumer

_RATE = 50.0
_SHORT_S = 0.02
"""So little is not waited for at all: the system rounds it up to a millisecond."""
_UNTIMED_S = 0.05
FETCH_WAIT_MS = 20
"""The embedded Kafka waits in real time, and holds an answer back to the end of the wait even if a
record comes: with the 500 ms that is aiokafka's default, 25 s of fast time would pass."""

_monotonic, _time_ns = time.monotonic, time.time_ns


class _Added:
    """Seconds that were added to real time so far."""

    seconds = 0.0


def elapsed_s() -> float:
    """Fast seconds since some moment in the past."""
    return _monotonic() + _Added.seconds


def real_s() -> float:
    """Real seconds since some moment in the past."""
    return _monotonic()


def _wall_ns() -> int:
    return _time_ns() + int(_Added.seconds * 1e9)


def _wall_s() -> float:
    return _wall_ns() / 1e9


class _Selector(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> Any:
        """Ready file objects; none after time was moved on."""
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            return super().select(_UNTIMED_S)
        if timeout < _SHORT_S:
            _Added.seconds += timeout
            return ready
        began_s = _monotonic()
        ready = super().select(timeout / _RATE)
        waited_s = _monotonic() - began_s
        _Added.seconds += (
            min(max(0.0, timeout - waited_s), waited_s * (_RATE - 1))
            if ready
            else max(0.0, timeout - waited_s)
        )
        return ready


class FastLoop(asyncio.SelectorEventLoop):
    """An event loop in fast time."""

    def __init__(self) -> None:
        super().__init__(_Selector())


def install() -> None:
    """Make this process live in fast time; for a process that does nothing else."""
    time.monotonic, time.time_ns, time.time = elapsed_s, _wall_ns, _wall_s
    AIOKafkaConsumer.__init__.__kwdefaults__["fetch_max_wait_ms"] = FETCH_WAIT_MS
