"""Text from servers, topics and files, made safe to print on one line: control characters, line
ends and bidirectional marks are escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

import msgspec

SHOWN_MAX: Final = 300
"""Characters of a foreign value that our messages quote."""

BROKEN_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not the JSON asked for (its ValidationError is a
DecodeError)."""

_SUSPECT: Final = re.compile(r"[^\x20-\x7e]")
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")


def printable(text: str) -> str:
    """`text` with every character escaped, as JSON does, that is not printable: controls, line
    ends, bidirectional marks, surrogates."""
    return text if text.isprintable() else _SUSPECT.sub(_escape, text)


def ascii_json(text: str) -> str:
    """JSON `text`, with every character escaped that is not ASCII."""
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def short(text: str, shown_max: int = SHOWN_MAX) -> str:
    """`text`, printable, and cut where it is longer than anyone reads."""
    return printable(text if len(text) <= shown_max else f"{text[: shown_max - 3]}...")


def cut_within(text: str, shown_max: int = 3 * SHOWN_MAX) -> str:
    """`text`, cut in its middle where it is longer than anyone reads: a message that quotes a long
    value has its reason at the end."""
    if len(text) <= shown_max:
        return text
    half = (shown_max - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def counted(number: object, noun: str, plural: str = "") -> str:
    """A number with its noun: `1 object`, `2 objects`; `plural` is for nouns that take more than an
    s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def listed(names: Sequence[str], *, shown: int, what: str) -> str:
    """The first `shown` of `names`, and how many others there are: `a, b and 3 other topics`."""
    more = len(names) - shown
    return ", ".join(names[:shown]) + (f" and {counted(more, f'other {what}')}" if more > 0 else "")


def why_broken(error: Exception, value: bytes) -> str:
    """Why a decoder would not take `value` as JSON, for people.

    Source: msgspec 0.22 counts the place of a byte that is no UTF-8 from the start of the enclosing
    string, not of the value.
    """
    if isinstance(error, UnicodeDecodeError):
        try:
            value.decode()
        except UnicodeDecodeError as found:
            return f"byte {found.start} of the value (0x{value[found.start]:02x}) is not UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error)


def _escape(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]
