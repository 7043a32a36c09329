"""How much of the tests runs: FULL=1 plays everything, as CI does; without it a few minutes of it."""

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")

REASON = (
    "FULL=1 is not set: planted faults, pages of the docs, fuzz and rare cases at full number; "
    "`make ci` sets it"
)


def full() -> bool:
    """True when FULL=1 asks for all seeds, examples and planted faults."""
    return os.environ.get("FULL", "") == "1"


def seeds(all_of_them: int) -> int:
    """So many seeds of a simulation, ten at most without FULL=1."""
    return all_of_them if full() else min(all_of_them, 10)


def seeds_of_each(kind: int, kinds: int, all_of_them: int) -> int:
    """So many seeds of one of several kinds, ten of all kinds together without FULL=1."""
    return all_of_them if full() else -(-(10 - kind) // kinds)


def few(cases: Iterable[object], count: int) -> list[ParameterSet]:
    """The cases of a parametrised test, all but the first `count` for FULL=1 only."""
    return [
        pytest.param(
            *(each if isinstance(each, tuple) else (each,)),
            marks=() if at < count else pytest.mark.full,
        )
        for at, each in enumerate(cases)
    ]


def examples(all_of_them: int) -> int:
    """So many examples of a property, a tenth of them without FULL=1."""
    return all_of_them if full() else -(-all_of_them // 10)
