"""A queue that becomes a set of keys and back, at any moment, against the plain sequence of what
happened."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.extent import examples
from tests.support.relays import DictStore, Put, Remove, spec_of
from watchrelay.contract.records import (
    DIGEST_MASK,
    MarkerRecord,
    ObjectRecord,
    Trimmed,
    content_hash,
    decode,
    encoder_for,
)
from watchrelay.model.changes import Entry, ObjectChange, Upserted
from watchrelay.model.streams import Format
from watchrelay.publish.partition_queue import PartitionQueue
from watchrelay.publish.stream_queues import Fitting, StreamQueues

KEYS = [b"shop/a", b"shop/b", b"pay/c", b"pay/d", b"x/e"]
PARTITIONS = 2
BATCH_BYTES = 3000


@dataclass(frozen=True)
class Heal:
    key: bytes


@dataclass(frozen=True)
class Heartbeat:
    pass


@dataclass(frozen=True)
class Flush:
    """Hand over what can be; `ahead`: also the batch after the one that is on its way."""

    ahead: bool


@dataclass(frozen=True)
class Acknowledge:
    partition: int


@dataclass(frozen=True)
class Refuse:
    """The sink takes a record of what was handed over only in part: everything not sent is put
    back."""

    partition: int


OPS = st.lists(
    st.one_of(
        st.builds(
            Put, st.sampled_from(KEYS), st.integers(0, 9), st.sampled_from(["u1", "u1", "u1", "u2"])
        ),
        st.builds(Put, st.sampled_from(KEYS), st.integers(0, 9), st.just("u1")),
        st.builds(Remove, st.sampled_from(KEYS)),
        st.builds(Heal, st.sampled_from(KEYS)),
        st.just(Heartbeat()),
        st.builds(Flush, st.booleans()),
        st.builds(Acknowledge, st.integers(0, PARTITIONS - 1)),
        st.builds(Refuse, st.integers(0, PARTITIONS - 1)),
    ),
    max_size=120,
)


@dataclass
class Scenario:
    """What happened, what is on the log, and the state that a reader derives from it."""

    form: Format
    bound_bytes: int
    store: DictStore = field(default_factory=lambda: DictStore(PARTITIONS))
    logs: list[list[ObjectRecord | MarkerRecord]] = field(
        default_factory=lambda: [[] for _ in range(PARTITIONS)]
    )
    happened: dict[bytes, list[tuple[str, int, bytes | None]]] = field(default_factory=dict)
    """Per key what was pushed: uid, version, value; None: gone."""
    pushed: int = 0
    skipped: int = 0
    conflated: int = 0
    refused: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spec = spec_of(partitions=PARTITIONS)
        self.encoder = encoder_for(
            type(spec)(
                spec.id, spec.cluster, spec.topic, PARTITIONS, spec.plan, "c", format=self.form
            ),
            1,
        )
        self.queues = StreamQueues(
            range(PARTITIONS),
            soft_bytes=1000,
            fitting=Fitting(1 << 20, self._fit),
            trailing_tombstones=self.form != "cloudevents",
            bound_bytes=self.bound_bytes,
            partition_conflated=self._partition_conflated,
        )

    def _partition_conflated(self) -> None:
        self.conflated += 1

    def _fit(
        self, _key: bytes, value: bytes | None, entry: Entry, published_hash: int | None
    ) -> tuple[bytes, Trimmed]:
        """Everything fits, but what was refused before is published as it is on the log."""
        if published_hash is not None:
            return self.refused[published_hash], "stub"
        return self.store.unpack(entry) if value is None else value, ""

    # ---- what happens ----

    def say(self, changes: list[ObjectChange]) -> None:
        for change in changes:
            upserted = isinstance(change, Upserted)
            version = (
                change.entry.resource_version
                if isinstance(change, Upserted)
                else change.resource_version
            )
            value = self.store.unpack(change.entry) if upserted else None
            self.happened.setdefault(change.key, []).append((change.entry.uid, int(version), value))
        self.pushed += len(changes)
        self.queues.push(changes, reason="watch", time_ms=1, received_at_s=1.0)

    def play(self, op: object) -> None:
        match op:
            case Put(key, number, uid):
                self.say(
                    self.store.put(
                        key, b'{"n":%d,"version":%d}' % (number, self.store.version + 1), uid=uid
                    )
                )
            case Remove(key) if key in self.store.entries:
                self.say(self.store.remove(key))
            case Heal(key):
                self.queues.repair(
                    key, self.store.get(key), zlib.crc32(key) % PARTITIONS, time_ms=1
                )
            case Heartbeat():
                self.queues.mark("heartbeat", frontier=str(self.store.version), time_ms=1)
            case Flush(ahead):
                for queue in self.queues.partitions:
                    self.flush(queue, ahead=ahead)
            case Acknowledge(partition):
                self.acknowledge(self.queues.partitions[partition])
            case Refuse(partition):
                self.refuse(self.queues.partitions[partition])
            case _:
                pass
        self.skipped += self.queues.take_skipped()

    def flush(self, queue: PartitionQueue, *, ahead: bool = False) -> None:
        if queue.dirty is not None and queue.outstanding is None:
            self.queues.refill(queue, self.store.get, time_ms=1, limit_bytes=BATCH_BYTES)
        if queue.waiting and queue.outstanding is None:
            queue.outstanding = queue.render(
                self.encoder, self.store.unpack, limit_bytes=BATCH_BYTES
            )
        if ahead and queue.waiting and queue.next is None:
            queue.next = queue.render(self.encoder, self.store.unpack, limit_bytes=BATCH_BYTES)

    def acknowledge(self, queue: PartitionQueue) -> None:
        batch = queue.outstanding
        if batch is not None:
            log = self.logs[queue.partition]
            at = len(log)
            log.extend(decode(*record) for record in batch.records)
            self.queues.acked(queue, batch, list(range(at, len(log))))

    def refuse(self, queue: PartitionQueue) -> None:
        """If the same is published twice, a sink would refuse it twice; here such a batch is
        accepted."""
        items = queue.outstanding.items if queue.outstanding is not None else []
        at = next(
            (at for at, item in enumerate(items) if getattr(item, "verb", "deleted") != "deleted"),
            None,
        )
        waiting = [*items, *(queue.next.items if queue.next is not None else []), *queue.waiting]
        if at is not None and not any(getattr(item, "reason", "") == "healed" for item in waiting):
            assert queue.outstanding is not None, "its items were just looked at"
            record = queue.outstanding.records[at]
            queue.put_back()
            value = b'{"less":%d}' % len(self.refused)
            self.refused[content_hash(record.key, value)] = value
            self.queues.replace_value(queue, at, value, "stub")

    def drain(self) -> None:
        for _ in range(1000):
            if self.queues.empty:
                self.skipped += self.queues.take_skipped()
                return
            for queue in self.queues.partitions:
                self.flush(queue)
                self.acknowledge(queue)
        raise AssertionError("the queues do not become empty")

    # ---- what must hold ----

    def _follows(self, record: ObjectRecord) -> bool:
        """The null behind a delete that is a value."""
        return self.form != "cloudevents" and record.verb == "deleted" and not record.enveloped

    def check(self) -> None:
        for log in self.logs:
            self._check_log(log)
        published = [
            record for log in self.logs for record in log if isinstance(record, ObjectRecord)
        ]
        counted = sum(
            record.reason != "healed" and not self._follows(record) for record in published
        )
        assert self.pushed == counted + self.skipped
        assert (self.queues.queued_bytes, self.queues.queued_records, self.queues.dirty_keys) == (
            0,
            0,
            0,
        )
        assert self.queues.object_records == len(published)

    def _check_log(self, log: list[ObjectRecord | MarkerRecord]) -> None:
        """Positions have no gap, markers are true, and each key goes its way forwards, its
        incarnations parted by deletes."""
        held: dict[bytes, ObjectRecord] = {}
        newest: dict[bytes, int] = {}
        for at, record in enumerate(log, 1):
            assert record.sequence == at
            if isinstance(record, MarkerRecord):
                digest = sum(each.value_hash or 0 for each in held.values()) & DIGEST_MASK
                assert (record.count, record.digest) == (len(held), digest)
                self._check_frontier(int(record.frontier), log[at:])
                continue
            if record.reason == "healed":
                continue
            version = int(record.version)
            assert version >= newest.get(record.key, 0)
            newest[record.key] = version
            before = held.get(record.key)
            if record.enveloped and record.verb == "deleted":
                after = log[at]
                assert isinstance(after, ObjectRecord), "the null of a delete is missing"
                assert (after.key, self._follows(after)) == (record.key, True), (
                    "the null of a delete is missing"
                )
            if record.verb == "deleted":
                assert self._follows(record) or before is None or before.uid == record.uid
                held.pop(record.key, None)
            else:
                assert before is None or before.uid == record.uid, (
                    "an incarnation replaced another without a delete"
                )
                assert (record.verb == "added") == (before is None)
                state = (record.uid, version, record.value)
                assert state in self.happened[record.key] or record.value_hash in self.refused
                assert record.value is not None
                assert record.value_hash == content_hash(record.key, record.value)
                held[record.key] = record
        for key, entry in self.store.entries.items():
            if key in held or zlib.crc32(key) % PARTITIONS == self.logs.index(log):
                assert (held[key].uid, held[key].value_hash, held[key].version) == (
                    entry.uid,
                    self.queues.published_hash(key, entry.hash),
                    entry.resource_version,
                )
        assert held.keys() <= self.store.entries.keys()

    def _check_frontier(self, frontier: int, later: list[ObjectRecord | MarkerRecord]) -> None:
        for record in later:
            if (
                isinstance(record, ObjectRecord)
                and record.reason != "healed"
                and record.verb != "read"
            ):
                assert int(record.version) > frontier or self._follows(record), (
                    "a marker claimed what was not published yet"
                )


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    OPS,
    st.sampled_from([1000, 2500, 6000, 1 << 20]),
    st.sampled_from(["cloudevents", "structured"]),
)
def test_however_a_queue_overflows_each_key_ends_right_and_never_goes_back(
    ops: list[object], bound_bytes: int, form: Format
) -> None:
    scenario = Scenario(form, bound_bytes)
    for op in ops:
        scenario.play(op)
    scenario.play(Heartbeat())
    scenario.drain()
    scenario.play(Heartbeat())
    scenario.drain()
    scenario.check()
    assert scenario.conflated == 0 or bound_bytes < 1 << 20


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), min_size=30, max_size=300))
def test_while_nothing_leaves_what_is_kept_is_bounded_by_the_objects_there_are(
    changes: list[tuple[bytes, bool]],
) -> None:
    scenario = Scenario("cloudevents", 2000)
    for key in KEYS[:2]:
        scenario.play(Put(key, 0, "u1"))
    scenario.drain()
    for number, (key, there) in enumerate(changes):
        scenario.play(Put(key, number, f"u{number}") if there else Remove(key))
        assert scenario.queues.queued_bytes <= 2000 + 700
        assert scenario.queues.dirty_keys <= len({*scenario.store.entries, *KEYS[:2]})
    scenario.drain()
    scenario.check()
