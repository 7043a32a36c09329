"""An API server on a real socket, without a cluster.

It answers HTTP/1.1 requests as any Kubernetes client sends them: discovery, lists with
paging, watches, simple writes. It follows the protocol's awkward parts on purpose: versions that
expire in both forms, tokens that do, items without kind, selectors that delete. Source:
docs/watch-facts.md 1-4,
8-9; kubernetes.io "API concepts".
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from aiohttp import web

from watchrelay.demo.catalog import AGGREGATED_TYPE, Served
from watchrelay.demo.queries import list_options, too_large, wants_metadata_only, watch_request
from watchrelay.demo.registry import Registry
from watchrelay.demo.storage import Refused
from watchrelay.demo.views import LIST_END, View
from watchrelay.demo.watching import Ending, WatchStream

GZIP_BYTES_MIN = 128 * 1024
ITEMS_PER_WRITE = 256
Handler = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


@dataclass(slots=True)
class Behaviour:
    """How the server behaves, which tests may change while it runs.

    `forbidden` holds (verb, plural) pairs answered 403; `expired_as_http` answers an expired watch
    with HTTP 410 instead of an ERROR line; `token` is the bearer token that is asked of everybody;
    `intercept` sees every request first, and may answer it.
    """

    version: str = "v1.36.0"
    bookmark_interval_s: float = 60.0
    streaming_lists: bool = True
    aggregated_discovery: bool = True
    metadata_only: bool = True
    expired_as_http: bool = False
    ready: bool = True
    token: str = ""
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    intercept: Handler | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What a path means. `namespace` "" is all namespaces or none; `name` "" is the
    collection."""

    served: Served
    version: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that came."""

    verb: str
    resource: str
    query: Mapping[str, str]
    user_agent: str


class ApiServer:
    """Serves a `Registry` on 127.0.0.1. `requests` counts (verb, resource); `log` keeps the newest
    thousand."""

    def __init__(self, registry: Registry, behaviour: Behaviour | None = None) -> None:
        self.registry = registry
        self.behaviour = behaviour or Behaviour()
        self.requests: Counter[tuple[str, str]] = Counter()
        self.log: deque[Seen] = deque(maxlen=1000)
        self.url = ""
        self.levers: Handler | None = None
        self._random = Random(0)
        self._progress = asyncio.Event()
        self._watches: dict[WatchStream, str] = {}
        self._runner: web.AppRunner | None = None
        registry.redefined = lambda name: self.end_watches("clean", name)

    async def start(self, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listens; `url` says where."""
        app = web.Application(client_max_size=8 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, shutdown_timeout=0.5, access_log=None
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0][:2])

    async def stop(self) -> None:
        """Ends every watch cleanly, closes the socket."""
        self.end_watches("clean")
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def end_watches(self, how: Ending = "clean", resource: str | None = None) -> None:
        """Ends the watches of one resource, or all: `clean` as at their timeout, `cut` as a server
        that dies."""
        for watch, watched in list(self._watches.items()):
            if resource in {None, watched}:
                watch.end(how)

    @property
    def watches(self) -> int:
        """Watches that are open now."""
        return len(self._watches)

    async def read_up(self, resource: str) -> None:
        """Returns when every watch of the resource was given all that was written: as slow as the
        slowest reader."""
        await asyncio.sleep(0)
        while not all(
            watch.caught_up for watch, watched in self._watches.items() if watched == resource
        ):
            self._progress.clear()
            await self._progress.wait()

    # ---- requests --------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            if (
                self.behaviour.intercept is not None
                and (answer := await self.behaviour.intercept(request)) is not None
            ):
                return answer
            self._authenticate(request)
            if self.levers is not None and (answer := await self.levers(request)) is not None:
                return answer
            return await self._route(request)
        except Refused as refused:
            retry = (refused.details or {}).get("retryAfterSeconds")
            headers = {"Retry-After": str(retry)} if retry else {}
            return _json(refused.status(), status=refused.code, headers=headers)

    def _authenticate(self, request: web.Request) -> None:
        if (
            self.behaviour.token
            and request.headers.get("Authorization") != f"Bearer {self.behaviour.token}"
        ):
            raise Refused(401, "Unauthorized", "Unauthorized")

    async def _route(self, request: web.Request) -> web.StreamResponse:
        parts = [part for part in request.path.split("/") if part]
        match parts:
            case ["readyz" | "livez" | "healthz", *_]:
                ready = self.behaviour.ready or parts[0] == "livez"
                return web.Response(
                    text="ok" if ready else "not ready", status=200 if ready else 500
                )
            case ["version"]:
                major, minor = self.behaviour.version.removeprefix("v").split(".")[:2]
                return _json(
                    {
                        "major": major,
                        "minor": minor,
                        "gitVersion": self.behaviour.version,
                        "platform": "linux/amd64",
                    }
                )
            case ["api" | "apis"] | ["api", _] | ["apis", _] | ["apis", _, _]:
                return self._discovery(request, parts)
            case ["api", version, *rest]:
                target = self._target("", version, rest)
            case ["apis", group, version, *rest]:
                target = self._target(group, version, rest)
            case _:
                target = None
        if target is None:
            return self._not_found(parts)
        return await self._resource(request, target)

    def _not_found(self, parts: list[str]) -> web.Response:
        """A server that knows the group and version says so in a Status, for all else it is a plain
        page."""
        group, version = (
            (parts[1], parts[2])
            if parts[:1] == ["apis"] and len(parts) > 3
            else ("", parts[1] if len(parts) > 1 else "")
        )
        if parts[:1] in (["api"], ["apis"]) and version in self.registry.catalog.groups().get(
            group, ()
        ):
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        return web.Response(text="404 page not found\n", status=404)

    def _target(self, group: str, version: str, rest: list[str]) -> Target | None:
        namespace = ""
        # "namespaces/x" alone is an object; with something after it, a place.
        if len(rest) >= 3 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        if (
            not 1 <= len(rest) <= 2
            or (served := self.registry.catalog.find(group, version, rest[0])) is None
        ):
            return None
        if namespace and not served.resource.namespaced:
            return None
        return Target(served, version, namespace, rest[1] if len(rest) == 2 else "")

    async def _resource(self, request: web.Request, target: Target) -> web.StreamResponse:
        watching = request.query.get("watch", "") in {"1", "true"} and not target.name
        verbs = {
            "GET": "get" if target.name else "watch" if watching else "list",
            "POST": "create",
            "PUT": "update",
            "DELETE": "delete",
        }
        verb, served = verbs.get(request.method, ""), target.served
        self.requests[verb, served.name] += 1
        self.log.append(
            Seen(verb, served.name, dict(request.query), request.headers.get("User-Agent", ""))
        )
        if (verb, served.resource.plural) in self.behaviour.forbidden:
            where = (
                f' in the namespace "{target.namespace}"'
                if target.namespace
                else " at the cluster scope"
            )
            what = (
                f'resource "{served.resource.plural}" in API group "{served.resource.group}"{where}'
            )
            raise Refused(
                403, "Forbidden", f'{served.name} is forbidden: User "demo" cannot {verb} {what}'
            )
        match verb:
            case "list":
                return await self._list(request, target)
            case "watch":
                return await self._watch(request, target)
            case "get":
                return self._get(target)
            case "create" | "update" | "delete":
                return await self._write(request, target, verb)
            case _:
                raise Refused(
                    405,
                    "MethodNotAllowed",
                    "the server does not allow this method on the requested resource",
                )

    def _view(self, request: web.Request, target: Target, *, as_list: bool) -> View:
        query = request.query
        return View(
            target.served,
            target.version,
            namespace=target.namespace,
            label_selector=query.get("labelSelector", ""),
            field_selector=query.get("fieldSelector", ""),
            metadata_only=wants_metadata_only(request.headers.get("Accept", ""), as_list=as_list)
            and self.behaviour.metadata_only,
        )

    async def _list(self, request: web.Request, target: Target) -> web.StreamResponse:
        view, options, storage = (
            self._view(request, target, as_list=True),
            list_options(request.query),
            self.registry.storage,
        )
        if options.at_least > storage.version:
            raise too_large(options.at_least, storage.version)
        listing = storage.page(
            target.served.name,
            namespace=target.namespace,
            matches=view.matches if view.selective else None,
            limit=options.limit,
            token=options.token,
            exactly=options.exactly,
        )
        head = view.list_head(listing.version, token=listing.token, remaining=listing.remaining)
        if len(listing.objects) <= 2 * ITEMS_PER_WRITE:
            body = head + b",".join([view.item(stored) for stored in listing.objects]) + LIST_END
            headers = {"Content-Type": "application/json"}
            if len(body) > GZIP_BYTES_MIN and "gzip" in request.headers.get("Accept-Encoding", ""):
                body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
            return web.Response(body=body, headers=headers)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        separator = head
        for first in range(0, len(listing.objects), ITEMS_PER_WRITE):
            items = [
                view.item(stored) for stored in listing.objects[first : first + ITEMS_PER_WRITE]
            ]
            await response.write(separator + b",".join(items))
            separator = b","
            await asyncio.sleep(0)  # a huge list must not keep the watches waiting
        await response.write(LIST_END)
        await response.write_eof()
        return response

    async def _watch(self, request: web.Request, target: Target) -> web.StreamResponse:
        view, storage = self._view(request, target, as_list=False), self.registry.storage
        asked = watch_request(
            request.query, streaming=self.behaviour.streaming_lists, random=self._random
        )
        collection = storage.collection(target.served.name)
        if (
            self.behaviour.expired_as_http
            and asked.start is not None
            and collection.position(asked.start) is None
        ):
            raise Refused(
                410, "Expired", f"too old resource version: {asked.start} ({collection.horizon})"
            )
        watch = WatchStream(
            storage,
            collection,
            view,
            asked,
            bookmark_interval_s=self.behaviour.bookmark_interval_s,
            on_caught_up=self._progress.set,
        )
        self._watches[watch] = target.served.name
        try:
            return await watch.run(request)
        finally:
            self._watches.pop(watch, None)
            self._progress.set()

    def _get(self, target: Target) -> web.Response:
        held = self.registry.storage.collection(target.served.name).objects.get(
            (target.namespace, target.name)
        )
        if held is None:
            raise Refused(404, "NotFound", f'{target.served.name} "{target.name}" not found')
        return web.Response(body=held.body(), content_type="application/json")

    async def _write(self, request: web.Request, target: Target, verb: str) -> web.Response:
        name = target.served.name
        if verb == "delete":
            stored = self.registry.delete(name, target.namespace, target.name)
            details = {
                "name": stored.name,
                "kind": target.served.resource.plural,
                "uid": stored.uid,
            }
            return _json(
                {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "metadata": {},
                    "status": "Success",
                    "details": details,
                }
            )
        if not target.name and target.served.resource.namespaced and not target.namespace:
            raise Refused(
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            )
        try:
            obj = json.loads(await request.read())
            metadata = obj.setdefault("metadata", {})
            if target.namespace:
                metadata["namespace"] = target.namespace
            if target.name:
                metadata["name"] = target.name
        except (ValueError, AttributeError, TypeError):
            raise Refused(400, "BadRequest", "the object provided is not a JSON object") from None
        stored = (
            self.registry.create(name, obj)
            if verb == "create"
            else self.registry.replace(name, obj)
        )
        return web.Response(
            body=stored.body(),
            content_type="application/json",
            status=201 if verb == "create" else 200,
        )

    # ---- discovery -------------------------------------------------------------------------------

    def _discovery(self, request: web.Request, parts: list[str]) -> web.StreamResponse:
        catalog, content_type = self.registry.catalog, "application/json"
        aggregated = self.behaviour.aggregated_discovery and AGGREGATED_TYPE in request.headers.get(
            "Accept", ""
        )
        document: dict[str, Any] | None
        match parts:
            case [root] if aggregated:
                document, content_type = catalog.aggregated(core=root == "api"), AGGREGATED_TYPE
            case ["api"]:
                document = {"kind": "APIVersions", "versions": ["v1"]}
            case ["apis"]:
                document = catalog.group_list()
            case ["api", version]:
                document = catalog.resource_list("", version)
            case ["apis", group]:
                document = catalog.group(group)
                document = (
                    {"kind": "APIGroup", "apiVersion": "v1", **document} if document else None
                )
            case _:
                document = catalog.resource_list(parts[1], parts[2])
        if document is None:
            return web.Response(text="404 page not found\n", status=404)
        body = json.dumps(document).encode()
        tag = f'"{hashlib.sha256(body).hexdigest().upper()}"'
        headers = {"ETag": tag, "Vary": "Accept", "Content-Type": content_type}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers={"ETag": tag, "Vary": "Accept"})
        return web.Response(body=body, headers=headers)


def _json(
    content: Mapping[str, object], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """Compact, and without a charset, as Kubernetes writes it."""
    body = json.dumps(content, separators=(",", ":")).encode() + b"\n"
    return web.Response(
        body=body, status=status, headers={"Content-Type": "application/json", **(headers or {})}
    )
