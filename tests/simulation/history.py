"""What one partition says as it lands, and what must be true of it in every later reading.

Input: records in log order, before compaction takes any. Output: every broken promise as one line.
"""

from __future__ import annotations

from tests.simulation.broker import Stored
from watchrelay.contract.records import DIGEST_MASK, MarkerRecord, ObjectRecord


class Window:
    """What was said since a begin, applied to an empty map."""

    def __init__(self, begin: MarkerRecord) -> None:
        self.snapshot, self.epoch = begin.snapshot, begin.epoch
        self._hashes: dict[bytes, int] = {}

    def take(self, said: ObjectRecord) -> None:
        """The next object."""
        if said.verb == "deleted":
            self._hashes.pop(said.key, None)
        else:
            self._hashes[said.key] = said.value_hash

    def whole(self, end: MarkerRecord) -> bool:
        """It is the state of which the end speaks. Source: record contract 4, "why it is right"."""
        return (
            len(self._hashes) == end.count
            and sum(self._hashes.values()) & DIGEST_MASK == end.digest
        )


class History:
    """What one partition says to a right reader, record by record: nothing goes back in time,
    nothing is said twice or left out."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._newest: dict[bytes, int] = {}
        self._dead: set[bytes] = set()
        self._uids: dict[bytes, str] = {}
        self._said: set[tuple[bytes, str, str, bool, bool]] = set()
        self._config = ""
        self._epoch = self._last = 0
        self._window: Window | None = None
        self.broken: list[str] = []
        self.conflated = 0

    def take(self, stored: Stored) -> None:
        """The next record as it landed."""
        said = stored.said
        if said is None or not stored.heeded:
            return
        self._place(stored.offset, said.epoch, said.sequence)
        if isinstance(said, MarkerRecord):
            self._marker(stored.offset, said)
            return
        if self._window is not None:
            self._window.take(said)
        self._incarnation(stored.offset, said)
        if said.reason != "healed":
            self._object(stored.offset, said)

    def forget(self, key: bytes) -> None:
        """The delete of `key`, newer than every frontier, was compacted away, its retention over:
        what was before it may be said again."""
        self._newest.pop(key, None)
        self._said = {once for once in self._said if once[0] != key}

    def doubted(self) -> None:
        """A writer does not believe what stands here and says all of it again: by a snapshot, and
        where its queue overflows by what is conflated. Nothing goes back in time for that."""
        self._said.clear()

    def _place(self, offset: int, epoch: int, sequence: int) -> None:
        """Sequences of an epoch begin at 1 and leave none out: a gap means a loss to readers."""
        if epoch > self._epoch:
            self._epoch, self._last = epoch, 0
        if sequence != self._last + 1:
            self.broken.append(
                f"p{self._partition}@{offset} epoch {epoch} skips from sequence {self._last} to "
                f"{sequence}"
            )
        self._last = sequence

    def _marker(self, offset: int, said: MarkerRecord) -> None:
        match said.kind:
            case "claim":
                self._window = None
                self._claim(said)
            case "begin":
                self._window = Window(said)
            case "end":
                window, self._window = self._window, None
                if window is None or window.snapshot != said.snapshot:
                    self.broken.append(
                        f"p{self._partition}@{offset} snapshot {said.snapshot} ends that did not "
                        "begin"
                    )
                elif not window.whole(said):
                    self.broken.append(
                        f"p{self._partition}@{offset} snapshot {said.snapshot} does not say the "
                        "whole state"
                    )
            case _:
                pass

    def _claim(self, said: MarkerRecord) -> None:
        if said.config == self._config:
            return
        # a wider selection may bring back what is older than the delete that a list dated
        if self._config:
            self._said.clear()
            self._newest = {
                key: version for key, version in self._newest.items() if key not in self._dead
            }
        self._config = said.config

    def _incarnation(self, offset: int, said: ObjectRecord) -> None:
        """An object that took another's name comes behind that one's delete."""
        if said.verb == "deleted":
            self._uids.pop(said.key, None)
            return
        before = self._uids.get(said.key, said.uid)
        if before != said.uid:
            self.broken.append(
                f"p{self._partition}@{offset} {said.key.decode()} is {said.uid} after {before} "
                "without a delete"
            )
        self._uids[said.key] = said.uid

    def _object(self, offset: int, said: ObjectRecord) -> None:
        key, version, deleted = said.key, int(said.version), said.verb == "deleted"
        self.conflated += said.reason == "conflated"
        where = (
            f"p{self._partition}@{offset} {said.verb} {key.decode()} rv {version} "
            f"({said.reason}, epoch {said.epoch})"
        )
        if version < self._newest.get(key, 0):
            self.broken.append(f"{where} goes back in time, {self._newest[key]} was said before")
        self._newest[key] = version
        if deleted:
            self._dead.add(key)
        else:
            self._dead.discard(key)
        if said.reason != "snapshot":
            once = (key, said.uid, said.version, deleted, said.enveloped)
            if once in self._said:
                self.broken.append(f"{where} is said again")
            self._said.add(once)
