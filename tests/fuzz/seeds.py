"""The command line of a generator: seeds side by side, or one again, whose events are printed."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fuzz import fasttime

LINES_SHOWN = 60


@dataclass(slots=True)
class Played:
    """One seed. `broken`: each broken promise; `events`: what happened, in order; `counts`: how
    often what happened."""

    seed: int
    broken: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def line(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        return f"seed {self.seed}: {'BROKEN' if self.broken else 'right'}; {counts}"


Play = Callable[[int, bool], Played]
"""Plays a seed; with True, the rule is broken on purpose."""


def main(kind: str, play: Play, *, fresh: bool = False, quick: bool = False) -> int:
    """The exit code. `fresh`: each seed has a process of its own; `quick`: they are so many that
    the right ones are counted only."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.fuzz.{kind}")
    parser.add_argument("--seed", type=int, help="play this one alone and tell of it")
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--plant", action="store_true", help="break the rule on purpose")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes")
    asked = parser.parse_args()
    if asked.seed is not None:
        played = play(asked.seed, asked.plant)
        print(*played.events, *played.broken, played.line(), sep="\n")
        return 1 if played.broken else 0
    logging.disable(logging.CRITICAL)
    began_s, failed, counts = fasttime.real_s(), list[int](), Counter[str]()
    todo = [(seed, asked.plant) for seed in range(asked.first, asked.first + asked.seeds)]
    context = multiprocessing.get_context("spawn" if fresh else "fork")
    with context.Pool(
        min(asked.jobs, len(todo)),
        signal.signal,
        (signal.SIGINT, signal.SIG_IGN),
        maxtasksperchild=1 if fresh else None,
    ) as pool:
        for played in pool.imap_unordered(_Call(play), todo):
            counts.update(played.counts)
            if played.broken or not quick:
                print(played.line(), flush=True)
            if played.broken:
                failed.append(played.seed)
                print(*(f"    {each[:600]}" for each in played.events[-LINES_SHOWN:]), sep="\n")
                print(*played.broken[:5], flush=True, sep="\n")
                print(f"play it again: python -m tests.fuzz.{kind} --seed {played.seed}")
    happened = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    print(
        f"{kind}: {asked.seeds} seeds from {asked.first} in {fasttime.real_s() - began_s:.0f} s, "
        f"{len(failed)} failed{f' {sorted(failed)}' if failed else ''}: {happened}"
    )
    return 1 if failed else 0


@dataclass(frozen=True, slots=True)
class _Call:
    play: Play

    def __call__(self, what: tuple[int, bool]) -> Played:
        return self.play(*what)
