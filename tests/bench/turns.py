"""Turns: each program once in each round, and what their figures are to each other.

Input: what a program does in its turn. Output: figures by program and round; rows, ratios first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from tests.bench.rig import GO_RAW, RELAY, Rig
from tests.bench.table import Row

T = TypeVar("T")


def in_rounds(
    doers: Mapping[str, Callable[[], T]], *, rounds: int, warm: int = 0
) -> dict[str, list[T]]:
    """Each of them once in each round, another one first in each; what they gave, without that of
    the first `warm` rounds."""
    names = list(doers)
    given: dict[str, list[T]] = {name: [] for name in names}
    for number in range(warm + rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            given[name].append(doers[name]())
    return {name: its[warm:] for name, its in given.items()}


def ratios(runs: Mapping[str, Sequence[float]], one: str, other: str) -> list[float]:
    """What one program needed to what another one did, round by round."""
    return [mine / its for mine, its in zip(runs[one], runs[other], strict=True)]


def compared(
    rig: Rig,
    what: str,
    runs: Mapping[str, Sequence[float]],
    unit: str,
    *,
    goal: float | None = None,
    to_go_raw: float | None = None,
) -> Iterator[Row]:
    """The relay's ratio to each other program, round by round; its figure; those of the others.
    `goal` is that of the figure, `to_go_raw` that of the ratio."""
    mine, others = runs[RELAY], [name for name in runs if name != RELAY]
    if to_go_raw is not None and GO_RAW not in others:
        yield Row(f"{what}, relay / {GO_RAW}", missing=rig.no_go_raw, headline=True)
    for other in others:
        bound = to_go_raw if other == GO_RAW else None
        headline = bound is not None
        yield Row.of(
            f"{what}, relay / {other}",
            ratios(runs, RELAY, other),
            "",
            goal=bound,
            headline=headline,
        )
    yield Row.of(what, mine, unit, goal=goal, headline=goal is not None)
    for other in others:
        yield Row.of(f"{what}: {other}", runs[other], unit)
