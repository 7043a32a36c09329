"""A daemon in this process, between a synthetic cluster and an embedded Kafka on real sockets."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from watchrelay.config import Settings
from watchrelay.config.settings import with_defaults
from watchrelay.daemon.daemon import Daemon
from watchrelay.daemon.reload import ConfigSource
from watchrelay.demo.apiserver import Behaviour
from watchrelay.demo.cluster import SyntheticCluster
from watchrelay.demo.kafka import EmbeddedKafka

NOBODY = "127.0.0.1:1"
"""Nothing listens there: a connection is refused at once."""

GROUP = "example.com"

_DEADLINE_S = 60.0
_POLL_S = 0.02


def settings_of(
    resources: Sequence[str | dict[str, Any]], *, kafka: dict[str, Any] | None = None, **more: Any
) -> Settings:
    """Small settings; `more` are whole sections, `kafka` adds to its own."""
    raw = {
        "cluster": "test",
        "kafka": {
            "bootstrapServers": [NOBODY],
            "partitions": 1,
            "replicationFactor": 1,
            "minInsyncReplicas": 1,
            **(kafka or {}),
        },
        "observe": {"listen": "127.0.0.1:0"},
        "resources": [
            {"resource": entry} if isinstance(entry, str) else entry for entry in resources
        ],
        **more,
    }
    return with_defaults(Settings.model_validate(raw))


async def until(claim: str, true: Callable[[], object]) -> None:
    """Returns once `true()`. Raises: AssertionError naming the claim when that does not come."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + _DEADLINE_S
    while not true():
        assert loop.time() < end_s, f"never came true: {claim}"
        await asyncio.sleep(_POLL_S)


def definition(plural: str, *versions: str) -> dict[str, Any]:
    """Of a custom resource that is served in these versions, the preferred one first, and stored in
    v1."""
    kind = plural.removesuffix("s").capitalize()
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "plural": plural,
                "singular": plural.removesuffix("s"),
                "kind": kind,
                "listKind": f"{kind}List",
            },
            "versions": [
                {
                    "name": name,
                    "served": name in versions,
                    "storage": name == "v1",
                    "schema": schema,
                }
                for name in dict.fromkeys((*versions, "v1"))
            ],
        },
    }


def define(cluster: SyntheticCluster, plural: str) -> None:
    """Makes the API server serve a custom resource."""
    cluster.registry.create(
        "customresourcedefinitions.apiextensions.k8s.io", definition(plural, "v1")
    )


class Relay:
    """A running daemon and its admin server."""

    def __init__(self, daemon: Daemon, task: asyncio.Task[int]) -> None:
        self.daemon, self.task = daemon, task

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and body of the admin server's answer."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.daemon.port}{path}") as answer,
        ):
            return answer.status, await (
                answer.json() if answer.content_type == "application/json" else answer.text()
            )

    async def get_until(self, path: str, true: Callable[[Any], object]) -> Any:
        """The body of the admin server's answer, once `true` of it. Raises: AssertionError when that
        does not come."""
        end_s = asyncio.get_running_loop().time() + _DEADLINE_S
        while not true(body := (await self.get(path))[1]):
            assert asyncio.get_running_loop().time() < end_s, f"{path} never was as awaited: {body}"
            await asyncio.sleep(_POLL_S)
        return body

    def row(self, stream: str) -> Any:
        """The stream's row on the statuses, None when there is none."""
        return self.daemon.statuses.streams.get(stream)

    async def ready(self) -> None:
        """Returns once the daemon calls itself ready."""
        await until(
            "the relay is ready", lambda: self.task.done() or self.daemon.readiness.check()[0]
        )
        assert not self.task.done()

    async def ended(self) -> int:
        """The exit code. Raises: TimeoutError when the end takes as long as a drain may."""
        async with asyncio.timeout(10.0):
            return await self.task


@asynccontextmanager
async def running(
    settings: Settings, *, source: ConfigSource | None = None, make: Callable[..., Daemon] = Daemon
) -> AsyncIterator[Relay]:
    """Runs a daemon, which takes the edits of `source`; what still runs at the end is stopped at
    once."""
    daemon = make(settings, environ={}, source=source)
    try:
        async with asyncio.TaskGroup() as tasks:
            relay = Relay(daemon, tasks.create_task(daemon.run(), name="relay"))
            try:
                await daemon.started.wait()
                yield relay
            finally:
                daemon.stop()
                daemon.stop()
    finally:
        with warnings.catch_warnings():
            # aiokafka 0.14 forgets its bootstrap connection when it is cancelled while it uses it
            # (client.py, bootstrap).
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


class World:
    """Both ends. `config` is that of a relay between them, with the topics made that the embedded
    broker cannot make on request."""

    def __init__(self, directory: Path, cluster: SyntheticCluster, kafka: EmbeddedKafka) -> None:
        self.cluster, self.kafka = cluster, kafka
        self.kubeconfig = directory / "kubeconfig"
        self.kubeconfig.write_text(cluster.kubeconfig())
        self.port = int(cluster.url.rpartition(":")[2])
        self.make_topic("control")
        self.make_topic("signal")

    @property
    def behaviour(self) -> Behaviour:
        """How the API server behaves."""
        return self.cluster.server.behaviour

    def make_topic(self, name: str) -> None:
        """A topic below the prefix and the cluster's name."""
        self.kafka.create_topic(f"k8s.test.{name}", 1)

    def settings(
        self, *resources: str | dict[str, Any], kafka: dict[str, Any] | None = None, **more: Any
    ) -> Settings:
        """Settings for these resources."""
        ends = {"bootstrapServers": self.kafka.bootstrap.split(","), "createTopics": False}
        return settings_of(
            resources,
            kafka={**ends, **(kafka or {})},
            **{"kubernetes": {"kubeconfig": str(self.kubeconfig)}, **more},
        )

    def define(self, plural: str) -> None:
        """A custom resource that the API server serves from now on."""
        define(self.cluster, plural)

    def asked(self, resource: str) -> list[str]:
        """How this resource was asked for so far: list, watch, or streaming list; lists of one
        object are left out."""
        return [
            "streaming list" if "sendInitialEvents" in seen.query else seen.verb
            for seen in self.cluster.server.log
            if seen.resource == resource and seen.query.get("limit") != "1"
        ]


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka.start() as kafka:
        yield kafka


@pytest.fixture
async def world(tmp_path: Path, kafka: EmbeddedKafka) -> AsyncIterator[World]:
    async with SyntheticCluster() as cluster:
        yield World(tmp_path, cluster, kafka)
