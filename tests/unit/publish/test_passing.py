"""Whole processes in virtual time: how a writer learns that the watch has passed what the log
holds, or that it never will."""

from __future__ import annotations

import asyncio

from tests.simulation.process import Life
from tests.simulation.world import World
from tests.support.relays import until, virtual
from tests.unit.publish.test_resuming import NAMES, appended, check, ends, filled, running, settled
from watchrelay.contract.records import ObjectRecord


def requested(life: Life) -> bool:
    """A snapshot that was asked for is complete."""
    return bool((life.control.index("pods") or {}).get("requests"))


async def missed(world: World) -> ObjectRecord:
    """A watch misses a delete and the list that compares finds it; returns its record as soon as it
    is on the log."""
    at, server = ends(world), world.server
    server.delete("a")
    server.history.pop()
    for _ in range(5):
        server.touch()
    deleted: list[ObjectRecord] = []

    def found() -> bool:
        deleted[:] = [each for each in appended(world, at) if each.verb == "deleted"]
        return bool(deleted)

    await until(found)
    return deleted[0]


@virtual
async def test_snapshots_go_on_after_a_crash_behind_a_relist_of_an_idle_resource_without_bookmarks() -> (
    None
):
    world = filled(bookmarks=False)
    world.shape.relist_interval_s = 7.0
    async with running(world) as first:
        await settled(first)
        deleted = await missed(world)
        assert deleted.reason == "relist"
    assert int(first.status.frontier or 0) < int(deleted.version)
    at = ends(world)
    world.shape.relist_interval_s = 0.0
    async with running(world) as second:
        second.relay.request_snapshot("asked")
        await until(lambda: requested(second))
        assert second.status.complete
    assert {each.reason for each in appended(world, at)} == {"snapshot"}
    assert len(appended(world, at)) == len(NAMES) - 1
    check(world)


@virtual
async def test_a_crash_behind_changes_that_the_watch_showed_needs_no_list_also_without_bookmarks() -> (
    None
):
    world = filled(bookmarks=False)
    async with running(world) as first:
        await settled(first)
        world.server.put("b", 77)
        world.server.delete("a")
        at = ends(world)
        await until(lambda: any(each.verb == "deleted" for each in appended(world, at)))
    async with running(world) as second:
        second.relay.request_snapshot("asked")
        await until(lambda: requested(second))
        assert (second.decision, second.api.lists) == ("WatchFrom", 0)
    check(world)


async def restored(world: World, life: Life, *, writes: int) -> None:
    """The server goes back behind the frontier by `writes` writes and is listed again."""
    backup, version = dict(world.server.objects), world.server.version
    for number in range(writes):
        world.server.put("a", number)
    world.server.put("b", 99)
    await settled(life)
    server, frontier = world.server, world.server.version
    server.objects, server.version, server.history = backup, version, []
    # as a probe would have found: the watch from the frontier is not served
    server.horizon = frontier + 1
    server._wake()
    await asyncio.sleep(3)
    server.horizon = 0


@virtual
async def test_snapshots_go_on_after_a_restart_behind_a_restored_server_that_is_idle() -> None:
    world = filled()
    async with running(world) as first:
        await settled(first)
        await restored(world, first, writes=20)
        await until(lambda: int(first.status.frontier or 0) == world.server.version)
    async with running(world) as second:
        second.relay.request_snapshot("asked")
        await until(lambda: requested(second))
    check(world, restored=True)
