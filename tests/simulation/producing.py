"""The producer alone, by seed: batches on many partitions to brokers that refuse, forget producers
and move, by connections that come to grief; and what must be true of each batch.

A run gives every promise that was broken, as one line each.
`python -m tests.simulation.producing SEED` plays one run and tells what was broken.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from aiokafka import TopicPartition

from tests.simulation.broker import OK, Broker, Request
from tests.simulation.connections import Cluster, Connection, Wire
from tests.simulation.partition_log import Stored
from tests.simulation.weather import Weather
from tests.support.producefake import batch_head
from tests.support.relays import run_virtually
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core.errors import RecordTooLarge
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.link import Link
from watchrelay.kafka.client.record_batch import Packer
from watchrelay.kafka.partition import (
    STEPS,
    Appended,
    Delivery,
    Partition,
    Place,
    Step,
    TopicLimits,
)
from watchrelay.kafka.producer import Producer, ProducerSettings
from watchrelay.kafka.record_times import RecordTimes

TOPICS = ("a", "b")
PARTITIONS = 3
PLACES = [TopicPartition(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]
NODES = 3
BATCHES = 25
SETTLE_S = 120
NOT_LEADER, DUPLICATE = 6, 46
UNKNOWN = (45, 47, 49, 59, 90)
REFUSALS = (10, 18, 19, 29, 87, 87, 87)
_CONNECTION = KafkaConnection(bootstrap_servers=("simulated:9092",))
_KEPT_AWAY = "foreign"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Probabilities of what brokers do. `refused` and `unknown` are per batch that arrives,
    `duplicate` per batch that is there already, `unreadable` per search of the log; `moves`,
    `foreign`, `forgets` and `withdraws` per step of a writer."""

    refused: float = 0.0
    duplicate: float = 0.0
    unreadable: float = 0.0
    moves: float = 0.0
    foreign: float = 0.0
    forgets: float = 0.0
    withdraws: float = 0.0

    @classmethod
    def drawn(cls, rng: random.Random) -> Trouble:
        """Each kind in about half of the runs."""

        def maybe(rate: float) -> float:
            return rate if rng.random() < 0.5 else 0.0

        return cls(
            refused=maybe(0.2),
            duplicate=maybe(0.5),
            unreadable=maybe(0.5),
            moves=maybe(0.05),
            foreign=maybe(0.3),
            forgets=maybe(0.05),
            withdraws=maybe(0.05),
        )


@dataclass(eq=False, slots=True)
class Written:
    """One batch from its hand-over to its answer. `over`: nobody waits for it, it may be in
    the log; `doubtful`: so often it was looked for there and not found."""

    place: TopicPartition
    keys: list[bytes]
    number: int
    delivery: Delivery | None = None
    answer: Receipt | Exception | None = None
    over: bool = False
    doubtful: int = 0

    @property
    def is_acked(self) -> bool:
        return isinstance(self.answer, Receipt)


class StrictBroker(Broker):
    """A broker that may refuse, with what it answered of each partition."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.rng, run.weather, on_batch=run.landed)
        self.run = run
        self.sent: dict[tuple[object, ...], bytes] = {}
        self._writers: dict[TopicPartition, tuple[int, int]] = {}
        self.may_change: set[TopicPartition] = set(PLACES)

    def arrived(self, request: Request, node: int) -> None:
        """A batch reaches the broker that was asked, which may not lead the partition."""
        place, head = request.place, batch_head(request.data)
        self._check(place, head, request.data)
        if self.run.leaders[place] != node:
            request.lands, request.code = None, NOT_LEADER
        elif self.rng.random() < self.run.trouble.refused:
            request.lands, request.code = None, self.rng.choice(REFUSALS)
        else:
            if self.rng.random() < self.weather.renewed:
                self.forget_producer(place, head[0])
            self.land(request)
        if request.code == OK:
            return
        step = STEPS.get(request.code, Step.REFUSE)
        if step in (Step.RENEW, Step.REFUSE, Step.DUPLICATE):
            self.may_change.add(place)
        if step is Step.REFUSE:  # the sequence is free again
            del self.sent[place, *head[:3]]

    def _check(self, place: TopicPartition, head: tuple[int, int, int, int], data: bytes) -> None:
        broken = self.run.broken
        if self.sent.setdefault((place, *head[:3]), data) != data:
            broken.append(f"{place}: other bytes under {head[:3]}")
        if self._writers.setdefault(place, head[:2]) != head[:2]:
            if place not in self.may_change:
                broken.append(f"{place}: another identity, although no broker refused {head[:2]}")
            self._writers[place] = head[:2]
            self.may_change.discard(place)

    def unknown(self) -> int:
        return self.rng.choice(UNKNOWN)

    def repeated(self, offset: int) -> tuple[int, int]:
        """Some brokers do not tell where."""
        return (DUPLICATE, -1) if self.rng.random() < self.run.trouble.duplicate else (OK, offset)


class NodeConnection(Connection):
    """To one of the brokers."""

    def __init__(self, wire: StrictWire, link: Link, node: int) -> None:
        super().__init__(wire, link)
        self._strict, self._node = wire.strict, node

    def write(self, data: Any) -> None:
        """As to one broker."""
        if self._strict.run.was_cut:
            self._strict.run.broken.append("a byte after the cut")
        super().write(data)

    def _land(self, requests: list[Request]) -> None:
        for request in requests:
            self._strict.arrived(request, self._node)


class StrictWire(Wire):
    """The producer's way to the brokers."""

    def __init__(self, broker: StrictBroker) -> None:
        super().__init__(broker)
        self.strict = broker

    def reach(self, _connection: KafkaConnection) -> Brokers:
        return StrictCluster(self)


