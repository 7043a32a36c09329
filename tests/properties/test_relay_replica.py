"""Whatever happens to the objects and on the way to Kafka, a reader ends with what the store holds,
and can prove it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.extent import examples
from tests.support.fakesink import FakeControl, FakeSink, Faults
from tests.support.relays import DictStore, Put, Remove, Rig, run_virtually, spec_of, until
from watchrelay.consumer.replica import ReadAgain, Replica
from watchrelay.contract.records import DIGEST_MASK, Decoded, MarkerRecord, ObjectRecord
from watchrelay.contract.state import Ignored

KEYS = [b"shop/a", b"shop/b", b"pay/c", b"pay/d", b"x/e", b"x/f"]


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class Snapshot:
    pass


@dataclass(frozen=True)
class Bookmark:
    pass


OPS = st.lists(
    st.one_of(
        st.builds(
            Put,
            st.sampled_from(KEYS),
            st.integers(0, 50),
            st.sampled_from(["u1", "u1", "u2"]),
            st.booleans(),
        ),
        st.builds(Remove, st.sampled_from(KEYS)),
        st.builds(Wait, st.sampled_from([0.0, 0.001, 0.01, 1.5])),
        st.just(Snapshot()),
        st.just(Bookmark()),
    ),
    max_size=60,
)
FAULTS = st.builds(
    Faults,
    delay_s=st.sampled_from([0.0, 0.02, 2.0]),
    lost_ack=st.sampled_from([0.0, 0.3]),
    partial=st.sampled_from([0.0, 0.3]),
)


QUEUES = st.sampled_from([1024, 3000, 64 << 20])
"""Bounds in bytes: one or two records, a handful, all of them."""


def value(number: int) -> bytes:
    return b'{"kind":"Pod","n":%d}' % number


async def play(
    ops: list[object], held: list[bytes], faults: Faults, seed: int, queue_bytes: int = 64 << 20
) -> Rig:
    rig = Rig(
        sink=FakeSink(faults, random.Random(seed)),
        heartbeat_interval_s=1.0,
        queue_bytes=queue_bytes,
    )
    for key in held:
        rig.store.put(key, value(0))
    async with rig.running():
        rig.sync()
        for op in ops:
            match op:
                case Put(key, number, uid, raw):
                    rig.say(rig.store.put(key, value(number), uid=uid, raw=raw))
                case Remove(key) if key in rig.store.entries:
                    rig.say(rig.store.remove(key))
                case Wait(seconds):
                    await asyncio.sleep(seconds)
                case Snapshot():
                    rig.relay.request_snapshot("asked")
                case Bookmark():
                    rig.store.version += 1
                    rig.relay.version_reached(str(rig.store.version))
                case _:
                    pass
        await until(lambda: rig.status.complete)
        assert await rig.relay.drain(1000.0)
    return rig


def check_positions_are_contiguous(rig: Rig) -> None:
    for partition in range(rig.spec.partitions):
        seen: set[int] = set()
        for record in rig.records(partition):
            assert record.sequence in seen or record.sequence == len(seen) + 1
            seen.add(record.sequence)


def check_nothing_goes_back_in_time(rig: Rig) -> None:
    """What a reader shows of a key never gets an older version, and equal positions are equal
    records."""
    for partition in range(rig.spec.partitions):
        newest: dict[bytes, int] = {}
        by_sequence: dict[int, object] = {}
        for record in rig.records(partition):
            assert by_sequence.setdefault(record.sequence, record) == record
            if record.sequence < len(by_sequence):
                continue
            if isinstance(record, ObjectRecord):
                assert int(record.version) >= newest.get(record.key, 0)
                newest[record.key] = int(record.version)


def check_frontiers_hold(rig: Rig) -> None:
    """Behind a marker with frontier f no change up to f comes for the first time."""
    for partition in range(rig.spec.partitions):
        frontier, last = 0, 0
        for record in rig.records(partition):
            if record.sequence <= last:
                continue
            last = record.sequence
            if isinstance(record, MarkerRecord):
                frontier = max(frontier, int(record.frontier or 0))
            elif record.verb != "read":
                assert int(record.version) > frontier


def check_snapshots_say_all(log: list[Decoded]) -> None:
    """The records from a begin to its end, applied to an empty map, are the state at that end."""
    opened: dict[str, dict[bytes, int]] = {}
    epoch, last = 0, 0
    for record in log:
        if record.epoch < epoch or (record.epoch == epoch and record.sequence <= last):
            continue
        epoch, last = record.epoch, record.sequence
        if isinstance(record, ObjectRecord):
            for objects in opened.values():
                if record.verb == "deleted":
                    objects.pop(record.key, None)
                else:
                    objects[record.key] = record.value_hash
        elif record.kind == "begin":
            opened = {record.snapshot: {}}  # one at a time
        elif record.kind == "end":
            objects = opened.pop(record.snapshot)
            assert (len(objects), sum(objects.values()) & DIGEST_MASK) == (
                record.count,
                record.digest,
            ), f"snapshot {record.snapshot}"


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OPS, st.lists(st.sampled_from(KEYS), unique=True), FAULTS, st.integers(0, 1000), QUEUES)
def test_a_reader_of_everything_holds_what_the_store_holds(
    ops: list[object], held: list[bytes], faults: Faults, seed: int, queue_bytes: int
) -> None:
    rig = run_virtually(play(ops, held, faults, seed, queue_bytes))
    assert rig.rebuilt() == rig.store.values()
    assert all(replica.proven for replica in rig.replicas())
    check_positions_are_contiguous(rig)
    check_nothing_goes_back_in_time(rig)
    check_frontiers_hold(rig)
    for partition in range(rig.spec.partitions):
        check_snapshots_say_all(rig.records(partition))


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OPS, st.lists(st.sampled_from(KEYS), unique=True), FAULTS, st.integers(0, 1000), QUEUES)
def test_no_marker_alarms_a_reader_that_lost_nothing(
    ops: list[object], held: list[bytes], faults: Faults, seed: int, queue_bytes: int
) -> None:
    rig = run_virtually(play(ops, held, faults, seed, queue_bytes))
    for partition in range(rig.spec.partitions):
        replica = Replica()
        for record in rig.records(partition):
            assert not isinstance(replica.apply(record), ReadAgain)
            if isinstance(record, MarkerRecord) and record.kind != "claim":
                assert replica.proven


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    OPS,
    st.lists(st.sampled_from(KEYS), unique=True, min_size=2),
    FAULTS,
    st.integers(0, 1000),
    QUEUES,
    st.data(),
)
def test_a_reader_that_lost_records_is_never_proven_wrong_and_repairs_itself(
    ops: list[object],
    held: list[bytes],
    faults: Faults,
    seed: int,
    queue_bytes: int,
    data: st.DataObject,
) -> None:
    rig = run_virtually(
        play([*ops, Snapshot(), Wait(1.5), Wait(1.5)], held, faults, seed, queue_bytes)
    )
    for partition in range(rig.spec.partitions):
        log = rig.records(partition)
        whole = Replica()
        lost = data.draw(st.sets(st.integers(0, max(0, len(log) - 1))))
        replica = Replica()
        offset, readings = 0, 0
        truth: dict[tuple[int, int], dict[bytes, bytes]] = {}
        for record in log:
            whole.apply(record)
            truth.setdefault(
                (record.epoch, record.sequence),
                {key: each.value for key, each in whole.held.items()},
            )
        while offset < len(log):
            record = log[offset]
            if readings == 0 and offset in lost:
                offset += 1
                continue
            outcome = replica.apply(record)
            if (
                isinstance(record, MarkerRecord)
                and not isinstance(outcome, Ignored)
                and replica.proven
                and not replica.rereading
            ):
                assert {key: each.value for key, each in replica.held.items()} == truth[
                    record.epoch, record.sequence
                ]
            if isinstance(outcome, ReadAgain):
                readings += 1
                offset = outcome.offset or 0
            else:
                offset += 1
        if readings:
            assert replica.proven
            assert {key: each.value for key, each in replica.held.items()} == truth[
                log[-1].epoch, log[-1].sequence
            ]


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OPS, OPS, FAULTS, st.integers(0, 1000), QUEUES)
def test_the_snapshot_of_a_new_epoch_removes_what_died_between_two_writers(
    first: list[object], second: list[object], faults: Faults, seed: int, queue_bytes: int
) -> None:
    async def both() -> Rig:
        rig = await play(first, KEYS[:3], faults, seed, queue_bytes)
        again = Rig(
            sink=rig.sink,
            control=rig.control,
            spec=spec_of(),
            store=DictStore(2),
            heartbeat_interval_s=1.0,
        )
        again.store.version = rig.store.version + 10
        again.store.put(KEYS[4], value(7))
        async with again.running():
            again.sync()
            await until(lambda: again.status.complete)
            assert await again.relay.drain(1000.0)
        return again

    rig = run_virtually(both())
    assert rig.rebuilt() == rig.store.values()
    assert all(replica.proven for replica in rig.replicas())


def test_a_control_topic_remembers_the_newest_claim() -> None:
    control = FakeControl()
    epoch = control.claimed_elsewhere("pods")
    assert not control.superseded("pods", epoch)
    control.claimed_elsewhere("pods")
    assert control.superseded("pods", epoch)
