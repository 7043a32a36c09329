"""The compose file, the Kafka that it names: proof that its broker starts as the file sets it up,
and that the relay's config beside it is right for that broker.

No engine for containers is needed: what the image `apache/kafka` makes of its environment is made
by a program in Kafka's own jar. Its ports become free ones, and its service's name this machine.
"""

import re
from pathlib import Path

import pytest
import yaml

from tests.support.charttools import ROOT
from tests.support.daemon import Daemon, command
from tests.support.embedded import EmbeddedCluster
from tests.support.kafkaconfig import write_log_configuration
from tests.support.parts import kafka_jars
from tests.support.process import Process, free_port, listens

pytestmark = pytest.mark.real

COMPOSE = ROOT / "deploy" / "compose"
_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx512m")
_IMAGE_ADDS = {"CLUSTER_ID": "5L6g3nShT-eMCtK--X86sw"}
"""Source: docker/jvm/launch and docker/resources/common-scripts/configure of apache/kafka."""


def _environment(directory: Path) -> tuple[dict[str, str], dict[str, int]]:
    """What the service's container is started with, here; and each port of the file, as it is
    here."""
    service = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]["kafka"]
    environment: dict[str, str] = service["environment"]
    ports = {
        port: free_port()
        for port in sorted(set(re.findall(r":(\d{4})\b", " ".join(environment.values()))))
    }
    here = {}
    for name, value in environment.items():
        moved = re.sub(r":(\d{4})\b", lambda found: f":{ports[found[1]]}", value)
        here[name] = (
            moved.replace("://:", "://127.0.0.1:")
            .replace("//kafka:", "//127.0.0.1:")
            .replace("@kafka:", "@127.0.0.1:")
        )
    return {**_IMAGE_ADDS, **here, "KAFKA_LOG_DIRS": str(directory / "data")}, ports


def _configured(directory: Path, jars: Path, environment: dict[str, str]) -> Path:
    """The broker's properties, made as the image makes them, its storage formatted."""
    places = {name: directory / name for name in ("default", "mounted", "final")}
    for place in places.values():
        place.mkdir()
    for name in ("log4j2.yaml", "tools-log4j2.yaml"):
        (places["default"] / name).write_text(
            "Configuration:\n  Loggers:\n    Root:\n      level: INFO\n"
        )
    flags = [f"--{name}-configs-dir={place}" for name, place in places.items()]
    argv = ["java", *_JVM, "-cp", f"{jars}/*", "kafka.docker.KafkaDockerWrapper", "setup", *flags]
    setup = Process("setup", argv, log=directory / "setup.log", environment=environment).launch()
    assert setup.exit_code(60.0) == 0, setup.tail()
    return places["final"] / "server.properties"


def test_the_broker_and_the_relay_of_the_compose_file_work_together(
    real_parts: None, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    service = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]["kafka"]
    jars = kafka_jars("4.1")
    assert (jars / f"kafka_2.13-{service['image'].partition(':')[2]}.jar").exists(), (
        "another Kafka is tested than the file names"
    )
    environment, ports = _environment(tmp_path)
    properties = _configured(tmp_path, jars, environment)
    logging = write_log_configuration(tmp_path, log4j2=True)
    argv: list[str | Path] = ["java", *_JVM, logging, "-cp", f"{jars}/*", "kafka.Kafka", properties]
    broker = Process("kafka", argv, log=tmp_path / "kafka.log").launch()
    config = yaml.safe_load((COMPOSE / "watchrelay.yaml").read_text())
    (address,) = config["kafka"]["bootstrapServers"]
    host, _, port = address.partition(":")
    config["kafka"]["bootstrapServers"] = [f"{host}:{ports[port]}"]
    config["kubernetes"]["kubeconfig"] = str(cluster.kubeconfig)
    del config["observe"]["listen"]
    relay = Daemon(config, tmp_path)
    try:
        broker.await_ready(lambda: listens(ports[port]))
        with relay:
            relay.await_ready()
            verified = command("verify", "--cluster", "-c", relay.file)
            assert verified.code == 0, verified.stdout + verified.stderr
            assert relay.stop() == 0
    finally:
        broker.kill()
