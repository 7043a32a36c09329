"""The pages' values, scrape configs, expressions, helm commands: proof that Helm and Prometheus
take them."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import charttools
from tests.support.docpages import Block, all_blocks, blocks
from tools.docs.pages import ROOT

pytestmark = pytest.mark.usefixtures("tools")

VALUES = [
    block
    for block in all_blocks()
    if block.language == "yaml" and "config" in (yaml.safe_load(block.text) or {})
]


@pytest.mark.parametrize("helm", charttools.HELMS)
def test_the_helm_commands_of_the_install_page_run_as_printed(helm: str, tmp_path: Path) -> None:
    (tmp_path / "helm").symlink_to(ROOT / "helm")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "helm").symlink_to(charttools.program(helm))
    here = list(blocks("docs/install.md"))
    for block in here:
        if block.verb == "file":
            (tmp_path / block.rest).write_text(block.text)
    commands = [block.text for block in here if block.verb == "helm"]
    assert commands
    for command in commands:
        environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path)}
        done = subprocess.run(
            ["bash", "-c", command],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        kinds = {each["kind"] for each in yaml.safe_load_all(done.stdout) if each}
        assert {
            "Deployment",
            "Role",
            "ClusterRole",
            "PodMonitor",
            "PrometheusRule",
            "ConfigMap",
        } <= kinds


@pytest.mark.parametrize("block", [pytest.param(each, id=each.place) for each in VALUES])
def test_the_chart_takes_the_values_of_every_page(block: Block, tmp_path: Path) -> None:
    values = yaml.safe_load(block.text)
    minimal: dict[str, Any] = {
        "cluster": "c",
        "kafka": {"bootstrapServers": ["kafka:9092"]},
        "resources": [{"resource": "pods"}],
    }
    config = {**minimal, **values.pop("config")}
    config["kafka"] = {**minimal["kafka"], **config["kafka"]}
    assert charttools.rendered(charttools.values_file(tmp_path, config, **values))


def test_prometheus_takes_the_scrape_configs(tmp_path: Path) -> None:
    found = [block for block in all_blocks() if block.verb == "prometheus"]
    assert found
    for block in found:
        (tmp_path / "prometheus.yaml").write_text(block.text)
        done = charttools.run(
            charttools.program("promtool"), "check", "config", tmp_path / "prometheus.yaml"
        )
        assert done.returncode == 0, block.place + done.stdout + done.stderr


def test_the_scrape_config_finds_each_replica_and_has_the_labels_that_alerts_need(
    tmp_path: Path,
) -> None:
    (block,) = [block for block in all_blocks() if block.verb == "prometheus"]
    (job,) = yaml.safe_load(block.text)["scrape_configs"]
    (discovery,) = job["kubernetes_sd_configs"]
    (selector,) = discovery["selectors"]
    label, value = selector["label"].split("=")
    config = {
        "cluster": "c",
        "kafka": {"bootstrapServers": ["kafka:9092"]},
        "resources": [{"resource": "pods"}],
    }
    objects = charttools.rendered(charttools.values_file(tmp_path, config, replicas=3))
    (pod,) = [each["spec"]["template"] for each in objects if each["kind"] == "Deployment"]
    assert pod["metadata"]["labels"][label] == value
    by_target = {rule.get("target_label"): rule for rule in job["relabel_configs"]}
    (port,) = pod["spec"]["containers"][0]["ports"]
    assert by_target.pop(None) == {
        "source_labels": ["__meta_kubernetes_pod_container_port_name"],
        "regex": port["name"],
        "action": "keep",
    }
    assert job["job_name"] == "watchrelay"
    assert {label: rule["source_labels"] for label, rule in by_target.items()} == {
        "namespace": ["__meta_kubernetes_namespace"],
        "pod": ["__meta_kubernetes_pod_name"],
    }


def test_prometheus_takes_every_expression(tmp_path: Path) -> None:
    expressions = [block for block in all_blocks() if block.language == "promql"]
    rules = [
        {"record": f"page:{number}", "expr": block.text} for number, block in enumerate(expressions)
    ]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "docs", "rules": rules}]}))
    done = charttools.run(charttools.program("promtool"), "check", "rules", "--lint=none", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(expressions)} rules found" in done.stdout
