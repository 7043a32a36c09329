"""Requests for snapshots: each is named by the index record of a snapshot that began after it."""

from __future__ import annotations

import asyncio

from tests.support.relays import Rig, run_virtually
from watchrelay.publish.snapshots import REQUESTS_MAX


def named(rig: Rig) -> list[list[str]]:
    """The requests that each index record names."""
    found = [
        value["requests"]
        for kind, _, value in rig.control.written
        if kind == "snapshot" and value is not None
    ]
    return [each for each in found if isinstance(each, list)]


def test_requests_are_answered_together_at_the_next_beat() -> None:
    rig = Rig(heartbeat_interval_s=10.0)

    async def play() -> None:
        rig.store.put(b"shop/a", b"{}")
        async with rig.running():
            rig.sync()
            await asyncio.sleep(1.0)
            rig.relay.request_snapshot("one")
            rig.relay.request_snapshot("two")
            await asyncio.sleep(15.0)

    run_virtually(play())
    assert named(rig) == [[], ["one", "two"]]


def test_a_request_that_comes_while_a_snapshot_is_open_gets_one_of_its_own() -> None:
    rig = Rig(heartbeat_interval_s=1.0)
    rig.sink.faults.delay_s = 5.0

    async def play() -> None:
        rig.store.put(b"shop/a", b"{}")
        async with rig.running():
            rig.sync()
            await asyncio.sleep(0.01)
            rig.relay.request_snapshot("late")
            await asyncio.sleep(60.0)

    run_virtually(play())
    assert named(rig) == [[], ["late"]]


def test_an_index_record_stays_small_however_many_ask() -> None:
    rig = Rig(heartbeat_interval_s=1.0)
    ids = [f"r{number}" for number in range(2 * REQUESTS_MAX + 1)]

    async def play() -> None:
        async with rig.running():
            rig.sync()
            await asyncio.sleep(1.0)
            for each in ids:
                rig.relay.request_snapshot(each)
            await asyncio.sleep(10.0)

    run_virtually(play())
    assert [len(each) for each in named(rig)] == [0, REQUESTS_MAX, REQUESTS_MAX, 1]
    assert [each for some in named(rig) for each in some] == ids
