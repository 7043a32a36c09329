"""A broker of one process: partitions with offsets, an eager cleaner, and requests that come to
grief on the way.

Room: simulation.  In: packed batches of many producers.  Out: logs; what is on its way when a
producer dies lands at once, late or never.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaTimeoutError
from aiokafka.record.memory_records import MemoryRecords

from tests.simulation.weather import Weather
from watchrelay.contract.headers import Header
from watchrelay.contract.records import Decoded, MarkerRecord, ObjectRecord, decode
from watchrelay.core.errors import SinkUnavailable
from watchrelay.kafka.client.client_log import LogTail
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.producer import ProducerAborted, ProducerSession, Refused, SinkSettings
from watchrelay.kafka.client.record_batch import PackedBatch

Loss = Literal["truth", "proof", "reading"]
"""`reading`: a writer did not get all that it read back. The others are what compaction may take
where a relay is away for longer than the topic's lag. `truth`: a record that readers heed went in
favour of one that they do not (record contract, section 8). `proof`: what the newest marker of a
partition speaks of was thinned, or it went itself."""

Raw = tuple[bytes, bytes | None, tuple[Header, ...]]
"""Key, value, headers."""

TIMEOUT_S = 2.0
LATE_S = 6.0


class Stored(NamedTuple):
    """One record where it stands. Shape: `said` is None on the control topic; `heeded`: readers of
    the contract apply it."""

    offset: int
    at_s: float
    key: bytes
    value: bytes | None
    headers: tuple[Header, ...]
    said: Decoded | None
    heeded: bool
    partition: int = 0


@dataclass
class Log:
    """One partition. Shape: offsets only grow; the cleaner leaves holes."""

    partition: int
    decoded: bool = True
    records: list[Stored] = field(default_factory=list)
    end: int = 0
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    _epoch: int = 0
    _last: int = 0
    _horizons: dict[int, float] = field(default_factory=dict)

    def append(self, at_s: float, records: list[Raw]) -> int:
        """The offset of the first."""
        first = self.end
        for key, value, headers in records:
            said = decode(key, value, headers) if self.decoded else None
            heeded = (
                said is None
                or said.epoch > self._epoch
                or (said.epoch == self._epoch and said.sequence > self._last)
            )
            if said is not None and heeded:
                self._epoch, self._last = said.epoch, said.sequence
            self.records.append(
                Stored(self.end, at_s, key, value, headers, said, heeded, self.partition)
            )
            self.end += 1
        self.grown.set()
        self.grown = asyncio.Event()
        return first

    def read(self, start: int, stop: int, most: int = 1 << 30) -> list[Stored]:
        """What is left of [start, stop)."""
        at = bisect_left(self.records, start, key=_offset)
        found = self.records[at : at + most]
        while found and found[-1].offset >= stop:
            found.pop()
        return found

    @property
    def start(self) -> int:
        """Where the partition begins: the cleaner takes records, not offsets."""
        return 0

    def clean(
        self, now_s: float, *, lag_s: float, retention_s: float
    ) -> tuple[set[Loss], list[ObjectRecord]]:
        """Compact all that is older than `lag_s`; a tombstone goes `retention_s` after it was first
        met.

        Shape: what was lost; the deletes of which nothing is left.
        """
        bound = next(
            (at for at, each in enumerate(self.records) if each.at_s > now_s - lag_s),
            len(self.records),
        )
        head = self.records[:bound]
        newest = {each.key: each for each in head}
        heeded = {each.key: each for each in head if each.heeded}
        kept = [
            each
            for each in head
            if newest[each.key] is each
            and (
                each.value is not None
                or self._horizons.setdefault(each.offset, now_s + retention_s) > now_s
            )
        ]
        lost: set[Loss] = set()
        if len(kept) < len(head) and not any(map(proves, self.records[bound:])):
            lost.add("proof")
        if any(
            newest[key] is not each and isinstance(each.said, ObjectRecord)
            for key, each in heeded.items()
        ):
            lost.add("truth")
        left = {each.key for each in (*kept, *self.records[bound:])}
        buried = [
            each.said
            for key, each in heeded.items()
            if key not in left and isinstance(each.said, ObjectRecord)
        ]
        self.records[:bound] = kept
        return lost, buried

    @property
    def frontier(self) -> int:
        """What the newest marker claims that readers heed; 0 where none does."""
        said = next((each.said for each in reversed(self.records) if proves(each)), None)
        return int(said.frontier) if isinstance(said, MarkerRecord) else 0


def proves(record: Stored) -> bool:
    """A marker of which readers heed count and digest."""
    return record.heeded and isinstance(record.said, MarkerRecord) and record.said.kind != "claim"


def _offset(record: Stored) -> int:
    return record.offset


@dataclass
class Request:
    """One batch on its way. Shape: `lands` is None once it landed, or will never."""

    place: TopicPartition
    records: list[Raw]
    lands: asyncio.TimerHandle | None = None
    late: bool = False
    offset: int = -1


class Broker:
    """All partitions. `told` hears of each batch that lands."""

    def __init__(
        self,
        rng: random.Random,
        weather: Weather,
        *,
        told: Callable[[TopicPartition, list[Stored]], None],
    ) -> None:
        self.rng, self.weather = rng, weather
        self.logs: dict[TopicPartition, Log] = {}
        self.control_topics: set[str] = set()
        self._told = told
        self._late: dict[int, Request] = {}
        self._number = 0

    def log(self, place: TopicPartition) -> Log:
        """The log of one partition, made when it is first asked for."""
        log = self.logs.get(place)
        if log is None:
            log = self.logs[place] = Log(
                place.partition, decoded=place.topic not in self.control_topics
            )
        return log

    def land(self, request: Request) -> None:
        """The batch stands in the log, and nobody is told."""
        request.lands = None
        loop = asyncio.get_running_loop()
        log = self.log(request.place)
        request.offset = log.append(loop.time(), request.records)
        self._told(request.place, log.records[-len(request.records) :])

    def strand(self, request: Request) -> None:
        """Its sender is no more, or has given it up: it lands at once, late, or never."""
        if request.lands is None or request.late:
            return
        request.lands.cancel()
        match self.rng.randrange(3):
            case 0:
                self.land(request)
            case 1:
                self.delay(request)
            case _:
                request.lands = None

    def delay(self, request: Request) -> None:
        """It lands when nobody expects it any more."""
        self._number += 1
        number, request.late = self._number, True
        self._late[number] = request

        def lands() -> None:
            del self._late[number]
            self.land(request)

        request.lands = asyncio.get_running_loop().call_later(self.rng.random() * LATE_S, lands)

    def calm(self) -> None:
        """Whatever is late lands now."""
        for request in list(self._late.values()):
            assert request.lands is not None
            request.lands.cancel()
            self.land(request)
        self._late.clear()


class Wire:
    """One process's way to the broker: makes its producers, and dies with it."""

    producer_class: type[Producer]

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.dead = False
        self._producers: list[Producer] = []

    async def start(self, _connection: KafkaConnection, _settings: SinkSettings) -> ProducerSession:
        """As `ProducerSession.start`."""
        weather, rng = self.broker.weather, self.broker.rng
        await asyncio.sleep(rng.random() * weather.delay_s)
        if rng.random() < weather.lost:
            raise SinkUnavailable("no broker answers")
        producer = self.producer_class(self)
        self._producers.append(producer)
        return producer

    def die(self) -> None:
        """kill -9: nothing leaves any more."""
        if not self.dead:
            self.dead = True
            for producer in self._producers:
                producer.abort()


