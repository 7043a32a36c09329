"""`python -m tests.fuzz [KIND ...] --seeds N | --minutes N | --seed N`: each generator in turn, in a
process of its own. What else is given goes to the generators."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence

KINDS = {
    "settings": "settings of topics and brokers, by table",
    "clocks": "wrong clocks, in virtual time",
    "forged": "records of another writer on a state topic, in virtual time",
    "foreign": "records of another writer on all topics, over sockets",
    "lost": "ends of partitions, topics, markers and clusters that are lost, in virtual time",
    "world": "an odd API server and an odd writer, over sockets",
    "versions": "versions that come and end",
    "flooded": "floods, and the longest turn of the event loop",
    "controlled": "floods of the control topic, and the memory that they take",
    "ends": "ends of the process, whatever hangs",
}
CHUNK = 10
"""So many seeds of a kind are played before the clock is looked at."""
SEEDS_IN_ONE = {"settings": 50, "clocks": 5}
"""So many of a quick generator count as one seed."""


def played(kind: str, *arguments: str) -> bool:
    """Whether a generator found nothing."""
    command = [sys.executable, "-m", f"tests.fuzz.{kind}", *arguments]
    return subprocess.run(command, check=False).returncode == 0


def for_a_while(kind: str, first: int, minutes: float, more: Sequence[str]) -> bool:
    """Plays seeds until the minutes are over; whether nothing was found."""
    until_s, right = time.monotonic() + minutes * 60, True
    while time.monotonic() < until_s:
        right &= some(kind, first, CHUNK, more)
        first += CHUNK
    return right


def some(kind: str, first: int, count: int, more: Sequence[str]) -> bool:
    """Plays these seeds; whether nothing was found."""
    each = SEEDS_IN_ONE.get(kind, 1)
    return played(kind, "--first", str(first * each), "--seeds", str(count * each), *more)


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], default=[], metavar="KIND")
    parser.add_argument("--seed", type=int, help="of one kind, with all that happens")
    parser.add_argument("--seeds", type=int, default=20, help="of each kind")
    parser.add_argument("--minutes", type=float, default=0.0, help="in all, instead of --seeds")
    parser.add_argument("--first", type=int, default=0, help="the first of the seeds")
    asked, more = parser.parse_known_args()
    kinds = asked.kinds or list(KINDS)
    right = True
    for kind in kinds:
        print(f"--- {kind}: {KINDS[kind]}", flush=True)
        if asked.seed is not None:
            right &= played(kind, "--seed", str(asked.seed), *more)
        elif asked.minutes:
            right &= for_a_while(kind, asked.first, asked.minutes / len(kinds), more)
        else:
            right &= some(kind, asked.first, asked.seeds, more)
    return 0 if right else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
