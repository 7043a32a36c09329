"""A broker: the logs of all partitions, and what each remembers of its producers.

Input: the batches of many producers, byte by byte. Output: logs, and the answer to each batch; what
is on its way when a connection ends lands at once, late or never.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from aiokafka import TopicPartition
from aiokafka.record.memory_records import MemoryRecords

from tests.simulation.partition_log import Log, Raw, Stored
from tests.simulation.weather import Weather
from tests.support.groupfake import FakeGroup
from tests.support.producefake import batch_head, is_transactional
from tests.support.transactionfake import FakeTransactions

LATE_S = 6.0
OK, TIMED_OUT, OUT_OF_ORDER, INVALID_EPOCH, UNKNOWN_PRODUCER = 0, 7, 45, 47, 59
_REMEMBERED = 5
_MASK = (1 << 31) - 1


@dataclass
class Known:
    """What a partition remembers of a producer id: its newest batches, as (first sequence, count,
    offset)."""

    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


@dataclass(eq=False)
class Request:
    """One batch on its way, sent at `sent_s`. `lands` is None once it landed, or will never."""

    place: TopicPartition
    data: bytes
    sent_s: float
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
        self.sent_s = 0.0
        """When the batch was sent that landed last."""
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
        request.lands, self.sent_s = None, request.sent_s
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


def unpacked(data: bytes) -> Iterator[Raw]:
    """The records that a broker would store."""
    records = MemoryRecords(data)
    while records.has_next():
        for record in records.next_batch():
            yield record.key, record.value, tuple(record.headers)
