"""When a restarted writer may say that Kafka holds the whole state: not before what tells it is
acknowledged, and soon after that."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.relays import Rig, run_virtually, until, virtual
from watchrelay.publish.recovery import (
    RecoveredPartition,
    RecoveredState,
    SnapshotPlace,
    WatchFrom,
)
from watchrelay.publish.writer import EARLY_HEARTBEAT_S, HEARTBEAT_SLOTS

HEARTBEAT_S = 10.0
SOON_S = 2 * EARLY_HEARTBEAT_S


@asynccontextmanager
async def restarted(*, snapshot_interval_s: float = 0.0) -> AsyncIterator[Rig]:
    """A relay that goes on from an empty log."""
    rig = Rig(
        partitions=2,
        heartbeat_interval_s=HEARTBEAT_S,
        snapshot_interval_s=snapshot_interval_s,
    )
    await rig.relay.claim(rig.highest_epoch)
    queue = RecoveredPartition(0, 0, "100", SnapshotPlace("1-1", 0))
    rig.relay.resume(RecoveredState(WatchFrom("100"), (queue, queue), ({}, {}), {}, "100", {}))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(rig.relay.run(), name="run")
        await asyncio.sleep(0)
        yield rig
        running.cancel()


async def before_the_beat(rig: Rig, wait_s: float) -> None:
    """Returns so long before the next regular heartbeat."""
    now_s = asyncio.get_running_loop().time()
    place = zlib.crc32(rig.spec.id.encode()) % HEARTBEAT_SLOTS / HEARTBEAT_SLOTS
    heartbeat_at_s = rig.relay._context.heartbeat_interval.next_at_s(now_s + wait_s, place)
    await asyncio.sleep(heartbeat_at_s - now_s - wait_s)


async def whole_soon(rig: Rig) -> None:
    await asyncio.sleep(SOON_S)
    assert rig.status.complete


async def beat_on_its_way(rig: Rig) -> None:
    """Kafka takes nothing, the history has run out, and the regular heartbeat comes in a tenth of a
    second."""
    rig.relay.watch_accepted()
    rig.progress.list_due = True
    rig.sink.up.clear()
    await before_the_beat(rig, 0.1)


def list_done(rig: Rig, *names: bytes) -> None:
    """A list is complete, and found these objects."""
    for name in names:
        rig.say(rig.store.put(name, b"1"), reason="resume")
    rig.sync()
    rig.progress.list_due = False


@virtual
async def test_where_nothing_changed_the_stream_is_whole_soon_after_the_watch_was_accepted() -> (
    None
):
    async with restarted() as rig:
        await before_the_beat(rig, HEARTBEAT_S - 1)
        rig.relay.watch_accepted()
        await whole_soon(rig)


@virtual
async def test_a_heartbeat_while_the_list_is_out_does_not_make_the_stream_whole() -> None:
    async with restarted() as rig:
        await before_the_beat(rig, EARLY_HEARTBEAT_S / 2)
        rig.relay.watch_accepted()
        rig.progress.list_due = True  # the history had run out
        await asyncio.sleep(3 * HEARTBEAT_S)
        assert rig.markers("heartbeat")
        assert not rig.status.complete
        rig.sink.up.clear()
        list_done(rig, b"shop/a")
        await asyncio.sleep(3 * HEARTBEAT_S)
        assert not rig.status.complete
        rig.sink.up.set()
        await whole_soon(rig)
        assert rig.rebuilt() == rig.store.values()


@pytest.mark.parametrize("followed_s", [0.1, 2.0], ids=["in the first half second", "later"])
@virtual
async def test_heartbeats_on_their_way_when_the_history_runs_out_do_not_stand_for_the_list(
    followed_s: float,
) -> None:
    async with restarted() as rig:
        rig.sink.up.clear()
        await before_the_beat(rig, 0.05)
        rig.relay.watch_accepted()
        await asyncio.sleep(followed_s)
        rig.progress.list_due = True
        rig.sink.up.set()
        await until(lambda: bool(rig.markers("heartbeat")))
        await asyncio.sleep(SOON_S)
        assert not rig.status.complete
        list_done(rig, b"shop/a")
        await whole_soon(rig)


@virtual
async def test_a_heartbeat_queued_before_the_difference_does_not_stand_for_it() -> None:
    async with restarted() as rig:
        await beat_on_its_way(rig)
        await asyncio.sleep(0.2)
        assert all(queue.outstanding for queue in rig.relay._queues.partitions), (
            "heartbeats are on their way"
        )
        list_done(rig, b"shop/a", b"shop/b", b"shop/c", b"shop/d")
        rig.sink.faults.delay_s = 1.0
        rig.sink.up.set()
        await until(lambda: rig.status.complete)
        assert rig.rebuilt() == rig.store.values()


@virtual
async def test_a_list_that_is_given_up_for_the_watch_leaves_the_stream_whole_soon() -> None:
    async with restarted() as rig:
        await before_the_beat(rig, HEARTBEAT_S - 1)
        rig.relay.watch_accepted()
        rig.progress.list_due = True
        await asyncio.sleep(SOON_S)
        rig.progress.list_due = False
        await asyncio.sleep(2 * HEARTBEAT_S)
        assert not rig.status.complete, "the watch is not accepted yet"
        rig.relay.watch_accepted()
        await whole_soon(rig)


@virtual
async def test_a_heartbeat_that_still_waits_on_a_partition_without_a_difference_will_do() -> None:
    async with restarted() as rig:
        await beat_on_its_way(rig)
        await asyncio.sleep(HEARTBEAT_S + 0.2)
        assert [len(queue.waiting) for queue in rig.relay._queues.partitions] == [1, 1], (
            "one is on its way, one waits"
        )
        list_done(rig, b"shop/a")
        rig.sink.up.set()
        await whole_soon(rig)


@virtual
async def test_a_snapshot_that_is_due_waits_until_the_watch_is_accepted() -> None:
    async with restarted(snapshot_interval_s=60.0) as rig:
        await asyncio.sleep(180.0)
        assert not rig.markers("begin")
        assert not rig.status.complete
        rig.relay.watch_accepted()
        await until(lambda: bool(rig.markers("end")))
        assert rig.status.complete


@virtual
async def test_a_snapshot_that_ends_while_the_list_is_out_does_not_make_the_stream_whole() -> None:
    async with restarted(snapshot_interval_s=60.0) as rig:
        rig.relay.watch_accepted()
        rig.progress.list_due = True
        await until(lambda: bool(rig.markers("end")))
        await asyncio.sleep(HEARTBEAT_S)
        assert not rig.status.complete
        list_done(rig, b"shop/a")
        await whole_soon(rig)


@virtual
async def test_an_end_of_a_snapshot_queued_before_the_difference_does_not_stand_for_it() -> None:
    async with restarted(snapshot_interval_s=60.0) as rig:
        rig.relay.watch_accepted()
        rig.progress.list_due = True
        await asyncio.sleep(59.0)
        rig.sink.up.clear()
        await asyncio.sleep(2 * HEARTBEAT_S)
        list_done(rig, b"shop/a", b"shop/b", b"shop/c", b"shop/d")
        rig.sink.faults.delay_s = 1.0
        rig.sink.up.set()
        await until(lambda: rig.status.complete)
        assert rig.markers("end")
        assert rig.rebuilt() == rig.store.values()


def test_an_early_heartbeat_that_fails_ends_the_writer() -> None:
    async def body() -> None:
        async with restarted() as rig:
            await before_the_beat(rig, HEARTBEAT_S - 1)
            rig.relay.watch_accepted()
            rig.fails = True
            await asyncio.sleep(SOON_S)

    with pytest.raises(ExceptionGroup) as failed:
        run_virtually(body())
    assert failed.group_contains(OSError, match="no clock")
