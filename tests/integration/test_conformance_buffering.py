"""The watch over real sockets, virtual time: a proxy before the server that buffers, as nginx does by
default: it passes on what a watch sends once it has some, or at the end; the head of the answer at
once, or with the first of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.following import Scene, following
from tests.support.scripted import Reply, Request
from tests.support.scripted_apiserver import Api, pod
from tests.support.virtualtime import virtual

BUFFER_BYTES = 8192
HOUR_S = 3600.0


class Buffered:
    """The answer to a watch, through the proxy."""

    def __init__(self, reply: Reply, *, holds_head: bool) -> None:
        self._reply, self._holds_head = reply, holds_head
        self._kept = b""
        self._is_begun = False

    async def start(self, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        if not self._holds_head:
            await self._begin()

    async def chunk(self, data: bytes) -> None:
        self._kept += data
        if len(self._kept) >= BUFFER_BYTES:
            await self._pass_on()

    async def end(self) -> None:
        await self._pass_on()
        await self._reply.end()

    async def _begin(self) -> None:
        if not self._is_begun:
            self._is_begun = True
            await self._reply.start(200)

    async def _pass_on(self) -> None:
        await self._begin()
        kept, self._kept = self._kept, b""
        if kept:
            await self._reply.chunk(kept)


class Behind(Api):
    """The server behind that proxy."""

    holds_head = False

    async def watch(self, request: Request, reply: Reply) -> None:
        proxied: Any = Buffered(reply, holds_head=self.holds_head)
        await super().watch(request, proxied)


async def late_s(s: Scene, *, every_s: float, changes: int) -> list[float]:
    """How late each of some changes came."""
    return [await one_late_s(s, f"c{number}", after_s=every_s) for number in range(changes)]


async def one_late_s(s: Scene, name: str, *, after_s: float) -> float:
    await s.run_for(after_s)
    at_s = asyncio.get_running_loop().time()
    s.api.put(pod(name, 0))
    await s.until(lambda: name in s.mirror.names, HOUR_S)
    return asyncio.get_running_loop().time() - at_s


@pytest.mark.parametrize("server_version", [(1, 33), (1, 36)])
@pytest.mark.parametrize("holds_head", [False, True])
@pytest.mark.parametrize("bookmarks", [False, True])
@virtual
async def test_behind_a_proxy_that_buffers_each_change_comes_within_70_seconds(
    server_version: tuple[int, int], *, bookmarks: bool, holds_head: bool
) -> None:
    api = Behind(pod("a", 1), version=100)
    api.holds_head, api.bookmark_every_s = holds_head, 60.0 if bookmarks else 0.0
    async with following(api, server_version=server_version) as s:
        await s.until(lambda: s.mirror.names == ["a"], 300)
        await s.run_for(200)
        late = await late_s(s, every_s=310.0, changes=12)
        assert max(late) <= 70.0
        assert s.status.last_error is None
        assert len(s.mirror.troubles) <= 5


@virtual
async def test_an_answer_that_is_held_back_is_shown_with_the_proxys_setting() -> None:
    api = Behind(pod("a", 1), version=100)
    api.holds_head, api.bookmark_every_s = True, 0.0
    async with following(api, server_version=(1, 33)) as s:
        await s.until(lambda: bool(s.mirror.troubles), 80)
        message = str(s.mirror.troubles[0])
        assert "no answer in time" in message
        assert "proxy_buffering off" in message


@virtual
async def test_once_answers_begin_soon_watches_are_long_again() -> None:
    api = Behind(pod("a", 1), version=100)
    api.holds_head, api.bookmark_every_s = True, 0.0
    async with following(api, server_version=(1, 33)) as s:
        await s.run_for(300)
        assert int(api.watch_requests[-1].query["timeoutSeconds"]) <= 60
        api.holds_head = False
        asked = len(api.watch_requests)
        await s.until(lambda: len(api.watch_requests) >= asked + 3, 900)
        assert int(api.watch_requests[-1].query["timeoutSeconds"]) >= 300
