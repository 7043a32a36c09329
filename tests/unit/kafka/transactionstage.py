"""A coordinator and leaders whose answers a test gives, and a sink that writes within transactions
to them."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from aiokafka.errors import KafkaConnectionError

from tests.support.producefake import (
    FakeTransport,
    answer_frame,
    batch_head,
    is_transactional,
    produce_request,
    transactional_id,
)
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.link import Link
from watchrelay.kafka.client.transaction_coordinator import TransactionCoordinator
from watchrelay.kafka.producer import ProducerSettings
from watchrelay.kafka.record_times import RecordTimes
from watchrelay.kafka.sink import KafkaSink
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

Delivered = asyncio.Task[Receipt]
ID, FORMER = "k8s.c.pods", "k8s.c.pods-of-before"
AWAY = KafkaConnectionError("no broker answers")
TOO_LARGE, NOT_LEADER = 10, 6


class Coordinator(TransactionCoordinator):
    """Answers with what the test has scripted for a request, else with 0."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage, self._name = stage, name

    async def _answer(self, request: str) -> int:
        await asyncio.sleep(0.001)
        self._stage.seen.append(request)
        script = self._stage.script[request.split()[0]]
        answer = script.popleft() if script else 0
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def take(self, *, timeout_s: float) -> tuple[int, tuple[int, int]]:
        assert timeout_s == 15.0
        if not (code := await self._answer(f"take {self._name}")):
            self._stage.epoch += 1
        return code, (7, self._stage.epoch)

    async def add(
        self, producer: tuple[int, int], places: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        partitions = ",".join(str(each.partition) for each in places)
        code = await self._answer(f"add {partitions} by {producer[1]}")
        return dict.fromkeys(places, code)

    async def commit(self, producer: tuple[int, int]) -> int:
        return await self._answer(f"commit by {producer[1]}")

    def close(self) -> None:
        """Nothing is held."""


class Cluster(Brokers):
    """Broker 0 leads all partitions but those that are `leaderless`, and coordinates; partition 9
    has a broker of its own."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def refresh(self, topics: Collection[str]) -> None:
        await asyncio.sleep(0.001)

    def ask_another(self) -> None:
        self._stage.others_asked += 1

    def error(self, topic: str, partition: int) -> int:
        return 3 if self.leader(topic, partition) is None else 5

    def leader(self, topic: str, partition: int) -> int | None:
        return -1 if partition in self._stage.leaderless else partition // 9

    def forget(self, topic: str) -> None:
        """Nothing is known."""

    async def topic_ids(self, topics: Collection[str]) -> dict[str, bytes | None]:
        return {}

    async def producer_id(self) -> tuple[int, int]:
        return 1, 0

    async def open(self, node: int, link: Link) -> None:
        if self._stage.is_closed or node in self._stage.away:
            raise ConnectionRefusedError
        link.adopt(Leader(self._stage, link))

    async def transaction_coordinator(self, transactional_id: str) -> Coordinator:
        return Coordinator(self._stage, transactional_id)

    async def locate(self, *_: object) -> None:
        """The batch is not in the log."""

    def close(self) -> None:
        """Nothing is held."""


class Leader(FakeTransport):
    """Answers each produce request by the script."""

    def __init__(self, stage: Stage, link: Link) -> None:
        super().__init__(link)
        self._stage = stage

    def write(self, data: Any) -> None:
        super().write(data)
        number, batches = produce_request(data)
        if len(batches) > self._stage.at_once:
            return
        name = transactional_id(data)
        answers = []
        for topic, partition, content in batches:
            producer, epoch, sequence, count = batch_head(content)
            assert is_transactional(content) == bool(name) == (producer == 7)
            self._stage.seen.append(f"write {partition}: {sequence} by {epoch}")
            script = self._stage.script[f"write{partition}"]
            code = script.popleft() if script else 0
            if isinstance(code, Exception):
                return
            answers.append((topic, partition, code, self._stage.end if not code else -1))
            self._stage.end += count
        asyncio.get_running_loop().call_later(0.001, self.receive, answer_frame(number, answers))


class Stage:
    """A sink with one stream that writes within transactions. `seen`: what was asked."""

    def __init__(self, request_timeout_s: float = 4.0, times: RecordTimes | None = None) -> None:
        self.seen: list[str] = []
        self.script: dict[str, deque[int | Exception]] = defaultdict(deque)
        self.epoch = self.end = self.looks = self.others_asked = 0
        self.is_ours, self.is_closed = True, False
        self.at_once = 100
        """A request for more partitions is not answered in time."""
        self.leaderless: set[int] = set()
        self.away: set[int] = set()
        self.metrics, self.statuses = Metrics(), StatusRegistry()
        self.sink = KafkaSink(
            KafkaConnection(bootstrap_servers=("nowhere:1",)),
            metrics=self.metrics,
            statuses=self.statuses,
            settings=ProducerSettings(request_timeout_s=request_timeout_s),
            times=times,
            make_brokers=lambda _: Cluster(self),
        )

    async def look(self) -> bool:
        self.looks += 1
        self.seen.append("look")
        return self.is_ours

    async def begin(self, *former_ids: str) -> None:
        await self.sink.begin_transactions(
            "t", "pods", transactional_id=ID, former_ids=former_ids, is_ours=self.look
        )

    def deliver(self, *partitions: int) -> list[Delivered]:
        loop = asyncio.get_running_loop()
        return [
            loop.create_task(
                self.sink.deliver(Batch("t", each, [WireRecord(b"a", b"x", [])] * 2, "pods")),
                name="delivery",
            )
            for each in partitions
        ]

    def ended(self, result: str) -> float:
        return (
            self.metrics.registry.get_sample_value(
                "watchrelay_transactions_total", {"result": result}
            )
            or 0.0
        )


@asynccontextmanager
async def staged(*, begun: bool = True, **settings: Any) -> AsyncIterator[Stage]:
    stage = Stage(**settings)
    async with asyncio.TaskGroup() as tasks:
        sink = tasks.create_task(stage.sink.run(), name="sink")
        await asyncio.sleep(0.01)
        if begun:
            await stage.begin()
            stage.seen.clear()
            stage.looks = 0
        yield stage
        sink.cancel()
        await asyncio.wait([sink])
        for task in asyncio.all_tasks():
            if task.get_name() == "delivery":
                task.cancel()
