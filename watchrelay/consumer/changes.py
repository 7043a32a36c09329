"""What a `TopicReader` gives: changes, saved positions, states of partitions, problems."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from watchrelay.consumer.errors import ObjectUnreadable
from watchrelay.contract.control import COUNT_MAX
from watchrelay.contract.records import PARTITIONS_MAX
from watchrelay.contract.wire import Position, Reason
from watchrelay.core.text import BROKEN_JSON, printable, why_broken

ChangeVerb = Literal["added", "modified", "deleted"]
ProblemKind = Literal["foreign", "hash", "digest", "control", "recreated"]
Why = Reason | Literal["initial", "swept", "repaired", "moved", "gone"]

_PROBLEMS_MAX = 100


def parsed(stream: str, key: str, value: bytes) -> Any:
    """The object in `value`. Raises: ObjectUnreadable, naming stream and key."""
    try:
        return msgspec.json.decode(value)
    except BROKEN_JSON as error:
        reason = why_broken(error, value)
        raise ObjectUnreadable(
            f"stream {printable(stream)}, key {printable(key)}: the value is not JSON: {reason}"
        ) from error


@dataclass(frozen=True)
class Change:
    """One object differs from what this reader gave of it before.

    Attributes:
        key: As on the topic: `namespace/name`, or `/name` of a cluster-scoped resource.
        verb: Relative to what was given before. A record that repeats an object unchanged is no
            change.
        value: The object's JSON as published, None after a delete; `object` is the same decoded.
        old_value: What was given before, None before an add; `old` is the same decoded.
        uid, resource_version: Those of the object; of a deleted one the last known.
        reason: That of the record, or one of: `initial` (part of the state with which this reader
            began), `swept` (the end of a snapshot proved that the object is gone), `repaired`
            (found by reading again after a loss), `moved` (the stream is on another topic now,
            whose objects follow as added), `gone` (the partition no longer exists: the
            stream was retired and its topic deleted, or the topic was recreated with fewer
            partitions).
        position, offset: Those of the record with which this was known: the object's own record,
            or a later one where changes were folded or the reason is `initial`, `swept` or
            `repaired`. They go back for an object only when the topic was recreated.
        proven: Always true: what is not proven is withheld until it is.
    """

    stream: str
    topic: str
    partition: int
    key: str
    verb: ChangeVerb
    value: bytes | None
    old_value: bytes | None
    uid: str
    resource_version: str
    reason: Why
    position: Position
    offset: int
    proven: bool = True

    @cached_property
    def object(self) -> Any:
        """`value` decoded, when first asked for; None after a delete. Raises: ObjectUnreadable."""
        return None if self.value is None else parsed(self.stream, self.key, self.value)

    @cached_property
    def old(self) -> Any:
        """`old_value` decoded, when first asked for; None before an add. Raises:
        ObjectUnreadable."""
        return None if self.old_value is None else parsed(self.stream, self.key, self.old_value)


_Name = Annotated[str, Meta(min_length=1)]
_Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]


class Saved(msgspec.Struct, frozen=True):
    """A proven place in one partition of one stream, to go on from.

    `offset` is the next record's; `count` and `digest` (16 hex digits) prove the state there;
    `begin` is the offset of the snapshot from which that state can be built again, null for the
    partition's start."""

    stream: _Name
    topic: _Name
    partition: Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]
    offset: _Count
    epoch: _Count
    sequence: _Count
    count: _Count
    digest: Annotated[str, Meta(pattern=r"\A[0-9a-f]{16}\Z")]
    snapshot: str
    begin: _Count | None


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of one stream in one partition.

    `digest` is 16 hex digits; `frontier` is the resourceVersion up to which the newest marker that
    agreed is complete; `seen` is when the writer last received something from the API server (RFC
    3339, "" before)."""

    stream: str
    topic: str
    partition: int
    epoch: int
    sequence: int
    objects: int
    digest: str
    proven: bool
    frontier: str
    seen: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Something on a topic that is not as it should be, counted. Partition and offset are those of
    the first time.

    Kinds: `foreign` (a record that is not of this contract: skipped), `hash` (a value that is not
    the one of its header), `digest` (the state disagreed with a marker: read again), `control` (the
    control topic cannot be read: the start is guessed from heartbeats, and streams that are new are
    not found), `recreated` (a topic was recreated while it was read: read from its start)."""

    kind: ProblemKind
    topic: str
    partition: int
    offset: int
    detail: str
    count: int = 1


class ReadProblems:
    """ReadProblems by their text; what comes after a hundred different ones is counted with the
    last."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str, str], Problem] = {}

    def add(self, problem: Problem) -> None:
        key: tuple[str, str, str] = (problem.kind, problem.topic, problem.detail)
        if key not in self._held and len(self._held) >= _PROBLEMS_MAX:
            key = next(reversed(self._held))
        held = self._held.get(key)
        self._held[key] = problem if held is None else replace(held, count=held.count + 1)

    def all(self) -> list[Problem]:
        return list(self._held.values())
