"""One partition of a topic, and the streams that share it.

Room: consumer (pure). In: decoded records with their offsets, in the order read. Out: what each
did, and where to read again.

Streams of one partition are read with one cursor. When one of them asks to read again, the cursor
goes back for all; the others ignore what they have seen already, because its position is not above
their last.
"""

from __future__ import annotations

from collections.abc import Mapping

from watchrelay.consumer.changes import LaneState, Saved
from watchrelay.consumer.origin import Origin
from watchrelay.consumer.outbox import Outbox
from watchrelay.consumer.replica import Outcome, ReadAgain, Replica
from watchrelay.contract.records import DIGEST_MASK, Decoded, MarkerRecord


class Lane:
    """One stream in one partition. Shape: `partitions` is what markers say of the stream, 0 before
    any."""

    __slots__ = ("outbox", "partition", "partitions", "replica", "seen", "start", "stream")

    def __init__(self, stream: str, partition: int, origin: Origin) -> None:
        self.stream, self.partition = stream, partition
        self.replica = Replica(origin.snapshot)
        self.start = origin.offset or 0
        self.partitions = 0
        self.seen = ""
        """When the writer last heard the API server, as its newest marker says."""
        self.outbox = Outbox()

    @property
    def proven(self) -> bool:
        """The newest marker agreed with the state, and nothing has to be read again."""
        return self.replica.proven and not self.replica.rereading

    def state(self, topic: str) -> LaneState:
        """How it stands, for readers."""
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


class Lanes:
    """All streams of one partition.

    Shape: a stream without an origin of its own starts where it is met. `only` not empty: other
    streams are passed over.
    """

    def __init__(
        self, partition: int, origins: Mapping[str, Origin], *, only: frozenset[str] = frozenset()
    ) -> None:
        self.partition = partition
        self.by_stream = {
            stream: Lane(stream, partition, origin) for stream, origin in origins.items()
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

    def add(self, stream: str, origin: Origin) -> Lane:
        """A stream that was described since."""
        return self.by_stream.setdefault(stream, Lane(stream, self.partition, origin))

    def leave(self, stream: str) -> Lane:
        """`stream` stands on another topic from now on: what somebody still writes of it here
        counts no longer."""
        self._elsewhere.add(stream)
        return self.by_stream.pop(stream)

    def come_back(self, stream: str) -> None:
        """`stream` stands here, perhaps again: it starts where it is met."""
        self._elsewhere.discard(stream)

    def begin_anew(self) -> None:
        """The log was made anew: where its streams started, and what they hold, is of the former
        one."""
        for lane in self.by_stream.values():
            lane.start = 0
            lane.replica.begin_anew()

    def apply(self, offset: int, record: Decoded) -> tuple[Lane, Outcome] | None:
        """What the record at `offset` does; None for one that is of no stream wanted, or before its
        stream's start.

        Shape: after `ReadAgain`, go back to its offset (None: the partition's start) and apply what
        comes, for all streams.
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
