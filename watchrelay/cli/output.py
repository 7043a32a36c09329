"""What commands print: messages on stderr, JSON on stdout, and streams that are closed or full.

`watchrelay --help` imports this, so json and the text helpers are imported when they are used.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from watchrelay.admin.preflight import CheckResult
    from watchrelay.core.errors import ConfigProblem


# ---- JSON ----------------------------------------------------------------------------------------


def print_json(value: Mapping[str, Any]) -> None:
    """Print `value` as one line of ASCII. From release to release, keys are only added."""
    import json

    print(json.dumps(value), flush=True)


def json_for(out: TextIO, text: str) -> str:
    """JSON `text`, in ASCII unless `out` encodes as UTF-8 (or not at all)."""
    from watchrelay.core.text import ascii_json

    utf_8 = not out.encoding or codecs.lookup(out.encoding).name == "utf-8"
    return text if utf_8 else ascii_json(text)


def problem_json(problem: ConfigProblem) -> dict[str, Any]:
    """A mistake in the config, or a warning about it; null for what is unknown."""
    return {
        "message": problem.message,
        "hint": problem.hint or None,
        "path": problem.path or None,
        "source": problem.source or None,
        "line": problem.line,
    }


def check_json(result: CheckResult) -> dict[str, Any]:
    """One check against the cluster or Kafka; `name` is that of a warning, `cause` and `cure` those
    of a trouble."""
    return {
        "level": result.level,
        "subject": result.subject,
        "message": result.message,
        "name": result.name or None,
        "cause": result.cause,
        "cure": result.cure or None,
    }


# ---- the standard streams ------------------------------------------------------------------------


def open_standard_streams() -> None:
    """Open those that the process was started without (`>&-`) on /dev/null, so that nothing of
    one appears on another. What stdout's encoding lacks is escaped, as on stderr."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    raising = ("strict", "surrogateescape")  # the second is that of the C locale
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in raising:
        sys.stdout.reconfigure(errors="backslashreplace")


def print_error(*lines: str) -> None:
    """Print to stderr; where that cannot be written, the exit code alone has to tell."""
    from watchrelay.core.text import printable

    try:
        for line in lines:
            for each in line.split("\n"):
                print(printable(each), file=sys.stderr)
    except OSError:
        discard(sys.stderr)


def flush_streams() -> None:
    """The last step of a command: what cannot be written is given up."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            discard(stream)


def discard(stream: TextIO) -> None:
    """Redirect `stream`, whose reader is gone, to /dev/null. Source: Python docs, "Note on
    SIGPIPE"."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_unwritable(error: OSError) -> bool:
    """True for an error of a full or failing disk, or of a pipe without a reader, that names no
    file: it is that of stdout."""
    return error.filename is None and error.errno in (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.EPIPE,
    )
