"""Many repairs at once: foreign records may come by the hundred thousand."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.fakesink import FakeSink
from tests.support.relays import KEYS, Rig, until, virtual
from tests.support.turns import TurnLoop, held_by
from watchrelay.contract.records import MarkerRecord

MANY = 100_000


def keys(count: int) -> list[bytes]:
    return [b"shop/gone-%d" % number for number in range(count)]


def found_stale(rig: Rig, count: int, *, partition: int = 0) -> None:
    """Records of another writer were found."""
    rig.relay._repairs.found |= dict.fromkeys((key, partition) for key in keys(count))
    rig.relay._repair_keys()


def published(rig: Rig) -> list[str]:
    """What the partition holds from the first repair on: the reason of each record of an object,
    the kind of each marker."""
    names: list[str] = [
        each.kind if isinstance(each, MarkerRecord) else each.reason for each in rig.records(0)
    ]
    return names[names.index("healed") :]


@pytest.mark.full
def test_no_turn_of_the_loop_is_long_however_many_records_are_repaired() -> None:
    async def body(loop: TurnLoop) -> None:
        rig = Rig(partitions=1, queue_bytes=1 << 30)
        async with rig.running():
            rig.sync()
            await until(lambda: rig.status.complete)
            for key in keys(MANY):
                rig.store.put(key, b'"x"')
            loop.begin()
            await asyncio.sleep(0)
            found_stale(rig, MANY)
            log = rig.sink.log(rig.spec.topic, 0)
            await until(lambda: len(log) >= MANY, steps=20_000)
            loop.end()
        assert {each.key for each in rig.objects() if each.reason == "healed"} == set(keys(MANY))

    assert not (wrong := held_by(body)), wrong


@virtual
async def test_repairs_that_wait_for_room_come_before_heartbeats_and_the_end_of_a_snapshot() -> (
    None
):
    sink = FakeSink()
    rig = Rig(partitions=1, sink=sink, queue_bytes=40_000)
    rig.store.put(KEYS[0], b'"a"')
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        sink.up.clear()
        rig.relay.request_snapshot("before")
        await asyncio.sleep(11)
        found_stale(rig, 1000)
        assert rig.relay._queues.queued_bytes < 40_000
        await asyncio.sleep(60)
        sink.up.set()
        await until(lambda: bool(rig.control.indexes["pods"].get("requests")))
    names = published(rig)
    assert names[:1000] == ["healed"] * 1000
    assert "heartbeat" in names[1000:]
    assert "end" in names[1000:]
    assert all(replica.proven for replica in rig.replicas())


@virtual
async def test_a_drain_sends_the_repairs_that_wait_and_then_its_heartbeat() -> None:
    rig = Rig(partitions=1, queue_bytes=40_000)
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        found_stale(rig, 1000)
        assert await rig.relay.drain(10.0)
    assert published(rig) == [*["healed"] * 1000, "heartbeat"]
