"""Saved positions given back as `resume`: every field is validated before anything is read, and the
state is verified where a position is reached. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from watchrelay.consumer.changes import Saved
from watchrelay.consumer.errors import PositionsLost
from watchrelay.consumer.partitions import PartitionReplica, PartitionReplicas
from watchrelay.contract.control_state import DescribedStream, Origin
from watchrelay.core.text import counted

_AT = re.compile(r"^(.*?)(?: - at `\$\.?([^`]*)`)?$", re.DOTALL)


def saved_from(resume: object) -> list[Saved]:
    """The places that `positions()` gave; None: none. Raises: ValueError."""
    if resume is None or (isinstance(resume, Mapping) and not resume):
        return []
    if not isinstance(resume, Sequence) or isinstance(resume, (str, bytes)):
        raise _refused(f"it is a list of places, not {type(resume).__name__}")
    places: dict[tuple[str, int], int] = {}
    found: list[Saved] = []
    for number, entry in enumerate(resume):
        saved = _one(number, entry)
        first = places.setdefault((saved.stream, saved.partition), number)
        if first != number:
            raise _refused(
                f"entry {number}: stream {saved.stream}, partition {saved.partition} is in "
                f"entry {first} already"
            )
        found.append(saved)
    return found


def _one(number: int, entry: Any) -> Saved:
    try:
        saved = msgspec.convert(entry, Saved)
    except msgspec.ValidationError as error:
        reason = _AT.match(str(error))
        assert reason is not None, "the pattern takes any text"
        field = f", {reason[2]}" if reason[2] else ""
        raise _refused(f"entry {number}{field}: {reason[1]}") from error
    if saved.begin is not None and saved.begin > saved.offset:
        raise _refused(f"entry {number}, begin: {saved.begin} is beyond the offset {saved.offset}")
    return saved


def _refused(why: str) -> ValueError:
    return ValueError(
        f"resume is not what positions() gave: {why}; start without it, and forget what was "
        "built before"
    )


class UnreachedPositions:
    """Saved places not reached again yet: up to there nothing is given. Methods raise
    PositionsLost."""

    def __init__(self, saved: Sequence[Saved]) -> None:
        self._left = {(each.topic, each.partition, each.stream): each for each in saved}

    def __bool__(self) -> bool:
        return bool(self._left)

    def __contains__(self, partition_replica: PartitionReplica) -> bool:
        return (
            bool(self._left)
            and (partition_replica.topic, partition_replica.partition, partition_replica.stream)
            in self._left
        )

    def all(self) -> list[Saved]:
        return list(self._left.values())

    def places(self) -> dict[tuple[str, int], list[str]]:
        """By topic and partition, the streams."""
        places = dict[tuple[str, int], list[str]]()
        for topic, partition, stream in self._left:
            places.setdefault((topic, partition), []).append(stream)
        return places

    def _of(self, topic: str, partition: int) -> list[Saved]:
        return [
            each
            for each in self._left.values()
            if (each.topic, each.partition) == (topic, partition)
        ]

    def origins(self, topic: str, partition: int, end: int) -> dict[str, Origin]:
        """Where the streams of one partition, which ends at `end`, begin to build the saved
        state again."""
        origins = {}
        for saved in self._of(topic, partition):
            if saved.offset > end:
                raise _lost(saved, f"the log ends at {end}: was the topic recreated?")
            origins[saved.stream] = Origin(saved.begin, saved.snapshot)
        return origins

    def compare(
        self, described: Mapping[str, DescribedStream], topics: Collection[str] = ()
    ) -> None:
        """Refuse positions of a stream that is on another topic now, or has fewer partitions; not
        where it neither was nor is on any of `topics` (none: all)."""
        for saved in self._left.values():
            each = described.get(saved.stream)
            if each is None or (topics and {saved.topic, each.topic}.isdisjoint(topics)):
                continue
            if each.topic != saved.topic:
                raise _lost(saved, f"the stream is on topic {each.topic} now")
            if saved.partition >= each.partitions:
                raise _lost(saved, f"the stream has {counted(each.partitions, 'partition')} now")

    def restarted(self, topic: str, partition: int) -> None:
        """Refuse positions in a log that is no longer the same."""
        for saved in self._of(topic, partition):
            raise _lost(saved, "the topic was recreated")

    def forget(
        self,
        topic: str,
        partition: int,
        described: Mapping[str, DescribedStream] | None,
        partitions: int,
        *,
        wanted: bool,
    ) -> None:
        """Forget the positions in a topic that is no longer `wanted`, and refuse what would miss
        deletes: fewer partitions, or a retired stream. `described` None: there is no control topic;
        the topic has `partitions`, 0 for one not read."""
        for saved in self._of(topic, partition):
            if described is None and partitions:
                raise _lost(saved, f"the topic has {counted(partitions, 'partition')} now")
            if described is not None and saved.stream in described:
                continue
            if described is not None and wanted:
                raise _lost(
                    saved, "the control topic no longer describes the stream, so it was retired"
                )
            del self._left[topic, partition, saved.stream]

    def verify(self, at: int, replicas: PartitionReplicas) -> None:
        """At the places reached at offset `at` the state must be what it was; changes follow."""
        for saved in self._of(replicas.topic, replicas.partition):
            if at < saved.offset:
                continue
            partition_replica = replicas.by_stream[saved.stream]
            count = len(partition_replica.replica.held)
            if (count, partition_replica.replica.digest) != (saved.count, int(saved.digest, 16)):
                found = f"{counted(count, 'object')} where there were {saved.count}, or others"
                raise _lost(saved, f"what is left of the log leads to {found}")
            partition_replica.outbox.continue_from(saved)
            del self._left[saved.topic, saved.partition, saved.stream]


def _lost(saved: Saved, why: str) -> PositionsLost:
    return PositionsLost(
        f"stream {saved.stream}: the positions saved at {saved.topic}/{saved.partition}, "
        f"offset {saved.offset}, cannot be gone on from: "
        f"{why}; start without them and forget what was built before"
    )
