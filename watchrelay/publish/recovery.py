"""What a new writer recovers from its own log, and how it continues from there.

The input is the records of each partition, in order, from the starting point to the acknowledged
claim marker of this writer. See docs/record-contract.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import attrgetter
from typing import NamedTuple

from watchrelay.contract.partitioning import partition_of
from watchrelay.contract.records import (
    SEQUENCE_BITS,
    Foreign,
    LogRecord,
    MarkerRecord,
    ObjectRecord,
    OtherCluster,
    Trimmed,
)
from watchrelay.contract.state import State, judged
from watchrelay.contract.wire import Reason
from watchrelay.model.changes import Entry
from watchrelay.model.resources import comparable, compare

_LIST_REASONS: frozenset[Reason] = frozenset({"relist", "resume", "conflated"})
"""Reasons of records that may come from a list, not from the watch. "resume": from the first list
after a start that could not continue the watch from the log."""

Repairs = dict[tuple[bytes, int], None]
"""Keys, each with a partition, whose true state must be published there again."""
Pack = Callable[[bytes, str], bytes]
"""(published bytes, resourceVersion) -> the packed value of an entry. See store/objects.py."""


@dataclass(frozen=True, slots=True)
class WatchFrom:
    """Watch from `frontier`: the log holds the complete state as of it, and newer states of some
    keys."""

    frontier: str


@dataclass(frozen=True, slots=True)
class ListAndDiff:
    """List, and publish the difference from the log. `config_changed`: the log was written under
    another config. `doubted`: what it has of an object may be wrong. Of both, the difference is by
    all that is published, not by what counts."""

    reason: str
    config_changed: bool = False
    doubted: bool = False


@dataclass(frozen=True, slots=True)
class FirstSnapshot:
    """Publish the complete state in a snapshot: the log is empty, or `log_unverified`."""

    reason: str
    log_unverified: bool = False


@dataclass(frozen=True, slots=True)
class ReadAgainFromStart:
    """Read these partitions from their start: the digests do not agree with what was read of
    them."""

    partitions: tuple[int, ...]


Decision = WatchFrom | ListAndDiff | FirstSnapshot | ReadAgainFromStart


class SnapshotPlace(NamedTuple):
    """Where a complete snapshot is in one partition."""

    id: str
    begin_offset: int


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """The state at the end of one partition. A `frontier` of "0" says nothing."""

    count: int
    digest: int
    frontier: str
    last_snapshot: SnapshotPlace | None


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """The result of a recovery.

    `partitions` and `entries` are in the order of the partitions. An object in a partition where
    its key does not belong is in no `entries`, nor in count and digest: one of `pending_repairs`
    (all `LogRecovery.to_repair`) removes it there.
    """

    decision: Decision
    partitions: tuple[RecoveredPartition, ...]
    entries: tuple[dict[bytes, Entry], ...]
    deleted_versions: dict[bytes, str]
    """All `LogRecovery.deleted`, with `WatchFrom` those newer than its frontier: the store ignores
    replayed events of a key that are older."""
    newest_on_log: str
    """The highest resourceVersion on the log, "" for none."""
    pending_repairs: Repairs
    trimmed: dict[bytes, Trimmed] = field(default_factory=dict)
    records_since_snapshot: int = 0
    """Object records since the begin of the last complete snapshot."""

    @property
    def frontiers(self) -> tuple[str, ...]:
        """Those of the partitions, if they differ and the watch begins at the lowest of them, else
        empty: up to its own frontier a partition gets only replays."""
        found = tuple(partition.frontier for partition in self.partitions)
        ahead = isinstance(self.decision, WatchFrom) and len(set(found)) > 1
        return found if ahead else ()


@dataclass(slots=True)
class Tail:
    """What the records after the newest marker with a digest show: nothing proves these yet."""

    keys: dict[bytes, None] = field(default_factory=dict)
    """Those of objects that were set here."""
    sequence_gap: bool = False
    """The sequences have a gap: compaction removed records, or a record is from a writer whose
    claim marker is not in this log."""
    repair_differs: bool = False
    """A repair changed the state that was read. The frontier of the marker before it is then not to
    be used (docs/record-contract-reasons.md, F32)."""
    hash_differs: bool = False
    """A value is not what its ce_wrhash says."""


@dataclass(slots=True)
class VersionsRead:
    """The resourceVersions of object records and frontiers."""

    newest: str = ""
    newest_of_lists: str = ""
    """The newest that may come from a list: the watch may never show it."""
    comparable: bool = True
    highest_frontier: str = "0"
    api_server_restored: bool = False
    """A marker has a lower frontier than one before it: the API server was restored."""

    def note(self, version: str, reason: Reason) -> None:
        """An object's record has this version."""
        if not comparable(version):
            self.comparable = False
            return
        order = _sort_key(version)
        if order > _sort_key(self.newest):
            self.newest = version
        if reason in _LIST_REASONS and order > _sort_key(self.newest_of_lists):
            self.newest_of_lists = version

    def note_frontier(self, frontier: str) -> None:
        """A marker has this frontier."""
        # compared with the highest so far: the one before may be "0", which cannot be compared
        if compare(frontier, self.highest_frontier) == -1:
            self.api_server_restored = True
        elif comparable(frontier):
            self.highest_frontier = frontier


