"""A broker of one process: partitions with offsets and the state of producers, an eager cleaner,
and requests that come to grief on the way.

Input: produce requests of many producers, byte by byte. Output: logs; what is on its way when a
connection ends lands at once, late or never.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from aiokafka.record.memory_records import MemoryRecords

from tests.simulation.weather import Weather
from tests.support.groupfake import FakeCoordinator, FakeGroup
from tests.support.producefake import (
    FakeTransport,
    answer_frame,
    batch_head,
    is_transactional,
    produce_request,
)
from tests.support.transactionfake import FakeTransactionCoordinator, FakeTransactions
from watchrelay.contract.headers import Header
from watchrelay.contract.records import Decoded, MarkerRecord, ObjectRecord, decode
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.coordinator import Coordinator
from watchrelay.kafka.client.link import Link
from watchrelay.kafka.client.transaction_coordinator import TransactionCoordinator

Answer = TypeVar("Answer")
Loss = Literal["truth", "proof", "claim", "reading"]
"""`reading`: a writer did not get all that it read back. The others are what compaction may take
where a relay is away for longer than the topic's lag. `truth`: a record that readers follow went in
favour of one that they do not (record contract, section 8). `proof`: what the newest marker of a
partition speaks of was thinned, or it went itself. `claim`: nothing left shows that a record is
stale, which those know who read on in time (section 8)."""

Raw = tuple[bytes, bytes | None, tuple[Header, ...]]
"""Key, value, headers."""

LATE_S = 6.0
OK, OUT_OF_ORDER, INVALID_EPOCH, UNKNOWN_PRODUCER, TIMED_OUT, TOO_FEW_REPLICAS = (
    0,
    45,
    47,
    59,
    7,
    19,
)
_REMEMBERED = 5
_MASK = (1 << 31) - 1


class Stored(NamedTuple):
    """One record at its offset. `decoded` is None on the control topic; `heeded`: readers of
    the contract apply it."""

    offset: int
    at_s: float
    key: bytes
    value: bytes | None
    headers: tuple[Header, ...]
    decoded: Decoded | None
    heeded: bool
    partition: int = 0


def _passes_for_current(left: list[Stored]) -> bool:
    """Whether readers of what is left follow a stale record, as nothing left shows that it is."""
    position = (0, 0)
    for each in left:
        if each.decoded is None or (each.decoded.epoch, each.decoded.sequence) <= position:
            continue
        if not each.heeded:
            return True
        position = (each.decoded.epoch, each.decoded.sequence)
    return False


@dataclass
class Log:
    """One partition, as readers of committed records see it. Offsets only grow; the cleaner leaves
    holes, and so do aborted records and the markers of transactions.

    `producer_id` is that of records within a transaction.
    """

    partition: int
    decoded: bool = True
    records: list[Stored] = field(default_factory=list)
    end: int = 0
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    uncommitted: list[Stored] = field(default_factory=list)
    """All records, for those who read uncommitted ones."""
    _hidden: deque[tuple[int | None, Stored]] = field(default_factory=deque)
    """From the first open transaction on, with the producer of each record that is in one."""
    _epoch: int = 0
    _last: int = 0
    _horizons: dict[int, float] = field(default_factory=dict)

    def append(
        self, at_s: float, records: list[Raw], producer_id: int | None = None
    ) -> tuple[int, list[Stored]]:
        """The offset of the first, and what readers see now."""
        first = self.end
        for key, value, headers in records:
            decoded_record = decode(key, value, headers) if self.decoded else None
            stored = Stored(
                self.end, at_s, key, value, headers, decoded_record, False, self.partition
            )
            self._hidden.append((producer_id, stored))
            self.uncommitted.append(stored)
            self.end += 1
        return first, self._show()

    def end_transaction(self, producer_id: int, *, committed: bool) -> list[Stored]:
        """Append the marker; what readers see now."""
        self.end += 1
        hidden, self._hidden = self._hidden, deque()
        for producer, stored in hidden:
            if producer != producer_id:
                self._hidden.append((producer, stored))
            elif committed:
                self._hidden.append((None, stored))
        return self._show()

    def has_open(self, producer_id: int) -> bool:
        """Whether the producer has a transaction with records here."""
        return any(producer == producer_id for producer, _ in self._hidden)

    @property
    def stable(self) -> int:
        """The last stable offset: what is behind it waits for the end of a transaction."""
        return self._hidden[0][1].offset if self._hidden else self.end

    def _show(self) -> list[Stored]:
        """What comes before every open transaction is there for readers."""
        shown = len(self.records)
        while self._hidden and self._hidden[0][0] is None:
            stored = self._hidden.popleft()[1]
            decoded_record = stored.decoded
            heeded = (
                decoded_record is None
                or decoded_record.epoch > self._epoch
                or (decoded_record.epoch == self._epoch and decoded_record.sequence > self._last)
            )
            if decoded_record is not None and heeded:
                self._epoch, self._last = decoded_record.epoch, decoded_record.sequence
            self.records.append(stored._replace(heeded=heeded))
        self.grown.set()
        self.grown = asyncio.Event()
        return self.records[shown:]

    def read(self, start: int, stop: int, most: int = 1 << 30) -> list[Stored]:
        """What is left of [start, stop), and committed."""
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

        What was lost; the deletes of which nothing is left, or only the null of a repair, whose
        version does not count (F7).
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
            newest[key] is not each and isinstance(each.decoded, ObjectRecord)
            for key, each in heeded.items()
        ):
            lost.add("truth")
        if _passes_for_current([*kept, *self.records[bound:]]):
            lost.add("claim")
        left = {each.key for each in (*kept, *self.records[bound:]) if dates(each)}
        buried = [
            each.decoded
            for key, each in {each.key: each for each in head if dates(each)}.items()
            if key not in left and isinstance(each.decoded, ObjectRecord)
        ]
        self.records[:bound] = kept
        return lost, buried

    @property
    def frontier(self) -> int:
        """What the newest marker claims that readers follow; 0 where none does."""
        decoded_record = next(
            (each.decoded for each in reversed(self.records) if proves(each)), None
        )
        return int(decoded_record.frontier) if isinstance(decoded_record, MarkerRecord) else 0


def proves(record: Stored) -> bool:
    """A marker of which readers check count and digest."""
    return (
        record.heeded
        and isinstance(record.decoded, MarkerRecord)
        and record.decoded.kind != "claim"
    )


def dates(record: Stored) -> bool:
    """An object's record that readers follow, and whose version says how new its state is."""
    decoded_record = record.decoded
    return (
        record.heeded
        and isinstance(decoded_record, ObjectRecord)
        and not (decoded_record.verb == "deleted" and decoded_record.reason == "healed")
    )


