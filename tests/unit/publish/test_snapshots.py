"""When a snapshot is due, what it says, and when it is whole."""

from __future__ import annotations

import random

import pytest

from watchrelay.model.changes import Entry
from watchrelay.publish.snapshots import (
    MEMBERS_BUSY_BYTES,
    MEMBERS_QUIET_BYTES,
    QUIET_S,
    Snapshot,
    SnapshotSchedule,
)


def entry(partition: int = 0) -> Entry:
    return Entry.of("u", "1", partition, value_hash=1)


def snapshot(keys: list[bytes], *, partitions: int = 1) -> Snapshot:
    return Snapshot("1-1", keys=keys, partitions=partitions, began_at_s=0.0, requests=("r",))


def test_a_key_that_is_gone_or_was_queued_since_begin_is_passed_over() -> None:
    store = {b"old": entry(), b"new": entry(), b"never": entry()}
    queued: list[bytes] = []
    snap = snapshot([b"old", b"gone", b"new", b"never"])
    members = {b"old", b"gone", b"never"}
    snap.queue_members(members, store.get, lambda _: True, lambda key, _: queued.append(key))
    assert queued == [b"old", b"never"]
    assert (snap.keys_left, snap.members) == (False, 2)


def test_it_waits_where_the_next_keys_partition_has_no_room_and_goes_on_there() -> None:
    store = {b"a": entry(0), b"b": entry(1), b"c": entry(0)}
    queued: list[bytes] = []
    snap = snapshot([b"a", b"b", b"c"], partitions=2)
    for has_room in (lambda partition: partition == 0, lambda _: True):
        assert snap.keys_left
        snap.queue_members(store, store.get, has_room, lambda key, _: queued.append(key))
        assert queued in ([b"a"], [b"a", b"b", b"c"])
    assert (snap.keys_left, queued) == (False, [b"a", b"b", b"c"])


def test_beside_live_events_it_takes_small_bites_and_large_ones_when_there_are_none() -> None:
    store = {b"a": entry(), b"b": entry()}
    snap = snapshot([b"a", b"b"])
    assert snap.members_limit_bytes(10.0, 7) == MEMBERS_QUIET_BYTES, (
        "what was queued before it is no live event"
    )
    snap.queue_members(store, store.get, lambda _: True, lambda *_: None)
    assert snap.members_limit_bytes(10.1, 9) == MEMBERS_QUIET_BYTES, (
        "its own members are none either"
    )
    assert snap.members_limit_bytes(10.2, 10) == MEMBERS_BUSY_BYTES
    assert snap.members_limit_bytes(10.2 + QUIET_S / 2, 10) == MEMBERS_BUSY_BYTES
    assert snap.members_limit_bytes(10.25 + QUIET_S, 10) == MEMBERS_QUIET_BYTES


def test_end_comes_once_when_all_keys_are_done_and_every_begin_is_acknowledged() -> None:
    snap = snapshot([b"a"], partitions=2)
    snap.begin_acked(0, 5)
    snap.begin_acked(1, 6)
    assert not snap.take_end()
    snap.queue_members((), lambda _: None, lambda _: True, lambda *_: None)
    assert snap.take_end()
    assert not snap.take_end()


def test_no_end_before_the_last_begin_is_acknowledged() -> None:
    snap = snapshot([], partitions=2)
    snap.begin_acked(0, 5)
    assert not snap.take_end()
    snap.begin_acked(1, 6)
    assert snap.take_end()


def test_the_index_record_names_the_offsets_of_the_markers_themselves() -> None:
    snap = snapshot([], partitions=2)
    for partition in (1, 0):
        snap.begin_acked(partition, 5 + partition)
        assert not snap.complete
        snap.end_acked(partition, offset=50 + partition, count=2, digest=7)
    assert snap.complete
    value = snap.index_value(epoch=1, frontier="99", time_ms=0)
    assert value["requests"] == ["r"]
    assert value["count"] == 4
    assert value["partitions"] == [
        {"partition": 0, "begin": 5, "end": 50, "count": 2, "digest": "0000000000000007"},
        {"partition": 1, "begin": 6, "end": 51, "count": 2, "digest": "0000000000000007"},
    ]


def test_snapshots_come_with_the_interval_give_or_take_a_tenth() -> None:
    schedule = SnapshotSchedule(100.0, random.Random(1))
    assert schedule.wait_s(0.0) is None
    waits = set()
    for _ in range(50):
        schedule.begun(1000.0, 0)
        wait_s = schedule.wait_s(1000.0)
        assert wait_s is not None
        waits.add(wait_s)
        assert not schedule.due(1089.9, records=0, objects=0)
        assert schedule.due(1110.1, records=0, objects=0)
    assert len(waits) > 40


def test_interval_zero_means_never_by_time_but_still_on_growth() -> None:
    schedule = SnapshotSchedule(0.0, random.Random(1))
    schedule.begun(0.0, 500)
    assert schedule.wait_s(1e9) is None
    assert not schedule.due(1e9, records=500 + 10_000 + 3 * 20, objects=20)
    assert schedule.due(0.0, records=501 + 10_000 + 3 * 20, objects=20)


@pytest.mark.parametrize(
    ("time", "wait_s"),
    [
        ("2026-01-02T03:04:05.000Z", (90.0, 110.0)),
        ("2026-01-02T04:04:05.000Z", (90.0, 110.0)),
        ("9999-12-31T23:59:59.999Z", (90.0, 110.0)),
        ("2026-01-02T03:03:05.000Z", (30.0, 50.0)),
        ("1970-01-01T00:00:00.000Z", (0.0, 0.0)),
        ("noon", (0.0, 0.0)),
        (7, (0.0, 0.0)),
        (None, (0.0, 0.0)),
    ],
)
def test_after_a_resume_it_is_due_within_an_interval_whatever_the_clock_of_the_former_writer(
    time: object, wait_s: tuple[float, float]
) -> None:
    schedule = SnapshotSchedule(100.0, random.Random(1))
    schedule.resumed(1000.0, {"time": time}, wall_ms=1_767_323_045_000, records=0)
    found = schedule.wait_s(1000.0)
    assert found is not None
    assert wait_s[0] <= found <= wait_s[1]
