"""The log lines of aiokafka, which are debug lines of ours, and the secrets that no line shows."""

from __future__ import annotations

import logging
from collections import deque

_LINE_LENGTH_MAX = 300
_SECRET_LENGTH_MIN = 4
_SECRETS_MAX = 64
"""The newest: a token lives for minutes, and its successors come for as long as the process
does."""

_log = logging.getLogger(__name__)
_secrets: deque[str] = deque(maxlen=_SECRETS_MAX)


def hide(secret: str) -> None:
    """Cut `secret` out of every line from here on, unless it is so short that it may occur by
    chance."""
    if len(secret) >= _SECRET_LENGTH_MIN and secret not in _secrets:
        _secrets.append(secret)


def without_secrets(line: str) -> str:
    """`line` without what is hidden: a broker may repeat in its complaint what it was sent."""
    for secret in _secrets:
        line = line.replace(secret, "<redacted>")
    return line


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        line = without_secrets(" ".join(record.getMessage().split()))
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
