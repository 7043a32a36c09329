"""JSON that is well-formed and odd: values of wrong types and sizes, nested deeply, with keys that
stand twice."""

from __future__ import annotations

import json
from random import Random
from typing import Any


class Raw(str):
    """JSON text that is written as it is."""

    __slots__ = ()


class Pairs(list[tuple[str, Any]]):
    """A JSON object whose keys may stand twice."""


def text(value: Any) -> str:
    """`value` as compact JSON, non-ASCII characters as they are but for lone surrogates."""
    match value:
        case Raw():
            return str(value)
        case Pairs() | dict():
            pairs = value if isinstance(value, Pairs) else value.items()
            return "{" + ",".join(f"{text(key)}:{text(item)}" for key, item in pairs) + "}"
        case list():
            return "[" + ",".join(map(text, value)) + "]"
        case str():
            return json.dumps(value, ensure_ascii=not _encodable(value))
        case _:
            return json.dumps(value)


def _encodable(value: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in value)


def deep(rng: Random, levels: int) -> Raw:
    """A value nested so deep, in objects or in lists."""
    if rng.random() < 0.5:
        return Raw('{"a":' * levels + "1" + "}" * levels)
    return Raw("[" * levels + "]" * levels)


DEPTHS = (2, 40, 190, 450, 900, 1100, 3000, 30_000)

NUMBERS = (
    "0", "-0", "-1", "1.0", "1e400", "-1E-400", "0.1", "9007199254740991", "9007199254740992",
    "9223372036854775807", "18446744073709551616", "1" + "0" * 400, "0." + "3" * 500, "1E+2",
)  # fmt: skip

STRINGS = (
    "", "0", " ", "\n", "\0", "null", "true", "-1", "\u2028\u2029\u0085", "\ufeff", "é" * 200, "🦆" * 100, "\ud800", "a\u202eb",
    "%wr/claim/x/0", "../..", "a/b", '"', "\\", "x" * 5000, "<redacted>", "9" * 30, "1_000", "²", "٣",
)  # fmt: skip


def odd_value(rng: Random) -> Any:
    """A value that nobody expects."""
    match rng.randrange(8):
        case 0:
            return None
        case 1:
            return rng.choice([True, False])
        case 2:
            return Raw(rng.choice(NUMBERS))
        case 3 | 4:
            return rng.choice(STRINGS)
        case 5:
            return rng.choice([[], [None], [[]], ["a", 1, {}], [{}] * 3])
        case 6:
            return rng.choice(
                [{}, {"": ""}, {"a": None}, Pairs([("a", 1), ("a", 2)]), {"name": {"name": []}}]
            )
        case _:
            return deep(rng, rng.choice(DEPTHS))


VERSIONS = (
    "0", "", "-1", "1.5", "abc", "9" * 18, "9" * 19, "9" * 20, "9" * 40, "1e3", " 7", "007", "7 ", "٣", "²", "é" * 200, "x" * 3000, "1/2",
)  # fmt: skip
"""As texts; other types come from `odd_value`."""


def odd_version(rng: Random, near: int) -> Any:
    """A resourceVersion that is none, or one that is not due."""
    match rng.randrange(4):
        case 0:
            return odd_value(rng)
        case 1:
            return str(max(0, near + rng.choice([-1000, -3, -1, 0, 1, 3, 100, 10**6])))
        case 2:
            return rng.choice(VERSIONS[:2])
        case _:
            return rng.choice(VERSIONS)
