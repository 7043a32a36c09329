"""A small API server with a script of misbehaviour, a plan: a watcher that follows it over real
sockets, in virtual time, and the plain dict that it fills."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.support.scripted import Reply, Request, ScriptedServer
from watchrelay.core.errors import KubeError
from watchrelay.kube.auth.transport import Endpoint
from watchrelay.kube.client import KubeClient
from watchrelay.model.frames import ObjectFrame
from watchrelay.model.resources import Resource, Selection
from watchrelay.model.streams import WatchPlan
from watchrelay.model.watch_events import (
    CursorMoved,
    ListBegun,
    ListDone,
    ListedObjects,
    ResourceRemoved,
    Retrying,
    WatchedObjects,
    WatchEvent,
)
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StreamStatus
from watchrelay.watch.admission import Admission
from watchrelay.watch.loop import Watcher

PODS = Resource("", "v1", "pods", "Pod", namespaced=True)
WIDGETS = Resource("example.com", "v1", "widgets", "Widget", namespaced=True)

Answer = Callable[[Request, Reply], Awaitable[None]]


# ---- the server's words --------------------------------------------------------------------------


def pod(
    name: str, version: int | str, *, uid: str = "", namespace: str = "shop", **more: Any
) -> dict[str, Any]:
    """A pod as a watch shows it."""
    meta = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
    }
    return {"kind": "Pod", "apiVersion": "v1", "metadata": meta, **more}


def page(
    version: int | str | None, objects: Iterable[dict[str, Any]] = (), token: str | None = None
) -> dict[str, Any]:
    """A list as the server writes it: items without kind and apiVersion. `version` None leaves it
    out."""
    items = [
        {key: value for key, value in each.items() if key not in {"kind", "apiVersion"}}
        for each in objects
    ]
    meta: dict[str, Any] = {} if version is None else {"resourceVersion": str(version)}
    if token is not None:
        meta["continue"] = token
    return {"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": items}


def line(kind: str, obj: dict[str, Any]) -> bytes:
    """A watch line."""
    return json.dumps({"type": kind, "object": obj}, separators=(",", ":")).encode() + b"\n"


def bookmark(version: int | str, *, end: bool = False) -> bytes:
    """A BOOKMARK line; with `end` the one that ends a streaming list."""
    meta: dict[str, Any] = {"resourceVersion": str(version), "creationTimestamp": None}
    if end:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    return line(
        "BOOKMARK",
        {"kind": "Pod", "apiVersion": "v1", "metadata": meta, "spec": {"containers": None}},
    )


def failure(code: int, reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    """A Status."""
    text = message or reason
    return {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": text, "reason": reason, "code": code, **more
    }  # fmt: skip


EXPIRED = failure(410, "Expired", "too old resource version: 1 (100)")
TOO_LARGE = failure(
    504, "Timeout", "Timeout: Too large resource version: 5399771, current: 5399139",
    details={"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}], "retryAfterSeconds": 1},
)  # fmt: skip


def status(
    code: int, reason: str, message: str = "", headers: dict[str, str] | None = None, **more: Any
) -> Answer:
    """Answers with a Status."""

    async def answer(request: Request, reply: Reply) -> None:
        await reply.json(code, failure(code, reason, message, **more), headers)

    return answer


def says(obj: object, code: int = 200) -> Answer:
    """Answers with a JSON document."""

    async def answer(request: Request, reply: Reply) -> None:
        await reply.json(code, obj)

    return answer


def text(code: int, body: str, headers: dict[str, str] | None = None) -> Answer:
    """Answers with plain text, as max-inflight and proxies do."""

    async def answer(request: Request, reply: Reply) -> None:
        await reply.text(code, body, headers)

    return answer


def stream(*pieces: bytes | float, then: str = "end") -> Answer:
    """A watch of these bytes and pauses. `then`: "end", "fin", "reset", or "hang" (silence, socket
    open)."""

    async def answer(request: Request, reply: Reply) -> None:
        await reply.start(200)
        for piece in pieces:
            if isinstance(piece, bytes):
                await reply.chunk(piece)
            else:
                await asyncio.sleep(piece)
        if then == "hang":
            await reply.gone()
            await reply.fin()
        else:
            await {"end": reply.end, "fin": reply.fin, "reset": reply.reset}[then]()

    return answer


def repeated(times: int, *pieces: bytes | float) -> list[bytes | float]:
    """Pieces of a stream, again and again."""
    return list(pieces) * times


async def drop(request: Request, reply: Reply) -> None:
    """Closes the connection without a word."""
    await reply.fin()


# ---- the server ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A request and when it came, in virtual seconds."""

    at_s: float
    kind: str
    query: dict[str, str]
    headers: dict[str, str]
    path: str


