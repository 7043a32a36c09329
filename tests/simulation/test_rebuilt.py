"""A cluster that is rebuilt under the same name, and a relay that takes its versions for those of the
former one."""

from __future__ import annotations

import os

import pytest

from tests.simulation.process import Life
from tests.simulation.rebuilt import Play, TrustingLife, play

SEEDS = int(os.environ.get("SEEDS", "10"))
FOUND_BY = 2
"""A seed that is above the version, between two lives."""


@pytest.mark.parametrize("seed", range(SEEDS))
def test_readers_end_with_the_state_of_the_new_cluster(seed: int) -> None:
    assert play(seed).broken == []


def test_the_seeds_rebuild_below_at_and_above_the_version_between_lives_and_during_one() -> None:
    plays = [Play(seed, Life) for seed in range(SEEDS)]
    assert {(each.place, each.during) for each in plays} == {
        (place, during) for place in ("below", "at", "above") for during in (False, True)
    }
    assert {each.shows for each in plays} == {"first", "nothing", "gone"}


@pytest.mark.full
def test_a_relay_that_believes_every_version_is_found() -> None:
    broken = play(FOUND_BY, TrustingLife).broken
    assert any("fresh holds" in line for line in broken), broken
