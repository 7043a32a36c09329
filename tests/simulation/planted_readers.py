"""Planted faults of readers, and readers that are wrong and must never be proven."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.partition_log import Stored
from tests.simulation.readers import Lossy, Reader, Table
from tests.simulation.world import Kinds
from watchrelay.consumer.replica import Outcome, ReadAgain, Replica
from watchrelay.contract.control_state import Origin
from watchrelay.contract.records import Decoded, MarkerRecord, ObjectRecord
from watchrelay.contract.state import Ignored

# ---- F2 ------------------------------------------------------------------------------------------


class OneEpochReader(Reader):
    """F2: the epoch is one for all partitions of a stream."""

    def __init__(self, name: str, origins: list[Origin]) -> None:
        super().__init__(name, origins)
        self._epoch = 0

    def passes(self, stored: Stored) -> bool:
        """Whatever is below the highest epoch met anywhere is stale."""
        assert stored.decoded is not None
        self._epoch = max(self._epoch, stored.decoded.epoch)
        return stored.decoded.epoch == self._epoch


# ---- F8 ------------------------------------------------------------------------------------------


class SameState(Replica):
    """Reads again into the state that it has: everything there is a duplicate."""

    def _failed(self, marker: MarkerRecord) -> Outcome:
        outcome = super()._failed(marker)
        self._second = None
        return outcome


class ResetState(Replica):
    """Reads again into the state that it shows."""

    def _failed(self, marker: MarkerRecord) -> Outcome:
        outcome = super()._failed(marker)
        if isinstance(outcome, ReadAgain):
            assert self._second is not None
            self._shown, self._second = self._second, None
        return outcome


class SameStateLossy(Lossy):
    """F8."""

    replica_class = SameState


class ResetStateLossy(Lossy):
    """F8, the other way."""

    replica_class = ResetState


# ---- F9 ------------------------------------------------------------------------------------------


class TableByVersion(Table):
    """F9: the event id is made of uid and resourceVersion, as an earlier draft had it."""

    def event_id(self, stored: Stored) -> bytes:
        """Of an object: what of it, and whether it is gone."""
        record = stored.decoded
        if isinstance(record, ObjectRecord) and record.uid:
            deleted = record.verb == "deleted"
            return f"{record.uid}.{record.version}.{deleted}.{record.enveloped}".encode()
        return super().event_id(stored)


# ---- readers that are wrong ----------------------------------------------------------------------


class HeedsTheStale(Replica):
    """Applies whatever comes, of whichever epoch."""

    def apply(self, record: Decoded) -> Outcome:
        """Every record counts."""
        state = self._second or self._shown
        if (record.epoch, record.sequence) <= (state.epoch, state.last):
            if isinstance(record, ObjectRecord):
                state.put(record)
            return Ignored(duplicate=True)
        return super().apply(record)


class KeepsTheDead(Replica):
    """Does not remove what is deleted while it watches."""

    def apply(self, record: Decoded) -> Outcome:
        """A delete is passed over, its place is not."""
        if isinstance(record, ObjectRecord) and record.verb == "deleted" and not self.rereading:
            return self._shown.admit(record.epoch, record.sequence) or super().apply(record)
        return super().apply(record)


def _wrong(kind: type[Replica]) -> Callable[..., Lossy]:
    """A reader with that state, to which every record comes."""
    lossy = type(f"{kind.__name__}Reader", (Lossy,), {"replica_class": kind})

    def made(name: str, origins: list[Origin], whole: Reader, _loses: Callable[[], bool]) -> Lossy:
        reader = lossy(name, origins, whole, lambda: False)
        assert isinstance(reader, Lossy)
        return reader

    return made


WRONG_READERS = {kind.__name__: Kinds(lossy=_wrong(kind)) for kind in (HeedsTheStale, KeepsTheDead)}
"""Readers whose state is wrong now and then: never must one of them be proven there."""
