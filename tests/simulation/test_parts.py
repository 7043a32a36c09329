"""A split stream on replicas that are edited at different times, leave, are suspended and die, by
seed in virtual time; and a rule of parts that is broken, to see that it is found."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.parts import ALL, ONE_BY_ONE, PLANTS, RESIZES, run
from tests.simulation.replicas import Faults

SEEDS = 12
SEARCHED = 20


@pytest.fixture(autouse=True)
def quiet(no_cover: None) -> Iterator[None]:
    """What replicas log of many faults is of no use to anybody."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("faults", [RESIZES, ONE_BY_ONE, ALL], ids=["resizes", "one by one", "all"])
def test_each_part_has_one_owner_again_and_readers_see_one_right_stream(faults: Faults) -> None:
    broken = {seed: world.broken for seed in range(SEEDS) if (world := run(seed, faults)).broken}
    assert not broken, "play one again: python -m tests.simulation.parts SEED"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLANTS)
def test_a_broken_rule_of_parts_is_found(name: str) -> None:
    faults, rules, sign = PLANTS[name]
    found = next(
        (
            seed
            for seed in range(SEARCHED)
            if any(sign in line for line in run(seed, faults, rules).broken)
        ),
        None,
    )
    assert found is not None
    assert run(found, faults).broken == [], "the seed is right without the fault"
