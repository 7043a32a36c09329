"""A link over a real socket: a request that takes long to leave."""

import asyncio
import ssl
from pathlib import Path

import pytest

from tests.support.pki import Ca
from tests.support.sinkparts import idle_link

SIZE = 32 << 20
"""More than sockets hold."""


class Partition:
    """One with a large batch."""

    topic, index = b"t", 0
    log_start = 0


@pytest.mark.parametrize("tls", [False, True])
async def test_a_broker_that_takes_more_of_a_request_is_not_silent(
    tls: bool, tmp_path: Path
) -> None:
    authority = Ca()
    broker = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    broker.load_cert_chain(*authority.issue("broker").write(tmp_path, "broker"))
    client = ssl.create_default_context(cadata=authority.pem.decode())
    loop = asyncio.get_running_loop()
    accepted: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    accepted = loop.create_future()
    server = await asyncio.start_server(
        lambda *streams: accepted.set_result(streams),
        "127.0.0.1",
        0,
        ssl=broker if tls else None,
    )
    transport, _ = await loop.create_connection(
        asyncio.Protocol, *server.sockets[0].getsockname(), ssl=client if tls else None
    )
    link = idle_link(lambda _: bytes(SIZE))
    link.adopt(transport)
    sent_s = loop.time()
    link.send([Partition()])
    link.silent_s(sent_s + 10.0)
    reader, writer = await accepted
    await reader.readexactly(SIZE // 2)
    silent_s = link.silent_s(sent_s + 20.0)
    link.abort()
    writer.transport.abort()
    server.close()
    await asyncio.sleep(0)
    assert silent_s == 0.0
