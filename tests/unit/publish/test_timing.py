"""When flushes and heartbeats are due, and what is read ahead of a flush."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.relays import run_virtually, virtual
from watchrelay.publish.timing import FlushTimer, FlushTrigger, HeartbeatInterval


def noting(times: list[float]) -> Callable[[], None]:
    """A flush that notes when it is called."""
    loop = asyncio.get_running_loop()
    return lambda: times.append(loop.time())


@virtual
async def test_what_is_queued_in_silence_leaves_at_once() -> None:
    timer, times, now_s = FlushTimer(0.004), list[float](), asyncio.get_running_loop().time
    began_s = now_s()
    timer.at_flush(noting(times))
    await asyncio.sleep(1)
    timer.at_flush(noting(times))
    await asyncio.sleep(0.001)
    assert times == [began_s, began_s + 1]


@virtual
async def test_what_is_queued_behind_a_flush_waits_for_one_common_next() -> None:
    timer, times = FlushTimer(0.004), list[float]()
    timer.at_flush(noting(times))
    await asyncio.sleep(0.001)
    timer.at_flush(noting(times))
    await asyncio.sleep(0.002)
    timer.at_flush(noting(times))
    await asyncio.sleep(1)
    first, *rest = times
    assert [round(at_s - first, 6) for at_s in rest] == [0.004, 0.004]


@given(st.lists(st.floats(0, 0.01), max_size=50))
def test_two_flushes_are_an_interval_apart_or_one(gaps: list[float]) -> None:
    async def scene() -> list[float]:
        timer, times, waits = FlushTimer(0.004), list[float](), list[float]()
        now_s = asyncio.get_running_loop().time

        def note_wait(asked_s: float) -> None:
            waits.append(now_s() - asked_s)

        for gap in gaps:
            await asyncio.sleep(gap)
            timer.at_flush(noting(times))
            timer.at_flush(partial(note_wait, now_s()))
        await asyncio.sleep(1)
        assert len(times) == len(waits) == len(gaps)
        assert all(0 <= wait_s <= 0.004 + 1e-6 for wait_s in waits)
        return times

    distinct = sorted({round(at_s, 7) for at_s in run_virtually(scene())})
    assert all(later - earlier >= 0.004 - 1e-6 for earlier, later in pairwise(distinct))


@virtual
async def test_what_is_read_for_a_flush_is_part_of_it() -> None:
    timer, log = FlushTimer(0.004), list[str]()
    loop = asyncio.get_running_loop()

    def readable() -> None:
        # as the loop does when a transport may read again and bytes lie ready
        loop.call_soon(received)

    def received() -> None:
        log.append("received")
        timer.at_flush(lambda: log.append("flushed"))

    timer.before_flush(readable)
    timer.at_flush(lambda: log.append("flushed too"))
    await asyncio.sleep(0.001)
    assert log == ["received", "flushed too", "flushed"]


@virtual
async def test_a_transport_that_cannot_be_read_on_stops_no_flush() -> None:
    def closed() -> None:
        raise AttributeError("the transport is closed")

    timer, times = FlushTimer(0.004), list[float]()
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, error: errors.append(error))
    timer.before_flush(closed)
    for _ in range(2):
        timer.at_flush(noting(times))
        await asyncio.sleep(1)
    assert len(times) == 2
    assert len(errors) == 1


@virtual
async def test_reads_alone_are_due_with_the_flushes() -> None:
    timer, times = FlushTimer(0.004), list[float]()
    timer.at_flush(noting(times))
    await asyncio.sleep(0.001)
    timer.before_flush(noting(times))
    await asyncio.sleep(1)
    assert round(times[1] - times[0], 6) == 0.004


@virtual
async def test_one_flush_follows_any_number_of_requests_and_none_a_cancelled_one() -> None:
    times = list[float]()
    trigger = FlushTrigger(FlushTimer(0.004), noting(times))
    for _ in range(3):
        trigger.soon()
        trigger.now()
    assert trigger.is_due_now
    await asyncio.sleep(1)
    assert len(times) == 1
    trigger.soon()
    trigger.now()
    trigger.cancel()
    await asyncio.sleep(1)
    assert len(times) == 1
    trigger.soon()
    await asyncio.sleep(1)
    assert len(times) == 2


@virtual
async def test_streams_of_one_place_wake_together_and_all_of_them_when_the_interval_changes() -> (
    None
):
    loop, interval, woken = asyncio.get_running_loop(), HeartbeatInterval(10.0), list[float]()
    began_s = loop.time()

    async def beat(place: float) -> None:
        while True:
            now_s = loop.time()
            await interval.sleep(now_s, interval.next_at_s(now_s, place))
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
