"""The newest log lines of an aiokafka client, for error messages.

aiokafka hides why it could not connect: its exception says "Unable to bootstrap", and the reason
(wrong password, unknown CA) is only logged.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LINES_MAX = 8
_LINE_LENGTH_MAX = 300
_SECRET_LENGTH_MIN = 4
_SECRETS_MAX = 16
"""The newest: a token lives for minutes, and its successors come for as long as the process
does."""

_NO_REASON = "Sending username and password in the clear"
"""Logged on each connection that does so; it explains no failure."""

_CONSEQUENCES = ("Unable to update metadata from", "Unable to request metadata from")
"""Logged after the reason of a failed connection; used only where nothing else is known."""

_log = logging.getLogger(__name__)


class LogTail:
    """The newest warnings and errors of one client, oldest first: at most 8 lines of 300
    characters."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=_LINES_MAX)
        self._secrets: deque[str] = deque(maxlen=_SECRETS_MAX)

    def hide(self, secret: str) -> None:
        """Cut `secret` out of every line from here on, unless it is so short that it may occur by
        chance."""
        if len(secret) >= _SECRET_LENGTH_MIN and secret not in self._secrets:
            self._secrets.append(secret)

    def without_secrets(self, line: str) -> str:
        """`line` without what is hidden: a broker may repeat in its complaint what it was sent."""
        for secret in self._secrets:
            line = line.replace(secret, "<redacted>")
        return line

    def add(self, level: int, line: str) -> None:
        """Keep a line; an exact repetition of the newest one is not kept twice."""
        entry = (level, line[:_LINE_LENGTH_MAX])
        if not self._lines or self._lines[-1] != entry:
            self._lines.append(entry)

    def clear(self) -> None:
        """Forget all lines: the failure they belong to is over."""
        self._lines.clear()

    @property
    def reason(self) -> str:
        """The newest error, else the newest warning, else ""; what only follows from another
        failure comes after both."""
        for wanted in (False, True):
            for least in (logging.ERROR, logging.WARNING):
                for level, line in reversed(self._lines):
                    if level >= least and line.startswith(_CONSEQUENCES) is wanted:
                        return line
        return ""


_current: ContextVar[LogTail | None] = ContextVar("watchrelay_kafka_log_tail", default=None)


def hide(secret: str) -> None:
    """Cut `secret` out of the lines of the client in this context, if there is one."""
    if (tail := _current.get()) is not None:
        tail.hide(secret)


def without_secrets(line: str) -> str:
    """`line` without the secrets hidden in this context."""
    tail = _current.get()
    return line if tail is None else tail.without_secrets(line)


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        line = " ".join(record.getMessage().split())
        cause = record.args[-1] if isinstance(record.args, tuple) and record.args else None
        if line.endswith(":") and isinstance(cause, ConnectionError):
            # in the middle of a TLS handshake: asyncio raises it without a word
            line += " connection closed"
        tail = _current.get()
        line = without_secrets(line)
        if tail is not None and not line.startswith(_NO_REASON):
            tail.add(record.levelno, line)
        _log.debug(
            "kafka client log line",
            extra={"line": line[:_LINE_LENGTH_MAX], "client_level": record.levelname},
        )


def quiet_client_log() -> None:
    """Turn the `aiokafka` logger into our debug log, once; nothing of it reaches the log above
    debug."""
    logger = logging.getLogger("aiokafka")
    if not any(isinstance(handler, _Handler) for handler in logger.handlers):
        logger.addHandler(_Handler())
        # Its debug lines are formatted per request, its info lines repeat what we say ourselves.
        logger.setLevel(logging.WARNING)
        logger.propagate = False


@contextmanager
def listening() -> Iterator[LogTail]:
    """The log lines of a client that is started within go to this tail; also later, since its
    tasks inherit the context."""
    quiet_client_log()
    tail = LogTail()
    token = _current.set(tail)
    try:
        yield tail
    finally:
        _current.reset(token)
