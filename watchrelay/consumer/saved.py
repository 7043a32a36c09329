"""Saved positions given back as `resume`: every field is validated before anything is read, and the
state is verified where a position is reached. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from watchrelay.consumer.changes import Saved
from watchrelay.consumer.errors import PositionsLost
from watchrelay.consumer.origin import DescribedStream, Origin
from watchrelay.consumer.partitions import PartitionReplica, PartitionReplicas
from watchrelay.contract.control import is_count
from watchrelay.contract.records import DIGEST_MASK, PARTITIONS_MAX
from watchrelay.core.text import counted, short

_DIGEST = re.compile("[0-9a-f]{16}")
_AT = re.compile(r"^(.*?)(?: - at `\$\.?([^`]*)`)?$", re.DOTALL)


def saved_from(resume: object) -> list[Saved]:
    """The places that `positions()` gave. None, or nothing in it: none. Raises: ValueError for one
    that can never be right."""
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
    numbers = ("offset", "epoch", "sequence", "count")
    wrong = [
        (name, "a number that an offset or a count can have")
        for name in numbers
        if not is_count(getattr(saved, name))
    ]
    wrong += [(name, "the name of one") for name in ("stream", "topic") if not getattr(saved, name)]
    if not is_count(saved.partition, PARTITIONS_MAX - 1):
        wrong.append(("partition", "the number of a partition"))
    if not _DIGEST.fullmatch(saved.digest):
        wrong.append(("digest", "16 hex digits"))
    if saved.begin is not None and not (is_count(saved.begin) and saved.begin <= saved.offset):
        wrong.append(("begin", f"null or an offset up to {saved.offset}, where the place is"))
    if wrong:
        name, wanted = wrong[0]
        raise _refused(
            f"entry {number}, {name}: {short(repr(getattr(saved, name)))} is not {wanted}"
        )
    return saved


def _refused(why: str) -> ValueError:
    return ValueError(
        f"resume is not what positions() gave: {why}; start without it, and forget what was "
        "built before"
    )


class UnreachedPositions:
    """Saved places that were not reached again yet: up to there nothing of their streams is handed
    out."""

    def __init__(self, saved: Sequence[Saved]) -> None:
        self._left = {(each.topic, each.partition, each.stream): each for each in saved}

    def __bool__(self) -> bool:
        return bool(self._left)

    def holds(self, topic: str, partition: int, stream: str) -> bool:
        """Whether this position is not reached yet."""
        return bool(self._left) and (topic, partition, stream) in self._left

    def all(self) -> list[Saved]:
        """The positions not reached yet."""
        return list(self._left.values())

    def places(self) -> set[tuple[str, int]]:
        """The topics and partitions with positions not reached yet."""
        return {(topic, partition) for topic, partition, _ in self._left}

    def of(self, topic: str, partition: int) -> list[Saved]:
        """The positions not reached yet in one partition."""
        return [
            each
            for each in self._left.values()
            if (each.topic, each.partition) == (topic, partition)
        ]

    def origins(self, topic: str, partition: int, end: int) -> dict[str, Origin]:
        """Where the streams of one partition, which ends at `end`, begin to build the saved state
        again. Raises: PositionsLost."""
        for saved in self.of(topic, partition):
            if saved.offset > end:
                raise PositionsLost(
                    _lost(saved, f"the log ends at {end}: was the topic recreated?")
                )
        return {
            saved.stream: Origin(saved.begin, saved.snapshot) for saved in self.of(topic, partition)
        }

    def compare(self, described: Mapping[str, DescribedStream]) -> None:
        """Raises: PositionsLost where a stream is on another topic now, or has fewer partitions."""
        for saved in self._left.values():
            each = described.get(saved.stream)
            if each is not None and each.topic != saved.topic:
                raise PositionsLost(_lost(saved, f"the stream is on topic {each.topic} now"))
            if each is not None and saved.partition >= each.partitions:
                raise PositionsLost(
                    _lost(saved, f"the stream has {counted(each.partitions, 'partition')} now")
                )

    def made_anew(self, topic: str, partition: int) -> None:
        """Raises: PositionsLost where something is owed of a log that is not the same any more."""
        for saved in self.of(topic, partition):
            raise PositionsLost(_lost(saved, "the topic was recreated"))

    def forget(
        self,
        topic: str,
        partition: int,
        described: Mapping[str, DescribedStream] | None,
        partitions: int,
        *,
        wanted: bool,
    ) -> None:
        """What is owed where nothing is read: of a topic that is not `wanted` any more it is
        forgotten.

        `described` None: no stream is described, and `partitions` is what the topic has, 0 for one
        that is not read.
        Raises: PositionsLost where the topic has fewer partitions now, or the stream was retired:
        its deletes would be missed.
        """
        for saved in self.of(topic, partition):
            if described is None and partitions:
                raise PositionsLost(
                    _lost(saved, f"the topic has {counted(partitions, 'partition')} now")
                )
            if described is not None and saved.stream in described:
                continue
            if described is not None and wanted:
                raise PositionsLost(
                    _lost(
                        saved,
                        "the control topic describes no such stream any more, so it was retired",
                    )
                )
            del self._left[topic, partition, saved.stream]

    def settle(self, topic: str, partition: int, at: int, lanes: PartitionReplicas) -> None:
        """From the places of one partition that are reached at offset `at` changes are given: there
        the state must be what it was.

        Raises: PositionsLost.
        """
        for saved in self.of(topic, partition):
            if at >= saved.offset:
                lane = lanes.by_stream[saved.stream]
                _prove(saved, lane)
                lane.outbox.go_on(saved)
                del self._left[topic, partition, saved.stream]


def _prove(saved: Saved, lane: PartitionReplica) -> None:
    held = lane.replica.held
    if (len(held), lane.replica.digest & DIGEST_MASK) != (saved.count, int(saved.digest, 16)):
        found = f"{counted(len(held), 'object')} where there were {saved.count}, or others"
        raise PositionsLost(_lost(saved, f"what is left of the log leads to {found}"))


def _lost(saved: Saved, why: str) -> str:
    return (
        f"stream {saved.stream}: the positions saved at {saved.topic}/{saved.partition}, "
        f"offset {saved.offset}, cannot be gone on from: "
        f"{why}; start without them and forget what was built before"
    )
