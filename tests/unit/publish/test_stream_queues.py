"""A partition past its bound: what its set says, and what its markers may claim. The pure part,
without a clock."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from tests.support.relays import KEYS, DictStore, Rig, spec_of, until, virtual
from tests.unit.store.frames import WIDGETS, entries, frame
from watchrelay.contract.records import (
    DIGEST_MASK,
    CloudEvents,
    MarkerRecord,
    ObjectRecord,
    Trimmed,
    decode,
    encoder_for,
)
from watchrelay.model.changes import Entry
from watchrelay.model.frames import ObjectFrame
from watchrelay.publish.partition_queue import QueuedRecord
from watchrelay.publish.recovery import (
    FirstSnapshot,
    ListAndDiff,
    RecoveredPartition,
    RecoveredState,
    SnapshotPlace,
)
from watchrelay.publish.stream_queues import Fitting, StreamQueues
from watchrelay.store.counting import Counting
from watchrelay.store.objects import Store
from watchrelay.store.transform import Transform

BOUND = 20_000


def unchanged(
    _key: bytes, value: bytes | None, _entry: Entry, _published_hash: int | None
) -> tuple[bytes, Trimmed]:
    """Every object fits."""
    return value or b"", ""


def bounded(fitting: Fitting | None = None, *, partitions: int = 1) -> StreamQueues:
    """Queues of a bound that four records pass. Every object fits, unless `fitting` says more."""
    fitting = fitting or Fitting(1 << 20, unchanged)
    return StreamQueues(range(partitions), soft_bytes=1000, fitting=fitting, bound_bytes=2000)


def past_the_bound(store: DictStore, found: RecoveredState | None = None) -> StreamQueues:
    queues = bounded()
    if found is not None:
        queues.resume(found)
    for number in range(4):
        queues.push(store.put(b"a/%d" % number, b"0"), reason="watch", time_ms=1, received_at_s=1.0)
    assert queues.conflating
    return queues


def markers(queues: StreamQueues, store: DictStore) -> list[str]:
    queue = queues.partitions[0]
    batch = (
        queue.render(CloudEvents(spec_of(partitions=1), 1), store.unpack, limit_bytes=1 << 20)
        if queue.waiting
        else None
    )
    published = [decode(*record) for record in batch.records] if batch is not None else []
    queue.outstanding = batch
    if batch is not None:
        queues.acked(queue, batch, list(range(len(batch.records))))
    return [record.frontier for record in published if isinstance(record, MarkerRecord)]


def hand_over(queues: StreamQueues, store: DictStore) -> list[ObjectRecord | MarkerRecord]:
    queue = queues.partitions[0]
    queue.outstanding = queue.render(
        CloudEvents(spec_of(partitions=1), 1), store.unpack, limit_bytes=1 << 20
    )
    return [decode(*record) for record in queue.outstanding.records]


def found(decision: ListAndDiff | FirstSnapshot) -> RecoveredState:
    return RecoveredState(decision, (RecoveredPartition(0, 0, "50", None),), ({},), {}, "50", {})


def test_f4_no_marker_is_within_the_difference_that_a_list_found() -> None:
    store = DictStore(1)
    queues = past_the_bound(store, found(ListAndDiff("another config", config_changed=True)))
    queues.mark("heartbeat", frontier="104", time_ms=1)
    assert markers(queues, store) == []
    assert queues.refill(queues.partitions[0], store.get, time_ms=1, limit_bytes=1 << 20)
    queues.mark("heartbeat", frontier="104", time_ms=1)
    assert markers(queues, store) == ["104"]


def test_a_partition_past_its_bound_repeats_what_a_former_writer_claimed() -> None:
    store = DictStore(1)
    queues = past_the_bound(store, found(FirstSnapshot("for the test: nothing was listed")))
    queues.mark("heartbeat", frontier="104", time_ms=1)
    assert markers(queues, store) == ["50"]


def test_when_the_server_went_back_the_frontier_is_0_until_all_is_published() -> None:
    store = DictStore(1)
    queues = past_the_bound(store, found(FirstSnapshot("for the test: nothing was listed")))
    queues.lower_frontier()
    queues.mark("heartbeat", frontier="40", time_ms=1)
    assert markers(queues, store) == ["0"]
    assert queues.refill(queues.partitions[0], store.get, time_ms=1, limit_bytes=1 << 20)
    queues.mark("heartbeat", frontier="40", time_ms=1)
    assert markers(queues, store) == ["40"]


def marked_in_an_overload(queues: StreamQueues, store: DictStore) -> list[str]:
    """The frontiers of the markers of a heartbeat at 108 while the queues are past their bound."""
    for number in range(4):
        queues.push(store.put(b"a/%d" % number, b"1"), reason="watch", time_ms=1, received_at_s=1.0)
    assert queues.conflating
    queues.mark("heartbeat", frontier="108", time_ms=1)
    return markers(queues, store)


def test_once_a_marker_is_behind_the_difference_later_overloads_have_markers() -> None:
    store = DictStore(1)
    queues = past_the_bound(store, found(ListAndDiff("another config", config_changed=True)))
    assert queues.refill(queues.partitions[0], store.get, time_ms=1, limit_bytes=1 << 20)
    queues.mark("heartbeat", frontier="104", time_ms=1)
    assert markers(queues, store) == ["104"]
    assert marked_in_an_overload(queues, store) == ["104"]


@pytest.mark.parametrize("put_back", [False, True])
def test_the_frontier_repeated_is_the_newest_that_may_be_in_the_log_or_waits_to_be(
    *, put_back: bool
) -> None:
    store = DictStore(1)
    queues = bounded()
    queues.push(store.put(b"b/b", b"0"), reason="watch", time_ms=1, received_at_s=1.0)
    queues.mark("heartbeat", frontier="101", time_ms=1)
    hand_over(queues, store)
    for number in range(4):
        queues.push(store.put(b"a/%d" % number, b"0"), reason="watch", time_ms=1, received_at_s=1.0)
    assert queues.conflating
    queue = queues.partitions[0]
    if put_back:
        queue.put_back()
    queues.mark("heartbeat", frontier="105", time_ms=1)
    if not put_back:
        assert queue.outstanding is not None
        queues.acked(queue, queue.outstanding, [0, 1])
    assert {
        record.frontier for record in hand_over(queues, store) if isinstance(record, MarkerRecord)
    } == {"101"}


def test_the_null_behind_a_delete_that_was_handed_over_stays_in_the_queue() -> None:
    store, encoder = (
        DictStore(1),
        encoder_for(dataclasses.replace(spec_of(partitions=1), format="structured"), 1),
    )
    queues = StreamQueues(
        range(1),
        soft_bytes=1000,
        fitting=Fitting(1 << 20, unchanged),
        trailing_tombstones=True,
        bound_bytes=2500,
    )
    queue, log = queues.partitions[0], list[ObjectRecord | MarkerRecord]()

    def send(limit_bytes: int) -> None:
        queue.outstanding = queue.render(encoder, store.unpack, limit_bytes=limit_bytes)
        log.extend(decode(*record) for record in queue.outstanding.records)
        queues.acked(queue, queue.outstanding, list(range(len(queue.outstanding.records))))

    queues.push(store.put(b"b/b", b"{}"), reason="watch", time_ms=1, received_at_s=1.0)
    queues.push(store.remove(b"b/b"), reason="watch", time_ms=1, received_at_s=1.0)
    send(1)
    send(1)  # the delete alone
    for number in range(4):
        queues.push(
            store.put(b"a/%d" % number, b"{}"), reason="watch", time_ms=1, received_at_s=1.0
        )
    assert queues.conflating
    send(1)
    assert [
        (each.key, each.verb, each.enveloped) for each in log[1:] if isinstance(each, ObjectRecord)
    ] == [
        (b"b/b", "deleted", True),
        (b"b/b", "deleted", False),
    ]


def log_unverified(store: DictStore) -> StreamQueues:
    """Two objects that a former writer published, in a log that is not accepted; the partition is
    past its bound before they are published again."""
    queues = bounded()
    for key in (b"b/one", b"b/two"):
        store.put(key, b"0")
    queues.unverified_keys = frozenset(store.keys())
    queues.uncounted_keys = set(store.keys())
    return queues


@pytest.mark.parametrize("before", [False, True])
def test_the_objects_of_a_log_that_is_not_accepted_are_published_as_deleted_all_the_same(
    *, before: bool
) -> None:
    store = DictStore(1)
    queues = log_unverified(store)

    def fill() -> None:
        for number in range(4):
            queues.push(
                store.put(b"a/%d" % number, b"0"), reason="watch", time_ms=1, received_at_s=1.0
            )

    if not before:
        fill()
    for key, uid in ((b"b/one", "u1"), (b"b/two", "u1"), (b"b/two", "u2")):
        queues.push(store.put(key, b"1", uid=uid), reason="watch", time_ms=1, received_at_s=1.0)
        if before and not queues.conflating:
            fill()
        if (key, uid) != (b"b/two", "u1"):
            queues.push(store.remove(key), reason="watch", time_ms=1, received_at_s=1.0)
    assert queues.refill(queues.partitions[0], store.get, time_ms=1, limit_bytes=1 << 20)
    published = [
        (each.key, each.verb, each.uid)
        for each in hand_over(queues, store)
        if isinstance(each, ObjectRecord)
    ]
    assert [each for each in published if each[0].startswith(b"b/")] == [
        (b"b/one", "deleted", "u1"),
        (b"b/two", "deleted", "u2"),
    ]


def test_an_object_of_a_log_that_is_not_believed_is_not_new() -> None:
    store = DictStore(1)
    queues = log_unverified(store)
    for key in (b"b/one", b"a/0", b"a/1", b"a/2", b"a/3", b"b/two"):
        queues.push(store.put(key, b"1"), reason="watch", time_ms=1, received_at_s=1.0)
    assert queues.refill(queues.partitions[0], store.get, time_ms=1, limit_bytes=1 << 20)
    published = {
        each.key: each.verb for each in hand_over(queues, store) if isinstance(each, ObjectRecord)
    }
    assert (published[b"b/one"], published[b"b/two"], published[b"a/0"]) == (
        "modified",
        "modified",
        "added",
    )


def test_a_stale_record_is_repaired_though_nothing_else_is_to_be_published_of_its_key() -> None:
    store = DictStore(1)
    queues = bounded()
    queues.push(store.put(b"b/alive", b"0"), reason="watch", time_ms=1, received_at_s=1.0)
    markers(queues, store)
    for number in range(4):
        queues.push(store.put(b"a/%d" % number, b"0"), reason="watch", time_ms=1, received_at_s=1.0)
    queues.repair(b"b/alive", store.get(b"b/alive"), 0, time_ms=1)
    queues.repair(b"b/dead", None, 0, time_ms=1)
    assert queues.refill(queues.partitions[0], store.get, time_ms=1, limit_bytes=1 << 20)
    queue = queues.partitions[0]
    batch = queue.render(CloudEvents(spec_of(partitions=1), 1), store.unpack, limit_bytes=1 << 20)
    published = [decode(*record) for record in batch.records]
    assert [
        (each.key, each.verb)
        for each in published
        if isinstance(each, ObjectRecord) and each.reason == "healed"
    ] == [
        (b"b/alive", "read"),
        (b"b/dead", "deleted"),
    ]


@virtual
async def test_a_log_that_is_not_accepted_is_published_again_and_no_marker_within_claims_anything() -> (
    None
):
    rig = Rig(partitions=1, queue_bytes=BOUND)
    for key in KEYS:
        rig.store.put(key, b"held by the log")
    await rig.relay.claim(rig.highest_epoch)
    queue = RecoveredPartition(len(KEYS), 12345, "50", SnapshotPlace("1-1", 3))
    rig.relay.resume(
        RecoveredState(
            FirstSnapshot("for the test", log_unverified=True), (queue,), ({},), {}, "90", {}
        )
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(rig.relay.run(), name="run")
        rig.sink.up.clear()
        rig.say([change for key in KEYS[:10] for change in rig.store.remove(key)], reason="resume")
        await asyncio.sleep(1)
        rig.say(
            [
                change
                for number in range(60)
                for change in rig.store.put(b"new/%d" % number, b"n" * 50)
            ],
            reason="resume",
        )
        rig.sync()
        await asyncio.sleep(30)
        assert rig.status.queues.dirty_keys, "the difference was not conflated"
        rig.sink.up.set()
        await until(lambda: rig.status.complete)
        running.cancel()
    log = rig.records(0)
    last_gone = max(
        at
        for at, each in enumerate(log)
        if isinstance(each, ObjectRecord) and each.verb == "deleted"
    )
    end = next(
        at for at, each in enumerate(log) if isinstance(each, MarkerRecord) and each.kind == "end"
    )
    within = [each for each in log[:end] if isinstance(each, MarkerRecord) and each.kind != "claim"]
    assert last_gone < end
    assert {each.frontier for each in within} == {"0"}
    (replica,) = rig.replicas()
    assert replica.proven
    assert rig.rebuilt() == rig.store.values()
    assert {each.key for each in rig.objects() if each.verb == "deleted"} == set(KEYS[:10])


@pytest.mark.parametrize("pending", [False, True])
def test_the_frontier_of_a_restored_server_is_repeated_once_a_marker_shows_it(
    *, pending: bool
) -> None:
    store = DictStore(1)
    queues = past_the_bound(store, found(FirstSnapshot("for the test: nothing was listed")))
    queue = queues.partitions[0]
    assert queues.refill(queue, store.get, time_ms=1, limit_bytes=1 << 20)
    if pending:  # 104 was not acknowledged, or no marker had it, when the server went back to 102
        queues.mark("heartbeat", frontier="104", time_ms=1)
        hand_over(queues, store)
    queues.lower_frontier()
    if pending:
        assert queue.outstanding is not None
        queues.acked(queue, queue.outstanding, list(range(len(queue.outstanding.records))))
        assert queue.lowering_unconfirmed
    queues.mark("heartbeat", frontier="102", time_ms=1)
    assert markers(queues, store) == ["102"]
    assert marked_in_an_overload(queues, store) == ["102"]


def test_a_marker_in_an_overload_repeats_when_the_server_was_seen_until_no_key_is_dirty() -> None:
    store, queues = DictStore(1), bounded()
    queue = queues.partitions[0]

    def seen() -> list[str]:
        queues.mark("heartbeat", frontier="104", time_ms=1)
        log = hand_over(queues, store)
        assert queue.outstanding is not None
        queues.acked(queue, queue.outstanding, range(len(queue.outstanding.records)))
        return [each.seen for each in log if isinstance(each, MarkerRecord)]

    queues.seen_ms = 1000
    assert seen() == ["1970-01-01T00:00:01.000Z"]
    queues.push(store.put(b"a/0", b"0"), reason="watch", time_ms=1, received_at_s=1.0)
    queues.seen_ms = 2000
    queues.mark("heartbeat", frontier="104", time_ms=1)  # goes with the queue
    for number in range(1, 4):
        queues.push(store.put(b"a/%d" % number, b"0"), reason="watch", time_ms=1, received_at_s=1.0)
    queues.seen_ms = 3000
    assert queues.conflating
    assert [seen(), seen()] == [["1970-01-01T00:00:01.000Z"]] * 2
    assert queues.refill(queue, store.get, time_ms=1, limit_bytes=1 << 20)
    assert seen() == ["1970-01-01T00:00:03.000Z"]


def test_a_member_that_a_lowered_limit_trims_is_published_though_the_queue_is_past_its_bound() -> (
    None
):
    store = DictStore(1)

    def fit(key: bytes, value: bytes | None, *_: object) -> tuple[bytes, Trimmed]:
        return (b'{"part":1}', "fields") if key == b"a/large" else (value or b"{}", "")

    fitting = Fitting(1 << 20, fit)
    queues = bounded(fitting)
    queue, log = queues.partitions[0], list[ObjectRecord | MarkerRecord]()

    def send() -> None:
        log.extend(hand_over(queues, store))
        assert queue.outstanding is not None
        queues.acked(queue, queue.outstanding, range(len(queue.outstanding.records)))

    queues.push(store.put(b"a/large", b'{"whole":1}'), reason="watch", time_ms=1, received_at_s=1.0)
    send()
    fitting.packed_max = 0
    large = store.get(b"a/large")
    assert large is not None
    queues.push_member(b"a/large", large, time_ms=1)
    for number in range(4):
        queues.push(
            store.put(b"a/%d" % number, b"{}"), reason="watch", time_ms=1, received_at_s=1.0
        )
    assert queues.conflating
    queues.refill(queue, store.get, time_ms=1, limit_bytes=1 << 20)
    queues.push_member(b"a/large", large, time_ms=1)
    queues.mark("heartbeat", frontier="9", time_ms=1)
    send()
    held = {each.key: each.value_hash for each in log if isinstance(each, ObjectRecord)}
    marker = log[-1]
    assert isinstance(marker, MarkerRecord)
    assert (marker.count, marker.digest) == (len(held), sum(held.values()) % (1 << 64))


def test_a_stale_record_in_a_partition_that_is_not_its_keys_gets_a_null_also_in_the_first_snapshot() -> (
    None
):
    store = DictStore(2)
    queues = bounded(partitions=2)
    store.put(b"a/a", b"{}")
    entry = store.get(b"a/a")
    assert entry is not None
    queues.uncounted_keys = {b"a/a"}
    queues.repair(b"a/a", entry, entry.partition, time_ms=1)
    assert queues.queued_records == 0, "the snapshot publishes it"
    queues.repair(b"a/a", entry, 1 - entry.partition, time_ms=1)
    waiting = queues.by_partition[1 - entry.partition].waiting
    assert [(item.key, item.verb) for item in waiting if isinstance(item, QueuedRecord)] == [
        (b"a/a", "deleted")
    ]


# ---- what counts ---------------------------------------------------------------------------------


def beating(version: int, name: str, body: int, noise: int, *, uid: str = "") -> ObjectFrame:
    return frame(name, version, body={"body": body, "noise": noise}, uid=uid)


def counting_store() -> Store:
    transform = Transform.compile(WIDGETS)
    ignored = Counting.compile(transform, ignored=[("spec", "noise")])
    return Store(transform, partitions=1, counting=ignored)


def digest_of(store: Store) -> int:
    return sum(entry.hash for entry in entries(store).values()) & DIGEST_MASK


def refill(queues: StreamQueues, store: Store) -> None:
    queue = queues.partitions[0]
    queues.refill(queue, store.get, time_ms=1, limit_bytes=1 << 20)


def rendered(queues: StreamQueues, store: Store) -> list[tuple[str, str, str]]:
    """Verb, name and version of each record that is sent and acknowledged now; markers left out."""
    queue, records = queues.partitions[0], list[ObjectRecord | MarkerRecord]()
    while queue.waiting:
        batch = queue.render(
            CloudEvents(spec_of(partitions=1), 1), store.unpack, limit_bytes=1 << 20
        )
        queue.outstanding = batch
        records += [decode(*record) for record in batch.records]
        queues.acked(queue, batch, list(range(len(batch.records))))
    return [
        (each.verb, each.key.decode().partition("/")[2], each.version)
        for each in records
        if isinstance(each, ObjectRecord)
    ]


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_key_whose_present_state_is_equal_in_what_counts_leaves_the_set_without_a_record(
    when: str,
) -> None:
    """And the store holds again what is published, so that digests stay right."""
    store, names = counting_store(), [f"w{number}" for number in range(8)]
    queues = StreamQueues(
        range(1),
        soft_bytes=1000,
        fitting=Fitting(1 << 20, unchanged),
        settle=store.settle,
        bound_bytes=2000,
    )

    def say(*frames: ObjectFrame) -> None:
        queues.push(store.apply(frames).changes, reason="watch", time_ms=1, received_at_s=1.0)

    for at, name in enumerate(names):
        say(beating(at + 1, name, 0, 0))
        assert len(rendered(queues, store)) == 1
    published = {name: store.get(f"n/{name}".encode()) for name in names}
    if when == "before":
        say(beating(20, "w0", 1, 1), beating(21, "w0", 0, 2))  # waits in the queue already
        assert not queues.conflating
    for at, name in enumerate(names):
        say(beating(30 + at, name, 1, 1))
    assert queues.conflating
    for at, name in enumerate(names[:4]):
        say(beating(40 + at, name, 0, 2))
    say(frame("w4", 50, "DELETED"), beating(51, "w4", 0, 3))
    say(frame("w5", 52, "DELETED"), beating(53, "w5", 0, 3, uid="other"))
    digest = queues.partitions[0].digest
    refill(queues, store)
    assert rendered(queues, store) == [
        ("deleted", "w5", "52"),
        ("added", "w5", "53"),
        ("modified", "w6", "36"),
        ("modified", "w7", "37"),
    ]
    for name in names[:5]:
        assert store.get(f"n/{name}".encode()) is published[name]
    assert queues.partitions[0].digest != digest
    assert queues.partitions[0].digest == digest_of(store)
    say(beating(60, "w0", 1, 3))
    assert rendered(queues, store) == [("modified", "w0", "60")]
    assert queues.partitions[0].digest == digest_of(store)
