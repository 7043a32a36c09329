"""`python -m tests.alerts.hour`: the shipped alert rules over an hour of two healthy relays on real
parts.

Input: minutes. Output: a report as JSON; exit code 0 only if no alert was pending or firing at any
time. One relay follows twelve usual resources of a cluster in which nothing happens, the other the
same resources of a busy one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from tests.bench.rig import cpu_s
from tests.support import charttools, realparts
from tests.support.churn import GROUP, Churn, config_map, deployment, widget, widget_definition
from tests.support.daemon import Daemon, command
from tests.support.pace import measure_for, pace_to
from tests.support.process import Workspace, wait_until
from tests.support.prometheus import Prometheus
from tests.support.realparts import ApiError, ControlPlane, KafkaBroker
from tests.support.testbed import Testbed

RESOURCES = (
    "pods",
    "services",
    "configmaps",
    "secrets",
    "nodes",
    "events",
    "deployments.apps",
    "replicasets.apps",
    "jobs.batch",
    "endpointslices.discovery.k8s.io",
    "leases.coordination.k8s.io",
    f"widgets.{GROUP}",
)
SCRAPE_S = 15
_PER_S = 15
_HEARTBEAT = "10s"
_BEAT_S = 10.0
"""How often a kubelet renews its lease."""
_NODES = ("n1", "n2", "n3")
_BEFORE_FIRST_SCRAPE_S = 2.0 * SCRAPE_S
_NODE_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_JOBS = "/apis/batch/v1/namespaces/default/jobs"
_POD = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example.com/main:1"}]}


def main() -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.alerts.hour",
        description="The shipped alert rules over two healthy relays, one quiet, one busy.",
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="default 60")
    asked = parser.parse_args()
    if obstacle := charttools.unavailable() or realparts.unavailable():
        parser.exit(1, f"{obstacle}\n")
    report = watch_alerts(asked.minutes * 60.0)
    print(json.dumps(report, indent=2))
    return 0 if report["right"] else 1


def watch_alerts(for_s: float) -> dict[str, Any]:
    """The report; `right` is the verdict."""
    with ExitStack() as stack:
        workspace = Workspace("hour")
        stack.callback(workspace.remove)
        broker = stack.enter_context(KafkaBroker("4.1"))
        # no controllers in the quiet cluster: they would write events of its objects
        quiet = Testbed(stack.enter_context(ControlPlane()), broker, workspace.path)
        cluster = stack.enter_context(ControlPlane(controller_manager=True))
        busy = Testbed(cluster, broker, workspace.path)
        relays = {
            name: stack.enter_context(_relay(testbed, name))
            for name, testbed in {"quiet": quiet, "busy": busy}.items()
        }
        for relay in relays.values():
            relay.await_ready(deadline_s=120.0)
        kinds = ("configmaps", "configmaps", "deployments", "widgets")
        operations = int(for_s * _PER_S / 10) + 100  # the least; it goes on for 50 times that
        churn = stack.enter_context(
            Churn(cluster, busy.namespaces(6), operations=operations, kinds=kinds, per_s=_PER_S)
        )
        targets = {name: f"127.0.0.1:{relay.port}" for name, relay in relays.items()}
        prometheus = stack.enter_context(Prometheus(workspace.path, targets, every_s=SCRAPE_S))
        began = time.time()
        _live(cluster, churn, for_s)
        return {"minutes": for_s / 60, **_judged(prometheus, began, relays)}


def _relay(testbed: Testbed, name: str) -> Daemon:
    """The relay of a cluster that holds at least one object of each resource."""
    for path, body in _objects().items():
        testbed.make(path, [body])
    for node in _NODES:
        testbed.make("/api/v1/nodes", [{"metadata": {"name": node}}])
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    testbed.make(definitions, [widget_definition()])
    widgets = f"/apis/{GROUP}/v1/namespaces/default/widgets"
    wait_until("widgets are served", lambda: _served(testbed, widgets))
    testbed.make(widgets, [widget("w", random.Random(1))])
    return testbed.relay(*RESOURCES, name=name, heartbeatInterval=_HEARTBEAT)


def _served(testbed: Testbed, path: str) -> bool:
    try:
        testbed.cluster.request("GET", path)
    except ApiError:
        return False
    return True


def _objects() -> dict[str, dict[str, Any]]:
    """By collection."""
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"},
        "reason": "Created",
    }
    web = {"selector": {"app": "shop"}, "ports": [{"port": 80}]}
    core = "/api/v1/namespaces/default"
    return {
        f"{core}/configmaps": config_map("c", random.Random(1)),
        f"{core}/secrets": {"metadata": {"name": "s"}, "stringData": {"password": "x"}},
        f"{core}/services": {"metadata": {"name": "web"}, "spec": web},
        f"{core}/pods": {"metadata": {"name": "p"}, "spec": _POD},
        f"{core}/events": event,
        "/apis/apps/v1/namespaces/default/deployments": deployment("shop", 2),
        _JOBS: _job("once"),
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices": {
            "metadata": {"name": "web-1"},
            "addressType": "IPv4",
            "endpoints": [],
        },
    }


def _job(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"template": {"spec": _POD}}}


def _live(cluster: ControlPlane, churn: Churn, for_s: float) -> None:
    """What kubelets and a CronJob do besides the churn: leases, the state of nodes, jobs."""
    began_s = time.monotonic()
    leases = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-node-lease"}}
    cluster.apply("/api/v1/namespaces/kube-node-lease", leases)
    for beat in itertools.count():
        due_s = beat * _BEAT_S
        if due_s > for_s:
            break
        pace_to(began_s + due_s)
        assert churn.running, "the churn ended"
        now = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())
        for node in _NODES:
            lease = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": node},
                "spec": {"holderIdentity": node, "renewTime": now, "leaseDurationSeconds": 40},
            }
            cluster.apply(f"{_NODE_LEASES}/{node}", lease)
            if beat % 6 == 0:
                labels = {"metadata": {"annotations": {"seen": now}}}
                cluster.request("PATCH", f"/api/v1/nodes/{node}", labels)
        if beat % 6 == 0:
            cluster.request("POST", _JOBS, _job(f"job-{beat}"))
            if beat:
                cluster.request("DELETE", f"{_JOBS}/job-{beat - 6}?propagationPolicy=Background")
    measure_for(2.0 * SCRAPE_S)


def _judged(prometheus: Prometheus, began: float, relays: Mapping[str, Daemon]) -> dict[str, Any]:
    alerts = sorted(_alerted(prometheus, began))
    unwell = [each["name"] for each in prometheus.rules() if each["health"] != "ok"]
    stale = {
        name: command("verify", "-c", relay.file, "--max-age", "2m", timeout_s=300.0).code
        for name, relay in relays.items()
    }
    scraped = _by(prometheus, "min by (namespace) (min_over_time(up[1h]))")
    return {
        "right": not alerts
        and not unwell
        and not any(stale.values())
        and scraped == dict.fromkeys(relays, 1.0),
        "alerts": alerts,
        "rules": len(prometheus.rules()),
        "rules_unwell": unwell,
        "scraped": scraped,
        "events_per_s": _by(
            prometheus,
            "sum by (namespace) (rate(watchrelay_events_received_total[30m]))",
        ),
        "watch_ends": _by(
            prometheus,
            "sum by (namespace, stream, reason) (increase(watchrelay_watch_ends_total[1h])) > 0",
        ),
        "verify_max_age_2m": stale,
        "cpu_s": {name: round(cpu_s(relay.pid), 1) for name, relay in relays.items()},
        "log": {name: sorted(_warnings(relay)) for name, relay in relays.items()},
    }


def _by(prometheus: Prometheus, expression: str) -> dict[str, float]:
    """The series of the expression now, by the values of their labels."""
    return {
        " ".join(each["metric"].values()): round(float(each["value"][1]), 2)
        for each in prometheus.query(expression)
    }


def _warnings(relay: Daemon) -> set[str]:
    return {
        f"{line['level']}: {line['message']}"
        for line in relay.lines()
        if line["level"] in {"warning", "error"}
    }


def _alerted(prometheus: Prometheus, began: float) -> Iterator[str]:
    """Each alert that was pending or firing at an evaluation after the first scrapes."""
    since = began + _BEFORE_FIRST_SCRAPE_S
    for series in prometheus.query_range("ALERTS", start=since, end=time.time(), step_s=SCRAPE_S):
        labels = series["metric"]
        first = float(series["values"][0][0]) - began
        where = " ".join(labels.get(label, "") for label in ("namespace", "stream"))
        yield (
            f"{labels['alertname']} {where}: {labels['alertstate']} at {len(series['values'])} "
            f"evaluations, first after {first:.0f} s"
        )


if __name__ == "__main__":
    sys.exit(main())
