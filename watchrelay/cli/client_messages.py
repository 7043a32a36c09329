"""What the Kafka client logs, shortened for the stderr of a command."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from watchrelay.core import clock
from watchrelay.core.text import short

_INTERVAL_S: Final = 30.0
_PATIENCE_S: Final = 3.0
"""Longer than it takes until all brokers have refused a connection."""


class ShortClientLog(logging.Handler):
    """Writes at most a line every half minute to `out`, where the client logs dozens a second.

    Problems that last less than three seconds are not shown, nor one that ends the command: the
    command reports it, with the cure.

    Args:
        out: gets the lines.
        now_s: monotonic clock, in seconds.
    """

    def __init__(self, out: TextIO, *, now_s: Callable[[], float] = clock.now_s) -> None:
        super().__init__(logging.WARNING)
        self._out = out
        self._now_s = now_s
        self._since_s = self._newest_s = self._next_line_s = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, unless the problem is new or another line was written recently."""
        now_s = self._now_s()
        if now_s - self._newest_s > _INTERVAL_S:
            self._since_s = now_s
        self._newest_s = now_s
        if now_s - self._since_s >= _PATIENCE_S and now_s >= self._next_line_s:
            self._next_line_s = now_s + _INTERVAL_S
            print(f"kafka: {short(' '.join(record.getMessage().split()))}", file=self._out)


@contextmanager
def short_client_log(out: TextIO) -> Iterator[None]:
    """Inside the block, what the Kafka client logs goes to `out` alone, shortened."""
    client_log, handler = logging.getLogger("aiokafka"), ShortClientLog(out)
    client_log.propagate, before = False, client_log.propagate
    client_log.addHandler(handler)
    try:
        yield
    finally:
        client_log.removeHandler(handler)
        client_log.propagate = before
