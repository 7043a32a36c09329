"""A version and a shape: real Apache Kafka (KRaft), to start, use and hurt."""

import base64
import contextlib
import functools
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, cast

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support.kafkaconfig import (
    NodePlan,
    Security,
    Voter,
    new_cluster_id,
    server_properties,
    write_log_configuration,
)
from tests.support.parts import class_sharing, kafka_jars
from tests.support.pki import Ca, Files
from tests.support.process import PartError, Process, Workspace, free_port, listens, wait_until

Version = Literal["3.9", "4.1"]


def versions(*usual: Version) -> list[Version]:
    """The versions a test runs on: `usual`, or those that KAFKA=3.9 or KAFKA=3.9,4.1 asks for."""
    asked = os.environ.get("KAFKA", "")
    return cast("list[Version]", asked.split(",")) if asked else list(usual)


on_both = pytest.mark.parametrize(
    "kafka_broker", versions("4.1", "3.9"), indirect=True, scope="module"
)
"""For tests that are worth their time on both versions in each run."""


# Short programs and a broker that lives for seconds: the cheap compiler and collector start
# soonest.
_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_REQUEST_TIMEOUT_S = 10.0
_BOOTSTRAP = "bootstrap.checkpoint"
_bootstraps: dict[tuple[Version, bool], bytes] = {}
"""What Kafka's formatter wrote besides ids, by version and whether secured: alike for each broker
of a kind, and a JVM's start."""


