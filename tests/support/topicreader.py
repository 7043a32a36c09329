"""State topics, by confluent-kafka: their tables, whether they are proven, and every broken rule.

The reader of docs/record-contract.md section 5, written from that page alone. It reads each
partition from its start; the tests' topics are never compacted, so a gap is a problem here, and not
merely a doubt.
"""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from tests.support.process import wait_until
from tests.support.wirerules import ParsedRecord, Raw, partition_of, understand

_REQUEST_TIMEOUT_S = 10.0
_BATCH = 500
_MASK = (1 << 64) - 1
_OF_A_CHANGE = frozenset({"watch", "relist"})


class Writer(Protocol):
    """A relay that can report why it published something twice."""

    def rebuilds(self) -> Mapping[str, float]:
        """How often it resent batches in flight, by reason."""

    def explained(self) -> str:
        """The same with its last warnings, as text."""


@dataclass(frozen=True, slots=True)
class KnownObject:
    """The state of one object, as the reader knows it."""

    value: bytes
    hash: int
    position: tuple[int, int]
    headers: dict[str, str]


@dataclass(slots=True)
class PartitionState:
    """One stream in one partition. `inherited` until the first proof in an epoch that found
    older state here."""

    epoch: int = 0
    last: int = 0
    proven: bool = False
    inherited: bool = False
    frontier: int = 0
    held: dict[bytes, KnownObject] = field(default_factory=dict)
    newest: dict[bytes, int] = field(default_factory=dict)
    """The highest resourceVersion published of a key, deletes included."""
    placed: set[bytes] = field(default_factory=set)
    """Keys whose partition was checked."""
    begin: ParsedRecord | None = None
    snapshot: tuple[str, int] | None = None
    """The last one that ended here, and the epoch in which it did."""
    snapshot_in: int = 0
    before: set[tuple[str, int] | None] = field(default_factory=lambda: {None})
    """What a heartbeat may name in its place: the ack of its end may come after the next heartbeat,
    and a new writer may know of none."""
    ends: int = 0
    proofs: int = 0
    ids: dict[str, tuple[bytes | None, bytes | None]] = field(default_factory=dict)

    def agrees(self, record: ParsedRecord, since: tuple[int, int] | None = None) -> bool:
        """Whether count and digest of what is held (not older than `since`) are those that the
        marker says."""
        held = [one for one in self.held.values() if since is None or one.position >= since]
        digest = sum(one.hash for one in held) & _MASK
        return (len(held), digest) == (
            int(record.headers["ce_wrcount"]),
            int(record.headers["ce_wrdigest"], 16),
        )