class Api:
    """A collection that behaves as kube-apiserver does, but for what `lists` and `watches` script:
    each answers one request, in turn.

    Knobs: `bookmark_every_s` (0: none), `streaming` (serves sendInitialEvents), `always` (answers
    everything), `missing` (404).
    """

    def __init__(self, *objects: dict[str, Any], version: int = 100) -> None:
        self.version = version
        self.objects = {
            (o["metadata"].get("namespace", ""), o["metadata"]["name"]): o for o in objects
        }
        self.history: list[tuple[int, str, dict[str, Any]]] = []
        self.oldest = 0
        self.lists: deque[Answer] = deque()
        self.watches: deque[Answer] = deque()
        self.always: Answer | None = None
        self.streaming = True
        self.bookmark_every_s = 60.0
        self.asked: list[Asked] = []
        self.holding_lists = 0
        self.most_lists = 0
        self.list_takes_s = 0.0
        self._news = asyncio.Event()

    def put(self, obj: dict[str, Any], *, tell: bool = True) -> None:
        """Create or change an object; with `tell` False watchers of now miss it."""
        self.version = max(self.version + 1, int(obj["metadata"]["resourceVersion"]))
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        key = (obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        self._tell("MODIFIED" if key in self.objects else "ADDED", obj, tell=tell)
        self.objects[key] = obj

    def delete(self, name: str, *, namespace: str = "shop", tell: bool = True) -> None:
        """Delete an object."""
        obj = self.objects.pop((namespace, name))
        self.version += 1
        self._tell(
            "DELETED",
            {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}},
            tell=tell,
        )

    def expire(self) -> None:
        """Forget the history: watches from before now are answered 410."""
        self.oldest = self.version
        self.history.clear()

    def _tell(self, kind: str, obj: dict[str, Any], *, tell: bool) -> None:
        if tell:
            self.history.append((self.version, kind, obj))
            self._news.set()
            self._news = asyncio.Event()

    @property
    def list_requests(self) -> list[Asked]:
        return [each for each in self.asked if each.kind == "list"]

    @property
    def watch_requests(self) -> list[Asked]:
        return [each for each in self.asked if each.kind == "watch"]

    def times(self, kind: str = "") -> list[float]:
        """When requests came."""
        return [each.at_s for each in self.asked if not kind or each.kind == kind]

    async def __call__(self, request: Request, reply: Reply) -> None:
        kind = "watch" if request.query.get("watch") else "list"
        now_s = asyncio.get_running_loop().time()
        self.asked.append(Asked(now_s, kind, request.query, request.headers, request.path))
        script = self.lists if kind == "list" else self.watches
        if script:
            await script.popleft()(request, reply)
        elif self.always is not None:
            await self.always(request, reply)
        elif kind == "list":
            self.holding_lists += 1
            self.most_lists = max(self.most_lists, self.holding_lists)
            try:
                await asyncio.sleep(self.list_takes_s)
                await self.list(request, reply)
            finally:
                self.holding_lists -= 1
        else:
            await self.watch(request, reply)

    async def list(self, request: Request, reply: Reply) -> None:
        """A true list, paged as asked."""
        keys, limit = sorted(self.objects), int(request.query.get("limit", "0"))
        first = int(request.query.get("continue", "0"))
        end = first + limit if limit else len(keys)
        token = str(end) if end < len(keys) else None
        await reply.json(
            200, page(self.version, (self.objects[key] for key in keys[first:end]), token)
        )

    async def watch(self, request: Request, reply: Reply) -> None:
        """A true watch: history, news, bookmarks, an end in time; a streaming list where asked and
        served."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + int(request.query["timeoutSeconds"])
        initial = request.query.get("sendInitialEvents") == "true"
        if initial and not self.streaming:
            message = (
                "sendInitialEvents is forbidden for watch unless the WatchList feature gate "
                "is enabled"
            )
            await reply.json(422, failure(422, "Invalid", message))
            return
        await reply.start(200)
        seen = self.version if initial else int(request.query["resourceVersion"])
        if initial:
            for obj in list(self.objects.values()):
                await reply.chunk(line("ADDED", obj))
            await reply.chunk(bookmark(seen, end=True))
        elif seen < self.oldest:
            await reply.chunk(line("ERROR", EXPIRED))
            await reply.end()
            return
        bookmarks = (
            self.bookmark_every_s if request.query.get("allowWatchBookmarks") == "true" else 0
        )
        mark_s = loop.time() + bookmarks
        while loop.time() < ends_s:
            news = self._news
            for version, kind, obj in [each for each in self.history if each[0] > seen]:
                await reply.chunk(line(kind, obj))
                seen = version
            if bookmarks and loop.time() >= mark_s:
                mark_s += bookmarks
                await reply.chunk(bookmark(max(seen, self.version)))
            try:
                async with asyncio.timeout_at(min(ends_s, mark_s) if bookmarks else ends_s):
                    await news.wait()
            except TimeoutError:
                continue
        await reply.end()


# ---- who follows ---------------------------------------------------------------------------------


class Mirror:
    """An outlet that keeps a dict: lists swap in at their end, removals first; `changes` is what a
    store would publish."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, str], tuple[str, str]] = {}
        self.events: list[WatchEvent] = []
        self.changes: list[tuple[str, str]] = []
        self.troubles: list[KubeError] = []
        self.synced = 0
        self.gone = 0
        self.disbelieve = 0
        self.full: asyncio.Event | None = None
        self._fresh: dict[tuple[str, str], tuple[str, str]] = {}

    @property
    def names(self) -> list[str]:
        return sorted(name for _, name in self.held)

    async def take(self, event: WatchEvent) -> bool:
        if self.full is not None:
            await self.full.wait()
        return self._take(event)

    def ready(self) -> bool:
        return self.full is None

    def take_now(self, event: WatchedObjects | CursorMoved) -> None:
        self._take(event)

    def _take(self, event: WatchEvent) -> bool:
        self.events.append(event)
        match event:
            case ListBegun():
                self._fresh = {}
            case ListedObjects(objects=frames):
                for frame in frames:
                    self._apply(self._fresh, frame)
            case ListDone():
                if self.disbelieve and not event.confirmed:
                    self.disbelieve -= 1
                    return False
                self._swap(self._fresh)
                self.synced += 1
            case WatchedObjects(frames=frames):
                assert frames, "an WatchedObjects is never empty"
                for frame in frames:
                    self._observe(frame)
            case ResourceRemoved():
                self._swap({})
                self.gone += 1
            case Retrying(error=error):
                self.troubles.append(error)
            case CursorMoved():
                pass
        return True

    def _apply(self, state: dict[tuple[str, str], tuple[str, str]], frame: ObjectFrame) -> None:
        key = (frame.namespace, frame.name)
        if frame.type == "DELETED":
            state.pop(key, None)
        else:
            state[key] = (frame.uid, frame.resource_version)

    def _observe(self, frame: ObjectFrame) -> None:
        key, before = (frame.namespace, frame.name), dict(self.held)
        self._apply(self.held, frame)
        if self.held.get(key) != before.get(key):
            self.changes.append((frame.type, frame.name))

    def _swap(self, fresh: dict[tuple[str, str], tuple[str, str]]) -> None:
        before, self.held = self.held, dict(fresh)
        self.changes += [("DELETED*", key[1]) for key in before if key not in fresh]
        self.changes += [
            ("ADDED" if key not in before else "MODIFIED", key[1])
            for key in fresh
            if before.get(key) != fresh[key]
        ]