class KafkaBroker:
    """One broker that is its own controller, or one node of a `KafkaCluster`; a context manager.

    `listeners` maps a listener's name to host:port, fixed from construction on, across
    restarts. A plain broker has PLAINTEXT. A secured one has INT (plaintext, super user), SCRAM
    (SASL_SSL, SCRAM-SHA-512), MTLS (SSL, client certificates, principal User:<CN>) and PLAIN
    (SASL_PLAINTEXT, PLAIN and OAUTHBEARER), and an authorizer that lets nobody but INT do anything
    until `admin.create_acls`. `bootstrap` is PLAINTEXT or INT. With `via`, the port of a proxy,
    there is VIA (plaintext), which advertises that port to its clients: the proxy leads to
    `ports["VIA"]`.
    """

    user = "relay"
    password = "relay-password"

    def __init__(
        self,
        version: Version = "3.9",
        *,
        secured: bool = False,
        properties: Mapping[str, str] | None = None,
        jvm_flags: Sequence[str] = ("-Xmx512m",),
        plan: NodePlan | None = None,
        via: int = 0,
    ) -> None:
        self._workspace = Workspace("kafka")
        self.directory = self._workspace.path
        self.version = version
        self.secured = secured
        self.plan = plan or NodePlan.single()
        self.via, self._extra = via, dict(properties or {})
        self._choose_ports()
        self._authority = Ca() if secured else None
        self._pki = self.directory / "pki"
        self._properties = self.directory / "server.properties"
        self._write_properties()
        self._logging = write_log_configuration(self.directory, log4j2=version != "3.9")
        self._formatted = False
        self._process = self._java("kafka.Kafka", self._properties, flags=jvm_flags)

    def _java(self, main: str, *arguments: str | Path, flags: Sequence[str] = ()) -> Process:
        classpath = f"{kafka_jars(self.version)}/*"
        name = f"kafka-{self.version}-{self.plan.node_id}"
        jvm = (*_JVM, *class_sharing(self.version), *flags)
        argv = ["java", *jvm, self._logging, "-cp", classpath, main, *arguments]
        return Process(name, argv, log=self.directory / "kafka.log")

    def _choose_ports(self) -> None:
        names = ("INT", "SCRAM", "MTLS", "PLAIN") if self.secured else ("PLAINTEXT",)
        self.ports = {name: free_port() for name in (*names, *(("VIA",) if self.via else ()))}
        self.listeners = {
            name: f"127.0.0.1:{self.via if name == 'VIA' else port}"
            for name, port in self.ports.items()
        }
        self.bootstrap = next(iter(self.listeners.values()))

    def _write_properties(self) -> None:
        security = None
        if self._authority is not None:
            broker, keystore = self._authority.issue("broker"), self._pki / "broker.pem"
            ca = self._authority.write(self._pki)
            keystore.touch(mode=0o600)
            keystore.write_bytes(broker.key + broker.certificate)
            security = Security(keystore, ca, self.user, self.password)
        newer, data = self.version != "3.9", self.directory / "data"
        settings = server_properties(
            data, self.plan, self.ports, via=self.via, security=security, share_groups=newer
        )
        lines = [f"{key}={value}" for key, value in {**settings, **self._extra}.items()]
        self._properties.write_text("\n".join([*lines, ""]))

    @property
    def ca(self) -> Path:
        """The authority behind SCRAM and MTLS; secured brokers only."""
        assert self._authority is not None, "only a secured broker has certificates"
        return self._pki / "ca.crt"

    def client_certificate(self, common_name: str = user) -> Files:
        """A certificate that MTLS takes for User:<common_name>."""
        assert self._authority is not None, "only a secured broker has certificates"
        return self._authority.issue(common_name).write(self._pki, common_name)

    @staticmethod
    def oauth_token(subject: str, *, lifetime_s: int = 3600) -> str:
        """An unsecured token (alg none) that OAUTHBEARER on the PLAIN listener takes for
        User:<subject>."""
        now = int(time.time())
        parts = ({"alg": "none"}, {"sub": subject, "iat": now, "exp": now + lifetime_s})
        encoded = [
            base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
            for part in parts
        ]
        return ".".join(encoded) + "."

    # Life.

    def launch(self) -> None:
        """Starts the process, formatting its storage the first time, without waiting for it to be
        ready."""
        if not self._formatted:
            self._format()
            self._formatted = True
        self._process.launch()

    def _format(self) -> None:
        data = self.directory / "data"
        meta, bootstrap = data / "meta.properties", data / _BOOTSTRAP
        kind = (self.version, self.secured)
        if kind in _bootstraps:
            data.mkdir()
            ids = {
                "node.id": self.plan.node_id,
                "cluster.id": self.plan.cluster_id,
                "directory.id": new_cluster_id(),
            }
            meta.write_text(
                "".join(f"{name}={value}\n" for name, value in {"version": 1, **ids}.items())
            )
            bootstrap.write_bytes(_bootstraps[kind])
            return
        scram = f"SCRAM-SHA-512=[name={self.user},password={self.password}]"
        arguments = ["format", "-t", self.plan.cluster_id, "-c", str(self._properties)]
        tool = self._java(
            "kafka.tools.StorageTool", *arguments, *(["-S", scram] if self.secured else [])
        )
        tool.launch()
        wait_until(f"{tool.name} is formatted", lambda: not tool.alive, deadline_s=60.0)
        if not meta.exists():
            raise PartError(f"{tool.name}: storage was not formatted\n{tool.tail()}")
        _bootstraps[kind] = bootstrap.read_bytes()

    def await_ready(self, *, deadline_s: float = 60.0) -> None:
        """Returns once the broker listens on every port and names itself in its metadata."""
        self._process.await_ready(
            lambda: all(map(listens, self.ports.values())), deadline_s=deadline_s
        )
        self._process.await_ready(self._is_registered, deadline_s=deadline_s)

    def _is_registered(self) -> bool:
        try:
            return self.plan.node_id in self.admin.list_topics(timeout=2.0).brokers
        except KafkaException:
            return False

    def start(self) -> Self:
        """Starts the broker and returns once it serves; raises PartError with the log's tail."""
        try:
            self.launch()
            self.await_ready()
        except BaseException:
            self.close()
            raise
        return self

    def stop(self, *, grace_s: float = 20.0) -> None:
        """Clean shutdown by SIGTERM; data stays for `restart`."""
        self._process.stop(grace_s=grace_s)

    def kill(self) -> None:
        """SIGKILL; data stays for `restart`."""
        self._process.kill()

    def restart(self) -> None:
        """Starts it again on the same ports and data, stopping it first if it runs; returns once it
        serves."""
        if self._process.alive:
            self.stop()
        self.launch()
        self.await_ready()

    def move(self) -> None:
        """Ends it and starts it with the same data on other ports, as when every broker was
        replaced; returns once it serves."""
        self.kill()
        self.__dict__.pop("admin", None)
        self._choose_ports()
        self._write_properties()
        self.restart()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and silent until `resume`."""
        self._process.pause()

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self._process.resume()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Silent within the block, as by `pause`, and awake behind it in any case."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def close(self) -> None:
        """Kills the process and removes the data."""
        self._process.kill()
        self._workspace.remove()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def log_tail(self, lines: int = 25) -> str:
        """The last lines of the broker's log."""
        return self._process.tail(lines)

    # Words with it.

    @functools.cached_property
    def admin(self) -> AdminClient:
        """The admin client on `bootstrap`; it lives as long as we do, as its answers come only
        while it lives."""
        return _admin_client(self.bootstrap)

    def set_password(self, password: str) -> None:
        """Gives `user` another password on SCRAM; open connections stay."""
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(self.user, scram, password.encode())
        for changed in self.admin.alter_user_scram_credentials([change]).values():
            changed.result(_REQUEST_TIMEOUT_S)

    def limit_producers(self, bytes_per_s: int | None) -> None:
        """Gives every client a quota of what it may produce; None takes it back."""
        change = (
            ["--add-config", f"producer_byte_rate={bytes_per_s}"]
            if bytes_per_s
            else ["--delete-config", "producer_byte_rate"]
        )
        where = [
            "--bootstrap-server",
            self.bootstrap,
            "--alter",
            "--entity-type",
            "clients",
            "--entity-default",
        ]
        tool = self._java("kafka.admin.ConfigCommand", *where, *change)
        tool.launch()
        if tool.exit_code(60.0):
            raise PartError(f"{tool.name}: the quota was not changed\n{tool.tail()}")

    def create_topic(
        self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic (replicated to all nodes) and returns once its partitions have
        leaders."""
        create_topic(
            self.admin, name, partitions=partitions, replicas=self.plan.replicas, config=config
        )


def _admin_client(bootstrap: str) -> AdminClient:
    # Up to 10 s between attempts is the default: it would hide a broker that came back.
    return AdminClient(
        {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 200, "log_level": 0}
    )


def create_topic(
    admin: AdminClient,
    name: str,
    *,
    partitions: int,
    replicas: int,
    config: Mapping[str, str] | None,
) -> None:
    """Creates the topic and returns once each of its partitions has a leader in the metadata."""
    topic = NewTopic(
        name, num_partitions=partitions, replication_factor=replicas, config=dict(config or {})
    )
    admin.create_topics([topic])[name].result(_REQUEST_TIMEOUT_S)

    def led() -> bool:
        known: dict[int, Any] = (
            admin.list_topics(name, timeout=_REQUEST_TIMEOUT_S).topics[name].partitions
        )
        return len(known) == partitions and all(
            partition.leader >= 0 for partition in known.values()
        )

    wait_until(f"topic {name} has leaders", led, deadline_s=_REQUEST_TIMEOUT_S)


class KafkaCluster:
    """Several nodes, each broker and controller, replication to all; a context manager.

    `nodes[i]` is a `KafkaBroker` with node id i + 1, to kill, pause and restart by itself.
    Writes go on 2-6 s after the death of a leader; with two of three dead all stops.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        version: Version = "4.1",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        cluster_id = new_cluster_id()
        voters = tuple(Voter(node_id, free_port()) for node_id in range(1, size + 1))
        self.nodes = [
            KafkaBroker(
                version,
                properties={"replica.lag.time.max.ms": "3000", **(properties or {})},
                jvm_flags=("-Xmx256m",),
                plan=NodePlan(voter.node_id, voters, cluster_id),
            )
            for voter in voters
        ]
        self.bootstrap = ",".join(node.bootstrap for node in self.nodes)

    def start(self) -> Self:
        """Starts all nodes and returns once each knows all; raises PartError with a log's tail."""
        try:
            for node in self.nodes:
                node.launch()
            for node in self.nodes:
                node.await_ready()
            wait_until("all brokers are registered", self._complete)
        except BaseException:
            self.close()
            raise
        return self

    def _complete(self) -> bool:
        return all(
            len(node.admin.list_topics(timeout=5.0).brokers) == len(self.nodes)
            for node in self.nodes
        )

    def leader(self, topic: str, partition: int = 0) -> KafkaBroker:
        """The node that leads the partition, as the nodes that answer see it."""
        known = self.admin.list_topics(topic, timeout=_REQUEST_TIMEOUT_S).topics[topic].partitions
        return self.nodes[known[partition].leader - 1]

    @functools.cached_property
    def admin(self) -> AdminClient:
        """The admin client on all nodes."""
        return _admin_client(self.bootstrap)

    def create_topic(
        self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic replicated to all nodes and returns once its partitions have leaders."""
        create_topic(
            self.admin, name, partitions=partitions, replicas=len(self.nodes), config=config
        )

    def close(self) -> None:
        """Kills all nodes and removes their data."""
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()
