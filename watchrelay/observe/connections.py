"""Few connections to the HTTP port and none for long: Kafka and the watches need the files."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any, Final, Literal

from aiohttp import web

CONNECTIONS_MAX: Final = 32
"""Those that wait for a request, and as many that send an answer; one more closes the oldest."""
IDLE_S: Final = 20.0
"""A connection without a whole request for this time is closed. Above a scrape interval of 15 s."""
ANSWER_S: Final = 20.0
"""A client that does not read for this time is cut off. Above a scrape's deadline of 10 s."""
VIEWER_S: Final = 10.0
"""A viewer whose buffers are full for this time is cut off; its browser connects again."""
_BODY_S: Final = 1.0
"""How long a request's body, which is not read, may take to end."""
_ACCEPTED_AT_ONCE: Final = 8
"""Accepted in one turn of the event loop: what may be open beyond the bound for a moment."""
_BACKLOG: Final = 256
"""Connections that the kernel keeps for us meanwhile; they cost no file descriptor."""
_NOT_HTTP: Final = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


_Kind = Literal["waiting", "answering", "viewing"]
_MOST_S: Final[dict[_Kind, float | None]] = {
    "waiting": IDLE_S,
    "answering": ANSWER_S,
    "viewing": None,
}


class Connections:
    """The open connections of one server, by what they wait for, the oldest first; each kind is
    bounded on its own, so that silent clients close none that is being answered, and slow ones
    none that is about to ask."""

    def __init__(self) -> None:
        self._held: dict[
            _Kind, dict[web.RequestHandler, tuple[asyncio.Transport, asyncio.TimerHandle | None]]
        ] = {kind: {} for kind in _MOST_S}
        self._server: asyncio.Server | None = None

    async def listen(self, server: web.Server, host: str, port: int) -> int:
        """Accept connections until `close`, without a `host` on all interfaces; the port in use.
        Raises: OSError for an address that cannot be used."""
        loop = asyncio.get_running_loop()
        at: dict[str, Any] = {"host": host, "port": port} if host else {"sock": _everywhere(port)}
        self._server = await loop.create_server(
            lambda: _Connection(server, self), **at, backlog=_ACCEPTED_AT_ONCE
        )
        for each in self._server.sockets:
            with each.dup() as listening:
                listening.listen(_BACKLOG)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop accepting. What is open stays so until `abort`."""
        if self._server is None:
            return
        for each in self._server.sockets:
            asyncio.get_running_loop().remove_reader(each.fileno())
        # What is accepted gets its transport and its handler, in three turns of the event loop:
        # asyncio would leave its socket open without the one, aiohttp wait 1 s without the other.
        for _ in range(3):
            await asyncio.sleep(0)
        self._server.close()

    def abort(self) -> None:
        """Close what is open, whatever its clients have not read."""
        for held in self._held.values():
            for transport, _ in held.values():
                transport.abort()

    def opened(self, connection: web.RequestHandler, transport: asyncio.Transport) -> None:
        self._enter("waiting", connection, transport)

    def move(
        self, connection: web.RequestHandler, before: _Kind, after: _Kind
    ) -> asyncio.Transport | None:
        """The connection waits for something else now. None: it was not `before`, or is gone."""
        if transport := self._leave(before, connection):
            self._enter(after, connection, transport)
        return transport

    def answering(self, connection: web.RequestHandler) -> None:
        """The client is sent an answer in pieces."""
        self.move(connection, "waiting", "answering")

    def viewing(self, connection: web.RequestHandler) -> None:
        """The client is sent events; its handler says how many clients may be."""
        transport = self.move(connection, "waiting", "viewing")
        if transport is not None and hasattr(socket, "TCP_USER_TIMEOUT"):  # on Linux
            # Events are small: the buffers of the kernel may take those of hours.
            transport.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(VIEWER_S * 1000)
            )

    def closed(self, connection: web.RequestHandler) -> None:
        for kind in self._held:
            self._leave(kind, connection)

    def _enter(
        self, kind: _Kind, connection: web.RequestHandler, transport: asyncio.Transport
    ) -> None:
        held, most_s = self._held[kind], _MOST_S[kind]
        if len(held) >= CONNECTIONS_MAX and (oldest := self._leave(kind, next(iter(held)))):
            oldest.abort()
        loop = asyncio.get_running_loop()
        timer = None if most_s is None else loop.call_later(most_s, transport.abort)
        held[connection] = transport, timer

    def _leave(self, kind: _Kind, connection: web.RequestHandler) -> asyncio.Transport | None:
        transport, timer = self._held[kind].pop(connection, (None, None))
        if timer is not None:
            timer.cancel()
        return transport


def _everywhere(port: int) -> socket.socket:
    """All interfaces, of IPv4 and IPv6 by one socket; of IPv4 alone where there is no IPv6."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    return socket.create_server(("", port))


class _Connection(web.RequestHandler):
    __slots__ = ("_all",)

    def __init__(self, server: web.Server, connections: Connections) -> None:
        loop = asyncio.get_running_loop()
        # No body is read, so nothing is unpacked for it.
        none: Any = None  # as AppRunner takes it
        super().__init__(
            server, loop=loop, access_log=none, lingering_time=_BODY_S, auto_decompress=False
        )
        self._all = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._all.opened(self, transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._all.closed(self)
        super().connection_lost(exc)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        self._all.move(self, "waiting", "answering")
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._all.move(self, "answering", "waiting")

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status != web.HTTPBadRequest.status_code:
            return super().handle_error(request, status, exc, message)
        # not HTTP: no traceback in the log, no version in the answer
        if isinstance(self.transport, asyncio.Transport):
            self.transport.write(_NOT_HTTP)
            self.force_close()
        return web.Response(status=status)