@dataclass(slots=True)
class WritersRead:
    """The epochs of the writers of this stream, and what shows another cluster's."""

    highest_epoch: int = 0
    """Of any record."""
    claimed: int = 0
    """The epoch of the newest valid claim marker."""
    claimed_before: int = 0
    """That of the valid claim marker before it: the last writer's, if the newest is ours."""
    shared: str = ""
    """The message about a marker of another cluster, after which no marker of ours but claims was
    taken."""
    shared_epoch: int = 0
    """The epoch of that marker."""

    def note_claim(self, epoch: int) -> None:
        """A valid claim marker has this epoch."""
        self.claimed_before, self.claimed = self.claimed, epoch


class LogRecovery:
    """Recovers one partition of one stream, record by record, into entries of the store.

    `state` is what a consumer's `Replica` holds after the same records, with store entries as its
    values.
    """

    def __init__(self, stream: str, partition: int, *, partitions: int, pack: Pack) -> None:
        """`partitions`: of the whole stream."""
        self.stream, self.partition, self.partitions = stream, partition, partitions
        self.state = State[Entry](
            # `Entry.position` is the epoch, then the sequence
            attrgetter("hash"),
            lambda entry: divmod(entry.position, 1 << SEQUENCE_BITS),
        )
        self.entries = self.state.held
        self.deleted: dict[bytes, str] = {}
        """Deleted keys, with the resourceVersion of their last record other than a repair."""
        self.to_repair: dict[bytes, None] = {}
        """Keys to publish again: the last record is one that readers of the contract ignore, or a
        delete within an envelope whose tombstone is missing."""
        self.trimmed: dict[bytes, Trimmed] = {}
        self.writers, self.versions = WritersRead(), VersionsRead()
        self.tail = Tail()
        self.marker_found = False
        """A marker with count and digest was read: any but a claim marker. The newest of these is
        "the newest marker" here."""
        self.proven = False
        """Count and digest of the newest marker agreed, and it is of a stream of as many
        partitions, unless the stream was retired."""
        self.frontier = "0"
        self.configs: set[str] = set()
        """The config hashes of the newest marker and of all claim markers after it."""
        self.last_snapshot: SnapshotPlace | None = None
        self.records_since_snapshot = 0
        self._records_at_begin = 0
        self._pack = pack
        self._values: dict[bytes, bytes] = {}

    @property
    def empty(self) -> bool:
        """Whether what was read has no object, delete, key to repair or complete snapshot."""
        return not (self.entries or self.deleted or self.to_repair or self.last_snapshot)

    def apply(self, records: Iterable[LogRecord]) -> None:
        """Apply the next records of the log and pack the values left by them; records of other
        streams are ignored."""
        for record in records:
            if isinstance(record, Foreign):
                if record.named or record.key in self.entries:
                    self.to_repair[record.key] = None
                continue
            if isinstance(record, OtherCluster):
                self._other_cluster(record)
                continue
            if record.stream != self.stream:
                continue
            if record.epoch > self.writers.highest_epoch:
                self.writers.highest_epoch = record.epoch
            if isinstance(record, MarkerRecord):
                if self._admit(record.epoch, record.sequence, claim=record.kind == "claim"):
                    self._marker(record)
            elif self._admit(record.epoch, record.sequence):
                self._object(record)
            else:
                self._ignored(record)
        for key, value in self._values.items():
            entry = self.entries[key]
            # a new entry, without packed bytes yet
            entry.block += self._pack(value, entry.resource_version)
        self._values.clear()

    def forget_deleted(self, up_to: str) -> None:
        """Forget the deletes up to this version: no watch continues from an older one."""
        self.deleted = {
            key: version
            for key, version in self.deleted.items()
            if compare(version, up_to) in {1, None}
        }

    def _admit(self, epoch: int, sequence: int, *, claim: bool = False) -> bool:
        """Advance to this position; False where readers ignore it. An epoch begins with its claim
        marker, sequence 1."""
        state = self.state
        begins = epoch != state.epoch
        expected = 1 if begins else state.last + 1
        if state.admit(epoch, sequence) is not None:
            return False
        if sequence != expected or (begins and not claim):
            self.tail.sequence_gap = True
        return True

    def _object(self, read: ObjectRecord) -> None:
        record, key = judged(read), read.key
        if record is not read:
            self.tail.hash_differs = True
        self.to_repair.pop(key, None)
        self.records_since_snapshot += 1
        # a null that repairs carries the frontier, not the version of a delete
        if record.verb != "deleted" or record.reason != "healed":
            self.versions.note(record.version, record.reason)
        if record.value is None:
            self._deleted(record)
            return
        self.deleted.pop(key, None)
        self.tail.keys[key] = None
        at = record.epoch << SEQUENCE_BITS | record.sequence
        before = self.state.hold(
            key,
            Entry.of(
                record.uid,
                record.version,
                self.partition,
                value_hash=record.value_hash,
                position=at,
            ),
        )
        if record.reason == "healed" and (before is None or before.hash != record.value_hash):
            self.tail.repair_differs = True
        self._values[key] = record.value
        if record.trimmed:
            self.trimmed[key] = record.trimmed
        else:
            self.trimmed.pop(key, None)

    def _deleted(self, record: ObjectRecord) -> None:
        key = record.key
        if record.enveloped:
            # a delete within an envelope: its tombstone must follow; if the log ends here, the key
            # is repaired, which sends it
            self.to_repair[key] = None
        before = self._drop(key)
        if record.reason != "healed":
            self.deleted[key] = record.version
        elif before is not None:
            self.tail.repair_differs = True
            self.deleted[key] = before.resource_version

    def _drop(self, key: bytes) -> Entry | None:
        self._values.pop(key, None)
        self.trimmed.pop(key, None)
        return self.state.hold(key, None)

    def remove_stray(self, key: bytes) -> None:
        """Hold this object no longer, and have its key repaired: it does not belong into this
        partition."""
        self._drop(key)
        self.to_repair[key] = None

    def _other_cluster(self, record: OtherCluster) -> None:
        writers = self.writers
        writers.highest_epoch = max(writers.highest_epoch, record.epoch)
        if self._admit(record.epoch, record.sequence):
            writers.shared, writers.shared_epoch = record.why, record.epoch
            self.tail.sequence_gap = True  # nothing tells what its writer has seen

    def leave(self, key: bytes) -> bool:
        """Neither hold nor repair this key, which is another stream's; whether it was held."""
        self.to_repair.pop(key, None)
        return self._drop(key) is not None

    def _ignored(self, record: ObjectRecord) -> None:
        """Note a stale record: plain tables, which ignore headers, must get the true state again,
        unless the record is a null itself and the key does not exist.

        A late copy of the true record is noted too: compaction keeps the copy, which readers of the
        contract ignore, and removes the true one.
        """
        if record.key not in self.entries and record.value is None and not record.enveloped:
            self.to_repair.pop(record.key, None)
        else:
            self.to_repair[record.key] = None

    def _marker(self, marker: MarkerRecord) -> None:
        if marker.kind == "claim":
            self.configs.add(marker.config)
            self.writers.note_claim(marker.epoch)
            return
        self.writers.shared = ""
        self.configs = {marker.config}
        self.versions.note_frontier(marker.frontier)
        self.marker_found, self.frontier = True, marker.frontier
        self.tail = Tail()
        if marker.kind == "begin":
            self._records_at_begin = self.records_since_snapshot
        elif marker.kind == "end":
            self.last_snapshot = SnapshotPlace(marker.snapshot, marker.begin_offset)
            self.records_since_snapshot -= self._records_at_begin
            self._records_at_begin = 0
        elif marker.last_snapshot and marker.last_snapshot_offset is not None:
            self.last_snapshot = SnapshotPlace(marker.last_snapshot, marker.last_snapshot_offset)
        # what the end of a snapshot did not mention is deleted: `judge` has removed it from
        # `entries`; None: count or digest differ
        unmentioned = self.state.judge(marker)
        as_many_partitions = marker.partitions == self.partitions or marker.retires
        self.proven = unmentioned is not None and as_many_partitions
        for key, entry in (unmentioned or {}).items():
            self._values.pop(key, None)
            self.trimmed.pop(key, None)
            self.deleted[key] = entry.resource_version


