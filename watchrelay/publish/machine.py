"""What one writer may publish, from its claim to its last heartbeat, as a state machine:
phases, events, effects, then the step. Pure.

`step` takes a phase and an event; it returns the next phase and the effects that `writer.py`
performs in order, before anything else runs (no `await` in between). No transition depends on the
time. Snapshots, queues over their bound and repairs keep a state of their own
(`snapshots.py`, `stream_queues.py`, `stale_records.py`); the phase decides whether a snapshot or a
repair may begin.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from watchrelay.model.resources import compare
from watchrelay.publish.recovery import Decision, FirstSnapshot, ListAndDiff, WatchFrom

# ---- phases --------------------------------------------------------------------------------------


class AwaitedHeartbeats(msgspec.Struct, frozen=True):
    """The heartbeats that are to confirm the complete state; the end of a snapshot does as well.
    A phase has `COMPLETE` once that has happened, and None while they are not queued yet.

    `partitions`: those not confirmed yet; `after_record`: `StreamQueues.last_record_number` when
    that state was queued. A heartbeat with this or a higher `after_record` confirms its partition
    once it is acknowledged."""

    partitions: frozenset[int]
    after_record: int


COMPLETE = AwaitedHeartbeats(frozenset(), 0)
"""No heartbeat is awaited: the state is confirmed."""


class AwaitingList(msgspec.Struct, frozen=True):
    """No object is published, and there is no marker but the claim markers: others would have count
    0, and prove an empty state that no list has shown. The first list begins the first snapshot.
    `log_unverified`: the log holds what cannot be trusted, as its digests do not agree or the topic
    was recreated; then the difference of the first list is pushed before `ListCompleted`, and its
    first change begins the snapshot. Else the store reports nothing for its first list
    (`Store.replace`): the snapshot publishes all of it."""

    log_unverified: bool = False


class PublishingFirstSnapshot(msgspec.Struct, frozen=True):
    """The first snapshot is under way. Until its ends are queued, markers have frontier "0",
    which says nothing about completeness. `reached_version` here, in `Replaying` and in `Live`:
    every change up to this version was pushed, or suppressed because no published field had
    changed."""

    reached_version: str = "0"


class AwaitingDifference(msgspec.Struct, frozen=True):
    """The log is verified and in the store, but only a list shows how the cluster differs from it:
    the log may be of another config, or incomplete. `newest_on_log`: the highest version on it."""

    newest_on_log: str
    # for `_listed`, which this phase shares with `Replaying` and `Live`
    reached_version: ClassVar[str] = "0"
    awaited: ClassVar[None] = None


class Replaying(msgspec.Struct, frozen=True):
    """The watch continues from the frontier of the log. `version_to_pass`: the highest version
    on the log, "" once the watch has passed it. `accepted`: the API server accepted the watch;
    before that there is no heartbeat. `awaited` as in `Live`."""

    reached_version: str
    version_to_pass: str
    accepted: bool = False
    awaited: AwaitedHeartbeats | None = None


class Live(msgspec.Struct, frozen=True):
    """The log holds the complete state, or its records are queued. `awaited`: the heartbeats that
    are to confirm it, `COMPLETE` once they have; None: they are not queued yet, but come with the
    early heartbeat or the list that is due."""

    reached_version: str
    awaited: AwaitedHeartbeats | None = None


class Draining(msgspec.Struct, frozen=True):
    """Nothing is accepted, and only `StreamWriter.drain` queues a marker: a last heartbeat with
    this `frontier`; None: none."""

    frontier: str | None = None


Phase = AwaitingList | PublishingFirstSnapshot | AwaitingDifference | Replaying | Live | Draining


def frontier(phase: Phase) -> str:
    """The frontier of a marker queued now; "0" says nothing."""
    match phase:
        case Replaying(reached_version=reached_version) | Live(reached_version=reached_version):
            return reached_version
    return "0"


def may_send_heartbeat(phase: Phase) -> bool:
    """Whether a heartbeat may be queued."""
    match phase:
        case AwaitingList() | AwaitingDifference() | Draining():
            return False
        case Replaying(accepted=accepted):
            return accepted
    return True


def may_snapshot(phase: Phase) -> bool:
    """Whether a snapshot may begin. Not in `Replaying`: the log may hold deletes newer than the
    frontier. A later start would read from this snapshot on, so it would not know these deletes,
    and its watch, from that frontier, would show the deleted objects again. Source:
    docs/record-contract-reasons.md, F5.
    In `PublishingFirstSnapshot` one may: a first snapshot that was abandoned begins again."""
    return isinstance(phase, PublishingFirstSnapshot | Live)


def may_repair(phase: Phase) -> bool:
    """Whether repairs may be queued: they publish the state of the store."""
    return isinstance(phase, PublishingFirstSnapshot | Replaying | Live)


# ---- events --------------------------------------------------------------------------------------


class FirstChange(msgspec.Struct, frozen=True):
    """With `log_unverified`: the first change that the first list found is about to be queued, or
    the first delete, where no list came because the resource is not served."""


class ListCompleted(msgspec.Struct, frozen=True):
    """A list is complete as of `version`, its difference is pushed. `awaited`: the heartbeats that
    confirm this state. `frontier_floors`: of the partitions, the last frontiers of the previous
    writer (`PartitionQueue.frontier_floor`)."""

    version: str
    awaited: AwaitedHeartbeats
    frontier_floors: frozenset[str] = frozenset()


class VersionReached(msgspec.Struct, frozen=True):
    """Every change up to `version` was pushed or suppressed."""

    version: str


class ResourceRemoved(msgspec.Struct, frozen=True):
    """The resource is no longer served, and the removal of all its objects follows. Were it
    served again with the same objects, a watch would not show them, so no marker has a frontier
    until the next list: a writer that starts meanwhile lists too."""


class WatchAccepted(msgspec.Struct, frozen=True):
    """The API server accepted a watch that continues from the held state."""


class EarlyHeartbeatDue(msgspec.Struct, frozen=True):
    """The delay that HEARTBEAT_SOON asked for is over: had the history expired, the server's 410
    would have arrived by now. `awaited`: the heartbeats that confirm the state of now; None while
    a list is due (wanted or under way, `StreamProgress.list_due`): then the list decides when the
    state is complete."""

    awaited: AwaitedHeartbeats | None


class MarkerAcked(msgspec.Struct, frozen=True):
    """A heartbeat or snapshot end of `partition` that follows record number `after_record` is
    acknowledged, while no list is due."""

    partition: int
    after_record: int


class SnapshotEndDue(msgspec.Struct, frozen=True):
    """All members of a snapshot are queued, its begins are acknowledged, and the gaps between the
    offsets of our records that were known by then are checked (`StaleRecordFinder.may_end`): the
    ends are queued next, with the frontier that this step leads to. `awaited`: the heartbeats
    that confirm this state, as does the end; None while a list is due."""

    awaited: AwaitedHeartbeats | None


class DrainBegun(msgspec.Struct, frozen=True):
    """`StreamWriter.drain` was called: the watcher was stopped for good."""


Event = (
    FirstChange
    | ListCompleted
    | VersionReached
    | ResourceRemoved
    | WatchAccepted
    | EarlyHeartbeatDue
    | MarkerAcked
    | SnapshotEndDue
    | DrainBegun
)

# ---- effects, start, step ------------------------------------------------------------------------


class Effect(Enum):
    """What the writer does in the same step."""

    BEGIN_FIRST_SNAPSHOT = auto()
    BEGIN_WANTED_SNAPSHOT = auto()
    """One that the start wants (the config changed, or a partition has none) or that was abandoned,
    not one that was requested, or is due by time or growth."""
    LOWER_FRONTIER = auto()
    """The API server was restored from a backup, or the resource is no longer served:
    frontiers may go back."""
    HEARTBEAT = auto()
    HEARTBEAT_SOON = auto()
    """A heartbeat ahead of the next periodic one: `EarlyHeartbeatDue` follows after a short
    delay."""
    REPAIR = auto()
    """Publish the true state of the keys that were found stale while no repair was permitted."""
    REPORT_COMPLETE = auto()


def start(decision: Decision, newest_on_log: str) -> Phase:
    """The phase after recovery. `newest_on_log`: the highest version on the log."""
    match decision:
        case FirstSnapshot(log_unverified=log_unverified):
            return AwaitingList(log_unverified)
        case ListAndDiff():
            return AwaitingDifference(newest_on_log)
        case WatchFrom(frontier=reached_version):
            return Replaying(reached_version, _still_to_pass(newest_on_log, reached_version))
        case _:
            raise AssertionError("recovery is not finished")


def step(phase: Phase, event: Event) -> tuple[Phase, tuple[Effect, ...]]:
    """The phase after `event`, and the effects to perform."""
    match phase, event:
        case Draining(), _:
            return phase, ()
        case _, DrainBegun():
            return Draining(frontier(phase) if may_send_heartbeat(phase) else None), ()
        case AwaitingList(), FirstChange():
            assert phase.log_unverified, "a change before the first list was complete"
            return PublishingFirstSnapshot(), (Effect.BEGIN_FIRST_SNAPSHOT,)
        case AwaitingList(), ListCompleted(version=version):
            return PublishingFirstSnapshot(version), (Effect.BEGIN_FIRST_SNAPSHOT, Effect.REPAIR)
        case PublishingFirstSnapshot(), ListCompleted(version=version):
            return PublishingFirstSnapshot(version), (Effect.REPAIR,)
        case PublishingFirstSnapshot(), VersionReached(version=version):
            return PublishingFirstSnapshot(version), ()
        case PublishingFirstSnapshot(), ResourceRemoved():
            return PublishingFirstSnapshot(), (Effect.LOWER_FRONTIER,)
        case AwaitingDifference() | Replaying() | Live(), ResourceRemoved():
            return Live("0", phase.awaited), (Effect.LOWER_FRONTIER, Effect.REPAIR)
        case PublishingFirstSnapshot(reached_version=reached_version), SnapshotEndDue():
            return Live(reached_version, event.awaited), ()
        case AwaitingDifference() | Replaying() | Live(), ListCompleted():
            return _listed(phase, event)
        case Replaying() | Live(), _:
            return _following(phase, event)
    return phase, ()


def _listed(
    phase: AwaitingDifference | Replaying | Live, event: ListCompleted
) -> tuple[Phase, tuple[Effect, ...]]:
    version = event.version
    known = {phase.reached_version, *event.frontier_floors}
    if isinstance(phase, AwaitingDifference):
        known.add(phase.newest_on_log)
    elif isinstance(phase, Replaying):
        known.add(phase.version_to_pass)
    # a list older than what is known: the API server was restored
    restored = any(compare(version, each) == -1 for each in known)
    # first the repair: a stray that it removes is not in the heartbeat's count
    effects = (Effect.LOWER_FRONTIER, Effect.REPAIR) if restored else (Effect.REPAIR,)
    if phase.awaited == COMPLETE:
        return Live(version, COMPLETE), effects
    confirming = (Effect.HEARTBEAT, Effect.BEGIN_WANTED_SNAPSHOT)
    return Live(version, event.awaited), (*effects, *confirming)


def _following(phase: Replaying | Live, event: Event) -> tuple[Phase, tuple[Effect, ...]]:
    awaited = phase.awaited
    match event:
        case VersionReached(version=version):
            if isinstance(phase, Live):
                return Live(version, awaited), ()
            ahead = _still_to_pass(phase.version_to_pass, version)
            return _caught_up(replace(phase, reached_version=version, version_to_pass=ahead)), ()
        case WatchAccepted():
            soon = () if awaited == COMPLETE else (Effect.HEARTBEAT_SOON,)
            if isinstance(phase, Replaying):
                phase = replace(phase, accepted=True)
            return _caught_up(phase), soon
        case EarlyHeartbeatDue() if awaited != COMPLETE:
            return replace(phase, awaited=awaited or event.awaited), (Effect.HEARTBEAT,)
        case SnapshotEndDue() if isinstance(phase, Live):
            return replace(phase, awaited=awaited or event.awaited), ()
        case MarkerAcked(partition=partition, after_record=after_record):
            if awaited is None or after_record < awaited.after_record or awaited == COMPLETE:
                return phase, ()
            if left := awaited.partitions - {partition}:
                return replace(phase, awaited=replace(awaited, partitions=left)), ()
            return replace(phase, awaited=COMPLETE), (Effect.REPORT_COMPLETE,)
    return phase, ()


def _still_to_pass(version: str, reached_version: str) -> str:
    """`version`, or "" when the watch has passed it."""
    return version if version and compare(reached_version, version) == -1 else ""


def _caught_up(phase: Replaying | Live) -> Replaying | Live:
    if isinstance(phase, Replaying) and phase.accepted and not phase.version_to_pass:
        return Live(phase.reached_version, phase.awaited)
    return phase
