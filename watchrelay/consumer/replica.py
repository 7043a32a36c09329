"""The state of one stream in one partition: which state is shown, and when to read again. Pure.

Source: docs/record-contract.md, section 5.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchrelay.contract.records import Decoded, MarkerRecord, ObjectRecord
from watchrelay.contract.state import Changed, Held, Ignored, ObjectState
from watchrelay.contract.wire import Position


@dataclass(frozen=True, slots=True)
class Noted:
    """Nothing to show: a claim, a marker that agreed, or a record of the state being read
    again. `swept`: stale keys that an end proved dead."""

    swept: tuple[Changed, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """The state is not what the writer holds: read from `offset` (None: the partition's start) and
    apply what comes to the same replica."""

    offset: int | None


@dataclass(frozen=True, slots=True)
class Unproven:
    """The state is not what the writer holds, also after reading again: wait for the next end."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """The state that was read again is proven and is the shown one from now on; `changes` lead from
    the old to the new."""

    changes: tuple[Changed, ...]


Outcome = Ignored | Changed | Noted | ReadAgain | Unproven | Replaced


class Replica:
    """Applies records; shows one state, and while it reads again, fills a second that replaces it
    once proven.

    `started_in` is the snapshot at whose begin the reader starts, "" for the start of the
    partition. Applying a record a second time, or any record of a lower epoch, changes nothing."""

    def __init__(self, started_in: str = "") -> None:
        self._shown = ObjectState(started_in)
        self._second: ObjectState | None = None
        self._failed_at = Position(0, 0)
        self._tried = set[str]()
        self.last_snapshot: tuple[str, int | None] = ("", None)
        """Id and begin offset of the last complete snapshot known; ("", None) before any."""
        self.frontier = ""

    @property
    def held(self) -> dict[bytes, Held]:
        """The shown state. What is not proven is not to be taken for the truth."""
        return self._shown.held

    @property
    def proven(self) -> bool:
        """Count and digest of the newest marker agreed with the shown state."""
        return self._shown.proven

    @property
    def complete(self) -> bool:
        """A marker agreed that describes a complete state: not while the first snapshot of the
        stream is being written."""
        return self._shown.complete

    @property
    def digest(self) -> int:
        return self._shown.digest

    @property
    def position(self) -> Position:
        """The newest position applied to the shown state."""
        return Position(self._shown.epoch, self._shown.last)

    @property
    def begun(self) -> str:
        """The snapshot at whose begin the state that is being filled starts, "" for none."""
        return (self._second or self._shown).started_in

    @property
    def rereading(self) -> bool:
        return self._second is not None

    def apply(self, record: Decoded) -> Outcome:
        """What `record` does. After `ReadAgain`, seek there and apply what comes; the shown
        state stays until `Replaced`."""
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

    def read_from_start(self) -> ReadAgain:
        """Fill the state that was just begun from the partition's start instead."""
        if self._second is not None:
            self._second = ObjectState()
        else:
            self._shown = ObjectState()
        return ReadAgain(None)

    def restart(self) -> None:
        """The topic was recreated: its records fill a second state, whatever their epochs."""
        self._shown.proven = False
        self._second, self._failed_at = ObjectState(), Position(0, 0)
        self._tried, self.last_snapshot = set(), ("", None)

    def _judge(self, state: ObjectState, marker: MarkerRecord) -> Outcome:
        if marker.kind == "heartbeat" and marker.last_snapshot:
            self.last_snapshot = (marker.last_snapshot, marker.last_snapshot_offset)
        elif marker.kind == "end":
            self.last_snapshot = (marker.snapshot, marker.begin_offset)
        swept = state.judge(marker)
        if swept is None:
            return Noted() if state.started_in else self._failed(marker)
        replaces = state is self._second
        if not replaces:
            changes = tuple(Changed(key, held, None) for key, held in swept.items())
        elif not state.complete or Position(marker.epoch, marker.sequence) < self._failed_at:
            return Noted()
        else:
            changes = _difference(self._shown.held, state.held)
            self._shown, self._second = state, None
        self._tried.clear()
        self.frontier = marker.frontier
        return Replaced(changes) if replaces else Noted(changes)

    def _failed(self, marker: MarkerRecord) -> Outcome:
        """At most one reading per snapshot until proven; what was read again goes on being
        filled."""
        self._failed_at = max(self._failed_at, Position(marker.epoch, marker.sequence))
        snapshot, begin = self.last_snapshot
        if snapshot in self._tried:
            return Unproven()
        self._tried.add(snapshot)
        self._second = ObjectState("" if begin is None else snapshot)
        return ReadAgain(begin)


def _difference(old: dict[bytes, Held], new: dict[bytes, Held]) -> tuple[Changed, ...]:
    """What leads from `old` to `new`, removals first."""
    removed = [Changed(key, held, None) for key, held in old.items() if key not in new]
    changed = [
        Changed(key, old.get(key), held)
        for key, held in new.items()
        if key not in old or old[key].value_hash != held.value_hash
    ]
    return (*removed, *changed)
