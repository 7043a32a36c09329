"""Runs of replicas that share a stream, by seed in virtual time: replicas stop, die and are suspended
while objects change, and what they write is judged.

`python -m tests.simulation --replicas` plays them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from aiokafka import TopicPartition

from tests.simulation.partition_log import Raw, Stored
from tests.simulation.process import (
    CONTROL,
    HEARTBEAT_S,
    STREAM,
    TOPIC,
    Shape,
    now_s,
)
from tests.simulation.replica import SESSION_S, Replica
from tests.simulation.replica_runner import Runner
from tests.simulation.suspending import SuspendingLoop
from tests.simulation.world import World
from tests.support.groupfake import FakeGroup
from watchrelay.config.settings import Delivery
from watchrelay.contract.control_state import ControlState
from watchrelay.kafka.sink import KafkaSink
from watchrelay.model.parts import stream_and_part
from watchrelay.replicas.doubt import Doubt
from watchrelay.replicas.sharing import Sharing

OWNED_WITHIN_S = SESSION_S + 5.0


@dataclass(frozen=True, slots=True)
class Rules:
    """The classes of a run; a test hands in those that break a rule."""

    runner: type[Runner] = Runner
    sharing: type[Sharing] = Sharing
    doubt: type[Doubt] = Doubt
    sink: type[KafkaSink] = KafkaSink
    delivery: Delivery = "idempotent"


@dataclass(frozen=True)
class Faults:
    """What happens to replicas, in seconds between two of it."""

    kinds: tuple[str, ...]
    every_s: tuple[float, float] = (8.0, 25.0)
    count: int = 3
    suspended_s: tuple[float, float] = (3.0, 20.0)
    may_be_stale: bool = False
    """Stale records are no fault where they are repaired."""


MOVES = Faults(("stop",))
SUSPENSIONS = Faults(("suspend",))
PAUSES = Faults(("suspend", "stop and suspend"), suspended_s=(1.1, 6.0))
"""Most are shorter than the session."""
MIXED = Faults(("stop", "suspend", "kill", "both", "forget"), may_be_stale=True)


class ReplicaWorld(World):
    """A run with three replicas."""

    replica_class: type[Replica] = Replica
    owned_again_within_s = OWNED_WITHIN_S
    """After a config edit, or the last fault."""

    def __init__(self, seed: int, faults: Faults, rules: Rules, shape: Shape | None = None) -> None:
        interval_s = random.Random(seed).choice([0.0, 5.0])
        super().__init__(seed, calm=shape or Shape(snapshot_interval_s=interval_s))
        rng = self.rng
        self.faults, self.rules = faults, rules
        self.plan.names, self.plan.churn_s, self.plan.forgets = "abcdefgh", 0.1, 0.0
        self.weather.delay_s = rng.choice([0.002, 0.02, 0.1])
        self.weather.api_delay_s = rng.choice([0.0, 0.02])
        transactional = rules.delivery == "transactional"
        self.weather.deaf_s = rng.choice([0.0, 0.5 if transactional else 0.05])
        if faults is MIXED:
            self.weather.lost = rng.choice([0.0, 0.05])
            self.weather.lost_ack = rng.choice([0.0, 0.05])
            self.weather.late = rng.choice([0.0, 0.05])
            self.weather.api_cut = rng.choice([0.0, 0.05])
        self.balance_after_s = rng.choice([5.0, 60.0])
        self.standbys = rng.choice([0, 1, 1, 2])
        self.group = FakeGroup()
        self.transaction_timeout_s = rng.choice([2.0, 15.0]) if transactional else 15.0
        self._looks = rng.choice([0.0, 0.3]) if transactional else 0.0
        """So often a process is suspended between a look at the claims and what follows it."""
        self.broker.transactions.marker_s = lambda: rng.random() * self.weather.delay_s
        self._contents: dict[tuple[int, int, int], Raw] = {}
        """By partition, epoch and sequence."""
        self._newest = dict.fromkeys(range(self.shape.partitions), 0)
        self.replicas: list[Replica] = []
        self._claims: list[tuple[Replica, int]] = []
        self._claimed_s = float("-inf")
        """When the newest claim landed."""

    def noted_claim(self, replica: Replica, generation: int) -> None:
        """A claim was acknowledged. Nobody claims what it has lost under the same assignment."""
        self.note("claimed", replica.number, generation)
        former = [at for at, claim in enumerate(self._claims) if claim == (replica, generation)]
        if former and any(other is not replica for other, _ in self._claims[former[-1] :]):
            self.broken.append(f"{replica.name} claims again in generation {generation}")
        self._claims.append((replica, generation))

    def noted_loss(self, runner: Runner) -> None:
        """A writer gives the stream up. Nobody does whose claim is the newest."""
        control = ControlState()
        for each in self.broker.log(TopicPartition(CONTROL, 0)).records:
            control.read(each.offset, each.key, each.value)
        held, part = control.of(STREAM), stream_and_part(runner.spec.id)[1]
        owners = held.owners(self.shape.partitions)
        claims = (owners[each] for each in part.partitions(self.shape.partitions))
        newest = max(held.epoch_of(each) or 0 for each in claims if each is not None)
        if newest <= runner._tenure.epoch:
            name = runner.replica.name
            self.broken.append(f"{name} gives {runner.spec.id} up, and its claim is the newest")

    async def looked(self, replica: Replica) -> None:
        """A process has looked at the claims."""
        if self.resting or self.rng.random() >= self._looks:
            return
        self.note("suspended after a look", replica.number)
        replica.suspended = True
        _later(self.rng.uniform(*self.faults.suspended_s), replica.resume)
        await asyncio.sleep(0)

    def _landed(self, place: TopicPartition, records: list[Stored]) -> None:
        stale = self.stale
        super()._landed(place, records)
        if place.topic == CONTROL and any(each.key.startswith(b"claim/") for each in records):
            self._claimed_s = now_s()
        elif "suspend" in self.faults.kinds and (
            self.broker.sent_s <= self._claimed_s + self.weather.deaf_s + 0.002
        ):
            # one that runs again just before: it has not read the claim yet, and what it has sent
            # may land late
            self.stale = stale
        if place.topic == TOPIC and self.rules.delivery == "transactional":
            for each in records:
                self._owner_after_owner(each)

    def _once(self, record: Stored) -> None:
        """A commit of unknown outcome may put the same records into the log twice."""
        if record.decoded is None or self.rules.delivery == "idempotent":
            super()._once(record)
            return
        position = (record.partition, record.decoded.epoch, record.decoded.sequence)
        content = (record.key, record.value, record.headers)
        if self._contents.setdefault(position, content) != content:
            self.broken.append(f"p{record.partition}@{record.offset} is another {position}")

    def _owner_after_owner(self, record: Stored) -> None:
        """What docs/guarantees.md says of transactions."""
        decoded, newest = record.decoded, self._newest[record.partition]
        if decoded is not None and decoded.epoch < newest:
            self.broken.append(
                f"p{record.partition}@{record.offset} is of epoch {decoded.epoch}, behind {newest}"
            )
        elif decoded is not None:
            self._newest[record.partition] = decoded.epoch

    async def play(self) -> None:
        for name in self.plan.names:
            self._write(name)
        async with asyncio.TaskGroup() as tasks:
            around = [tasks.create_task(self._read()), tasks.create_task(self._churn())]
            for _ in range(3):
                self._start(tasks)
            weather = self.weather
            is_bad = weather.lost or weather.lost_ack or weather.late
            # a request that is lost is sent again after some 3 s
            await self._owned(OWNED_WITHIN_S + (15.0 if is_bad else 0.0))
            for _ in range(self.faults.count):
                await asyncio.sleep(self.rng.uniform(*self.faults.every_s))
                await self._fault(tasks, self.rng.choice(self.faults.kinds))
            await self._rest(around[1])
            for task in around:
                task.cancel()

    def _start(self, tasks: asyncio.TaskGroup) -> None:
        replica = self.replica_class(self, len(self.replicas))
        self.replicas.append(replica)
        replica.start(tasks)

    def live_replicas(self) -> list[Replica]:
        return [each for each in self.replicas if not each.over]

    def decisions(self) -> list[str]:
        """How many replicas there were."""
        return [""] * len(self.replicas)

    def _owner(self) -> Replica:
        return next((each for each in self.live_replicas() if each.owns), self.live_replicas()[0])

    async def _fault(self, tasks: asyncio.TaskGroup, kind: str) -> None:
        victim = self._owner() if self.rng.random() < 0.7 else self.rng.choice(self.live_replicas())
        self.note(kind, victim.number)
        match kind:
            case "stop" | "stop and suspend":
                self._start(tasks)
                await asyncio.sleep(self.rng.random() * 3)
                victim.stop()
                if kind != "stop":
                    await asyncio.sleep(self.rng.random() * 0.3)
                    await self._suspend([victim])
                await self._until(lambda: victim.over)
            case "kill":
                victim.kill()
                self._start(tasks)
            case "forget":
                self.group.forget()
                self._claims.clear()  # generations begin again
            case "suspend":
                await self._suspend([victim])
            case _:
                await self._suspend(self.rng.sample(self.live_replicas(), 2))

    async def _suspend(self, victims: list[Replica]) -> None:
        for victim in victims:
            victim.suspended = True
            await asyncio.sleep(self.rng.random())
        for victim in victims:
            await asyncio.sleep(self.rng.uniform(*self.faults.suspended_s))
            victim.resume()

    async def _owned(self, within_s: float) -> None:
        """One replica owns the stream. Broken if that does not come in time."""
        began_s = now_s()
        while sum(each.owns for each in self.live_replicas()) != 1:
            began_s = now_s() if self._is_one_suspended() else began_s
            if now_s() - began_s > within_s:
                self.broken.append(f"not owned by one replica after {within_s} s")
                break
            await asyncio.sleep(0.1)

    def _is_one_suspended(self) -> bool:
        """Time does not count then."""
        return any(each.suspended for each in self.live_replicas())

    def _owners_caught_up(self) -> bool:
        owner = self._owner()
        return owner.owns and int(owner.status.frontier or 0) >= self.server.version

    async def _rest(self, churn: asyncio.Task[None]) -> None:
        self.weather.clear()
        self.broker.calm()
        await self._owned(self.owned_again_within_s)
        churn.cancel()
        self.resting = True
        await self._until(self._owners_caught_up)
        await asyncio.sleep(8 * HEARTBEAT_S)
        self.pull(10**6)
        for replica in self.live_replicas():
            replica.stop()
        await self._until(lambda: not self.live_replicas())


def _later(seconds: float, resume: Callable[[], None]) -> None:
    """Resume a process, whose own timers do not run."""

    def lands() -> None:
        resume()

    asyncio.get_running_loop().call_later(seconds, lands)


def run(
    seed: int,
    faults: Faults,
    rules: Rules | None = None,
    world: Callable[[int, Faults, Rules], ReplicaWorld] = ReplicaWorld,
) -> ReplicaWorld:
    """Play one seed."""

    async def main() -> ReplicaWorld:
        played = world(seed, faults, rules or Rules())
        await played.play_and_judge()
        if played.stale and not faults.may_be_stale:
            played.broken.append(f"{played.stale} stale records")
        return played

    with asyncio.Runner(loop_factory=SuspendingLoop) as runner:
        return runner.run(main())
