"""When flushes and heartbeats are due."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from watchrelay.publish.timing import FlushTimer


def test_what_is_queued_in_silence_leaves_at_once() -> None:
    timer = FlushTimer(0.004)
    assert timer.wait_s(100.0) == 0
    assert timer.wait_s(101.0) == 0


def test_what_is_queued_behind_a_flush_waits_for_one_common_next() -> None:
    timer = FlushTimer(0.004)
    assert timer.wait_s(100.0) == 0
    waits = [(at, timer.wait_s(at)) for at in (100.001, 100.002, 100.0039)]
    assert {round(at + wait, 6) for at, wait in waits} == {100.004}


@given(st.lists(st.floats(0, 0.01), max_size=50))
def test_two_flushes_are_an_interval_apart_or_one(gaps: list[float]) -> None:
    timer, now_s, flushes = FlushTimer(0.004), 50.0, []
    for gap in gaps:
        now_s += gap
        wait_s = timer.wait_s(now_s)
        assert 0 <= wait_s <= 0.004 + 1e-9
        flushes.append(now_s + wait_s)
    distinct = sorted({round(at, 7) for at in flushes})
    assert all(later - earlier >= 0.004 - 1e-6 for earlier, later in pairwise(distinct))
