"""Which lines of the relay's log a soak's faults explain.

Input: log lines. Output: those that nothing explains, counted. A warning or an error is explained
only by being named here.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

_AWAY = (
    r"the watch was silent for 7\d s|the connection broke before the answer's end|connection "
    r"(refused|reset)|hung up|timed? ?out|no answer|"
    r"not ready|unavailable|etcd|leader|too "
    r"old|expired|gone|\b(410|429|500|503|504)\b|server is (starting|shutting)"
)
"""An API server that is away, silent, starting, or has lost its history."""

EXPLAINED: dict[str, str] = {
    "kafka does not accept records": "",
    "cannot read topic": "",
    "queue full; conflating intermediate states": "",
    "stream error; retrying": _AWAY,
    "API server unavailable; requests of all streams are paused": _AWAY,
    "discovery failed": _AWAY,
}
"""Warnings and errors that the faults lead to, and what their `error` must then speak of (a
pattern)."""


def unexplained(lines: Iterable[dict[str, Any]]) -> tuple[dict[str, int], Counter[str]]:
    """Warnings and errors that `EXPLAINED` does not cover, by text, with how often each came; and
    how many lines each level has."""
    odd: Counter[str] = Counter()
    levels: Counter[str] = Counter()
    for line in lines:
        level, message, error = (
            str(line["level"]).lower(),
            str(line["message"]),
            str(line.get("error", "")),
        )
        levels[level] += 1
        wanted = EXPLAINED.get(message)
        if level not in {"debug", "info"} and (
            wanted is None or not re.search(wanted, error, re.IGNORECASE)
        ):
            odd[f"{level}: {message}: {error}"[:300]] += 1
    return dict(odd.most_common(40)), levels
