"""The group as the assignments of its leader show it to operators."""

from __future__ import annotations

from collections import Counter
from typing import Literal

from watchrelay.observe.group import GroupStatus, MemberStatus
from watchrelay.replicas.assignor import GroupSummary, MemberAssignment

RebalanceReason = Literal["joined", "left", "died", "asked"]


def group_status(
    holder: str, revision: int, generation: int, assignment: MemberAssignment
) -> GroupStatus:
    """What the replica `holder` shows of its group."""
    group, owners = assignment.group, assignment.owners
    members = []
    for each in group.members:
        streams = owners.get(each.holder, ())
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
