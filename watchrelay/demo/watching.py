"""One watch, from its answer's headers to its end.

It sends lines as they happen, bookmarks, and the error that ends it.
Source: docs/watch-facts.md 2 (watch), 3 (streaming lists).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Literal

from aiohttp import web

from watchrelay.demo.queries import WatchRequest, too_large
from watchrelay.demo.storage import Collection, Event, Refused, Storage
from watchrelay.demo.views import View, error_line

EVENTS_PER_WRITE = 128
OBJECTS_PER_WRITE = 128
Ending = Literal["clean", "cut"]


class WatchStream:
    """A running watch; `end` ends it from outside."""

    def __init__(
        self,
        storage: Storage,
        collection: Collection,
        view: View,
        asked: WatchRequest,
        *,
        bookmark_interval_s: float,
        on_caught_up: Callable[[], None],
    ) -> None:
        self._storage = storage
        self._collection = collection
        self._view = view
        self._asked = asked
        self._bookmark_interval_s = bookmark_interval_s
        self._on_caught_up = on_caught_up
        self._woken = asyncio.Event()
        self._ending: Ending | None = None
        self._transport: asyncio.Transport | None = None
        self.position = collection.end

    @property
    def caught_up(self) -> bool:
        """True when everything written so far was handed to the socket."""
        return self.position >= self._collection.end

    def end(self, how: Ending) -> None:
        """Ends it soon: `clean` as at a timeout or a restart, `cut` without the terminal chunk."""
        # what was asked first holds: a server that is cut and stopped is cut
        self._ending = self._ending or how
        if how == "cut" and self._transport is not None:
            self._transport.abort()  # at once, even while a slow reader keeps us from writing
        self._woken.set()

    async def run(self, request: web.Request) -> web.StreamResponse:
        """Answers `request` until the timeout, an error, `end`, or until the client is gone."""
        response = web.StreamResponse(
            headers={"Content-Type": "application/json", "Cache-Control": "no-cache, private"}
        )
        response.enable_chunked_encoding()
        with contextlib.suppress(ConnectionError):  # aiohttp would log a traceback
            await response.prepare(request)
            self._transport = request.transport
            await self._answer(response)
        return response

    async def _answer(self, response: web.StreamResponse) -> None:
        self._collection.listeners[self._woken.set] = None
        try:
            await self._serve(response)
        except Refused as refused:
            await response.write(error_line(refused))
        finally:
            self._collection.listeners.pop(self._woken.set, None)
        if self._ending != "cut":
            await response.write_eof()

    async def _serve(self, response: web.StreamResponse) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._asked.timeout_s
        floor = await self._begin(response)
        bookmark_s = (
            loop.time() + self._bookmark_interval_s if self._asked.bookmarks else float("inf")
        )
        while self._ending != "cut":
            self._woken.clear()
            events = self._collection.since(self.position, EVENTS_PER_WRITE)
            if events is None:
                return  # too slow to read: real servers close such a watch, too
            if events:
                await self._send(response, events, floor)
            now_s = loop.time()
            over, due = now_s >= deadline_s, now_s >= bookmark_s
            if events and not over and not due:
                continue  # a client that ends a watch cleanly gets all that was written before
            if self.caught_up:
                self._on_caught_up()
                if due or (over and self._asked.bookmarks):
                    bookmark_s = now_s + self._bookmark_interval_s
                    if self._storage.version >= floor:
                        await response.write(self._view.bookmark(self._storage.version))
            if over or (self._ending and not events):
                return
            if not events:
                await self._wait(min(bookmark_s, deadline_s))

    async def _send(self, response: web.StreamResponse, events: list[Event], floor: int) -> None:
        self.position += len(events)
        if events[0].version <= floor:
            events = [event for event in events if event.version > floor]
        if data := self._view.lines(events):
            await response.write(data)

    async def _wait(self, until_s: float) -> None:
        try:
            async with asyncio.timeout_at(until_s):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _begin(self, response: web.StreamResponse) -> int:
        """Sends what there is, if that was asked for; the version up to which nothing more is sent
        (a future one is waited for)."""
        asked, collection = self._asked, self._collection
        if asked.start is not None:
            position = collection.position(asked.start)
            if position is None:
                raise Refused(
                    410,
                    "Expired",
                    f"too old resource version: {asked.start} ({collection.horizon})",
                )
            self.position = position
            return asked.start
        version = self._storage.version
        if asked.at_least > version:
            raise too_large(asked.at_least, version)
        self.position = collection.end
        objects = [stored for stored in collection.state_at(version)[1] if self._view.shows(stored)]
        for first in range(0, len(objects), OBJECTS_PER_WRITE):
            await response.write(
                b"".join(
                    [
                        self._view.added(stored)
                        for stored in objects[first : first + OBJECTS_PER_WRITE]
                    ]
                )
            )
        if asked.marked:
            await response.write(self._view.bookmark(version, initial_end=True))
        return 0
