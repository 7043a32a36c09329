"""One of the processes that share a stream: the daemon's own runner, sharing and group member over
the simulated server, brokers and coordinator. It is killed, stopped and suspended.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, cast

from aiokafka import TopicPartition

from tests.simulation.apiserver import Api
from tests.simulation.connections import Wire
from tests.simulation.process import (
    HEARTBEAT_S,
    PLAIN,
    STREAM,
    Control,
    now_s,
    spec_of,
    wall_ms,
)
from tests.simulation.suspending import Suspendable
from tests.support.groupfake import FakeGroupBrokers
from tests.support.stream_log import PODS
from tests.unit.daemon.conftest import settings_of
from watchrelay.core.clock import Clocks
from watchrelay.daemon.context import ApiServer, DaemonContext, Reads
from watchrelay.daemon.snapshot_requests import SnapshotRequests
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.log_follower import FollowedLog
from watchrelay.kafka.producer import ProducerSettings
from watchrelay.kafka.topic_risks import TopicRisks
from watchrelay.kafka.topics import Topics
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry
from watchrelay.plan.streams import PlannedStream
from watchrelay.publish.timing import HeartbeatInterval
from watchrelay.replicas import group
from watchrelay.replicas.group import GroupMember
from watchrelay.store.transform import Transform
from watchrelay.watch.admission import Admission

if TYPE_CHECKING:
    from tests.simulation.replicas import ReplicaWorld

SESSION_S = 6.0
_CONNECTION = KafkaConnection(bootstrap_servers=("simulated:9092",))
_METRICS = Metrics()


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
            make_brokers=self.wire.reach,
        )
        self.control = NotedControl(world, self.wire, sink, self.statuses, self.name, self.rng)
        self.control.replica = self
        self.over = self._killed = False
        self._stop = asyncio.Event()
        self.sharing = world.rules.sharing(
            make_group=self._make_member,
            control=self.control,
            sink=sink,
            metrics=_METRICS,
            statuses=self.statuses,
            api_answers=self._api_answers,
            balance_after_s=world.balance_after_s,
            standbys=world.standbys,
            rng=self.rng,
            clocks=Clocks(now_s, now_s, wall_ms),
            make_doubt=world.rules.doubt,
        )
        follower = LogFollowing(world, self.wire)
        self.spec = spec_of(world.shape, PLAIN)
        context = DaemonContext(
            settings=settings_of(["pods"], kafka={"delivery": world.rules.delivery}),
            metrics=_METRICS,
            statuses=self.statuses,
            server=ApiServer(
                cast("Any", Api(world.server, world.weather, self.rng)),
                Admission(rng=self.rng),
            ),
            reads=Reads(_CONNECTION, "simulated", self.rng),
            sink=sink,
            control=self.control,
            topics=Topics(_CONNECTION, create=False),
            risks=TopicRisks("simulated:9092", metrics=_METRICS, statuses=self.statuses),
            requests=SnapshotRequests(self.control, configured=self.statuses.streams),
            heartbeat_interval=HeartbeatInterval(HEARTBEAT_S),
            ownership=self.sharing,
            rng=self.rng,
        )
        context.reads.follower = follower
        context.control_made.set()
        planned = PlannedStream(
            self.spec, Transform.compile(PODS), False, settings_of(["pods"]).resources[0]
        )
        self.runner = world.rules.runner(planned, context)
        self.runner.belong_to(self)
        self._sink, self._follower = sink, follower
        self.status = self.statuses.open(STREAM)

    def _make_member(self, sharing: group.Replica) -> GroupMember:
        self.member = GroupMember(
            _CONNECTION,
            "relays",
            sharing,
            session_s=SESSION_S,
            instance="",
            metrics=_METRICS,
            statuses=self.statuses,
            make=lambda connection: FakeGroupBrokers(connection, self.world.group, self._way),
            boot_s=now_s,
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
                self._start_streams(tasks)
                await self._stop.wait()
                await self.sharing.hand_over(within_s=15.0)
                await self._stop_streams()
                for loop in loops:
                    loop.cancel()
            await self.sharing.leave()
        except BaseExceptionGroup:
            if not self._killed:
                raise
        finally:
            self.over = True
            self.wire.die()

    def _start_streams(self, tasks: asyncio.TaskGroup) -> None:
        self.sharing.offer_plans({STREAM: "plan"}, revision=0, config_hash="")
        self._running = tasks.create_task(self.runner.run(), name="stream")

    async def _stop_streams(self) -> None:
        self.runner.stop(deadline_s=float("inf"))
        await asyncio.wait((self._running,))
