"""Records of another writer on a state topic from a seed, in virtual time:
`tests/simulation/foreign.py`."""

from __future__ import annotations

import sys
from collections import Counter

from tests.fuzz import seeds
from tests.fuzz.seeds import Played
from tests.simulation import foreign
from tests.simulation.planted_foreign import FOREIGN_PLANTS


def play(seed: int, plant: bool = False) -> Played:
    """One seed of foreign records; with `plant` a wrong hash is carried on."""
    life, directed, _ = FOREIGN_PLANTS["F34h"]
    found = foreign.play(seed, life, directed) if plant else foreign.play(seed)
    return Played(
        seed, found.broken, list(map(repr, found.forged)), Counter(records=len(found.forged))
    )


if __name__ == "__main__":
    sys.exit(seeds.main("forged", play, quick=True))
