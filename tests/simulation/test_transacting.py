"""Replicas that write within transactions: a stream that moves, and one that is split otherwise, by
seed in virtual time; and rules of transactions that are broken, to see that it is found."""

from __future__ import annotations

import pytest

from tests.simulation.transacting import KINDS, PLANTS

SEEDS = 8
SEARCHED = 60


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", KINDS)
def test_readers_of_committed_records_see_one_owner_at_a_time(name: str) -> None:
    broken = {
        seed: world.broken for seed in range(SEEDS) if (world := KINDS[name].run(seed)).broken
    }
    assert not broken, "play one again: python -m tests.simulation.transacting SEED"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTS)
def test_a_broken_rule_of_transactions_is_found(name: str) -> None:
    plant = PLANTS[name]
    found = next((seed for seed in range(SEARCHED) if plant.shown_by(seed)), None)
    assert found is not None, plant.about
    assert plant.right.run(found).broken == [], "the seed is right without the fault"
