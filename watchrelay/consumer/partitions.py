"""The state of one partition of a topic and of the streams that share it, and the changes that are
still to be given out. Pure.

Streams of one partition are read with one cursor. When one of them must be read again, the cursor
goes back for all; the others ignore what they have applied already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from watchrelay.consumer.changes import Change, ChangeVerb, LaneState, Saved, Why
from watchrelay.consumer.origin import Origin
from watchrelay.consumer.outbox import FOLD_CHANGES, Cause, Item, Outbox
from watchrelay.consumer.replica import Changed, Outcome, ReadAgain, Replica
from watchrelay.contract.records import DIGEST_MASK, Decoded, MarkerRecord


class PartitionReplica:
    """One stream in one partition. `partitions` is the stream's number according to its markers, 0
    before any."""

    __slots__ = ("outbox", "partition", "partitions", "replica", "seen", "start", "stream")

    def __init__(self, stream: str, partition: int, origin: Origin) -> None:
        self.stream, self.partition = stream, partition
        self.replica = Replica(origin.snapshot)
        self.start = origin.offset or 0
        self.partitions = 0
        self.seen = ""
        """When the writer last received something from the API server, from its newest marker."""
        self.outbox = Outbox()

    @property
    def proven(self) -> bool:
        """The newest marker agreed with the state, and nothing has to be read again."""
        return self.replica.proven and not self.replica.rereading

    def state(self, topic: str) -> LaneState:
        """Its state, for callers."""
        replica = self.replica
        return LaneState(
            stream=self.stream,
            topic=topic,
            partition=self.partition,
            epoch=replica.position.epoch,
            sequence=replica.position.sequence,
            objects=len(replica.held),
            digest=f"{replica.digest & DIGEST_MASK:016x}",
            proven=self.proven,
            frontier=replica.frontier,
            seen=self.seen,
        )

    def saved(self, topic: str, offset: int) -> Saved:
        """What leads back here: the state is proven, and `offset` is the next record's."""
        replica = self.replica
        snapshot, begin = replica.last_snapshot
        return Saved(
            stream=self.stream,
            topic=topic,
            partition=self.partition,
            offset=offset,
            epoch=replica.position.epoch,
            sequence=replica.position.sequence,
            count=len(replica.held),
            digest=f"{replica.digest & DIGEST_MASK:016x}",
            snapshot=snapshot,
            begin=begin,
        )


class PartitionReplicas:
    """All streams of one partition.

    A stream without an origin of its own starts where it is met. `only` not empty: other streams
    are passed over.
    """

    def __init__(
        self, partition: int, origins: Mapping[str, Origin], *, only: frozenset[str] = frozenset()
    ) -> None:
        self.partition = partition
        self.by_stream = {
            stream: PartitionReplica(stream, partition, origin)
            for stream, origin in origins.items()
        }
        self._only = only
        self._elsewhere: set[str] = set()

    @property
    def start(self) -> int | None:
        """The offset to start from; None: the partition's start."""
        if not self.by_stream:
            return None
        return min(lane.start for lane in self.by_stream.values()) or None

    def passed(self) -> list[Saved]:
        """By stream the newest proven place behind which everything was given out."""
        for lane in self.by_stream.values():
            lane.outbox.pass_places()
        return [
            lane.outbox.passed for lane in self.by_stream.values() if lane.outbox.passed is not None
        ]

    def add(self, stream: str, origin: Origin) -> PartitionReplica:
        """A stream that was described since."""
        return self.by_stream.setdefault(stream, PartitionReplica(stream, self.partition, origin))

    def leave(self, stream: str) -> PartitionReplica:
        """`stream` is on another topic from now on: its records here are ignored."""
        self._elsewhere.add(stream)
        return self.by_stream.pop(stream)

    def come_back(self, stream: str) -> None:
        """`stream` is on this topic, perhaps again: it starts at its first record."""
        self._elsewhere.discard(stream)

    def begin_anew(self) -> None:
        """The topic was recreated: start offsets and states of its streams are of the former
        log."""
        for lane in self.by_stream.values():
            lane.start = 0
            lane.replica.begin_anew()

    def apply(self, offset: int, record: Decoded) -> tuple[PartitionReplica, Outcome] | None:
        """What the record at `offset` does; None for one that is of no stream wanted, or before its
        stream's start.

        After `ReadAgain`, go back to its offset (None: the partition's start) and apply what comes,
        for all streams.
        """
        lane = self.by_stream.get(record.stream)
        if lane is None:
            if record.stream in self._elsewhere or (self._only and record.stream not in self._only):
                return None
            lane = self.add(record.stream, Origin())
        if offset < lane.start:
            return None
        outcome = lane.replica.apply(record)
        if type(outcome) is ReadAgain:
            lane.start = 0
        if type(record) is MarkerRecord:
            lane.partitions = record.partitions
            lane.seen = record.seen or lane.seen
        return lane, outcome


class Pending:
    """The streams and partitions that may have something to give, in the order in which they came
    to have it."""

    def __init__(self) -> None:
        self._waiting: dict[PartitionReplica, str] = {}
        """With the topic of each."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def begin(self, topic: str, lane: PartitionReplica, offset: int) -> None:
        """The state of `lane` is proven for the first time, behind the record at `offset`: give it
        out."""
        lane.outbox.begin(lane.replica.held, Cause("initial", lane.replica.position, offset))
        self._offer(topic, lane)

    def add(
        self, topic: str, lane: PartitionReplica, changed: Changed, why: Why, offset: int
    ) -> None:
        """The state of `lane` changed behind the record at `offset`."""
        most = FOLD_CHANGES // max(1, len(self._waiting))
        lane.outbox.add(
            changed, Cause(why, lane.replica.position, offset), proven=lane.proven, most=most
        )
        self._offer(topic, lane)

    def reach(self, topic: str, lane: PartitionReplica, offset: int) -> None:
        """The state of `lane` is proven in front of `offset`: a place to go on from, and what was
        held back may be given."""
        lane.outbox.reach(lane.saved(topic, offset))
        self._offer(topic, lane)

    def close(self, topic: str, lane: PartitionReplica, why: Why) -> None:
        """`lane` is not read any more: what was given of it is deleted."""
        lane.outbox.close(lane.replica.held, Cause(why, lane.replica.position, lane.start))
        self._offer(topic, lane)

    def _offer(self, topic: str, lane: PartitionReplica) -> None:
        if lane.outbox:
            self._waiting.setdefault(lane, topic)

    def take(self) -> Change | None:
        """The next change, None when there is none now."""
        while self._waiting:
            lane, topic = next(iter(self._waiting.items()))
            if (item := lane.outbox.take(lane.replica.held, proven=lane.proven)) is not None:
                return _change(topic, lane, item)
            del self._waiting[lane]
        return None

    def left(self) -> Iterator[Saved]:
        """The places of partitions that are not read any more and have still something to give."""
        return (
            lane.outbox.passed
            for lane in self._waiting
            if lane.outbox.closed and lane.outbox.passed is not None
        )


def _change(topic: str, lane: PartitionReplica, item: Item) -> Change:
    before, after = item.before, item.after
    known = after or before
    assert known is not None, "an item is a difference"
    verb: ChangeVerb = "deleted" if after is None else "added" if before is None else "modified"
    return Change(
        stream=lane.stream,
        topic=topic,
        partition=lane.partition,
        key=item.key.decode(),
        verb=verb,
        value=None if after is None else after.value,
        old_value=None if before is None else before.value,
        uid=known.uid,
        resource_version=known.version,
        reason=item.cause.reason,
        position=item.cause.position,
        offset=item.cause.offset,
    )
