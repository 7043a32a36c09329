"""RFC 3339 timestamps, UTC with milliseconds and `Z`: the form of every record and status field."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(at_ms: int) -> str:
    """The timestamp of `at_ms`, milliseconds since the epoch."""
    return f"{_seconds(at_ms // 1000)}.{at_ms % 1000:03d}Z"


class TimestampRenderer:
    """`rfc3339` as bytes for the hot path: the newest second and timestamp are cached."""

    __slots__ = ("_at_ms", "_rendered", "_second", "_stem")

    def __init__(self) -> None:
        self._second = self._at_ms = -1
        self._stem = self._rendered = b""

    def render(self, at_ms: int) -> bytes:
        """The timestamp of `at_ms`, milliseconds since the epoch."""
        if at_ms != self._at_ms:
            second, millis = divmod(at_ms, 1000)
            if second != self._second:
                self._second = second
                self._stem = _seconds(second).encode()
            self._at_ms = at_ms
            self._rendered = b"%b.%03dZ" % (self._stem, millis)
        return self._rendered


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


def _seconds(second: int) -> str:
    return datetime.fromtimestamp(second, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
