"""The patches of aiokafka's clients; and, of each, that aiokafka still has the defect."""

import asyncio
import contextlib
import gc
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError
from aiokafka.protocol import metadata as protocol
from aiokafka.protocol.metadata import MetadataRequest, MetadataRequest_v5
from aiokafka.structs import BrokerMetadata

from tests.support.virtualtime import run
from tests.unit.kafka.client.test_brokers import FakeBroker, PerhapsSilent, serving
from watchrelay.kafka.client.failures import plain_words
from watchrelay.kafka.client.patches import (
    keep_connection_failures,
    patch_client,
    space_metadata_requests,
)

# ---- metadata requests ---------------------------------------------------------------------------


class Asked:
    def __init__(self) -> None:
        self.asked_s: list[float] = []
        self.broken = False

    async def _metadata_update(self, cluster: object, topics: object) -> bool:
        self.asked_s.append(asyncio.get_running_loop().time())
        if self.broken:
            raise RuntimeError("no broker")
        return True


def asked_in_two_seconds(client: Asked) -> list[float]:
    async def main() -> list[float]:
        began_s = asyncio.get_running_loop().time()
        space_metadata_requests(client)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.05):
                while True:
                    with contextlib.suppress(RuntimeError):
                        await client._metadata_update(None, None)
        return [asked_s - began_s for asked_s in client.asked_s]

    return run(main())


def test_the_first_request_leaves_at_once_and_the_others_keep_their_distance() -> None:
    asked = asked_in_two_seconds(Asked())
    assert asked[0] == 0.0
    assert len(asked) == 21
    assert min(later - earlier for earlier, later in pairwise(asked)) > 0.099


def test_requests_that_fail_keep_their_distance_too() -> None:
    client = Asked()
    client.broken = True
    assert len(asked_in_two_seconds(client)) == 21


# ---- a start that is given up --------------------------------------------------------------------

API_VERSIONS = 18


@asynccontextmanager
async def half_a_broker() -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Event]]:
    """It says which requests it knows and answers no other: its address, when it was asked more,
    when the client hung up."""
    asked, left = asyncio.Event(), asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (
            contextlib.closing(writer),
            contextlib.suppress(asyncio.IncompleteReadError, ConnectionError),
        ):
            while True:
                request = await reader.readexactly(
                    int.from_bytes(await reader.readexactly(4), "big")
                )
                if int.from_bytes(request[:2], "big") != API_VERSIONS:
                    asked.set()
                    continue
                known = b"".join(part.to_bytes(2, "big") for part in (3, 0, 1, API_VERSIONS, 0, 0))
                answer = request[4:8] + b"\0\0" + (2).to_bytes(4, "big") + known
                writer.write(len(answer).to_bytes(4, "big") + answer)
        left.set()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", asked, left
    finally:
        server.close()


@pytest.mark.parametrize("kind", [AIOKafkaAdminClient, AIOKafkaConsumer, AIOKafkaProducer])
async def test_a_start_that_is_cancelled_while_it_waits_for_the_first_metadata_leaves_no_connection(
    kind: Any,
) -> None:
    async with half_a_broker() as (address, asked, left):
        client = kind(bootstrap_servers=address)
        patch_client(getattr(client, "_client", None) or client.client)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            async with asyncio.TaskGroup() as group:
                starting = group.create_task(client.start())
                await asked.wait()
                starting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await starting
            assert starting.cancelled()
            async with asyncio.timeout(60.0):
                await left.wait()
            await (client.close() if kind is AIOKafkaAdminClient else client.stop())
            del client, starting
            gc.collect()


# ---- connections that the client forgets ---------------------------------------------------------


class Line:
    """A connection as the client sees it: open or at its end, and closed or not."""

    def __init__(self, *, at_end: bool = False) -> None:
        self.at_end, self.closed = at_end, False

    def connected(self) -> bool:
        return not (self.at_end or self.closed)

    def close(self, reason: object = None) -> "asyncio.Future[None]":
        self.closed = True
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


