"""Replicas that write within transactions: a stream that moves, and one that is split otherwise, by
seed in virtual time; and rules of transactions that are broken, to see that it is found."""

from __future__ import annotations

import pytest

from tests.simulation.transacting import KINDS, PLANTS
from tests.support.extent import seeds_of_each

pytestmark = pytest.mark.cpu(300)  # up to 58 s, all seeds, on a loaded machine
FOUND_BY = {"ids of parts": 7, "second look": 2, "read-back": 46, "acknowledged": 4}
"""A seed that shows a fault which the first few do not show."""
SEARCHED = 60
"""Where a change has moved that seed, as many others are tried before a person has to search."""


@pytest.mark.parametrize("name", KINDS)
def test_readers_of_committed_records_see_one_owner_at_a_time(name: str) -> None:
    seeds = range(seeds_of_each(list(KINDS).index(name), len(KINDS), 2))
    broken = {seed: world.broken for seed in seeds if (world := KINDS[name].run(seed)).broken}
    assert not broken, "play one again: python -m tests.simulation.transacting SEED"


@pytest.mark.full
@pytest.mark.parametrize("name", PLANTS)
def test_a_broken_rule_of_transactions_is_found(name: str) -> None:
    plant = PLANTS[name]
    tried = [FOUND_BY.get(name, 0), *range(SEARCHED)]
    found = next((seed for seed in tried if plant.shown_by(seed)), None)
    assert found is not None, plant.about
    assert plant.right.run(found).broken == [], "the seed is right without the fault"
