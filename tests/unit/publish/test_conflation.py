"""What a stream says while Kafka takes less than the server says: directed cases, in virtual
time."""

from __future__ import annotations

import asyncio
import logging
import zlib
from dataclasses import dataclass, field

import pytest

from tests.support.fakesink import FakeSink
from tests.support.relays import KEYS, Rig, until, virtual
from watchrelay.contract.records import MarkerRecord, ObjectRecord
from watchrelay.contract.wire import Batch, Receipt
from watchrelay.publish.machine import Live
from watchrelay.publish.stream_queues import REFILL_KEYS_MAX

BOUND = 20_000


@dataclass(slots=True)
class HalfSink(FakeSink):
    """A Kafka of which some partitions have no leader."""

    stuck: set[int] = field(default_factory=set)
    led: asyncio.Event = field(default_factory=asyncio.Event)

    async def deliver(self, batch: Batch) -> Receipt:
        if batch.partition in self.stuck:
            await self.led.wait()
        return await FakeSink.deliver(self, batch)


async def away(rig: Rig) -> None:
    """The stream is whole; then Kafka takes nothing any more, and one batch of each partition is on
    its way forever."""
    rig.sync()
    await until(lambda: bool(rig.control.indexes))
    rig.sink.up.clear()
    for partition in range(rig.spec.partitions):
        key = next(key for key in KEYS if zlib.crc32(key) % rig.spec.partitions == partition)
        rig.say(rig.store.put(key, b"first"))
    await asyncio.sleep(0.1)


def overload(rig: Rig) -> int:
    """Changes of 40 keys until every partition is past the bound; how many."""
    pushed = 0
    while any(queue.dirty is None for queue in rig.relay._queues.partitions):
        rig.say(rig.store.put(KEYS[pushed % 40], b"%d" % pushed))
        pushed += 1
    return pushed


def conflated(rig: Rig) -> list[ObjectRecord]:
    return [record for record in rig.objects() if record.reason == "conflated"]


@virtual
async def test_the_watch_goes_on_nothing_piles_up_and_every_last_state_arrives() -> None:
    rig = Rig(queue_bytes=BOUND)
    async with rig.running():
        await away(rig)
        for number in range(5000):
            await rig.relay.room()
            rig.say(rig.store.put(KEYS[number % 40], b"%d" % number))
            assert rig.relay._queues.queued_bytes <= BOUND + 2000
        await asyncio.sleep(100)
        assert rig.status.as_json()["dirtyKeys"] == 40
        assert rig.gauge("queue_dirty_keys") == 40
        assert rig.metrics.counter("backpressure_seconds").labels("pods")._value.get() == 0
        rig.sink.up.set()
        await until(lambda: rig.rebuilt() == rig.store.values())
        await asyncio.sleep(20)
    published = [record for record in rig.objects() if record.reason in {"watch", "conflated"}]
    skipped = rig.metrics.counter("events_conflated").labels("pods", "", "v1", "pods")._value.get()
    assert len(published) + skipped == 5002
    assert 40 <= len(conflated(rig)) <= 80
    assert rig.status.as_json()["dirtyKeys"] == 0
    assert all(replica.proven for replica in rig.replicas())


@virtual
async def test_a_partition_without_a_leader_skips_states_and_the_others_say_each_of_theirs() -> (
    None
):
    sink = HalfSink(stuck={0})
    sink.led.set()
    rig = Rig(queue_bytes=BOUND, sink=sink)
    async with rig.running():
        rig.sync()
        await until(lambda: bool(rig.control.indexes))
        sink.led.clear()
        for number in range(1000):
            rig.say(rig.store.put(KEYS[number % 40], b"%d" % number))
            if number % 10 == 0:
                await asyncio.sleep(0.02)
        await asyncio.sleep(1)
        assert len([record for record in rig.records(1) if isinstance(record, ObjectRecord)]) > 300
        sink.led.set()
        await until(lambda: rig.rebuilt() == rig.store.values())
    assert {record.key for record in conflated(rig)} <= {
        each.key for each in rig.records(0) if isinstance(each, ObjectRecord)
    }
    assert conflated(rig)