def _place(message: Message) -> tuple[str, int, int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "a message without its topic"
    assert partition is not None, "a message without its partition"
    assert offset is not None, "a message without its offset"
    return topic, partition, offset


class TopicReader:
    """Reads topics from their start; a context manager.

    `records` are all, in the order read; `problems` one line each, empty for a right topic;
    `duplicates` and `stale` count what the contract tells a reader to ignore.
    """

    def __init__(self, bootstrap: str, *topics: str, writers: Sequence[Writer] = ()) -> None:
        """`writers` are those who write the topics; it may grow."""
        self.topics = topics
        self._writers = writers
        self.records: list[ParsedRecord] = []
        self.problems: list[str] = []
        self.partitions: dict[tuple[str, int], PartitionState] = {}
        self.plain: dict[str, dict[bytes, bytes]] = {topic: {} for topic in topics}
        """What a table that knows no markers holds: upsert by key, null is delete."""
        self.transactional = False
        """Offsets may lack: there are the markers of transactions, and what was aborted."""
        self.duplicates = self.stale = 0
        self.ignored: set[tuple[str, int, int]] = set()
        """Topic, partition and offset of those."""
        self._bootstrap = bootstrap
        self._consumer = self._connect()
        self._next: dict[tuple[str, int], int] = {}
        self._unread = ""
        """Why the last `read` could not tell where the ends are."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    # Reading.

    def _connect(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": uuid.uuid4().hex,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 200,
                "fetch.wait.max.ms": 20,
                "enable.partition.eof": True,  # the end may be the marker of a commit
                "topic.metadata.refresh.fast.interval.ms": 50,
                "log_level": 0,
            }
        )

    def _assign(self) -> bool:
        """Starts reading partitions not known before; True once every topic is there."""
        missing = False
        fresh = False
        for topic in self.topics:
            known: dict[int, Any] = (
                self._consumer.list_topics(topic, timeout=_REQUEST_TIMEOUT_S)
                .topics[topic]
                .partitions
            )
            missing = missing or not known
            for partition in known:
                fresh = fresh or (topic, partition) not in self._next
                self._next.setdefault((topic, partition), 0)
        if fresh:
            self._seek()
        return not missing

    def read(self) -> int:
        """Reads what is on the topics now, up to their ends at the call; the
        number of records read.

        0 too when the brokers cannot say where the ends are.
        """
        try:
            if len({topic for topic, _ in self._next}) < len(self.topics) and not self._assign():
                return 0
            ends = {place: self._end(*place) for place in self._next}
        except KafkaException as away:
            # a broker is away, or has just come back and leads nothing yet
            self._unread = str(away)
            self._begin_again()
            return 0
        self._unread = ""
        before = len(self.records)

        def reached() -> bool:
            return all(self._next[place] >= end for place, end in ends.items())

        def came() -> bool:
            messages = self._consumer.consume(_BATCH, timeout=0.05)
            for message in messages:
                error = message.error()
                if error is None:
                    self._take(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    topic, partition, end = _place(message)
                    self._next[topic, partition] = end
            return bool(messages) or reached()

        while not reached():
            # each time from the start: a long log on a slow machine is no failure
            wait_until(f"{self.topics} are read to their ends", came)
        return len(self.records) - before

    def _begin_again(self) -> None:
        """Reads on with a new consumer: librdkafka keeps the answer of a broker that had not loaded
        its topics yet, "unknown partition", for as long as records come, and a metadata request for
        the topics does not change that.
        """
        self._consumer.close()
        self._consumer = self._connect()
        self._seek()

    def _seek(self) -> None:
        self._consumer.assign(
            [
                TopicPartition(topic, at, offset or OFFSET_BEGINNING)
                for (topic, at), offset in self._next.items()
            ]
        )

    def _end(self, topic: str, partition: int) -> int:
        _, high = self._consumer.get_watermark_offsets(
            TopicPartition(topic, partition), timeout=_REQUEST_TIMEOUT_S, cached=False
        )
        return int(high)

    def read_until(
        self, claim: str, condition: Callable[[], object], *, deadline_s: float = 45.0
    ) -> None:
        """Reads on until the condition holds; raises TimeoutError naming the claim, with the
        problems found so far."""

        def holds() -> bool:
            self.read()
            return bool(condition())

        try:
            wait_until(claim, holds, deadline_s=deadline_s)
        except TimeoutError as late:
            raise TimeoutError(f"{late}; {self.describe()}") from None

    def _take(self, message: Message) -> None:
        topic, partition, offset = _place(message)
        expected = self._next[topic, partition]
        if offset < expected or (offset > expected and not self.transactional):
            self.problems.append(f"{topic}/{partition}: offset {offset} follows {expected - 1}")
        self._next[topic, partition] = offset + 1
        key, value = message.key(), message.value()
        headers: Iterable[tuple[str, bytes | None]] = message.headers() or []  # type: ignore[assignment]  # a dict only when produced
        raw = Raw(topic, partition, offset, _bytes(key), _bytes(value), tuple(headers))
        if raw.key is not None:
            if raw.value is None:
                self.plain[topic].pop(raw.key, None)
            else:
                self.plain[topic][raw.key] = raw.value
        try:
            record = understand(raw)
        except ValueError as error:
            self.problems.append(str(error))
            return
        self.records.append(record)
        self.problems.extend(f"{record}: {problem}" for problem in record.problems)
        if not record.problems:
            self._apply(record)

    # Section 5.

    def _apply(self, record: ParsedRecord) -> None:
        partition = self.partitions.setdefault(
            (record.stream, record.raw.partition), PartitionState()
        )
        identity = record.headers["ce_id"]
        content = (record.raw.key, record.raw.value)
        if partition.ids.setdefault(identity, content) != content:
            self.problems.append(f"{record}: {identity} had other content before")
        if record.epoch < partition.epoch:
            self.stale += 1
            self.ignored.add(record.place)
            return
        if record.epoch > partition.epoch:
            if record.type != "claim" or record.sequence != 1:
                self.problems.append(f"{record}: epoch {record.epoch} does not start with a claim")
            partition.epoch, partition.last, partition.begin, partition.frontier = (
                record.epoch,
                0,
                None,
                0,
            )
            partition.inherited = bool(partition.held)
            partition.before = {partition.snapshot, None}
        if record.sequence <= partition.last:
            self.duplicates += 1
            self.ignored.add(record.place)
            return
        if record.sequence != partition.last + 1:
            self.problems.append(f"{record}: sequence {record.sequence} follows {partition.last}")
        partition.last = record.sequence
        if record.is_object:
            self._object(partition, record)
        else:
            self._marker(partition, record)

    def _object(self, partition: PartitionState, record: ParsedRecord) -> None:
        known = partition.held.get(record.key)
        newest = partition.newest.get(record.key, 0)
        if known is None and record.type == "added" and record.headers["ce_wrreason"] == "resume":
            # a wider selection brings back what a list, and its version, had deleted: the object
            # may be older than that
            newest = 0
        healed_null = record.type == "deleted" and record.headers["ce_wrreason"] == "healed"
        if not healed_null:  # that has the frontier, which may be older than the delete
            if record.version < newest:
                self.problems.append(f"{record}: resourceVersion {record.version} after {newest}")
            partition.newest[record.key] = max(newest, record.version)
        if record.headers["ce_wrreason"] in _OF_A_CHANGE and record.version <= partition.frontier:
            self.problems.append(
                f"{record}: a change at {record.version} behind a frontier of {partition.frontier}"
            )
        if not partition.inherited and partition.ends:
            self._type_fits(record, known)
        if record.type == "deleted":
            partition.held.pop(record.key, None)
            return
        assert record.raw.value is not None
        partition.held[record.key] = KnownObject(
            record.raw.value,
            int(record.headers["ce_wrhash"], 16),
            (record.epoch, record.sequence),
            record.headers,
        )

    def _type_fits(self, record: ParsedRecord, known: KnownObject | None) -> None:
        if (known is None) != (record.type == "added") and not (
            known is None and record.headers["ce_wrreason"] == "healed"
        ):
            self.problems.append(
                f"{record}: {record.type} of an object that the topic "
                f"{'did not hold' if known is None else 'held'}"
            )
        if (
            record.type == "modified"
            and known is not None
            and known.headers["ce_wruid"] != record.headers["ce_wruid"]
        ):
            self.problems.append(f"{record}: another uid without a delete before it")
        if record.type == "read" and known is not None and known.value != record.raw.value:
            self.problems.append(f"{record}: read of another value than was here")

    def _marker(self, partition: PartitionState, record: ParsedRecord) -> None:
        count = int(record.headers["ce_wrpartitions"])
        wrong = [
            key
            for key in partition.held.keys() - partition.placed
            if partition_of(key, count) != record.raw.partition
        ]
        partition.placed.update(partition.held)
        if wrong:
            self.problems.append(f"{record}: keys in the wrong partition of {count}: {wrong[:3]}")
        if record.type == "claim":
            return
        if record.version and record.version < partition.frontier:
            self.problems.append(
                f"{record}: the frontier goes back from {partition.frontier} to {record.version}"
            )
        partition.frontier = max(partition.frontier, record.version)
        if record.type == "begin":
            partition.begin = record
        if record.type == "end":
            self._window(partition, record)
        if record.type == "heartbeat" and _named(record) not in (
            known := {partition.snapshot, *partition.before}
        ):
            self.problems.append(
                f"{record}: the last snapshot is named {_named(record)}, not one of {known}"
            )
        partition.proven = partition.agrees(record)
        since = (record.epoch, int(record.headers.get("ce_wrbegin", "0")))
        if record.type == "end" and not partition.proven and partition.agrees(record, since):
            partition.held = {
                key: one for key, one in partition.held.items() if one.position >= since
            }
            partition.proven = True
        if partition.proven:
            partition.inherited = False
            partition.proofs += 1
        elif not partition.inherited:
            stated = (record.headers["ce_wrcount"], record.headers["ce_wrdigest"])
            self.problems.append(
                f"{record}: has count and digest {stated}, but {len(partition.held)} objects "
                "are here"
            )

    def _window(self, partition: PartitionState, record: ParsedRecord) -> None:
        begin = partition.begin
        if begin is None or begin.headers["ce_wrsnap"] != record.headers["ce_wrsnap"]:
            self.problems.append(f"{record}: an end without its begin")
            return
        if (int(record.headers["ce_wrbegin"]), int(record.headers["ce_wrbeginoff"])) != (
            begin.sequence,
            begin.raw.offset,
        ):
            self.problems.append(
                f"{record}: names another begin than that at sequence {begin.sequence}, offset "
                f"{begin.raw.offset}"
            )
        partition.before = (
            {partition.snapshot, None}
            if partition.snapshot_in != record.epoch
            else {partition.snapshot}
        )
        partition.snapshot, partition.snapshot_in = (
            (record.headers["ce_wrsnap"], begin.raw.offset),
            record.epoch,
        )
        partition.ends += 1
        since = begin.sequence
        window = [one for one in partition.held.values() if one.position >= (record.epoch, since)]
        if len(window) != int(record.headers["ce_wrcount"]):
            self.problems.append(
                f"{record}: {len(window)} objects were published since the begin, "
                f"{record.headers['ce_wrcount']} are alive"
            )

    # Answers.

    def partitions_of(self, stream: str) -> list[PartitionState]:
        """The stream's partitions that had any record."""
        return [
            partition for (name, _), partition in sorted(self.partitions.items()) if name == stream
        ]

    def held(self, stream: str) -> dict[bytes, KnownObject]:
        """All objects of the stream, with what stood on their records."""
        return {
            key: one
            for partition in self.partitions_of(stream)
            for key, one in partition.held.items()
        }

    def table(self, stream: str) -> dict[bytes, bytes]:
        """The stream's state by key, as section 5 rebuilds it."""
        return {key: one.value for key, one in self.held(stream).items()}

    def epoch(self, stream: str) -> int:
        """The newest epoch of the stream; 0 before any record."""
        return max((partition.epoch for partition in self.partitions_of(stream)), default=0)

    def proven(self, stream: str) -> bool:
        """True when each partition's newest marker agreed with the state held there."""
        partitions = self.partitions_of(stream)
        return bool(partitions) and all(partition.proven for partition in partitions)

    def of(self, stream: str, *types: str) -> list[ParsedRecord]:
        """The stream's records of these types (all if none are named), in the order read."""
        return [
            record
            for record in self.records
            if record.stream == stream and (not types or record.type in types)
        ]

    def about(self, stream: str, key: str) -> list[ParsedRecord]:
        """The records of one object, oldest first."""
        return [record for record in self.of(stream) if record.key == key.encode()]

    def sources(self, stream: str) -> set[str]:
        """Every ce_source that the stream's records name."""
        return {record.headers["ce_source"] for record in self.of(stream)}

    def accounts(self) -> Counter[str]:
        """Every object record on the topics, by reason.

        `changes`: sent by the watch, or found by a list. `snapshot`: members of snapshots, those
        cut short among them. `ignored`: appended late, or twice, around a kill; readers skip
        them. `healed`: published again because of one of those.
        """
        kinds: Counter[str] = Counter()
        for record in self.records:
            if record.is_object:
                reason = record.headers["ce_wrreason"]
                kinds[
                    "ignored"
                    if record.place in self.ignored
                    else reason
                    if reason in {"snapshot", "healed"}
                    else "changes"
                ] += 1
        return kinds

    def describe(self) -> str:
        """The state of everything, in one line, for failures."""
        partitions = {
            f"{stream}/{at}": (
                partition.epoch,
                partition.last,
                len(partition.held),
                partition.proven,
            )
            for (stream, at), partition in self.partitions.items()
        }
        unread = f"; the ends cannot be read: {self._unread}" if self._unread else ""
        return (
            f"{len(self.records)} records, partitions (epoch, last, objects, proven) {partitions}, "
            f"problems {self.problems[:5]}{unread}"
        )

    def assert_right(self, *streams: str, duplicates: bool = False) -> None:
        """No broken rule, every partition of these streams proven, and nothing published twice
        unless `duplicates`.

        What a writer resent, by its own count, may be on the log twice, and is printed; without a
        rebuild of its producer nothing may.
        """
        assert self.problems == [], "\n".join(self.problems[:20])
        for stream in streams:
            assert self.proven(stream), f"{stream} is not proven: {self.describe()}"
            assert len(self.sources(stream)) == 1, self.sources(stream)
        if duplicates or (self.duplicates, self.stale) == (0, 0):
            return
        twice = f"duplicates {self.duplicates}, stale {self.stale}"
        reasons = "\n".join([writer.explained() for writer in self._writers])
        assert self.stale == 0, f"{twice}\n{reasons}"
        assert any(writer.rebuilds() for writer in self._writers), (
            f"{twice}, and no writer resent anything\n{reasons}"
        )
        print(f"{twice}: resent after a rebuild of the producer\n{reasons}")

    def assert_one_owner_at_a_time(self, topic: str) -> None:
        """Read to the end what was written within transactions. A table that ignores headers is
        right at every moment: no record of a former owner is behind the claim of the next."""
        self.transactional = True
        self.read()
        assert not self.problems, self.problems
        assert self.stale == 0
        held = {
            key: held.value
            for partition in self.partitions.values()
            for key, held in partition.held.items()
        }
        assert self.plain[topic] == held


def read_control(bootstrap: str, topic: str) -> list[tuple[int, str, Any]]:
    """All records of a control topic: offset, key, decoded value."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": uuid.uuid4().hex,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        _, end = consumer.get_watermark_offsets(
            TopicPartition(topic, 0), timeout=_REQUEST_TIMEOUT_S, cached=False
        )
        read: list[tuple[int, str, Any]] = []

        def reached() -> bool:
            for message in consumer.consume(_BATCH, timeout=0.1):
                offset, key, value = (
                    message.offset(),
                    _bytes(message.key()),
                    _bytes(message.value()),
                )
                assert message.error() is None, message.error()
                assert offset is not None, "a message without its offset"
                assert key is not None, "a control record without its key"
                read.append((offset, key.decode(), None if value is None else json.loads(value)))
            return bool(not end or (read and read[-1][0] >= end - 1))

        wait_until(f"{topic} is read to its end", reached)
        return read
    finally:
        consumer.close()


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def _named(record: ParsedRecord) -> tuple[str, int] | None:
    if "ce_wrlastsnap" not in record.headers:
        return None
    return record.headers["ce_wrlastsnap"], int(record.headers["ce_wrlastsnapoff"])
