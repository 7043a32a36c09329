"""The only reader of time.

Room: below every room. In: nothing. Out: monotonic seconds for decisions, wall milliseconds for
what people and records read.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now_s() -> float:
    """Monotonic seconds: the `now_s` that every pure core is handed."""
    return time.monotonic()


def wall_ms() -> int:
    """Milliseconds since the epoch, UTC."""
    return time.time_ns() // 1_000_000


def rfc3339(at_ms: int) -> str:
    """`at_ms` as RFC 3339 in UTC with milliseconds and `Z`, the form every record and status field
    uses."""
    moment = datetime.fromtimestamp(at_ms / 1000, tz=UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
