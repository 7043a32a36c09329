"""Replicas that share a stream, or its parts: they are edited, leave, are suspended and die, by seed
in virtual time; and rules of ownership that are broken, to see that it is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation import parts, planted_replicas, replicas, shared
from tests.simulation.planted_replicas import Plant
from tests.simulation.replicas import ReplicaWorld
from tests.support.extent import seeds_of_each

pytestmark = pytest.mark.cpu(300)  # up to 58 s, all seeds, on a loaded machine
FOUND_BY = {"no pause": 1, "frontiers forgotten": 1}
"""A seed that shows a fault which the first does not show."""
SEARCHED = 40


@pytest.mark.parametrize("kind", range(shared.KINDS))
def test_each_stream_or_part_has_one_owner_again_and_readers_are_right(kind: int) -> None:
    tried = range(kind, shared.KINDS * seeds_of_each(kind, shared.KINDS, 3), shared.KINDS)
    broken = {seed: played.broken for seed in tried if (played := shared.run(seed)).broken}
    assert not broken, "play one again: make sim SEED=n ARGS=--replicas"


@pytest.mark.full
@pytest.mark.parametrize("name", planted_replicas.PLANTS)
def test_a_broken_rule_of_ownership_is_found(name: str) -> None:
    _assert_found(name, planted_replicas.PLANTS[name], replicas.ReplicaWorld)


@pytest.mark.full
@pytest.mark.parametrize("name", parts.PLANTS)
def test_a_broken_rule_of_parts_is_found(name: str) -> None:
    _assert_found(name, parts.PLANTS[name], parts.PartWorld)


def _assert_found(name: str, plant: Plant, world: Callable[..., ReplicaWorld]) -> None:
    """The fault is found with some seed, which is right without it."""

    def broken(seed: int, rules: replicas.Rules | None = None) -> list[str]:
        return replicas.run(seed, plant.faults, rules, world).broken

    found = next(
        (
            seed
            for seed in (FOUND_BY.get(name, 0), *range(SEARCHED))
            if any(plant.sign in line for line in broken(seed, plant.rules))
        ),
        None,
    )
    assert found is not None
    assert broken(found) == [], "the seed is right without the fault"
