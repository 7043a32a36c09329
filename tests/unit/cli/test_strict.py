"""`validate --strict`: names of warnings, and how one is accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from watchrelay.admin.preflight import CheckResult
from watchrelay.cli import main as cli
from watchrelay.config.checks import CHECKED, WARNINGS
from watchrelay.kafka.topic_settings import SETTINGS

_GOOD = {
    "cluster": "c",
    "kafka": {"bootstrapServers": ["k:9092"], "replicationFactor": 3},
    "resources": [{"resource": "pods"}],
}


@pytest.fixture
def validated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Validates a config of `_GOOD` and these keys: exit code and output."""

    def run(*arguments: str, **keys: Any) -> tuple[int, str]:
        file = tmp_path / "w.yaml"
        file.write_text(yaml.safe_dump({**_GOOD, **keys}))
        code = cli.main(["validate", "-c", str(file), *arguments])
        return code, capsys.readouterr().out

    return run


def names(output: str) -> list[str]:
    return [
        line.rpartition("[")[2].rstrip("]")
        for line in output.splitlines()
        if line.startswith(("warning: ", "accepted: "))
    ]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("one-replica", {"kafka": {"bootstrapServers": ["k:9092"], "replicationFactor": 1, "minInsyncReplicas": 1}}),
        ("all-namespaces", {"resources": [{"resource": "pods", "namespaces": []}]}),
        ("events-twice", {"resources": [{"resource": "events"}, {"resource": "events.events.k8s.io"}]}),
        ("events-twice", {"resources": [{"resource": "*.events.k8s.io"}, {"resource": "events"}]}),
        ("resource-unknown", {"resources": [{"resource": "deploymentz.apps"}]}),
        ("not-built-in", {"resources": [{"resource": "widgets"}]}),
        ("version-unknown", {"resources": [{"resource": "deployments.apps/v7"}]}),
        ("cluster-scoped", {"resources": [{"resource": "nodes", "namespaces": ["a"]}]}),
        ("secret-data", {"resources": [{"resource": "secrets", "includeSecretData": True}]}),
        ("accepted-unknown", {"acceptWarnings": ["one-replika"]}),
        ("accepted-unknown", {"acceptWarnings": ["topic-abesnt"]}),
        ("accepted-unknown", {"acceptWarnings": ["stream-"]}),
    ],
)  # fmt: skip
def test_a_warning_has_a_name_and_ends_a_strict_validation_until_it_is_accepted(
    validated: Any, name: str, keys: dict[str, Any]
) -> None:
    code, output = validated(**keys)
    assert (code, set(names(output)) - {"resource-ambiguous"}) == (0, {name})
    assert validated("--strict", **keys)[0] == 78
    accepted = [*keys.pop("acceptWarnings", []), name, "resource-ambiguous"]
    code, output = validated("--strict", acceptWarnings=accepted, **keys)
    assert code == 0, output
    assert f"[{name}]" in output
    assert "\nwarning: " not in output


def test_a_config_without_a_warning_passes_a_strict_validation(validated: Any) -> None:
    assert validated("--strict")[0] == 0


def test_events_of_different_namespaces_are_not_published_twice(validated: Any) -> None:
    entries = [
        {"resource": "events", "namespaces": ["a"]},
        {"resource": "events.events.k8s.io", "namespaces": ["b"]},
    ]
    assert "events-twice" not in names(validated(resources=entries)[1])
    entries[1]["namespaces"] = ["a", "b"]
    assert names(validated(resources=entries)[1]).count("events-twice") == 1


def test_events_in_three_entries_warn_once(validated: Any) -> None:
    entries = [
        {"resource": "events"},
        {"resource": "events.events.k8s.io", "namespaces": ["a"]},
        {"resource": "events.events.k8s.io", "namespaces": ["b"], "id": "more"},
    ]
    assert names(validated(resources=entries)[1]).count("events-twice") == 1


def test_the_name_of_a_warning_is_in_json_with_whether_it_is_accepted(validated: Any) -> None:
    entry = [{"resource": "pods", "namespaces": []}]
    code, output = validated("--strict", "--output", "json", resources=entry)
    (warning,) = json.loads(output)["warnings"]
    assert (code, warning["name"], warning["accepted"]) == (78, "all-namespaces", False)
    code, output = validated(
        "--strict", "--output", "json", resources=entry, acceptWarnings=["all-namespaces"]
    )
    (warning,) = json.loads(output)["warnings"]
    assert (code, warning["name"], warning["accepted"]) == (0, "all-namespaces", True)


def test_what_a_check_warns_of_has_a_name_that_acceptwarnings_may_have() -> None:
    absent = CheckResult("topic k8s.c.control", "does not exist yet", "warning", about="absent")
    line = "topic k8s.c.control: does not exist yet [topic-absent]"
    assert absent.with_name(()) == f"warning: {line}"
    assert absent.with_name({"topic-absent"}) == f"accepted: {line}"
    assert absent.name in CHECKED
    good = CheckResult("topic a", "1 partition")
    assert (good.name, good.with_name(())) == ("", "ok: topic a: 1 partition")
    assert not set(WARNINGS) & set(CHECKED)
    shape = {"topic-absent", "topic-config", "topic-replication.factor"}
    of_topics = {name for name in CHECKED if name.startswith("topic-")}
    assert of_topics == shape | {f"topic-{each.name}" for each in SETTINGS}
