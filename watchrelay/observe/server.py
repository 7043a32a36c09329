"""The read-only admin server: `/` for browsers, `/livez`, `/readyz`, `/metrics`, `/api/...`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Final, get_args

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from watchrelay.core.joined import Joined
from watchrelay.core.turns import Turns
from watchrelay.model.progress import State
from watchrelay.observe import page
from watchrelay.observe.connections import VIEWER_S, Connections
from watchrelay.observe.exposition import Exposition
from watchrelay.observe.live import LiveStatus, first_paint
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.overview import About
from watchrelay.observe.status import Readiness, StatusRegistry

_ADDRESSES = """
/livez                200 while the event loop runs
/readyz               200 once every stream's whole state is in Kafka; else 503 and the reasons
/metrics              Prometheus metrics
/api/streams          the streams as JSON; /api/streams/STREAM: one, with its recent transitions
/api/group            the replicas that share the streams as JSON
/api/overview         what a browser shows at / as JSON; /api/events: the same as server-sent events
"""
_ASK_AGAIN_S: Final = 10
_METHODS: Final = "GET, HEAD, OPTIONS"


class AdminServer:
    """Serves on one address until closed."""

    def __init__(
        self,
        *,
        statuses: StatusRegistry,
        readiness: Readiness,
        metrics: Metrics,
        about: About | None = None,
    ) -> None:
        self._statuses, self._readiness, self._all_metrics = statuses, readiness, metrics
        self._live = LiveStatus(statuses, readiness, about or About())
        self._connections = Connections()
        self._scrapes = Joined(self._scrape)
        self._runner: web.AppRunner | None = None

    @property
    def viewers(self) -> int:
        return self._live.viewers

    async def start(self, host: str, port: int) -> int:
        """Listen; the port in use. Raises: OSError for an address that cannot be used."""
        app = web.Application(middlewares=[_name_methods])
        app.router.add_get("/", self._index)
        app.router.add_get("/page/{name}", self._file)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/api/streams", self._streams)
        app.router.add_get("/api/streams/{stream:.+}", self._stream)
        app.router.add_get("/api/group", self._group)
        app.router.add_get("/api/overview", self._overview)
        app.router.add_get("/api/events", self._events)
        app.on_response_prepare.append(_nameless)
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        assert self._runner.server is not None, "set up"
        try:
            return await self._connections.listen(self._runner.server, host, port)
        except OSError:
            await self.close()
            raise

    async def close(self) -> None:
        self._live.end()
        await self._connections.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self._connections.abort()

    # ---- the page --------------------------------------------------------------------------------

    async def _index(self, request: web.Request) -> web.Response:
        """The page for a browser, a table for anything else: `curl` shows the same."""
        text = self._live.text() + _ADDRESSES
        if "text/html" not in request.headers.get("Accept", ""):
            return web.Response(text=text, headers={"Vary": "Accept", "Cache-Control": "no-store"})
        body = first_paint(page.read("index.html"), text, self._live.whole())
        return web.Response(
            text=body, content_type="text/html", headers={"Vary": "Accept", **page.HEADERS}
        )

    async def _file(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in page.FILES:
            raise web.HTTPNotFound
        return web.Response(
            text=page.read(name), content_type=page.FILES[name], headers=page.HEADERS
        )

    async def _overview(self, _request: web.Request) -> web.Response:
        return _json_bytes(self._live.whole())

    async def _stream(self, request: web.Request) -> web.Response:
        body = self._live.transitions(request.match_info["stream"])
        if body is None:
            return _json({"error": "no such stream"}, status=404)
        return _json_bytes(body)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events until the viewer goes, is too slow, or the server closes."""
        if self._live.full:
            return web.Response(
                status=503,
                text="too many viewers: use /api/overview\n",
                headers={"Retry-After": str(_ASK_AGAIN_S)},
            )
        # X-Accel-Buffering: a proxy that collects what passes would hold the events back.
        response = web.StreamResponse(
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        response.content_type = "text/event-stream"
        if request.method == "HEAD":
            return response  # its headers alone
        self._connections.viewing(request.protocol)
        try:
            await response.prepare(request)
            async with contextlib.aclosing(self._live.events()) as events:
                async for event in events:
                    async with asyncio.timeout(VIEWER_S):
                        await response.write(event)
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        return response

    # ---- for programs ----------------------------------------------------------------------------

    async def _livez(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        ready, body = self._readiness.check()
        return _json(body, status=200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        self._connections.answering(request.protocol)
        scrape = await self._scrapes.result(None)
        response = web.StreamResponse(
            headers={"Content-Type": CONTENT_TYPE_LATEST, "Vary": "Accept-Encoding"}
        )
        response.content_length, pieces = scrape.text_bytes, scrape.text()
        if _accepts_gzip(request):
            response.headers["Content-Encoding"] = "gzip"
            response.content_length, pieces = len(scrape.gzipped), scrape.compressed()
        if request.method == "HEAD":
            return response  # its headers alone
        turns = Turns()
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            for piece in pieces:
                await response.write(piece)
                await turns.pause()
        return response

    async def _scrape(self, *_: object) -> Exposition:
        states = {status.stream: status.state for status in self._statuses.streams.values()}
        self._all_metrics.set_states(states, get_args(State))
        return await Exposition.of(self._all_metrics.pieces())

    async def _streams(self, _request: web.Request) -> web.Response:
        return _json([status.as_json() for status in self._statuses.streams.values()])

    async def _group(self, _request: web.Request) -> web.Response:
        group = self._statuses.group
        if group is None:
            return _json({"error": "no streams are shared: sharding.enabled is false"}, status=404)
        return _json(group.as_json())


@web.middleware
async def _name_methods(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answers to other methods than GET and HEAD name those that there are. Source: RFC 9110, 9.3.7
    and 15.5.6."""
    if request.method == "OPTIONS" and request.path == "*":
        return web.Response(status=204, headers={"Allow": _METHODS})
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed:
        status = 204 if request.method == "OPTIONS" else 405
        return web.Response(status=status, headers={"Allow": _METHODS})


async def _nameless(_request: web.Request, response: web.StreamResponse) -> None:
    """Answers do not say by which program they were made, in which version."""
    response.headers.pop("Server", None)


def _accepts_gzip(request: web.Request) -> bool:
    """Source: RFC 9110, 12.5.3."""
    for each in request.headers.get("Accept-Encoding", "").lower().split(","):
        coding, _, weight = each.replace(" ", "").partition(";q=")
        if coding in ("gzip", "*"):
            return weight.strip("0.") != "" or not weight
    return False


def _json_bytes(body: bytes) -> web.Response:
    return web.Response(
        body=body, content_type="application/json", headers={"Cache-Control": "no-store"}
    )


def _json(body: object, *, status: int = 200) -> web.Response:
    return web.Response(
        text=json.dumps(body, indent=2) + "\n", status=status, content_type="application/json"
    )
