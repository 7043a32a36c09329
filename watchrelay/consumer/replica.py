"""The state of one stream in one partition, rebuilt from records, and whether it is proven. Pure.

This is section 5 of docs/record-contract.md, rule by rule; a consumer in another language
implements the same page.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from watchrelay.contract.records import DIGEST_MASK, Decoded, MarkerRecord, ObjectRecord
from watchrelay.contract.wire import Position


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


@dataclass(frozen=True, slots=True)
class Ignored:
    """A stale record. `duplicate`: of this epoch, seen before; else of a former writer."""

    duplicate: bool


@dataclass(frozen=True, slots=True)
class Changed:
    """The shown state changed. `before` None: was not held; `after` None: is held no longer."""

    key: bytes
    before: Held | None
    after: Held | None


@dataclass(frozen=True, slots=True)
class Noted:
    """Nothing to show: a claim, a marker that agreed, or a record taken by the state that is being
    read again.

    `swept`: stale keys that an end proved dead and that were removed.
    """

    swept: tuple[Changed, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """The state is not what the writer holds: read from `offset` (None: the partition's start) and
    apply what comes to the same replica."""

    offset: int | None


@dataclass(frozen=True, slots=True)
class Unproven:
    """The state is not what the writer holds, and reading again was tried from this snapshot: wait
    for the next end."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """The state that was read again is proven and is the shown one from now on; `changes` lead from
    the old to the new."""

    changes: tuple[Changed, ...]


Outcome = Ignored | Changed | Noted | ReadAgain | Unproven | Replaced


class State:
    """One map with its position and digest. `started_in` is the snapshot before whose end nothing
    is judged, "" for none."""

    def __init__(self, started_in: str = "") -> None:
        self.epoch = self.last = 0
        self.proven = False
        self.held: dict[bytes, Held] = {}
        self.digest = 0
        self.started_in = started_in

    def admit(self, epoch: int, sequence: int) -> Ignored | None:
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

    def put(self, record: ObjectRecord) -> Changed:
        before = self.held.get(record.key)
        if before is not None:
            self.digest -= before.value_hash
        after = None
        if record.verb == "deleted":
            self.held.pop(record.key, None)
        else:
            assert record.value is not None
            after = Held(
                record.value,
                record.value_hash,
                record.uid,
                record.version,
                record.epoch,
                record.sequence,
            )
            self.digest += record.value_hash
            self.held[record.key] = after
        self.digest &= DIGEST_MASK
        return Changed(record.key, before, after)

    def agrees(self, marker: MarkerRecord) -> bool:
        return len(self.held) == marker.count and self.digest == marker.digest

    def reached(self, marker: MarkerRecord) -> None:
        """Judge from here on, if the end of the snapshot started in is this marker or before it.

        That end may have been compacted away; a later end counts as well, and so does a heartbeat,
        which names the last complete snapshot.
        """
        named = marker.last_snapshot if marker.kind == "heartbeat" else ""
        if marker.kind == "end" or (
            named and (named == self.started_in or _order(named) > _order(self.started_in))
        ):
            self.started_in = ""

    def sweep(self, end: MarkerRecord) -> tuple[Changed, ...] | None:
        """Remove what is older than this end's begin, if what is left is what the writer holds;
        None: it is not."""
        begin = Position(end.epoch, end.begin_sequence)
        older = [(key, held) for key, held in self.held.items() if held.position < begin]
        digest = (self.digest - sum(held.value_hash for _, held in older)) & DIGEST_MASK
        if len(self.held) - len(older) != end.count or digest != end.digest:
            return None
        for key, _ in older:
            del self.held[key]
        self.digest = digest
        return tuple(Changed(key, held, None) for key, held in older)


class Replica:
    """Applies records; shows one state, and while it reads again, fills a second that replaces it
    once proven.

    `started_in` is the snapshot at whose begin the reader starts, "" for the start of the
    partition. Applying a record a second time, or any record of a lower epoch, changes nothing.
    """

    def __init__(self, started_in: str = "") -> None:
        self._shown = State(started_in)
        self._second: State | None = None
        self._failed_at = Position(0, 0)
        self._tried = set[str]()
        self._last_snapshot: tuple[str, int | None] = ("", None)
        self.frontier = ""
        self.newest_marker: MarkerRecord | None = None

    @property
    def held(self) -> dict[bytes, Held]:
        """The shown state. What is not proven is not to be taken for the truth."""
        return self._shown.held

    @property
    def proven(self) -> bool:
        """Count and digest of the newest marker agreed with the shown state."""
        return self._shown.proven

    @property
    def digest(self) -> int:
        """Sum of the hashes held, mod 2^64."""
        return self._shown.digest

    @property
    def position(self) -> Position:
        """The newest position applied to the shown state."""
        return Position(self._shown.epoch, self._shown.last)

    @property
    def last_snapshot(self) -> tuple[str, int | None]:
        """Id and begin offset of the last complete snapshot known; ("", None) before any."""
        return self._last_snapshot

    @property
    def rereading(self) -> bool:
        """A second state is being filled."""
        return self._second is not None

    def apply(self, record: Decoded) -> Outcome:
        """What `record` does.

        After `ReadAgain`, seek there and apply what comes; the shown state does not change until
        `Replaced`.
        """
        state = self._second or self._shown
        ignored = state.admit(record.epoch, record.sequence)
        if ignored is not None:
            return ignored
        if isinstance(record, ObjectRecord):
            changed = state.put(record)
            return changed if state is self._shown else Noted()
        if record.kind == "claim":
            return Noted()
        return self._judge(state, record)

    def begin_anew(self) -> None:
        """The topic was recreated: its records fill a second state, whatever its epochs, which
        replaces the shown one once proven."""
        self._second, self._failed_at, self._tried, self._last_snapshot = (
            State(),
            Position(0, 0),
            set(),
            ("", None),
        )
        self._shown.proven = False

    def _judge(self, state: State, marker: MarkerRecord) -> Outcome:
        if marker.kind == "heartbeat" and marker.last_snapshot:
            self._last_snapshot = (marker.last_snapshot, marker.last_snapshot_offset)
        elif marker.kind == "end":
            self._last_snapshot = (marker.snapshot, marker.begin_offset)
        swept: tuple[Changed, ...] | None = () if state.agrees(marker) else None
        if swept is None and marker.kind == "end":
            swept = state.sweep(marker)
        state.reached(marker)
        judged = not state.started_in
        if swept is not None:
            state.proven = True
            return self._proved(state, marker, swept)
        state.proven = False
        return self._failed(marker) if judged else Noted()

    def _proved(self, state: State, marker: MarkerRecord, swept: tuple[Changed, ...]) -> Outcome:
        if state is self._second:
            if Position(marker.epoch, marker.sequence) < self._failed_at:
                return Noted()
            changes = _difference(self._shown.held, state.held)
            self._shown, self._second = state, None
            self._note(marker)
            return Replaced(changes)
        self._note(marker)
        return Noted(swept)

    def _note(self, marker: MarkerRecord) -> None:
        self._tried.clear()
        self.frontier, self.newest_marker = marker.frontier, marker

    def _failed(self, marker: MarkerRecord) -> Outcome:
        """At most one reading per snapshot until proven; what was read again goes on being filled,
        and an end will prove it."""
        self._failed_at = max(self._failed_at, Position(marker.epoch, marker.sequence))
        snapshot, begin = self._last_snapshot
        if snapshot in self._tried:
            return Unproven()
        self._tried.add(snapshot)
        self._second = State(started_in="" if begin is None else snapshot)
        return ReadAgain(begin)


def _order(snapshot: str) -> tuple[int, ...]:
    """Epoch and number of a snapshot, by which the later of two is known; () for an id of another
    form."""
    parts = snapshot.split("-")
    return (
        tuple(map(int, parts))
        if len(snapshot) < 50 and len(parts) == 2 and all(map(str.isdecimal, parts))
        else ()
    )


def _difference(old: dict[bytes, Held], new: dict[bytes, Held]) -> tuple[Changed, ...]:
    """What leads from `old` to `new`, removals first."""
    gone = [Changed(key, held, None) for key, held in old.items() if key not in new]
    changed = [
        Changed(key, old.get(key), held)
        for key, held in new.items()
        if key not in old or old[key].value_hash != held.value_hash or old[key].uid != held.uid
    ]
    return (*gone, *changed)
