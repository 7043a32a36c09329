"""`--output json` of `validate` and `topics`: one object on one line of stdout, with stable keys,
whatever there is to say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from watchrelay.cli import main as cli

CONFIG = """\
cluster: c
kafka: {bootstrapServers: [BROKER], createTopics: false, replicationFactor: 1, minInsyncReplicas: 1}
kubernetes: {kubeconfig: KUBECONFIG}
resources:
  - {resource: pods, namespaces: [shop], labelSelector: app=web}
  - {resource: Widget.example.com}
  - {resource: ev, partitions: 3, excludeNamespaces: [kube-system]}
"""
CHECK = {"level", "subject", "message", "name", "cause", "cure"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "w.yaml"
    file.write_text(
        CONFIG.replace("BROKER", "127.0.0.1:1").replace("KUBECONFIG", str(tmp_path / "absent"))
    )
    return file


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as broker:
        yield broker


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, str]:
    code = cli.main([*words, "--output", "json"])
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    return code, json.loads(out), err


def test_a_good_config_is_one_object(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "validate", "-c", str(file))
    assert (code, err) == (0, "")
    assert out.keys() == {"valid", "config", "cluster", "kafka", "streams", "topics", "warnings"}
    assert (out["valid"], out["config"], out["cluster"]) == (True, str(file), "c")
    assert out["kafka"] == {"bootstrapServers": ["127.0.0.1:1"], "protocol": "PLAINTEXT"}
    assert out["streams"][0] == {
        "stream": "pods@shop", "provisional": False, "entry": 0, "resource": "pods", "namespaces": ["shop"], "excludeNamespaces": [],
        "name": None, "labelSelector": "app=web", "fieldSelector": None, "ignoreChanges": [], "publishWhen": None,
        "topic": "k8s.c.core.pods", "partitions": 1,
    }  # fmt: skip
    assert (out["streams"][1]["provisional"], out["streams"][1]["topic"]) == (True, None)
    assert out["topics"] == [
        {"topic": "k8s.c.core.events", "partitions": 3},
        {"topic": "k8s.c.core.pods", "partitions": 1},
    ]
    (warning,) = [each for each in out["warnings"] if each["path"] == "resources[2].resource"]
    assert (warning["source"], warning["line"]) == (str(file), 7)
    assert "events" in warning["message"]
    assert warning["hint"]


def test_a_bad_config_is_its_problems_with_the_same_lines_on_stderr(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("clustr: c\nresources: []\n")
    code, out, err = run(capsys, "validate", "-c", str(file))
    assert code == 78
    assert out.keys() == {"valid", "problems"}
    assert out["valid"] is False
    assert out["problems"][2] == {
        "message": "unknown key", "hint": "did you mean cluster?", "path": "clustr", "source": str(file), "line": 1,
    }  # fmt: skip
    assert len(err.splitlines()) == len(out["problems"]) == 4


def test_with_connect_each_check_is_an_object_and_the_exit_code_is_that_of_the_worst(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "validate", "--connect", "-c", str(file))
    assert code == 78
    assert all(each.keys() == CHECK | {"accepted"} for each in out["checks"])
    assert {(each["level"], each["subject"]) for each in out["checks"]} == {
        ("error", "kubernetes"),
        ("error", "kafka"),
    }


def test_topics_are_objects_with_what_the_brokers_show(
    file: Path, broker: EmbeddedBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for topic, partitions in (("control", 1), ("signal", 1), ("core.pods", 4)):
        broker.create_topic(f"k8s.c.{topic}", partitions=partitions)
    with EmbeddedCluster() as cluster:
        file.write_text(
            CONFIG.replace("BROKER", broker.bootstrap).replace(
                "KUBECONFIG", str(cluster.kubeconfig)
            )
        )
        code, out, _ = run(capsys, "topics", "-c", str(file))
    assert code == 78
    assert out.keys() == {"topics", "checks"}
    rows = {row["topic"]: row for row in out["topics"]}
    assert list(rows) == ["k8s.c.control", "k8s.c.signal", "k8s.c.core.pods", "k8s.c.core.events"]
    keys = {
        "topic",
        "kind",
        "exists",
        "created",
        "partitions",
        "replicationFactor",
        "level",
        "messages",
    }
    assert all(row.keys() == keys for row in rows.values())
    pods, events = rows["k8s.c.core.pods"], rows["k8s.c.core.events"]
    shown = ("kind", "exists", "created", "partitions", "replicationFactor", "level")
    assert [pods[key] for key in shown] == ["state", True, False, 4, 1, "warning"]
    assert any("set `partitions: 4` in the config" in message for message in pods["messages"])
    assert [events[key] for key in shown] == ["state", None, False, None, None, "error"]
    assert "kafka.createTopics is false" in events["messages"][0]
    assert all(each.keys() == CHECK for each in out["checks"])
    assert "resource Widget.example.com" in {each["subject"] for each in out["checks"]}


def test_an_account_needs_connect_and_must_be_one(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["validate", "-c", str(file), "--as", "relays/eu"]) == 2
    assert "--as needs --connect" in capsys.readouterr().err
    for wrong in (
        "jane",
        "",
        "system:node:x",
        "a/b/c",
        "system:serviceaccount:a",
        "system:serviceaccount:A:b",
    ):
        assert cli.main(["validate", "--connect", "-c", str(file), "--as", wrong]) == 2
        assert (
            "is not a service account: write NAMESPACE/NAME or system:serviceaccount:NAMESPACE:NAME"
            in capsys.readouterr().err
        )
