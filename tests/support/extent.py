"""How much of the tests runs: FULL=1 plays everything, as CI does; without it a few minutes of it."""

import os

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


def seeds_of_each(kinds: int, all_of_them: int) -> int:
    """So many seeds of each of several kinds, some ten in all without FULL=1."""
    return all_of_them if full() else -(-10 // kinds)


def examples(all_of_them: int) -> int:
    """So many examples of a property, a tenth of them without FULL=1."""
    return all_of_them if full() else -(-all_of_them // 10)
