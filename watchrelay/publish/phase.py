"""What a writer may publish between its claim and the moment at which the log holds the complete
state."""

from __future__ import annotations

from dataclasses import dataclass, field

from watchrelay.model.resources import compare
from watchrelay.publish.recovery import FirstSnapshot, ListAndDiff, RecoveredState, WatchFrom


@dataclass(slots=True)
class WriterPhase:
    """The phase of one writer. It starts with an empty log: the first list begins the first
    snapshot.

    `first`: the first list begins a snapshot; its difference from an `unverified` log is part of
    it. `relisting`: nothing may be published before a list. `quiet`: no marker may be queued yet.
    `catching_up`: the highest resourceVersion on the log, until the frontier has passed it.
    `pending_repairs`: stale keys with their partition, to be repaired after the list.
    """

    reached: str = "0"
    first: bool = True
    unverified: bool = False
    published: bool = False
    quiet: bool = False
    relisting: bool = False
    catching_up: str = ""
    snapshot_wanted: bool = False
    pending_repairs: dict[bytes, int] = field(default_factory=dict)
    unconfirmed: set[int] = field(default_factory=set)
    """Partitions without an acknowledged heartbeat that follows the complete state."""
    complete_at: int = 0
    """Number of the record with which the complete state was queued."""

    @property
    def frontier(self) -> str:
        """The frontier of a marker queued now: "0" until the complete state is published or
        queued."""
        return self.reached if self.published else "0"

    @property
    def may_snapshot(self) -> bool:
        """Whether a snapshot may begin: before the frontier has passed what is on the log, it would
        hide deletes that a replay needs. Source: docs/record-contract-reasons.md, F5."""
        return not (self.first or self.relisting or self.catching_up)

    @property
    def may_repair(self) -> bool:
        """Whether the state of the store may be published: before the list it could be the result
        of another config."""
        return not (self.first or self.relisting)

    def resumed(self, recovered: RecoveredState) -> None:
        """Take the recovered log."""
        decision = recovered.decision
        self.pending_repairs = dict(recovered.pending_repairs)
        match decision:
            case FirstSnapshot(unverified=unverified):
                self.quiet = self.unverified = unverified
            case ListAndDiff(configured=configured):
                self._continued(recovered)
                self.relisting = True
                self.snapshot_wanted = configured or any(
                    queue.last_snapshot is None for queue in recovered.partitions
                )
            case WatchFrom(frontier=frontier):
                self._continued(recovered)
                self.progressed(frontier)
            case _:
                raise AssertionError("recovery is not finished")

    def _continued(self, recovered: RecoveredState) -> None:
        self.first, self.published, self.quiet = False, True, True
        self.catching_up = recovered.newest

    def progressed(self, version: str) -> None:
        """Note that every change up to `version` was pushed or suppressed."""
        self.reached = version
        if self.catching_up and compare(version, self.catching_up) != -1:
            self.catching_up = ""

    def synced(self, version: str) -> bool:
        """Note a complete list whose difference is pushed.

        Returns: Whether it is older than the frontier or the log: the API server was restored.
        """
        back = self.published and -1 in {
            compare(version, self.reached),
            compare(version, self.catching_up),
        }
        self.reached = version
        self.quiet = self.relisting = False
        self.catching_up = ""
        return back

    def followed(self) -> bool:
        """Note that the API server accepted a watch that continues from the held state.

        Returns: Whether the complete state is queued or published, if that watch lasts.
        """
        if self.relisting or self.first:
            return False
        self.quiet = False
        return self.published

    def state_queued(self, number: int, partitions: int) -> None:
        """Note that the complete state is published, or queued up to record `number`."""
        self.unconfirmed, self.complete_at = set(range(partitions)), number

    def confirmed(self, partition: int, behind: int) -> bool:
        """Note an acknowledged heartbeat of `partition` that follows record `behind`.

        Returns: Whether it was the last one awaited.
        """
        if partition not in self.unconfirmed or behind < self.complete_at:
            return False
        self.unconfirmed.discard(partition)
        return not self.unconfirmed