class StrictCluster(Cluster):
    """Brokers that lead some partitions each."""

    def __init__(self, wire: StrictWire) -> None:
        super().__init__(wire)
        self._strict, self._run = wire, wire.strict.run
        self._known: dict[TopicPartition, int] = {}

    async def refresh(self, topics: Collection[str]) -> None:
        known = {place: node for place, node in self._run.leaders.items() if place.topic in topics}
        await super().refresh(topics)
        self._known |= known

    def leader(self, topic: str, partition: int) -> int:
        return self._known.get(TopicPartition(topic, partition), -1)

    async def open(self, node: int, link: Link) -> None:
        await self._asked()
        link.adopt(NodeConnection(self._strict, link, node))

    async def locate(
        self, topic: str, partition: int, start: int, producer: tuple[int, int], sequence: int
    ) -> int | None:
        found = await super().locate(topic, partition, start, producer, sequence)
        if self._run.rng.random() < self._run.trouble.unreadable:
            found = None
        if found is None:
            self._run.not_found(TopicPartition(topic, partition))
        return found


@dataclass
class Run:
    """One run, and what was seen of it; also what the producer reports to."""

    seed: int
    kind: type[Producer] = Producer
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.weather, self.trouble = Weather.drawn(self.rng), Trouble.drawn(self.rng)
        self.leaders = {place: self.rng.randrange(NODES) for place in PLACES}
        self.was_cut = False
        self.batches: dict[TopicPartition, list[Written]] = {place: [] for place in PLACES}
        self.broker = StrictBroker(self)
        self.broker.control_topics |= set(TOPICS)  # nothing of them is decoded
        self.wire = StrictWire(self.broker)
        self.producer = self.kind(
            _CONNECTION,
            ProducerSettings(request_timeout_s=2.0),
            self,
            packer=Packer(),
            times=RecordTimes(),
            make_brokers=self.wire.reach,
            rng=random.Random(self.rng.random()),
        )

    # ---- what the producer reports ---------------------------------------------------------------

    def failed(self, place: TopicPartition, error: Exception, *, retriable: bool) -> None:
        """Nothing is decided by it."""

    def report(self, about: str, message: str) -> None:
        """Nothing is decided by it."""

    def rebuilt(self, reason: str) -> None:
        """Nothing is decided by it."""

    def limits(self, topic: str) -> TopicLimits:
        """More than any batch has."""
        return TopicLimits(1 << 20, 1 << 20)

    def acked(self, partition: Partition, appended: Appended) -> None:
        """The batch is in the log."""
        for each in partition.acked(appended.first):
            if each.done is not None:
                each.done(Receipt(each.offsets))

    def settled(self, place: Place, delivery: Delivery, outcome: Receipt | Exception) -> None:
        """A record is too large, as a broker says."""
        if delivery.done is not None:
            delivery.done(outcome)

    # ---- what the brokers tell -------------------------------------------------------------------

    def landed(self, place: TopicPartition, records: list[Stored]) -> None:
        """Seen at the end, in the log."""

    def not_found(self, place: TopicPartition) -> None:
        """A search of the log gave nothing: what was looked for may be there, or come."""
        for each in self.batches[place]:
            if each.answer is None:
                each.doubtful += 1

    # ---- the course ------------------------------------------------------------------------------

    def append(self, place: TopicPartition) -> None:
        """Hand over one batch."""
        batches = self.batches[place]
        number = len(batches)
        keys = [b"%d-%d" % (number, each) for each in range(self.rng.choice([1, 1, 1, 2, 3]))]
        batch = Written(place, keys, number)
        batches.append(batch)
        records = [WireRecord(key, b"v", []) for key in keys]

        def done(answer: Receipt | Exception) -> None:
            self._answered(batch, answer)

        batch.delivery = self.producer.send(
            Batch(place.topic, place.partition, records, "stream"), done
        )

    def _answered(self, batch: Written, answer: Receipt | Exception) -> None:
        place, name = batch.place, f"{batch.place} batch {batch.number}"
        if batch.over or batch.answer is not None:
            self.broken.append(f"{name} is answered, and nobody waits")
            return
        batch.answer, log = answer, self.broker.log(place)
        if isinstance(answer, Receipt):
            keys = [each.key for at in answer.offsets for each in log.read(at, at + 1)]
            if keys != batch.keys:
                self.broken.append(f"{name} is reported at {answer.offsets}, where {keys} are")
        older = self.batches[place][: batch.number]
        if any(each.answer is None and not each.over for each in older):
            self.broken.append(f"{name} is answered before an older one")

    async def play(self) -> None:
        """All of it."""
        task = asyncio.get_running_loop().create_task(self.producer.run(), name="producer")
        async with asyncio.TaskGroup() as writers:
            for place in PLACES:
                writers.create_task(self._write(place), name="writer")
            if self.rng.random() < 0.2:
                await asyncio.sleep(self.rng.random() * 5)
                self.was_cut = True
                self.producer.cut()
        self.weather.clear()
        self.trouble = Trouble()
        self.broker.calm()
        for _ in range(SETTLE_S):
            if self._pending() and not self.was_cut:
                await asyncio.sleep(1.0)
        if not self.was_cut:
            self.broken += [
                f"{each.place} batch {each.number} is not answered" for each in self._pending()
            ]
        self.producer.cut()
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            self.broken.append(f"the producer ended: {task.exception()!r}")
        self.broker.calm()
        for place in PLACES:
            self._judge(place)

    def _pending(self) -> list[Written]:
        return [
            each
            for batches in self.batches.values()
            for each in batches
            if each.answer is None and not each.over
        ]

    async def _write(self, place: TopicPartition) -> None:
        rng, batches = self.rng, self.batches[place]
        while len(batches) < BATCHES:
            await asyncio.sleep(rng.random() * rng.choice([0.01, 0.3]))
            for _ in range(rng.choice([1, 1, 1, 4])):
                self.append(place)
            trouble = self.trouble
            if rng.random() < trouble.moves:
                self.leaders[place] = rng.randrange(NODES)
            if rng.random() < trouble.foreign:
                self.broker.log(place).append(0.0, [(_KEPT_AWAY.encode(), b"v", ())])
            if rng.random() < trouble.withdraws:
                self._withdraw(rng.choice(batches))
            if rng.random() < trouble.forgets:
                self._forget(place.topic)

    def _withdraw(self, batch: Written) -> None:
        if batch.answer is None and batch.delivery is not None:
            batch.over = True
            self.producer.withdraw(batch.delivery)

    def _forget(self, topic: str) -> None:
        for place in PLACES:
            if place.topic == topic:
                self.broker.may_change.add(place)
                for each in self.batches[place]:
                    each.over = each.over or each.answer is None
        self.producer.forget(topic)

    # ---- the end ---------------------------------------------------------------------------------

    def _judge(self, place: TopicPartition) -> None:
        """What is in the log against what was answered."""
        batches, broken = self.batches[place], self.broken
        records = self.broker.log(place).records
        found = Counter(record.key for record in records)
        first = {record.key: record.offset for record in reversed(records)}
        last = -1
        for each in batches:
            name, times = f"{place} batch {each.number}", {found[key] for key in each.keys}
            certain = each.is_acked and not each.over
            if max(times) > 1 + each.doubtful:
                broken.append(f"{name} is in the log {max(times)} times")
            elif certain and 0 in times:
                broken.append(f"{name} was acknowledged, and is not in the log")
            elif (
                isinstance(each.answer, RecordTooLarge)
                and not (each.doubtful or each.over)
                and any(found[key] for key in each.keys[len(each.answer.acked) :])
            ):
                broken.append(f"{name} was refused, and is in the log")
            if certain and not each.doubtful:
                offset = first.get(each.keys[0], last)
                if offset < last:
                    broken.append(f"{name} is in the log before an older one")
                last = offset


def run(seed: int, kind: type[Producer] = Producer) -> list[str]:
    """Play one seed; what was broken."""
    played: list[Run] = []

    async def main() -> None:
        played.append(Run(seed, kind))
        await played[0].play()

    try:
        run_virtually(main())
    except* AssertionError as group:
        played[0].broken += [f"assertion: {error!r}" for error in group.exceptions]
    return played[0].broken


if __name__ == "__main__":
    print("\n".join(run(int(sys.argv[1]))) or "right")