def _sort_key(version: str) -> tuple[int, str]:
    return len(version), version


def lowest_frontier(recoveries: Sequence[LogRecovery]) -> str:
    """The lowest frontier of the partitions: a watch continues from it."""
    return min((recovery.frontier for recovery in recoveries), key=_sort_key)


def decide(
    recoveries: Sequence[LogRecovery],
    *,
    config: str,
    from_start: Iterable[int],
    recreated: bool = False,
    foreign: bool = False,
    wrong: str = "",
    others: bool = False,
    bookmarks: bool = True,
) -> Decision:
    """How to continue from what was read.

    Args:
        from_start: The partitions that were read from their very start.
        recreated: The topic was recreated while a writer ran. Records before the claim are late
            ones of that writer and prove nothing, but objects that they hold and the cluster does
            not must be published as deleted.
        foreign: A record without a claim was found. Consumers may have applied it, so the recovered
            state includes it; if it is wrong, only a list shows that.
        wrong: Why a value after the newest markers is not the object of its key, "" for none.
        others: The log has an object of this stream under a key of another one. Readers hold it
            until the end of a snapshot that has no such key.
        bookmarks: The watch requests bookmarks, so one of them confirms that everything on the log
            is passed.
    """
    if recreated:
        return FirstSnapshot(
            "the topic was recreated",
            log_unverified=not all(recovery.empty for recovery in recoveries),
        )
    unverified = [
        recovery
        for recovery in recoveries
        if not recovery.proven and (recovery.marker_found or not recovery.empty)
    ]
    if unverified:
        read_whole = set(from_start)
        not_whole = tuple(
            recovery.partition for recovery in unverified if recovery.partition not in read_whole
        )
        if not_whole:
            return ReadAgainFromStart(not_whole)
        reason = "the log does not match its digests, or is of another number of partitions"
        return FirstSnapshot(reason, log_unverified=True)
    if others:
        reason = "the log holds objects under keys of other streams on the topic"
        return FirstSnapshot(reason, log_unverified=True)
    if all(recovery.empty for recovery in recoveries):
        return FirstSnapshot("nothing was published before")
    if any(config not in recovery.configs or len(recovery.configs) > 1 for recovery in recoveries):
        return ListAndDiff("the stream's config changed", config_changed=True)
    if doubt := _doubt([recovery.tail for recovery in recoveries], foreign=foreign, wrong=wrong):
        return ListAndDiff(doubt, doubted=True)
    frontiers = [recovery.frontier for recovery in recoveries]
    if any(frontier in {"", "0"} for frontier in frontiers):
        return ListAndDiff("a partition has no frontier")
    if not all(recovery.versions.comparable for recovery in recoveries) or not all(
        map(comparable, frontiers)
    ):
        return ListAndDiff("resourceVersions cannot be compared")
    if any(recovery.versions.api_server_restored for recovery in recoveries):
        return ListAndDiff("the API server was restored from a backup since the last snapshot")
    lowest = lowest_frontier(recoveries)
    if not bookmarks and any(
        compare(recovery.versions.newest_of_lists, lowest) == 1 for recovery in recoveries
    ):
        return ListAndDiff(
            "without bookmarks, the watch cannot confirm listed changes above the frontier"
        )
    return WatchFrom(lowest)


