"""Objects too large for the topic: trimmed, distinguished, and with the hash of what is on the
log. In virtual time."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from tests.support.fakesink import FakeSink
from tests.support.relays import KEYS, Rig, until, virtual
from watchrelay.contract.records import content_hash
from watchrelay.contract.wire import Batch, Receipt
from watchrelay.core.errors import RecordTooLarge
from watchrelay.publish.recovery import (
    RecoveredPartition,
    RecoveredState,
    SnapshotPlace,
    WatchFrom,
)


@virtual
async def test_an_object_that_the_broker_refuses_is_published_in_part_and_digests_stay_right() -> (
    None
):
    rig = Rig(partitions=1)
    rig.sink.limit_bytes = 400
    large = json.dumps(
        {
            "kind": "Pod",
            "metadata": {"name": "a", "managedFields": "m" * 300},
            "spec": "s" * 200,
        }
    ).encode()
    huge = json.dumps({"kind": "Pod", "metadata": {"name": "b"}, "spec": "s" * 900}).encode()
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        rig.say(
            [
                *rig.store.put(KEYS[0], b"1"),
                *rig.store.put(b"shop/a", large),
                *rig.store.put(b"shop/b", huge),
            ]
        )
        rig.say(rig.store.put(b"shop/a", b'{"small":1}'))
        await asyncio.sleep(30)
    trimmed = {record.key: record.trimmed for record in rig.objects() if record.trimmed}
    assert trimmed == {b"shop/a": "fields", b"shop/b": "stub"}
    assert [record.value for record in rig.objects() if record.key == b"shop/a"][
        -1
    ] == b'{"small":1}'
    assert all(replica.proven for replica in rig.replicas())
    assert rig.markers("heartbeat")[-1].count == 3


LARGE = json.dumps(
    {"kind": "Pod", "metadata": {"name": "a", "managedFields": "m" * 300}, "spec": "s" * 200}
).encode()


def assert_hashes_are_of_their_values(rig: Rig) -> None:
    for record in rig.objects():
        if record.value is not None:
            assert record.value_hash == content_hash(record.key, record.value), record
    assert all(replica.proven for replica in rig.replicas())


@pytest.mark.parametrize("again", [b'{"small":1}', LARGE.replace(b'"s', b'"t')])
@virtual
async def test_an_object_published_in_part_stays_so_until_it_changes(
    again: bytes,
) -> None:
    rig = Rig(partitions=1)
    rig.sink.limit_bytes = 400
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        rig.say(rig.store.put(b"shop/a", LARGE))
        await asyncio.sleep(30)
        rig.sink.limit_bytes = None
        rig.relay.request_snapshot("again")
        await asyncio.sleep(30)
        rig.say(rig.store.put(b"shop/a", again))
        await asyncio.sleep(30)
    assert [(record.verb, record.trimmed) for record in rig.objects()] == [
        ("added", "fields"),
        ("read", "fields"),
        ("modified", ""),
    ]
    assert rig.rebuilt() == {b"shop/a": again}
    rig.assert_hashes()


@virtual
async def test_an_object_refused_while_it_is_queued_once_more_is_published_alike_both_times() -> (
    None
):
    rig = Rig(partitions=1, sink=RefusesOnce())
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        rig.sink.up.clear()
        rig.say(rig.store.put(KEYS[0], b"1"))
        await asyncio.sleep(1)
        rig.say(rig.store.put(b"shop/a", LARGE))
        rig.relay.request_snapshot("again")
        await asyncio.sleep(11)
        rig.sink.limit_bytes = 400
        rig.sink.up.set()
        await asyncio.sleep(30)
        rig.say(rig.store.remove(b"shop/a"))
        await asyncio.sleep(30)
    of_it = [(record.verb, record.trimmed) for record in rig.objects() if record.key == b"shop/a"]
    assert of_it == [("added", "fields"), ("read", "fields"), ("deleted", "")]
    rig.assert_hashes()


class RefusesOnce(FakeSink):
    """Its topic takes more after the first refusal."""

    async def deliver(self, batch: Batch) -> Receipt:
        try:
            return await super().deliver(batch)
        except RecordTooLarge:
            self.limit_bytes = None
            raise


@virtual
async def test_an_object_known_to_be_too_large_is_trimmed_before_it_is_queued_in_snapshots_too() -> (
    None
):
    rig = Rig(partitions=1, max_message_bytes=4000)
    large = json.dumps(
        {
            "kind": "Pod",
            "metadata": {"name": "a"},
            "spec": random.Random(1).randbytes(4000).hex(),
        }
    ).encode()
    rig.store.put(b"shop/a", large)
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        rig.say(rig.store.put(b"shop/b", large))
        rig.relay.request_snapshot("again")
        await asyncio.sleep(30)
    assert [(record.key, record.verb, record.trimmed) for record in rig.objects()] == [
        (b"shop/a", "added", "stub"),
        (b"shop/b", "added", "stub"),
        (b"shop/a", "read", "stub"),
        (b"shop/b", "read", "stub"),
    ]
    assert all(replica.proven for replica in rig.replicas())
    assert rig.metrics.counter("records_trimmed").labels(rig.spec.topic, "stub")._value.get() == 4


@virtual
async def test_a_limit_that_is_raised_is_noticed_by_a_writer_that_found_objects_published_in_part() -> (
    None
):
    key, stub = b"shop/part", b'{"kind":"Pod","metadata":{"name":"part"}}'
    whole = stub[:-1] + b',"spec":"%s"}' % random.Random(1).randbytes(4000).hex().encode()
    limits = list[int]()

    async def raised() -> int:
        limits.append(1 << 20)
        return limits[-1]

    rig = Rig(partitions=1, max_message_bytes=3500, reread_limit=raised)
    rig.store.put(key, stub)
    await rig.relay.claim(rig.highest_epoch)
    found = RecoveredPartition(1, content_hash(key, stub), "100", SnapshotPlace("1-1", 0))
    rig.relay.resume(
        RecoveredState(WatchFrom("100"), (found,), ({},), {}, "100", {}, {key: "stub"})
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(rig.relay.run(), name="run")
        rig.relay.request_snapshot("again")
        rig.relay.watch_accepted()
        await until(lambda: bool(rig.markers("end")))
        assert limits
        rig.say(rig.store.put(key, whole))
        await asyncio.sleep(30)
        running.cancel()
    assert (rig.objects()[-1].value, rig.objects()[-1].trimmed) == (whole, "")
