"""Positions, counts and digests are given out at hand-over, in the order of the store."""

from __future__ import annotations

import zlib

from tests.support.relays import DictStore, spec_of
from watchrelay.contract.records import (
    CloudEvents,
    MarkerRecord,
    ObjectRecord,
    content_hash,
    decode,
)
from watchrelay.model.changes import Entry, ObjectChange
from watchrelay.publish.partition_queue import Cut, Lane, Sequencer
from watchrelay.publish.trim import trim

ENCODER = CloudEvents(spec_of(partitions=1), 3)


def fit(key: bytes, value: bytes | None, entry: Entry) -> tuple[bytes, str]:
    part, trimmed = trim(value or zlib.decompress(entry.packed), 100)
    entry.hash = content_hash(key, part)
    return part, trimmed


def queues(*, raw_bytes: int = 1 << 20, packed_max: int = 1 << 20) -> Sequencer:
    return Sequencer(1, raw_bytes=raw_bytes, packed_max=packed_max, oversize=fit)  # type: ignore[arg-type]


def push(sequencer: Sequencer, changes: list[ObjectChange]) -> None:
    sequencer.push(changes, reason="watch", time_ms=1000, received_s=1.0)


def cut(lane: Lane, limit_bytes: int = 1 << 20) -> Cut:
    lane.outstanding = lane.cut(
        ENCODER, lambda entry: zlib.decompress(entry.packed), limit_bytes=limit_bytes, seen_ms=None
    )
    return lane.outstanding


def said(cut: Cut) -> list[ObjectRecord | MarkerRecord]:
    return [decode(*record) for record in cut.records]


def ack(sequencer: Sequencer, lane: Lane, first: int = 0) -> None:
    assert lane.outstanding is not None
    sequencer.settled(
        lane, lane.outstanding, list(range(first, first + len(lane.outstanding.records)))
    )


def test_a_marker_speaks_of_what_was_handed_over_before_it_and_of_nothing_behind_it() -> None:
    sequencer, store = queues(), DictStore(1)
    push(sequencer, store.put(b"a/a", b"1"))
    sequencer.mark("heartbeat", frontier="101", time_ms=1000)
    push(sequencer, store.put(b"a/b", b"2"))
    first, beat, second = said(cut(sequencer.lanes[0]))
    assert (first.sequence, beat.sequence, second.sequence) == (1, 2, 3)
    assert isinstance(beat, MarkerRecord)
    assert (beat.count, beat.digest, beat.frontier) == (1, content_hash(b"a/a", b"1"), "101")


def test_count_and_digest_follow_additions_changes_deletes_and_new_incarnations() -> None:
    sequencer, store = queues(), DictStore(1)
    lane = sequencer.lanes[0]
    push(sequencer, store.put(b"a/a", b"1"))
    push(sequencer, store.put(b"a/a", b"2"))
    push(sequencer, store.put(b"a/a", b"3", uid="u2"))
    push(sequencer, store.put(b"a/b", b"4"))
    records = said(cut(lane))
    assert [record.verb for record in records if isinstance(record, ObjectRecord)] == [
        "added",
        "modified",
        "deleted",
        "added",
        "added",
    ]
    assert (lane.count, lane.digest) == (
        2,
        (content_hash(b"a/a", b"3") + content_hash(b"a/b", b"4")) % 2**64,
    )
    ack(sequencer, lane)
    push(sequencer, store.remove(b"a/a"))
    push(sequencer, store.remove(b"a/b"))
    cut(lane)
    assert (lane.count, lane.digest) == (0, 0)


def test_members_of_a_snapshot_are_taken_up_to_so_much_a_batch_whatever_live_records_wait() -> None:
    sequencer, store = queues(), DictStore(1)
    lane = sequencer.lanes[0]
    for number in range(10):
        push(sequencer, store.put(b"a/%d" % number, b"1"))
    assert lane.takes_reads(lane.mean_bytes), "ten live records wait, and no member"
    entry = store.get(b"a/0")
    assert entry is not None
    sequencer.read(b"a/0", entry, time_ms=1000)
    assert not lane.takes_reads(lane.mean_bytes)
    cut(lane)
    assert lane.takes_reads(lane.mean_bytes)


def test_a_deep_queue_keeps_packed_bytes_and_still_says_the_value_of_the_moment() -> None:
    sequencer, store = queues(raw_bytes=700), DictStore(1)
    for number in range(5):
        push(sequencer, store.put(b"a/a", b"%d" % number))
    kept = [item.value for item in sequencer.lanes[0].queue]  # type: ignore[union-attr]
    assert kept == [b"0", b"1", None, None, None]
    values = [
        record.value for record in said(cut(sequencer.lanes[0])) if isinstance(record, ObjectRecord)
    ]
    assert values == [b"0", b"1", b"2", b"3", b"4"]


def test_a_batch_ends_before_its_bound_but_never_without_a_record() -> None:
    sequencer, store = queues(), DictStore(1)
    for number in range(3):
        push(sequencer, store.put(b"a/%d" % number, b"x" * 1000))
    lane = sequencer.lanes[0]
    assert len(cut(lane, limit_bytes=3100).records) == 2
    ack(sequencer, lane)
    assert len(cut(lane, limit_bytes=10).records) == 1


