"""Real parts: some minutes of a relay's metrics in a Prometheus: load, and faults that dashboards
should show.

What is played is the same each time; how long it takes depends on the machine. The data stays, so
that panels can be asked again.
"""

from __future__ import annotations

import json
import shutil
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from tests.support.churn import Churn
from tests.support.daemon import Daemon, command
from tests.support.pace import measure_for
from tests.support.process import Workspace
from tests.support.prometheus import Prometheus
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed

NAMESPACE = "watchrelay"
_STREAMS = ("configmaps", "deployments.apps", "replicasets.apps", "pods", "nosuch.example.org")
_PER_S = 40


@dataclass(frozen=True, slots=True)
class Played:
    """When it was, as Unix times, and the name of the cluster."""

    start: float
    end: float
    cluster: str


def play(kept: Path) -> Played:
    """Plays it; Prometheus' data and the times are in `kept` afterwards."""
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    with ExitStack() as stack:
        workspace = Workspace("dashboards")
        stack.callback(workspace.remove)
        cluster = stack.enter_context(ControlPlane(controller_manager=True))
        broker = stack.enter_context(KafkaBroker("4.1"))
        testbed = Testbed(cluster, broker, workspace.path)
        relay = testbed.relay(
            *_STREAMS,
            defaults={"snapshotInterval": "60s", "relistInterval": "90s"},
            queueBytes="1MiB",
        )
        namespaces = testbed.namespaces(8)
        stack.enter_context(Prometheus(kept, {NAMESPACE: f"127.0.0.1:{relay.port}"}))
        start = time.time()
        stack.enter_context(relay)
        relay.await_ready(deadline_s=90.0)
        kinds = ("configmaps", "configmaps", "deployments")
        churn = stack.enter_context(
            Churn(cluster, namespaces, operations=200, kinds=kinds, per_s=_PER_S)
        )
        _faults(cluster, broker, relay)
        churn.finish(deadline_s=120.0)
        measure_for(10.0)
        played = Played(start, time.time(), testbed.name)
    (kept / "played.json").write_text(json.dumps(asdict(played)))
    return played


def played(kept: Path) -> Played:
    """What `play` left."""
    return Played(**json.loads((kept / "played.json").read_text()))


def _faults(cluster: ControlPlane, broker: KafkaBroker, relay: Daemon) -> None:
    measure_for(45.0)
    assert command("snapshot", "-c", relay.file, "configmaps").code == 0
    measure_for(10.0)
    broker.pause()  # Kafka silent: lag grows, queues fill
    measure_for(25.0)
    broker.resume()
    measure_for(15.0)
    right = relay.file.read_text()
    # an edit that is refused
    relay.file.write_text(yaml.safe_dump({**yaml.safe_load(right), "nosuchKey": 1}))
    measure_for(10.0)
    relay.file.write_text(right)
    cluster.kill_apiserver()  # requests fail, watches start again
    measure_for(10.0)
    cluster.restart_apiserver()
    measure_for(20.0)
    relay.kill()
    relay.start()  # another epoch
    relay.await_ready(deadline_s=90.0)
    measure_for(15.0)
    broker.kill()  # batches fail
    measure_for(8.0)
    broker.restart()
    measure_for(25.0)
