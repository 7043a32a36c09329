"""Where a writer stands between its claim and the moment from which the log shows the whole state,
and what it may say on the way.

Room: relay (pure). In: what the log said, lists and progress of the watch, acknowledged heartbeats.
Out: the frontier, and permissions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from watchrelay.model.resources import compare
from watchrelay.publish.recovery import FirstSnapshot, Found, ListAndDiff, WatchFrom


@dataclass(slots=True)
class Course:
    """One writer's way. It starts where nothing is on the log: the first list begins the first
    snapshot.

    Shape: `first`: the first list begins a snapshot; where a log is `doubted`, the list's
    difference from it stands within. `relisting`: a list must come before anything is said.
    `quiet`: no marker may be put yet. `catching_up` is the highest resourceVersion on the log,
    until the frontier has passed it. `owed` are stale keys, with their partition, that cannot be
    healed before the list.
    """

    reached: str = "0"
    first: bool = True
    doubted: bool = False
    published: bool = False
    quiet: bool = False
    relisting: bool = False
    catching_up: str = ""
    snapshot_wanted: bool = False
    owed: dict[bytes, int] = field(default_factory=dict)
    unshown: set[int] = field(default_factory=set)
    """Partitions of which no heartbeat that stands behind the whole state is acknowledged yet."""
    whole_at: int = 0
    """Number of the record up to which the whole state was queued."""

    @property
    def frontier(self) -> str:
        """What a marker queued now may claim: nothing until the whole state is on the log, or
        queued before it."""
        return self.reached if self.published else "0"

    @property
    def may_snapshot(self) -> bool:
        """One begun before the frontier has passed what is on the log would hide deletes that a
        replay needs. Source: docs/record-contract-reasons.md, F5."""
        return not (self.first or self.relisting or self.catching_up)

    @property
    def may_heal(self) -> bool:
        """What the store holds may be said: before the list it could be the content of another
        config."""
        return not (self.first or self.relisting)

    def resumed(self, found: Found) -> None:
        """The log was read back."""
        decision = found.decision
        self.owed = dict(found.owed)
        match decision:
            case FirstSnapshot(doubted=doubted):
                self.quiet = self.doubted = doubted
            case ListAndDiff(configured=configured):
                self._continued(found)
                self.relisting = True
                self.snapshot_wanted = configured or any(
                    lane.last_snapshot is None for lane in found.lanes
                )
            case WatchFrom(frontier=frontier):
                self._continued(found)
                self.progressed(frontier)
            case _:
                raise AssertionError("a read-back that is not finished")

    def _continued(self, found: Found) -> None:
        self.first, self.published, self.quiet = False, True, True
        self.catching_up = found.newest

    def progressed(self, version: str) -> None:
        """Every change up to `version` was pushed before, or suppressed."""
        self.reached = version
        if self.catching_up and compare(version, self.catching_up) != -1:
            self.catching_up = ""

    def synced(self, version: str) -> bool:
        """A list is complete and its difference pushed; True: it is older than the frontier or the
        log, so the server itself went back."""
        back = self.published and -1 in {
            compare(version, self.reached),
            compare(version, self.catching_up),
        }
        self.reached = version
        self.quiet = self.relisting = False
        self.catching_up = ""
        return back

    def followed(self) -> bool:
        """The server accepted a watch that goes on from what is held; True: if it lasts, the whole
        state is queued or on the log."""
        if self.relisting or self.first:
            return False
        self.quiet = False
        return self.published

    def queued(self, number: int, partitions: int) -> None:
        """The whole state is queued, up to record `number`, or on the log."""
        self.unshown, self.whole_at = set(range(partitions)), number

    def shown(self, partition: int, behind: int) -> bool:
        """A heartbeat of `partition` that stands behind record `behind` is acknowledged; True: it
        was the last one awaited."""
        if partition not in self.unshown or behind < self.whole_at:
            return False
        self.unshown.discard(partition)
        return not self.unshown
