"""Positions, counts and digests are given out at hand-over, in the order of the store."""

from __future__ import annotations

import zlib

from tests.support.relays import DictStore, spec_of
from watchrelay.contract.records import (
    CloudEvents,
    MarkerRecord,
    ObjectRecord,
    Trimmed,
    content_hash,
    decode,
)
from watchrelay.model.changes import Entry, ObjectChange
from watchrelay.publish.partition_queue import PartitionQueue, QueuedRecord, RenderedBatch
from watchrelay.publish.stream_queues import Fitting, StreamQueues
from watchrelay.publish.trim import trim

ENCODER = CloudEvents(spec_of(partitions=1), 3)


def fit(
    _key: bytes, value: bytes | None, entry: Entry, _published: int | None
) -> tuple[bytes, Trimmed]:
    return trim(value or zlib.decompress(entry.packed), 100)


def queues(*, soft_bytes: int = 1 << 20, packed_max: int = 1 << 20) -> StreamQueues:
    return StreamQueues(range(1), soft_bytes=soft_bytes, fitting=Fitting(packed_max, fit))


def push(sequencer: StreamQueues, changes: list[ObjectChange]) -> None:
    sequencer.push(changes, reason="watch", time_ms=1000, received_at_s=1.0)


def rendered(
    queue: PartitionQueue, limit_bytes: int = 1 << 20, limit_records: int | None = None
) -> RenderedBatch:
    queue.outstanding = queue.render(
        ENCODER,
        lambda entry: zlib.decompress(entry.packed),
        limit_bytes=limit_bytes,
        limit_records=limit_records,
    )
    return queue.outstanding


def decoded(batch: RenderedBatch) -> list[ObjectRecord | MarkerRecord]:
    return [decode(*record) for record in batch.records]


def ack(sequencer: StreamQueues, queue: PartitionQueue, first: int = 0) -> None:
    assert queue.outstanding is not None
    sequencer.acked(
        queue, queue.outstanding, list(range(first, first + len(queue.outstanding.records)))
    )


def test_a_marker_speaks_of_what_was_handed_over_before_it_and_of_nothing_behind_it() -> None:
    sequencer, store = queues(), DictStore(1)
    push(sequencer, store.put(b"a/a", b"1"))
    sequencer.mark("heartbeat", frontier="101", time_ms=1000)
    push(sequencer, store.put(b"a/b", b"2"))
    first, beat, second = decoded(rendered(sequencer.partitions[0]))
    assert (first.sequence, beat.sequence, second.sequence) == (1, 2, 3)
    assert isinstance(beat, MarkerRecord)
    assert (beat.count, beat.digest, beat.frontier) == (1, content_hash(b"a/a", b"1"), "101")


def test_count_and_digest_follow_additions_changes_deletes_and_new_incarnations() -> None:
    sequencer, store = queues(), DictStore(1)
    queue = sequencer.partitions[0]
    push(sequencer, store.put(b"a/a", b"1"))
    push(sequencer, store.put(b"a/a", b"2"))
    push(sequencer, store.put(b"a/a", b"3", uid="u2"))
    push(sequencer, store.put(b"a/b", b"4"))
    records = decoded(rendered(queue))
    assert [record.verb for record in records if isinstance(record, ObjectRecord)] == [
        "added",
        "modified",
        "deleted",
        "added",
        "added",
    ]
    assert (queue.count, queue.digest) == (
        2,
        (content_hash(b"a/a", b"3") + content_hash(b"a/b", b"4")) % 2**64,
    )
    ack(sequencer, queue)
    push(sequencer, store.remove(b"a/a"))
    push(sequencer, store.remove(b"a/b"))
    rendered(queue)
    assert (queue.count, queue.digest) == (0, 0)


def test_members_of_a_snapshot_are_taken_up_to_so_much_a_batch_whatever_live_records_wait() -> None:
    sequencer, store = queues(), DictStore(1)
    queue = sequencer.partitions[0]
    for number in range(10):
        push(sequencer, store.put(b"a/%d" % number, b"1"))
    assert queue.takes_members(queue.mean_bytes), "ten live records wait, and no member"
    entry = store.get(b"a/0")
    assert entry is not None
    sequencer.push_member(b"a/0", entry, time_ms=1000)
    assert not queue.takes_members(queue.mean_bytes)
    rendered(queue)
    assert queue.takes_members(queue.mean_bytes)


def test_a_deep_queue_keeps_packed_bytes_and_still_says_the_value_of_the_moment() -> None:
    sequencer, store = queues(soft_bytes=700), DictStore(1)
    for number in range(5):
        push(sequencer, store.put(b"a/a", b"%d" % number))
    waiting = sequencer.partitions[0].waiting
    kept = [item.value for item in waiting if isinstance(item, QueuedRecord)]
    assert kept == [b"0", b"1", None, None, None]
    values = [
        record.value
        for record in decoded(rendered(sequencer.partitions[0]))
        if isinstance(record, ObjectRecord)
    ]
    assert values == [b"0", b"1", b"2", b"3", b"4"]


def test_a_batch_ends_before_its_bound_but_never_without_a_record() -> None:
    sequencer, store = queues(), DictStore(1)
    for number in range(3):
        push(sequencer, store.put(b"a/%d" % number, b"x" * 1000))
    queue = sequencer.partitions[0]
    assert len(rendered(queue, limit_bytes=3100).records) == 2
    ack(sequencer, queue)
    assert len(rendered(queue, limit_bytes=10).records) == 1


