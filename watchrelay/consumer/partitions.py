"""The state of one partition of a topic and of the streams that share it, and the changes that are
still to be given out. Pure.

Streams of one partition are read with one cursor. When one of them must be read again, the cursor
goes back for all; the others ignore what they have applied already.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from watchrelay.consumer.changes import Change, ChangeVerb, PartitionState, Saved, Why, parsed
from watchrelay.consumer.replica import Noted, Outcome, ReadAgain, Replica
from watchrelay.contract.control_state import Origin
from watchrelay.contract.records import Decoded, MarkerRecord, ObjectRecord
from watchrelay.contract.state import Changed, Held, Ignored
from watchrelay.contract.wire import Position
from watchrelay.kafka.cursor import Cursor

FOLD_CHANGES = 20_000
"""From here on changes not taken are folded to one per object. Partitions share it."""


class ChangeCause(NamedTuple):
    """Why an object changed, and after which record that was known."""

    reason: Why
    position: Position
    offset: int


class Item(NamedTuple):
    """One object that differs from what was given before; None: nothing was, or it is deleted.
    `overlap`: a former life may have given it too, or another one of this object since then."""

    key: bytes
    before: Held | None
    after: Held | None
    cause: ChangeCause
    overlap: bool = False


class Outbox:
    """The changes of one stream in one partition that were not given out yet.

    Nothing is given before `begin` or `continue_from`. A change that is proven waits as it came, in
    `_queue`. Where it is not proven, or where something is folded already, it is folded: `_folded`
    has for each object what was given of it last, and its newest change; what the state holds of
    it when it is taken is given then. All of `_queue` is older than `_folded`.

    What a former life gave after the saved place is not known: between `continue_from` and
    `catch_up` each object that changes is given, also if it then is as it was at that place."""

    __slots__ = ("_deleted", "_folded", "_place", "_queue", "begun", "closed", "overlap", "passed")

    def __init__(self) -> None:
        self._queue: deque[Item | Saved] = deque()
        self._folded: OrderedDict[bytes, tuple[Held | None, Item]] = OrderedDict()
        self._place: Saved | None = None
        """The newest proven place; it is passed when nothing is folded."""
        self._deleted = b""
        """The key deleted last: an envelope's tombstone is another delete of it."""
        self.begun = self.closed = self.overlap = False
        self.passed: Saved | None = None
        """The newest proven place before which everything was given out."""

    def __bool__(self) -> bool:
        return bool(self._queue or self._folded)

    def begin(self, held: Mapping[bytes, Held], cause: ChangeCause) -> None:
        """Give out each object of the proven state, once, as it is when it is taken."""
        self.begun = True
        # one for all: 100,000 of them would cost more than the keys
        self._folded = OrderedDict.fromkeys(held, (None, Item(b"", None, None, cause)))

    def continue_from(self, saved: Saved) -> None:
        """Give out what changes after `saved`; what was held there a former life has given."""
        self.begun = self.overlap = True
        self.passed = saved

    def catch_up(self) -> None:
        """No former life can have read beyond this place."""
        self.overlap = False

    def close(self, held: Mapping[bytes, Held], cause: ChangeCause) -> None:
        """The partition is no longer read: give out a delete of each object that was given."""
        for key, each in held.items():
            self.add(Changed(key, each, None), cause, proven=True)
        self.closed = True

    def add(
        self, changed: Changed, cause: ChangeCause, *, proven: bool, most: int = FOLD_CHANGES
    ) -> None:
        """The state changed; `proven`: it may be given out as it is, and `most` changes may
        wait."""
        if not self.begun or _same(changed.before, changed.after):
            return
        self._deleted = changed.key if changed.after is None else b""
        item = Item(changed.key, changed.before, changed.after, cause, self.overlap)
        if proven and not self._folded and len(self._queue) < most:
            self._queue.append(item)
            return
        if len(self._queue) >= most and not self._folded:
            for waiting in self._queue:
                if isinstance(waiting, Saved):
                    self._place = waiting
                else:
                    self._fold(waiting)
            self._queue.clear()
        self._fold(item)

    def unseen(self, offset: int, record: ObjectRecord, held: Held | None) -> Changed | None:
        """The delete of an object that is not held, or that is read again: what made it may have
        been compacted away, and given in a former life. `held`: what is shown of it."""
        if not self.overlap or record.value is not None or record.key == self._deleted:
            return None
        if self.passed is None or offset < self.passed.offset:
            return None
        unknown = Held(b"", 0, record.uid, record.version, record.epoch, record.sequence)
        return Changed(record.key, held or unknown, None)

    def _fold(self, item: Item) -> None:
        given, former = self._folded.get(item.key, (item.before, item))
        if former.overlap:
            item = item._replace(overlap=True)
        if former.cause.reason == "initial":
            item = item._replace(cause=item.cause._replace(reason="initial"))
        if _same(given, item.after) and not item.overlap:
            self._folded.pop(item.key, None)
        else:
            self._folded[item.key] = given, item

    def reach(self, saved: Saved) -> None:
        """The state is proven at `saved`."""
        if not self.begun or self._folded:
            self._place = saved
            return
        self._place = None  # an older one
        if self._queue and isinstance(self._queue[-1], Saved):
            self._queue[-1] = saved
        else:
            self._queue.append(saved)

    def take(self, held: Mapping[bytes, Held], *, proven: bool) -> Item | None:
        """The next change of the state `held`, None for none; `proven`: whether it may be
        given out."""
        if self.closed:
            held, proven = {}, True
        self.pass_places()
        if self._queue:
            item = self._queue.popleft()
            assert isinstance(item, Item), "places at the head of the queue are passed"
            return item
        while proven and self._folded:
            key, (given, item) = self._folded.popitem(last=False)
            after = held.get(key)
            if item.overlap or not _same(given, after):
                before = item.before if given is after is None else given
                if after is not None and before is not None and not before.value:
                    before = None  # not known
                return Item(key, before, after, item.cause)
        self.pass_places()
        return None

    def pass_places(self) -> None:
        """Pass the places before which nothing waits."""
        while self._queue and isinstance(place := self._queue[0], Saved):
            self.passed = place
            self._queue.popleft()
        if self.begun and not self and self._place is not None:
            self.passed, self._place = self._place, None


