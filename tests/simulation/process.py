"""One process: the packages of the daemon, joined as `daemon/` joins them, over the simulated
server and broker.

Input: a world, a config. Output: a process that can be killed at any await, stopped, or left
running as a former writer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aiokafka import TopicPartition

from tests.simulation.apiserver import Api, Server
from tests.simulation.broker import Broker
from tests.simulation.connections import Wire
from tests.simulation.partition_log import Loss, Stored
from tests.simulation.weather import Weather
from tests.support.stream_log import PODS
from watchrelay.contract.records import LogRecord, MarkerRecord, stream_named
from watchrelay.core.errors import EpochSpoiled, Fenced
from watchrelay.daemon.recovery import LogReader, resume
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.producer import ProducerSettings
from watchrelay.kafka.range_reader import OffsetRange
from watchrelay.kafka.sink import KafkaSink
from watchrelay.model.resources import SERVED, Availability, Resource, Selection
from watchrelay.model.streams import Format, StreamSpec, WatchPlan
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry
from watchrelay.publish.ports import BATCH_BYTES, GapReader, WriterContext
from watchrelay.publish.recovery import (
    FirstSnapshot,
    ListAndDiff,
    RecoveredState,
    WatchFrom,
)
from watchrelay.publish.timing import HeartbeatInterval
from watchrelay.publish.writer import StreamWriter
from watchrelay.store.counting import Counting
from watchrelay.store.objects import PIECE_KEYS, Store
from watchrelay.store.reflector import Reflector
from watchrelay.store.transform import Transform
from watchrelay.watch.admission import Admission
from watchrelay.watch.loop import Watcher

STREAM = "pods"
TOPIC = "k8s.test.core.pods"
CONTROL = "k8s.test.control"
HEARTBEAT_S = 1.0
EPOCH_MS = 1_767_225_600_000
"""Virtual time zero, as the wall shows it."""

_CONNECTION = KafkaConnection(bootstrap_servers=("simulated:9092",))
_METRICS = Metrics()
"""Shared by all lives of a run: nothing is decided by what is counted."""


@dataclass(frozen=True, slots=True)
class Config:
    """What a stream follows and publishes of it. `noise` False leaves that field out; with
    `ignores` a change of it alone does not count."""

    name: str
    selector: str = ""
    noise: bool = True
    ignores: bool = False

    @property
    def shows_noise(self) -> bool:
        """The newest value of that field is published."""
        return self.noise and not self.ignores


PLAIN = Config("c0ffee")
CALM = Config("calm", ignores=True)


@dataclass(slots=True)
class Shape:
    """What all lives of a run have in common. `batch_bytes` is the sink's, `relay_bytes`
    what the relay hands over at once."""

    partitions: int = 2
    snapshot_interval_s: float = 0.0
    form: Format = "cloudevents"
    page_size: int = 500
    batch_bytes: int = 512 * 1024
    relist_interval_s: float = 0.0
    server_version: tuple[int, int] | None = None
    bookmarks: bool = True
    queue_bytes: int = 64 << 20
    relay_bytes: int = BATCH_BYTES
    conflate: bool = True
    piece_keys: int = PIECE_KEYS

    def narrow(self, rng: random.Random) -> None:
        """Have queues that hold some records only, so that they overflow, or keep the watch from
        being read."""
        self.queue_bytes = rng.choice([600, 1500, 1500, 3000, 6000, 12_000])
        self.relay_bytes = rng.choice([BATCH_BYTES, 9000, 4096, 1500])
        self.conflate = rng.random() < 0.8


class World(Protocol):
    """What a life needs of the world around it."""

    rng: random.Random
    server: Server
    broker: Broker
    weather: Weather
    shape: Shape
    lost: set[Loss]

    def note(self, *event: object) -> None:
        """Put into the trace."""
        ...

    async def between_pieces(self, life: Life) -> None:
        """A process has pushed some of a list's differences."""
        ...

    def doubted(self) -> None:
        """A writer does not believe the log."""

    def differs_in_full(self) -> None:
        """A writer publishes a difference by all that is published, not by what counts."""

    def unprovable(self, epoch: int) -> str:
        """Why a log may be doubted by the writer of `epoch`, "" where it may not."""
        ...


def now_s() -> float:
    """Virtual seconds."""
    return asyncio.get_running_loop().time()


