"""Foreign records of every field, type and length, between two lives of a relay and during one; and
rules about them that are broken on purpose."""

from __future__ import annotations

import os

import pytest

from tests.simulation.foreign import play
from tests.simulation.planted_foreign import FOREIGN_PLANTS

SEEDS = int(os.environ.get("SEEDS", "10"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_readers_end_with_the_servers_state_whatever_another_writer_wrote(seed: int) -> None:
    assert play(seed).broken == []


@pytest.mark.full
@pytest.mark.parametrize("rule", FOREIGN_PLANTS)
def test_a_broken_rule_is_found(rule: str) -> None:
    life, directed, sign = FOREIGN_PLANTS[rule]
    assert play(2, directed=directed).broken == []
    broken = play(2, life, directed).broken
    assert any(sign in line for line in broken), broken
