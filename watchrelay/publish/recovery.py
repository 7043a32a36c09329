"""What a new writer learns from its own log, and how it goes on from there.

Room: relay (pure). In: the records of each partition from the starting point to the acknowledged
claim marker of this writer, in order.
Out: the state that stands there, packed, whether it is proven, and a decision: watch on, list, or
begin anew. Source: WIRE 4.2 and 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from watchrelay.contract.records import DIGEST_MASK, Decoded, MarkerRecord, ObjectRecord, Trimmed
from watchrelay.contract.wire import Reason
from watchrelay.model.changes import Entry
from watchrelay.model.resources import comparable, compare

_LISTED: frozenset[Reason] = frozenset({"relist", "resume", "conflated"})
"""Reasons of records that a list may have brought, not the watch."""
_TENURE_BITS = 48
"""A position as one integer: which of the epochs met, then the sequence."""

Pack = Callable[[bytes, str], bytes]
"""(published bytes, resourceVersion) -> what an entry keeps of them. Source: store/objects.py."""


@dataclass(frozen=True, slots=True)
class WatchFrom:
    """The log holds the whole state as of `frontier`, and for some keys what came after it."""

    frontier: str


@dataclass(frozen=True, slots=True)
class ListAndDiff:
    """The log holds a state; a list tells what leads from there to the present. `configured`: it
    was written under another config."""

    reason: str
    configured: bool = False


@dataclass(frozen=True, slots=True)
class FirstSnapshot:
    """Nothing stands there, or nothing that can be believed: the whole state is said, within a
    snapshot."""

    reason: str
    doubted: bool = False


@dataclass(frozen=True, slots=True)
class ReadAgainFromStart:
    """These partitions are not proven by what was read; they have an older part, which may tell."""

    partitions: tuple[int, ...]


Decision = WatchFrom | ListAndDiff | FirstSnapshot | ReadAgainFromStart


@dataclass(frozen=True, slots=True)
class LaneFound:
    """The end of one partition. Shape: `frontier` "0" claims nothing; `last_snapshot` is (id, begin
    offset) of its last complete one."""

    count: int
    digest: int
    frontier: str
    last_snapshot: tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class Found:
    """What the read-back gave.

    Shape: `states` are the entries of each partition; `skip` maps dead keys to the `ce_wrrv` of
    their last record, where that is newer than the lowest frontier; `newest` is the highest
    resourceVersion on the log, "" for none. `owed` are the keys whose last record on the log is a
    stale one, so that the true state must be said again. `said` counts object records since the
    last complete snapshot.
    """

    decision: Decision
    lanes: tuple[LaneFound, ...]
    states: tuple[dict[bytes, Entry], ...]
    skip: dict[bytes, str]
    newest: str
    owed: dict[bytes, int]
    trimmed: dict[bytes, Trimmed] = field(default_factory=dict)
    said: int = 0

    @property
    def objects(self) -> int:
        """Live objects found."""
        return sum(map(len, self.states))


class Fold:
    """One partition of one stream, record by record: the state that readers of section 5 hold, in
    the store's own form.

    Law: `entries`, `digest`, `epoch` and `last` are those of a `Replica` that was given the same
    records and reads nothing again.
    """

    def __init__(self, stream: str, partition: int, *, pack: Pack) -> None:
        self.stream, self.partition = stream, partition
        self.entries: dict[bytes, Entry] = {}
        self.gone: dict[bytes, str] = {}
        """Dead keys: the `ce_wrrv` of their last record, a healed null apart."""
        self.stale: dict[bytes, None] = {}
        """Keys whose last record on the log is one that readers ignore."""
        self.trimmed: dict[bytes, Trimmed] = {}
        self.digest = 0
        self.epoch = self.last = 0
        self.highest = 0
        """The highest epoch met."""
        self.claimed = 0
        """The epoch of the newest claim that was not ignored."""
        self.torn = False
        """A record behind the newest marker does not follow the one before it: compaction took some
        between them, or it is of a writer that this log knows no claim of."""
        self.marked = False
        self.proven = False
        """Count and digest of the newest marker agreed at its place."""
        self.frontier = "0"
        self.configs: set[str] = set()
        """Those of the newest marker and of all claims behind it."""
        self.last_snapshot: tuple[str, int] | None = None
        self.newest, self.ordered = "", True
        self.listed = ""
        """The highest version that a list may have brought: the watch need not show it again."""
        self.went_back = False
        """A marker claims less than one before it: the server was restored from a backup."""
        self.said = 0
        self._said_at_begin = 0
        self._pack = pack
        self._fresh: dict[bytes, bytes] = {}
        self._tenure = 0

    @property
    def empty(self) -> bool:
        """No object was ever said here, as far as was read, and no snapshot completed."""
        return not (self.entries or self.gone or self.stale or self.last_snapshot)

    def apply(self, records: Iterable[Decoded]) -> None:
        """Take the next records of the log; those of other streams are passed over. What they leave
        is packed at the end of the call."""
        stream = self.stream
        for record in records:
            if record.stream != stream:
                continue
            if record.epoch > self.highest:
                self.highest = record.epoch
            if type(record) is ObjectRecord:
                self._object(record)
            else:
                assert isinstance(record, MarkerRecord)
                self._marker(record)
        pack, entries = self._pack, self.entries
        for key, value in self._fresh.items():
            entry = entries[key]
            entry.packed = pack(value, entry.resource_version)
        self._fresh.clear()

    def _admits(self, epoch: int, sequence: int, *, claim: bool = False) -> bool:
        if epoch > self.epoch:
            self._tenure += self.epoch > 0
            # an epoch begins with its claim, under 1
            self.epoch, self.last = epoch, 0 if claim else -1
        elif epoch < self.epoch or sequence <= self.last:
            return False
        if sequence != self.last + 1:
            self.torn = True
        self.last = sequence
        return True

    def _object(self, record: ObjectRecord) -> None:
        key = record.key
        held = self.entries.get(key)
        if not self._admits(record.epoch, record.sequence):
            self._ignored(record, held)
            return
        at = self._tenure << _TENURE_BITS | record.sequence
        if self.stale:
            self.stale.pop(key, None)
        if held is not None:
            self.digest -= held.hash
        self.said += 1
        if record.verb == "deleted":
            self._deleted(record, held)
            return
        self._met(record.version, record.reason)
        if self.gone:
            self.gone.pop(key, None)
        assert record.value is not None, "an object without a value is refused by the codec"
        self.digest += record.value_hash
        self.entries[key] = Entry(
            record.uid, record.version, record.value_hash, self.partition, b"", at
        )
        self._fresh[key] = record.value
        if record.trimmed:
            self.trimmed[key] = record.trimmed
        elif self.trimmed:
            self.trimmed.pop(key, None)

    def _deleted(self, record: ObjectRecord, held: Entry | None) -> None:
        key = record.key
        if record.enveloped:
            # its tombstone takes it out again; a writer that died between the two owes that null
            self.stale[key] = None
        if held is not None:
            del self.entries[key]
            self._fresh.pop(key, None)
            self.trimmed.pop(key, None)
        if record.reason != "healed":
            self.gone[key] = record.version
            self._met(record.version, record.reason)
        elif held is not None:
            self.gone[key] = held.resource_version

    def _ignored(self, record: ObjectRecord, held: Entry | None) -> None:
        """A stale record: what it leaves in a table that ignores headers must be mended, unless
        nothing is the truth anyway.

        Also where it is a late copy of the true record: compaction keeps the copy, which readers
        pass over, and takes the true one.
        """
        key = record.key
        if held is None and record.verb == "deleted" and not record.enveloped:
            self.stale.pop(key, None)
        else:
            self.stale[key] = None

    def _met(self, version: str, reason: Reason) -> None:
        if not comparable(version):
            self.ordered = False
            return
        place, newest, listed = (len(version), version), self.newest, self.listed
        if place > (len(newest), newest):
            self.newest = version
        if reason in _LISTED and place > (len(listed), listed):
            self.listed = version

    def _marker(self, marker: MarkerRecord) -> None:
        if not self._admits(marker.epoch, marker.sequence, claim=marker.kind == "claim"):
            return
        if marker.kind == "claim":
            self.configs.add(marker.config)
            self.claimed = marker.epoch
            return
        self.configs = {marker.config}
        self.went_back = self.went_back or compare(marker.frontier, self.frontier) == -1
        self.marked, self.torn, self.frontier = True, False, marker.frontier
        if marker.kind == "begin":
            self._said_at_begin = self.said
        elif marker.kind == "end":
            self.last_snapshot = (marker.snapshot, marker.begin_offset)
            self.said -= self._said_at_begin
            self._said_at_begin = 0
        elif marker.last_snapshot and marker.last_snapshot_offset is not None:
            self.last_snapshot = (marker.last_snapshot, marker.last_snapshot_offset)
        self.digest &= DIGEST_MASK
        self.proven = len(self.entries) == marker.count and self.digest == marker.digest
        if not self.proven and marker.kind == "end":
            self._sweep(marker)

    def _sweep(self, end: MarkerRecord) -> None:
        """Remove what is older than this end's begin, if what is left is what the writer held."""
        begin = self._tenure << _TENURE_BITS | end.begin_sequence
        older = [(key, entry) for key, entry in self.entries.items() if entry.queued < begin]
        digest = (self.digest - sum(entry.hash for _, entry in older)) & DIGEST_MASK
        if len(self.entries) - len(older) != end.count or digest != end.digest:
            return
        for key, entry in older:
            del self.entries[key]
            self._fresh.pop(key, None)
            self.gone[key] = entry.resource_version
        self.digest, self.proven = digest, True


