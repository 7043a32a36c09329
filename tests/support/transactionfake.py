"""A coordinator of transactions in the time of the loop: who has a transactional id, what is in its
transaction, and the markers that end it. Requests come as values, without a socket.

Source: Kafka 4.1, `TransactionCoordinator`; KIP-360, KIP-890 (a batch is checked with the
coordinator when it is the first of a transaction in its partition).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from aiokafka import TopicPartition

from watchrelay.kafka.client.transaction_coordinator import TransactionCoordinator

OK, INVALID_EPOCH, INVALID_STATE, UNKNOWN_ID, CONCURRENT, FENCED = 0, 47, 48, 49, 51, 90
_PRODUCER_IDS = 1_000_000
"""Above those of producers without transactions."""

Producer = tuple[int, int]
"""A producer id and its epoch."""
Answer = TypeVar("Answer")


class Sent(Protocol):
    """The way of a request to the coordinator, and of its answer back."""

    def __call__(self, ask: Callable[[], Answer]) -> Awaitable[Answer]: ...


class Marks(Protocol):
    """What writes a marker."""

    def __call__(self, place: TopicPartition, producer: Producer, *, committed: bool) -> None: ...


@dataclass(eq=False)
class Transactional:
    """One transactional id. `marking`: partitions whose marker is on its way."""

    producer_id: int
    epoch: int = -1
    timeout_s: float = 0.0
    places: set[TopicPartition] = field(default_factory=set)
    marking: set[TopicPartition] = field(default_factory=set)
    is_committed: bool = False
    """So ended the newest transaction."""
    expiry: asyncio.TimerHandle | None = None


class FakeTransactions:
    """All transactional ids. `marker_s`: seconds from the end of a transaction to each marker."""

    def __init__(self, mark: Marks) -> None:
        self.ids: dict[str, Transactional] = {}
        self.marker_s: Callable[[], float] = lambda: 0.0
        self.timeouts = 0
        self._mark = mark

    def take(self, transactional_id: str, timeout_s: float) -> tuple[int, Producer]:
        """InitProducerId."""
        known = self.ids.setdefault(transactional_id, Transactional(_PRODUCER_IDS + len(self.ids)))
        if known.places:
            if not known.marking:
                known.epoch += 1
                self._end(known, committed=False)
            return CONCURRENT, (-1, -1)
        known.epoch += 1
        known.timeout_s, known.is_committed = timeout_s, False
        return OK, (known.producer_id, known.epoch)

    def add(
        self, transactional_id: str, producer: Producer, places: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """AddPartitionsToTxn."""
        known = self.ids.get(transactional_id)
        code = self._refusal(known, producer)
        if known is not None and not code:
            if not known.places:
                known.expiry = asyncio.get_running_loop().call_later(
                    known.timeout_s, self._expire, known
                )
            known.places |= set(places)
        return dict.fromkeys(places, code)

    def commit(self, transactional_id: str, producer: Producer) -> int:
        """EndTxn."""
        known = self.ids.get(transactional_id)
        code = self._refusal(known, producer)
        if known is None or code:
            return code
        if not known.places:
            return OK if known.is_committed else INVALID_STATE
        self._end(known, committed=True)
        return OK

    def verify(self, producer: Producer, place: TopicPartition) -> int:
        """The code for the first batch of a transaction in a partition."""
        known = next(each for each in self.ids.values() if each.producer_id == producer[0])
        if producer[1] != known.epoch:
            return INVALID_EPOCH
        return OK if place in known.places and not known.marking else INVALID_STATE

    @staticmethod
    def _refusal(known: Transactional | None, producer: Producer) -> int:
        if known is None or known.producer_id != producer[0]:
            return UNKNOWN_ID
        if known.epoch != producer[1]:
            return INVALID_EPOCH
        return CONCURRENT if known.marking else OK

    def _expire(self, known: Transactional) -> None:
        """The transaction took too long."""
        self.timeouts += 1
        known.epoch += 1
        self._end(known, committed=False)

    def _end(self, known: Transactional, *, committed: bool) -> None:
        if known.expiry is not None:
            known.expiry.cancel()
        known.is_committed, known.marking = committed, set(known.places)
        producer = (known.producer_id, known.epoch)
        for place in sorted(known.places):
            asyncio.get_running_loop().call_later(
                self.marker_s(), self._marked, known, place, producer, committed
            )

    def _marked(
        self, known: Transactional, place: TopicPartition, producer: Producer, committed: bool
    ) -> None:
        self._mark(place, producer, committed=committed)
        known.marking.discard(place)
        if not known.marking:
            known.places = set()


class FakeTransactionCoordinator(TransactionCoordinator):
    """A connection to it. `sent` carries a request there, and its answer back; it may raise
    KafkaConnectionError."""

    def __init__(self, transactions: FakeTransactions, transactional_id: str, sent: Sent) -> None:
        self._transactions, self._id, self._sent = transactions, transactional_id, sent

    async def take(self, *, timeout_s: float) -> tuple[int, Producer]:
        return await self._sent(lambda: self._transactions.take(self._id, timeout_s))

    async def add(
        self, producer: Producer, places: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        return await self._sent(lambda: self._transactions.add(self._id, producer, places))

    async def commit(self, producer: Producer) -> int:
        return await self._sent(lambda: self._transactions.commit(self._id, producer))

    def close(self) -> None:
        """Nothing is held."""