@asynccontextmanager
async def client_with_a_broker(
    *, patched: bool = True
) -> AsyncIterator[tuple[Any, asyncio.Event, asyncio.Event]]:
    """A client whose metadata has one broker, node 1, which takes connections and answers when
    allowed; the events: asked, allowed."""
    asked, allowed = asyncio.Event(), asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with (
            contextlib.closing(writer),
            contextlib.suppress(asyncio.IncompleteReadError, ConnectionError),
        ):
            request = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
            asked.set()
            await allowed.wait()
            answer = (
                request[4:8]
                + b"\0\0"
                + (1).to_bytes(4, "big")
                + API_VERSIONS.to_bytes(2, "big")
                + b"\0\0\0\0"
            )
            writer.write(len(answer).to_bytes(4, "big") + answer)
            await reader.read()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    client: Any = AIOKafkaClient(bootstrap_servers="127.0.0.1:9")
    client.cluster._brokers[1] = BrokerMetadata(
        1, "127.0.0.1", server.sockets[0].getsockname()[1], None
    )
    if patched:
        patch_client(client)
    try:
        yield client, asked, allowed
    finally:
        allowed.set()
        await client.close()
        server.close()


async def test_a_connection_that_the_broker_ended_is_closed_before_the_next_takes_its_place() -> (
    None
):
    async with client_with_a_broker() as (client, _, allowed):
        allowed.set()
        ended = Line(at_end=True)
        client._conns[1, 0] = ended
        fresh = await client._get_conn(1, group=0)
        assert ended.closed
        assert fresh.connected()
        assert client._conns[1, 0] is fresh


async def test_a_connection_made_while_the_client_closes_is_closed_too() -> None:
    async with client_with_a_broker() as (client, asked, allowed):
        making = asyncio.get_running_loop().create_task(
            client.ready(1, group=0), name="make a connection"
        )
        await asked.wait()
        await client.close()
        allowed.set()
        with pytest.raises(KafkaConnectionError, match="closed"):
            await making
        assert not client._conns[1, 0].connected()


async def test_every_connection_is_closed_even_if_the_metadata_task_has_failed() -> None:
    async with client_with_a_broker() as (client, _, _):

        async def failed() -> None:
            raise asyncio.InvalidStateError

        line = Line()
        client._conns[1, 0] = line
        client._sync_task = asyncio.get_running_loop().create_task(failed(), name="metadata")
        await asyncio.wait([client._sync_task])
        await client.close()
        assert line.closed


# ---- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KafkaConnectionError("Unable to bootstrap from [('127.0.0.1', 1, <AddressFamily.AF_UNSPEC: 0>)]"), "no broker answers"),
        (TimeoutError(), "no answer in time"),
        (ConnectionRefusedError(111, "Connection refused"), "Connection refused"),
        (TopicAuthorizationFailedError("k8s.a"), "k8s.a"),
        (ValueError("two\nlines"), "two lines"),
    ],
)  # fmt: skip
def test_an_error_is_reported_without_class_names_or_values_of_the_language(
    error: Exception, words: str
) -> None:
    assert plain_words(error) == words


# ---- the defects: a test that fails here says that its patch is needless -------------------------


