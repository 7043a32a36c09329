"""The chart, both Helms, an API server that enforces restricted pod security: proof that it
installs there, and that the daemon relays with the rights and the config that it made, and asks for
nothing else."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import charttools
from tests.support.charttools import CHART, HELMS, ROOT, program, rendered, run, values_file
from tests.support.churn import GROUP, Churn, widget, widget_definition
from tests.support.controlplane import assert_only_listed_and_watched
from tests.support.daemon import Daemon, command
from tests.support.kafkarights import RIGHTS, denied, grant, grant_group, granted
from tests.support.listed import await_equal, redacted_data
from tests.support.mount import mount_volumes
from tests.support.process import wait_until
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed

pytestmark = pytest.mark.real

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_MONITORING = {
    "podmonitors": "PodMonitor",
    "prometheusrules": "PrometheusRule",
}
_EVERYTHING = {
    "networkPolicy": {"enabled": True},
    "podMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
}


@pytest.fixture(scope="module")
def cluster(real_parts: None) -> Iterator[ControlPlane]:
    if obstacle := charttools.unavailable():
        pytest.fail(obstacle, pytrace=False)
    with ControlPlane(audit=True, controller_manager=True) as running:
        for plural, kind in _MONITORING.items():
            _define(running, "monitoring.coreos.com", plural, kind)
        yield running


def _define(cluster: ControlPlane, group: str, plural: str, kind: str) -> None:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "plural": plural,
                "singular": kind.lower(),
                "kind": kind,
                "listKind": f"{kind}List",
            },
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    cluster.apply(f"{_DEFINITIONS}/{plural}.{group}", definition)
    cluster.wait_for(
        f"{plural} are served", lambda: cluster.request("GET", f"/apis/{group}/v1/{plural}")
    )


def _restricted(cluster: ControlPlane, name: str) -> str:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    return name


def _install(
    cluster: ControlPlane, helm: str, namespace: str, values: Path, *arguments: str
) -> None:
    where = ("--namespace", namespace, "--kubeconfig", cluster.kubeconfig)
    done = run(
        program(helm),
        "upgrade",
        "--install",
        "relay",
        CHART,
        "--values",
        values,
        *where,
        *arguments,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _pods(cluster: ControlPlane, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.request("GET", f"/api/v1/namespaces/{namespace}/pods")[
        "items"
    ]
    return found


@pytest.mark.parametrize("helm", HELMS)
def test_the_pod_is_admitted_where_pod_security_is_restricted_and_an_edit_reaches_the_config(
    cluster: ControlPlane, helm: str, tmp_path: Path
) -> None:
    namespace = _restricted(cluster, f"installed-by-{helm}")
    config = {
        "cluster": "c",
        "kafka": {"bootstrapServers": ["kafka:9092"]},
        "resources": [{"resource": "pods"}],
    }
    _install(cluster, helm, namespace, values_file(tmp_path, config, **_EVERYTHING))
    cluster.wait_for("the pod is there", lambda: _pods(cluster, namespace))
    (pod,) = _pods(cluster, namespace)
    assert pod["spec"]["serviceAccountName"] == "relay-watchrelay"
    assert pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
    deployment = cluster.request(
        "GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/relay-watchrelay"
    )
    assert not [
        each
        for each in deployment["status"].get("conditions", ())
        if each["type"] == "ReplicaFailure"
    ]
    (asks,) = [
        each
        for each in rendered(tmp_path / "values.yaml", namespace=namespace)
        if each["kind"] == "Pod"
    ]
    # what `helm test` starts is admitted too
    cluster.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", asks)
    rules = cluster.request(
        "GET",
        f"/apis/monitoring.coreos.com/v1/namespaces/{namespace}/prometheusrules/relay-watchrelay",
    )
    assert len(rules["spec"]["groups"][0]["rules"]) > 10
    _install(
        cluster,
        helm,
        namespace,
        values_file(tmp_path, {**config, "heartbeatInterval": "7s"}, **_EVERYTHING),
    )
    held = cluster.request("GET", f"/api/v1/namespaces/{namespace}/configmaps/relay-watchrelay")[
        "data"
    ]["config.yaml"]
    assert yaml.safe_load(held)["heartbeatInterval"] == "7s"
    gone = run(
        program(helm),
        "uninstall",
        "relay",
        "--namespace",
        namespace,
        "--kubeconfig",
        cluster.kubeconfig,
    )
    assert gone.returncode == 0, gone.stderr
    role = f"watchrelay:{namespace}:relay-watchrelay"
    assert role not in cluster.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")


def test_the_plain_manifests_are_admitted_too(cluster: ControlPlane) -> None:
    base = yaml.safe_load_all(cluster.kubectl("kustomize", str(ROOT / "deploy" / "base")))
    assert sorted(each["kind"] for each in base) == ["Deployment", "Service"], (
        "the base works by itself"
    )
    cluster.kubectl("apply", "-k", str(ROOT / "deploy" / "example"))
    cluster.wait_for("the pod is there", lambda: _pods(cluster, "watchrelay"))
    (pod,) = _pods(cluster, "watchrelay")
    (config,) = [
        each["configMap"]["name"] for each in pod["spec"]["volumes"] if each["name"] == "config"
    ]
    assert (
        "cluster: my-cluster"
        in cluster.request("GET", f"/api/v1/namespaces/watchrelay/configmaps/{config}")["data"][
            "config.yaml"
        ]
    )
    assert pod["spec"]["serviceAccountName"] == "watchrelay"


def test_a_pod_with_more_rights_is_not_admitted_there(
    cluster: ControlPlane, tmp_path: Path
) -> None:
    """What the admission of the chart's pod is worth: the same pod without its security settings is
    refused."""
    namespace = _restricted(cluster, "too-lax")
    config = {
        "cluster": "c",
        "kafka": {"bootstrapServers": ["kafka:9092"]},
        "resources": [{"resource": "pods"}],
    }
    lax = {"podSecurityContext": {"runAsNonRoot": None, "seccompProfile": None}}
    _install(cluster, "helm4", namespace, values_file(tmp_path, config, **lax))
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/relay-watchrelay"

    def refusal() -> str:
        conditions = cluster.request("GET", path)["status"].get("conditions", ())
        return next(
            (each["message"] for each in conditions if each["type"] == "ReplicaFailure"), ""
        )

    assert "restricted" in cluster.wait_for("the refusal is reported", refusal)
    assert _pods(cluster, namespace) == []


@pytest.fixture
def guarded(real_parts: None) -> Iterator[KafkaBroker]:
    """A broker on which nobody may do anything that was not granted."""
    with KafkaBroker("4.1", secured=True) as broker:
        yield broker


def _as_the_pod_has_it(cluster: ControlPlane, namespace: str, root: Path) -> dict[str, Any]:
    """The config that the chart made, its volumes laid below `root` and its paths leading there."""
    deployment = cluster.request(
        "GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/relay-watchrelay"
    )
    pod = deployment["spec"]["template"]["spec"]
    mount_volumes(cluster, namespace, pod, root)
    file = root / pod["containers"][0]["args"][1].removeprefix("--config=/")
    made: dict[str, Any] = yaml.safe_load(file.read_text().replace(" /etc/", f" {root}/etc/"))
    return made


def test_with_the_charts_account_and_config_and_the_listed_rights_in_kafka_the_daemon_relays_all_and_asks_for_nothing_else(
    cluster: ControlPlane, guarded: KafkaBroker, tmp_path: Path
) -> None:
    testbed = Testbed(cluster, guarded, tmp_path)
    one, two = testbed.namespaces(2)
    home = _restricted(cluster, f"{testbed.name}-home")
    cluster.apply(f"{_DEFINITIONS}/widgets.{GROUP}", widget_definition())
    cluster.wait_for(
        "widgets are served", lambda: cluster.request("GET", f"/apis/{GROUP}/v1/widgets")
    )
    issued = guarded.client_certificate("chart")
    grant(guarded, *RIGHTS, user="chart")
    resources = ["cm", f"widgets.{GROUP}", "nodes", "Deployment"]
    entries = [
        *({"resource": each} for each in resources),
        {"resource": "secrets", "namespaces": [one, two]},
    ]
    kafka = {"bootstrapServers": [guarded.listeners["MTLS"]], "security": {"protocol": "SSL"}}
    config = {
        key: value
        for key, value in testbed.config(*entries, kafka=kafka).items()
        if key != "kubernetes"
    }
    login = {"cert": issued.certificate.read_text(), "key": issued.key.read_text()}
    values = values_file(
        tmp_path,
        config,
        kafka={"auth": {"inline": login}, "ca": {"inline": guarded.ca.read_text()}},
        **_EVERYTHING,
    )
    _install(cluster, "helm4", home, values)
    token = cluster.service_account_token(home, "relay-watchrelay")
    kubeconfig = cluster.write_kubeconfig(f"{testbed.name}-account", token=token)
    environment = {"WATCHRELAY_KUBERNETES__KUBECONFIG": str(kubeconfig)}
    testbed.make(
        f"/api/v1/namespaces/{one}/secrets", [{"metadata": {"name": "s"}, "data": {"a": "YQ=="}}]
    )
    widgets = f"/apis/{GROUP}/v1/namespaces/{two}/widgets"
    testbed.make(widgets, [widget("w", random.Random(1)), widget("gone-later", random.Random(2))])
    testbed.make("/api/v1/nodes", [{"metadata": {"name": testbed.name}}])
    relay = Daemon(
        _as_the_pod_has_it(cluster, home, tmp_path / "pod"), tmp_path, environment=environment
    )
    # what `helm test` runs
    validated = command("validate", "--connect", "-c", relay.file, environment=environment)
    assert validated.code == 0, validated.stdout + validated.stderr
    wanted: dict[str, Any] = {
        "configmaps": "/api/v1/configmaps",
        f"widgets.{GROUP}": f"/apis/{GROUP}/v1/widgets",
        "nodes": "/api/v1/nodes",
        "deployments.apps": "/apis/apps/v1/deployments",
        **{
            f"secrets@{each}": (f"/api/v1/namespaces/{each}/secrets", redacted_data)
            for each in (one, two)
        },
    }
    with (
        relay,
        testbed.reader(
            *testbed.topics(
                "configmaps", "secrets", "nodes", f"widgets.{GROUP}", "deployments.apps"
            )
        ) as reader,
    ):
        relay.await_ready()
        rows = relay.api_streams()
        assert (set(rows), {row["state"] for row in rows.values()}) == (
            set(wanted),
            {"watching"},
        ), rows
        testbed.make(
            f"/api/v1/namespaces/{two}/configmaps", [{"metadata": {"name": "made-meanwhile"}}]
        )
        cluster.request("DELETE", f"{widgets}/gone-later")
        await_equal(cluster, reader, wanted)
        assert all(reader.table(stream) for stream in wanted if stream != f"secrets@{two}")
        verified = command("verify", "--cluster", "-c", relay.file, environment=environment)
        assert verified.code == 0, verified.stdout + verified.stderr
        assert relay.stop() == 0
    assert_only_listed_and_watched(cluster, f"system:serviceaccount:{home}:relay-watchrelay")
    assert granted(guarded, "chart") == sorted(("TOPIC", "k8s.", right.name) for right in RIGHTS)
    assert denied(guarded, "chart") == set()


class ChartReplicas:
    """What the chart's Deployment would run: three processes with its config, account and args."""

    def __init__(
        self, cluster: ControlPlane, namespace: str, directory: Path, stack: ExitStack
    ) -> None:
        token = cluster.service_account_token(namespace, "relay-watchrelay")
        kubeconfig = cluster.write_kubeconfig(f"{namespace}-account", token=token)
        self.environment = {"WATCHRELAY_KUBERNETES__KUBECONFIG": str(kubeconfig)}
        self.running: list[Daemon] = []
        self.all: list[Daemon] = []
        self._cluster, self._namespace = cluster, namespace
        self._directory, self._stack = directory, stack

    def roll_out(self) -> None:
        """Three replicas of the present release replace those that run, the new one first."""
        former, self.running = self.running, []
        for number in range(3):
            name = f"relay-{len(self.all)}"
            config = _as_the_pod_has_it(self._cluster, self._namespace, self._directory / name)
            config["sharding"]["instance"] = name  # as the args have it from the pod's name
            relay = Daemon(config, self._directory, name=name, environment=self.environment)
            self.running.append(self._stack.enter_context(relay))
            self.all.append(relay)
            relay.await_ready()
            if former:
                assert former[number].stop() == 0
        wait_until("each stream has one owner", self._shared, deadline_s=60.0)

    def _shared(self) -> bool:
        owned = [
            stream
            for each in self.running
            for stream, row in each.api_streams().items()
            if row["state"] == "watching" and row["complete"]
        ]
        return len(owned) == len(set(owned)) == 6


