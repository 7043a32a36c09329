"""Where every connection shall end: a SOCKS5 proxy on 127.0.0.1 that was asked for names of its own
network.

Source: RFC 1928, RFC 1929 (user and password).
"""

import asyncio
import contextlib
import struct
from typing import Self

_USER = b"\x05\x02"
_OPEN = b"\x05\x00"
_GRANTED = b"\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x00"


class SocksProxy:
    """An async context manager. `asked` are the names and ports that clients wanted; all are
    led to `port` of 127.0.0.1."""

    def __init__(self, port: int, *, login: tuple[str, str] | None = None) -> None:
        self._target = port
        self._login = login
        self.asked: list[tuple[str, int]] = []
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """It listens no more."""
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError), contextlib.closing(writer):
            if await self._let_in(reader, writer):
                await reader.readexactly(4)
                name = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
                (port,) = struct.unpack(">H", await reader.readexactly(2))
                self.asked.append((name, port))
                there, back = await asyncio.open_connection("127.0.0.1", self._target)
                writer.write(_GRANTED)
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, back), name="there")
                    both.create_task(_copy(there, writer), name="back")

    async def _let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        methods = await reader.readexactly((await reader.readexactly(2))[1])
        if self._login is None:
            writer.write(_OPEN)
            return True
        if _USER[1] not in methods:
            writer.write(b"\x05\xff")
            return False
        writer.write(_USER)
        await reader.readexactly(1)
        user, password = [
            (await reader.readexactly((await reader.readexactly(1))[0])).decode() for _ in range(2)
        ]
        good = (user, password) == self._login
        writer.write(b"\x01" + bytes([not good]))
        return good


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError), contextlib.closing(sink):
        while chunk := await source.read(1 << 16):
            sink.write(chunk)
            await sink.drain()
