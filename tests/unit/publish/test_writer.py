"""The writer of one stream, against an in-memory Kafka in virtual time: snapshots, heartbeats,
backpressure, drains."""

from __future__ import annotations

import asyncio
import itertools
import random

import pytest

from tests.support.fakesink import FakeSink, Faults
from tests.support.relays import KEYS, DictStore, Rig, until, virtual
from watchrelay.contract.records import MarkerRecord, ObjectRecord
from watchrelay.contract.wire import Batch, Receipt
from watchrelay.publish.snapshots import REQUESTS_WAITING


def filled(store: DictStore, count: int = 40, size: int = 10) -> None:
    for key in KEYS[:count]:
        store.put(key, b'"%s"' % (key * (size // len(key) + 1)))


@virtual
async def test_the_first_snapshot_says_added_between_begin_and_end_and_completes_the_stream() -> (
    None
):
    rig = Rig()
    filled(rig.store)
    async with rig.running():
        rig.sync()
        await until(lambda: bool(rig.control.indexes))
    assert {record.verb for record in rig.objects()} == {"added"}
    assert {record.reason for record in rig.objects()} == {"snapshot"}
    assert {marker.frontier for marker in rig.markers("begin")} == {"0"}
    assert {marker.frontier for marker in rig.markers("end")} == {str(rig.store.version)}
    assert rig.rebuilt() == rig.store.values()
    assert rig.status.complete
    assert rig.status.frontier == str(rig.store.version)
    index = rig.control.indexes["pods"]
    assert index["snapshot"] == "1-1"
    assert index["count"] == 40
    places = index["partitions"]
    assert isinstance(places, list)
    for place in places:
        log = rig.records(place["partition"])
        begin, end = log[place["begin"]], log[place["end"]]
        assert isinstance(begin, MarkerRecord)
        assert isinstance(end, MarkerRecord)
        assert (begin.kind, end.kind, end.begin_offset, end.begin_sequence) == (
            "begin",
            "end",
            place["begin"],
            begin.sequence,
        )


@virtual
async def test_an_empty_stream_has_markers_with_count_zero() -> None:
    rig = Rig()
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
    assert [marker.count for marker in rig.markers("end")] == [0, 0]


@virtual
async def test_live_events_do_not_wait_for_a_snapshot() -> None:
    rig = Rig(partitions=1, sink=FakeSink(Faults(delay_s=0.1), random.Random(1)))
    for number in range(3000):
        rig.store.put(b"shop/n%d" % number, b"x" * 4000)
    async with rig.running():
        rig.sync()
        await asyncio.sleep(0.5)
        rig.say(rig.store.put(b"shop/live", b'"now"'))
        await until(lambda: any(record.key == b"shop/live" for record in rig.objects()))
        published = len(rig.objects())
        assert not rig.status.complete
        assert published < 1500
        await until(lambda: rig.status.complete, steps=10_000)
    assert rig.rebuilt() == rig.store.values()


@virtual
async def test_later_snapshots_say_read_and_heartbeats_then_name_the_newest() -> None:
    rig = Rig(partitions=1, snapshot_interval_s=60.0)
    filled(rig.store, 3)
    async with rig.running():
        rig.sync()
        await asyncio.sleep(75)
        await until(lambda: rig.control.indexes["pods"]["snapshot"] == "1-2")
        await asyncio.sleep(20)
    assert [record.verb for record in rig.objects()] == ["added"] * 3 + ["read"] * 3
    assert {record.reason for record in rig.objects()} == {"snapshot"}
    beats = rig.markers("heartbeat")
    begins = {
        each.snapshot: at
        for at, each in enumerate(rig.records(0))
        if isinstance(each, MarkerRecord) and each.kind == "begin"
    }
    assert (beats[-1].last_snapshot, beats[-1].last_snapshot_offset) == ("1-2", begins["1-2"])
    assert rig.gauge("snapshot_interval_seconds") == 60.0
    assert all(replica.proven for replica in rig.replicas())


@virtual
async def test_a_snapshot_follows_when_the_log_has_grown() -> None:
    rig = Rig(partitions=1)
    filled(rig.store, 1)
    async with rig.running():
        rig.sync()
        for number in range(10_010):
            rig.say(rig.store.put(KEYS[0], b"%d" % number))
        await asyncio.sleep(30)
        await until(lambda: rig.control.indexes["pods"]["snapshot"] == "1-2")


@virtual
async def test_a_requested_snapshot_is_made_and_its_index_record_names_the_request() -> None:
    rig = Rig()
    async with rig.running():
        rig.sync()
        await until(lambda: bool(rig.control.indexes))
        rig.relay.request_snapshot("r-1")
        await asyncio.sleep(15)
        assert rig.control.indexes["pods"]["requests"] == ["r-1"]


@virtual
async def test_of_a_flood_of_requests_the_newest_are_answered_and_the_rest_is_not_kept() -> None:
    rig = Rig()
    async with rig.running():
        rig.sync()
        await until(lambda: bool(rig.control.indexes))
        for number in range(REQUESTS_WAITING + 100):
            rig.relay.request_snapshot(f"r-{number}")
        named: list[str] = []
        for _ in range(30):
            await asyncio.sleep(5)
            index = rig.control.indexes["pods"]
            requests = index["requests"]
            assert isinstance(requests, list)
            named += [each for each in requests if each not in named]
    assert named == [f"r-{number}" for number in range(100, REQUESTS_WAITING + 100)]


@virtual
async def test_heartbeats_have_count_digest_frontier_and_the_time_of_the_servers_last_answer() -> (
    None
):
    rig = Rig(heartbeat_interval_s=5.0)
    filled(rig.store)
    async with rig.running():
        await asyncio.sleep(7)
        assert not rig.markers("heartbeat"), "no list has shown the state yet"
        rig.sync()
        rig.relay.server_seen(1_767_323_045_006)
        await asyncio.sleep(30)
        rig.relay.version_reached("5000")
        await asyncio.sleep(5)
    assert len(rig.markers("heartbeat")) in {14, 15, 16}
    newest = [
        rig.markers("heartbeat")[-1],
        next(m for m in reversed(rig.markers("heartbeat")) if m.partition == 0),
    ]
    assert {marker.frontier for marker in newest} == {"5000"}
    assert sum(marker.count for marker in newest) == 40
    assert newest[0].seen == "2026-01-02T03:04:05.006Z"
    assert rig.status.frontier == "5000"


@virtual
async def test_once_the_resource_is_not_served_markers_have_no_frontier_until_the_next_list() -> (
    None
):
    rig = Rig(partitions=1, heartbeat_interval_s=5.0)
    rig.store.put(b"n/a", b"{}")
    async with rig.running():
        rig.sync()
        await asyncio.sleep(20)
        frontier = rig.markers("heartbeat")[-1].frontier
        assert frontier not in {"", "0"}
        rig.relay.push(rig.store.remove(b"n/a"), reason="relist", received_at_s=0.0)
        rig.relay.resource_removed()
        await asyncio.sleep(20)
        removed = rig.markers("heartbeat")[-1]
        assert (removed.count, removed.frontier) == (0, "0"), "a new writer lists"
        rig.sync()
        await asyncio.sleep(20)
        assert rig.markers("heartbeat")[-1].frontier == str(rig.store.version)


@virtual
async def test_while_kafka_is_away_heartbeats_do_not_pile_up() -> None:
    rig = Rig(partitions=1, heartbeat_interval_s=1.0)
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        rig.sink.up.clear()
        before = len(rig.markers("heartbeat"))
        await asyncio.sleep(1000)
        rig.sink.up.set()
        await asyncio.sleep(0.5)
        assert len(rig.markers("heartbeat")) - before <= 3


@virtual
async def test_a_marker_that_waits_for_kafka_shows_when_the_server_was_seen_before_it_was_queued() -> (
    None
):
    rig = Rig(partitions=1, heartbeat_interval_s=5.0)
    async with rig.running():
        rig.sync()
        rig.relay.server_seen(1_767_323_045_006)
        await until(lambda: rig.status.complete)
        rig.sink.up.clear()
        rig.say(rig.store.put(b"n/a", b"1"))
        await asyncio.sleep(20)  # virtual: a heartbeat is queued behind the batch in flight
        rig.say(rig.store.put(b"n/a", b"2"))
        rig.relay.server_seen(1_767_323_099_000)
        rig.sink.up.set()
        newest = "2026-01-02T03:04:59.000Z"
        await until(lambda: any(each.seen == newest for each in rig.markers("heartbeat")))
    log = rig.records(0)
    first, second = (at for at, each in enumerate(log) if isinstance(each, ObjectRecord))
    waited = [each.seen for each in log[first:second] if isinstance(each, MarkerRecord)]
    assert waited == ["2026-01-02T03:04:05.006Z"]


@virtual
async def test_a_full_queue_makes_the_watch_wait_and_counts_the_time() -> None:
    rig = Rig(partitions=1, queue_bytes=20_000, conflate=False)
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        rig.sink.up.clear()
        pushed = 0

        async def publish_forever() -> None:
            nonlocal pushed
            while True:
                await rig.relay.room()
                rig.say(rig.store.put(KEYS[pushed % 40], b"%d" % pushed))
                pushed += 1

        async with asyncio.TaskGroup() as tasks:
            saying = tasks.create_task(publish_forever())
            await asyncio.sleep(50)
            saying.cancel()
        assert 20 < pushed < 80
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(rig.relay.room())
            await asyncio.sleep(10)
            assert not waiting.done()
            rig.sink.up.set()
        assert rig.metrics.counter("backpressure_seconds").labels("pods")._value.get() >= 10
        await until(lambda: rig.rebuilt() == rig.store.values())


@virtual
async def test_one_batch_per_partition_is_on_its_way_and_a_burst_leaves_in_one_step() -> None:
    rig = Rig(partitions=2)  # FakeSink asserts the first half
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        await asyncio.sleep(0.1)
        before = len(rig.sink.batches)
        for key in KEYS:
            rig.say(rig.store.put(key, b"1"))
        await asyncio.sleep(0.001)
        assert len(rig.sink.batches) - before == 2
        assert len(rig.objects()) == 40


@virtual
async def test_a_drain_sends_what_is_queued_then_a_last_heartbeat_and_takes_nothing_new() -> None:
    rig = Rig()
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        rig.say(rig.store.put(KEYS[0], b"1"))
        held = rig.store.values()
        draining = asyncio.TaskGroup()
        async with draining:
            drained = draining.create_task(rig.relay.drain(10.0))
            await asyncio.sleep(0)
            rig.say(rig.store.put(KEYS[1], b"late"))
        assert drained.result()
    assert rig.rebuilt() == held
    for partition in range(2):
        last = rig.records(partition)[-1]
        assert isinstance(last, MarkerRecord)
        assert last.kind == "heartbeat"
        assert last.frontier != str(rig.store.version)


@virtual
async def test_a_drain_that_kafka_does_not_answer_says_no_at_its_deadline() -> None:
    rig = Rig()
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        rig.sink.up.clear()
        rig.say(rig.store.put(KEYS[0], b"1"))
        began_s = asyncio.get_running_loop().time()
        assert not await rig.relay.drain(7.0)
        assert 7.0 <= asyncio.get_running_loop().time() - began_s < 7.1


@virtual
async def test_acknowledged_records_are_counted_by_kind() -> None:
    rig = Rig(partitions=1)
    filled(rig.store, 2)
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        rig.say(rig.store.put(KEYS[0], b"1"))
        rig.say(rig.store.remove(KEYS[1]))
        await asyncio.sleep(1)
        assert rig.gauge("queue_records") <= 2
    acked = rig.metrics.counter("records_acked")
    counts = {
        kind: acked.labels(rig.spec.topic, kind)._value.get()
        for kind in ("event", "snapshot", "tombstone", "marker")
    }
    assert counts["snapshot"] == 2
    assert (counts["event"], counts["tombstone"]) == (1, 1)
    assert sum(rig.metrics.lag("pods").counts) == 2


@pytest.mark.parametrize("seed", range(12))
@virtual
async def test_cancelled_at_any_moment_it_has_advanced_no_further_than_the_log(seed: int) -> None:
    rig = Rig(sink=FakeSink(Faults(delay_s=0.01), random.Random(seed)))
    filled(rig.store)
    async with rig.running():
        rig.sync()
        for number in range(seed * 3):
            rig.say(rig.store.put(KEYS[number % 40], b"%d" % number))
            await asyncio.sleep(0.001)
    for partition in range(2):
        sequences = [record.sequence for record in rig.records(partition)]
        assert sequences == list(range(1, len(sequences) + 1))
    if rig.status.frontier is not None:
        assert all(
            any(isinstance(record, ObjectRecord) for record in rig.records(partition))
            for partition in range(2)
        )
        assert rig.status.frontier in {
            marker.frontier for marker in rig.markers("end") + rig.markers("heartbeat")
        }


@virtual
async def test_under_a_load_that_never_ends_a_snapshot_has_its_turns_and_ends() -> None:
    noise = random.Random(1).randbytes(4000)

    sink = FakeSink(faults=Faults(delay_s=0.2))
    rig = Rig(
        partitions=1, queue_bytes=4 << 20, conflate=False, sink=sink, heartbeat_interval_s=1.0
    )
    filled(rig.store)
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        busy, waited = True, 0

        async def load() -> None:
            nonlocal waited
            for number in itertools.count():
                before_s = asyncio.get_running_loop().time()
                await rig.relay.room()
                waited += asyncio.get_running_loop().time() > before_s
                if not busy:
                    return
                rig.say(rig.store.put(b"busy/%d" % (number % 5), b"%d" % number + noise))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load(), name="load")
            await asyncio.sleep(2)
            assert waited > 10, "the load is none"
            rig.relay.request_snapshot("under load")
            await asyncio.sleep(6)
            ended, published = rig.markers("end"), len(rig.objects())
            busy = False
        await asyncio.sleep(10)
    assert [marker.snapshot for marker in ended] == ["1-1", "1-2"]
    assert published > 4000, "the watch is read on"
    assert rig.rebuilt() == rig.store.values()
    rig.assert_hashes()


class WithoutLeader(FakeSink):
    """Partition 0 answers nothing without a `leader`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.leader = asyncio.Event()
        self.leader.set()

    async def deliver(self, batch: Batch) -> Receipt:
        if batch.partition == 0:
            await self.leader.wait()
        return await super().deliver(batch)


@virtual
async def test_where_overload_blocks_a_partition_that_answers_nothing_does_not_stop_the_others() -> (
    None
):
    sink = WithoutLeader()
    rig = Rig(partitions=2, conflate=False, sink=sink)
    for number in range(1000):
        rig.store.put(b"many/%d" % number, b"x" * 4000)
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        sink.leader.clear()
        rig.relay.request_snapshot("again")
        await until(lambda: len(rig.markers("begin")) > 2)
        for number in range(200):
            await rig.relay.room()
            rig.say(rig.store.put(b"busy/%d" % number, b"%d" % number))
            await asyncio.sleep(0.1)
        busy = {record.key for record in rig.objects() if record.key.startswith(b"busy/")}
        assert len(busy) > 50
        sink.leader.set()
        await asyncio.sleep(60)
    assert rig.rebuilt() == rig.store.values()
    assert {marker.snapshot for marker in rig.markers("end")} == {"1-1", "1-2"}


@virtual
async def test_after_a_long_absence_of_kafka_a_snapshot_begins_after_its_return() -> None:
    """What was packed before keeps its time: a topic that removes by it may drop it at once."""

    sink = FakeSink()
    rig = Rig(sink=sink, snapshot_interval_s=3600.0)
    filled(rig.store)
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        sink.up.clear()
        await asyncio.sleep(5 * 3600.0)
        begun = rig.relay._schedule.number
        sink.up.set()
        await asyncio.sleep(30.0)
        assert rig.control.indexes["pods"]["snapshot"] == f"1-{begun + 1}"
    assert all(replica.proven for replica in rig.replicas())
