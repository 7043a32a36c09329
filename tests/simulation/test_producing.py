"""The producer in virtual time: two hundred seeds, and faults planted to see that they are found.

`python -m tests.simulation.producing SEED` plays one seed again.
"""

from __future__ import annotations

import pytest

from tests.simulation.planted_producer import PLANTS
from tests.simulation.producing import run
from tests.support.extent import seeds

SEEDS = seeds(200)
SEARCHED = 400
"""In so many seeds a fault must be found. Most are found by one of the first ten."""


def test_no_batch_is_lost_doubled_or_out_of_order_and_no_byte_leaves_after_the_cut() -> None:
    broken = {seed: lines for seed in range(SEEDS) if (lines := run(seed))}
    assert not broken, f"{len(broken)} seeds, the first: {next(iter(broken.items()))}"


@pytest.mark.full
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found(name: str) -> None:
    plant = PLANTS[name]
    found = next((seed for seed in range(SEARCHED) if plant.shown_by(run(seed, plant.kind))), None)
    assert found is not None, plant.about
    assert not run(found), "the seed is right without the fault"
