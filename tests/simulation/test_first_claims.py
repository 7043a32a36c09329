"""Relays that start one stream for the first time at the same moment, and a rule of that which is
broken on purpose."""

from __future__ import annotations

import pytest

from tests.simulation.first_claims import Unread, play
from tests.support.extent import seeds


@pytest.mark.parametrize("seed", range(seeds(30)))
def test_readers_end_with_the_servers_state_as_relays_claim_one_after_another(seed: int) -> None:
    assert play(seed).broken == []


def test_what_others_wrote_before_the_claim_must_be_read() -> None:
    assert any(play(seed, Unread).broken for seed in range(10))
