"""The process ends in time, whatever hangs: some seeds of `make fuzz`, and a planted fault that is
found."""

from __future__ import annotations

import os

import pytest

from tests.fuzz.ends import ALONE, WORKING, plan_of, play

SEEDS = int(os.environ.get("SEEDS", "10"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_process_ends_in_time_whatever_hangs(seed: int) -> None:
    played = play(seed)
    assert played.broken == [], played.events


def test_an_end_without_a_deadline_is_found() -> None:
    broken = play(0, plant=True).broken
    assert any("s are promised" in each for each in broken), broken


def test_fifty_seeds_hold_everything_that_hangs() -> None:
    plans = [plan_of(seed) for seed in range(50)]
    assert {each for plan in plans for each in plan.hangs} == {*ALONE, *WORKING}
    assert {plan.works for plan in plans} == {plan.begun for plan in plans} == {True, False}
    assert {len(plan.after_s) for plan in plans} == {1, 2}
