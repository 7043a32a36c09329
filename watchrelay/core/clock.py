"""The only module that reads the time: monotonic seconds for decisions, seconds since boot for what
other machines decide meanwhile, wall milliseconds for what people and records read."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


def now_s() -> float:
    """Monotonic seconds: the `now_s` that every pure core is handed."""
    return time.monotonic()


def boot_s() -> float:
    """As `now_s`, and it counts while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_ms() -> int:
    """Milliseconds since the epoch, UTC."""
    return time.time_ns() // 1_000_000


def wall_ms_in(wait_s: float) -> int:
    """What `wall_ms` will be after this number of seconds."""
    return wall_ms() + int(wait_s * 1000)


class Clocks(NamedTuple):
    """All three, for what decides by more than one."""

    now_s: Callable[[], float] = now_s
    boot_s: Callable[[], float] = boot_s
    wall_ms: Callable[[], int] = wall_ms
