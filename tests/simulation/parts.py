"""A split stream on replicas, by seed in virtual time: its config is edited, so that it is split
into other parts, while replicas leave, are suspended and die. Each replica sees an edit at a time
of its own.

`python -m tests.simulation --replicas` plays them.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace

from tests.simulation.planted_replicas import AwaitsNoRelease, Plant
from tests.simulation.process import STREAM, Shape, now_s
from tests.simulation.replica import Replica
from tests.simulation.replica_runner import Runner
from tests.simulation.replicas import OWNED_WITHIN_S, Faults, ReplicaWorld, Rules
from tests.support.stream_log import PODS
from tests.unit.daemon.conftest import settings_of
from watchrelay.daemon.recovery import LogFold, LogReader
from watchrelay.model.parts import Part, part_id
from watchrelay.plan.streams import PlannedStream
from watchrelay.publish.recovery import RecoveredState
from watchrelay.publish.writer import StreamWriter
from watchrelay.store.objects import Store
from watchrelay.store.transform import Transform

PARTITIONS = 4
RESIZES = Faults(("resize",), every_s=(3.0, 12.0), count=4, may_be_stale=True)
ONE_BY_ONE = Faults(("resize",), every_s=(3.0, 12.0), count=5)
"""Each edit once the one before is in force everywhere: nothing stale is written."""
ALL = Faults(
    ("resize", "resize", "stop", "suspend", "kill"),
    every_s=(3.0, 15.0),
    count=5,
    may_be_stale=True,
)
"""What happens, the edits among it."""
YOUNG = Faults(("resize", "resize", "kill"), every_s=(2.0, 5.0), count=10, may_be_stale=True)
"""Partitions of one writer are often of different age."""
_EDITED_WITHIN_S = 4.0


class PartReplica(Replica):
    """One process, which runs the parts of its config, and those of a former one until they are
    claimed."""

    def __init__(self, world: PartWorld, number: int) -> None:
        super().__init__(world, number)
        self.statuses.close(STREAM)
        self.count, self.edits = world.count, world.edits
        self.runners: dict[str, Runner] = {}
        self._parts: asyncio.TaskGroup | None = None
        self._alive: dict[Runner, asyncio.Task[None]] = {}

    @property
    def owned(self) -> set[str]:
        """The parts that it writes and whose state is all published."""
        if self.over or self.suspended:
            return set()
        return {
            name
            for name, status in self.statuses.streams.items()
            if status.complete and name in self.runners
        }

    def edit(self, count: int, edits: int) -> None:
        """Its config is another."""
        self.count, self.edits = count, edits
        wanted = [part_id(STREAM, Part(place, count)) for place in range(count)]
        for name in self.runners.keys() - set(wanted):
            self.runners.pop(name).end_with_tenure(deadline_s=now_s())
        for name in wanted:
            if name not in self.runners:
                self._start_part(name)
        plans = dict.fromkeys(wanted, f"plan {count}")
        self.sharing.offer_plans(plans, revision=edits, config_hash=f"edit {edits}")

    def _start_part(self, name: str) -> None:
        """As the supervisor does."""
        planned = PlannedStream(
            replace(self.spec, id=name),
            Transform.compile(PODS),
            False,
            settings_of(["pods"]).resources[0],
        )
        before = [each for each in self._alive if each.spec.id == name]
        for each in before:
            each.stop(deadline_s=now_s() + 10.0)
        runner = self.runners[name] = self.world.rules.runner(planned, self.runner._context)
        runner.belong_to(self)
        tasks = [self._alive[each] for each in before]
        assert self._parts is not None
        self._alive[runner] = self._parts.create_task(self._run_part(runner, tasks), name=name)

    async def _run_part(self, runner: Runner, before: list[asyncio.Task[None]]) -> None:
        if before:
            await asyncio.wait(before)
            self.statuses.open(runner.spec.id).renew()
        try:
            await runner.run()
        finally:
            del self._alive[runner]
            if runner.spec.id not in self.runners:
                self.statuses.close(runner.spec.id)

    def _start_streams(self, tasks: asyncio.TaskGroup) -> None:
        self._parts = tasks
        self.edit(self.count, self.edits)

    async def _stop_streams(self) -> None:
        for runner in list(self._alive):
            runner.stop(deadline_s=float("inf"))
        if self._alive:
            await asyncio.wait(self._alive.values())


class ForgetsFrontiers(Runner):
    """F31: a replay for an older partition is applied to the younger ones too."""

    async def _resumed(
        self, relay: StreamWriter, store: Store, reader: LogReader, followed: LogFold | None
    ) -> RecoveredState:
        found = await super()._resumed(relay, store, reader, followed)
        store._frontiers = {}
        return found


@dataclass(slots=True)
class _Edit:
    count: int
    number: int


class PartWorld(ReplicaWorld):
    """A run with three replicas and one split stream."""

    replica_class = PartReplica
    owned_again_within_s = OWNED_WITHIN_S + _EDITED_WITHIN_S

    def __init__(self, seed: int, faults: Faults, rules: Rules) -> None:
        self.count, self.edits = random.Random(seed).choice([1, 2, 4]), 1
        super().__init__(
            seed,
            faults,
            rules,
            shape=Shape(
                partitions=PARTITIONS,
                snapshot_interval_s=random.Random(seed).choice([0.0, 1.0, 1.0, 5.0]),
            ),
        )
        self.plan.names, self.plan.churn_s = "abcdefghijkl", 0.03
        if faults is YOUNG:
            self.shape.snapshot_interval_s = 1.0

    def noted_claim(self, replica: Replica, generation: int) -> None:
        """Several streams are claimed in one generation."""
        self.note("claimed", replica.number, generation)

    def part_replicas(self) -> list[PartReplica]:
        return [each for each in self.live_replicas() if isinstance(each, PartReplica)]

    def complete(self) -> bool:
        """Each part of the newest layout is owned by one replica, and no other part."""
        owned = sorted(name for each in self.part_replicas() for name in each.owned)
        return owned == sorted(part_id(STREAM, Part(at, self.count)) for at in range(self.count))

    def _owner(self) -> Replica:
        return self.rng.choice(self.live_replicas())

    async def _fault(self, tasks: asyncio.TaskGroup, kind: str) -> None:
        if kind != "resize":
            await super()._fault(tasks, kind)
            return
        self.count = self.rng.choice([each for each in (1, 2, 3, 4) if each != self.count])
        self.edits += 1
        self.note("resize", self.count)
        for replica in self.rng.sample(self.part_replicas(), len(self.live_replicas())):
            tasks.create_task(self._edit(replica, _Edit(self.count, self.edits)))
        if self.faults is ONE_BY_ONE or self.rng.random() < 0.5:
            await asyncio.sleep(_EDITED_WITHIN_S)
            await self._owned(self.owned_again_within_s)

    async def _edit(self, replica: PartReplica, edit: _Edit) -> None:
        await asyncio.sleep(self.rng.random() * _EDITED_WITHIN_S)
        await self._until(lambda: not replica.suspended)
        if not replica.stops and replica.edits < edit.number:
            replica.edit(edit.count, edit.number)

    async def _owned(self, within_s: float) -> None:
        began_s = now_s()
        while not self.complete():
            began_s = now_s() if self._is_one_suspended() else began_s
            if now_s() - began_s > within_s:
                found = {each.name: sorted(each.owned) for each in self.part_replicas()}
                self.broken.append(f"{self.count} parts, owned after {within_s} s: {found}")
                break
            await asyncio.sleep(0.1)

    def _owners_caught_up(self) -> bool:
        rows = [
            replica.statuses.streams[name]
            for replica in self.part_replicas()
            for name in replica.owned
        ]
        return self.complete() and all(
            int(row.frontier or 0) >= self.server.version for row in rows
        )


PLANTS = {
    "no release": Plant(ONE_BY_ONE, Rules(sharing=AwaitsNoRelease), "stale records"),
    "frontiers forgotten": Plant(YOUNG, Rules(runner=ForgetsFrontiers), "goes back in time"),
}