def decide(
    folds: Sequence[Fold],
    *,
    config: str,
    whole: Iterable[int],
    anew: bool = False,
    foreign: bool = False,
    bookmarks: bool = True,
) -> Decision:
    """What to do with what was read. Shape: `whole` are the partitions that were read from their
    very start.

    `anew`: the topic was made anew under its writer. What stands before the claim is what that
    still sent, and proves nothing, but deletes of it must be said. `foreign`: a record that no
    claim explains was found. Readers may have taken it for the truth, so the fold does too, and no
    watch shows its object again. `bookmarks`: the watch asks for them, so that one will show that
    everything on the log is passed.
    """
    if anew:
        return FirstSnapshot(
            "the topic was made anew", doubted=not all(fold.empty for fold in folds)
        )
    doubted = [fold for fold in folds if not fold.proven and (fold.marked or not fold.empty)]
    if doubted:
        known = set(whole)
        older = tuple(fold.partition for fold in doubted if fold.partition not in known)
        if older:
            return ReadAgainFromStart(older)
        return FirstSnapshot("the log does not agree with its own digests", doubted=True)
    if all(fold.empty for fold in folds):
        return FirstSnapshot("nothing was published before")
    if any(config not in fold.configs or len(fold.configs) > 1 for fold in folds):
        return ListAndDiff("the stream's config is another", configured=True)
    if foreign or any(fold.torn for fold in folds):
        return ListAndDiff("a record behind the newest marker may be of another writer")
    frontiers = [fold.frontier for fold in folds]
    if any(frontier in {"", "0"} for frontier in frontiers):
        return ListAndDiff("a partition has no frontier")
    if not all(fold.ordered for fold in folds) or not all(map(comparable, frontiers)):
        return ListAndDiff("resourceVersions cannot be compared")
    if any(fold.went_back for fold in folds):
        return ListAndDiff(
            "the server was restored from a backup since the last snapshot: versions on the log "
            "are of two histories"
        )
    lowest = min(frontiers, key=lambda version: (len(version), version))
    if not bookmarks and any(compare(fold.listed, lowest) == 1 for fold in folds):
        return ListAndDiff(
            "a list brought changes above the frontier: without bookmarks, no watch shows that "
            "they are passed"
        )
    return WatchFrom(lowest)