def wall_ms() -> int:
    """Virtual time as the wall shows it."""
    return EPOCH_MS + int(now_s() * 1000)


class Control(ControlTopic):
    """The control topic, tailed late. While `blind` nothing is read."""

    def __init__(
        self,
        world: World,
        wire: Wire,
        sink: KafkaSink,
        statuses: StatusRegistry,
        holder: str,
        rng: random.Random,
    ) -> None:
        super().__init__(
            _CONNECTION, CONTROL, sink, statuses=statuses, holder=holder, rng=rng, wall_ms=wall_ms
        )
        self._world, self._log = world, wire.broker.log(TopicPartition(CONTROL, 0))
        self.blind = False

    async def run(self) -> None:
        """As the real one: from the start, forever."""
        world, log = self._world, self._log
        while True:
            grown = log.grown
            if not self.blind:
                end = log.end
                for each in log.read(self._read.to, end):
                    self.take(each)
                self.moved(end)
                await grown.wait()
            await asyncio.sleep(0.002 + world.rng.random() * world.weather.deaf_s)


class Reader(LogReader):
    """Reads the log back without a client."""

    def __init__(self, spec: StreamSpec, world: World, sink: KafkaSink) -> None:
        super().__init__(spec, _CONNECTION, sink, failed=lambda _error, _wait_s: None)
        self._topic, self._world = spec.topic, world

    def _stable(self, partition: int) -> int:
        """Up to where the log can be read."""
        return self._world.broker.log(TopicPartition(self._topic, partition)).stable

    def _log(self, partition: int, start: int, stop: int) -> list[Stored]:
        return self._world.broker.log(TopicPartition(self._topic, partition)).read(start, stop)

    async def spans(
        self, spans: Sequence[OffsetRange], take: Callable[[int, list[LogRecord]], None]
    ) -> set[int]:
        """As the real one."""
        rng = self._world.rng
        for span in spans:
            at = span.start or 0
            while at < span.stop:
                await asyncio.sleep(rng.random() * (0.01 + self._world.weather.delay_s / 4))
                stop = min(span.stop, at + rng.randint(1, 40), self._stable(span.partition))
                found = (
                    self.understood(each)
                    for each in self._log(span.partition, at, stop)
                    if not self._misses(each)
                )
                take(span.partition, [each for each in found if each is not None])
                at = stop
        return {span.partition for span in spans if not span.start}

    def _misses(self, stored: Stored) -> bool:
        """A claim of our own is never missed: it is awaited."""
        world = self._world
        if (
            not world.weather.misread
            or isinstance(stored.decoded, MarkerRecord)
            or world.rng.random() >= world.weather.misread
        ):
            return False
        world.note("misread", stored.partition, stored.offset)
        world.lost.add("reading")
        return True

    async def read(
        self,
        ranges: Mapping[int, Sequence[tuple[int, int]]],
        take: Callable[[int, int, LogRecord], None],
    ) -> None:
        """As the real one."""
        await asyncio.sleep(self._world.rng.random() * (0.01 + self._world.weather.delay_s / 4))
        for partition, wanted in ranges.items():
            log = self._world.broker.log(TopicPartition(self._topic, partition))
            while self._stable(partition) < wanted[-1][1]:
                await log.grown.wait()
            for start, stop in wanted:
                for stored in self._log(partition, start, stop):
                    if (each := self.between(stored)) is not None:
                        take(partition, stored.offset, each)


def spec_of(shape: Shape, config: Config) -> StreamSpec:
    """The stream of a world of this shape, as the config means it."""
    resource: Resource = PODS
    plan = WatchPlan(
        Selection(resource, label_selector=config.selector),
        page_size=shape.page_size,
        relist_interval_s=shape.relist_interval_s,
        bookmarks=shape.bookmarks,
    )
    return StreamSpec(
        id=STREAM,
        cluster="test",
        topic=TOPIC,
        partitions=shape.partitions,
        plan=plan,
        config_hash=config.name,
        format=shape.form,
        snapshot_interval_s=shape.snapshot_interval_s,
        description={"topic": TOPIC, "partitions": shape.partitions, "configHash": config.name},
    )


