"""What a replica decides while it leads the group: who is to write which stream; and what each
replica shows of that."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, Literal

from msgspec.structs import replace

from watchrelay.core.clock import Clocks
from watchrelay.core.text import short
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.observe.group import GroupStatus, MemberStatus
from watchrelay.replicas.assignor import (
    GroupSummary,
    MemberAssignment,
    MemberMetadata,
    assign_streams,
    by_clock_of_leader,
    decode_metadata,
    encode,
    summarize,
)
from watchrelay.replicas.group import GroupMember
from watchrelay.replicas.ownership import objects_of

log = logging.getLogger(__name__)

_BALANCE_CHECK_S: Final = 1.0
_DECIDE_AGAIN_S: Final = 10.0
"""How often the leader looks whether it would decide otherwise now, by loads or by time."""
_BALANCE_AGAIN_MAX: Final = 32
"""Where balancing moves nothing, since all that could move is on its way or waits for an operator,
it is tried again after twice the time, at most this many times `balance_after_s`."""

Owners = Mapping[str, frozenset[str]]
RebalanceReason = Literal["joined", "left", "died", "asked"]


class Leader:
    """Use: `run()` as a task, also while another replica leads.

    Args:
        balance_after_s: how long the group must be quiet before streams move to even out loads.
        standbys: how many replicas beside the owner are to follow each stream.
    """

    def __init__(
        self, control: ControlTopic, clocks: Clocks, *, balance_after_s: float, standbys: int
    ) -> None:
        self._control, self._clocks = control, clocks
        self._balance_after_s, self._standbys = balance_after_s, standbys
        self._members: frozenset[tuple[str, bool, bool]] = frozenset()
        """Each member that was assigned streams last, whether it is leaving, and is fit."""
        self._unreadable = frozenset[str]()
        self._even, self._disturbed_s = True, clocks.now_s()
        """Whether no stream is to move; since when the group is quiet."""
        self._patience = 1
        """How many times `balance_after_s` the group must be quiet."""
        self._known: Mapping[str, MemberMetadata] = {}
        """What the members reported for the newest `assign`."""
        self._weights: Mapping[str, float] = {}
        """The loads by which was decided last."""
        self._owners: Owners = {}
        """What was decided last from both, without balancing."""

    def assign(self, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """The assignment of each member whose metadata can be read, by member id."""
        known = {
            member: metadata
            for member, data in members.items()
            if (metadata := decode_metadata(data)) is not None
        }
        self._show_unreadable(members.keys() - known.keys())
        now_s, now_ms = self._clocks.now_s(), self._clocks.wall_ms()
        present = frozenset((each, m.leaving, m.fit) for each, m in known.items())
        if present != self._members:
            self._members, self._disturbed_s = present, now_s
            self._patience = 1
        may_balance = not self._even and self._is_quiet()
        self._known = {each: by_clock_of_leader(m, now_ms=now_ms) for each, m in known.items()}
        self._weights = self._loads()
        assignments, self._even = self._decide()
        self._owners = _owners(assignments)
        if may_balance:
            assignments, self._even = self._decide(balance=True)
            self._disturbed_s = now_s
            moved = _owners(assignments) != self._owners
            self._patience = 1 if moved else min(2 * self._patience, _BALANCE_AGAIN_MAX)
        group = summarize(known, assignments, leader=self._control.holder, even=self._even)
        return {member: encode(replace(each, group=group)) for member, each in assignments.items()}

    def _loads(self) -> dict[str, float]:
        return {
            stream: 1.0 + objects_of(stream, self._control) / 1000
            for metadata in self._known.values()
            for stream in metadata.plans
        }

    def _decide(self, *, balance: bool = False) -> tuple[dict[str, MemberAssignment], bool]:
        return assign_streams(
            self._known,
            weights=self._weights,
            standbys=self._standbys,
            now_ms=self._clocks.wall_ms(),
            balance=balance,
        )

    def _is_quiet(self) -> bool:
        quiet_s = self._clocks.now_s() - self._disturbed_s
        return quiet_s >= self._patience * self._balance_after_s

    def _show_unreadable(self, members: Collection[str]) -> None:
        if members and members != self._unreadable:
            log.warning(
                "members of the group cannot be read and are assigned nothing: end what is no "
                "replica of this relay",
                extra={"members": short(", ".join(sorted(members)))},
            )
        self._unreadable = frozenset(members)

    async def run(self, group: GroupMember) -> None:
        """Let streams move once the group was uneven and quiet for long enough. Loads change with
        each snapshot, and time ends the patience with older configs: what would be decided
        otherwise for either is decided in a new generation."""
        decided_s = self._clocks.now_s()
        while True:
            await asyncio.sleep(_BALANCE_CHECK_S)
            if not group.leads:
                continue
            if self._known and self._clocks.now_s() - decided_s >= _DECIDE_AGAIN_S:
                decided_s = self._clocks.now_s()
                changed = (weights := self._loads()) != self._weights
                self._weights = weights
                assignments, even = self._decide()
                if changed:  # else `_even` is as balancing left it, after `_known` was reported
                    self._even = even
                if (owners := _owners(assignments)) != self._owners:
                    self._owners = owners
                    group.rejoin()
            if not self._even and self._is_quiet():
                group.rejoin()


def _owners(assignments: Mapping[str, MemberAssignment]) -> Owners:
    return {member: frozenset(each.own) for member, each in assignments.items()}


def group_status(
    holder: str, revision: int, generation: int, assignment: MemberAssignment
) -> GroupStatus:
    """What the replica `holder` shows of its group."""
    group, owners = assignment.group, assignment.owners
    members = []
    for each in group.members:
        streams = owners.get(each.holder, ())  # none where the table was too large to be sent
        members.append(
            MemberStatus(
                holder=each.holder,
                revision=each.config_order[0],
                adopted_ms=each.config_order[1],
                config_hash=each.config_hash,
                fit=each.fit,
                leaving=each.leaving,
                assigned=each.assigned,
                streams=streams if len(streams) >= each.assigned else None,
            )
        )
    return GroupStatus(holder, revision, generation, group.leader, group.even, tuple(members))


def rebalance_reason(former: GroupSummary, group: GroupSummary) -> RebalanceReason:
    """Why the leader assigned the streams again. A member that is gone has left if it reported that
    it was leaving."""
    before = Counter(each.holder for each in former.members)
    now = Counter(each.holder for each in group.members)
    if now - before:
        return "joined"
    if gone := before - now:
        leaving = {each.holder for each in former.members if each.leaving}
        return "left" if gone.keys() <= leaving else "died"
    return "asked"
