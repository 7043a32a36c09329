"""The sink and its producer, with a cluster whose answers the test gives, byte by byte."""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from aiokafka.errors import KafkaConnectionError, SaslAuthenticationFailed

from tests.support.producefake import FakeTransport, answer_frame, produce_request
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.link import Link
from watchrelay.kafka.producer import ProducerSettings
from watchrelay.kafka.record_times import RecordTimes
from watchrelay.kafka.sink import KafkaSink
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

TOO_LARGE, DUPLICATE, UNKNOWN_PRODUCER, INVALID_RECORD, NOT_LEADER = 10, 46, 59, 87, 6
INVALID_TIMESTAMP, TIMED_OUT, OUT_OF_ORDER = 32, 7, 45
CONNECTION = KafkaConnection(bootstrap_servers=("nowhere:1",))


class Cluster(Brokers):
    """One view of the cluster. Partition n is led by broker n % 2. The broker that is asked first
    may have outdated metadata."""

    def __init__(self, stage: "Stage", connection: KafkaConnection) -> None:
        self._stage = stage
        self._password = connection.arguments().get("sasl_plain_password", "")
        self._led: dict[str, dict[int, int]] = {}
        self._is_first = True
        stage.reached += 1

    async def _ask(self, _request: object = None) -> None:
        await asyncio.sleep(self._stage.answer_s)
        if self._password != self._stage.password:
            raise SaslAuthenticationFailed("wrong password")
        if self._stage.is_away:
            raise KafkaConnectionError("no broker answers")

    async def refresh(self, topics: Collection[str]) -> None:
        await self._ask()
        self._stage.asked.append(sorted(topics))
        former = self._stage.former_leaders
        led = self._stage.leaders if former is None or not self._is_first else former
        self._led |= {
            topic: {each: led.get(each, each % 2) for each in range(40)} for topic in topics
        }

    async def topic_ids(self, topics: Collection[str]) -> dict[str, bytes | None]:
        await self._ask()
        known = self._stage.former_leaders is None or not self._is_first
        known = known and self._stage.topics_known
        self._stage.ids.append(self._stage.topic_id if known else None)
        return dict.fromkeys(topics, self._stage.ids[-1])

    def ask_another(self) -> None:
        self._is_first = False

    def forget(self, topic: str) -> None:
        self._led.pop(topic, None)

    def error(self, topic: str, partition: int) -> int:
        return 3 if self.leader(topic, partition) is None else 5

    def leader(self, topic: str, partition: int) -> int | None:
        node = self._led.get(topic, {}).get(partition)
        return -1 if node in self._stage.down else node

    async def producer_id(self) -> tuple[int, int]:
        await self._ask()
        self._stage.producer_ids += 1
        return self._stage.producer_ids, 0

    async def open(self, node: int, link: Link) -> None:
        await self._ask()
        if node in self._stage.slow_and_closed:
            await asyncio.sleep(1.0)
            raise ConnectionRefusedError(f"broker {node} is away")
        if node in self._stage.untrusted:
            raise ssl.SSLError("certificate has expired")
        if node in self._stage.vanished:
            raise KafkaConnectionError("it is not named any more")
        transport = FakeTransport(link)
        link.session_s = self._stage.session_s
        self._stage.links.setdefault(node, []).append(transport)
        link.adopt(transport)

    async def locate(
        self, topic: str, partition: int, start: int, producer: tuple[int, int], sequence: int
    ) -> int | None:
        await self._ask()
        return self._stage.found

    def close(self) -> None:
        """Nothing is held."""


class Stage:
    """A sink, and the connections that its producer opened so far, by broker."""

    def __init__(
        self, connection: KafkaConnection = CONNECTION, times: RecordTimes | None = None
    ) -> None:
        self.links: dict[int, list[FakeTransport]] = {}
        self.connection, self.statuses, self.metrics = connection, StatusRegistry(), Metrics()
        self.reached = self.producer_ids = 0
        self.leaders: dict[int, int] = {}
        """By partition, where it is not the usual one."""
        self.former_leaders: dict[int, int] | None = None
        """So the broker names them that is asked first, which does not know any topic's id."""
        self.slow_and_closed: set[int] = set()
        """Brokers whose connection fails after a second."""
        self.topics_known, self.topic_id = True, b"id"
        """Whether brokers know topics, and under which id."""
        self.ids: list[bytes | None] = []
        """What was answered about the ids of topics."""
        self.asked: list[list[str]] = []
        """The topics of each request for metadata."""
        self.down: set[int] = set()
        """Brokers that the others do not name as leaders."""
        self.vanished: set[int] = set()
        """Brokers that are named, and cannot be connected to."""
        self.untrusted: set[int] = set()
        """Brokers whose certificate is refused."""
        self.session_s = 0.0
        """How long brokers accept requests after a login."""
        self.found: int | None = None
        self.password, self.answer_s, self.is_away = "", 0.0, False
        """The one that is accepted, and how long a question takes."""
        self.sink = KafkaSink(
            connection,
            metrics=self.metrics,
            statuses=self.statuses,
            settings=ProducerSettings(request_timeout_s=4.0, request_bytes=1000),
            times=times,
            make_brokers=lambda connection: Cluster(self, connection),
        )

    def deliver(
        self, tasks: asyncio.TaskGroup, partition: int, *, size: int = 1, stream: str = "pods"
    ) -> asyncio.Task[Receipt]:
        record = WireRecord(b"a", random.Random(partition).randbytes(size), [])
        return tasks.create_task(
            self.sink.deliver(Batch("t", partition, [record], stream)), name="delivery"
        )

    def sent(self, node: int = 0) -> list[tuple[int, list[tuple[int, bytes]]]]:
        """What left by the newest link to a broker: correlation id, batches by partition."""
        requests = [produce_request(each) for each in self.links[node][-1].written]
        return [
            (number, [(partition, data) for _, partition, data in batches])
            for number, batches in requests
        ]

    def answer(
        self,
        code: int = 0,
        offset: int = 0,
        *,
        node: int = 0,
        at: int = -1,
        appended_ms: int = -1,
    ) -> None:
        """Answer a request of the newest link."""
        number, batches = self.sent(node)[at]
        self.links[node][-1].receive(
            answer_frame(
                number,
                [("t", partition, code, offset) for partition, _ in batches],
                appended_ms=appended_ms,
            )
        )

    def rebuilds(self, reason: str) -> float:
        return (
            self.metrics.registry.get_sample_value(
                "watchrelay_producer_rebuilds_total", {"reason": reason}
            )
            or 0.0
        )


@asynccontextmanager
async def staged(
    connection: KafkaConnection = CONNECTION,
    *,
    password: str = "",
    times: RecordTimes | None = None,
) -> AsyncIterator[tuple[Stage, asyncio.TaskGroup]]:
    stage = Stage(connection, times)
    stage.password = password
    async with asyncio.TaskGroup() as tasks:
        sink = tasks.create_task(stage.sink.run(), name="sink")
        await asyncio.sleep(0.01)
        yield stage, tasks
        sink.cancel()
        await asyncio.wait([sink])
        for task in asyncio.all_tasks():
            if task.get_name() == "delivery":
                task.cancel()
