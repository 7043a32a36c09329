"""Wrong clocks from a seed, in virtual time: `tests/simulation/clocks.py`."""

from __future__ import annotations

import sys
from collections import Counter

from tests.fuzz import seeds
from tests.fuzz.seeds import Played
from tests.simulation import clocks
from tests.simulation.test_clocks import OneAnswer, with_offset
from watchrelay.kafka.record_times import RecordTimes


def play(seed: int, plant: bool = False) -> Played:
    """One seed of wrong clocks; with `plant` one answer decides."""
    world = clocks.play(seed, with_offset(OneAnswer) if plant else RecordTimes)
    counts = Counter(records=world.written, lies=world.lies, jumps=world.jumps)
    return Played(seed, world.broken, [], counts)


if __name__ == "__main__":
    sys.exit(seeds.main("clocks", play, quick=True))
