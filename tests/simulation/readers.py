"""Readers of every kind, and what each must have rebuilt.

Input: logs. Output: state by state, alarms, and every broken promise as one line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from tests.simulation.partition_log import Stored
from tests.simulation.process import STREAM, Config
from watchrelay.consumer.partitions import PartitionReplica, PartitionReplicas
from watchrelay.consumer.replica import (
    Noted,
    Outcome,
    ReadAgain,
    Replaced,
    Replica,
    Unproven,
)
from watchrelay.contract.control_state import Origin
from watchrelay.contract.records import MarkerRecord
from watchrelay.contract.state import Changed, Held, Ignored
from watchrelay.contract.wire import Position

Read = Callable[[int, int, int], list[Stored]]
"""(partition, start, most) -> the records there."""

Place = tuple[int, int, int]
"""Partition, epoch, sequence."""


class Reader:
    """A reader of section 5, on the consumer library's own code.

    `alarms` are the markers that it could not agree with, by epoch; `back` the keys whose
    shown state went back in time.
    """

    replica_class: type[Replica] = Replica

    def __init__(self, name: str, origins: list[Origin]) -> None:
        self.name = name
        self.replicas = [
            PartitionReplicas(partition, {STREAM: origin})
            for partition, origin in enumerate(origins)
        ]
        self.next = [replicas.start or 0 for replicas in self.replicas]
        self.alarms: list[tuple[int, str]] = []
        self.back: list[str] = []
        self._shown: dict[bytes, Position] = {}
        for partition, origin in enumerate(origins):
            self.partition_replica(partition).replica = self.replica_class(origin.snapshot)
        self.truths: dict[Place, Mapping[bytes, Held]] = {}
        """What was held behind each marker that agreed."""

    def partition_replica(self, partition: int) -> PartitionReplica:
        """The stream in one partition."""
        return self.replicas[partition].by_stream[STREAM]

    def replica(self, partition: int) -> Replica:
        """Its state."""
        return self.partition_replica(partition).replica

    def pull(self, partition: int, read: Read, most: int) -> int:
        """Read on in one partition; the records taken."""
        taken = 0
        for stored in read(partition, self.next[partition], most):
            taken += 1
            self.next[partition] = stored.offset + 1
            if self.passes(stored):
                again = self.take(partition, stored)
                if again is not None:
                    self.next[partition] = again.offset or 0
                    break
        return taken

    def passes(self, stored: Stored) -> bool:
        """Whether the record reaches the reader, and is of the contract."""
        return stored.decoded is not None

    def take(self, partition: int, stored: Stored) -> ReadAgain | None:
        """Apply one record."""
        decoded = stored.decoded
        assert decoded is not None, "a record of another topic"
        rereading = self.replica(partition).rereading
        applied = self.replicas[partition].apply(stored.offset, decoded)
        if applied is None:
            return None
        outcome = applied[1]
        self._look(outcome, Position(decoded.epoch, decoded.sequence))
        if isinstance(outcome, ReadAgain | Unproven) and not rereading:
            self.alarms.append(
                (
                    decoded.epoch,
                    (
                        f"{self.name}: p{partition}@{stored.offset} {type(outcome).__name__} "
                        f"at {decoded}"
                    ),
                )
            )
        if (
            type(decoded) is MarkerRecord
            and decoded.kind != "claim"
            and not isinstance(outcome, Ignored)
        ):
            self.judged(partition, decoded)
        return outcome if isinstance(outcome, ReadAgain) else None

    def _look(self, outcome: Outcome, at: Position) -> None:
        """The shown state of a key was published no earlier than its state before; a repair may
        revert what a loss caused."""
        changes: tuple[Changed, ...] = ()
        match outcome:
            case Changed():
                changes = (outcome,)
            case Noted(swept=swept):
                changes = swept
            case Replaced(changes=replaced):
                changes = replaced
            case _:
                return
        for change in changes:
            position = at if change.after is None else change.after.position
            if position < self._shown.get(change.key, position) and not isinstance(
                outcome, Replaced
            ):
                self.back.append(
                    f"{self.name}: {change.key.decode()} goes back from "
                    f"{self._shown[change.key]} to {position}"
                )
            self._shown[change.key] = position

    def judged(self, partition: int, marker: MarkerRecord) -> None:
        """A marker was judged."""
        replica = self.replica(partition)
        if replica.proven and not replica.rereading:
            self.truths[partition, marker.epoch, marker.sequence] = dict(replica.held)

    @property
    def proven(self) -> bool:
        """Everywhere."""
        return all(self.replica(partition).proven for partition in range(len(self.replicas)))

    def held(self) -> dict[bytes, bytes]:
        """The state, all partitions."""
        return {
            key: held.value
            for partition in range(len(self.replicas))
            for key, held in self.replica(partition).held.items()
        }


class Lossy(Reader):
    """A reader to which some records never come, once; what it reads again it gets."""

    def __init__(
        self, name: str, origins: list[Origin], whole: Reader, loses: Callable[[], bool]
    ) -> None:
        super().__init__(name, origins)
        self._whole, self._loses = whole, loses
        self._seen: set[tuple[int, int]] = set()
        self.lied: list[str] = []

    def passes(self, stored: Stored) -> bool:
        """Once it may be lost, but not while the reader repairs itself: who loses twice has to wait
        for the next snapshot."""
        place = (stored.partition, stored.offset)
        if place in self._seen:
            return True
        self._seen.add(place)
        lost = self._loses()
        return not lost or self.replica(stored.partition).rereading

    def judged(self, partition: int, marker: MarkerRecord) -> None:
        """Proven exactly where the state is that of the reader who lost nothing."""
        super().judged(partition, marker)
        place = (partition, marker.epoch, marker.sequence)
        truth, mine = self._whole.truths.get(place), self.truths.get(place)
        if truth is not None and mine is not None and _values(truth) != _values(mine):
            self.lied.append(f"{self.name}: p{partition} is proven at {marker} and wrong")


def _values(held: Mapping[bytes, Held]) -> dict[bytes, bytes]:
    return {key: each.value for key, each in held.items()}


class Table:
    """A table that ignores headers: null is a delete. `by_id` drops what has an event id
    that was seen, as CloudEvents allow."""

    def __init__(self, name: str, partitions: int, *, by_id: bool = False) -> None:
        self.name = name
        self.next = [0] * partitions
        self.rows: dict[bytes, bytes] = {}
        self._ids: set[bytes] = set()
        self._by_id = by_id

    def event_id(self, stored: Stored) -> bytes:
        """ce_id."""
        return next(value for name, value in stored.headers if name == "ce_id")

    def pull(self, partition: int, read: Read, most: int) -> int:
        """Read on in one partition."""
        found = read(partition, self.next[partition], most)
        for stored in found:
            self.next[partition] = stored.offset + 1
            if self._by_id:
                event = self.event_id(stored)
                if event in self._ids:
                    continue
                self._ids.add(event)
            if stored.value is None:
                self.rows.pop(stored.key, None)
            else:
                self.rows[stored.key] = stored.value
        return len(found)


def published(value: bytes) -> tuple[str, int, int | None]:
    """uid, body and noise of a published object."""
    shown = msgspec.json.decode(value)
    return shown["metadata"]["uid"], shown["spec"]["body"], shown["spec"].get("noise")


def counted(value: bytes, config: Config) -> tuple[str, int, int | None]:
    """As `published`, without what does not count: that may be older."""
    uid, body, noise = published(value)
    return uid, body, None if config.ignores else noise
