"""What is asked of a cluster beside appending: leaders, topic ids, producer ids, where a batch is
in the log, and the coordinators of groups and transactional ids.

One connection of aiokafka's, to any broker; when it fails, the others are tried and then the
bootstrap servers, so that brokers that were all replaced are found. A broker that has lost the
controllers answers too, as of then: `ask_another` where an answer is in doubt.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Collection
from typing import Any, NamedTuple

from aiokafka.conn import AIOKafkaConnection, collect_hosts
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
)
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.protocol.transaction import InitProducerIdRequest

from watchrelay.kafka.client.batches import BATCH_HEAD
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.coordinator import Coordinator, find_coordinator
from watchrelay.kafka.client.error_codes import error_of
from watchrelay.kafka.client.link import Link, no_surprises
from watchrelay.kafka.client.metadata import TopicsRequest, ids_in, topics_in
from watchrelay.kafka.client.patches import abort, make_connection
from watchrelay.kafka.client.tokens import TOKEN_TIMEOUT_S
from watchrelay.kafka.client.transaction_coordinator import (
    TransactionCoordinator,
    find_transaction_coordinator,
)

_REQUEST_TIMEOUT_S = 5.0
_GROUP_TIMEOUT_S = 15.0
"""A coordinator answers a join once all members have joined."""
_ID_RETRY_S = 0.1
_ID_TRIES = 10
"""The number of answers without an id after which another broker is asked."""
_DOUBT_EVERY_S = 1.0
_COORDINATOR_BUSY = frozenset((14, 15, 16))
_UNKNOWN_PARTITION, _NO_LEADER = 3, 5
_BEGIN, _END = -2, -1
"""In place of a time, in a request for offsets."""
_LOCATE_OFFSETS = 5000
_LOCATE_BYTES = 1 << 20
_LOCATE_FETCHES = 64


class Brokers:
    """A cluster as it was last described. Use: `await refresh(...)`, then ask; `close()` at the
    end.

    Every method that asks raises KafkaError or OSError when no broker answers.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        """Raises: SinkMisconfigured when secrets cannot be read."""
        self._leaders: dict[str, dict[int, tuple[int, int]]] = {}
        """By topic and partition, node id and error code of the leader."""
        self._errors: dict[str, int] = {}
        """By topic of which the brokers gave no partitions."""
        self._arguments = connection.arguments()
        self._bootstrap = collect_hosts(self._arguments.pop("bootstrap_servers"))
        self._arguments["request_timeout_ms"] = int(_REQUEST_TIMEOUT_S * 1000)
        self._nodes: dict[int, tuple[str, int]] = {}
        self._asking: _Asked | None = None
        self._connecting = asyncio.Lock()
        self._failed: tuple[str, int] | None = None
        """The broker that did not answer, or that is in doubt: another is asked first."""
        self._doubted_s = float("-inf")
        self._is_closed = False

    async def refresh(self, topics: Collection[str]) -> None:
        """Ask for the brokers, and for the leaders of `topics`; those of others stay as they
        are."""
        answer = await self._ask(TopicsRequest(topics))
        with no_surprises():
            nodes = {
                node: (host, port)
                for node, host, port, *_ in answer.brokers
                if host and 0 < port < 1 << 16
            }
            found = [
                (code, topic, {number: (leader, error) for error, number, leader, *_ in partitions})
                for code, topic, partitions in topics_in(answer)
            ]
        if not nodes:
            raise KafkaConnectionError("the broker knows no broker: it has only just started")
        self._nodes = nodes
        for topic in topics:
            self.forget(topic)
        for code, topic, leaders in found:
            if code:
                self._errors[topic] = code
            self._leaders[topic] = leaders

    def leader(self, topic: str, partition: int) -> int | None:
        """The node id of a leader, as last asked for; -1 while there is none, None where the
        brokers did not name the partition."""
        node, _ = self._leaders.get(topic, {}).get(partition, (None, 0))
        return node if node is None or node in self._nodes else -1

    def error(self, topic: str, partition: int) -> int:
        """The code of the error for which the partition has no leader that can be asked."""
        if code := self._errors.get(topic):
            return code
        _, code = self._leaders.get(topic, {}).get(partition, (-1, _UNKNOWN_PARTITION))
        return code or _NO_LEADER

    def forget(self, topic: str) -> None:
        """The leaders of the topic are no longer asked for."""
        self._leaders.pop(topic, None)
        self._errors.pop(topic, None)

    async def topic_ids(self, topics: Collection[str]) -> dict[str, bytes | None]:
        """As `metadata.topic_ids`."""
        return ids_in(await self._ask(TopicsRequest(topics)))

    async def producer_id(self) -> tuple[int, int]:
        """A producer id that no other producer has, and its epoch."""
        for tries in itertools.count(1):
            answer = await self._ask(InitProducerIdRequest(None, 0))
            if not answer.error_code:
                break
            if answer.error_code not in _COORDINATOR_BUSY:
                raise error_of(answer.error_code)
            if tries % _ID_TRIES == 0:
                self.ask_another()
            await asyncio.sleep(_ID_RETRY_S)
        return answer.producer_id, answer.producer_epoch

    async def coordinator(self, group: str) -> Coordinator:
        """A connection of its own to the coordinator of a group."""
        asked = await self._coordinating(find_coordinator(group), timeout_s=_GROUP_TIMEOUT_S)
        return Coordinator(asked, group)

    async def transaction_coordinator(self, transactional_id: str) -> TransactionCoordinator:
        """A connection of its own to the coordinator of a transactional id."""
        asked = await self._coordinating(find_transaction_coordinator(transactional_id))
        return TransactionCoordinator(asked, transactional_id)

    async def _coordinating(self, request: Any, *, timeout_s: float = _REQUEST_TIMEOUT_S) -> _Asked:
        await self.refresh(())  # so that other brokers than the bootstrap servers are asked
        answer = await self._ask(request)
        if answer.error_code:
            raise error_of(answer.error_code)
        return await self._connected(answer.host, answer.port, timeout_s=timeout_s)

    async def open(self, node: int, link: Link) -> None:
        """Connect `link` to the broker of that id, which is a leader."""
        if node not in self._nodes:
            raise KafkaConnectionError(f"the brokers no longer name broker {node}")
        host, port = self._nodes[node]
        await link.open(host, port, self._arguments)

    async def end_offset(self, topic: str, partition: int, *, committed: bool = False) -> int:
        """The end of a partition, as its leader knows it; `committed`: that of what readers of
        committed records can read."""
        async with self._leading(topic, partition) as leader:
            return await leader.offset(topic, partition, _END, committed=committed)

    async def locate(
        self, topic: str, partition: int, start: int, producer: tuple[int, int], sequence: int
    ) -> int | None:
        """The offset of the batch with that producer id, epoch and base sequence, which is not
        before `start`, or among the newest offsets if that is negative; None if it is not found up
        to the end of the partition, or in 64 MiB: then it is sent again under another identity, and
        readers drop the second copy by its positions."""
        async with self._leading(topic, partition) as leader:
            end = await leader.offset(topic, partition, _END)
            begin = await leader.offset(topic, partition, _BEGIN)
            start = max(begin, end - _LOCATE_OFFSETS if start < 0 else start)
            for _ in range(_LOCATE_FETCHES):
                if start >= end:
                    break
                for offset, stop, found in _batches(await leader.fetch(topic, partition, start)):
                    if found == (*producer, sequence):
                        return offset
                    start = max(start, stop)
            return None

    def ask_another(self) -> None:
        """What the broker answers that was asked last may be outdated: ask another next, if any
        is known and can be reached. Callers that fail together do this once."""
        now_s = asyncio.get_running_loop().time()
        if self._asking is None or now_s - self._doubted_s < _DOUBT_EVERY_S:
            return
        asked = self._asking.connection.host, self._asking.connection.port
        if any(node != asked for node in self._nodes.values()):
            self._doubted_s, self._failed = now_s, asked
            self._hang_up()

    def close(self) -> None:
        """Close the connection; no broker is asked again."""
        self._is_closed = True
        self._hang_up()

    # ---- one question ----------------------------------------------------------------------------

    async def _ask(self, request: Any) -> Any:
        async with self._connecting:
            failure: Exception = KafkaConnectionError("no broker is known")
            asking = self._asking
            if asking is not None and asking.connection.connected():
                try:
                    return await asking.answer(request)
                except (KafkaError, OSError) as error:
                    self._failed, failure = (asking.connection.host, asking.connection.port), error
                except asyncio.CancelledError:  # most likely it did not answer in time
                    self._failed = asking.connection.host, asking.connection.port
                    self._hang_up()
                    raise
            self._hang_up()
            for host, port in self._candidates():
                try:
                    self._asking = asking = await self._connected(host, port)
                    return await asking.answer(request)
                except (KafkaError, OSError) as error:
                    self._failed, failure = (host, port), error
                    self._hang_up()
                except asyncio.CancelledError:
                    self._failed = host, port
                    self._hang_up()
                    raise
            raise failure

    def _hang_up(self) -> None:
        if self._asking is not None:
            self._asking.close()
            self._asking = None

    def _candidates(self) -> list[tuple[str, int]]:
        known = list(self._nodes.values())
        random.shuffle(known)
        bootstrap = ((host, port) for host, port, _ in self._bootstrap)
        candidates = [*dict.fromkeys([*known, *bootstrap])]
        return sorted(candidates, key=lambda candidate: candidate == self._failed)

    @contextlib.asynccontextmanager
    async def _leading(self, topic: str, partition: int) -> AsyncIterator[_Asked]:
        """A connection to the leader, as last asked for; one that fails puts that in doubt."""
        node = self.leader(topic, partition)
        try:
            if node not in self._nodes:
                raise LeaderNotAvailableError
            leader = await self._connected(*self._nodes[node])
            try:
                yield leader
            finally:
                leader.close()
        except (KafkaError, OSError, asyncio.CancelledError):
            self.ask_another()
            raise

    async def _connected(
        self, host: str, port: int, *, timeout_s: float = _REQUEST_TIMEOUT_S
    ) -> _Asked:
        """Args: `timeout_s`: of each request."""
        self._check_open()
        arguments = self._arguments | {"request_timeout_ms": int(timeout_s * 1000)}
        connection = make_connection(host, port, **arguments)
        connect_s = _REQUEST_TIMEOUT_S
        if "sasl_oauth_token_provider" in arguments:
            connect_s += TOKEN_TIMEOUT_S
        with no_surprises():
            async with asyncio.timeout(connect_s):
                _, writer = await connection.connect()
        asked = _Asked(connection, writer.transport)
        try:
            self._check_open()
        except KafkaConnectionError:
            asked.close()
            raise
        return asked

    def _check_open(self) -> None:
        if self._is_closed:
            raise KafkaConnectionError("these brokers were let go")