def _same(before: Held | None, after: Held | None) -> bool:
    """Whether both are the same object, its uid included: the value contains it."""
    if before is None or after is None:
        return before is after
    return before.value_hash == after.value_hash


class PartitionReplica:
    """One stream in one partition. `partitions`: according to its markers, 0 before any."""

    __slots__ = (
        "marked", "outbox", "partition", "partitions", "replica", "seen", "start", "stream", "topic"
    )  # fmt: skip

    def __init__(self, stream: str, topic: str, partition: int, origin: Origin) -> None:
        self.stream, self.topic, self.partition = stream, topic, partition
        self.replica = Replica(origin.snapshot)
        self.start = origin.offset or 0
        self.partitions = 0
        self.marked = -1
        """The offset of its newest marker."""
        self.seen = ""
        """When the writer last received something from the API server, from its newest marker."""
        self.outbox = Outbox()

    @property
    def proven(self) -> bool:
        replica = self.replica
        return replica.proven and replica.complete and not replica.rereading

    def state(self) -> PartitionState:
        replica = self.replica
        return PartitionState(
            stream=self.stream,
            topic=self.topic,
            partition=self.partition,
            epoch=replica.position.epoch,
            sequence=replica.position.sequence,
            objects=len(replica.held),
            digest=f"{replica.digest:016x}",
            proven=self.proven,
            frontier=replica.frontier,
            seen=self.seen,
        )

    def saved(self, offset: int) -> Saved:
        """What leads back here: the state is proven, and `offset` is the next record's."""
        replica = self.replica
        snapshot, begin = replica.last_snapshot
        return Saved(
            stream=self.stream,
            topic=self.topic,
            partition=self.partition,
            offset=offset,
            epoch=replica.position.epoch,
            sequence=replica.position.sequence,
            count=len(replica.held),
            digest=f"{replica.digest:016x}",
            snapshot=snapshot,
            begin=begin,
        )


