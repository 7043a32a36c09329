"""What is lost between two lives of a relay, and a planted fault that is found."""

from __future__ import annotations

import os

import pytest

from tests.simulation.losses import Forgetful, play

SEEDS = int(os.environ.get("SEEDS", "10"))
SPOILED = 513
"""The control topic loses its newest claim, so that the next life claims the epoch of the former."""


@pytest.mark.parametrize("seed", [*range(SEEDS), SPOILED])
def test_readers_end_with_the_servers_state_whatever_was_lost(seed: int) -> None:
    assert play(seed).broken == []


@pytest.mark.full
def test_epochs_of_the_log_that_are_not_looked_at_are_found() -> None:
    assert any(play(seed, Forgetful).broken for seed in range(SEEDS))
