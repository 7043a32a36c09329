"""Replicas that share a stream, by seed in virtual time: the daemon's own runner, sharing and group
member over the simulated server, brokers and coordinator. They die, leave and are suspended.

`python -m tests.simulation --replicas` plays them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition

from tests.simulation.apiserver import Api
from tests.simulation.connections import Wire
from tests.simulation.partition_log import Raw, Stored
from tests.simulation.process import (
    CONTROL,
    HEARTBEAT_S,
    PLAIN,
    STREAM,
    TOPIC,
    Control,
    Life,
    Reader,
    Shape,
    now_s,
    wall_ms,
)
from tests.simulation.suspending import Suspendable, SuspendingLoop
from tests.simulation.world import World
from tests.support.groupfake import FakeGroup, FakeGroupBrokers
from tests.support.stream_log import PODS
from tests.unit.daemon.conftest import settings_of
from watchrelay.config.settings import Delivery
from watchrelay.contract.control import ControlState
from watchrelay.core.errors import Fenced
from watchrelay.daemon.context import DaemonContext
from watchrelay.daemon.plan import PlannedStream
from watchrelay.daemon.recovery import LogFold, LogReader
from watchrelay.daemon.sharing import Sharing
from watchrelay.daemon.snapshot_requests import SnapshotRequests
from watchrelay.daemon.standby import Standby
from watchrelay.daemon.stream_runner import StreamRunner
from watchrelay.daemon.transactions import StreamTransactions
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.group import GroupMember
from watchrelay.kafka.log_follower import FollowedLog
from watchrelay.kafka.producer import ProducerSettings
from watchrelay.kafka.sink import KafkaSink
from watchrelay.kafka.topic_reads import TopicReads
from watchrelay.kafka.topics import Topics
from watchrelay.model.parts import stream_and_part
from watchrelay.model.streams import StreamSpec
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry
from watchrelay.publish.timing import HeartbeatInterval
from watchrelay.publish.writer import StreamWriter
from watchrelay.store.objects import Store
from watchrelay.store.transform import Transform
from watchrelay.watch.admission import Admission

SESSION_S = 6.0
OWNED_WITHIN_S = SESSION_S + 5.0
_CONNECTION = KafkaConnection(bootstrap_servers=("simulated:9092",))
_METRICS = Metrics()


class Runner(StreamRunner):
    """The daemon's, without the topic's administration."""

    replica: Replica
    reader_class: type[Reader] = Reader

    async def _topic_ready(self) -> int:
        self._context.sink.open(TOPIC, self.spec.id, self.restart, made=False)
        return 1 << 20

    def _lose(self, error: Fenced) -> None:
        if self.replica.over:  # killed: it does nothing more
            raise asyncio.CancelledError from error
        self.replica.world.noted_loss(self)
        super()._lose(error)

    def _transactions(self) -> StreamTransactions | None:
        made = super()._transactions()
        if made is None:
            return None
        return SuspendedInTransactions(
            made.id, made.topic, made.stream, made.sink, made.control, self.replica
        )

    def _reader(self, spec: StreamSpec, reads: TopicReads) -> LogReader:
        return self.reader_class(spec, self.replica.world, self._context.sink)

    async def _highest_epoch(self) -> int:
        return await Life._highest_epoch(self.replica)  # type: ignore[arg-type]

    def _relay(self, store: Store, message_bytes: int, reader: LogReader) -> StreamWriter:
        return StreamWriter(
            self.spec,
            sink=self._context.sink,
            control=self._context.control,
            state=store,
            metrics=self._metrics,
            topic_metrics=self._context.metrics.topic(TOPIC),
            status=self._status,
            heartbeat_interval=self._context.heartbeat_interval,
            queue_bytes=64 << 20,
            max_message_bytes=message_bytes,
            may_finish=self._may_finish,
            gap_reader=reader,
            transactions=self._transactions(),
            rng=self._context.rng,
            now_s=now_s,
            wall_ms=wall_ms,
        )


@dataclass(frozen=True, slots=True)
class SuspendedInTransactions(StreamTransactions):
    """After a look at the claims the process may be suspended."""

    replica: Replica

    async def is_ours(self, epoch: int) -> bool:
        # slots=True makes another class, which `super()` does not know
        ours = await StreamTransactions.is_ours(self, epoch)
        await self.replica.world.looked(self.replica)
        return ours


class LogFollowing:
    """As kafka/log_follower.py, without a client."""

    def __init__(self, world: ReplicaWorld, wire: Wire) -> None:
        self._world, self._wire = world, wire
        self._logs: list[FollowedLog] = []

    def follow(self, log: FollowedLog) -> None:
        self._logs.append(log)

    def unfollow(self, log: FollowedLog) -> None:
        if log in self._logs:
            self._logs.remove(log)

    def hurry(self) -> None:
        pass

    async def run(self) -> None:
        rng, delay_s = self._world.rng, self._world.weather.delay_s
        while not self._wire.dead:
            pause_s = 0.0 if any(log.urgent for log in self._logs) else 0.5
            await asyncio.sleep(rng.random() * (pause_s + delay_s) + 0.001)
            for log in list(self._logs):
                for partition, start in list(log.next.items()):
                    stored = self._world.broker.log(TopicPartition(log.topic, partition))
                    stop = min(stored.stable, start + rng.randint(1, 40))
                    log.take(partition, stored.read(start, stop))
                    log.next[partition] = stop
                log.behind(0)


class NotedControl(Control):
    """Notes each claim, and the generation in which it was decided."""

    replica: Replica

    async def claim(self, *arguments: Any, **more: Any) -> int:
        world, generation = self.replica.world, self.replica.member.generation
        epoch = await super().claim(*arguments, **more)
        world.noted_claim(self.replica, generation)
        return epoch


class Replica(Suspendable):
    """One process."""

    runner_class: type[Runner] = Runner
    sharing_class: type[Sharing] = Sharing

    def __init__(self, world: ReplicaWorld, number: int) -> None:
        super().__init__()
        self.world, self.number, self.name = world, number, f"replica-{number}"
        self.rng = random.Random(world.rng.getrandbits(64))
        self.statuses = StatusRegistry()
        self.wire = Wire(world.broker)
        sink = world.rules.sink(
            _CONNECTION,
            metrics=_METRICS,
            statuses=self.statuses,
            settings=ProducerSettings(
                request_timeout_s=2.0, transaction_timeout_s=world.transaction_timeout_s
            ),
            rng=self.rng,
            reach=self.wire.reach,
        )
        self.control = NotedControl(world, self.wire, sink, self.statuses, self.name, self.rng)
        self.control.replica = self
        self.over = self._killed = False
        self._stop = asyncio.Event()
        self.sharing = self.sharing_class(
            self.name,
            make_group=self._make_member,
            control=self.control,
            sink=sink,
            metrics=_METRICS,
            statuses=self.statuses,
            api_answers=self._api_answers,
            balance_after_s=world.balance_after_s,
            standbys=world.standbys,
            rng=self.rng,
            now_s=now_s,
            boot_s=now_s,
            wall_ms=wall_ms,
        )
        follower = LogFollowing(world, self.wire)
        self.spec = Life.make_spec(self)  # type: ignore[arg-type]
        context = DaemonContext(
            settings=settings_of(["pods"], kafka={"delivery": world.rules.delivery}),
            metrics=_METRICS,
            statuses=self.statuses,
            client=Api(world.server, world.weather, self.rng),  # type: ignore[arg-type]
            admission=Admission(rng=self.rng),
            connection=_CONNECTION,
            sink=sink,
            control=self.control,
            topics=Topics(_CONNECTION, create=False),
            requests=SnapshotRequests(self.control, configured=self.statuses.streams),
            holder=self.name,
            heartbeat_interval=HeartbeatInterval(HEARTBEAT_S),
            sharing=self.sharing,
            follower=follower,
            rng=self.rng,
        )
        context.control_made.set()
        planned = PlannedStream(
            self.spec, Transform.compile(PODS), False, settings_of(["pods"]).resources[0]
        )
        self.runner = self.runner_class(planned, context)
        self.runner.replica = self
        self._sink, self._follower = sink, follower
        self.status = self.statuses.open(STREAM)

    @property
    def config(self) -> Any:
        return PLAIN

    def _make_member(self, **callbacks: Any) -> GroupMember:
        self.member = GroupMember(
            _CONNECTION,
            "relays",
            session_s=SESSION_S,
            instance="",
            metrics=_METRICS,
            statuses=self.statuses,
            make=lambda connection: FakeGroupBrokers(connection, self.world.group, self._way),
            boot_s=now_s,
            **callbacks,
        )
        return self.member

    async def _way(self) -> None:
        await asyncio.sleep(self.rng.random() * self.world.weather.delay_s)
        if self.wire.dead:
            await asyncio.Event().wait()

    async def _api_answers(self) -> bool:
        await asyncio.sleep(self.rng.random() * self.world.weather.api_delay_s)
        return not self.world.server.away

    # ---- its life --------------------------------------------------------------------------------

    @property
    def owns(self) -> bool:
        """It writes the stream, and all of its state is published."""
        return not self.over and not self.suspended and self.status.complete

    @property
    def stops(self) -> bool:
        """It takes no edit any more."""
        return self.over or self._stop.is_set()

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._task = tasks.create_task(self.run(), name=self.name)

    def kill(self) -> None:
        """kill -9."""
        self.world.note("killed", self.number)
        self.wire.die()
        self.over = self._killed = True
        self.resume()
        self._task.cancel()

    def stop(self) -> None:
        """SIGTERM."""
        self.world.note("stops", self.number)
        self._stop.set()

    async def run(self) -> None:
        self.own()
        self.sharing.plan({STREAM: "plan"}, revision=0, config_hash="")
        try:
            async with asyncio.TaskGroup() as tasks:
                loops = [
                    tasks.create_task(work, name=name)
                    for work, name in (
                        (self._sink.run(), "sink"),
                        (self.control.run(), "control"),
                        (self.sharing.run(), "group"),
                        (self._follower.run(), "standby"),
                    )
                ]
                running = tasks.create_task(self.runner.run(), name="stream")
                await self._stop.wait()
                await self.sharing.hand_over(within_s=15.0)
                self.runner.stop(deadline_s=float("inf"))
                await asyncio.wait((running,))
                for loop in loops:
                    loop.cancel()
            await self.sharing.leave()
        except BaseExceptionGroup:
            if not self._killed:
                raise
        finally:
            self.over = True
            self.wire.die()


@dataclass(frozen=True, slots=True)
class Rules:
    """The classes of a run; a test hands in those that break a rule."""

    runner: type[Runner] = Runner
    sharing: type[Sharing] = Sharing
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
MIXED = Faults(("stop", "suspend", "kill", "both", "forget"), may_be_stale=True)


@dataclass(frozen=True, slots=True)
class Plant:
    """A broken rule, the faults in which it is seen, and the sign of it."""

    faults: Faults
    rules: Rules
    sign: str


# ---- rules that are broken, to see that it is found ----------------------------------------------


class ClaimsWhatWasAssigned(Sharing):
    """Claims by an assignment from before the loss."""

    def may_claim(self, stream: str) -> bool:
        return stream in self._assignment.own and not self._leaving


class NeverDoubts(Sharing):
    """Writes on after it was suspended, and finishes as if nothing had been."""

    @property
    def doubtful(self) -> bool:
        return False


class AwaitsNoRelease(Runner):
    """Writes its claim markers at once."""

    async def _assigned(self) -> str:
        await super()._assigned()
        return ""


class NoRest(Standby):
    """Takes over with what was read before the claim."""

    async def read_rest(
        self, spec: StreamSpec, store: Store, stops: Mapping[int, int]
    ) -> LogFold | None:
        fold = self._fold
        self.close()
        return fold


class ReadsNoRest(Runner):
    """Continues from a copy that ends before its claim."""

    def _new_standby(self, sharing: Sharing) -> Standby:
        standby = super()._new_standby(sharing)
        standby.__class__ = NoRest
        return standby


PLANTS = {
    "stale assignment": Plant(SUSPENSIONS, Rules(sharing=ClaimsWhatWasAssigned), "claims again"),
    "no doubt": Plant(SUSPENSIONS, Rules(sharing=NeverDoubts), "stale records"),
    "rest not read": Plant(MOVES, Rules(runner=ReadsNoRest), "published again"),
    "no release": Plant(MOVES, Rules(runner=AwaitsNoRelease), "stale records"),
}


class ReplicaWorld(World):
    """A run with three replicas."""

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
        claims = map(held.newest, part.partitions(self.shape.partitions))
        newest = max(held.epoch_of(each) or 0 for each in claims if each is not None)
        if newest <= runner._epoch:
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
        super()._landed(place, records)
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
            await self._owned(OWNED_WITHIN_S)
            for _ in range(self.faults.count):
                await asyncio.sleep(self.rng.uniform(*self.faults.every_s))
                await self._fault(tasks, self.rng.choice(self.faults.kinds))
            await self._rest(tasks, around[1])
            for task in around:
                task.cancel()

    def _start(self, tasks: asyncio.TaskGroup) -> None:
        replica = Replica.__new__(Replica)
        replica.runner_class, replica.sharing_class = self.rules.runner, self.rules.sharing
        replica.__init__(self, len(self.replicas))  # type: ignore[misc]
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
            case "stop":
                self._start(tasks)
                await asyncio.sleep(self.rng.random() * 3)
                victim.stop()
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

    async def _rest(self, tasks: asyncio.TaskGroup, churn: asyncio.Task[None]) -> None:
        self.weather.clear()
        self.broker.calm()
        await self._owned(OWNED_WITHIN_S)
        churn.cancel()
        self.resting = True

        def caught_up() -> bool:
            owner = self._owner()
            return owner.owns and int(owner.status.frontier or 0) >= self.server.version

        await self._until(caught_up)
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
