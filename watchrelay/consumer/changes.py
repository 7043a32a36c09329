"""What a `TopicReader` hands out, and the queue it waits in.

Room: consumer (pure). In: changes of replicas, and proven places. Out: `Change`s in order, each once; the places behind which all was
handed out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from watchrelay.model.records import Position, Reason

ChangeVerb = Literal["added", "modified", "deleted"]
Why = Reason | Literal["swept", "repaired", "moved", "gone"]

FOLD_CHANGES = 20_000
"""From here on changes that nobody takes are folded to one per object, so that they never outgrow the state."""

_PROBLEMS_MAX = 100


@dataclass(frozen=True, slots=True)
class Change:
    """One object is other than this reader held it before.

    Shape: `object` and `old` are JSON as published; None for an object that is not there. `verb` is relative to what was held: an
    object said again unchanged, by a snapshot or after a restart, is no change. `reason` is the record's; "swept": the end of a snapshot
    proved the object dead; "repaired": found by reading again after a loss; "moved": the stream stands on another topic from now on, and
    what is there comes as added; "gone": its partition is no more, because the stream was retired and the topic deleted, or the topic was
    made anew with fewer partitions. `position` and `offset` are those of the record that showed it. `proven`: the state before agreed with
    the newest marker, and nothing was missed since.
    """

    stream: str
    topic: str
    partition: int
    key: bytes
    verb: ChangeVerb
    object: bytes | None
    old: bytes | None
    uid: str
    resource_version: str
    reason: Why
    position: Position
    offset: int
    proven: bool


class Saved(msgspec.Struct, frozen=True):
    """A proven place in one partition of one stream, to go on from.

    Shape: `offset` is the next record's; `count` and `digest` (16 hex digits) prove the state there; `begin` is the offset of the
    snapshot from which that state can be built again, null for the partition's start.
    """

    stream: str
    topic: str
    partition: int
    offset: int
    epoch: int
    sequence: int
    count: int
    digest: str
    snapshot: str
    begin: int | None


@dataclass(frozen=True, slots=True)
class LaneState:
    """How one stream stands in one partition.

    Shape: `digest` is 16 hex digits; `frontier` is the resourceVersion up to which the newest marker that agreed is complete; `seen` is
    when the writer last heard the API server (RFC 3339, "" before).
    """

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
    """Something on a topic that is not as it should be, counted. Shape: partition and offset are those of the first time.

    Kinds: `foreign` (a record that is not of this contract: skipped), `hash` (a value that is not the one its header speaks of),
    `digest` (the state disagreed with a marker: read again), `control` (the control topic cannot be read: the start is guessed from
    heartbeats, and streams that are new are not found), `anew` (a topic was made anew while it was read: read from its start).
    """

    kind: Literal["foreign", "hash", "digest", "control", "anew"]
    topic: str
    partition: int
    offset: int
    detail: str
    count: int = 1


class Problems:
    """Problems by what they say. Shape: bounded; what comes after a hundred different ones is counted with the last."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str, str], Problem] = {}

    def add(self, problem: Problem) -> None:
        """Count `problem`."""
        key: tuple[str, str, str] = (problem.kind, problem.topic, problem.detail)
        if key not in self._held and len(self._held) >= _PROBLEMS_MAX:
            key = next(reversed(self._held))
        held = self._held.get(key)
        self._held[key] = problem if held is None else replace(held, count=held.count + 1)

    def all(self) -> list[Problem]:
        """All of them, in the order of their first time."""
        return list(self._held.values())


class Pending:
    """Changes on their way out, with proven places between them."""

    def __init__(self) -> None:
        self._queue: deque[Change | Saved] = deque()
        self._fold_at = FOLD_CHANGES
        self.saved: dict[tuple[str, int], Saved] = {}
        """By stream and partition, the newest proven place behind which every change was handed out."""

    def __bool__(self) -> bool:
        self._pass_places()
        return bool(self._queue)

    def add(self, item: Change | Saved) -> None:
        """Queue a change, or a place that is proven once all before it is handed out."""
        self._queue.append(item)
        if len(self._queue) >= self._fold_at:
            self._fold()

    def take(self) -> Change | None:
        """The next change; None when there is none."""
        self._pass_places()
        if not self._queue:
            self._fold_at = FOLD_CHANGES
            return None
        change = self._queue.popleft()
        assert isinstance(change, Change)
        return change

    def _pass_places(self) -> None:
        while self._queue and isinstance(self._queue[0], Saved):
            place = self._queue.popleft()
            assert isinstance(place, Saved)
            self.saved[place.stream, place.partition] = place

    def _fold(self) -> None:
        """One change per object, from what was handed out last to what is held now; one place per partition, behind them."""
        changes: dict[tuple[str, int, bytes], Change] = {}
        places: dict[tuple[str, int], Saved] = {}
        for item in self._queue:
            if isinstance(item, Saved):
                places[item.stream, item.partition] = item
                continue
            key = (item.stream, item.partition, item.key)
            first = changes.pop(key, None)
            folded = item if first is None else folded_of(first, item)
            if folded is not None:
                changes[key] = folded
        self._queue = deque([*changes.values(), *places.values()])
        self._fold_at = max(FOLD_CHANGES, 2 * len(self._queue))


def folded_of(first: Change, then: Change) -> Change | None:
    """What both changes of one object come to; None: to nothing."""
    was, is_there = first.verb != "added", then.verb != "deleted"
    if not was and not is_there:
        return None
    verb: ChangeVerb = "deleted" if not is_there else "modified" if was else "added"
    if verb == "modified" and then.object == first.old:
        return None
    return replace(then, verb=verb, old=first.old)