async def scanned(broker: Broker, partitions: int) -> tuple[int, Mapping[int, int]]:
    """As `StreamTopic.highest_epoch` by `kafka/log_scan.py`; with `StreamTopic.empty_before`."""
    await asyncio.sleep(0.01)
    logs = [broker.log(TopicPartition(TOPIC, partition)) for partition in range(partitions)]
    records = [each for log in logs for each in log.records]
    highest = max((each.decoded.epoch for each in records if each.decoded is not None), default=0)
    named = any(
        stream_named(each.headers) == STREAM.encode() for log in logs for each in log.uncommitted
    )
    return highest, {} if named else {place: log.end for place, log in enumerate(logs)}


class Outlet(Reflector):
    """Between two pieces of a list's differences anything may happen to its process."""

    life: Life

    async def _turn(self) -> None:
        await super()._turn()
        await self.life.world.between_pieces(self.life)


class Life:
    """One process: claim, read back, watch. A test overrides a `make_` method to pass in another
    part."""

    relay_class: type[StreamWriter] = StreamWriter
    reflector_class: type[Outlet] = Outlet
    watcher_class: type[Watcher] = Watcher
    store_class: type[Store] = Store

    def __init__(self, world: World, config: Config = PLAIN, *, number: int = 0) -> None:
        self.world, self.config, self.number = world, config, number
        shape, rng = world.shape, random.Random(world.rng.getrandbits(64))
        self.rng = rng
        self.spec = self.make_spec()
        self.statuses = StatusRegistry()
        self.status = self.statuses.open(STREAM, TOPIC)
        self.metrics = _METRICS
        self.wire = self.make_wire()
        self.sink = self.make_sink(
            ProducerSettings(batch_bytes=shape.batch_bytes, request_timeout_s=2.0)
        )
        self.control = self.make_control()
        self.store = self.make_store()
        self.reader = self.make_reader()
        self.relay = self.make_relay(self.reader)
        self.api = Api(world.server, world.weather, rng)
        self.watcher: Watcher | None = None
        self.decision = self.why_doubted = ""
        self.epoch = 0
        self.empty_before: Mapping[int, int] = {}
        self.claimed = self.doubted = self.fenced = self.over = self.drained = False
        self.foreign = self.spoiled = False
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    # ---- the parts -------------------------------------------------------------------------------

    def make_spec(self) -> StreamSpec:
        """The stream, as the config means it."""
        return spec_of(self.world.shape, self.config)

    def make_wire(self) -> Wire:
        """The way to the broker."""
        return Wire(self.world.broker)

    def make_sink(self, settings: ProducerSettings) -> KafkaSink:
        """The sink."""
        return KafkaSink(
            _CONNECTION,
            metrics=self.metrics,
            statuses=self.statuses,
            settings=settings,
            rng=self.rng,
            make_brokers=self.wire.reach,
        )

    def make_control(self) -> Control:
        """The control topic."""
        return Control(
            self.world, self.wire, self.sink, self.statuses, f"life-{self.number}", self.rng
        )

    def make_store(self) -> Store:
        """The store."""
        transform = Transform.compile(PODS, drop=() if self.config.noise else ("spec.noise",))
        ignored = Counting.compile(transform, ignored=[("spec", "noise")])
        return self.store_class(
            transform,
            partitions=self.spec.partitions,
            counting=ignored if self.config.ignores else None,
            train_at=10**9,
            piece=self.world.shape.piece_keys,
        )

    def make_reader(self) -> Reader:
        """What reads the log."""
        return Reader(self.spec, self.world, self.sink)

    def make_relay(self, gap_reader: GapReader | None) -> StreamWriter:
        """The stream's writer."""
        return self.relay_class(
            self.spec,
            WriterContext(
                sink=self.sink,
                control=self.control,
                store=self.store,
                metrics=self.metrics.stream(STREAM, PODS),
                topic_metrics=self.metrics.topic(TOPIC),
                status=self.status,
                progress=self.status.progress,
                heartbeat_interval=HeartbeatInterval(HEARTBEAT_S),
                must_stop=lambda epoch: self.control.superseded(STREAM, epoch),
                queue_bytes=self.world.shape.queue_bytes,
                batch_bytes=self.world.shape.relay_bytes,
                conflate=self.world.shape.conflate,
                gap_reader=gap_reader,
                rng=self.rng,
                now_s=now_s,
                wall_ms=wall_ms,
            ),
        )

    def make_admission(self) -> Admission:
        """What requests to the API server pass."""
        return Admission(rng=self.rng)

    # ---- its life --------------------------------------------------------------------------------

    def begin(self, tasks: asyncio.TaskGroup) -> None:
        """Start the process."""
        self.world.note("begins", self.number, self.config.name)
        self._task = tasks.create_task(self.run(), name=f"life {self.number}")

    def kill(self) -> None:
        """kill -9, now."""
        if not self.over:
            self.world.note("killed", self.number)
            self.wire.die()
            assert self._task is not None
            self._task.cancel()

    def overdue(self) -> list[bytes]:
        """Keys that wait to be published although neither the log nor the store has them, and no
        repair of them is pending."""
        sets = [queue.dirty for queue in self.relay._queues.partitions if queue.dirty is not None]
        return [
            key
            for dirty in sets
            for key, waits in dirty.items()
            if waits.hash is None and not waits.must_publish and self.store.get(key) is None
        ]

    def stop(self) -> None:
        """As SIGTERM does: end the watch, drain, end."""
        self._stop.set()

    async def run(self) -> None:
        """Live until killed, stopped, or fenced, or until the epoch is `spoiled`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                loops = [
                    tasks.create_task(self.sink.run(), name="sink"),
                    tasks.create_task(self.control.run(), name="control"),
                ]
                await self._live()
                for loop in loops:
                    loop.cancel()
        except Fenced:
            self.fenced = True
        except BaseExceptionGroup as group:
            if group.split((Fenced, EpochSpoiled))[1] is not None:
                raise
            self.spoiled = group.subgroup(EpochSpoiled) is not None
            self.fenced = not self.spoiled
        finally:
            self.over = True
            self.wire.die()
            self.world.note("over", self.number, self.decision, self.fenced)

    async def _live(self) -> None:
        """As `daemon/stream_runner.py`."""
        self.epoch = epoch = await self.relay.claim(self._highest_epoch)
        self.claimed = True
        self.world.note("claimed", self.number, epoch)
        found = await self.resume(epoch)
        self.decision = type(found.decision).__name__
        self.doubted = isinstance(found.decision, FirstSnapshot) and found.decision.log_unverified
        self.why_doubted = self.world.unprovable(epoch)
        if self.doubted:
            self.world.doubted()
        if isinstance(found.decision, ListAndDiff) and found.decision.doubted:
            self.world.differs_in_full()
        self.world.note(
            "resumed",
            self.number,
            self.decision,
            getattr(found.decision, "frontier", ""),
            found.newest_on_log,
            sum(map(len, found.entries)),
        )
        self.watcher = watcher = self._watcher(found)
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(self.relay.run(), name="relay")
            watching = tasks.create_task(watcher.run(), name="watch")
            await self._stop.wait()
            watching.cancel()
            await asyncio.wait((watching,))
            self.drained = await self.relay.drain(60.0)
            writing.cancel()

    async def resume(self, epoch: int) -> RecoveredState:
        """Read the log back."""
        return await resume(
            self.spec,
            self.relay,
            self.store,
            self.reader,
            epoch,
            empty_before={} if self.foreign else self.empty_before,
            foreign=self.foreign,
        )

    def _watcher(self, found: RecoveredState) -> Watcher:
        metrics, shape, decision = (
            self.metrics.stream(STREAM, PODS),
            self.world.shape,
            found.decision,
        )
        recovered = self.store.has_state
        outlet = self.reflector_class(
            STREAM,
            self.store,
            self.relay,
            metrics=metrics,
            status=self.status,
            recovered=recovered,
            version=found.newest_on_log,
            wall_ms=wall_ms,
        )
        outlet.life = self
        return self.watcher_class(
            STREAM,
            self.spec.plan,
            source=self.api,
            outlet=outlet,
            admission=self.make_admission(),
            metrics=metrics,
            status=self.status,
            progress=self.status.progress,
            availability=self._availability,
            server_version=lambda: shape.server_version,
            rng=self.rng,
            cursor=decision.frontier if isinstance(decision, WatchFrom) else "",
            newest_on_log=found.newest_on_log,
            recovered=recovered,
            on_accepted=self.relay.watch_accepted,
        )

    async def _availability(self, _resource: Resource) -> Availability:
        return SERVED

    async def _highest_epoch(self) -> int:
        highest, self.empty_before = await scanned(self.world.broker, self.spec.partitions)
        return highest