def found(folds: Sequence[Fold], decision: Decision) -> Found:
    """Everything that a writer, its store and its watch need to go on. Shape: the folds are used
    up."""
    after = decision.frontier if isinstance(decision, WatchFrom) else ""
    skip = {
        key: version
        for fold in folds
        for key, version in fold.gone.items()
        if not after or compare(version, after) in {1, None}
    }  # a replay begins behind the frontier: what is older can not come again
    for fold in folds:
        for entry in fold.entries.values():
            entry.queued = 0
    return Found(
        decision=decision,
        lanes=tuple(
            LaneFound(
                len(fold.entries), fold.digest & DIGEST_MASK, fold.frontier, fold.last_snapshot
            )
            for fold in folds
        ),
        states=tuple(fold.entries for fold in folds),
        skip=skip,
        newest=max(
            (fold.newest for fold in folds), key=lambda version: (len(version), version), default=""
        ),
        owed={key: fold.partition for fold in folds for key in fold.stale},
        trimmed={key: trimmed for fold in folds for key, trimmed in fold.trimmed.items()},
        said=sum(fold.said for fold in folds),
    )


def interleaved(states: Sequence[dict[bytes, Entry]]) -> Iterator[tuple[bytes, Entry]]:
    """The entries of all partitions, one of each in turn: snapshots then fill all partitions
    alike."""
    rest = [iter(state.items()) for state in states]
    while rest:
        for each in list(rest):
            try:
                yield next(each)
            except StopIteration:
                rest.remove(each)
