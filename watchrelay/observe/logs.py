"""Structured logs on stderr: one line per record of the standard `logging` module, JSON or text."""

from __future__ import annotations

import json
import logging
import sys
from typing import IO, Any, Literal

from watchrelay.core.text import printable, short
from watchrelay.core.timestamps import rfc3339

LogFormat = Literal["json", "console", "auto"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_COLOURS = {
    "DEBUG": "\x1b[2m",
    "INFO": "\x1b[36m",
    "WARNING": "\x1b[33m",
    "ERROR": "\x1b[31m",
    "CRITICAL": "\x1b[41m",
}
_RESET = "\x1b[0m"
_ERROR_MAX, _TRACEBACK_MAX = 1_000, 16_000
"""Characters. An exception may quote the input that caused it, at the end of its traceback."""
_LIBRARIES = (
    "aiohttp",
    "aiokafka",
    "asyncio",
    "boto3",
    "botocore",
    "pydantic_settings",
    "python_socks",
    "urllib3",
)
"""Never below warnings: at debug those of AWS log what they sign, and the keys for it, and
pydantic-settings every value of the config."""


def _data(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller put into `extra`, and an exception as one line, with the traceback where
    this program logs it; those of libraries at DEBUG alone."""
    data = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        data["error"] = f"{type(error).__name__}: {short(str(error), _ERROR_MAX)}"
        if record.name.partition(".")[0] == "watchrelay" or logging.getLogger().isEnabledFor(
            logging.DEBUG
        ):
            data["traceback"] = logging.Formatter().formatException(record.exc_info)[
                :_TRACEBACK_MAX
            ]
    return data


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`, then the data."""

    def format(self, record: logging.LogRecord) -> str:
        """The line. Values that JSON does not know are written as text."""
        line: dict[str, Any] = {
            "time": rfc3339(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in _data(record).items():
            line.setdefault(name, value)
        return printable(json.dumps(line, default=str, ensure_ascii=False))


class ConsoleFormatter(logging.Formatter):
    """One short line for a person at a terminal; control characters in data are escaped."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """The line: time of day, level, phrase, then `name=value` pairs."""
        at = rfc3339(int(record.created * 1000))[11:23]
        level = f"{record.levelname:<7}"
        if self._colour:
            level = f"{_COLOURS.get(record.levelname, '')}{level}{_RESET}"
        data = _data(record)
        traceback = data.pop("traceback", None)
        pairs = "".join(f" {name}={_plain(value)}" for name, value in data.items())
        message = printable(record.getMessage())
        lines = (
            "".join(f"\n  {printable(line)}" for line in traceback.splitlines())
            if traceback
            else ""
        )
        return f"{at} {level} {message}{pairs}{lines}"


def _plain(value: object) -> str:
    text = str(value)
    if text.isprintable() and " " not in text and text:
        return text
    return printable(json.dumps(text, ensure_ascii=False))


class _Handler(logging.StreamHandler[IO[str]]):
    """A stream is line-buffered, so that there is nothing to flush, which may wait for a reader."""

    def flush(self) -> None:
        pass


def configure(log_format: LogFormat, level: str, *, stream: IO[str] | None = None) -> None:
    """Log to stderr in the format chosen; `auto` is console on a terminal, else JSON."""
    target = stream or sys.stderr
    terminal = target.isatty()
    handler = _Handler(target)
    if log_format == "json" or (log_format == "auto" and not terminal):
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(ConsoleFormatter(colour=terminal))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    set_level(level)


def set_level(level: str) -> None:
    """Change the level of a running process; libraries stay one step quieter than we are."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
