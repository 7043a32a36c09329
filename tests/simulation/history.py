"""The records of one partition as they are appended, and what must be true of them in every later
reading.

Input: records in log order, before compaction takes any. Output: every broken promise as one line.
"""

from __future__ import annotations

import msgspec

from tests.simulation.partition_log import Stored
from tests.simulation.process import CALM
from watchrelay.contract.records import DIGEST_MASK, MarkerRecord, ObjectRecord


class Window:
    """What was published since a begin, applied to an empty map."""

    def __init__(self, begin: MarkerRecord) -> None:
        self.snapshot, self.epoch = begin.snapshot, begin.epoch
        self._hashes: dict[bytes, int] = {}

    def take(self, record: ObjectRecord) -> None:
        """The next object."""
        if record.verb == "deleted":
            self._hashes.pop(record.key, None)
        else:
            self._hashes[record.key] = record.value_hash

    def whole(self, end: MarkerRecord) -> bool:
        """It is the state of which the end speaks. Source: record contract 4, "why it is right"."""
        return (
            len(self._hashes) == end.count
            and sum(self._hashes.values()) & DIGEST_MASK == end.digest
        )


class History:
    """The records of one partition as a correct reader applies them: nothing goes back in time,
    nothing is published twice or left out."""

    def __init__(self, partition: int) -> None:
        self._partition = partition
        self._newest: dict[bytes, int] = {}
        self._dead: set[bytes] = set()
        self._uids: dict[bytes, str] = {}
        self._published: set[tuple[bytes, str, str, bool, bool]] = set()
        self._config = ""
        self._counted: dict[bytes, object] = {}
        """What counts of each object, as published under a config that does not count all of it."""
        self._epoch = self._last = 0
        self._window: Window | None = None
        self.broken: list[str] = []
        self.conflated = 0

    def take(self, stored: Stored) -> None:
        """The next record as it landed."""
        record = stored.decoded
        if record is None or not stored.heeded:
            return
        self._place(stored.offset, record.epoch, record.sequence)
        if isinstance(record, MarkerRecord):
            self._marker(stored.offset, record)
            return
        if self._window is not None:
            self._window.take(record)
        self._incarnation(stored.offset, record)
        if record.reason != "healed":
            self._object(stored.offset, record)
        self._counts(stored.offset, record)

    def forget(self, key: bytes) -> None:
        """The delete of `key`, newer than every frontier, was compacted away, its retention over:
        what was before it may be published again."""
        self._newest.pop(key, None)
        self._published = {once for once in self._published if once[0] != key}

    def doubted(self) -> None:
        """A writer does not accept what is here and publishes all of it again: by a snapshot, and
        where its queue overflows by what is conflated. Nothing goes back in time for that."""
        self._published.clear()
        self.differs_in_full()

    def differs_in_full(self) -> None:
        """A writer publishes what differs in anything that is published."""
        self._counted.clear()

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

    def _marker(self, offset: int, record: MarkerRecord) -> None:
        match record.kind:
            case "claim":
                self._window = None
                self._claim(record)
            case "begin":
                self._window = Window(record)
            case "end":
                window, self._window = self._window, None
                if window is None or window.snapshot != record.snapshot:
                    self.broken.append(
                        f"p{self._partition}@{offset} snapshot {record.snapshot} ends that did not "
                        "begin"
                    )
                elif not window.whole(record):
                    self.broken.append(
                        f"p{self._partition}@{offset} snapshot {record.snapshot} does not have the "
                        "whole state"
                    )
            case _:
                pass

    def _claim(self, record: MarkerRecord) -> None:
        if record.config == self._config:
            return
        # a wider selection may bring back what is older than the delete that a list dated
        if self._config:
            self._published.clear()
            self._newest = {
                key: version for key, version in self._newest.items() if key not in self._dead
            }
        self._config = record.config
        self.differs_in_full()

    def _incarnation(self, offset: int, record: ObjectRecord) -> None:
        """An object that took another's name comes behind that one's delete."""
        if record.verb == "deleted":
            self._uids.pop(record.key, None)
            return
        before = self._uids.get(record.key, record.uid)
        if before != record.uid:
            self.broken.append(
                f"p{self._partition}@{offset} {record.key.decode()} is {record.uid} after {before} "
                "without a delete"
            )
        self._uids[record.key] = record.uid

    def _counts(self, offset: int, record: ObjectRecord) -> None:
        """A change is published if it differs in what counts from what was published before."""
        if self._config != CALM.name:
            return
        key, counted = record.key, None
        if record.value is not None:
            shown = msgspec.json.decode(record.value)
            counted = shown["metadata"]["uid"], shown["metadata"]["labels"], shown["spec"]["body"]
        before = self._counted.get(key)
        if record.verb == "modified" and counted == before:
            self.broken.append(
                f"p{self._partition}@{offset} {key.decode()} rv {record.version} "
                f"({record.reason}, epoch {record.epoch}) is equal in what counts to its record "
                "before"
            )
        self._counted[key] = counted

    def _object(self, offset: int, record: ObjectRecord) -> None:
        key, version, deleted = record.key, int(record.version), record.verb == "deleted"
        self.conflated += record.reason == "conflated"
        where = (
            f"p{self._partition}@{offset} {record.verb} {key.decode()} rv {version} "
            f"({record.reason}, epoch {record.epoch})"
        )
        if version < self._newest.get(key, 0):
            self.broken.append(
                f"{where} goes back in time, {self._newest[key]} was published before"
            )
        self._newest[key] = version
        if deleted:
            self._dead.add(key)
        else:
            self._dead.discard(key)
        if record.reason != "snapshot":
            once = (key, record.uid, record.version, deleted, record.enveloped)
            if once in self._published:
                self.broken.append(f"{where} is published again")
            self._published.add(once)
