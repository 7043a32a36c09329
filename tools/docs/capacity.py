"""Puts measured figures into the capacity page and the README. Pure: a page and docs/performance.md
in, the page out.

A cell of the page's table that reads `figure: NAME` in a comment is followed by that figure, word
for word as `make bench` wrote it.
"""

from __future__ import annotations

import re

_CELL = re.compile(r"(?P<mark><!-- figure: (?P<name>[^>]+?) -->)[^|\n]*")
_ROW = re.compile(r"^\| (?P<name>[^|]+?) \| (?P<measured>[^|]+?) \|", re.MULTILINE)


def figures(performance: str) -> dict[str, str]:
    """What was measured, by its name there."""
    return {
        row["name"]: row["measured"]
        for row in _ROW.finditer(performance)
        if row["name"] not in ("figure", "---")
    }


def with_figures(page: str, performance: str) -> str:
    """The page with each marked cell filled in.

    Raises: KeyError for a figure that `make bench` does not write.
    """
    measured = figures(performance)
    return _CELL.sub(lambda cell: f"{cell['mark']} {measured[cell['name']]} ", page)
