"""A connection to the coordinator of a group: join, sync, heartbeat, leave, describe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

from watchrelay.kafka.client.link import no_surprises

_GROUP: Final = 0
"""In a request for a coordinator: of a group, not of a transactional id."""


class Asked(Protocol):
    """A connection to one broker."""

    async def answer(self, request: Any) -> Any:
        """Raises: KafkaError, OSError."""
        ...

    def close(self) -> None: ...


class Joined(NamedTuple):
    """The answer to a join. `members`: their metadata by member id, for the leader alone."""

    code: int
    member_id: str
    generation: int = -1
    leader_id: str = ""
    members: Mapping[str, bytes] = {}


class DescribedGroup(NamedTuple):
    """A group as it is now. `protocol_type`: of its members; "" where there were none yet.
    `members`: their number, None where it is not known."""

    code: int
    protocol_type: str
    members: int | None


class Coordinator:
    """One group at the broker that coordinates it. A broker answers one request of a connection at
    a time.

    Every method but `close` raises KafkaError or OSError when no broker answers. A code is an error
    code of the Kafka protocol, 0 for none.
    """

    def __init__(self, asked: Asked, group: str) -> None:
        self._asked, self._group = asked, group

    async def join(
        self,
        member_id: str,
        metadata: bytes,
        *,
        instance: str,
        protocol_type: str,
        protocol: str,
        session_ms: int,
        rebalance_ms: int,
    ) -> Joined:
        """Become a member, or join again. It waits until all members have, `rebalance_ms` at most.

        Args:
            member_id: "" for a new member.
            instance: the name of a static member, "" for a dynamic one.
        """
        answer = await self._asked.answer(
            JoinGroupRequest(
                self._group,
                session_ms,
                rebalance_ms,
                member_id,
                instance or None,
                protocol_type,
                [(protocol, metadata)],
            )
        )
        with no_surprises():
            return Joined(
                answer.error_code,
                answer.member_id or "",
                answer.generation_id,
                answer.leader_id or "",
                {member[0]: member[-1] or b"" for member in answer.members or ()},
            )

    async def sync(
        self, member_id: str, generation: int, assignments: Mapping[str, bytes], *, instance: str
    ) -> tuple[int, bytes]:
        """The code, and this member's assignment. It waits until the leader has given
        `assignments`, by member id."""
        answer = await self._asked.answer(
            SyncGroupRequest(
                self._group, generation, member_id, instance or None, [*assignments.items()]
            )
        )
        with no_surprises():
            return answer.error_code, answer.member_assignment or b""

    async def heartbeat(self, member_id: str, generation: int) -> int:
        """The code."""
        answer = await self._asked.answer(HeartbeatRequest(self._group, generation, member_id))
        with no_surprises():
            return int(answer.error_code)

    async def leave(self, member_id: str) -> int:
        """The code. Also for a static member."""
        answer = await self._asked.answer(LeaveGroupRequest(self._group, member_id))
        with no_surprises():
            return int(answer.error_code)

    async def describe(self) -> DescribedGroup:
        """The group. Needs the right DESCRIBE, which READ includes."""
        answer = await self._asked.answer(DescribeGroupsRequest([self._group]))
        with no_surprises():
            ((code, _, _, protocol_type, _, members, *_),) = answer.groups
            return DescribedGroup(code, protocol_type or "", len(members or ()))

    def close(self) -> None:
        """At once. The member stays in the group."""
        self._asked.close()


def find_coordinator(group: str) -> Any:
    """The request for the address of a group's coordinator."""
    return FindCoordinatorRequest(group, _GROUP)