def _doubt(tails: Sequence[Tail], *, foreign: bool, wrong: str) -> str:
    """Why what follows the newest markers may be wrong, "" where nothing speaks against it."""
    if wrong:
        return wrong
    if any(tail.hash_differs for tail in tails):
        return "a value after the newest marker is not what its ce_wrhash says"
    if foreign or any(tail.sequence_gap for tail in tails):
        return "the sequences have a gap, or a record may be from another writer"
    if any(tail.repair_differs for tail in tails):
        return "a repair after the newest marker differs from what that marker covers"
    return ""


def remove_strays(recoveries: Sequence[LogRecovery]) -> Iterator[None]:
    """Remove what another writer put into a partition where its key does not belong: after the
    newest marker, anywhere if that does not agree, or where another partition holds the key as
    well. Yields after each key that it looked at, so that its caller may pause."""
    suspects = [
        (recovery, key)
        for recovery in recoveries
        for key in (recovery.tail.keys if recovery.proven else recovery.entries)
    ]
    if len(recoveries) > 1:
        seen = set[bytes]()
        twice = set[bytes]()
        for recovery in recoveries:
            twice |= seen & recovery.entries.keys()
            seen |= recovery.entries.keys()
        suspects += [(recovery, key) for recovery in recoveries for key in twice]
    for recovery, key in suspects:
        if key in recovery.entries and partition_of(key, recovery.partitions) != recovery.partition:
            recovery.remove_stray(key)
        yield