class PlainAccess:
    """Credentials of a server that wants none."""

    def __init__(self, url: str) -> None:
        self.endpoint = Endpoint(url)
        self.rejections = 0

    async def headers(self) -> list[tuple[str, str]]:
        return []

    async def tls(self) -> ssl.SSLContext | None:
        return None

    def distrusted(self, asked_s: float) -> None:
        pass

    async def rejected(self, asked_s: float) -> None:
        self.rejections += 1


@dataclass(slots=True)
class Follower:
    """One watcher at work."""

    watcher: Watcher
    mirror: Mirror
    status: StreamStatus
    task: asyncio.Task[None]


@dataclass(slots=True)
class Scene:
    """A server, and its client."""

    api: Api
    server: ScriptedServer
    metrics: Metrics
    admission: Admission
    client: KubeClient
    followers: list[Follower] = field(default_factory=list)

    @property
    def mirror(self) -> Mirror:
        return self.followers[0].mirror

    @property
    def status(self) -> StreamStatus:
        return self.followers[0].status

    @property
    def watcher(self) -> Watcher:
        return self.followers[0].watcher

    def count(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that carry `labels`."""
        return sum(
            sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == f"watchrelay_{name}" and labels.items() <= sample.labels.items()
        )

    def synced_anew(self) -> Callable[[], bool]:
        """A claim for `until`: another list was completed since this call."""
        before = self.mirror.synced
        return lambda: self.mirror.synced > before

    async def until(self, claim: Callable[[], object], within_s: float = 60.0) -> None:
        """Let virtual time pass until `claim` holds. Raises: AssertionError after `within_s`."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        ends_s = began_s + within_s
        while not claim():
            assert loop.time() < ends_s, (
                f"not within {within_s} s; asked so far: "
                f"{[(a.kind, a.query) for a in self.api.asked][-6:]}"
            )
            await asyncio.sleep(min(0.5, 0.05 + (loop.time() - began_s) / 50))
            for each in self.followers:
                if each.task.done() and not each.task.cancelled():
                    each.task.result()

    async def run_for(self, seconds: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(seconds)
        for each in self.followers:
            assert not each.task.done(), each.task


@asynccontextmanager
async def following(
    api: Api,
    *,
    watchers: int = 1,
    server_version: tuple[int, int] | None = (1, 33),
    served: Callable[[], bool | None] = lambda: True,
    resource: Resource = PODS,
    namespace: str | None = None,
    cursor: str = "",
    resumed: bool = False,
    seed: int = 7,
    settled: bool = False,
    **plan: Any,
) -> AsyncIterator[Scene]:
    """Watchers of `api`; with `settled` once their first list is complete."""

    async def ask(_: Resource) -> bool | None:
        return served()

    selection = Selection(
        resource,
        namespace,
        metadata_only=plan.pop("metadata_only", False),
        label_selector=plan.pop("labels", ""),
    )
    metrics, rng = Metrics(), Random(seed)
    async with (
        ScriptedServer(api) as server,
        KubeClient(PlainAccess(server.url), metrics) as client,
    ):
        scene = Scene(api, server, metrics, Admission(rng=rng, metrics=metrics), client)
        async with asyncio.TaskGroup() as tasks:
            for index in range(watchers):
                stream_id, mirror = f"{resource.plural}-{index}", Mirror()
                shown = StreamStatus(stream_id)
                watcher = Watcher(
                    stream_id,
                    WatchPlan(selection, **plan),
                    source=client,
                    outlet=mirror,
                    admission=scene.admission,
                    metrics=metrics.stream(stream_id, resource),
                    status=shown,
                    served=ask,
                    server_version=lambda: server_version,
                    rng=Random(seed * 1000 + index),
                    cursor=cursor,
                    resumed=resumed,
                )
                task = tasks.create_task(watcher.run(), name=stream_id)
                scene.followers.append(Follower(watcher, mirror, shown, task))
            if settled:
                await scene.until(
                    lambda: all(
                        each.mirror.synced and each.status.state == "watching"
                        for each in scene.followers
                    )
                )
            try:
                yield scene
            finally:
                for each in scene.followers:
                    each.task.cancel()
