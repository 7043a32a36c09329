"""The connections of one process to the broker: what its producer sends and asks meets the weather,
and ends with the process.

Input: frames and requests of a producer. Output: batches that reach the broker, or do not, and what
it answers, if that comes back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError

from tests.simulation.broker import LATE_S, OK, TIMED_OUT, Broker, Request
from tests.support.groupfake import FakeCoordinator
from tests.support.producefake import FakeTransport, answer_frame, batch_head, produce_request
from tests.support.transactionfake import FakeTransactionCoordinator
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.coordinator import Coordinator
from watchrelay.kafka.client.link import Link
from watchrelay.kafka.client.transaction_coordinator import TransactionCoordinator

Answer = TypeVar("Answer")


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

    def ask_another(self) -> None:
        """They are all equal."""

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

    async def end_offset(self, topic: str, partition: int, *, committed: bool = False) -> int:
        await self._asked()
        log = self._broker.log(TopicPartition(topic, partition))
        return log.stable if committed else log.end

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
        return Request(place, self._wire.render(place, data), self._loop.time())

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
