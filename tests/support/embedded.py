"""Room: test support.  In: nothing.  Out: the embedded parts behind the interface of the real ones: a synthetic API server, a mock Kafka.

Both live in this process, the server on an event loop in a thread of its own; the relay and the churn are other processes, as always.
"""

import asyncio
import http.client
import json
import threading
import urllib.parse
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.support.process import Workspace, free_port
from watchrelay.demo.apiserver import ApiServer
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.demo.registry import make_registry

T = TypeVar("T")

_CALL_TIMEOUT_S = 20.0


class EmbeddedError(Exception):
    """An answer of 400 or above."""

    def __init__(self, request: str, status: int, body: str) -> None:
        super().__init__(f"{request}: {status} {body[:300]}")
        self.status = status


class EmbeddedCluster:
    """A synthetic API server on a port of its own, which it keeps across restarts; a context manager."""

    admin: Any = None

    def __init__(self, *, seed: int = 0) -> None:
        self._workspace = Workspace("synthetic")
        self.directory = self._workspace.path
        self.ca = self.directory / "none"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.registry = make_registry(seed=seed)
        self.server = ApiServer(self.registry)
        self.kubeconfig = self._write_kubeconfig()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="synthetic API server", daemon=True)

    def _write_kubeconfig(self) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "synthetic", "cluster": {"server": self.url}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "synthetic", "context": {"cluster": "synthetic", "user": "nobody"}}],
            "current-context": "synthetic",
        }
        path = self.directory / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_TIMEOUT_S)

    def do(self, change: Callable[[], T]) -> T:
        """Runs `change` on the server's own thread, where its state may be touched."""

        async def step() -> T:
            return change()

        return self._on_loop(step())

    def __enter__(self) -> Self:
        self._thread.start()
        self.restart()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_TIMEOUT_S)
        self._loop.close()
        self._workspace.remove()

    def kill(self) -> None:
        """Cuts every watch and stops listening; the objects stay."""

        async def end() -> None:
            self.server.end_watches("cut")
            await self.server.stop()

        self._on_loop(end())

    def restart(self) -> None:
        """Serves again on the same port, with the objects that were there."""
        self._on_loop(self.server.start(port=self.port))

    def forget(self) -> None:
        """Loses all history: every watch from an older version is answered 410."""
        self.do(self.registry.storage.compact)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded answer to one request; raises EmbeddedError for answers of 400 and above."""
        address = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10.0)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise EmbeddedError(f"{method} {path}", answer.status, text)
        return json.loads(text)


class EmbeddedBroker:
    """The mock Kafka; a context manager. What it cannot do is said at `EmbeddedKafka`; topics must be made before they are used."""

    def __init__(self) -> None:
        self.kafka = EmbeddedKafka.start()
        self.bootstrap = self.kafka.bootstrap

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kafka.stop()

    def create_topic(self, name: str, *, partitions: int = 1) -> None:
        """Makes a topic: the mock does not make any on request."""
        self.kafka.create_topic(name, partitions)