@virtual
async def test_what_died_is_announced_what_was_replaced_is_announced_twice_and_what_nobody_saw_not_at_all() -> (
    None
):
    rig = Rig(queue_bytes=BOUND)
    for key in (b"a/dead", b"a/replaced", b"a/changed"):
        rig.store.put(key, b"0")
    async with rig.running():
        await away(rig)
        overload(rig)
        rig.say(rig.store.remove(b"a/dead"))
        rig.say(rig.store.put(b"a/dead", b"1", uid="u9"))
        rig.say(rig.store.remove(b"a/dead"))
        died = str(rig.store.version)
        rig.say(rig.store.put(b"a/replaced", b"1", uid="u2"))
        rig.say(rig.store.put(b"a/replaced", b"2", uid="u3"))
        rig.say(rig.store.put(b"a/changed", b"1"))
        rig.say(rig.store.put(b"a/changed", b"2"))
        before = rig.relay._queues.dirty_keys
        for number in range(1000):
            rig.say(rig.store.put(b"a/ghost-%d" % number, b"0"))
            rig.say(rig.store.remove(b"a/ghost-%d" % number))
        assert rig.relay._queues.dirty_keys == before
        rig.sink.up.set()
        await until(lambda: rig.rebuilt() == rig.store.values())
    published = {
        key: [(each.verb, each.uid, each.value) for each in conflated(rig) if each.key == key]
        for key in (b"a/dead", b"a/replaced", b"a/changed")
    }
    assert published[b"a/dead"] == [("deleted", "u1", None)]
    assert [each.version for each in conflated(rig) if each.key == b"a/dead"] == [died], (
        "or a replay would show it alive again"
    )
    assert published[b"a/replaced"] == [("deleted", "u1", None), ("added", "u3", b"2")]
    assert published[b"a/changed"] == [("modified", "u1", b"2")]
    assert not [record for record in rig.objects() if record.key.startswith(b"a/ghost")]


@virtual
async def test_an_open_snapshot_is_void_and_the_next_one_answers_its_request_once_the_sets_are_empty() -> (
    None
):
    rig = Rig(queue_bytes=BOUND, heartbeat_interval_s=5.0)
    async with rig.running():
        await away(rig)
        rig.relay.request_snapshot("r-1")
        await asyncio.sleep(10)
        assert rig.gauge("snapshot_running") == 1
        overload(rig)
        assert rig.gauge("snapshot_running") == 0
        await asyncio.sleep(100)
        assert rig.gauge("snapshot_running") == 0
        rig.sink.up.set()
        await until(lambda: rig.control.indexes["pods"]["requests"] == ["r-1"])
    assert rig.control.indexes["pods"]["snapshot"] == "1-3"
    assert {marker.snapshot for marker in rig.markers("end")} == {"1-1", "1-3"}


@virtual
async def test_the_first_snapshot_when_void_is_begun_again_and_only_then_is_the_stream_whole() -> (
    None
):
    rig = Rig(queue_bytes=BOUND, heartbeat_interval_s=5.0)
    for number in range(300):
        rig.store.put(b"old/%d" % number, b"0")
    async with rig.running():
        rig.sink.up.clear()
        rig.sync()
        await asyncio.sleep(1)
        overload(rig)
        rig.sync()  # a relist
        rig.sink.up.set()
        await asyncio.sleep(1)
        assert not rig.relay._queues.conflating
        assert not rig.status.complete
        assert {marker.frontier for marker in rig.markers("heartbeat")} <= {"0"}
        await until(lambda: rig.status.complete)
        assert rig.rebuilt() == rig.store.values()
    verbs = {record.verb for record in rig.objects() if record.key.startswith(b"old/")}
    assert verbs == {"added", "read"}
    assert rig.control.indexes["pods"]["snapshot"] == "1-2"