class _Asked(NamedTuple):
    """A connection of aiokafka's."""

    connection: AIOKafkaConnection
    transport: asyncio.Transport

    async def answer(self, request: Any) -> Any:
        """Raises: KafkaError, OSError."""
        with no_surprises():
            return await self.connection.send(request)

    async def offset(
        self, topic: str, partition: int, which: int, *, committed: bool = False
    ) -> int:
        """The first offset, or the end, of a partition that this broker leads."""
        answer = await self.answer(OffsetRequest(-1, committed, [(topic, [(partition, which)])]))
        with no_surprises():
            ((_, ((_, code, _, offset, *_),)),) = answer.topics
            found = int(offset)
        if code:
            raise error_of(code)
        return found

    async def fetch(self, topic: str, partition: int, start: int) -> bytes:
        """Batches from an offset on, as they are in the log."""
        places = [(topic, [(partition, start, _LOCATE_BYTES)])]
        answer = await self.answer(FetchRequest(0, 1, _LOCATE_BYTES, 0, places))
        with no_surprises():
            ((_, ((_, code, *_, data),)),) = answer.topics
        if code:
            raise error_of(code)
        return data or b""

    def close(self) -> None:
        self.connection.close()
        abort(self.transport)


def _batches(data: bytes) -> list[tuple[int, int, tuple[int, int, int]]]:
    """Of each batch its offset, the offset after it, and producer id, epoch and base sequence."""
    found = []
    at = 0
    while len(data) - at >= BATCH_HEAD.size:
        head = BATCH_HEAD.unpack_from(data, at)
        offset, length, last_delta = head[0], head[1], head[6]
        found.append((offset, offset + last_delta + 1, (head[9], head[10], head[11])))
        at += 12 + max(0, length)
    return found
