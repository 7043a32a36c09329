"""What is lost between two lives of a relay from a seed, in virtual time:
`tests/simulation/losses.py`."""

from __future__ import annotations

import sys
from collections import Counter

from tests.fuzz import seeds
from tests.fuzz.seeds import Played
from tests.simulation import losses


def play(seed: int, plant: bool = False) -> Played:
    """One seed of losses; with `plant` the epochs on the log are not looked at."""
    found = losses.play(seed, losses.Forgetful) if plant else losses.play(seed)
    return Played(seed, found.broken, found.decisions, Counter(found.decisions))


if __name__ == "__main__":
    sys.exit(seeds.main("lost", play, quick=True))
