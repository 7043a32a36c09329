"""A handler that decides each answer: a raw HTTP/1.1 server on 127.0.0.1 that can also misbehave.

Nothing here is clever about HTTP on purpose: what a handler writes is what is on the wire, byte
by byte, so that a test can cut a stream anywhere, leave out the terminal chunk, reset the
connection or fall silent with the socket open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Self
from urllib.parse import parse_qsl, urlsplit

from tests.support.process import free_port

_HEAD_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came. Header names are lower-case; of repeated ones `headers` has
    the last, `raw_headers` all."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    raw_headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class Reply:
    """What a handler says. Either `json`/`text` once, or `start`, any `chunk`s, and one of `end`,
    `fin`, `reset`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._chunked = False
        self._closing = False
        self.started = False
        self.reusable = False
        """True once the answer is complete and the connection may carry another request."""

    async def json(
        self, status: int, obj: object, headers: Mapping[str, str] | None = None
    ) -> None:
        """A complete answer with a JSON body."""
        await self.text(
            status, json.dumps(obj), {"Content-Type": "application/json", **(headers or {})}
        )

    async def text(
        self, status: int, body: str | bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        """A complete answer with any body."""
        data = body.encode() if isinstance(body, str) else body
        await self.start(
            status,
            {"Content-Type": "text/plain; charset=utf-8", **(headers or {})},
            chunked=False,
            length=len(data),
        )
        await self.chunk(data)
        await self.end()

    async def start(
        self,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        *,
        chunked: bool = True,
        length: int | None = None,
    ) -> None:
        """Send the head. With `length` the body is that long; without it and not `chunked`, the
        body ends with the connection."""
        assert not self.started, "the head was sent already"
        self.started = True
        self._chunked = chunked and length is None
        self._closing = not self._chunked and length is None
        fields = {"Content-Type": "application/json", **(headers or {})}
        if self._chunked:
            fields["Transfer-Encoding"] = "chunked"
        elif length is not None:
            fields["Content-Length"] = str(length)
        else:
            fields["Connection"] = "close"
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = "Odd"
        head = (
            f"HTTP/1.1 {status} {phrase}\r\n"
            + "".join(f"{name}: {value}\r\n" for name, value in fields.items())
            + "\r\n"
        )
        await self.raw(head.encode("latin-1"))

    async def chunk(self, data: bytes) -> None:
        """Send a piece of the body (as one chunk, where chunks are used)."""
        if self._chunked and data:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        await self.raw(data)

    async def raw(self, data: bytes) -> None:
        """Put `data` on the wire as it is."""
        self._writer.write(data)
        await self._writer.drain()

    async def end(self) -> None:
        """End the body as a healthy server does (the terminal chunk)."""
        if self._chunked:
            await self.raw(b"0\r\n\r\n")
        if self._closing:
            self._writer.close()
        self.reusable = not self._closing

    async def fin(self) -> None:
        """Close the connection without ending the body."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def reset(self) -> None:
        """Reset the connection (RST), unless the client has closed it."""
        sock: socket.socket | None = self._writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def gone(self) -> None:
        """Return when the client has closed its side."""
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(4096):
                pass


Handler = Callable[[Request, Reply], Awaitable[None]]


class ScriptedServer:
    """A server whose every answer is the handler's. An error of a handler (but a client that left)
    is raised when the server is closed."""

    def __init__(self, handler: Handler, *, ssl_context: ssl.SSLContext | None = None) -> None:
        self.handler = handler
        self.requests: list[Request] = []
        self.connections = 0
        """Accepted since the start."""
        self.open_connections = 0
        self._ssl = ssl_context
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._errors: list[Exception] = []
        self._server: asyncio.Server | None = None
        self.port = free_port()  # stays free while the server is down

    @property
    def url(self) -> str:
        return f"{'https' if self._ssl else 'http'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._ssl, limit=_HEAD_LIMIT
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()
        if error is None and self._errors:
            raise self._errors[0]

    async def stop(self) -> None:
        """Refuse new connections, cut the open ones."""
        assert self._server is not None, "enter the server first"
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def serve_again(self) -> None:
        """After `stop`: the same port is open again."""
        await self.__aenter__()

    async def restart(self) -> None:
        """Cut all connections; new ones find the same port."""
        await self.stop()
        await self.serve_again()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        self.open_connections += 1
        try:
            while await self._answer_one(reader, writer):
                pass
        except (ConnectionError, ssl.SSLError):
            pass
        except asyncio.CancelledError:
            # and end without an error: asyncio would print a cancelled connection's traceback
            writer.transport.abort()
        except Exception as error:  # noqa: BLE001  # kept, and raised in the test when the server is closed
            self._errors.append(error)
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            self.open_connections -= 1
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await _read_request(reader)
        if request is None:
            return False
        self.requests.append(request)
        reply = Reply(reader, writer)
        await self.handler(request, reply)
        assert reply.started or writer.is_closing() or reader.at_eof(), (
            f"the handler gave no answer to {request.method} {request.path}"
        )
        return reply.reusable and request.headers.get("connection", "").lower() != "close"


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ", 2)
    raw = tuple(
        (name.strip().lower(), value.strip())
        for name, _, value in (line.partition(":") for line in lines if line)
    )
    headers = dict(raw)
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    return Request(
        method, parts.path, dict(parse_qsl(parts.query, keep_blank_values=True)), headers, raw, body
    )
