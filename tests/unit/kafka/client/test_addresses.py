"""A broker's name with several addresses, the first of which takes no connections."""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from aiokafka.client import AIOKafkaClient

from tests.support import virtualtime
from tests.support.pki import Ca
from tests.support.sinkparts import idle_link, until
from tests.unit.kafka.client.test_brokers import FakeBroker
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.patches import patch_client

Connect = Callable[[KafkaConnection], Awaitable[None]]


@contextlib.contextmanager
def unreachable() -> Iterator[int]:
    """The port of an address whose system drops what would connect: its backlog is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            assert waiting.connect_ex(listener.getsockname()) in (0, errno.EINPROGRESS)
        yield listener.getsockname()[1]


@contextlib.asynccontextmanager
async def broker_behind(
    *addresses: str, port: int, tls: ssl.SSLContext | None
) -> AsyncIterator[None]:
    """A broker at the last address of "kafka", whose addresses are tried in this order."""
    broker, loop = FakeBroker(), asyncio.get_running_loop()
    broker.port = port
    server = await asyncio.start_server(broker.serve, addresses[-1], port, ssl=tls)

    async def getaddrinfo(host: str, at: int, **_: object) -> list[tuple[Any, ...]]:
        assert host == "kafka"
        return [
            (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, at))
            for address in addresses
        ]

    try:
        with patch.object(loop, "getaddrinfo", getaddrinfo):
            yield
    finally:
        server.close()
        await until(lambda: not broker.connections)


async def by_client(connection: KafkaConnection, *, patched: bool = True) -> None:
    client: Any = AIOKafkaClient(**connection.arguments())
    if patched:
        patch_client(client)
    await client.bootstrap()
    await client.close()


async def by_brokers(connection: KafkaConnection) -> None:
    brokers = Brokers(connection)
    await brokers.refresh({"a"})
    brokers.close()


async def by_link(connection: KafkaConnection) -> None:
    link = idle_link()
    arguments = connection.arguments()
    del arguments["bootstrap_servers"]
    await link.open("kafka", int(connection.bootstrap_servers[0].partition(":")[2]), arguments)
    link.abort()


def connected_s(connect: Connect, directory: Path | None = None) -> float:
    """How long it takes; with TLS where there is a directory, by a certificate for the name."""
    context, security = None, {}
    if directory is not None:
        ca = Ca()
        security = {"protocol": "SSL", "ca_file": str(ca.write(directory))}
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*ca.issue("b", dns="kafka", ip="").write(directory, "broker"))

    async def main(port: int) -> float:
        loop, servers = asyncio.get_running_loop(), (f"kafka:{port}",)
        began_s = loop.time()
        async with broker_behind("127.0.0.1", "127.0.0.2", port=port, tls=context):
            security_: Any = security
            await connect(KafkaConnection(bootstrap_servers=servers, **security_))
            return loop.time() - began_s

    with unreachable() as port:
        return virtualtime.run(main(port))


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("connect", [by_client, by_brokers, by_link])
def test_the_next_address_of_a_name_is_tried_where_one_takes_no_connection(
    connect: Connect, tls: bool, tmp_path: Path
) -> None:
    assert connected_s(connect, tmp_path if tls else None) < 1.0


def test_aiokafka_tries_the_first_address_of_a_name_alone() -> None:
    async def unpatched(connection: KafkaConnection) -> None:
        with pytest.raises(Exception, match="Unable to bootstrap"):
            await by_client(connection, patched=False)

    assert connected_s(unpatched) >= 40.0