class Answering(Line):
    """A connection that answers each metadata request with one broker, and keeps the requests."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Any] = []

    async def send(self, request: Any) -> Any:
        self.requests.append(request)
        return SimpleNamespace(brokers=[])


def client_that_answers() -> tuple[Any, Answering]:
    client: Any = AIOKafkaClient(bootstrap_servers="127.0.0.1:9")
    line = client._conns["bootstrap", 0] = Answering()
    return client, line


@pytest.mark.parametrize("patched", [False, True])
async def test_aiokafka_creates_topics_by_asking_about_them(patched: bool) -> None:
    client, line = client_that_answers()
    if patched:
        patch_client(client)
    await client._metadata_update(client.cluster, ["t"])
    (request,) = line.requests
    assert request.build(MetadataRequest_v5).allow_auto_topic_creation is not patched


@pytest.mark.parametrize("patched", [False, True])
def test_aiokafka_requests_metadata_without_a_pause(patched: bool) -> None:
    async def main() -> float:
        client, _ = client_that_answers()
        if patched:
            patch_client(client)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for _ in range(11):
            await client._metadata_update(client.cluster, ["t"])
        return loop.time() - began_s

    assert run(main()) == pytest.approx(1.0 if patched else 0.0)


@pytest.mark.parametrize("patched", [False, True])
async def test_aiokafka_drops_the_reason_why_it_could_not_connect(patched: bool) -> None:
    client: Any = AIOKafkaClient(bootstrap_servers="127.0.0.1:1")
    if patched:
        patch_client(client)
    with pytest.raises(KafkaConnectionError, match="Unable to bootstrap") as caught:
        await client.bootstrap()
    assert caught.value.__cause__ is None
    assert isinstance(getattr(client, "failure", None), OSError) is patched
    await client.close()


@pytest.mark.parametrize("patched", [False, True])
def test_aiokafka_waits_long_for_a_server_that_accepts_connections_and_answers_nothing(
    patched: bool,
) -> None:
    silent: list[FakeBroker] = []
    fakes = [PerhapsSilent(silent) for _ in range(2)]
    assert start_s(fakes, patched=patched) == pytest.approx(3.0 if patched else 40.0, abs=0.5)


def test_where_no_server_is_quick_a_start_waits_for_the_slow_ones() -> None:
    fakes = [FakeBroker()]
    fakes[0].is_open.clear()
    assert start_s(fakes, patched=True, opens_s=10.0) == pytest.approx(10.0, abs=0.5)


def start_s(fakes: list[Any], *, patched: bool, opens_s: float = 3600.0) -> float:
    """How long it takes until one of these servers has answered; all do after `opens_s`."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with serving(fakes) as addresses:
            client: Any = AIOKafkaClient(bootstrap_servers=list(addresses))
            if patched:
                patch_client(client)
            for fake in fakes:
                loop.call_later(opens_s, fake.is_open.set)
            await client.bootstrap()
            took_s = loop.time() - began_s
            await client.close()
        return took_s

    return run(main())


async def test_aiokafka_leaves_the_connection_of_a_start_that_is_cancelled() -> None:
    async with half_a_broker() as (address, asked, left):
        client: Any = AIOKafkaClient(bootstrap_servers=address)
        keep_connection_failures(client)
        starting = asyncio.get_running_loop().create_task(client.bootstrap(), name="start")
        await asked.wait()
        starting.cancel()
        await asyncio.wait([starting])
        assert client.newest.connected()
        client.newest.close()
        await left.wait()


async def test_aiokafka_drops_connections_that_are_open() -> None:
    async with client_with_a_broker(patched=False) as (client, asked, allowed):
        ended = client._conns[1, 0] = Line(at_end=True)
        making = asyncio.get_running_loop().create_task(
            client._get_conn(1, group=0), name="make a connection"
        )
        await asked.wait()
        assert not ended.closed
        await client.close()
        allowed.set()
        assert (await making).connected(), "made while the client closed"


async def test_aiokafka_closes_nothing_when_its_metadata_task_has_failed() -> None:
    async def failed() -> None:
        raise asyncio.InvalidStateError

    client, line = client_that_answers()
    client._sync_task = asyncio.get_running_loop().create_task(failed(), name="metadata")
    await asyncio.wait([client._sync_task])
    with pytest.raises(asyncio.InvalidStateError):
        await client.close()
    assert not line.closed


def test_aiokafka_asks_for_no_metadata_with_topic_ids() -> None:
    assert MetadataRequest([]).build(MetadataRequest_v5).API_VERSION == 5
    assert not hasattr(protocol, "MetadataRequest_v10")
