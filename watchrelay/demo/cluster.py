"""A synthetic cluster: API server, shop, and floods, in one object or one process.

It has a URL and a kubeconfig that any Kubernetes client can use. Besides the API it has levers
under `/demo/`, for benchmarks that run it in a process of its
own: `POST /demo/pods?count=`, `/demo/flood?events=&rate=`, `/demo/compact`,
`/demo/end-watches?how=`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from watchrelay.core import clock
from watchrelay.demo.apiserver import ApiServer, Behaviour
from watchrelay.demo.objects import NAMESPACES, numbered_pod
from watchrelay.demo.registry import make_registry
from watchrelay.demo.shop import Shop
from watchrelay.demo.storage import Refused, Stored

FLOODED_PODS_MAX = 1000
_BATCH_EVENTS = 256
_TICK_S = 0.001


class SyntheticCluster:
    """A cluster on 127.0.0.1; an async context manager. `registry` is its state, `server` its
    behaviour and what it was asked."""

    def __init__(
        self, *, seed: int = 0, history_events: int = 10_000, behaviour: Behaviour | None = None
    ) -> None:
        self.registry = make_registry(seed=seed, history_events=history_events)
        self.server = ApiServer(self.registry, behaviour)
        self.server.levers = self._lever
        self._seed = seed
        self._pods = 0

    @property
    def url(self) -> str:
        """Where the API server listens."""
        return self.server.url

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self, *, port: int = 0) -> None:
        """Listens on `port`, or on a free one."""
        await self.server.start(port=port)

    async def stop(self) -> None:
        """Ends the watches and the server; the state stays, and `start` serves it again."""
        await self.server.stop()

    def kubeconfig(self) -> str:
        """The text of a kubeconfig for this cluster."""
        user: dict[str, Any] = (
            {"token": self.server.behaviour.token} if self.server.behaviour.token else {}
        )
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "demo",
            "clusters": [{"name": "demo", "cluster": {"server": self.url}}],
            "users": [{"name": "demo", "user": user}],
            "contexts": [{"name": "demo", "context": {"cluster": "demo", "user": "demo"}}],
        }
        return json.dumps(content, indent=2)

    def open_shop(self) -> Shop:
        """The shop, set up and with its pods running; each `step` of it is one write."""
        shop = Shop(self.registry, seed=self._seed)
        shop.open()
        return shop

    async def run_shop(self, *, events_per_s: float, shop: Shop | None = None) -> None:
        """Keeps the shop busy until cancelled."""
        shop = shop or self.open_shop()
        await self._paced(events_per_s, None, lambda _: shop.step())

    def add_pods(self, count: int) -> None:
        """`count` more numbered pods, in 20 namespaces."""
        if not self._pods:
            for number in range(NAMESPACES):
                self.registry.create(
                    "namespaces",
                    {
                        "metadata": {"name": f"team-{number}"},
                        "spec": {},
                        "status": {"phase": "Active"},
                    },
                )
        for number in range(self._pods, self._pods + count):
            self.registry.put("pods", numbered_pod(number))
        self._pods += count

    async def flood(self, events: int, *, events_per_s: float = 0) -> None:
        """Changes the numbered pods `events` times in turn; returns when every watch of pods was
        given the last.

        Units: `events_per_s` 0 is as fast as the watches are read. The states are made beforehand:
        each write costs a few microseconds.
        """
        count = min(self._pods, FLOODED_PODS_MAX)
        if not count:
            raise Refused(422, "Invalid", "there are no numbered pods to change: add some first")
        states = [
            numbered_pod(number, revision=revision)
            for revision in (1, 2)
            for number in range(count)
        ]
        put = self.registry.put

        def change(index: int) -> Stored:
            return put("pods", states[index % len(states)])

        if events_per_s:
            await self._paced(events_per_s, events, change)
        else:
            for first in range(0, events, _BATCH_EVENTS):
                for index in range(first, min(first + _BATCH_EVENTS, events)):
                    change(index)
                await self.server.read_up("pods")
        await self.server.read_up("pods")

    async def _paced(
        self, events_per_s: float, events: int | None, change: Callable[[int], object]
    ) -> None:
        """Calls `change` with 0, 1, 2, ... at that rate; what a late tick missed is made up for at
        once."""
        begun_s, done = clock.now_s(), 0
        while events is None or done < events:
            due = int((clock.now_s() - begun_s) * events_per_s) + 1
            for index in range(done, due if events is None else min(due, events)):
                change(index)
                done = index + 1
            await asyncio.sleep(max(_TICK_S, begun_s + done / events_per_s - clock.now_s()))

    async def _lever(self, request: web.Request) -> web.StreamResponse | None:
        if request.method != "POST" or not request.path.startswith("/demo/"):
            return None
        query, begun_s = request.query, clock.now_s()
        match request.path.removeprefix("/demo/"):
            case "pods":
                self.add_pods(int(query.get("count", "1000")))
            case "flood":
                await self.flood(
                    int(query.get("events", "10000")), events_per_s=float(query.get("rate", "0"))
                )
            case "compact":
                self.registry.storage.compact()
            case "end-watches":
                self.server.end_watches("cut" if query.get("how") == "cut" else "clean")
            case _:
                return None
        return web.json_response(
            {
                "resourceVersion": str(self.registry.storage.version),
                "seconds": clock.now_s() - begun_s,
            }
        )
