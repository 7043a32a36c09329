"""The state of one stream in one partition, folded from its records, and every rule they break.

The reader of docs/record-contract.md section 5, written from that page alone. The tests' topics are
never compacted, so a gap is a problem here, and not merely a doubt.
"""

from dataclasses import dataclass, field
from typing import Literal

from tests.support.wirerules import ParsedRecord, partition_of

_MASK = (1 << 64) - 1
_OF_A_CHANGE = frozenset({"watch", "relist"})


@dataclass(frozen=True, slots=True)
class KnownObject:
    """The state of one object, as the reader knows it."""

    value: bytes
    hash: int
    position: tuple[int, int]
    headers: dict[str, str]


@dataclass(slots=True)
class CheckedPartition:
    """One stream in one partition. `problems` gets a line for each broken rule; `inherited` until
    the first proof in an epoch that found older state here."""

    problems: list[str]
    epoch: int = 0
    last: int = 0
    proven: bool = False
    inherited: bool = False
    frontier: int = 0
    held: dict[bytes, KnownObject] = field(default_factory=dict)
    newest: dict[bytes, int] = field(default_factory=dict)
    """The highest resourceVersion published of a key, deletes included."""
    placed: set[bytes] = field(default_factory=set)
    """Keys whose partition was checked."""
    begin: ParsedRecord | None = None
    snapshot: tuple[str, int] | None = None
    """The last one that ended here, and the epoch in which it did."""
    snapshot_in: int = 0
    before: set[tuple[str, int] | None] = field(default_factory=lambda: {None})
    """What a heartbeat may name in its place: the ack of its end may come after the next heartbeat,
    and a new writer may know of none."""
    ends: int = 0
    ids: dict[str, tuple[bytes | None, bytes | None]] = field(default_factory=dict)

    def apply(self, record: ParsedRecord) -> Literal["applied", "duplicate", "stale"]:
        """Takes the next record of the log that keeps the rules of its form; `duplicate` and
        `stale` are those that the contract tells a reader to ignore."""
        identity = record.headers["ce_id"]
        content = (record.raw.key, record.raw.value)
        if self.ids.setdefault(identity, content) != content:
            self.problems.append(f"{record}: {identity} had other content before")
        if record.epoch < self.epoch:
            return "stale"
        if record.epoch > self.epoch:
            if record.type != "claim" or record.sequence != 1:
                self.problems.append(f"{record}: epoch {record.epoch} does not start with a claim")
            self.epoch, self.last, self.begin, self.frontier = record.epoch, 0, None, 0
            self.inherited = bool(self.held)
            self.before = {self.snapshot, None}
        if record.sequence <= self.last:
            return "duplicate"
        if record.sequence != self.last + 1:
            self.problems.append(f"{record}: sequence {record.sequence} follows {self.last}")
        self.last = record.sequence
        if record.is_object:
            self._object(record)
        else:
            self._marker(record)
        return "applied"

    def _object(self, record: ParsedRecord) -> None:
        known = self.held.get(record.key)
        newest = self.newest.get(record.key, 0)
        if known is None and record.type == "added" and record.headers["ce_wrreason"] == "resume":
            # a wider selection brings back what a list, and its version, had deleted: the object
            # may be older than that
            newest = 0
        healed_null = record.type == "deleted" and record.headers["ce_wrreason"] == "healed"
        if not healed_null:  # that has the frontier, which may be older than the delete
            if record.version < newest:
                self.problems.append(f"{record}: resourceVersion {record.version} after {newest}")
            self.newest[record.key] = max(newest, record.version)
        if record.headers["ce_wrreason"] in _OF_A_CHANGE and record.version <= self.frontier:
            self.problems.append(
                f"{record}: a change at {record.version} behind a frontier of {self.frontier}"
            )
        if not self.inherited and self.ends:
            self._type_fits(record, known)
        if record.type == "deleted":
            self.held.pop(record.key, None)
            return
        assert record.raw.value is not None
        self.held[record.key] = KnownObject(
            record.raw.value,
            int(record.headers["ce_wrhash"], 16),
            (record.epoch, record.sequence),
            record.headers,
        )

    def _type_fits(self, record: ParsedRecord, known: KnownObject | None) -> None:
        if (known is None) != (record.type == "added") and not (
            known is None and record.headers["ce_wrreason"] == "healed"
        ):
            self.problems.append(
                f"{record}: {record.type} of an object that the topic "
                f"{'did not hold' if known is None else 'held'}"
            )
        if (
            record.type == "modified"
            and known is not None
            and known.headers["ce_wruid"] != record.headers["ce_wruid"]
        ):
            self.problems.append(f"{record}: another uid without a delete before it")
        if record.type == "read" and known is not None and known.value != record.raw.value:
            self.problems.append(f"{record}: read of another value than was here")

    def _marker(self, record: ParsedRecord) -> None:
        count = int(record.headers["ce_wrpartitions"])
        wrong = [
            key
            for key in self.held.keys() - self.placed
            if partition_of(key, count) != record.raw.partition
        ]
        self.placed.update(self.held)
        if wrong:
            self.problems.append(f"{record}: keys in the wrong partition of {count}: {wrong[:3]}")
        if record.type == "claim":
            return
        if record.version and record.version < self.frontier:
            self.problems.append(
                f"{record}: the frontier goes back from {self.frontier} to {record.version}"
            )
        self.frontier = max(self.frontier, record.version)
        if record.type == "begin":
            self.begin = record
        if record.type == "end":
            self._window(record)
        if record.type == "heartbeat" and _named(record) not in (
            known := {self.snapshot, *self.before}
        ):
            self.problems.append(
                f"{record}: the last snapshot is named {_named(record)}, not one of {known}"
            )
        self.proven = _agrees(self.held, record)
        if record.type == "end" and not self.proven:
            window = self._since(record.epoch, int(record.headers["ce_wrbegin"]))
            if _agrees(window, record):
                self.held, self.proven = window, True
        if self.proven:
            self.inherited = False
        elif not self.inherited:
            stated = (record.headers["ce_wrcount"], record.headers["ce_wrdigest"])
            self.problems.append(
                f"{record}: has count and digest {stated}, but {len(self.held)} objects are here"
            )

    def _window(self, record: ParsedRecord) -> None:
        begin = self.begin
        if begin is None or begin.headers["ce_wrsnap"] != record.headers["ce_wrsnap"]:
            self.problems.append(f"{record}: an end without its begin")
            return
        if (int(record.headers["ce_wrbegin"]), int(record.headers["ce_wrbeginoff"])) != (
            begin.sequence,
            begin.raw.offset,
        ):
            self.problems.append(
                f"{record}: names another begin than that at sequence {begin.sequence}, offset "
                f"{begin.raw.offset}"
            )
        self.before = {self.snapshot, None} if self.snapshot_in != record.epoch else {self.snapshot}
        self.snapshot, self.snapshot_in = (
            (record.headers["ce_wrsnap"], begin.raw.offset),
            record.epoch,
        )
        self.ends += 1
        window = self._since(record.epoch, begin.sequence)
        if len(window) != int(record.headers["ce_wrcount"]):
            self.problems.append(
                f"{record}: {len(window)} objects were published since the begin, "
                f"{record.headers['ce_wrcount']} are alive"
            )

    def _since(self, epoch: int, sequence: int) -> dict[bytes, KnownObject]:
        return {key: one for key, one in self.held.items() if one.position >= (epoch, sequence)}


def _agrees(objects: dict[bytes, KnownObject], marker: ParsedRecord) -> bool:
    """Whether the count and digest of the marker are those of the objects."""
    digest = sum(one.hash for one in objects.values()) & _MASK
    return (len(objects), digest) == (
        int(marker.headers["ce_wrcount"]),
        int(marker.headers["ce_wrdigest"], 16),
    )


def _named(record: ParsedRecord) -> tuple[str, int] | None:
    if "ce_wrlastsnap" not in record.headers:
        return None
    return record.headers["ce_wrlastsnap"], int(record.headers["ce_wrlastsnapoff"])
