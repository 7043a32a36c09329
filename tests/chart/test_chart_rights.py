"""Configs: proof that the chart grants what `watchrelay rbac` prints, and refuses what it
refuses."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.charttools import HELMS, VALUES, rendered, template, values_file
from tests.support.daemon import command

pytestmark = pytest.mark.usefixtures("tools")

Entry = dict[str, Any]
TABLE: dict[str, list[Entry]] = {
    "one resource": [{"resource": "pods"}],
    "every way to name": [
        {"resource": name}
        for name in ("po", "Deployment", "svc", "cronjob", "sts.apps", "Ingress.networking.k8s.io")
    ],
    "versions": [
        {"resource": "horizontalpodautoscalers.autoscaling/v1"},
        {"resource": "deployments.v1.apps"},
        {"resource": "leasecandidates/v1beta1"},
    ],
    "names that several groups serve": [
        {"resource": "events"},
        {"resource": "events.events.k8s.io"},
        {"resource": "ev", "id": "again", "topic": "t"},
    ],
    "a CRD and a wildcard": [
        {"resource": "widgets.example.com/v1"},
        {"resource": "*.x.io"},
        {"resource": "gadgets.v1beta2.example.com"},
    ],
    "a wildcard over a built-in group and one of it": [{"resource": "*.apps"}, {"resource": "pods"}],
    "a wildcard and its group in a namespace": [
        {"resource": "*.x.io"},
        {"resource": "things.x.io", "namespaces": ["a"], "id": "t", "topic": "t"},
    ],
    "namespaces": [{"resource": "pods", "namespaces": ["shop", "pay"]}, {"resource": "jobs", "namespaces": ["shop"]}],
    "cluster-wide for some namespaces": [{"resource": "cm", "namespaces": ["shop"], "scope": "cluster"}],
    "both": [
        {"resource": "pods", "namespaces": ["shop", "pay"]},
        {"resource": "cm"},
        {"resource": "cm", "namespaces": ["shop"], "id": "again", "topic": "t"},
        {"resource": "nodes"},
    ],
    "single objects": [
        {"resource": "cm", "name": "b", "namespaces": ["shop"]},
        {"resource": "cm", "name": "a", "namespaces": ["shop"], "id": "a"},
        {"resource": "secrets", "name": "s", "namespaces": ["shop"]},
        {"resource": "svc", "name": "a", "namespaces": ["shop"]},
        {"resource": "pods", "name": "x", "id": "one", "topic": "t"},
        {"resource": "pods"},
    ],
    "a name here, all there": [
        {"resource": "cm", "name": "a", "namespaces": ["shop"]},
        {"resource": "cm", "namespaces": ["pay"], "id": "rest"},
        {"resource": "namespaces", "name": "shop"},
    ],
    "excluded namespaces": [{"resource": "pods", "excludeNamespaces": ["kube-system"]}],
    "many of a group, unsorted": [
        {"resource": name}
        for name in ("svc", "pods", "ep", "cm", "rc", "nodes", "replicasets", "ds", "sa")
    ],
    "prefixes of one another": [{"resource": name} for name in ("a-b.x.io", "a.x.io", "ab.x.io", "a.x.io.example", "a.x-y.io")],
    "names that are prefixes": [
        {"resource": "cm", "name": "a", "namespaces": ["shop"], "id": "1"},
        {"resource": "sa", "name": "a-b", "namespaces": ["shop"], "id": "2"},
        {"resource": "svc", "name": "a.b", "namespaces": ["shop"], "id": "3"},
    ],
}  # fmt: skip
DEFAULTS: dict[str, dict[str, Any]] = {
    "namespaces": {"namespaces": ["shop", "pay"]},
    "cluster scope": {"namespaces": ["shop"], "scope": "cluster"},
}
REFUSED: dict[str, tuple[Entry, str]] = {
    "no group": ({"resource": "widgets"}, "is not built into Kubernetes"),
    "another version": ({"resource": "nodes/v9"}, "is not built into Kubernetes"),
    "a Kind": ({"resource": "Widget.example.com"}, "is a Kind"),
    "namespaces of nodes": ({"resource": "no", "namespaces": ["a"]}, "nodes is cluster-scoped"),
}


def _config(resources: list[Entry], **more: Any) -> dict[str, Any]:
    return {"cluster": "c", "kafka": {"bootstrapServers": ["k:1"]}, "resources": resources, **more}


def granted_by(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The roles and bindings, without labels and in the order of their names."""
    roles = [each for each in objects if each["apiVersion"].startswith("rbac.")]
    plain = [
        {
            **each,
            "metadata": {key: value for key, value in each["metadata"].items() if key != "labels"},
        }
        for each in roles
    ]
    return sorted(
        plain,
        key=lambda each: (
            each["kind"],
            each["metadata"].get("namespace", ""),
            each["metadata"]["name"],
        ),
    )


