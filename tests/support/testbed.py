"""A testbed on a control plane and a broker: namespaces of its own, a relay, a reader of its topics."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

from tests.support.anyclient import ask_snapshot, write
from tests.support.churn import Churn, Target
from tests.support.daemon import Daemon, relay_config
from tests.support.topicreader import TopicReader

UnderChurn = AbstractContextManager[tuple[Churn, TopicReader]]
"""Of `Testbed.under_churn`."""


class Broker(Protocol):
    """What a testbed needs to know of Kafka."""

    bootstrap: str

    def create_topic(self, name: str, *, partitions: int = 1) -> None:
        """Makes a topic."""


class Cluster(Target, Protocol):
    """What a testbed needs to know of a control plane."""

    kubeconfig: Path

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded answer to one request."""


class Testbed:
    """`name` is the cluster's name in topics, `cluster` the control plane; `directory` holds
    configs and logs."""

    __test__ = False  # pytest collects classes by this prefix

    def __init__(self, cluster: Cluster, broker: Broker, directory: Path) -> None:
        self.name = f"t{uuid.uuid4().hex[:8]}"
        self.cluster = cluster
        self.broker = broker
        self.directory = directory
        self._relays: list[Daemon] = []

    def namespaces(self, count: int) -> list[str]:
        """Makes so many namespaces of this testbed's own."""
        names = [f"{self.name}-{number:02}" for number in range(count)]
        for name in names:
            self.cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return names

    @property
    def control_topic(self) -> str:
        """Where the relay keeps what it says of its streams."""
        return f"k8s.{self.name}.control"

    @property
    def signal_topic(self) -> str:
        """Where the relay hears requests."""
        return f"k8s.{self.name}.signal"

    def topic(self, resource: str, group: str = "core") -> str:
        """The topic of a resource by the default template."""
        return f"k8s.{self.name}.{group}.{resource}"

    def topics(self, *streams: str) -> list[str]:
        """The topics of these streams, each named as the relay names it: the plural, or plural and
        group."""
        return [
            self.topic(plural, group or "core")
            for plural, _, group in (stream.partition(".") for stream in streams)
        ]

    def make_topics(self, *streams: str, signal: bool = True) -> None:
        """Makes what a relay of these streams needs on a broker that makes no topics on request;
        `signal`: also the topic of requests."""
        for own in (self.control_topic, self.signal_topic)[: 1 + signal]:
            self.broker.create_topic(own)
        for topic in self.topics(*streams):
            self.broker.create_topic(topic, partitions=3)

    def config(
        self, *resources: Any, kubeconfig: Path | None = None, **more: Any
    ) -> dict[str, Any]:
        """The config of `relay`, to be changed further."""
        bootstrap = self.broker.bootstrap
        return relay_config(
            self.name,
            bootstrap=bootstrap,
            kubeconfig=kubeconfig or self.cluster.kubeconfig,
            resources=resources,
            **more,
        )

    def relay(
        self,
        *resources: Any,
        name: str = "relay",
        kubeconfig: Path | None = None,
        environment: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Daemon:
        """A daemon that follows these resources; not started."""
        config = self.config(*resources, kubeconfig=kubeconfig, **more)
        relay = Daemon(config, self.directory, name=name, environment=environment)
        self._relays.append(relay)
        return relay

    def reader(self, *topics: str) -> TopicReader:
        """A reader of these topics, which knows the testbed's relays."""
        return TopicReader(self.broker.bootstrap, *topics, writers=self._relays)

    def make(self, path: str, bodies: Sequence[dict[str, Any]]) -> None:
        """Creates objects in the collection at `path`."""
        for body in bodies:
            self.cluster.request("POST", path, body)

    def write(
        self,
        topic: str,
        key: str,
        *values: bytes | None,
        headers: Mapping[str, bytes] | None = None,
        partition: int = -1,
    ) -> None:
        """Writes records that are none of the relay's; without `partition` where the key leads
        to."""
        write(self.broker.bootstrap, topic, key, *values, headers=headers, partition=partition)

    def ask_snapshot(self, *streams: str) -> None:
        """Asks the relay for snapshots, through its signal topic."""
        ask_snapshot(self.broker.bootstrap, self.name, *streams)

    def config_maps(self, count: int) -> str:
        """The path of a new namespace's config maps, and so many in it: c0, c1, ..."""
        (namespace,) = self.namespaces(1)
        path = f"/api/v1/namespaces/{namespace}/configmaps"
        for number in range(count):
            metadata = {"name": f"c{number}", "labels": {"odd": str(number % 2)}}
            self.make(path, [{"metadata": metadata, "data": {"n": str(number)}}])
        return path

    @contextmanager
    def under_churn(
        self,
        relay: Daemon,
        topics: Sequence[str],
        *,
        namespaces: int,
        operations: int,
        kinds: tuple[str, ...] = ("configmaps",),
        per_s: int = 0,
    ) -> Iterator[tuple[Churn, TopicReader]]:
        """`relay` runs and is ready; objects in namespaces of their own change all the while, and a
        reader reads the topics."""
        with (
            Churn(
                self.cluster,
                self.namespaces(namespaces),
                operations=operations,
                kinds=kinds,
                per_s=per_s,
            ) as churn,
            self.reader(*topics) as reader,
            relay,
        ):
            relay.await_ready()
            yield churn, reader
