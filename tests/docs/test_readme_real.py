"""REAL=1: proof that the commands of the README's "Use it" work as printed, in their order, on its
own config, against a real API server and a real Kafka."""

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support import parts
from tests.support.daemon import clean_environment
from tests.support.docpages import blocks
from tests.support.process import Process, free_port, wait_until
from tests.support.realparts import ControlPlane, KafkaBroker

pytestmark = pytest.mark.real

OTHERWISE = {
    "make install": "made the interpreter that runs this",
    "export PATH": "the shell of this test has its own",
    "watchrelay run": "runs beside the others",
    "watchrelay tail": "goes on until it is ended",
    "watchrelay retire": "asks who is at a terminal; the stream must have left the config first",
}
"""Commands that are not simply run to their end, and why."""


@pytest.fixture
def cluster(real_parts: None) -> Iterator[ControlPlane]:
    with ControlPlane() as running:
        for namespace in ("shop", "pay", "old"):
            running.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        for namespace in ("shop", "old"):
            pod = {
                "metadata": {"name": "till"},
                "spec": {
                    "containers": [{"name": "c", "image": "i"}],
                    "automountServiceAccountToken": False,
                },
            }
            running.request(
                "POST",
                f"/api/v1/namespaces/{namespace}/serviceaccounts",
                {"metadata": {"name": "default"}},
            )
            running.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
        yield running


class Reader:
    """Who has read the README: its config in an empty directory, a shell; brokers and kubeconfig
    are given by environment."""

    def __init__(self, directory: Path, cluster: ControlPlane, broker: KafkaBroker) -> None:
        self.directory = directory
        self.port = free_port()
        self.file = directory / "watchrelay.yaml"
        (directory / "bin").mkdir()
        (directory / "bin" / "kubectl").symlink_to(parts.program("kubectl"))
        kafka = {
            "BOOTSTRAP_SERVERS": broker.bootstrap,
            "REPLICATION_FACTOR": "1",
            "MIN_INSYNC_REPLICAS": "1",
        }
        self.extra = {f"WATCHRELAY_KAFKA__{name}": value for name, value in kafka.items()}
        self.extra |= {"WATCHRELAY_HEARTBEAT_INTERVAL": "1s"}  # retire waits for some of them
        self.extra |= {
            "KUBECONFIG": str(cluster.kubeconfig),
            "WATCHRELAY_OBSERVE__LISTEN": f"127.0.0.1:{self.port}",
        }
        self.extra |= {
            "PATH": f"{directory / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(directory),
        }

    def run(self, line: str) -> str:
        """A line to its end, which must be a good one."""
        environment = clean_environment(self.extra)
        argv = ["bash", "-o", "pipefail", "-c", line]
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.directory,
            env=environment,
            timeout=60.0,
        )
        assert done.returncode == 0, f"{line}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def beside(self, line: str, name: str) -> tuple[Process, Path]:
        """A line that goes on while others run, and its output."""
        log = self.directory / f"{name}.log"
        argv = ["bash", "-c", f"cd {shlex.quote(str(self.directory))} && exec {line}"]
        return Process(name, argv, log=log, environment=clean_environment(self.extra)).launch(), log


def commands() -> list[str]:
    (block,) = [each for each in blocks("README.md") if "watchrelay validate -c" in each.text]
    return [line.partition(" #")[0].rstrip() for line in block.lines()]


def test_the_commands_of_the_readme_work_in_their_order(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    (config,) = [
        block.text
        for block in blocks("README.md")
        if block.language == "yaml" and "bootstrapServers" in block.text
    ]
    with KafkaBroker("4.1") as broker:
        reader = Reader(tmp_path, cluster, broker)
        earlier = yaml.safe_load(config)
        earlier["resources"][1]["namespaces"].append("old")
        reader.file.write_text(yaml.safe_dump(earlier))
        relays: list[Process] = []
        try:
            for line in commands():
                follow(line, reader, config, relays)
            relays[0].stop()
        finally:
            for relay in relays:
                relay.kill()


def follow(line: str, reader: Reader, config: str, relays: list[Process]) -> None:
    known = next((start for start in OTHERWISE if line.startswith(start)), None)
    match known:
        case None:
            printed = reader.run(line)
            assert PRINTED.get(line.split(" -c")[0], "") in printed, printed
        case "watchrelay run":
            relay, log = reader.beside(line, "run")
            relays.append(relay)
            readyz = f"curl -sf http://127.0.0.1:{reader.port}/readyz"
            wait_until(
                "the relay is ready",
                lambda: relay.alive and reader.run(f"{readyz} || true"),
                deadline_s=60.0,
            )
            reader.file.write_text(config)  # pods@old leaves it
            gone = f"curl -sf http://127.0.0.1:{reader.port}/api/streams"
            wait_until("the relay took the edit", lambda: "pods@old" not in reader.run(gone))
        case "watchrelay tail":
            tail, log = reader.beside(f"{line} --from-beginning", "tail")
            wait_until("the pod is shown", lambda: "shop/till" in log.read_text())
            tail.stop()
        case "watchrelay retire":
            assert "1" in reader.run(f"{line} --yes")
        case _:
            pass


PRINTED = {
    "watchrelay validate": "pods@shop",
    "kubectl create namespace watchrelay": "namespace/watchrelay created",
    "watchrelay rbac": "clusterrole.rbac.authorization.k8s.io/watchrelay",
    "watchrelay asyncapi": '"asyncapi"',
}
"""A part of what each command says."""


def test_each_exception_is_of_a_command_that_is_there() -> None:
    assert [
        start
        for start in (*OTHERWISE, *PRINTED)
        if not any(line.startswith(start) for line in commands())
    ] == []