def _offset(record: Stored) -> int:
    return record.offset


@dataclass
class Known:
    """What a partition remembers of a producer id: its newest batches, as (first sequence, count,
    offset)."""

    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


@dataclass(eq=False)
class Request:
    """One batch on its way. `lands` is None once it landed, or will never."""

    place: TopicPartition
    data: bytes
    lands: asyncio.TimerHandle | None = None
    late: bool = False
    code: int = OK
    offset: int = -1


class Broker:
    """All partitions. `on_batch` is called for each batch that lands."""

    def __init__(
        self,
        rng: random.Random,
        weather: Weather,
        *,
        on_batch: Callable[[TopicPartition, list[Stored]], None],
    ) -> None:
        self.rng, self.weather = rng, weather
        self.logs: dict[TopicPartition, Log] = {}
        self.control_topics: set[str] = set()
        self.group = FakeGroup()
        self._on_batch = on_batch
        self._late: dict[int, Request] = {}
        self._number = 0
        self._producer_ids = 0
        self._known: dict[tuple[TopicPartition, int], Known] = {}
        self._forgotten: set[tuple[TopicPartition, int, int]] = set()
        self.transactions = FakeTransactions(self._end_transaction)
        self.places: dict[tuple[TopicPartition, int, int, int], int] = {}
        """The offset of each batch by producer id, epoch and first sequence."""

    def log(self, place: TopicPartition) -> Log:
        """The log of one partition, made when it is first asked for."""
        log = self.logs.get(place)
        if log is None:
            log = self.logs[place] = Log(
                place.partition, decoded=place.topic not in self.control_topics
            )
        return log

    def new_producer_id(self) -> int:
        """One that nobody had."""
        self._producer_ids += 1
        return self._producer_ids

    def forget_producer(self, place: TopicPartition, producer_id: int) -> None:
        """The state of a producer id is lost; what comes of it is not accepted any more."""
        if (known := self._known.get((place, producer_id))) is not None:
            self._forgotten.add((place, producer_id, known.epoch))

    def land(self, request: Request) -> None:
        """The batch is in the log, if the rules of sequences and transactions let it; nobody is
        notified."""
        request.lands = None
        producer_id, epoch, sequence, count = batch_head(request.data)
        place, key = request.place, (request.place, producer_id)
        if (*key, epoch) in self._forgotten:
            request.code = self.unknown()
            return
        known = self._known.setdefault(key, Known(epoch))
        if epoch > known.epoch and sequence == 0:
            known = self._known[key] = Known(epoch)
        for first, length, offset in known.batches:
            if (first, length) == (sequence, count) and known.epoch == epoch:
                request.code, request.offset = self.repeated(offset)
                return
        if known.batches:
            last, length, _ = known.batches[-1]
            if epoch != known.epoch or sequence != (last + length) & _MASK:
                request.code = INVALID_EPOCH if epoch != known.epoch else OUT_OF_ORDER
                return
        log, within = self.log(place), is_transactional(request.data)
        if epoch < known.epoch:
            request.code = INVALID_EPOCH
            return
        if within and not log.has_open(producer_id):
            request.code = self.transactions.verify((producer_id, epoch), place)
            if request.code:
                return
        request.offset, shown = log.append(
            asyncio.get_running_loop().time(),
            list(unpacked(request.data)),
            producer_id if within else None,
        )
        known.batches.append((sequence, count, request.offset))
        self.places[place, producer_id, epoch, sequence] = request.offset
        self._on_batch(place, shown)

    def _end_transaction(
        self, place: TopicPartition, producer: tuple[int, int], *, committed: bool
    ) -> None:
        """A marker lands; from here on the partition knows the epoch of it."""
        known = self._known.setdefault((place, producer[0]), Known(producer[1]))
        if known.epoch < producer[1]:
            self._known[place, producer[0]] = Known(producer[1])
        self._on_batch(place, self.log(place).end_transaction(producer[0], committed=committed))

    def unknown(self) -> int:
        """The answer to a producer whose state was lost."""
        return UNKNOWN_PRODUCER

    def repeated(self, offset: int) -> tuple[int, int]:
        """Code and offset for a batch that is there already."""
        return OK, offset

    def strand(self, request: Request) -> None:
        """Its connection is no more: it lands at once, late, or never."""
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
    """One process's way to the broker: makes what its producer asks, and dies with it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.dead = False
        self.transports: list[Connection] = []

    def reach(self, _connection: KafkaConnection) -> Brokers:
        """As `Brokers`."""
        return Cluster(self)

    def render(self, _place: TopicPartition, data: bytes) -> bytes:
        """The bytes of a batch as they arrive."""
        return data

    def die(self) -> None:
        """kill -9: nothing leaves any more."""
        if not self.dead:
            self.dead = True
            for transport in self.transports:
                transport.abort()


class Cluster(Brokers):
    """What a producer asks beside appending; sometimes nobody answers."""

    def __init__(self, wire: Wire) -> None:
        self.errors = {}
        self._wire, self._broker = wire, wire.broker

    async def _asked(self) -> None:
        broker = self._broker
        await asyncio.sleep(broker.rng.random() * broker.weather.delay_s)
        if self._wire.dead:
            await asyncio.Event().wait()
        if broker.rng.random() < broker.weather.lost:
            raise KafkaConnectionError("no broker answers")

    async def refresh(self, _topics: Collection[str]) -> None:
        await self._asked()

    def leader(self, _topic: str, _partition: int) -> int:
        """Broker 0 leads everything."""
        return 0

    def forget(self, topic: str) -> None:
        """Nothing is held."""

    async def producer_id(self) -> tuple[int, int]:
        await self._asked()
        return self._broker.new_producer_id(), 0

    async def coordinator(self, _group: str) -> Coordinator:
        await self._asked()
        return FakeCoordinator(self._broker.group, self._asked)

    async def transaction_coordinator(self, transactional_id: str) -> TransactionCoordinator:
        await self._asked()
        return FakeTransactionCoordinator(self._broker.transactions, transactional_id, self._sent)

    async def _sent(self, ask: Callable[[], Answer]) -> Answer:
        """A request leaves; what it does, it does whatever becomes of its sender."""
        loop, broker = asyncio.get_running_loop(), self._broker
        rng, weather = broker.rng, broker.weather
        if self._wire.dead:
            await asyncio.Event().wait()
        answered: asyncio.Future[Answer] = loop.create_future()

        def lands() -> None:
            answer = ask()
            if not answered.done():
                answered.set_result(answer)

        fate, there_s = rng.random(), rng.random() * weather.delay_s
        if fate < weather.lost:
            await asyncio.sleep(there_s)
        elif fate < weather.lost + weather.late:
            loop.call_later(rng.random() * LATE_S, lands)
            await asyncio.sleep(there_s)
        else:
            loop.call_later(there_s, lands)
            answer = await answered
            await asyncio.sleep(rng.random() * weather.delay_s)
            if fate >= weather.lost + weather.late + weather.lost_ack:
                return answer
        raise KafkaConnectionError("no broker answers")

    async def open(self, _node: int, link: Link) -> None:
        await self._asked()
        link.adopt(Connection(self._wire, link))

    async def topic_ids(self, topics: Collection[str]) -> dict[str, bytes | None]:
        await self._asked()
        return dict.fromkeys(topics, b"id")

    async def end_offset(self, topic: str, partition: int) -> int:
        await self._asked()
        return self._broker.log(TopicPartition(topic, partition)).end

    async def locate(
        self, topic: str, partition: int, start: int, producer: tuple[int, int], sequence: int
    ) -> int | None:
        await self._asked()
        found = self._broker.places.get((TopicPartition(topic, partition), *producer, sequence))
        return found if found is not None and found >= start else None

    def close(self) -> None:
        """Nothing is held."""


class Connection(FakeTransport):
    """A connection whose requests meet the weather; what it brings arrives in order."""

    def __init__(self, wire: Wire, link: Link) -> None:
        super().__init__(link)
        self._wire, self._broker = wire, wire.broker
        self._loop = asyncio.get_running_loop()
        self._there_s = self._back_s = 0.0
        self._requests: list[Request] = []
        self._silent = self._withholds = False
        wire.transports.append(self)

    def write(self, data: Any) -> None:
        """A produce request leaves, and meets its fate."""
        if self._wire.dead or self.ended:
            return
        broker, rng, weather = self._broker, self._broker.rng, self._broker.weather
        correlation, batches = produce_request(data)
        requests = [self._request(*each) for each in batches]
        self._requests += requests
        fate, self._withholds = rng.random(), rng.random() < 0.3
        now_s, at = self._loop.time(), self._loop.call_at
        self._there_s = max(self._there_s + 1e-6, now_s + rng.random() * weather.delay_s)
        self._back_s = max(self._back_s, self._there_s) + 1e-6 + rng.random() * weather.delay_s
        if fate < weather.lost:
            self._leave(requests)
            at(self._there_s, self._cut)
        elif fate < weather.lost + weather.late:
            for request in requests:
                broker.delay(request)
            at(self._there_s, self._cut)
        else:
            lands = at(self._there_s, self._land, requests)
            for request in requests:
                request.lands = lands
            if fate < weather.lost + weather.late + weather.lost_ack:
                at(self._back_s, self._cut)
            else:
                at(self._back_s, self._answer, correlation, requests)

    def _request(self, topic: str, index: int, data: bytes) -> Request:
        place = TopicPartition(topic, index)
        return Request(place, self._wire.render(place, data))

    def _leave(self, requests: list[Request]) -> None:
        self._requests = [each for each in self._requests if each not in requests]

    def _land(self, requests: list[Request]) -> None:
        broker = self._broker
        for request in requests:
            if broker.rng.random() < broker.weather.renewed:
                broker.forget_producer(request.place, batch_head(request.data)[0])
            broker.land(request)

    def _answer(self, correlation: int, requests: list[Request]) -> None:
        self._leave(requests)
        rng, weather = self._broker.rng, self._broker.weather
        for request in requests:
            if request.code == OK and rng.random() < weather.lost_ack / 4:
                request.code = TIMED_OUT
        answers = [(*each.place, each.code, each.offset) for each in requests]
        if not self._silent:
            self.receive(answer_frame(correlation, answers))

    def _cut(self) -> None:
        """The connection ends, or nothing comes by it any more."""
        if self._withholds:
            self._silent = True
        elif not self.ended:
            self.abort()
            self.lose()

    def abort(self) -> None:
        """What is on its way may land all the same."""
        if self.ended:
            return
        super().abort()
        for request in self._requests:
            self._broker.strand(request)
        self._requests = []


def unpacked(data: bytes) -> Iterator[Raw]:
    """The records that a broker would store."""
    records = MemoryRecords(data)
    while records.has_next():
        for record in records.next_batch():
            yield record.key, record.value, tuple(record.headers)