@virtual
async def test_the_snapshot_that_follows_a_change_of_config_waits_until_the_difference_is_published() -> (
    None
):
    rig = Rig(queue_bytes=BOUND, heartbeat_interval_s=5.0)
    async with rig.running():
        await away(rig)
        overload(rig)
        # as after a list under another config
        rig.relay._phase, rig.relay._schedule.wanted = Live(str(rig.store.version)), True
        rig.sync()
        assert rig.gauge("snapshot_running") == 0
        rig.sink.up.set()
        await until(lambda: rig.control.indexes["pods"]["snapshot"] == "1-2")
    assert rig.rebuilt() == rig.store.values()


@virtual
async def test_markers_repeat_the_last_frontier_until_all_is_published_and_then_one_has_the_present_one_at_once() -> (
    None
):
    rig = Rig(partitions=1, queue_bytes=BOUND, heartbeat_interval_s=5.0)
    async with rig.running():
        await away(rig)
        first = str(rig.status.frontier)
        overload(rig)
        await asyncio.sleep(20)
        rig.sink.up.set()
        await asyncio.sleep(0.5)
        assert rig.status.frontier == str(rig.store.version)
    log = rig.records(0)
    conflated_at = [
        at
        for at, record in enumerate(log)
        if isinstance(record, ObjectRecord) and record.reason == "conflated"
    ]
    beats = {
        at: each.frontier
        for at, each in enumerate(log)
        if isinstance(each, MarkerRecord) and each.kind == "heartbeat"
    }
    assert {frontier for at, frontier in beats.items() if at < conflated_at[-1]} <= {first, "0"}
    assert beats[conflated_at[-1] + 1] == str(rig.store.version)


@virtual
async def test_a_heartbeat_within_an_overload_does_not_make_the_stream_whole() -> None:
    rig = Rig(partitions=1, queue_bytes=BOUND, heartbeat_interval_s=5.0)
    async with rig.running():
        await away(rig)
        overload(rig)
        # as after a restart whose list found much
        rig.progress.whole, rig.relay._phase = False, Live(str(rig.store.version))
        for number in range(2000):
            rig.say(rig.store.put(b"many/%d" % number, b"y" * 5000))
        rig.sync()
        rig.sink.up.set()
        await until(lambda: rig.progress.whole, steps=20_000)
        assert not rig.relay._queues.conflating
        assert rig.rebuilt() == rig.store.values()


@virtual
async def test_a_drain_says_what_waits_too() -> None:
    rig = Rig(queue_bytes=BOUND)
    async with rig.running():
        await away(rig)
        overload(rig)
        async with asyncio.TaskGroup() as tasks:
            draining = tasks.create_task(rig.relay.drain(100.0))
            await asyncio.sleep(10)
            assert not draining.done()
            rig.sink.up.set()
        assert draining.result()
    assert rig.rebuilt() == rig.store.values()
    assert all(replica.proven for replica in rig.replicas())


@virtual
async def test_a_drain_ends_also_when_nothing_is_left_to_say_of_the_keys_that_wait() -> None:
    rig = Rig(partitions=1, queue_bytes=BOUND)
    async with rig.running():
        rig.sync()
        await until(lambda: bool(rig.control.indexes))
        for number in range(REFILL_KEYS_MAX + 100):
            rig.relay._queues.push(
                rig.store.put(b"new/%d" % number, b"0"),
                reason="watch",
                time_ms=1,
                received_at_s=1.0,
            )
        queue = rig.relay._queues.partitions[0]
        assert queue.dirty is not None
        rig.store.entries.clear()
        for waiting in queue.dirty.values():
            waiting.hash = None
        assert await rig.relay.drain(100.0)


@virtual
async def test_the_log_says_once_that_states_are_skipped_and_once_that_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:

    with caplog.at_level(logging.INFO):
        rig = Rig(queue_bytes=BOUND, heartbeat_interval_s=5.0)
        async with rig.running():
            await away(rig)
            for _ in range(3):
                overload(rig)
                rig.sink.up.set()
                await asyncio.sleep(7)
                rig.sink.up.clear()
    begun = [each for each in caplog.records if each.message.startswith("queue full; conflating")]
    over = [each for each in caplog.records if each.message.startswith("overload ended")]
    assert (len(begun), len(over)) == (1, 1)
    assert over[0].states_skipped > 0  # type: ignore[attr-defined]  # given as extra
