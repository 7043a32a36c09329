"""The embedded parts behind the interface of the real ones: a synthetic API server, a mock Kafka.

Both live in this process, the server on an event loop in a thread of its own; the relay and the
churn are other processes, as always.
"""

import http.client
import json
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.support.loopthread import LoopThread
from tests.support.process import Workspace, free_port
from watchrelay.demo.apiserver import ApiServer
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.demo.registry import make_registry

T = TypeVar("T")


class EmbeddedError(Exception):
    """An answer of 400 or above."""

    def __init__(self, request: str, status: int, body: str) -> None:
        super().__init__(f"{request}: {status} {body[:300]}")
        self.status = status


class EmbeddedCluster:
    """A synthetic API server on a port of its own, which it keeps across restarts; a context
    manager."""

    admin: Any = None

    def __init__(self, *, seed: int = 0, history_events: int = 10_000) -> None:
        self._workspace = Workspace("synthetic")
        self.directory = self._workspace.path
        self.ca = self.directory / "none"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.registry = make_registry(seed=seed, history_events=history_events)
        self.server = ApiServer(self.registry)
        self.kubeconfig = self.kubeconfig_by(self.port)
        self._thread = LoopThread("synthetic API server")

    def kubeconfig_by(self, port: int) -> Path:
        """A kubeconfig that leads to the server by this port, of its own or of a proxy."""
        server = f"http://127.0.0.1:{port}"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "synthetic", "cluster": {"server": server}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [
                {"name": "synthetic", "context": {"cluster": "synthetic", "user": "nobody"}}
            ],
            "current-context": "synthetic",
        }
        path = self.directory / f"kubeconfig-{port}"
        path.write_text(json.dumps(config))
        return path

    def do(self, change: Callable[[], T]) -> T:
        """Runs `change` on the server's own thread, where its state may be touched."""
        return self._thread.call(change)

    def unseen(self, resource: str, change: Callable[[], object]) -> None:
        """Runs `change`, of which no watch of `resource` is given anything: only lists show it."""

        def run() -> None:
            history = self.registry.storage.collection(resource).history
            seen = len(history)
            change()
            del history[seen:]

        self.do(run)

    def __enter__(self) -> Self:
        self._thread.start()
        self.restart()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._thread.stop()
        self._workspace.remove()

    def kill(self) -> None:
        """Cuts every watch and stops listening; the objects stay."""

        async def end() -> None:
            self.server.end_watches("cut")
            await self.server.stop()

        self._thread.run(end())

    def restart(self) -> None:
        """Serves again on the same port, with the objects that were there."""
        self._thread.run(self.server.start(port=self.port))

    def forget(self) -> None:
        """Loses all history: every watch from an older version is answered 410."""
        self.do(self.registry.storage.compact)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded answer to one request; raises EmbeddedError for answers of 400 and above."""
        address = urllib.parse.urlsplit(self.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10.0)
        try:
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {"Content-Type": "application/json"},
            )
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise EmbeddedError(f"{method} {path}", answer.status, text)
        return json.loads(text)


class EmbeddedBroker:
    """The mock Kafka; a context manager. Its limits are described at `EmbeddedKafka`; topics must
    be created before they are used."""

    def __init__(self) -> None:
        self.kafka = EmbeddedKafka.start()
        self.bootstrap = self.kafka.bootstrap

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kafka.stop()

    def create_topic(self, name: str, *, partitions: int = 1) -> None:
        """Makes a topic: the mock does not make any on request."""
        self.kafka.create_topic(name, partitions)
