"""A group coordinator in the time of the loop: sessions, generations, static members, and loss of
all it knows. Joins, syncs, heartbeats and leaves come as values, without a socket.

Source: the classic group protocol as Kafka 4.1 and 3.9 run it (`GroupMetadataManager`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from aiokafka.errors import KafkaConnectionError, for_code

from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.coordinator import Coordinator, Joined

Request = Literal["find", "join", "sync", "heartbeat", "leave"]

OK, ILLEGAL_GENERATION, INCONSISTENT, UNKNOWN, INVALID_SESSION, REBALANCE = 0, 22, 23, 25, 26, 27
ID_REQUIRED, FENCED_INSTANCE = 79, 82


@dataclass(eq=False)
class Member:
    """One that the coordinator knows. `joining` and `syncing` wait for their answers."""

    id: str
    instance: str
    session_s: float
    metadata: bytes = b""
    assignment: bytes = b""
    joining: asyncio.Future[Joined] | None = None
    syncing: asyncio.Future[tuple[int, bytes]] | None = None
    expiry: asyncio.TimerHandle | None = None


class FakeGroup:
    """One group. `asked` are the requests that reached it, with the member id of each; `script`
    holds, by request, codes that are answered instead of doing it."""

    def __init__(self, *, least_session_s: float = 6.0) -> None:
        self.least_session_s = least_session_s
        self.asked: list[tuple[Request, str]] = []
        self.script: defaultdict[Request, deque[int]] = defaultdict(deque)
        self.protocol_type = ""
        self._ids = 0
        self.forget()

    def forget(self) -> None:
        """Lose the group, as when its records are deleted."""
        for member in [*getattr(self, "members", {}).values()]:
            self._drop(member, UNKNOWN)
        self.members: dict[str, Member] = {}
        self.promised: set[str] = set()
        """Ids of new members that have not joined with them yet."""
        self.state: Literal["empty", "joining", "syncing", "stable"] = "empty"
        self.generation = 0
        self.leader = ""
        self._deadline: asyncio.TimerHandle | None = None

    def scripted(self, request: Request, member_id: str) -> int:
        """The code that a test wants for this request, 0 for none."""
        self.asked.append((request, member_id))
        codes = self.script[request]
        return codes.popleft() if codes else OK

    # ---- requests --------------------------------------------------------------------------------

    async def join(
        self,
        member_id: str,
        metadata: bytes,
        *,
        instance: str,
        protocol_type: str,
        session_ms: int,
        rebalance_ms: int,
    ) -> Joined:
        if self.members and protocol_type != self.protocol_type:
            return Joined(INCONSISTENT, member_id)
        if session_ms < self.least_session_s * 1000:
            return Joined(INVALID_SESSION, member_id)
        self.protocol_type = protocol_type
        static = next(
            (m for m in self.members.values() if instance and m.instance == instance), None
        )
        if static is not None and member_id != static.id:
            if member_id:
                return Joined(FENCED_INSTANCE, member_id)
            return await self._replace(static, metadata, rebalance_ms / 1000)
        if not member_id:
            self._ids += 1
            member_id = f"{instance or 'member'}-{self._ids}"
            if not instance:
                self.promised.add(member_id)
                return Joined(ID_REQUIRED, member_id)
        elif member_id not in self.members and member_id not in self.promised:
            return Joined(UNKNOWN, member_id)
        self.promised.discard(member_id)
        member = self.members.setdefault(
            member_id, Member(member_id, instance, session_ms / 1000, metadata)
        )
        changed, member.metadata = member.metadata != metadata, metadata
        if self.state == "stable" and member.expiry and not changed and member_id != self.leader:
            self._keep(member)
            return self._joined(member)
        return await self._wait_for_all(member, rebalance_ms / 1000)

    async def _replace(self, static: Member, metadata: bytes, rebalance_s: float) -> Joined:
        """A static member is back as a new process: it gets another id. A group that is stable
        goes on with the assignments that it has."""
        self._ids += 1
        former, static.id = static.id, f"{static.instance}-{self._ids}"
        self.members = {member.id: member for member in self.members.values()}
        if static.joining is not None and not static.joining.done():
            static.joining.set_result(Joined(FENCED_INSTANCE, former))
        if static.syncing is not None and not static.syncing.done():
            static.syncing.set_result((FENCED_INSTANCE, b""))
        static.joining = static.syncing = None
        static.metadata = metadata
        led = self.leader == former
        if led:
            self.leader = static.id
        if self.state != "stable":
            return await self._wait_for_all(static, rebalance_s)
        self._keep(static)
        joined = self._joined(static)
        return joined._replace(leader_id=former, members={}) if led else joined

    async def sync(
        self, member_id: str, generation: int, assignments: Mapping[str, bytes], *, instance: str
    ) -> tuple[int, bytes]:
        if code := self._unknown(member_id, generation):
            return code, b""
        member = self.members[member_id]
        assert member.instance == instance or not instance
        self._keep(member)
        if self.state == "joining":
            return REBALANCE, b""
        if self.state == "stable":
            return OK, member.assignment
        member.syncing = asyncio.get_running_loop().create_future()
        syncing = member.syncing
        if member_id == self.leader:
            self.state = "stable"
            for each in self.members.values():
                each.assignment = assignments.get(each.id, b"")
                if each.syncing is not None and not each.syncing.done():
                    each.syncing.set_result((OK, each.assignment))
                    self._keep(each)
        return await syncing

    async def heartbeat(self, member_id: str, generation: int) -> int:
        if code := self._unknown(member_id, generation):
            return code
        self._keep(self.members[member_id])
        return REBALANCE if self.state == "joining" else OK

    async def leave(self, member_id: str) -> int:
        if member_id not in self.members:
            self.promised.discard(member_id)
            return UNKNOWN
        self._remove(self.members[member_id])
        return OK

    # ---- what becomes of the group ---------------------------------------------------------------

    def _unknown(self, member_id: str, generation: int) -> int:
        if member_id not in self.members:
            return UNKNOWN
        return ILLEGAL_GENERATION if generation != self.generation else OK

    def _joined(self, member: Member) -> Joined:
        members = {each.id: each.metadata for each in self.members.values()}
        return Joined(
            OK,
            member.id,
            self.generation,
            self.leader,
            members if member.id == self.leader else {},
        )

    async def _wait_for_all(self, member: Member, rebalance_s: float) -> Joined:
        member.joining = asyncio.get_running_loop().create_future()
        if member.expiry is not None:
            member.expiry.cancel()
        joining = member.joining
        self._rebalance(rebalance_s)
        return await joining

    def _rebalance(self, within_s: float = 5.0) -> None:
        """Wait for every member to join again, so long."""
        if self.state != "joining":
            self.state = "joining"
            for member in self.members.values():
                if member.syncing is not None and not member.syncing.done():
                    member.syncing.set_result((REBALANCE, b""))
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(within_s, self._complete)
        if all(member.joining is not None for member in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        """Begin a generation of those that have joined."""
        if self._deadline is not None:
            self._deadline.cancel()
        for member in [each for each in self.members.values() if each.joining is None]:
            del self.members[member.id]
            self._drop(member, UNKNOWN)
        if not self.members:
            self.state = "empty"
            return
        self.generation += 1
        self.state = "syncing"
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        for member in self.members.values():
            joining, member.joining = member.joining, None
            self._keep(member)
            if joining is not None and not joining.done():
                joining.set_result(self._joined(member))

    def _keep(self, member: Member) -> None:
        """A session of the member begins."""
        if member.expiry is not None:
            member.expiry.cancel()
        loop = asyncio.get_running_loop()
        member.expiry = loop.call_later(member.session_s, self.expire, member)

    def expire(self, member: Member) -> None:
        """A session has ended without a heartbeat."""
        self._remove(member)

    def _remove(self, member: Member) -> None:
        del self.members[member.id]
        self._drop(member, UNKNOWN)
        if self.members:
            self._rebalance()
        else:
            self.state = "empty"

    @staticmethod
    def _drop(member: Member, code: int) -> None:
        if member.expiry is not None:
            member.expiry.cancel()
        if member.joining is not None and not member.joining.done():
            member.joining.set_result(Joined(code, member.id))
        if member.syncing is not None and not member.syncing.done():
            member.syncing.set_result((code, b""))


async def _at_once() -> None:
    """The way to a coordinator that is near."""


class FakeCoordinator(Coordinator):
    """A connection to a `FakeGroup`. `way` is awaited before each request and before its answer;
    it may raise KafkaConnectionError."""

    def __init__(self, group: FakeGroup, way: Callable[[], Awaitable[None]] = _at_once) -> None:
        self.group, self._way, self._is_closed = group, way, False

    async def _arrive(self, request: Request, member_id: str) -> int:
        if self._is_closed:
            raise KafkaConnectionError("this connection was closed")
        await self._way()
        return self.group.scripted(request, member_id)

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
        code = await self._arrive("join", member_id)
        joined = (
            Joined(code, member_id)
            if code
            else await self.group.join(
                member_id,
                metadata,
                instance=instance,
                protocol_type=protocol_type,
                session_ms=session_ms,
                rebalance_ms=rebalance_ms,
            )
        )
        await self._way()
        return joined

    async def sync(
        self, member_id: str, generation: int, assignments: Mapping[str, bytes], *, instance: str
    ) -> tuple[int, bytes]:
        code = await self._arrive("sync", member_id)
        answer = (
            (code, b"")
            if code
            else await self.group.sync(member_id, generation, assignments, instance=instance)
        )
        await self._way()
        return answer

    async def heartbeat(self, member_id: str, generation: int) -> int:
        code = await self._arrive("heartbeat", member_id)
        code = code or await self.group.heartbeat(member_id, generation)
        await self._way()
        return code

    async def leave(self, member_id: str) -> int:
        code = await self._arrive("leave", member_id)
        code = code or await self.group.leave(member_id)
        await self._way()
        return code

    def close(self) -> None:
        self._is_closed = True


class FakeGroupBrokers(Brokers):
    """Brokers that are asked for a coordinator alone."""

    def __init__(
        self,
        connection: KafkaConnection,
        group: FakeGroup,
        way: Callable[[], Awaitable[None]] = _at_once,
    ) -> None:
        super().__init__(connection)
        self._group, self._way = group, way

    async def coordinator(self, group: str) -> Coordinator:
        await self._way()
        if code := self._group.scripted("find", group):
            raise for_code(code)
        return FakeCoordinator(self._group, self._way)
