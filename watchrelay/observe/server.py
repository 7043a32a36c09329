"""The HTTP window: `/livez`, `/readyz`, `/metrics`, `/api/streams`.

Room: observe. In: the board, the metrics. Out: answers to probes, scrapers and people. Read-only.
"""

from __future__ import annotations

import json
from typing import get_args

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from watchrelay.observe.health import Readiness
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import Board, State

_INDEX = """watchrelay

/livez        200 while the process turns
/readyz       200 once every stream's whole state is in Kafka; else 503 and the reasons
/metrics      Prometheus metrics
/api/streams  the streams as JSON
"""


class WindowServer:
    """Serves the window on one address until closed."""

    def __init__(self, *, board: Board, readiness: Readiness, metrics: Metrics) -> None:
        self._board, self._readiness, self._all_metrics = board, readiness, metrics
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port in use (the one asked for, or the one found when it was 0).

        Raises: OSError when the address cannot be used.
        """
        app = web.Application()
        app.router.add_get("/", self._index)
        app.router.add_get("/livez", self._livez)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/api/streams", self._streams)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        return int(runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _index(self, _request: web.Request) -> web.Response:
        return web.Response(text=_INDEX)

    async def _livez(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        ready, body = self._readiness.check()
        return _json(body, status=200 if ready else 503)

    async def _metrics(self, _request: web.Request) -> web.Response:
        for status in self._board.streams.values():  # also those that wait and have no watcher yet
            self._all_metrics.set_state(status.stream, status.state, get_args(State))
        return web.Response(body=generate_latest(self._all_metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _streams(self, _request: web.Request) -> web.Response:
        return _json([status.as_json() for status in self._board.streams.values()])


def _json(body: object, *, status: int = 200) -> web.Response:
    return web.Response(text=json.dumps(body, indent=2) + "\n", status=status, content_type="application/json")
