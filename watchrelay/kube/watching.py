"""One open watch: receives under a deadline, hands on frames.

Room: kube. In: the response of a watch request. Out: lists of frames, a clean end, or a KubeError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import aiohttp

from watchrelay.core.errors import Interrupted, KubeError
from watchrelay.kube.stream import FrameStream
from watchrelay.kube.translate import EXPECTED, translate
from watchrelay.model.frames import Frame, WatchQuery
from watchrelay.model.resources import Selection

Opening = Callable[[], Awaitable[aiohttp.ClientResponse]]

WATCH_GRACE_S = 15.0
"""How long past its own timeoutSeconds a watch may live until we cut it. Source: WATCH 2.14."""


class OpenWatch:
    """One watch: context manager and iterator in one.

    Shape: entering opens it; it then yields the frames of each received chunk, never none, and ends
    where the server ended it cleanly.
    Raises: KubeError on entering and from the iterator; a watch that raised is over, and its
    connection closed: aiohttp would repeat the same error for ever (WATCH 0, D3).
    """

    def __init__(
        self, opening: Opening, selection: Selection, query: WatchQuery, *, what: str
    ) -> None:
        self._opening = opening
        self._query = query
        self._what = what
        self._frames = FrameStream(selection)
        self._response: aiohttp.ClientResponse | None = None
        self._ends_s = 0.0
        self._over = False

    async def __aenter__(self) -> Self:
        self._response = await self._opening()
        self._ends_s = _loop_s() + self._query.timeout_s + WATCH_GRACE_S
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._response is not None:
            self._response.release() if self._response.content.at_eof() else leave(self._response)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Frame]:
        while not self._over:
            chunk = await self._receive()
            if chunk:
                frames = self._frames.feed(chunk)
                self._over = self._frames.ended
            else:
                frames = self._frames.finish()
                self._over = True
            if frames:
                return frames
        raise StopAsyncIteration

    async def _receive(self) -> bytes:
        """The next bytes, b"" at a clean end. The deadline covers this one receive, never the
        consumer's work."""
        assert self._response is not None
        content = self._response.content
        try:
            if ready := content.read_nowait():
                return ready
            left_s = self._ends_s - _loop_s()
            async with asyncio.timeout(min(self._query.idle_timeout_s, max(0.0, left_s))):
                return await content.readany()
        except EXPECTED as error:
            self._over = True
            leave(self._response)
            if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ClientError):
                raise self._silent() from error
            raise translate(error, what=self._what) from error

    def _silent(self) -> KubeError:
        if _loop_s() >= self._ends_s:
            return Interrupted(
                f"{self._what}: the server kept the watch open past its timeoutSeconds"
            )
        error = Interrupted(f"{self._what}: nothing came for {self._query.idle_timeout_s:.0f} s")
        error.reason = "inactive"
        return error


def _loop_s() -> float:
    """The time that deadlines are measured in, which is virtual in simulations."""
    return asyncio.get_running_loop().time()


def leave(response: aiohttp.ClientResponse) -> None:
    """Give up a response and its connection at once: under TLS a farewell would wait for a server
    that may never answer it."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()
    response.close()
