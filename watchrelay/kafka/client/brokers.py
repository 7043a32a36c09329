"""What a producer asks of a cluster beside appending: leaders, topic ids, producer ids, and where
a batch is in the log.

One connection of aiokafka's, to any broker; when it fails, the others are tried and then the
bootstrap servers, so that brokers that were all replaced are found.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Collection
from typing import Any, NamedTuple

from aiokafka.conn import AIOKafkaConnection, collect_hosts
from aiokafka.errors import KafkaConnectionError, KafkaError, for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.transaction import InitProducerIdRequest

from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.link import Link, no_surprises
from watchrelay.kafka.client.metadata import TopicsRequest, ids_in, topics_in

_REQUEST_TIMEOUT_S = 5.0
_ID_RETRY_S = 0.1
_COORDINATOR_BUSY = frozenset((14, 15, 16))
_OFFSET_OUT_OF_RANGE = 1
_LOCATE_BYTES = 1 << 20
_LOCATE_FETCHES = 64
_BATCH_HEAD = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, checksum, attributes, last offset delta, first and
highest time, producer, its epoch, base sequence, number of records."""


class Brokers:
    """A cluster as it was last described. Use: `await refresh(...)`, then ask; `close()` at the
    end.

    `leaders`: node id by topic and partition, -1 for none. `errors`: code by topic that the
    brokers gave no partitions of.

    Every method that asks raises KafkaError or OSError when nobody answers.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        """Raises: SinkMisconfigured when secrets cannot be read."""
        self.leaders: dict[tuple[str, int], int] = {}
        self.errors: dict[str, int] = {}
        self._arguments = connection.arguments()
        self._bootstrap = collect_hosts(self._arguments.pop("bootstrap_servers"))
        self._arguments["request_timeout_ms"] = int(_REQUEST_TIMEOUT_S * 1000)
        self._nodes: dict[int, tuple[str, int]] = {}
        self._asking: _Asked | None = None
        self._connecting = asyncio.Lock()

    async def refresh(self, topics: Collection[str]) -> None:
        """Ask for the brokers and the leaders of `topics`; what is not among them is forgotten."""
        answer = await self._ask(TopicsRequest(topics))
        nodes = {node: (host, port) for node, host, port, *_ in answer.brokers}
        if not nodes:
            raise KafkaConnectionError("the broker knows no broker: it has only just started")
        self._nodes, self.leaders, self.errors = nodes, {}, {}
        for code, topic, partitions in topics_in(answer):
            if code:
                self.errors[topic] = code
            for _, partition, leader, *_ in partitions:
                self.leaders[topic, partition] = leader if leader in nodes else -1

    async def topic_ids(self, topics: Collection[str]) -> dict[str, bytes | None]:
        """As `metadata.topic_ids`."""
        return ids_in(await self._ask(TopicsRequest(topics)))

    async def producer_id(self) -> tuple[int, int]:
        """A producer id that nobody else has, and its epoch."""
        while True:
            answer = await self._ask(InitProducerIdRequest(None, 0))
            if not answer.error_code:
                return answer.producer_id, answer.producer_epoch
            if answer.error_code not in _COORDINATOR_BUSY:
                raise for_code(answer.error_code)
            await asyncio.sleep(_ID_RETRY_S)

    async def open(self, node: int, link: Link) -> None:
        """Connect `link` to the broker of that id, which is a leader."""
        host, port = self._nodes[node]
        await link.open(host, port, self._arguments)

    async def locate(
        self, topic: str, partition: int, start: int, producer: tuple[int, int], sequence: int
    ) -> int | None:
        """The offset of the batch with that producer id, epoch and base sequence, which is not
        before `start`; None if it is not found up to the end of the partition."""
        node = self.leaders.get((topic, partition), -1)
        host, port = self._nodes[node] if node in self._nodes else self._candidates()[0]
        leader = await self._connected(host, port)
        try:
            for _ in range(_LOCATE_FETCHES):
                request = FetchRequest(
                    0, 1, _LOCATE_BYTES, 0, [(topic, [(partition, start, _LOCATE_BYTES)])]
                )
                answer = await leader.answer(request)
                with no_surprises():
                    (_, ((_, code, high_watermark, *_, data),)) = answer.topics[0]
                if code == _OFFSET_OUT_OF_RANGE:
                    return None
                if code:
                    raise for_code(code)
                for offset, end, found in _batches(data):
                    if found == (*producer, sequence):
                        return offset
                    start = max(start, end)
                if not data or start >= high_watermark:
                    break
            return None
        finally:
            leader.close()

    def close(self) -> None:
        """Let the connection go."""
        if self._asking is not None:
            self._asking.close()
            self._asking = None

    # ---- one question ----------------------------------------------------------------------------

    async def _ask(self, request: Any) -> Any:
        async with self._connecting:
            if self._asking is not None and self._asking.connection.connected():
                try:
                    return await self._asking.answer(request)
                except (KafkaError, OSError):
                    self.close()
            failure: Exception = KafkaConnectionError("no broker is known")
            for host, port in self._candidates():
                try:
                    self._asking = await self._connected(host, port)
                    return await self._asking.answer(request)
                except (KafkaError, OSError) as error:
                    self.close()
                    failure = error
            raise failure

    def _candidates(self) -> list[tuple[str, int]]:
        known = list(self._nodes.values())
        random.shuffle(known)
        return list(dict.fromkeys([*known, *((host, port) for host, port, _ in self._bootstrap)]))

    async def _connected(self, host: str, port: int) -> _Asked:
        connection = AIOKafkaConnection(host, port, **self._arguments)
        with no_surprises():
            _, writer = await connection.connect()
        return _Asked(connection, writer.transport)


class _Asked(NamedTuple):
    """A connection of aiokafka's."""

    connection: AIOKafkaConnection
    transport: asyncio.Transport

    async def answer(self, request: Any) -> Any:
        """Raises: KafkaError, OSError."""
        with no_surprises():
            return await self.connection.send(request)

    def close(self) -> None:
        """At once: TLS would wait for the broker to say good-bye."""
        self.connection.close()
        self.transport.abort()


def _batches(data: bytes) -> list[tuple[int, int, tuple[int, int, int]]]:
    """Of each batch its offset, the offset behind it, and producer id, epoch and base sequence."""
    found = []
    at = 0
    while len(data) - at >= _BATCH_HEAD.size:
        head = _BATCH_HEAD.unpack_from(data, at)
        offset, length, last_delta = head[0], head[1], head[6]
        found.append((offset, offset + last_delta + 1, (head[9], head[10], head[11])))
        at += 12 + max(0, length)
    return found
