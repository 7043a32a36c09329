"""Durations and sizes as people write them."""

from __future__ import annotations

import math
import re
from typing import Final

DURATION_PATTERN: Final = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
PERIOD_PATTERN: Final = r"^(0|([0-9]+(\.[0-9]+)?(ms|s|m|h))+)$"
SIZE_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(B|[kKMG]i?B?)?$"

_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNIT_BYTES: Final = {
    "": 1,
    "k": 1000,
    "m": 1000**2,
    "g": 1000**3,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
}

_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h))+\Z")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?\Z")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s?([kKMG]i?)?B?\Z")
_DAYS = re.compile(r"([0-9]{1,6})d\Z")

_SPOKEN_UNITS: Final = {
    "ms": ("ms", "msec", "msecs", "millisecond", "milliseconds"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
}
_SPOKEN_MAX: Final = 40
_SPOKEN_WORDS: Final = sorted(
    (word for words in _SPOKEN_UNITS.values() for word in words), key=len, reverse=True
)
_SPOKEN_PART: Final = re.compile(rf"([0-9]+(?:\.[0-9]+)?)\s*({'|'.join(_SPOKEN_WORDS)})(?![a-z])")
_SPOKEN_SIZE: Final = re.compile(
    r"([0-9]+(?:\.[0-9]+)?)\s*([kmg])(i|ibi|ebi)?(?:b|(?:ilo|ega|iga)?bytes?)?"
)

_DURATION_MAX_S: Final = 10 * 366 * 24 * 3600.0
_SIZE_MAX_BYTES: Final = 1 << 40


def duration_s(value: object) -> float:
    """The seconds of a duration. Only 0 needs no unit.

    Raises:
        ValueError: with one line for the operator.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("must be a duration, such as 500ms, 10s, 5m or 1h30m")  # noqa: TRY004 (one error type for operators)
    text = str(value).strip() if isinstance(value, str) else repr(value)
    if _NUMBER.match(text):
        number = float(text)
        if number < 0:
            raise ValueError(f"{text} is negative: a duration is not")
        if number == 0:
            return 0.0
        raise ValueError(f"{text} has no unit: write {text}s")
    if not _DURATION.match(text):
        days = _DAYS.match(text)
        if days:
            raise ValueError(
                f"{text} is not a duration, the largest unit is h: write {int(days[1]) * 24}h"
            )
        raise ValueError(
            f"{_shown(text)} is not a duration: write "
            f"{_meant_duration(text) or '500ms, 10s, 5m or 1h30m'}"
        )
    total_s = math.fsum(
        float(number) * _UNIT_S[unit] for number, unit in _DURATION_PART.findall(text)
    )
    if total_s > _DURATION_MAX_S:
        raise ValueError(f"{_shown(text)} is longer than ten years")
    return total_s


def size_bytes(value: object) -> int:
    """The bytes of a size: `64MiB`, `64Mi` (1024), `64MB`, `64M` (1000), or a plain number
    of bytes.

    Raises:
        ValueError: with one line for the operator.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("must be a size, such as 512KiB or 64MiB")  # noqa: TRY004 (one error type for operators)
    text = str(value).strip()
    match = _SIZE.match(text)
    if match is None:
        raise ValueError(
            f"{_shown(text)} is not a size: write {_meant_size(text) or '512KiB, 64MiB or 1GiB'}"
        )
    count = float(match[1]) * _UNIT_BYTES[(match[2] or "").lower()]
    if count > _SIZE_MAX_BYTES:  # before it is made an int: 400 digits are infinity
        raise ValueError(f"{_shown(text)} is more than 1024GiB")
    return int(count)


def duration_text(seconds: float) -> str:
    """`seconds` as a duration, to the millisecond."""
    left_ms = round(seconds * 1000)
    if left_ms == 0:
        return "0"
    parts: list[str] = []
    for unit, unit_ms in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, left_ms = divmod(left_ms, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def size_text(count: int) -> str:
    """`count` bytes in the largest binary unit that divides it."""
    for unit, unit_bytes in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count and count % unit_bytes == 0:
            return f"{count // unit_bytes}{unit}"
    return str(count)


def _meant_duration(text: str) -> str:
    """`text` as a duration, where only blanks, case, ISO 8601's letters or the words of its units
    are in the way; else ""."""
    if len(text) > _SPOKEN_MAX:
        return ""
    spoken = text.lower().removeprefix("pt")
    parts = _SPOKEN_PART.findall(spoken)
    if not parts or _SPOKEN_PART.sub("", spoken).strip(" ,"):
        return ""
    return "".join(
        number + next(unit for unit, words in _SPOKEN_UNITS.items() if word in words)
        for number, word in parts
    )


def _meant_size(text: str) -> str:
    """`text` as a size, where only blanks, the case or the words of its unit are in the way; else
    ""."""
    found = _SPOKEN_SIZE.fullmatch(text.lower())
    if found is None:
        return ""
    letter, binary = (
        found[2].upper().replace("K", "K" if found[3] else "k"),
        "i" if found[3] else "",
    )
    return f"{found[1]}{letter}{binary}B"


def _shown(text: str) -> str:
    return f'"{text if len(text) <= 40 else text[:37] + "..."}"'
