"""Moments of failure: the delay sequence of `core/backoff.py`."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchrelay.core.backoff import Backoff, clamp_retry_after


@given(seed=st.integers(0, 1000), failures=st.integers(0, 200))
def test_each_delay_lies_between_the_doubled_base_and_twice_that_up_to_the_cap(
    seed: int, failures: int
) -> None:
    backoff, rng = Backoff(), Random(seed)
    for level in range(failures):
        backoff, delay_s = backoff.after_failure(level * 60.0, healthy=True, rng=rng)
        step = min(30.0, 0.8 * 2**level)
        assert step <= delay_s < 2 * step


def test_health_alone_or_time_alone_resets_nothing() -> None:
    rng, backoff = Random(1), Backoff()
    for _ in range(4):
        backoff, _ = backoff.after_failure(0.0, healthy=True, rng=rng)
    assert backoff.after_failure(119.0, healthy=True, rng=rng)[0].failures == 5
    assert backoff.after_failure(500.0, healthy=False, rng=rng)[0].failures == 5
    assert backoff.after_failure(121.0, healthy=True, rng=rng)[0].failures == 1


def test_absences_are_waited_out_in_seconds_at_first_and_in_a_part_of_their_length_later() -> None:
    rng, backoff, now_s, delays = Random(1), Backoff(), 0.0, []
    while now_s < 4 * 3600:
        backoff, delay_s = backoff.after_unreachable(now_s, healthy=now_s == 0, rng=rng)
        assert 0.8 <= delay_s <= max(4.0, now_s / 30)
        delays.append(delay_s)
        now_s += delay_s
    assert max(delays) <= 60
    assert min(delays[-100:]) >= 30


def test_absences_and_failures_are_counted_apart() -> None:
    rng, backoff = Random(1), Backoff()
    for _ in range(5):
        backoff, _ = backoff.after_failure(0.0, healthy=True, rng=rng)
    backoff, delay_s = backoff.after_unreachable(1.0, healthy=False, rng=rng)
    assert delay_s <= 1.6
    assert backoff.after_failure(3.0, healthy=False, rng=rng)[1] >= 0.8 * 2**5, (
        "what the server taught before it went is not forgotten"
    )
    for second in range(60):
        backoff, _ = backoff.after_unreachable(4.0 + second, healthy=False, rng=rng)
    assert backoff.after_unreachable(70.0, healthy=True, rng=rng)[1] <= 1.6, "another absence"
    assert backoff.after_failure(200.0, healthy=True, rng=rng)[0].failures == 1


def test_the_ceiling_bounds_the_delay_with_its_jitter() -> None:
    rng, backoff = Random(1), Backoff(base_s=30.0, cap_s=300.0, jitter=0.2, ceiling_s=300.0)
    delays = []
    for _ in range(9):
        backoff, delay_s = backoff.after_failure(0.0, healthy=False, rng=rng)
        delays.append(delay_s)
    assert 30 <= delays[0] <= 36
    assert max(delays) == 300


@pytest.mark.parametrize(
    ("asked", "obeyed"),
    [(7.0, 7.0), (0.0, 0.0), (-3.0, 0.0), (99999.0, 300.0), (float("nan"), 0.0)],
)
def test_a_retry_after_is_obeyed_within_five_minutes(asked: float, obeyed: float) -> None:
    assert clamp_retry_after(asked) == obeyed
