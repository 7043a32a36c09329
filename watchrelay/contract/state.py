"""The fold of records into the state of one stream in one partition, and what proves it. Pure.

This is section 5 of docs/record-contract.md, rule by rule, for every reader of this program.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Generic, TypeVar

import msgspec

from watchrelay.contract.records import DIGEST_MASK, MarkerRecord, ObjectRecord, content_hash
from watchrelay.contract.wire import Position
from watchrelay.core.text import BROKEN_JSON, short, why_broken

Kept = TypeVar("Kept")


# ---- what a record is worth ----------------------------------------------------------------------


def judged(record: ObjectRecord) -> ObjectRecord:
    """The record as it counts for every reader: with the hash of its bytes. Not the same object
    where its ce_wrhash says otherwise: then a marker of a writer that believed it does not
    agree."""
    if record.value is None:
        return record
    found = content_hash(record.key, record.value)
    if found == record.value_hash:
        return record
    return msgspec.structs.replace(record, value_hash=found)


class _Metadata(msgspec.Struct):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resourceVersion: str | None = None  # noqa: N815 - as in the JSON


class _Object(msgspec.Struct):
    metadata: _Metadata


_object = msgspec.json.Decoder(_Object).decode


def misfit(key: bytes, prefix: bytes, value: bytes, *, uid: str, version: str) -> str:
    """Why `value` is not the object of `key`, with this uid and resourceVersion; "" where it is.
    No transform changes these fields of the metadata. `prefix`: of each key of the stream."""
    namespace, slash, name = key.removeprefix(prefix).partition(b"/")
    if not (key.startswith(prefix) and slash and name) or b"/" in name:
        return f"no object has the key {short(key.decode(errors='replace'))}"
    try:
        metadata = _object(value).metadata
    except BROKEN_JSON as error:
        return f"the value is no object: {why_broken(error, value)}"
    for field, found, expected in (
        ("name", metadata.name, name.decode()),
        ("namespace", metadata.namespace, namespace.decode()),
        ("uid", metadata.uid, uid),
        ("resourceVersion", metadata.resourceVersion, version),
    ):
        if (found or "") != expected:
            return f"metadata.{field} of the value is not that of key and headers"
    return ""


# ---- the fold ------------------------------------------------------------------------------------


class Held(msgspec.Struct, frozen=True, gc=False):
    """The newest state of one object. (epoch, sequence) is its position."""

    value: bytes
    value_hash: int
    uid: str
    version: str
    epoch: int
    sequence: int

    @property
    def position(self) -> Position:
        """The position of its record."""
        return Position(self.epoch, self.sequence)


class Ignored(msgspec.Struct, frozen=True, gc=False):
    """A stale record. `duplicate`: of this epoch, seen before; else of a former writer."""

    duplicate: bool


class Changed(msgspec.Struct, frozen=True, gc=False):
    """The shown state changed. `before` None: was not held; `after` None: is held no longer."""

    key: bytes
    before: Held | None
    after: Held | None


class State(Generic[Kept]):
    """The objects by key, whatever is kept of each, with position and digest. `hash_of` and
    `position_of` give ce_wrhash and position of it; a mismatch before the end of the snapshot
    `started_in` says nothing: callers ask."""

    def __init__(
        self,
        hash_of: Callable[[Kept], int],
        position_of: Callable[[Kept], tuple[int, int]],
        started_in: str = "",
    ) -> None:
        self.epoch = self.last = 0
        self.proven = self.complete = False
        """`complete`: a marker agreed that describes a whole state, no part of the first
        snapshot."""
        self.held: dict[bytes, Kept] = {}
        self.digest = 0
        self.started_in = started_in
        self._hash_of, self._position_of = hash_of, position_of

    def admit(self, epoch: int, sequence: int) -> Ignored | None:
        """Advance to this position; or why a record there is ignored."""
        if epoch < self.epoch:
            return Ignored(duplicate=False)
        if epoch > self.epoch:
            self.epoch, self.last = epoch, 0
        if sequence <= self.last:
            return Ignored(duplicate=True)
        if sequence > self.last + 1:
            self.proven = False
        self.last = sequence
        return None

    def hold(self, key: bytes, kept: Kept | None) -> Kept | None:
        """Keep this of `key`, None for nothing; what was kept before."""
        before = self.held.get(key)
        digest = self.digest
        if before is not None:
            digest -= self._hash_of(before)
        if kept is not None:
            digest += self._hash_of(kept)
            self.held[key] = kept
        elif before is not None:
            del self.held[key]
        self.digest = digest & DIGEST_MASK
        return before

    def judge(self, marker: MarkerRecord) -> dict[bytes, Kept] | None:
        """What this marker proves dead, and was removed; None if it does not agree with the
        state. `started_in` is over at the end of that snapshot or a later one, or at a
        heartbeat that names one."""
        swept: dict[bytes, Kept] | None = {}
        if not self._agrees(marker, len(self.held), self.digest):
            swept = self._sweep(marker) if marker.kind == "end" else None
        named = marker.last_snapshot if marker.kind == "heartbeat" else ""
        if marker.kind == "end" or (
            named and (named == self.started_in or _order(named) > _order(self.started_in))
        ):
            self.started_in = ""
        self.proven = swept is not None
        whole = marker.kind == "end" or marker.last_snapshot or marker.frontier not in {"", "0"}
        self.complete = self.complete or (self.proven and bool(whole))
        return swept

    @staticmethod
    def _agrees(marker: MarkerRecord, count: int, digest: int) -> bool:
        return count == marker.count and digest == marker.digest

    def _sweep(self, end: MarkerRecord) -> dict[bytes, Kept] | None:
        """Remove what is older than this end's begin, if the rest agrees with it."""
        begin = (end.epoch, end.begin_sequence)
        older = {key: kept for key, kept in self.held.items() if self._position_of(kept) < begin}
        digest = (self.digest - sum(map(self._hash_of, older.values()))) & DIGEST_MASK
        if not self._agrees(end, len(self.held) - len(older), digest):
            return None
        for key in older:
            del self.held[key]
        self.digest = digest
        return older


class ObjectState(State[Held]):
    """A state that keeps the values."""

    def __init__(self, started_in: str = "") -> None:
        super().__init__(attrgetter("value_hash"), attrgetter("position"), started_in)

    def put(self, record: ObjectRecord) -> Changed:
        """Apply an object's record that was `judged` and admitted."""
        after = None
        if record.value is not None:
            after = Held(
                record.value,
                record.value_hash,
                record.uid,
                record.version,
                record.epoch,
                record.sequence,
            )
        return Changed(record.key, self.hold(record.key, after), after)


def _order(snapshot: str) -> tuple[int, ...]:
    """Epoch and number of a snapshot, by which the later is known; () for an id of another form."""
    parts = snapshot.split("-")
    return (
        tuple(map(int, parts))
        if len(snapshot) < 50 and len(parts) == 2 and all(map(str.isdecimal, parts))
        else ()
    )