def test_putting_cuts_back_restores_order_positions_and_digest() -> None:
    sequencer, store = queues(), DictStore(1)
    lane = sequencer.lanes[0]
    push(sequencer, store.put(b"a/a", b"1"))
    push(sequencer, store.put(b"a/b", b"2"))
    push(sequencer, store.put(b"a/c", b"3"))
    first = cut(lane, limit_bytes=10)
    lane.next = lane.cut(ENCODER, lambda entry: b"", limit_bytes=1 << 20, seen_ms=None)
    rest = lane.next
    lane.put_back()
    assert (lane.sequence, lane.count, lane.digest, len(lane.queue)) == (0, 0, 0, 3)
    assert cut(lane).records == first.records + rest.records


def test_a_replaced_record_is_what_the_next_one_of_its_key_replaces() -> None:
    sequencer, store = queues(), DictStore(1)
    lane = sequencer.lanes[0]
    push(sequencer, store.put(b"a/a", b"large"))
    push(sequencer, store.put(b"a/b", b"other"))
    push(sequencer, store.put(b"a/a", b"small"))
    cut(lane, limit_bytes=10)
    lane.put_back()
    lane.replace(0, b"less", content_hash(b"a/a", b"less"), "stub")
    records = said(cut(lane))
    assert isinstance(records[0], ObjectRecord)
    assert (records[0].value, records[0].trimmed, records[0].value_hash) == (
        b"less",
        "stub",
        content_hash(b"a/a", b"less"),
    )
    assert lane.digest == (content_hash(b"a/a", b"small") + content_hash(b"a/b", b"other")) % 2**64


def test_a_split_batch_counts_as_the_whole_one() -> None:
    sequencer, store = queues(), DictStore(1)
    lane = sequencer.lanes[0]
    push(sequencer, store.put(b"a/a", b"1"))
    sequencer.mark("heartbeat", frontier="5", time_ms=1)
    push(sequencer, store.put(b"a/a", b"2"))
    sequencer.mark("heartbeat", frontier="6", time_ms=1)
    whole = cut(lane)
    held, payload = whole.held_bytes, whole.payload_bytes
    head = lane.split(2)
    tail = lane.outstanding
    assert tail is not None
    assert (head.held_bytes + tail.held_bytes, head.payload_bytes + tail.payload_bytes) == (
        held,
        payload,
    )
    assert tail.before == (2, 1, content_hash(b"a/a", b"1"))
    assert [handed.index for handed in tail.markers] == [1]
    sequencer.settled(lane, head, [0, 1])
    assert lane.frontier == "5"
    assert lane.outstanding is tail


def test_everything_acknowledged_leaves_nothing_held() -> None:
    sequencer, store = queues(), DictStore(1)
    push(sequencer, store.put(b"a/a", b"1"))
    sequencer.mark("heartbeat", frontier="1", time_ms=1)
    assert not sequencer.empty
    cut(sequencer.lanes[0])
    ack(sequencer, sequencer.lanes[0])
    assert (sequencer.empty, sequencer.held_bytes, sequencer.held_records) == (True, 0, 0)


def test_the_delete_of_what_the_log_never_held_is_said_but_not_counted() -> None:
    sequencer, store = queues(), DictStore(1)
    store.put(b"a/a", b"1")
    sequencer.unpublished = set(store.keys())
    push(sequencer, store.remove(b"a/a"))
    push(sequencer, store.put(b"a/a", b"2", uid="u2"))
    records = said(cut(sequencer.lanes[0]))
    assert [record.verb for record in records if isinstance(record, ObjectRecord)] == [
        "deleted",
        "added",
    ]
    assert sequencer.lanes[0].count == 1


def test_too_large_an_object_is_queued_in_part_with_the_hash_of_that_part() -> None:
    sequencer, store = queues(packed_max=20), DictStore(1)
    value = b'{"kind":"Pod","metadata":{"name":"a"},"spec":{"x":"%s"}}' % bytes(range(97, 123)) * 1
    changes = store.put(b"a/a", value)
    push(sequencer, changes)
    record = said(cut(sequencer.lanes[0]))[0]
    assert isinstance(record, ObjectRecord)
    assert record.value is not None
    assert record.value_hash == content_hash(b"a/a", record.value) == store.entries[b"a/a"].hash


def test_too_large_an_object_of_which_the_topic_took_even_less_is_healed_with_the_hash_of_what_is_said() -> (
    None
):
    sequencer, store = queues(packed_max=20), DictStore(1)
    lane, stub = sequencer.lanes[0], b'{"kind":"Pod"}'
    push(
        sequencer,
        store.put(
            b"a/a",
            b'{"kind":"Pod","metadata":{"name":"a"},"spec":{"x":"%s"}}' % bytes(range(97, 123)),
        ),
    )
    lane.replace(0, stub, content_hash(b"a/a", stub), "stub")
    cut(lane)
    ack(sequencer, lane)
    sequencer.heal(b"a/a", store.entries[b"a/a"], 0, time_ms=1000)
    record = said(cut(lane))[0]
    assert isinstance(record, ObjectRecord)
    assert record.value is not None
    assert (
        record.value_hash
        == content_hash(b"a/a", record.value)
        == lane.digest
        == store.entries[b"a/a"].hash
    )
