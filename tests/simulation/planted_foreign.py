"""Lives that each break one rule about records by another writer, to see that the simulation of such
records (`foreign.py`) finds it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.simulation.foreign import Directed
from tests.simulation.process import Life
from tests.simulation.process import Reader as Back
from tests.simulation.rebuilt import AnyHistory
from tests.support.forging import FAR, Forged
from watchrelay.contract.records import Foreign, LogRecord, ObjectRecord
from watchrelay.daemon.recovery import LogFold, resume
from watchrelay.kafka.range_reader import OffsetRange
from watchrelay.publish.recovery import LogRecovery, RecoveredState
from watchrelay.watch.loop import Watcher


class TrustingLife(Life):
    """F34: a version from the log is trusted, also past the server's."""

    def _watcher(self, found: RecoveredState) -> Watcher:
        watcher = super()._watcher(replace(found, newest_on_log=""))
        watcher._history = AnyHistory(watcher._outlet)
        return watcher


class Unjudged(LogRecovery):
    """Takes the hash of the header for that of the value."""

    def _object(self, claimed: ObjectRecord) -> None:
        super()._object(claimed)
        entry = self.entries.get(claimed.key)
        if entry is not None and claimed.value is not None:
            self.state.digest = (self.state.digest - entry.hash + claimed.value_hash) % (1 << 64)
            entry.block = claimed.value_hash.to_bytes(8, "little") + entry.block[8:]
            self.tail.hash_differs = False


class CarryingLife(Life):
    """F34: a hash is carried on unjudged, by every heartbeat and snapshot."""

    async def resume(self, epoch: int) -> RecoveredState:
        """From a log that was read so."""
        fold = LogFold(self.spec, self.store)
        for partition, real in fold.recoveries.items():
            fold.recoveries[partition] = Unjudged(
                real.stream, partition, partitions=real.partitions, pack=self.store.pack
            )
        spans = [
            OffsetRange(partition, start, stop + 1)
            for partition, (start, stop) in self.relay.to_read.items()
        ]
        await self.reader.spans(spans, fold.take)
        return await resume(self.spec, self.relay, self.store, self.reader, epoch, followed=fold)


class Blind(Back):
    """Does not see what readers ignore."""

    def understood(self, record: Any) -> LogRecord | None:
        """As the real one, but for those."""
        found = super().understood(record)
        return None if isinstance(found, Foreign) else found

    def between(self, record: Any) -> LogRecord | None:
        """Likewise."""
        found = super().between(record)
        return None if isinstance(found, Foreign) else found


class BlindLife(Life):
    """F35: what readers ignore is not repaired."""

    def make_reader(self) -> Back:
        """Blind."""
        return Blind(self.spec, self.world, self.sink)


def _newest(log: list[Forged]) -> tuple[Forged, Forged]:
    """An object that is held, and the newest heartbeat of its partition."""
    held = {each.key: each for each in log if not (each.key or b"").startswith(b"%wr/")}
    found = next(each for each in held.values() if each.value is not None)
    marks = [
        each for each in log if each.partition == found.partition and each not in held.values()
    ]
    return found, next(each for each in reversed(marks) if b"heartbeat" in (each.key or b""))


def _behind(log: list[Forged], record: Forged) -> Forged:
    """Under the next sequence of its partition."""
    epoch, last = max(each.position for each in log if each.partition == record.partition)
    return record.at(epoch, last + 1)


def version_to_come(log: list[Forged]) -> list[Forged]:
    """An object whose version the server has not reached."""
    found, _ = _newest(log)
    assert found.value is not None
    value = json.loads(found.value)
    value["metadata"]["resourceVersion"] = FAR.decode()
    value["spec"] = {}
    forged = replace(found, value=json.dumps(value).encode()).having(ce_wrrv=FAR).hashed()
    return [_behind(log, forged)]


def believed_hash(log: list[Forged]) -> list[Forged]:
    """A value that is not what its header says, and a heartbeat of a writer that believes it."""
    found, heartbeat = _newest(log)
    first = _behind(log, replace(found, value=b"{}"))
    return [first, _behind([*log, first], heartbeat)]


def ignored(log: list[Forged]) -> list[Forged]:
    """An object that never was, in a record that readers ignore: no snapshot says anything of it."""
    found, _ = _newest(log)
    return [replace(found, key=b"n/never").lacking("ce_wrreason")]


FOREIGN_PLANTS: dict[str, tuple[type[Life], Directed, str]] = {
    "F34v": (TrustingLife, version_to_come, "after a snapshot: fresh holds"),
    "F34h": (CarryingLife, believed_hash, "is not proven"),
    "F35": (BlindLife, ignored, "the table differs"),
}
"""By rule, a life that breaks it, records that show it, and a part of the line by which it is
found."""
