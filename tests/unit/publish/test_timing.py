"""When flushes and heartbeats are due."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.relays import run_virtually
from watchrelay.publish.timing import FlushTimer, HeartbeatInterval


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


def test_streams_of_one_place_wake_together_and_all_of_them_when_the_interval_changes() -> None:
    async def body() -> None:
        loop, interval, woken = asyncio.get_running_loop(), HeartbeatInterval(10.0), list[float]()
        began_s = loop.time()

        async def beat(place: float) -> None:
            while True:
                now_s = loop.time()
                await interval.sleep(now_s, interval.next_s(now_s, place))
                woken.append(loop.time() - began_s)

        async with asyncio.TaskGroup() as tasks:
            streams = [tasks.create_task(beat(place)) for place in (0.2, 0.2, 0.7)]
            await asyncio.sleep(20.0)
            assert len(woken) == 6
            first, second, third = sorted(set(woken))[:3]
            assert (woken.count(first), woken.count(second)) in {(2, 1), (1, 2)}
            assert third - first == pytest.approx(10.0)
            interval.change(1.0)
            await asyncio.sleep(0)
            assert len(woken) == 9
            await asyncio.sleep(1.0)
            assert len(woken) == 12
            for stream in streams:
                stream.cancel()

    run_virtually(body())
