"""A member of a group, what it was assigned, and what it reports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.errors import KafkaConnectionError

from tests.support.groupfake import FakeGroup, FakeGroupBrokers, Request
from tests.support.sinkparts import until
from tests.support.troubles import problem_of
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry
from watchrelay.replicas.group import PROBLEM, GroupMember

GROUP = "k8s.test.relays"
SESSION_S = 6.0
AWAY = (14, 15, 16)
REFUSED = {23: "program", 24: "name", 26: "sharding.sessionTimeout", 30: "READ", 81: "max.size"}


class Replica:
    """A member, what it was assigned, and what it reports. The leader gives everything to the
    first member by name."""

    def __init__(
        self, group: FakeGroup, name: str = "a", *, instance: str = "", session_s: float = SESSION_S
    ) -> None:
        self.group, self.name = group, name
        self.connection = KafkaConnection(bootstrap_servers=("nowhere:1",))
        self.metrics, self.statuses = Metrics(), StatusRegistry()
        self.assignments: list[tuple[int, bytes]] = []
        self.losses = self.reports = self.decisions = 0
        self.doubts_at_join: list[bool] = []
        self.made: list[Brokers] = []
        self.is_cut = self.is_mute = False
        self.sleeps_s = self.slept_s = 0.0
        """For how long it is suspended each time that it decides, and was in all."""
        self.cut_error: Exception = KafkaConnectionError("connection closed")
        self.make_error: Exception | None = None
        loop = asyncio.get_running_loop()
        self.member = GroupMember(
            self.connection,
            GROUP,
            self,
            session_s=session_s,
            instance=instance,
            metrics=self.metrics,
            statuses=self.statuses,
            make=self.make,
            boot_s=lambda: loop.time() + self.slept_s,
        )

    def make(self, connection: KafkaConnection) -> Brokers:
        if self.make_error is not None:
            raise self.make_error
        self.made.append(FakeGroupBrokers(connection, self.group, self.way))
        return self.made[-1]

    async def way(self) -> None:
        if self.is_mute:
            await asyncio.Event().wait()
        if self.is_cut:
            raise self.cut_error

    def metadata(self) -> bytes:
        self.reports += 1
        self.doubts_at_join.append(self.member.doubtful)
        return json.dumps([self.name, self.reports]).encode()

    def assign(self, members: Mapping[str, bytes]) -> Mapping[str, bytes]:
        self.decisions += 1
        self.slept_s += self.sleeps_s
        first = min(members, key=lambda member: str(json.loads(members[member])[0]))
        return {member: b"all" if member == first else b"none" for member in members}

    def assigned(self, generation: int, assignment: bytes) -> None:
        self.assignments.append((generation, assignment))

    def lost(self) -> None:
        self.losses += 1

    @property
    def problem(self) -> str:
        return problem_of(self.statuses, PROBLEM)

    def count(self, metric: str) -> float:
        lines = self.metrics.text().decode().splitlines()
        return float(next(x for x in lines if x.startswith(f"watchrelay_{metric}")).split()[-1])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Replica]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.member.run(), name=self.name)
            try:
                yield self
            finally:
                task.cancel()


@asynccontextmanager
async def joined(group: FakeGroup, name: str = "a", **more: Any) -> AsyncIterator[Replica]:
    """A replica that has its assignment."""
    replica = Replica(group, name, **more)
    async with replica.running():
        await until(lambda: bool(replica.assignments) and group.state == "stable")
        yield replica


async def passes(seconds: float) -> None:
    await asyncio.sleep(seconds)


def requests(group: FakeGroup, kind: Request) -> list[str]:
    """The member ids of all requests of a kind."""
    return [member for request, member in group.asked if request == kind]


async def next_request(group: FakeGroup, *kinds: Request) -> tuple[Request, str]:
    """The next request of these kinds."""
    known = len(group.asked)
    found: list[tuple[Request, str]] = []

    def arrived() -> bool:
        found[:] = [each for each in group.asked[known:] if each[0] in kinds]
        return bool(found)

    await until(arrived, deadline_s=120.0)
    return found[0]
