"""Writes the test vectors: `python -m tests.vectors.generate`. Deterministic; a test compares the
files with what this writes.

Input: scenarios, one function each, written with `tests.support.stream_log`. Output:
tests/vectors/*.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.vectors import judge
from tests.vectors import (
    scenarios,
    scenarios_bootstrap,
    scenarios_judging,
    scenarios_losses,
    scenarios_parts,
)
from tests.vectors.document import Vector

DIRECTORY = Path(__file__).parent
_ROOMS = (scenarios, scenarios_bootstrap, scenarios_judging, scenarios_losses, scenarios_parts)


def vectors() -> list[Vector]:
    """All of them, in the order of their names."""
    return sorted(
        [each for room in _ROOMS for each in room.vectors()],
        key=lambda each: each.name,
    )


def document(vector: Vector) -> dict[str, Any]:
    """A vector with the results of the reader in Python."""
    written = vector.document()
    return {**written, "expect": judge(written)}


def render(vector: Vector) -> str:
    """The file's text: one record a line."""
    return _render(document(vector)) + "\n"


def _render(value: Any, indent: int = 0) -> str:
    """JSON with objects and lists opened only where that helps: records, verdicts and states stay
    on one line each."""
    flat = json.dumps(value, ensure_ascii=False)
    if (
        not isinstance(value, dict | list)
        or not value
        or len(flat) <= 100
        or (isinstance(value, dict) and "offset" in value)
    ):
        return flat
    pad, end = " " * (indent + 1), " " * indent
    if isinstance(value, dict):
        parts = [
            f"{pad}{json.dumps(name)}: {_render(each, indent + 1)}" for name, each in value.items()
        ]
        return "{\n" + ",\n".join(parts) + f"\n{end}}}"
    return "[\n" + ",\n".join(pad + _render(each, indent + 1) for each in value) + f"\n{end}]"


def main() -> None:
    """Write every file, and remove those of scenarios that no longer exist."""
    texts = {f"{vector.name}.json": render(vector) for vector in vectors()}
    for path in DIRECTORY.glob("*.json"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
