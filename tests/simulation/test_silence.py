"""`ce_wrseen` of streams whose watches are silent: the whole process in virtual time, directed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.simulation.planted_overload import SeenByLookLife
from tests.simulation.process import Life, Shape
from tests.simulation.world import Kinds, World
from tests.support.relays import run_virtually, until, virtual
from watchrelay.contract.records import MarkerRecord
from watchrelay.core.timestamps import parse_timestamp

OLDEST_S = 72.0
"""A look after 65 s, a watch of 5 s after it, and a heartbeat's second."""


def quiet(life: Callable[..., Life] = Life, *, bookmarks: bool) -> World:
    world = World(1, Kinds(life=life), calm=Shape(bookmarks=bookmarks))
    for number, name in enumerate("abcdef"):
        world.server.put(name, number)
    return world


async def settled(life: Life) -> None:
    await until(lambda: life.status.complete and bool(life.status.last_snapshot))


def markers(world: World) -> list[MarkerRecord]:
    """Those of all partitions that say when the server was seen."""
    decoded = (each.decoded for log in world.broker.logs.values() for each in log.records)
    return [each for each in decoded if isinstance(each, MarkerRecord) and each.seen]


def age_s(marker: MarkerRecord) -> float:
    at_ms, seen_ms = (parse_timestamp(each.encode()) for each in (marker.time, marker.seen))
    return (at_ms - seen_ms) / 1000


@pytest.mark.parametrize("others_are_written", [True, False])
@virtual
async def test_the_markers_of_a_quiet_stream_without_bookmarks_are_never_old(
    *, others_are_written: bool
) -> None:
    world = quiet(bookmarks=False)
    async with asyncio.TaskGroup() as tasks:
        life = world.begin(tasks)
        await settled(life)
        for _ in range(60):
            await asyncio.sleep(10)
            if others_are_written:
                world.server.touch()
        life.kill()
    ages = [age_s(each) for each in markers(world)]
    assert len(ages) > 600
    assert 60.0 < max(ages) <= OLDEST_S
    assert world.judge() == []


def lacks(life: type[Life]) -> list[str]:
    """What is wrong after a watch that goes silent, and misses a change."""

    async def body() -> list[str]:
        world = quiet(life, bookmarks=False)
        async with asyncio.TaskGroup() as tasks:
            running = world.begin(tasks)
            await settled(running)
            world.weather.api_silent = 1.0
            world.server.put("a", 8)  # what the watch waits for now is shown yet
            await asyncio.sleep(1)
            world.weather.api_silent = 0.0
            world.server.put("b", 9)
            await asyncio.sleep(80)
            running.kill()
        return [line for each in world.freshness for line in each.broken]

    return run_virtually(body())


def test_a_small_list_that_is_newer_than_the_watch_does_not_count_as_seen() -> None:
    assert lacks(Life) == []
    assert any("lacks what was received before" in line for line in lacks(SeenByLookLife))
