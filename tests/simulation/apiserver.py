"""An API server that keeps what Kubernetes promises, and no more.

Input: writes, compactions of its history, by seed. Output: pages and watches as bytes, through the
client's own readers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Self

import msgspec

from tests.simulation.weather import Weather
from watchrelay.core.errors import (
    Expired,
    Interrupted,
    KubeError,
    Throttled,
    Unavailable,
    Unreachable,
    VersionTooLarge,
)
from watchrelay.kube.page import PageReader
from watchrelay.kube.stream import FrameReader
from watchrelay.model.frames import Bookmark, Failure, Frame, ListQuery, Page, WatchQuery
from watchrelay.model.resources import Selection

BOOKMARK_S = 1.7
FRONT = "tier=front"
TIERS = ("front", "back")


@dataclass(frozen=True, slots=True)
class Obj:
    """One object. `noise` and `secret` are fields that a config may leave out."""

    name: str
    uid: str
    version: int
    body: int
    noise: int = 0
    tier: str = "front"

    def shown(self, version: int | None = None) -> dict[str, object]:
        """As JSON, in the form that a list leaves and a watch completes."""
        metadata = {
            "name": self.name,
            "namespace": "n",
            "uid": self.uid,
            "resourceVersion": str(version or self.version),
        }
        return {
            "metadata": metadata | {"labels": {"tier": self.tier}},
            "spec": {"body": self.body, "noise": self.noise},
        }


@dataclass(frozen=True, slots=True)
class Event:
    """One write. `before` None: created; `after` None: deleted."""

    version: int
    name: str
    before: Obj | None
    after: Obj | None

    def line(self, selector: str) -> bytes:
        """The watch line, b"" for whom it does not concern. What leaves the selection is shown as
        deleted, with its last state."""
        was, now = selects(selector, self.before), selects(selector, self.after)
        if now:
            assert self.after is not None
            return _line("MODIFIED" if was else "ADDED", self.after.shown())
        if not was:
            return b""
        assert self.before is not None
        return _line("DELETED", self.before.shown(self.version))


def selects(selector: str, each: Obj | None) -> bool:
    """Whether the selector takes it."""
    return each is not None and (not selector or selector == f"tier={each.tier}")


def _line(kind: str, shown: dict[str, object]) -> bytes:
    return (
        msgspec.json.encode({"type": kind, "object": {"kind": "Pod", "apiVersion": "v1"} | shown})
        + b"\n"
    )


def _bookmark(version: int, *, end: bool = False) -> bytes:
    annotations = {"annotations": {"k8s.io/initial-events-end": "true"}} if end else {}
    return _line("BOOKMARK", {"metadata": {"resourceVersion": str(version)} | annotations})


def _error(**fields: object) -> bytes:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return msgspec.json.encode({"type": "ERROR", "object": status | fields}) + b"\n"


_TOO_OLD = "too old resource version: 1 (2)"
_GONE = (
    _error(code=410, reason="Expired"),
    _error(code=410, reason="Gone"),
    _error(code=200, message=_TOO_OLD),
    _error(message=_TOO_OLD),
    _error(code=500, message="The resourceVersion for the provided watch is too old."),
)
"""The forms in which servers tell that the history is gone."""
_FAILED = (
    _error(code=500, reason="InternalError"),
    _error(message="etcd event received with PrevKv=nil"),
    _error(code=500, message="etcdserver: mvcc: required revision has been compacted"),
)
"""And that a change cannot be shown."""


@dataclass
class Server:
    """Objects with a history that ends at `horizon`. While it is `away` it answers nobody,
    and is written to all the same; while it is `down` no connection can be made. A watch from
    before `gap` fails: the change there cannot be shown, though lists show what came of it."""

    version: int = 100
    horizon: int = 0
    gap: int = 0
    history: list[Event] = field(default_factory=list)
    objects: dict[str, Obj] = field(default_factory=dict)
    uids: int = 0
    away: bool = False
    down: bool = False
    clusters: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, name: str, body: int, *, noise: int = 0, tier: str = "") -> None:
        """Create or change."""
        held = self.objects.get(name)
        self.uids += held is None
        now = Obj(
            name,
            f"u{self.uids}" if held is None else held.uid,
            self.version + 1,
            body,
            noise,
            tier or (TIERS[0] if held is None else held.tier),
        )
        self._write(name, held, now)

    def delete(self, name: str) -> None:
        """Delete, if it is there."""
        held = self.objects.get(name)
        if held is not None:
            self._write(name, held, None)

    def _write(self, name: str, before: Obj | None, after: Obj | None) -> None:
        self.version += 1
        self.history.append(Event(self.version, name, before, after))
        self.objects.pop(name, None)
        if after is not None:
            self.objects[name] = after
        self._wake()

    def touch(self) -> None:
        """Another resource is written."""
        self.version += 1
        self._wake()

    def forget(self) -> None:
        """Compact all history: a watch from before it gets 410, and pages of a list from
        before it are gone."""
        self.horizon = self.version
        self._wake()

    def fail_before_now(self) -> None:
        """No watch shows the newest change."""
        self.gap = self.version
        self._wake()

    def rebuild(self, version: int) -> None:
        """Another cluster is in its place, of the same name: without objects, at a version of its
        own. All watches break."""
        self.clusters += 1
        self.version, self.horizon, self.gap = version, 0, 0
        self.history, self.objects = [], {}
        self._wake()

    def _wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def at(self, version: int) -> dict[str, Obj]:
        """The objects as they were."""
        objects = dict(self.objects)
        for event in reversed(self.history):
            if event.version <= version:
                break
            if event.before is not None:
                objects[event.name] = event.before
            else:
                objects.pop(event.name, None)
        return {name: objects[name] for name in sorted(objects)}

    def since(self, version: int, most: int) -> list[Event]:
        """The next events behind a version."""
        events = self.history
        at = len(events)
        while at and events[at - 1].version > version:
            at -= 1
        return events[at : at + most]


class Api:
    """One process's way to the server: implements the watch's `Source`. `received` are the versions
    up to which all has come, each with the virtual time when it came, in order; of a list, that of
    its first page, unless a later one fails, after which the watch may go on without it."""

    def __init__(self, server: Server, weather: Weather, rng: random.Random) -> None:
        self.server, self._weather, self._rng = server, weather, rng
        self._looks_rng = random.Random()
        self._looks_rng.setstate(rng.getstate())  # a look changes nothing else of a run
        self.lists = 0
        self.received: list[tuple[float, int]] = []
        self.looks: list[tuple[float, int]] = []
        """Small lists: when one was requested, and the version that it showed."""
        self._list = (0.0, 0)
        """As of `received`, of the newest list."""

    async def _asked(self, what: str, rng: random.Random) -> None:
        await asyncio.sleep(rng.random() * self._weather.api_delay_s)
        if self.server.down:
            raise Unreachable(f"{what}: connection refused")
        if self.server.away:
            raise Unavailable(f"{what}: nobody answers")
        if rng.random() < self._weather.api_refused:
            raise rng.choice([Unavailable, Throttled])(f"{what}: refused")

    async def list_page(self, selection: Selection, query: ListQuery, *, stream: str) -> Page:
        """As the port says."""
        try:
            return await self._page(selection, query)
        except KubeError:
            if query.continue_token and self._list in self.received:
                self.received.remove(self._list)
            raise

    async def _page(self, selection: Selection, query: ListQuery) -> Page:
        asked_at_s = asyncio.get_running_loop().time()
        server, rng = self.server, self._looks_rng if query.limit == 1 else self._rng
        await self._asked("list", rng)
        if query.continue_token:
            version, _, after = query.continue_token.partition("/")
            at = int(version)
            if at < server.horizon:
                raise Expired("list: the continue token is too old", status=410)
        else:
            asked = int(query.resource_version or 0)
            at, after = server.version, ""
            if asked > at:
                raise VersionTooLarge("list: the server is behind", status=504)
            if query.version_match and rng.random() < self._weather.api_stale:
                at = (
                    rng.randint(max(asked, server.horizon), at)
                    if max(asked, server.horizon) < at
                    else at
                )
        self.lists += query.limit != 1
        if query.limit == 1:
            self.looks.append((asked_at_s, at))
        names = [
            name
            for name, each in server.at(at).items()
            if name > after and selects(selection.label_selector, each)
        ]
        shown = names[: query.limit] if query.limit else names
        objects = server.at(at)
        token = {"continue": f"{at}/{shown[-1]}"} if len(shown) < len(names) else {}
        items = [objects[name].shown() for name in shown]
        body = msgspec.json.encode(
            {
                "kind": "PodList",
                "apiVersion": "v1",
                "metadata": {"resourceVersion": str(at)} | token,
                "items": items,
            }
        )
        if rng.random() < self._weather.api_cut:
            raise Unavailable("list: the connection broke before the answer's end")
        reader = PageReader(selection)
        half = rng.randrange(len(body))
        reader.feed(body[:half])
        await asyncio.sleep(rng.random() * self._weather.api_delay_s)
        reader.feed(body[half:])
        if query.limit != 1:
            if not query.continue_token:
                self._list = asyncio.get_running_loop().time(), at
            if not query.continue_token or not (token or self._list in self.received):
                self.received.append(self._list)
        return reader.finish()

    def watch(
        self,
        selection: Selection,
        query: WatchQuery,
        *,
        stream: str,
        take: Callable[[list[Frame]], bool],
    ) -> AbstractAsyncContextManager[AsyncIterator[list[Frame]]]:
        """As the port says."""
        return Watch(self, selection, query, self._weather, self._rng, take)

    async def opened(self) -> None:
        """A request for a watch arrives."""
        await self._asked("watch", self._rng)


class Watch:
    """One watch: some lines at a time, a bookmark now and then, until it breaks or its time is
    up."""

    def __init__(
        self,
        api: Api,
        selection: Selection,
        query: WatchQuery,
        weather: Weather,
        rng: random.Random,
        take: Callable[[list[Frame]], bool],
    ) -> None:
        self._api, self._server, self._weather, self._rng = api, api.server, weather, rng
        self._take = take
        self._selector, self._query = selection.label_selector, query
        self._frames = FrameReader(selection)
        self._cursor = int(query.resource_version or 0)
        self._ready: list[bytes] = []
        self._over: Exception | None = None
        self._ended = self._silent = False
        self._cluster, self._due_s, self._drawn = self._server.clusters, 0.0, False
        self._listing, self._listing_since_s = query.send_initial_events, 0.0
        self._ends_s = self._bookmark_s = 0.0

    async def __aenter__(self) -> Self:
        await self._api.opened()
        now_s = asyncio.get_running_loop().time()
        self._ends_s, self._bookmark_s = now_s + self._query.timeout_s, now_s + BOOKMARK_S
        if self._query.send_initial_events:
            self._cursor = self._server.version
            for each in self._server.at(self._cursor).values():
                if selects(self._selector, each):
                    self._ready.append(_line("ADDED", each.shown()))
            self._ready.append(_bookmark(self._cursor, end=True))
        elif self._cursor < self._server.horizon and self._rng.random() < 0.5:
            raise Expired("watch: too old resource version", status=410)
        elif self._cursor < self._server.gap and self._rng.random() < 0.5:
            raise Throttled("watch: 500", status=500)
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def __aiter__(self) -> AsyncIterator[list[Frame]]:
        return self

    async def __anext__(self) -> list[Frame]:
        while not self._ended:
            if self._over is not None:
                self._ended = True
                raise self._over
            block = await self._next()
            frames = self._frames.feed(block)
            self._note(frames)
            self._ended |= self._frames.ended
            if frames and not self._take(frames):
                return frames
        raise StopAsyncIteration

    def _note(self, frames: list[Frame]) -> None:
        """The version up to which all has come; the start of a streaming list is no such."""
        now_s = asyncio.get_running_loop().time()
        for frame in frames:
            if isinstance(frame, Failure):
                continue
            self._listing_since_s = self._listing_since_s or now_s
            self._listing &= not (isinstance(frame, Bookmark) and frame.initial_end)
            if not self._listing:
                self._api.received.append((self._listing_since_s, int(frame.resource_version)))
                self._listing_since_s = 0.0

    async def _next(self) -> bytes:
        """The next bytes; what breaks the connection behind them is in `_over` or `_ended`."""
        if not self._drawn:
            await self._delay()
            self._drawn = True
            self._silent = self._silent or self._rng.random() < self._weather.api_silent
        if self._silent:
            await asyncio.sleep(self._query.idle_timeout_s)
            silent = Interrupted("watch: nothing came")
            silent.reason = "inactive"
            raise silent
        block = await self._lines()
        self._drawn = False
        if block and self._rng.random() < self._weather.api_cut:
            block = block[: self._rng.randrange(len(block) + 1)]
            if self._rng.random() < 0.5:
                self._over = Unavailable("watch: the connection broke")
            else:
                self._ended = True
        return block

    async def _delay(self) -> None:
        """Some time, of which a wait that was cancelled in it has the rest."""
        now_s = asyncio.get_running_loop().time()
        delay_s = self._due_s - now_s
        if not self._due_s:
            delay_s = self._rng.random() * self._weather.api_delay_s
            self._due_s = now_s + delay_s
        await asyncio.sleep(max(0.0, delay_s))
        self._due_s = 0.0

    async def _lines(self) -> bytes:
        server = self._server
        loop = asyncio.get_running_loop()
        if server.away:
            raise Unavailable("watch: the connection broke")
        if self._ready:
            count = self._rng.randint(1, len(self._ready))
            lines, self._ready = self._ready[:count], self._ready[count:]
            return b"".join(lines)
        while True:
            now_s = loop.time()
            if self._cluster != server.clusters:
                raise Unavailable("watch: the connection broke")
            if now_s >= self._ends_s:
                self._ended = True
                return b""
            if self._cursor < server.horizon:
                self._ended = True
                return _GONE[server.horizon % len(_GONE)]
            if self._cursor < server.gap:
                self._ended = True
                return _FAILED[server.gap % len(_FAILED)]
            events = server.since(self._cursor, self._rng.randint(1, 4))
            if events:
                self._cursor = events[-1].version
                if block := b"".join(event.line(self._selector) for event in events):
                    return block
                continue
            if self._query.bookmarks and now_s >= self._bookmark_s:
                self._bookmark_s = now_s + BOOKMARK_S
                self._cursor = server.version
                return _bookmark(self._cursor)
            try:
                async with asyncio.timeout_at(
                    min(self._bookmark_s, self._ends_s) if self._query.bookmarks else self._ends_s
                ):
                    await server.changed.wait()
            except TimeoutError:
                continue