class PartitionReplicas:
    """All streams of one partition, and how far it is read.

    A stream without an origin of its own starts at its first record. `only` not empty: other
    streams are ignored."""

    def __init__(
        self,
        partition: int,
        origins: Mapping[str, Origin],
        *,
        topic: str = "",
        only: frozenset[str] = frozenset(),
    ) -> None:
        self.topic, self.partition = topic, partition
        self.by_stream: dict[str, PartitionReplica] = {}
        self.elsewhere: Collection[str] = ()
        """Streams that are not in this partition now, or were retired before it was read: their
        records here are ignored."""
        self.cursor = Cursor(end=0)
        """Its end is that which it had when it was found, or had to be read again."""
        self.absent = False
        """It was read, and does not exist now."""
        self._only = only
        self._begins: dict[int, tuple[PartitionReplica, str]] = {}
        """By offset, the stream and the snapshot whose begin is to be there."""
        for stream, origin in origins.items():
            self._expect_begin(self._add(stream, origin), origin.offset)

    @property
    def start(self) -> int:
        """The offset to start from; 0 is the partition's start."""
        return min(
            (partition_replica.start for partition_replica in self.by_stream.values()), default=0
        )

    def passed(self) -> list[Saved]:
        for partition_replica in self.by_stream.values():
            partition_replica.outbox.pass_places()
        return [
            partition_replica.outbox.passed
            for partition_replica in self.by_stream.values()
            if partition_replica.outbox.passed is not None
        ]

    def _add(self, stream: str, origin: Origin) -> PartitionReplica:
        partition_replica = PartitionReplica(stream, self.topic, self.partition, origin)
        return self.by_stream.setdefault(stream, partition_replica)

    def _expect_begin(self, partition_replica: PartitionReplica, offset: int | None) -> None:
        if offset is not None and (snapshot := partition_replica.replica.begun):
            self._begins[offset] = (partition_replica, snapshot)

    def _misled(self, offset: int, record: Decoded) -> PartitionReplica | None:
        """The stream that was to begin with this record, which is not its begin: a mirrored log has
        other offsets than those that its records name."""
        partition_replica, snapshot = self._begins.pop(offset)
        if (
            isinstance(record, MarkerRecord)
            and (record.stream, record.kind) == (partition_replica.stream, "begin")
            and record.snapshot == snapshot
        ):
            return None
        return partition_replica

    def restart(self) -> None:
        """The topic was recreated: what it holds now replaces start offsets and states once
        proven."""
        self.cursor.next, self.cursor.end = 0, None
        self._begins.clear()
        for partition_replica in self.by_stream.values():
            partition_replica.start, partition_replica.marked = 0, -1
            partition_replica.replica.restart()

    def apply(self, offset: int, record: Decoded) -> tuple[PartitionReplica, Outcome] | None:
        """What the record at `offset` does; None for one that is not wanted, or before its stream's
        start. After `ReadAgain`, go back to its offset and apply what comes, for all streams."""
        if offset in self._begins and (misled := self._misled(offset, record)) is not None:
            misled.start = 0
            return misled, misled.replica.read_from_start()
        partition_replica = self.by_stream.get(record.stream)
        if partition_replica is None:
            if record.stream in self.elsewhere or (self._only and record.stream not in self._only):
                return None
            partition_replica = self._add(record.stream, Origin())
        if offset < partition_replica.start:
            return None
        outcome = partition_replica.replica.apply(record)
        if type(outcome) is ReadAgain:
            # not `outcome.offset`: where that is out of range, reading begins at the start
            partition_replica.start = 0
            self._expect_begin(partition_replica, outcome.offset)
        if (
            type(record) is MarkerRecord
            and type(outcome) is not Ignored
            and offset > partition_replica.marked
        ):
            partition_replica.marked = offset
            partition_replica.partitions = record.partitions
            partition_replica.seen = record.seen or partition_replica.seen
        if isinstance(record, ObjectRecord):
            held = partition_replica.replica.held.get(record.key)
            if type(outcome) is Noted or outcome == Changed(record.key, None, None):
                outcome = partition_replica.outbox.unseen(offset, record, held) or outcome
        return partition_replica, outcome


