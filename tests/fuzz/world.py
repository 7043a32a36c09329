"""`python -m tests.fuzz.world --seeds N | --seed N`: plays seeds of oddness, and says how to play one
again that broke a promise."""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import get_args

from tests.fuzz import fasttime
from tests.fuzz.plan import Part, plan_of
from tests.fuzz.play import Game, Plant, Verdict

SEEDS_OF_A_PROCESS = 20
LINES_SHOWN = 60
_real_s = time.monotonic


def played(seed: int, without: Sequence[Part] = (), plant: Plant = "") -> tuple[Verdict, float]:
    """One seed, and the real seconds that it took. Has this process live in fast time."""
    fasttime.install()
    began_s = _real_s()
    with asyncio.Runner(loop_factory=fasttime.FastLoop) as runner:
        verdict = runner.run(Game(plan_of(seed), without=frozenset(without), plant=plant).play())
    return verdict, _real_s() - began_s


def shrunken(seed: int) -> tuple[Verdict, list[Part]]:
    """The verdict of a seed that broke a promise, with as many of its parts left out as it breaks
    one without."""
    without: list[Part] = []
    verdict, _ = played(seed)
    for part in plan_of(seed).parts:
        smaller, _ = played(seed, [*without, part])
        if smaller.broken:
            verdict, without = smaller, [*without, part]
    return verdict, without


def line(verdict: Verdict, took_s: float) -> str:
    """The report of a seed."""
    counts = ", ".join(f"{count} {what}" for what, count in sorted(verdict.counts.items()) if count)
    return (
        f"seed {verdict.seed}: {'BROKEN' if verdict.broken else 'right'} in {took_s:.1f} s; "
        f"{counts}"
    )


def failure(verdict: Verdict, without: Sequence[Part]) -> str:
    """The report of a seed that broke a promise: how to play it again, what came last, and the
    first of its promises."""
    left_out = (
        f' ARGS="--without {",".join(each.replace(" ", "-") for each in without)}"'
        if without
        else ""
    )
    again = (
        f"seed {verdict.seed}: {len(verdict.broken)} promises broken; play it again: make "
        f"fuzz T=world SEED={verdict.seed}{left_out}"
    )
    events = [f"    {each[:400]}" for each in verdict.events[-LINES_SHOWN:]]
    return "\n".join([again, *events, *verdict.broken[:3]])


def one(seed: int, without: Sequence[Part], plant: Plant, *, trace: bool) -> int:
    """Play one seed; the exit code."""
    verdict, took_s = played(seed, without, plant)
    if trace:
        print(plan_of(seed))
        print("\n".join(verdict.events))
    print("\n".join(verdict.broken))
    print(line(verdict, took_s))
    return 1 if verdict.broken else 0


def many(first: int, count: int, jobs: int, *, shrink: bool) -> int:
    """Play many seeds; the exit code."""
    began_s, failed, counts = _real_s(), list[int](), Counter[str]()
    context = multiprocessing.get_context("fork")
    with context.Pool(
        jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN), maxtasksperchild=SEEDS_OF_A_PROCESS
    ) as pool:
        for verdict, took_s in pool.imap_unordered(played, range(first, first + count)):
            print(line(verdict, took_s), flush=True)
            counts.update(
                {
                    name: number
                    for name, number in verdict.counts.items()
                    if not name.startswith("more ")
                }
            )
            if verdict.broken:
                failed.append(verdict.seed)
                small, without = pool.apply(shrunken, (verdict.seed,)) if shrink else (verdict, [])
                print(failure(small if small.broken else verdict, without), flush=True)
    summary = ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
    print(
        f"{count} seeds in {_real_s() - began_s:.0f} s, {len(failed)} "
        f"failed{f' {sorted(failed)}' if failed else ''}: {summary}"
    )
    return 1 if failed else 0


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.world", description="Play the daemon in an odd world."
    )
    parser.add_argument("--seed", type=int, help="play this one alone and tell of it")
    parser.add_argument(
        "--without", default="", help="with --seed: parts to leave out, separated by commas"
    )
    parser.add_argument(
        "--plant",
        choices=get_args(Plant),
        default="",
        help="with --seed: break this promise on purpose",
    )
    parser.add_argument(
        "--trace", action="store_true", help="with --seed: print everything that happened"
    )
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument(
        "--no-shrink", action="store_true", help="do not look for what a failure does not need"
    )
    asked = parser.parse_args()
    if asked.seed is not None:
        without = [part.replace("-", " ") for part in asked.without.split(",") if part]
        return one(asked.seed, without, asked.plant, trace=asked.trace)
    return many(asked.first, asked.seeds, asked.jobs, shrink=not asked.no_shrink)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
