"""RFC 3339 timestamps, UTC with milliseconds and `Z`: the form of every record and status field."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


def rfc3339(at_ms: int) -> str:
    """The timestamp of `at_ms`, milliseconds since the epoch."""
    second, millis = divmod(at_ms, 1000)
    return f"{_to_second(second)}.{millis:03d}Z"


@lru_cache(maxsize=16)
def _to_second(second: int) -> str:
    """Cached: records that are published together share it."""
    return f"{datetime.fromtimestamp(second, tz=UTC):%Y-%m-%dT%H:%M:%S}"


def parse_timestamp(text: bytes) -> int:
    """The milliseconds since the epoch of an RFC 3339 timestamp.

    Raises:
        ValueError: It is malformed or names no time zone.
    """
    moment = datetime.fromisoformat(text.decode())
    if moment.tzinfo is None:
        raise ValueError(f"{text.decode()} names no time zone")
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
