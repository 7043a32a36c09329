"""The port of a server: a way to it that refuses, holds, delays, throttles or cuts, on command.

A TCP proxy on an event loop in a thread of its own; commands may come from any thread and hold from
their return on. Nothing is ever left out of a stream: what is held arrives after `heal`, or the
connection ends, as on a network that drops packets and sends them again.
"""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from tests.support.process import free_port

T = TypeVar("T")

_CALL_TIMEOUT_S = 10.0
_CHUNK_BYTES = 16384
_RESET = struct.pack("ii", 1, 0)


class FaultProxy:
    """The proxy; a context manager.

    `port` is fixed from construction on. `accepted_s` is when each connection was accepted.
    Units: bytes, seconds (monotonic).
    """

    def __init__(self, target_port: int = 0) -> None:
        self.port = free_port()
        self.accepted_s: list[float] = []
        self._target_port = target_port
        self._delay_s = self._bytes_per_s = 0.0
        self._cut_after: int | None = None
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"fault proxy {self.port}", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        self.heal()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_TIMEOUT_S)
        self._loop.close()

    @property
    def connections(self) -> int:
        """How many were accepted so far."""
        return len(self.accepted_s)

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT_S)

    # ---- commands --------------------------------------------------------------------------------

    def lead_to(self, port: int) -> None:
        """New connections go to another server; those that are open stay."""
        self._target_port = port

    def heal(self) -> None:
        """Everything passes again, at once; connections that were frozen by `freeze_open` stay
        so."""

        async def heal() -> None:
            self._delay_s = self._bytes_per_s = 0.0
            self._cut_after = None
            self._flowing.set()
            if self._server is None:
                self._server = await asyncio.start_server(
                    self._serve, "127.0.0.1", self.port, limit=_CHUNK_BYTES
                )

        self._on_loop(heal())

    def refuse(self) -> None:
        """Cuts every connection and refuses new ones, as a server that is away does."""

        async def refuse() -> None:
            if self._server is not None:
                self._server.close()
                self._server = None
            self._flowing.set()
            await self._end_all()

        self._on_loop(refuse())

    def hold(self) -> None:
        """A black hole: connections stay open and new ones are taken, but nothing arrives any more,
        on either side."""

        async def hold() -> None:
            self._flowing.clear()

        self._on_loop(hold())

    def freeze_open(self) -> int:
        """The connections that are open now are silent for good, new ones are good: a path that
        forgot them. How many."""

        async def freeze() -> int:
            for link in self._links:
                link.frozen = True
            return len(self._links)

        return self._on_loop(freeze())

    def delay(self, seconds: float) -> None:
        """Each piece arrives so much later."""
        self._delay_s = seconds

    def throttle(self, bytes_per_s: float) -> None:
        """Each direction of each connection carries so much."""
        self._bytes_per_s = bytes_per_s

    def cut_after(self, count: int) -> None:
        """Each connection is reset once the server has sent so many more bytes on it, in the middle
        of whatever that is."""

        async def cut_after() -> None:
            self._cut_after = count
            for link in self._links:
                link.counted_bytes = 0

        self._on_loop(cut_after())

    # ---- connections -----------------------------------------------------------------------------

    async def _end_all(self) -> None:
        for link in tuple(self._links):
            link.reset()
        while self._links:  # noqa: ASYNC110  # their tasks need a few turns of the loop, no more
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted_s.append(time.monotonic())
        link = _Link(writer)
        self._links.add(link)
        try:
            await self._flowing.wait()
            if link.ended:
                return
            from_server, to_server = await asyncio.open_connection(
                "127.0.0.1", self._target_port, limit=_CHUNK_BYTES
            )
            link.writers.append(to_server)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(link, reader, to_server, counts=False), name="there")
                pumps.create_task(self._pump(link, from_server, writer, counts=True), name="back")
        except OSError:
            pass
        finally:
            link.reset()
            self._links.discard(link)

    async def _pump(
        self,
        link: "_Link",
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        *,
        counts: bool,
    ) -> None:
        """Moves bytes until either side ends, then ends both."""
        try:
            while not link.ended and (data := await source.read(_CHUNK_BYTES)):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                if self._bytes_per_s:
                    await asyncio.sleep(len(data) / self._bytes_per_s)
                await self._flowing.wait()
                if link.frozen:
                    await link.over.wait()
                if (
                    counts
                    and self._cut_after is not None
                    and link.counted_bytes + len(data) > self._cut_after
                ):
                    sink.write(data[: max(0, self._cut_after - link.counted_bytes)])
                    return
                link.counted_bytes += len(data) if counts else 0
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            link.reset()


class _Link:
    """One connection through the proxy. `counted_bytes` is how much the server sent."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.writers = [client]
        self.frozen = False
        self.counted_bytes = 0
        self.over = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self.over.is_set()

    def reset(self) -> None:
        """Both sides are reset, at once; a second call does nothing."""
        if self.ended:
            return
        self.over.set()
        for writer in self.writers:
            sock: socket.socket | None = writer.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
