"""The frames of an open watch, in the step of the event loop that received their bytes.

HTTP's chunked framing is taken apart here as far as it is plain: digits, a line break, the bytes, a
line break. All else (extensions, the last chunk, trailers, damage) is left to aiohttp.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Self

import aiohttp

from watchrelay.core.errors import Interrupted, KubeError
from watchrelay.kube.stream import FrameReader
from watchrelay.kube.translate import EXPECTED, translate
from watchrelay.model.frames import WATCH_GRACE_S, Frame, WatchQuery

READ_BYTES: Final = 256 << 10
_FEW_BYTES: Final = 32 << 10
"""Less than this at a time, twice within `_OFTEN_S`, and the next read waits for what comes with
it."""
_OFTEN_S: Final = 0.01

Take = Callable[[list[Frame]], bool]
Align = Callable[[Callable[[], None]], None]
"""Calls its argument once, within some milliseconds: then is the time to read again."""

_RECEIVED: Final = memoryview(bytearray(READ_BYTES))
"""One buffer for all connections: what a read puts there is parsed before the next one. A new one
for each read would cost more than most reads bring."""

_SIZE_BYTES_MAX: Final = 8
_HEAD_BYTES_MAX: Final = _SIZE_BYTES_MAX + len(b"\r\n")
_BEGUN_BYTES_MAX: Final = 64 << 10


def refuse(_frames: list[Frame]) -> bool:
    return False


class _Body(asyncio.BufferedProtocol):
    """Sits between a connection and aiohttp, whose parser gets what is received: then `received`
    is called, in the same step, with its size and with the contents of chunks.

    Plain chunks need a third of the parser's time here, once the parser is between two of them: it
    gets none of those while frames are `waited_for`, and always stays between two, until it gets
    something that is not plain.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        parser: asyncio.Protocol,
        content: aiohttp.StreamReader,
        waited_for: Callable[[], bool],
        received: Callable[[int, bytes], None],
    ) -> None:
        self._transport, self._parser, self._content = transport, parser, content
        self._waited_for, self._received = waited_for, received
        self._takes_chunks = False
        self._begun = b""
        """A chunk that is not whole yet. The parser has nothing of it."""

    def get_buffer(self, _size: int) -> memoryview:
        begun = len(self._begun)
        _RECEIVED[:begun] = self._begun
        return _RECEIVED[begun:]

    def buffer_updated(self, size: int) -> None:
        for_parser = _RECEIVED[: len(self._begun) + size]
        contents, self._begun = b"", b""
        if self._takes_chunks:
            parts, at = whole_chunks(for_parser)
            rest = bytes(for_parser[at:])
            self._takes_chunks = is_begun(rest)
            if self._takes_chunks:
                self._begun, for_parser = rest, for_parser[:at]
            if self._waited_for():
                contents, for_parser = b"".join(parts), for_parser[at:]
        data = bytes(for_parser)
        if data:
            self._parser.data_received(data)
            self._takes_chunks = self._takes_chunks or _is_between_chunks(self._content, data)
        if self._content.is_eof():  # aiohttp may use the connection for another request
            self._transport.set_protocol(self._parser)
        self._received(size, contents)

    def connection_lost(self, error: Exception | None) -> None:
        if self._begun:
            self._parser.data_received(self._begun)
        self._parser.connection_lost(error)
        self._received(0, b"")


def _is_between_chunks(content: aiohttp.StreamReader, data: bytes) -> bool:
    """Whether aiohttp's parser, which got `data` last, is at the begin of a chunk. aiohttp notes
    where chunks ended in a private attribute, without which its parser gets everything; what
    follows may be the size of the next one."""
    ends = getattr(content, "_http_chunk_splits", None)
    if not ends or ends[-1] != content.total_bytes:
        return False
    return data.endswith(b"\n\r\n")


def whole_chunks(data: memoryview) -> tuple[list[memoryview], int]:
    """The contents of the chunks with which `data` begins, as views of it, and where the first one
    begins that is not whole or not plain. Use the views before the buffer is filled again."""
    parts: list[memoryview] = []
    at = 0
    head = bytes(data[:_HEAD_BYTES_MAX])
    while (span := _span(head)) is not None:
        begin, stop = at + span[0], at + span[1]
        after = bytes(data[stop : stop + 2 + _HEAD_BYTES_MAX])
        if not after.startswith(b"\r\n"):
            break
        parts.append(data[begin:stop])
        at, head = stop + 2, after[2:]
    return parts, at


def is_begun(data: bytes) -> bool:
    """Whether `data` may be the begin of a plain chunk that is short and holds no whole line."""
    if len(data) < _SIZE_BYTES_MAX and b"\n" not in data:
        return True
    span = _span(data[:_HEAD_BYTES_MAX])
    return (
        span is not None
        and len(data) < min(span[1], _BEGUN_BYTES_MAX)
        and data.find(b"\n", span[0]) < 0
    )


