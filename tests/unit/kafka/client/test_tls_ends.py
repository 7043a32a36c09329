"""Connections by TLS that a broker ends, over real sockets. The defect is that of Python 3.11.2, of
Debian 12: on later ones these tests pass without the patch."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka.client import AIOKafkaClient

from tests.support.pki import Ca
from tests.unit.kafka.client.test_brokers import FakeBroker
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.patches import patch_client

TURNS = 8
"""Of the event loop: by then the client has noticed the end."""


class EndingBroker(FakeBroker):
    """Keeps the connection that it took last."""

    newest: asyncio.StreamWriter

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.newest = writer
        await super().serve(reader, writer)


@asynccontextmanager
async def secured(directory: Path) -> AsyncIterator[tuple[EndingBroker, KafkaConnection]]:
    """A broker with a certificate, and the way to it."""
    authority, broker = Ca(), EndingBroker()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("broker").write(directory, "broker"))
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0, ssl=context)
    broker.port = server.sockets[0].getsockname()[1]
    ca = str(authority.write(directory))
    address = f"127.0.0.1:{broker.port}"
    try:
        yield broker, KafkaConnection(bootstrap_servers=(address,), protocol="SSL", ca_file=ca)
    finally:
        server.close()
        await asyncio.sleep(0)


def reset(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


ends = pytest.mark.parametrize("end", [asyncio.StreamWriter.close, reset])


@ends
async def test_a_question_is_answered_after_the_broker_ended_the_connection(
    end: Callable[[asyncio.StreamWriter], None], tmp_path: Path
) -> None:
    async with secured(tmp_path) as (broker, connection):
        brokers = Brokers(connection)
        for turns in range(TURNS):
            await brokers.refresh({"a"})
            end(broker.newest)
            for _ in range(turns):
                await asyncio.sleep(0)
        await brokers.refresh({"a"})
        assert broker.asked > TURNS
        brokers.close()


@ends
async def test_a_client_is_closed_while_the_broker_ends_the_connection(
    end: Callable[[asyncio.StreamWriter], None], tmp_path: Path
) -> None:
    async with secured(tmp_path) as (broker, connection):
        for turns in range(TURNS):
            client = AIOKafkaClient(**connection.arguments())
            patch_client(client)
            await client.bootstrap()
            await client.ready(1)
            end(broker.newest)
            for _ in range(turns):
                await asyncio.sleep(0)
            await client.close()
            assert not any(each.connected() for each in client._conns.values())