@pytest.mark.long
def test_three_replicas_with_the_charts_account_and_the_listed_rights_are_upgraded_and_rolled_back_under_churn(
    cluster: ControlPlane, guarded: KafkaBroker, tmp_path: Path
) -> None:
    testbed = Testbed(cluster, guarded, tmp_path)
    namespaces = testbed.namespaces(6)
    home = _restricted(cluster, f"{testbed.name}-home")
    issued = guarded.client_certificate("chart")
    grant(guarded, *RIGHTS, user="chart")
    grant_group(guarded, user="chart")
    kafka = {"bootstrapServers": [guarded.listeners["MTLS"]], "security": {"protocol": "SSL"}}
    config = testbed.config({"resource": "configmaps", "namespaces": namespaces}, kafka=kafka)
    del config["kubernetes"]
    login = {"cert": issued.certificate.read_text(), "key": issued.key.read_text()}
    more = {
        "replicas": 3,
        "kafka": {"auth": {"inline": login}, "ca": {"inline": guarded.ca.read_text()}},
    }
    with ExitStack() as stack:
        _install(cluster, "helm4", home, values_file(tmp_path, config, **more))
        replicas = ChartReplicas(cluster, home, tmp_path, stack)
        churn = stack.enter_context(
            Churn(cluster, namespaces, operations=100, kinds=("configmaps",), per_s=20)
        )
        replicas.roll_out()
        edited = {**config, "heartbeatInterval": "2s"}
        _install(cluster, "helm4", home, values_file(tmp_path, edited, **more))
        replicas.roll_out()
        back = ("rollback", "relay", "1", "--namespace", home, "--kubeconfig", cluster.kubeconfig)
        done = run(program("helm4"), *back)
        assert done.returncode == 0, done.stdout + done.stderr
        replicas.roll_out()
        # a rollback installs what was rendered then
        assert [each.config["revision"] for each in replicas.all[::3]] == [1, 2, 1]
        churn.finish()
        relay = replicas.running[-1]
        verified = command(
            "verify", "--cluster", "-c", relay.file, environment=replicas.environment
        )
        assert verified.code == 0, verified.stdout + verified.stderr
    lines = [line for each in replicas.all for line in each.lines()]
    decisions = Counter(line["then"] for line in lines if line["message"] == "log read back")
    assert decisions.total() == decisions["WatchFrom"] + len(namespaces), "no list but the first"
    assert_only_listed_and_watched(cluster, f"system:serviceaccount:{home}:relay-watchrelay")
    assert denied(guarded, "chart") == set()