def test_putting_cuts_back_restores_order_positions_and_digest() -> None:
    sequencer, store = queues(), DictStore(1)
    queue = sequencer.partitions[0]
    push(sequencer, store.put(b"a/a", b"1"))
    push(sequencer, store.put(b"a/b", b"2"))
    push(sequencer, store.put(b"a/c", b"3"))
    first = rendered(queue, limit_bytes=10)
    queue.next = queue.render(ENCODER, lambda entry: b"", limit_bytes=1 << 20)
    rest = queue.next
    queue.put_back()
    assert (queue.sequence, queue.count, queue.digest, len(queue.waiting)) == (0, 0, 0, 3)
    assert rendered(queue).records == first.records + rest.records


def test_a_replaced_record_is_what_the_next_one_of_its_key_replaces() -> None:
    sequencer, store = queues(), DictStore(1)
    queue = sequencer.partitions[0]
    push(sequencer, store.put(b"a/a", b"large"))
    push(sequencer, store.put(b"a/b", b"other"))
    push(sequencer, store.put(b"a/a", b"small"))
    rendered(queue, limit_bytes=10)
    queue.put_back()
    sequencer.replace_value(queue, 0, b"less", "stub")
    records = decoded(rendered(queue))
    assert isinstance(records[0], ObjectRecord)
    assert (records[0].value, records[0].trimmed, records[0].value_hash) == (
        b"less",
        "stub",
        content_hash(b"a/a", b"less"),
    )
    assert queue.digest == (content_hash(b"a/a", b"small") + content_hash(b"a/b", b"other")) % 2**64


def test_a_batch_of_which_a_part_was_appended_counts_as_the_whole_one() -> None:
    sequencer, store = queues(), DictStore(1)
    queue = sequencer.partitions[0]
    push(sequencer, store.put(b"a/a", b"1"))
    sequencer.mark("heartbeat", frontier="5", time_ms=1)
    push(sequencer, store.put(b"a/a", b"2"))
    sequencer.mark("heartbeat", frontier="6", time_ms=1)
    whole = rendered(queue)
    queue.put_back()
    head = rendered(queue, limit_records=2)
    ack(sequencer, queue)
    assert queue.frontier == "5"
    tail = rendered(queue)
    assert head.records + tail.records == whole.records
    assert head.queued_bytes + tail.queued_bytes == whole.queued_bytes
    assert tail.start == (2, 1, content_hash(b"a/a", b"1"))
    assert [each.index for each in tail.markers] == [1]


def test_everything_acknowledged_leaves_nothing_held() -> None:
    sequencer, store = queues(), DictStore(1)
    push(sequencer, store.put(b"a/a", b"1"))
    sequencer.mark("heartbeat", frontier="1", time_ms=1)
    assert not sequencer.empty
    rendered(sequencer.partitions[0])
    ack(sequencer, sequencer.partitions[0])
    assert (sequencer.empty, sequencer.queued_bytes, sequencer.queued_records) == (True, 0, 0)


def test_the_delete_of_what_the_log_never_held_is_published_but_not_counted() -> None:
    sequencer, store = queues(), DictStore(1)
    store.put(b"a/a", b"1")
    sequencer.uncounted_keys = set(store.keys())
    push(sequencer, store.remove(b"a/a"))
    push(sequencer, store.put(b"a/a", b"2", uid="u2"))
    records = decoded(rendered(sequencer.partitions[0]))
    assert [record.verb for record in records if isinstance(record, ObjectRecord)] == [
        "deleted",
        "added",
    ]
    assert sequencer.partitions[0].count == 1


def test_too_large_an_object_is_queued_in_part_with_the_hash_of_that_part() -> None:
    sequencer, store = queues(packed_max=20), DictStore(1)
    value = b'{"kind":"Pod","metadata":{"name":"a"},"spec":{"x":"%s"}}' % bytes(range(97, 123)) * 1
    changes = store.put(b"a/a", value)
    push(sequencer, changes)
    record = decoded(rendered(sequencer.partitions[0]))[0]
    assert isinstance(record, ObjectRecord)
    assert record.value is not None
    whole = store.entries[b"a/a"].hash
    assert whole == content_hash(b"a/a", value), "the store alone writes its entries"
    published = sequencer.published_hash(b"a/a", whole)
    assert record.value_hash == content_hash(b"a/a", record.value) == published


def test_too_large_an_object_of_which_the_topic_took_even_less_is_repaired_with_the_hash_of_what_is_published() -> (
    None
):
    sequencer, store = queues(packed_max=20), DictStore(1)
    queue, stub = sequencer.partitions[0], b'{"kind":"Pod"}'
    push(
        sequencer,
        store.put(
            b"a/a",
            b'{"kind":"Pod","metadata":{"name":"a"},"spec":{"x":"%s"}}' % bytes(range(97, 123)),
        ),
    )
    sequencer.replace_value(queue, 0, stub, "stub")
    rendered(queue)
    ack(sequencer, queue)
    sequencer.repair(b"a/a", store.entries[b"a/a"], 0, time_ms=1000)
    record = decoded(rendered(queue))[0]
    assert isinstance(record, ObjectRecord)
    assert record.value is not None
    assert (
        record.value_hash
        == content_hash(b"a/a", record.value)
        == queue.digest
        == sequencer.published_hash(b"a/a", store.entries[b"a/a"].hash)
    )
