"""The shape of a Kafka node: its server.properties and its log configuration."""

import base64
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.support.process import free_port

_LOG4J = """log4j.rootLogger=INFO, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %m (%c{1})%n
"""
_LOG4J2 = """rootLogger.level=info
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{ISO8601} %p %m (%c{1})%n
"""
_JAAS = "org.apache.kafka.common.security"
_PROTOCOLS = {
    "CONTROLLER": "PLAINTEXT",
    "PLAINTEXT": "PLAINTEXT",
    "VIA": "PLAINTEXT",
    "INT": "PLAINTEXT",
    "SCRAM": "SASL_SSL",
    "MTLS": "SSL",
    "PLAIN": "SASL_PLAINTEXT",
}


@dataclass(frozen=True, slots=True)
class Voter:
    """A node of the controllers' quorum and the port on which it speaks to the others."""

    node_id: int
    port: int


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Which node this is, among which, in which cluster."""

    node_id: int
    voters: tuple[Voter, ...]
    cluster_id: str

    @classmethod
    def single(cls) -> Self:
        """The plan of a node alone."""
        return cls(1, (Voter(1, free_port()),), new_cluster_id())

    @property
    def replicas(self) -> int:
        """How many copies a topic has: one on every node."""
        return len(self.voters)

    @property
    def controller_port(self) -> int:
        """The quorum port of this node."""
        return next(voter.port for voter in self.voters if voter.node_id == self.node_id)


def new_cluster_id() -> str:
    """22 characters of base64 without a dash: at the beginning Kafka's tools would take it for an
    option."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "_")


def write_log_configuration(directory: Path, *, log4j2: bool) -> str:
    """Writes a configuration that logs to stdout, and returns the JVM flag that selects it."""
    if log4j2:
        path = directory / "log4j2.properties"
        path.write_text(_LOG4J2)
        return f"-Dlog4j2.configurationFile={path}"
    path = directory / "log4j.properties"
    path.write_text(_LOG4J)
    return f"-Dlog4j.configuration=file:{path}"


@dataclass(frozen=True, slots=True)
class Security:
    """What the listeners SCRAM, MTLS and PLAIN are made of."""

    keystore: Path
    ca: Path
    user: str
    password: str

    def properties(self) -> dict[str, str]:
        """The settings of the secured listeners and of the authorizer."""
        scram, plain = "listener.name.scram", "listener.name.plain"
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "listener.name.mtls.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
            f"{scram}.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            f"{scram}.scram-sha-512.sasl.jaas.config": f"{_JAAS}.scram.ScramLoginModule required;",
            f"{plain}.sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
            f"{plain}.plain.sasl.jaas.config": f'{_JAAS}.plain.PlainLoginModule required user_{self.user}="{self.password}";',
            f"{plain}.oauthbearer.sasl.jaas.config": f"{_JAAS}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="broker";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }


def server_properties(
    data: Path,
    plan: NodePlan,
    ports: Mapping[str, int],
    *,
    via: int = 0,
    security: Security | None,
    share_groups: bool,
) -> dict[str, str]:
    """The settings of one node, broker and controller at once; the first listener is the one
    between brokers.

    To clients of the listener VIA the broker advertises the port `via`.
    """
    addresses = [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]
    advertised = [
        f"{name}://127.0.0.1:{via if name == 'VIA' else port}" for name, port in ports.items()
    ]
    replicas = str(plan.replicas)
    in_sync = str(min(plan.replicas, 2))
    settings = {
        "process.roles": "broker,controller",
        "node.id": str(plan.node_id),
        "controller.quorum.voters": ",".join(
            f"{voter.node_id}@127.0.0.1:{voter.port}" for voter in plan.voters
        ),
        "listeners": ",".join([*addresses, f"CONTROLLER://127.0.0.1:{plan.controller_port}"]),
        "advertised.listeners": ",".join(advertised),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": next(iter(ports)),
        "listener.security.protocol.map": ",".join(
            f"{name}:{_PROTOCOLS[name]}" for name in ("CONTROLLER", *ports)
        ),
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "2",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "2",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        "group.initial.rebalance.delay.ms": "0",
        # A killed broker may not come back before its session is over: 9 s by default.
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "500",
        # Two records a second of the controller's own: a third of what a broker at rest takes.
        "metadata.max.idle.interval.ms": "0",
    }
    if share_groups:
        settings |= {
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": in_sync,
        }
    return settings | (security.properties() if security else {})
