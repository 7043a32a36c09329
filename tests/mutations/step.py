"""`Step`, one thing that the code does and could lose."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """`edits` are file, text that occurs there once, and its replacement without the step;
    `may_raise`: it may be caught by an exception that nobody expects, not by an assertion alone."""

    name: str
    tests: tuple[str, ...]
    edits: tuple[tuple[str, str, str], ...]
    may_raise: bool = False
