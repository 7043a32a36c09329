"""`python -m tests.simulation [--replicas] --seed N | --seeds N`: plays runs, and says how to play a
run again that broke a promise.

Input: seeds, and optionally a fault to plant. Output: a line for each run that failed, a summary,
an exit code.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing.pool import Pool

from tests.simulation import shared, world
from tests.simulation.planted import PLANTS
from tests.simulation.transacting import KINDS
from tests.simulation.world import Verdict

AT_ONCE = 25
PRINT_EVERY = 1000
"""Seeds between two lines that tell how far a long run is."""


def played(replicas: bool, seeds: Sequence[int]) -> list[Verdict]:
    """Some runs, one after another."""
    logging.disable(logging.CRITICAL)
    run = shared.run if replicas else world.run
    return [run(seed) for seed in seeds]


def planted(asked: tuple[str, Sequence[int]]) -> list[int]:
    """The seeds that find a planted fault."""
    logging.disable(logging.CRITICAL)
    plant = PLANTS[asked[0]]
    return [seed for seed in asked[1] if plant.shown_by(world.run(seed, plant.kinds).broken)]


def slices(first: int, count: int) -> Iterator[range]:
    """The seeds, some at a time."""
    for start in range(first, first + count, AT_ONCE):
        yield range(start, min(start + AT_ONCE, first + count))


def failure(verdict: Verdict, *, replicas: bool = False) -> str:
    """The report of a run that broke a promise: how to play it again, and the first of its
    promises."""
    again = (
        f"seed {verdict.seed}: {len(verdict.broken)} promises broken; play it again: make "
        f"sim SEED={verdict.seed}{' ARGS=--replicas' if replicas else ''}"
    )
    return f"{again}\n    {verdict.broken[0][:400]}"


def players(jobs: int) -> Pool:
    """The processes that play: Ctrl-C is for the one that waits for them."""
    return multiprocessing.get_context("fork").Pool(
        jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)
    )


def one(seed: int, *, replicas: bool, trace: bool, plant: str | None) -> int:
    """Play one seed; the exit code."""
    logging.disable(logging.CRITICAL)
    if replicas:
        verdict = shared.run(seed, tracing=True)
    else:
        verdict = world.run(seed, PLANTS[plant].kinds if plant else None, tracing=True)
    if trace:
        print("\n".join(verdict.trace))
    for line in verdict.broken:
        print(line)
    print(
        f"seed {seed}: {'broken' if verdict.broken else 'right'}; {verdict.lives} lives, "
        f"{verdict.records} records, trace {verdict.digest}"
    )
    return 1 if verdict.broken else 0


def many(first: int, count: int, jobs: int, *, replicas: bool) -> int:
    """Play many seeds on all processors; the exit code."""
    began_s, failed, totals = time.monotonic(), 0, Counter[str]()
    with players(jobs) as pool:
        for verdicts in pool.imap(partial(played, replicas), slices(first, count)):
            for verdict in verdicts:
                totals.update(
                    [
                        "runs",
                        *(f"resumed by {each}" for each in verdict.decisions if each),
                        *verdict.lost,
                    ]
                )
                totals["lives"] += verdict.lives
                totals["records"] += verdict.records
                totals["records that conflate"] += verdict.conflated
                totals["runs that conflate"] += verdict.conflated > 0
                totals["virtual seconds"] += round(verdict.virtual_s - 1000)
                if verdict.broken:
                    failed += 1
                    print(failure(verdict, replicas=replicas), flush=True)
            if totals["runs"] % PRINT_EVERY == 0 and totals["runs"] < count:
                print(
                    f"{totals['runs']} of {count} seeds, {failed} failed, "
                    f"{time.monotonic() - began_s:.0f} s",
                    flush=True,
                )
    took_s = time.monotonic() - began_s
    print(
        f"{count} seeds in {took_s:.0f} s on {jobs} processors, {failed} failed: "
        f"{', '.join(f'{n} {what}' for what, n in totals.items())}"
    )
    return 1 if failed else 0


def transacted(asked: tuple[str, int]) -> tuple[str, int, list[str]]:
    """What was broken in one run of replicas that write within transactions."""
    logging.disable(logging.CRITICAL)
    name, seed = asked
    try:
        return name, seed, KINDS[name].run(seed).broken
    except (ExceptionGroup, AssertionError, RuntimeError) as crashed:
        return name, seed, [repr(crashed)]


def many_transacted(first: int, count: int, jobs: int) -> int:
    """Play many seeds of replicas that write within transactions; the exit code."""
    began_s, failed = time.monotonic(), 0
    asked = [(name, seed) for seed in range(first, first + count) for name in KINDS]
    with players(jobs) as pool:
        for name, seed, broken in pool.imap(transacted, asked):
            if broken:
                failed += 1
                print(f"seed {seed}, {name}: {broken[0][:400]}", flush=True)
    took_s = time.monotonic() - began_s
    print(f"{count} seeds of {len(KINDS)} kinds in {took_s:.0f} s, {failed} runs failed")
    return 1 if failed else 0


def find(name: str, first: int, count: int, jobs: int) -> int:
    """Look for a planted fault; the exit code is 1 when no seed finds it."""
    began_s = time.monotonic()
    with players(jobs) as pool:
        found = [
            seed
            for seeds in pool.imap(planted, ((name, each) for each in slices(first, count)))
            for seed in seeds
        ]
    first_found = f"the first is {found[0]}" if found else "none"
    print(
        f"{name} ({PLANTS[name].about}): {len(found)} of {count} seeds, {first_found}; "
        f"{time.monotonic() - began_s:.0f} s"
    )
    return 0 if found else 1


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description="Play the whole daemon in virtual time."
    )
    parser.add_argument("--seed", type=int, help="play this one alone and tell of it")
    parser.add_argument(
        "--trace", action="store_true", help="with --seed: print everything that happened"
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--plant",
        choices=sorted(PLANTS),
        help="break this rule: tell how many seeds find it, or play one of them",
    )
    parser.add_argument(
        "--replicas",
        action="store_true",
        help="three replicas that share a stream, or the parts of one, instead of one process",
    )
    parser.add_argument(
        "--transactional",
        action="store_true",
        help="as --replicas, and they write within transactions",
    )
    asked = parser.parse_args()
    if asked.transactional:
        return many_transacted(asked.first, asked.seeds, asked.jobs)
    if asked.replicas and asked.plant:
        parser.error("tests/simulation/test_replicas.py plants faults in replicas")
    if asked.seed is not None:
        return one(asked.seed, replicas=asked.replicas, trace=asked.trace, plant=asked.plant)
    if asked.plant:
        return find(asked.plant, asked.first, asked.seeds, asked.jobs)
    return many(asked.first, asked.seeds, asked.jobs, replicas=asked.replicas)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
