"""A small API server with a script of misbehaviour, and what it says: lists, watch lines, errors."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.support.scripted import Reply, Request
from watchrelay.model.resources import Resource

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