def _printed(config: dict[str, Any], directory: Path, account: str) -> list[dict[str, Any]]:
    file = directory / "watchrelay.yaml"
    file.write_text(yaml.safe_dump(config))
    done = command("rbac", "-c", file, "--service-account", account)
    assert done.code == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("what", TABLE)
def test_the_chart_grants_what_rbac_prints(what: str, tmp_path: Path) -> None:
    config = _config(TABLE[what])
    printed = granted_by(_printed(config, tmp_path, "ns/rel-watchrelay"))
    assert printed
    for helm in HELMS:
        assert granted_by(rendered(values_file(tmp_path, config), helm=helm)) == printed


@pytest.mark.parametrize("what", DEFAULTS)
def test_the_chart_knows_the_defaults_of_entries(what: str, tmp_path: Path) -> None:
    config = _config(
        [
            {"resource": "pods"},
            {"resource": "cm", "namespaces": ["own"]},
            {"resource": "nodes", "namespaces": []},
        ],
        defaults=DEFAULTS[what],
    )
    printed = granted_by(_printed(config, tmp_path, "ns/rel-watchrelay"))
    assert granted_by(rendered(values_file(tmp_path, config))) == printed


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_so_does_each_release_of_the_matrix(values: Path, tmp_path: Path) -> None:
    objects = rendered(values)
    config = yaml.safe_load(
        next(
            each["data"]["config.yaml"] for each in objects if "config.yaml" in each.get("data", {})
        )
    )
    account = next(
        each["spec"]["template"]["spec"]["serviceAccountName"]
        for each in objects
        if each["kind"] == "Deployment"
    )
    assert granted_by(objects) == granted_by(_printed(config, tmp_path, f"ns/{account}"))


@pytest.mark.parametrize("what", REFUSED)
def test_the_chart_refuses_what_rbac_refuses_for_the_same_reason(what: str, tmp_path: Path) -> None:
    entry, reason = REFUSED[what]
    config = _config([{"resource": "pods"}, entry])
    file = tmp_path / "watchrelay.yaml"
    file.write_text(yaml.safe_dump(config))
    printed = command("rbac", "-c", file)
    assert printed.code == 78
    assert reason in printed.stderr
    refused = template(values_file(tmp_path, config))
    assert refused.returncode != 0
    assert reason in refused.stderr
    assert "config.resources[1]" in refused.stderr


def test_no_right_but_list_and_watch_is_anywhere_in_the_chart() -> None:
    for values in VALUES:
        for role in rendered(values):
            for rule in role.get("rules", ()):
                assert rule["verbs"] == ["list", "watch"], role


def test_no_rights_go_to_the_account_of_all_pods_that_name_none(tmp_path: Path) -> None:
    config = _config([{"resource": "pods"}])
    refused = template(values_file(tmp_path, config, serviceAccount={"create": False}))
    assert "serviceAccount.create is false without serviceAccount.name" in refused.stderr
    named = {"create": False, "name": "default"}
    objects = rendered(values_file(tmp_path, config, serviceAccount=named))
    bound = [each["subjects"] for each in objects if each["kind"] == "ClusterRoleBinding"]
    assert bound == [[{"kind": "ServiceAccount", "name": "default", "namespace": "ns"}]]
