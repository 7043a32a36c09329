"""What is asked of a cluster, over real sockets, with brokers whose answers the test gives."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, LeaderNotAvailableError
from aiokafka.protocol.admin import (
    ApiVersionResponse_v0,
    SaslAuthenticateResponse_v0,
    SaslHandShakeResponse_v1,
)
from aiokafka.protocol.coordination import FindCoordinatorResponse_v1
from aiokafka.protocol.metadata import MetadataResponse_v5
from aiokafka.protocol.transaction import InitProducerIdResponse_v0

from tests.support.sinkparts import idle_link, until
from tests.support.virtualtime import virtual
from watchrelay.core.errors import SinkUnavailable
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.tokens import TokenProvider
from watchrelay.kafka.transactions import check_transactional_ids

PRODUCE, METADATA, COORDINATOR, HANDSHAKE, VERSIONS, PRODUCER_ID, AUTHENTICATE = (
    0,
    3,
    10,
    17,
    18,
    22,
    36,
)
UNKNOWN_TOPIC, NO_LEADER, NO_RIGHT, LISTENER_NOT_FOUND = 3, 5, 29, 72
Described = list[tuple[int, str | None, int]]


class FakeBroker:
    """Answers requests for versions, metadata and producer ids, and takes any token; there are no
    coordinators. `asked` counts requests for metadata; while `is_silent` they get no answer;
    `connections` are those that are open; while `is_isolated` it has no producer ids."""

    def __init__(self) -> None:
        self.port = 0
        self.asked = 0
        self.is_silent = self.is_isolated = False
        self.is_open = asyncio.Event()
        """It answers a new connection."""
        self.is_open.set()
        self.connections = 0
        self.metadata: Callable[[], Any] = self.alone

    def alone(self) -> Any:
        """It is the only broker, and leads partition 0 of two topics."""
        return described([(1, "127.0.0.1", self.port)], {"a": 1, "b": 1})

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                key, _, correlation = struct.unpack_from(">hhi", await reader.readexactly(size))
                answer = struct.pack(">i", correlation)
                await self.is_open.wait()
                if key == VERSIONS:
                    versions = [
                        *((METADATA, 0, 5), (COORDINATOR, 1, 1), (HANDSHAKE, 1, 1)),
                        *((VERSIONS, 0, 0), (PRODUCER_ID, 0, 0), (AUTHENTICATE, 0, 0)),
                        (PRODUCE, 7, 7),
                    ]
                    answer += ApiVersionResponse_v0(0, versions).encode()
                elif key == COORDINATOR:
                    answer += FindCoordinatorResponse_v1(0, 15, None, -1, "", -1).encode()
                elif key == PRODUCER_ID:
                    code = 14 if self.is_isolated else 0
                    answer += InitProducerIdResponse_v0(0, code, 7, 0).encode()
                elif key == HANDSHAKE:
                    answer += SaslHandShakeResponse_v1(0, ["OAUTHBEARER"]).encode()
                elif key == AUTHENTICATE:
                    answer += SaslAuthenticateResponse_v0(0, None, b"").encode()
                else:
                    self.asked += 1
                    if self.is_silent:
                        return
                    answer += self.metadata().encode()
                writer.write(struct.pack(">i", len(answer)) + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connections -= 1
            writer.transport.abort()


class PerhapsSilent(FakeBroker):
    """Of those that share `silent`, the first one that takes a connection answers nothing."""

    def __init__(self, silent: list[FakeBroker]) -> None:
        super().__init__()
        self._silent = silent

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._silent:
            self._silent.append(self)
            self.is_open.clear()
        await super().serve(reader, writer)


def described(brokers: Described | None, leaders: dict[str, int]) -> Any:
    topics: list[Any] = [
        (0, name, False, [(0, 0, node, [node], [node], [])]) for name, node in leaders.items()
    ]
    nodes: Any = None if brokers is None else [(*each, None) for each in brokers]
    return MetadataResponse_v5(0, nodes, "cluster", 1, topics)


@asynccontextmanager
async def cluster(
    count: int = 1, connect: type[KafkaConnection] = KafkaConnection
) -> AsyncIterator[tuple[Brokers, list[FakeBroker]]]:
    fakes = [FakeBroker() for _ in range(count)]
    async with serving(fakes) as bootstrap:
        brokers = Brokers(connect(bootstrap_servers=bootstrap))
        try:
            yield brokers, fakes
        finally:
            brokers.close()


@asynccontextmanager
async def serving(fakes: Sequence[FakeBroker]) -> AsyncIterator[tuple[str, ...]]:
    """Their addresses."""
    servers = [await asyncio.start_server(fake.serve, "127.0.0.1", 0) for fake in fakes]
    for fake, server in zip(fakes, servers, strict=True):
        fake.port = server.sockets[0].getsockname()[1]
    try:
        yield tuple(f"127.0.0.1:{fake.port}" for fake in fakes)
    finally:
        for fake, server in zip(fakes, servers, strict=True):
            fake.is_open.set()
            server.close()
        await until(lambda: not any(fake.connections for fake in fakes))


async def test_the_leaders_of_the_topics_asked_for_are_known_and_the_others_stay() -> None:
    async with cluster() as (brokers, (fake,)):
        await brokers.refresh({"a", "b"})
        assert (brokers.leader("a", 0), brokers.leader("b", 0), brokers.leader("a", 7)) == (
            1,
            1,
            None,
        )
        fake.metadata = lambda: described([(1, "127.0.0.1", fake.port)], {"b": -1})
        await brokers.refresh({"b", "c"})
        assert (brokers.leader("a", 0), brokers.leader("b", 0), brokers.leader("c", 0)) == (
            1,
            -1,
            None,
        )
        brokers.forget("a")
        assert brokers.leader("a", 0) is None


@pytest.mark.parametrize("address", [("", 9092), (None, 9092), ("there", 0), ("there", 70_000)])
async def test_a_broker_without_an_address_leads_nothing(address: tuple[str | None, int]) -> None:
    async with cluster() as (brokers, (fake,)):
        here = (1, "127.0.0.1", fake.port)
        fake.metadata = lambda: described([here, (2, *address)], {"a": 1, "b": 2})
        await brokers.refresh({"a", "b"})
        assert (brokers.leader("a", 0), brokers.leader("b", 0)) == (1, -1)
        with pytest.raises(LeaderNotAvailableError):
            await brokers.locate("b", 0, 0, (1, 0), 0)


async def test_why_a_partition_has_no_leader_is_an_error_code_of_its_own_or_of_its_topic() -> None:
    async with cluster() as (brokers, (fake,)):
        nodes = [(1, "127.0.0.1", fake.port, None)]
        parts: list[Any] = [(LISTENER_NOT_FOUND, 0, -1, [1], [1], []), (0, 1, -1, [1], [1], [])]
        topics: list[Any] = [(0, "a", False, parts), (NO_RIGHT, "b", False, [])]
        fake.metadata = lambda: MetadataResponse_v5(0, nodes, "cluster", 1, topics)
        await brokers.refresh({"a", "b"})
        found = [brokers.error(*place) for place in (("a", 0), ("a", 1), ("a", 2), ("b", 0))]
        assert found == [LISTENER_NOT_FOUND, NO_LEADER, UNKNOWN_TOPIC, NO_RIGHT]
        brokers.forget("b")
        assert brokers.error("b", 0) == UNKNOWN_TOPIC


@pytest.mark.parametrize("nodes", [None, [], [(2, None, 1)]])
async def test_an_answer_that_names_no_broker_is_an_error_and_what_was_known_stays(
    nodes: Described | None,
) -> None:
    async with cluster() as (brokers, (fake,)):
        await brokers.refresh({"a"})
        fake.metadata = lambda: described(nodes, {"a": 2})
        with pytest.raises(KafkaConnectionError):
            await brokers.refresh({"a"})
        assert brokers.leader("a", 0) == 1


@asynccontextmanager
async def one_asked() -> AsyncIterator[tuple[Brokers, list[FakeBroker], FakeBroker]]:
    """A cluster of three, its brokers, and the one that was asked; partition 0 of "a" has a leader
    that is none of them."""
    async with cluster(3) as (brokers, fakes):
        nodes: Described = [(at, "127.0.0.1", fake.port) for at, fake in enumerate(fakes)]
        for fake in fakes:
            fake.metadata = lambda: described(nodes, {"a": 9})
        await brokers.refresh({"a"})
        (asked,) = (fake for fake in fakes if fake.asked)
        yield brokers, fakes, asked


async def test_a_broker_that_does_not_answer_is_asked_last_from_then_on() -> None:
    async with one_asked() as (brokers, fakes, frozen):
        frozen.is_silent = True
        for _ in range(10):
            await brokers.refresh({"a"})
            for fake in fakes:
                fake.asked = 0
            brokers._hang_up()  # so that each time one is chosen
            await brokers.refresh({"a"})
            assert frozen.asked == 0


async def test_another_broker_is_asked_where_an_answer_is_in_doubt() -> None:
    for _ in range(10):
        async with one_asked() as (brokers, _, asked):
            brokers.ask_another()
            await brokers.refresh({"a"})
            assert asked.asked == 1


async def test_where_there_is_no_other_the_same_is_asked_again() -> None:
    async with cluster() as (brokers, (fake,)):
        await brokers.refresh({"a"})
        brokers.ask_another()
        await brokers.refresh({"a"})
        assert fake.asked == 2


async def test_another_broker_is_asked_where_the_leader_that_was_named_is_none() -> None:
    async with one_asked() as (brokers, _, asked):
        with pytest.raises(LeaderNotAvailableError):
            await brokers.end_offset("a", 0)
        await brokers.refresh({"a"})
        assert asked.asked == 1


@virtual
async def test_another_broker_is_asked_for_a_producer_id_where_one_has_none() -> None:
    async with one_asked() as (brokers, _, asked):
        asked.is_isolated = True
        async with asyncio.timeout(5.0):
            assert await brokers.producer_id() == (7, 0)


@pytest.mark.parametrize("connected", [False, True])
@virtual
async def test_a_broker_that_did_not_answer_before_a_question_was_cancelled_is_asked_last(
    connected: bool,
) -> None:
    async with cluster(2) as (brokers, fakes):
        nodes: Described = [(at, "127.0.0.1", fake.port) for at, fake in enumerate(fakes)]
        for fake in fakes:
            fake.metadata = lambda: described(nodes, {"a": 1})
        if connected:
            await brokers.refresh({"a"})
        for fake in fakes:
            fake.is_open.clear()
        asking = asyncio.get_running_loop().create_task(brokers.refresh({"a"}), name="asking")
        await asyncio.sleep(1.0)
        (frozen,) = (fake for fake in fakes if fake.connections)
        asking.cancel()
        await asyncio.wait([asking])
        for fake in fakes:
            if fake is not frozen:
                fake.is_open.set()
        async with asyncio.timeout(2.0):
            await brokers.refresh({"a"})
        frozen.is_open.set()


async def test_a_cluster_that_was_let_go_asks_nobody_and_keeps_no_connection() -> None:
    async with cluster() as (brokers, (fake,)):
        await brokers.refresh({"a"})
        asked = fake.asked

        async def asking() -> None:
            with pytest.raises(KafkaConnectionError):
                await brokers.refresh({"a"})

        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(asking(), name="asking")
            await asyncio.sleep(0)
            brokers.close()
        with pytest.raises(KafkaConnectionError):
            await brokers.topic_ids({"a"})
        assert fake.asked <= asked + 1


async def test_a_broker_that_is_not_named_any_more_cannot_be_opened() -> None:
    link = idle_link()
    async with cluster() as (brokers, _):
        await brokers.refresh({"a"})
        with pytest.raises(KafkaConnectionError):
            await brokers.open(7, link)


class SlowTokens(KafkaConnection):
    """Each token takes almost the minute that it may take."""

    async def fetch(self) -> tuple[str, int]:
        await asyncio.sleep(59.0)
        return "token", 0

    def arguments(self) -> dict[str, Any]:
        return super().arguments() | {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": TokenProvider(self),
        }


@virtual
async def test_a_token_may_take_longer_than_the_answer_of_a_broker() -> None:
    async with cluster(connect=SlowTokens) as (brokers, (fake,)):
        await brokers.refresh({"a"})
        assert (fake.asked, brokers.leader("a", 0)) == (1, 1)


@virtual
async def test_a_check_names_the_transactional_id_that_has_no_coordinator() -> None:
    async with cluster() as (_, (fake,)):
        connection = KafkaConnection(bootstrap_servers=(f"127.0.0.1:{fake.port}",))
        with pytest.raises(SinkUnavailable, match=r"id k8s.c.pods .* no coordinator"):
            await check_transactional_ids(connection, ["k8s.c.pods"])


async def test_one_that_is_let_go_while_it_connects_keeps_no_connection() -> None:
    async with cluster() as (brokers, (fake,)):

        async def asking() -> None:
            with contextlib.suppress(KafkaConnectionError):
                await brokers.refresh({"a"})

        fake.is_open.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asking(), name="asking")
            await until(lambda: fake.connections == 1)
            brokers.close()
            fake.is_open.set()
        await until(lambda: fake.connections == 0)
