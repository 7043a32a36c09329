"""Room: test support.  In: a control plane and a broker.  Out: a trial: namespaces of its own, a relay, a reader of its topics."""

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.support.churn import Target
from tests.support.daemon import Daemon, relay_config
from tests.support.topicreader import TopicReader


class Broker(Protocol):
    """What a trial needs to know of Kafka."""

    bootstrap: str


class Cluster(Target, Protocol):
    """What a trial needs to know of a control plane."""

    kubeconfig: Path

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """The decoded answer to one request."""


class Trial:
    """Shape: `name` is the cluster's name in topics, `cluster` the control plane; `directory` holds configs and logs."""

    def __init__(self, cluster: Cluster, broker: Broker, directory: Path) -> None:
        self.name = f"t{uuid.uuid4().hex[:8]}"
        self.cluster = cluster
        self.broker = broker
        self.directory = directory
        self._relays: list[Daemon] = []

    def namespaces(self, count: int) -> list[str]:
        """Makes so many namespaces of this trial's own."""
        names = [f"{self.name}-{number:02}" for number in range(count)]
        for name in names:
            self.cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        return names

    def topic(self, resource: str, group: str = "core") -> str:
        """The topic of a resource by the default template."""
        return f"k8s.{self.name}.{group}.{resource}"

    def config(self, *resources: Any, kubeconfig: Path | None = None, **more: Any) -> dict[str, Any]:
        """The config of `relay`, to be changed further."""
        bootstrap = self.broker.bootstrap
        return relay_config(self.name, bootstrap=bootstrap, kubeconfig=kubeconfig or self.cluster.kubeconfig, resources=resources, **more)

    def relay(self, *resources: Any, name: str = "relay", kubeconfig: Path | None = None, **more: Any) -> Daemon:
        """A daemon that follows these resources; not started."""
        relay = Daemon(self.config(*resources, kubeconfig=kubeconfig, **more), self.directory, name=name)
        self._relays.append(relay)
        return relay

    def reader(self, *topics: str) -> TopicReader:
        """A reader of these topics, which knows the trial's relays."""
        return TopicReader(self.broker.bootstrap, *topics, writers=self._relays)

    def make(self, path: str, bodies: Sequence[dict[str, Any]]) -> None:
        """Creates objects in the collection at `path`."""
        for body in bodies:
            self.cluster.request("POST", path, body)
