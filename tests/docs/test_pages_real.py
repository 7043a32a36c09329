"""REAL=1: proof that what the pages have an operator do to a cluster works in that order, as
printed."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import charttools, parts
from tests.support.docpages import Block, blocks
from tests.support.realparts import ControlPlane
from tools.docs.pages import ROOT

pytestmark = pytest.mark.real

PAGES = ("docs/install.md", "docs/upgrade.md")
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="module")
def cluster(real_parts: None) -> Iterator[ControlPlane]:
    with ControlPlane(controller_manager=True) as running:
        for plural, kind in {
            "podmonitors": "PodMonitor",
            "prometheusrules": "PrometheusRule",
        }.items():
            _define(running, plural, kind)
        for namespace in ("shop", "pay"):
            running.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        yield running


def _define(cluster: ControlPlane, plural: str, kind: str) -> None:
    group = "monitoring.coreos.com"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    spec = {
        "group": group,
        "scope": "Namespaced",
        "names": {
            "plural": plural,
            "singular": kind.lower(),
            "kind": kind,
            "listKind": f"{kind}List",
        },
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
    }
    metadata = {"name": f"{plural}.{group}"}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": spec,
    }
    cluster.apply(f"{_DEFINITIONS}/{plural}.{group}", definition)
    cluster.wait_for(
        f"{plural} are served", lambda: cluster.request("GET", f"/apis/{group}/v1/{plural}")
    )


def _written(directory: Path, helm: str) -> dict[str, str]:
    """What a reader of the pages has at hand: the checkout, the page's values, helm and kubectl;
    the environment to run in."""
    (directory / "helm").symlink_to(ROOT / "helm")
    (directory / "bin").mkdir()
    (directory / "bin" / "helm").symlink_to(charttools.program(helm))
    (directory / "bin" / "kubectl").symlink_to(parts.program("kubectl"))
    (values,) = [
        block
        for block in blocks("docs/install.md")
        if block.verb == "file" and block.rest == "values.yaml"
    ]
    (directory / "values.yaml").write_text(values.text)
    return {"PATH": f"{directory / 'bin'}:/usr/bin:/bin", "HOME": str(directory)}


def _commands() -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.verb == "cluster"]


@pytest.mark.parametrize("helm", ["helm4"])
def test_install_upgrade_and_roll_back_as_printed(
    cluster: ControlPlane, helm: str, tmp_path: Path
) -> None:
    environment = {**_written(tmp_path, helm), "KUBECONFIG": str(cluster.kubeconfig)}
    assert len(_commands()) >= 3
    for block in _commands():
        done = subprocess.run(
            ["bash", "-c", block.text],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env=environment,
        )
        assert done.returncode == 0, f"{block.place}: {done.stdout}{done.stderr}"
        if "helm install" in block.text:
            assert "relays cluster prod-eu-1" in done.stdout
    history = ["helm", "history", "watchrelay", "--namespace", "watchrelay", "--output", "json"]
    revisions: list[dict[str, Any]] = json.loads(
        subprocess.run(history, capture_output=True, check=True, env=environment).stdout
    )
    assert [each["status"] for each in revisions] == ["superseded", "superseded", "deployed"]
    assert revisions[-1]["description"].lower() == "rollback to 1"
    deployment = cluster.request(
        "GET", "/apis/apps/v1/namespaces/watchrelay/deployments/watchrelay"
    )
    assert deployment["spec"]["strategy"]["type"] == "Recreate"
    for path in (
        "/apis/rbac.authorization.k8s.io/v1/namespaces/shop/roles",
        "/apis/monitoring.coreos.com/v1/namespaces/watchrelay/podmonitors",
    ):
        assert len(cluster.request("GET", path)["items"]) == 1
    answers = {line: _answer(line, environment) for line in _runbook_commands()}
    assert {
        line for line, answer in answers.items() if RUNBOOKS_SAY[line.split(" -")[0]] not in answer
    } == set(), answers


RUNBOOKS_SAY = {"kubectl": "pod/watchrelay-", "kubectl auth can-i watch pods": "yes"}
"""What the commands of the runbooks answer once the page's release is installed, by their first
words."""
INSTALLED = {"NAMESPACE": "watchrelay", "NAME": "watchrelay", "RESOURCE": "pods", "WHERE": "shop"}
"""The values of the placeholders in the commands of the runbooks."""
NO_KUBELET = ("logs", "describe")
"""They ask a node, and there is none here."""


def _runbook_commands() -> list[str]:
    """Whole commands of kubectl in the runbooks, their capitals replaced."""
    found = set()
    for path in sorted((ROOT / "docs" / "runbooks").glob("*.md")):
        for line in re.findall(r"`(kubectl [^`]*[A-Z]{4,}[^`]*)`", path.read_text()):
            if not any(f" {verb} " in line for verb in NO_KUBELET):
                found.add(re.sub(r"\b[A-Z]{4,}\b", lambda word: INSTALLED[word[0]], line))
    assert len(found) == len(RUNBOOKS_SAY)
    return sorted(found)


def _answer(line: str, environment: dict[str, str]) -> str:
    shown = f"{line} -o name" if " get " in line else line
    done = subprocess.run(
        ["bash", "-c", shown], capture_output=True, text=True, check=False, env=environment
    )
    return done.stdout + done.stderr