class Pending:
    """The streams and partitions that may have something to give, oldest first."""

    def __init__(self) -> None:
        self._waiting: dict[PartitionReplica, None] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(self, partition_replica: PartitionReplica, offset: int) -> None:
        """Its state is proven for the first time, after the record at `offset`."""
        partition_replica.outbox.begin(
            partition_replica.replica.held,
            ChangeCause("initial", partition_replica.replica.position, offset),
        )
        self._offer(partition_replica)

    def add(
        self, partition_replica: PartitionReplica, changed: Changed, why: Why, offset: int
    ) -> None:
        most = FOLD_CHANGES // max(1, len(self._waiting))
        partition_replica.outbox.add(
            changed,
            ChangeCause(why, partition_replica.replica.position, offset),
            proven=partition_replica.proven,
            most=most,
        )
        self._offer(partition_replica)

    def reach(self, partition_replica: PartitionReplica, offset: int) -> None:
        """Its state is proven before the record at `offset`: a place to go on from."""
        partition_replica.outbox.reach(partition_replica.saved(offset))
        self._offer(partition_replica)

    def close(self, partition_replica: PartitionReplica, why: Why) -> None:
        """It is no longer read: what was given of it is deleted."""
        partition_replica.outbox.close(
            partition_replica.replica.held,
            ChangeCause(why, partition_replica.replica.position, partition_replica.start),
        )
        self._offer(partition_replica)

    def _offer(self, partition_replica: PartitionReplica) -> None:
        if partition_replica.outbox:
            self._waiting.setdefault(partition_replica)

    def take(self) -> Change | None:
        while self._waiting:
            partition_replica = next(iter(self._waiting))
            if (
                item := partition_replica.outbox.take(
                    partition_replica.replica.held, proven=partition_replica.proven
                )
            ) is not None:
                return _change(partition_replica, item)
            del self._waiting[partition_replica]
        return None

    def left(self) -> Iterator[Saved]:
        """The places of partitions that are no longer read and have still something to give."""
        return (
            partition_replica.outbox.passed
            for partition_replica in self._waiting
            if partition_replica.outbox.closed and partition_replica.outbox.passed is not None
        )


def _change(partition_replica: PartitionReplica, item: Item) -> Change:
    before, after = item.before, item.after
    known = after or before
    assert known is not None, "an item is a difference"
    verb: ChangeVerb = "deleted" if after is None else "added" if before is None else "modified"
    return Change(
        stream=partition_replica.stream,
        topic=partition_replica.topic,
        partition=partition_replica.partition,
        key=item.key.decode(),
        verb=verb,
        value=None if after is None else after.value,
        old_value=None if before is None else before.value or None,
        uid=known.uid,
        resource_version=known.version,
        reason=item.cause.reason,
        position=item.cause.position,
        offset=item.cause.offset,
    )


class Objects(Mapping[str, Any]):
    """The objects of one stream by key, as a `TopicReader` holds them now.

    It is a live view: nothing is copied, an object is decoded each time it is asked for, and
    reading on changes what is seen. Take a `list()` of it before reading on inside a loop over it.
    """

    def __init__(self, stream: str, partitions: Mapping[Any, PartitionReplicas]) -> None:
        self._stream, self._partitions = stream, partitions

    def value(self, key: str) -> bytes | None:
        """The JSON of an object as published; None where there is no such object."""
        encoded = key.encode(errors="surrogatepass")
        for held in self._held():
            if (found := held.get(encoded)) is not None:
                return bytes(found.value)
        return None

    def __getitem__(self, key: str) -> Any:
        value = self.value(key)
        if value is None:
            raise KeyError(key)
        return parsed(self._stream, key, value)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.value(key) is not None

    def __iter__(self) -> Iterator[str]:
        return (key.decode() for held in self._held() for key in held)

    def __len__(self) -> int:
        return sum(map(len, self._held()))

    def _held(self) -> Iterator[Mapping[bytes, Any]]:
        for replicas in self._partitions.values():
            if (partition_replica := replicas.by_stream.get(self._stream)) is not None:
                yield partition_replica.replica.held