def recovered_state(recoveries: Sequence[LogRecovery], decision: Decision) -> RecoveredState:
    """What the writer, its store and its watch need to continue. Uses `recoveries` up, whose
    strays were removed."""
    after = decision.frontier if isinstance(decision, WatchFrom) else ""
    deleted_versions = {
        key: version
        for recovery in recoveries
        for key, version in recovery.deleted.items()
        if not after or compare(version, after) in {1, None}
    }  # a replay begins after the frontier: what is older cannot come again
    for recovery in recoveries:
        for entry in recovery.entries.values():
            entry.position = 0
    return RecoveredState(
        decision=decision,
        partitions=tuple(
            RecoveredPartition(
                len(recovery.entries),
                recovery.state.digest,
                recovery.frontier,
                recovery.last_snapshot,
            )
            for recovery in recoveries
        ),
        entries=tuple(recovery.entries for recovery in recoveries),
        deleted_versions=deleted_versions,
        newest_on_log=max(
            (recovery.versions.newest for recovery in recoveries), key=_sort_key, default=""
        ),
        pending_repairs={
            (key, recovery.partition): None for recovery in recoveries for key in recovery.to_repair
        },
        trimmed={
            key: trimmed for recovery in recoveries for key, trimmed in recovery.trimmed.items()
        },
        records_since_snapshot=sum(recovery.records_since_snapshot for recovery in recoveries),
    )


def interleaved(states: Sequence[dict[bytes, Entry]]) -> Iterator[tuple[bytes, Entry]]:
    """The entries of all partitions, one of each in turn, so that snapshots fill them evenly."""
    for turn in zip_longest(*(state.items() for state in states)):
        yield from (each for each in turn if each is not None)