def _span(head: bytes) -> tuple[int, int] | None:
    """Where the content of the chunk that begins with `head` begins, and where it would end: from
    the begin of the chunk."""
    end = head.find(b"\r\n")
    digits = head[:end]
    if end < 0 or not digits.isalnum() or digits.startswith(b"0"):
        return None
    try:
        return end + 2, end + 2 + int(digits, 16)
    except ValueError:
        return None


class WatchFrames:
    """The frames of one open watch. After an error it is over: aiohttp would repeat the same error
    (docs/watch-facts.md 0, D3).

    A caller that does not wait for frames gets only the bytes read that aiohttp buffers.

    Args:
        take: As of `KubeClient.watch`.
        align: When to read on after a few bytes that were taken; None: at once.
    """

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        frames: FrameReader,
        query: WatchQuery,
        what: str,
        take: Take,
        align: Align | None,
    ) -> None:
        self._response, self._frames, self._what = response, frames, what
        self._take, self._align = take, align
        self._now_s = asyncio.get_running_loop().time
        self._idle_s = query.idle_timeout_s
        self._ends_s = self._now_s() + query.timeout_s + WATCH_GRACE_S
        self._received_s = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._ready: list[Frame] = []
        """Frames that `take` did not take."""
        self._error: Exception | None = None
        self._over = self._more = False
        """`_more`: aiohttp may have buffered more than one turn of the loop is to take: what it
        unpacks."""
        self._transport: asyncio.Transport | None = None
        connection = response.connection  # None where all has come, with the head
        if connection is not None and connection.transport is not None:
            assert connection.protocol is not None, "it has a transport"
            self._transport = connection.transport
            self._transport.set_protocol(
                _Body(
                    connection.transport,
                    connection.protocol,
                    response.content,
                    lambda: self._waiter is not None and not (self._waiter.done() or self._more),
                    self._received,
                )
            )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Frame]:
        while True:
            if self._more:
                await asyncio.sleep(0)
            if frames := self._next():
                return frames
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._over:
                raise StopAsyncIteration
            if not self._more:
                await self._wait()

    def _next(self, chunk: bytes = b"") -> list[Frame]:
        """The frames of `chunk`, or of up to `READ_BYTES` of what aiohttp has buffered. Raises:
        what ended the watch."""
        frames, self._ready = self._ready, []
        if frames or self._over:
            return frames
        content, self._more = self._response.content, False
        try:
            while not (frames or self._over or self._more):
                if chunk or (chunk := content.read_nowait(READ_BYTES)):
                    self._more = len(chunk) >= READ_BYTES
                    frames, chunk = self._frames.feed(chunk), b""
                    self._over = self._frames.ended
                elif content.at_eof():
                    frames = self._frames.finish()
                    self._over = True
                else:
                    break
        except EXPECTED as error:
            self._over = True
            leave(self._response)
            raise translate(error, what=self._what) from error
        return frames

    async def _wait(self) -> None:
        """Return when there may be frames. The deadline covers what is received here, never the
        consumer's work. Raises: Interrupted."""
        self._received_s = self._now_s()
        while (due_s := self._due_s()) > self._now_s():
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout_at(due_s):
                    await self._waiter
            except TimeoutError:
                # what was received meanwhile moved the deadline, and what came to aiohttp's buffer
                # since the wait was over must not be overtaken
                self._ready = self._next()
            finally:
                self._waiter = None
            if self._ready or self._over:
                return
        self._over = True
        leave(self._response)
        raise self._silent()

    def _due_s(self) -> float:
        return min(self._received_s + self._idle_s, self._ends_s)

    def _received(self, size: int, contents: bytes) -> None:
        """Offer frames to `take` where they are waited for; `contents` came to no buffer."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        taken = False
        try:
            while frames := self._next(contents):
                contents = b""
                if not self._take(frames):
                    self._ready = frames
                    break
                taken = True
                if self._more:
                    break
        except Exception as error:  # noqa: BLE001 - raised to who waits for frames
            self._error, self._over = error, True
        if self._ready or self._over:
            waiter.set_result(None)
            return
        if self._more:
            asyncio.get_running_loop().call_soon(self._received, READ_BYTES, b"")
        now_s = self._now_s()
        often = size < _FEW_BYTES and now_s - self._received_s < _OFTEN_S
        if taken and often and self._align is not None and self._transport is not None:
            self._transport.pause_reading()
            self._align(self._read_on)
        self._received_s = now_s

    def _read_on(self) -> None:
        """Resume reading, unless the connection was left meanwhile: asyncio raises where it is of
        TLS, and closed."""
        assert self._transport is not None, "it was paused"
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _silent(self) -> KubeError:
        if self._now_s() >= self._ends_s:
            return Interrupted(
                f"{self._what}: the server kept the watch open past its timeoutSeconds"
            )
        error = Interrupted(f"{self._what}: nothing came for {self._idle_s:.0f} s")
        error.reason = "inactive"
        return error


def leave(response: aiohttp.ClientResponse) -> None:
    """Release the connection of a response that was read to its end, abort that of any other: a TLS
    close handshake would wait for the server."""
    if response.content.at_eof() and response.status != 401:
        response.release()
        return
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()
