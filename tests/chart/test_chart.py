"""The chart and its matrix of values: what both Helms, the API's schemas and checkov say of it."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.charttools import (
    CHART,
    HELMS,
    VALUES,
    program,
    python_program,
    rendered,
    run,
    template,
    values_file,
)
from tools.chart.generate import restart_keys
from watchrelay import __version__
from watchrelay.config import Settings, load_settings

pytestmark = pytest.mark.usefixtures("tools")

KUBERNETES = ("1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
NOT_IN_KUBERNETES = {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
SKIPPED = {
    "CKV_K8S_11": "no CPU limit on purpose: a relist must not stall the heartbeats",
    "CKV_K8S_15": "IfNotPresent: tags of releases do not move, and a digest can be given",
    "CKV_K8S_38": "the pod reads the API server with this token",
    "CKV_K8S_43": "the digest is that of the image which the operator pushed",
    "CKV2_K8S_6": (
        "a NetworkPolicy is there when asked for: the chart cannot guess the API server's address"
    ),
}
"""What checkov asks and the chart does not do, with the reason."""
EVERYTHING = CHART / "ci" / "everything-values.yaml"
ONLY_WITH_EVERYTHING = {
    "CKV_K8S_49": 'a wildcard in the rights is what `"*.example.com"` asks for',
    "CKV2_K8S_5": "Secrets are read because the config names them",
}

each_values = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)


@each_values
def test_both_helms_lint_it_and_render_the_same(values: Path) -> None:
    texts = []
    for helm in HELMS:
        linted = run(program(helm), "lint", "--strict", CHART, "--values", values)
        assert linted.returncode == 0, linted.stdout + linted.stderr
        done = template(values, "--include-crds", helm=helm)
        assert done.returncode == 0, done.stderr
        texts.append([line for line in done.stdout.splitlines() if line.strip()])
    assert "\n".join(difflib.unified_diff(texts[0], texts[1], lineterm="")) == ""


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_api_of_each_version_takes_every_object(version: str, tmp_path: Path) -> None:
    files = []
    for values in VALUES:
        files.append(tmp_path / values.name)
        files[-1].write_text(template(values, "--kube-version", version).stdout)
    done = run(python_program("kubernetes-validate"), "--strict", "-k", version, *files)
    words = done.stdout + done.stderr
    assert done.returncode == 0, words
    unknown = [
        line
        for line in words.splitlines()
        if line.startswith("WARN") and not any(kind in line for kind in NOT_IN_KUBERNETES)
    ]
    assert unknown == []
    assert "ERROR" not in words


def test_an_older_kubernetes_is_refused() -> None:
    done = template(VALUES[0], "--kube-version", "1.29.0")
    assert done.returncode != 0
    assert "1.30" in done.stderr


@pytest.mark.parametrize("everything", [False, True])
def test_checkov_finds_nothing_that_has_no_reason(everything: bool, tmp_path: Path) -> None:
    files: list[str] = []
    for values in [EVERYTHING] if everything else [path for path in VALUES if path != EVERYTHING]:
        manifests = tmp_path / values.name
        manifests.write_text(template(values).stdout)
        files += ["-f", str(manifests)]
    skipped = {**SKIPPED, **ONLY_WITH_EVERYTHING} if everything else SKIPPED
    quietly = (
        "--framework",
        "kubernetes",
        "--skip-download",
        "--compact",
        "--quiet",
        "--skip-check",
        ",".join(skipped),
    )
    done = run(python_program("checkov"), *quietly, *files)
    assert done.returncode == 0, done.stdout + done.stderr


@each_values
def test_the_daemon_takes_the_rendered_config(values: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        next(
            each["data"]["config.yaml"]
            for each in rendered(values)
            if "config.yaml" in each.get("data", {})
        )
    )
    settings = load_settings(str(config), environ={})
    assert isinstance(settings, Settings)
    given = yaml.safe_load(values.read_text())["config"]
    assert {entry.resource for entry in settings.resources} == {
        entry["resource"] for entry in given["resources"]
    }


def test_the_unit_tests_of_the_chart_pass() -> None:
    done = run(program("helm-unittest"), "--strict", CHART)
    assert done.returncode == 0, done.stdout


def test_the_package_holds_what_an_install_needs_and_nothing_else(tmp_path: Path) -> None:
    done = run(program("helm4"), "package", CHART, "--destination", tmp_path)
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.glob("*.tgz")
    names = run("tar", "-tzf", package).stdout.split()
    assert "watchrelay/templates/tests/connection.yaml" in names
    assert {name.split("/")[1] for name in names} == {
        "Chart.yaml", "values.yaml", "values.schema.json", "README.md", "templates", "files", ".helmignore",
    }  # fmt: skip


def test_the_chart_is_of_the_programs_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    (image,) = yaml.safe_load(chart["annotations"]["artifacthub.io/images"])
    assert image["image"] == f"watchrelay:{__version__}"
    assert {
        each["kind"] for each in yaml.safe_load(chart["annotations"]["artifacthub.io/changes"])
    } <= {"added", "changed", "fixed"}


def test_several_replicas_share_by_the_group_and_roll(tmp_path: Path) -> None:
    config = {
        "cluster": "c",
        "kafka": {"bootstrapServers": ["k:1"]},
        "resources": [{"resource": "pods"}],
    }
    values = values_file(tmp_path, config, replicas=2)
    objects = {each["kind"]: each for each in rendered(values)}
    assert objects["Deployment"]["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
    }
    written = yaml.safe_load(objects["ConfigMap"]["data"]["config.yaml"])
    assert written["sharding"] == {"enabled": True}
    assert written["revision"] == 1
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "--set=sharding.instance=$(POD_NAME)" in container["args"]
    assert container["env"] == [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    ]
    (term,) = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    labels = objects["Deployment"]["spec"]["selector"]["matchLabels"]
    assert term["podAffinityTerm"] == {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": labels},
    }
    assert objects["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    budget = values_file(tmp_path, config, replicas=3, podDisruptionBudget={"maxUnavailable": 2})
    assert [
        each["spec"]["maxUnavailable"] for each in rendered(budget) if "Budget" in each["kind"]
    ] == [2]
    budget = values_file(tmp_path, config, replicas=3, podDisruptionBudget={"enabled": False})
    assert [each for each in rendered(budget) if "Budget" in each["kind"]] == []
    refused = template(
        values_file(tmp_path, {**config, "sharding": {"enabled": False}}, replicas=2),
    )
    assert "cannot be combined with more than one replica" in refused.stderr


def _checksum(directory: Path, config: Mapping[str, Any], **more: Any) -> str:
    objects = rendered(values_file(directory, config, **more))
    (deployment,) = [each for each in objects if each["kind"] == "Deployment"]
    return str(deployment["spec"]["template"]["metadata"]["annotations"].get("checksum/config"))


def test_an_edit_of_the_config_restarts_the_pod_where_the_daemon_cannot_take_it(
    tmp_path: Path,
) -> None:
    config = {
        "cluster": "c",
        "kafka": {"bootstrapServers": ["k:1"]},
        "resources": [{"resource": "pods"}],
    }
    cold = {**config, "kafka": {"bootstrapServers": ["k:1"], "topicPrefix": "x"}}
    hot = {**config, "heartbeatInterval": "5s"}
    before = _checksum(tmp_path, config)
    assert _checksum(tmp_path, cold) != before
    assert (_checksum(tmp_path, hot) == before) == (restart_keys() != ["*"])
    always = {"rollout": {"onConfigChange": "always"}}
    assert _checksum(tmp_path, hot, **always) != _checksum(tmp_path, config, **always)
    assert _checksum(tmp_path, config, rollout={"onConfigChange": "never"}) == "None"