class Producer(ProducerSession):
    """A producer whose requests meet the weather. The broker knows a repetition within it; of
    another producer it does not."""

    def __init__(self, wire: Wire) -> None:
        self.outstanding: dict[asyncio.Future[int], float] = {}
        self.is_aborted = False
        self.idle = asyncio.Event()
        self.idle.set()
        self.tail = LogTail()
        self._wire, self._broker = wire, wire.broker
        self._loop = asyncio.get_running_loop()
        self._requests: dict[asyncio.Future[int], Request] = {}

    async def append(self, partition: TopicPartition, batch: PackedBatch) -> int:
        """As the real one. Raises: ProducerAborted, Refused."""
        if self._wire.dead:
            await asyncio.Event().wait()
        if self.is_aborted:
            raise ProducerAborted
        acked: asyncio.Future[int] = self._loop.create_future()
        self.outstanding[acked] = self._loop.time()
        self.idle.clear()
        self._send(Request(partition, self.render(batch)), acked)
        try:
            return await acked
        finally:
            del self.outstanding[acked]
            self._requests.pop(acked, None)
            if not self.outstanding:
                self.idle.set()

    def render(self, batch: PackedBatch) -> list[Raw]:
        """The records that a broker would store, out of the bytes that it would get."""
        return list(_unpacked(batch))

    def _send(self, request: Request, acked: asyncio.Future[int]) -> None:
        broker, rng, weather, later = (
            self._broker,
            self._broker.rng,
            self._broker.weather,
            self._loop.call_later,
        )
        self._requests[acked] = request
        there_s, back_s, fate = (
            rng.random() * weather.delay_s,
            rng.random() * weather.delay_s,
            rng.random(),
        )

        def refuse() -> None:
            if not acked.done():
                acked.set_exception(Refused(KafkaTimeoutError("no answer in time"), sent=True))

        def refuse_and_land_late() -> None:
            if not acked.done():
                broker.delay(request)
                refuse()

        def acknowledge() -> None:
            if not acked.done():
                acked.set_result(request.offset)

        def land() -> None:
            broker.land(request)
            if fate >= weather.lost + weather.late:
                later(back_s, acknowledge)

        if fate < weather.lost:
            later(TIMEOUT_S, refuse)
        elif fate < weather.lost + weather.late:
            later(TIMEOUT_S, refuse_and_land_late)
        elif fate < weather.lost + weather.late + weather.lost_ack:
            later(TIMEOUT_S, refuse)
            request.lands = later(there_s, lambda: broker.land(request))
        else:
            request.lands = later(there_s, land)

    @property
    def needs_renewal(self) -> bool:
        """Renewed now and then."""
        return not self._wire.dead and self._broker.rng.random() < self._broker.weather.renewed

    def abort(self) -> None:
        """As the real one; what is on its way may land all the same."""
        if self.is_aborted:
            return
        self.is_aborted = True
        for acked, request in list(self._requests.items()):
            self._broker.strand(request)
            if not acked.done() and not self._wire.dead:
                acked.set_exception(ProducerAborted())

    async def close(self) -> None:
        """Nothing is held."""


Wire.producer_class = Producer


def _unpacked(batch: PackedBatch) -> Iterator[Raw]:
    records = MemoryRecords(bytes(batch._build()))
    while records.has_next():
        for record in records.next_batch():
            yield record.key, record.value, tuple(record.headers)
