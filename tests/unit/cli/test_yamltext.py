"""YAML of the commands: text stays text, also for Go's readers, which are kubectl's and Helm's, and for those of YAML 1.2."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.support.daemon import command
from watchrelay.commands.manifests import yaml_of

ODD = [
    "1e3",
    "12e03",
    "1234567e8",
    "0o17",
    "0b1",
    "y",
    "N",
    "on",
    "null",
    "123",
    "1_000",
    "-.5e-3",
    "1.",
    "+1",
    "2026-01-01",
    "~",
    "0x1f",
    ".inf",
]
"""The short hash of a commit may be any of the first three."""


@pytest.mark.parametrize("odd", ODD)
def test_text_that_some_reader_takes_for_another_type_is_in_quotes(odd: str) -> None:
    text = yaml_of(json.dumps({"metadata": {"labels": {"commit": odd, odd: "x"}}, "list": [odd]}).encode())
    assert len(re.findall(rf"[\"']{re.escape(odd)}[\"']", text)) == 3, text
    assert yaml.safe_load(text) == {"metadata": {"labels": {"commit": odd, odd: "x"}}, "list": [odd]}


@pytest.mark.parametrize("plain", ["web", "1e3x", "v1", "10.0.0.1", "5s", "1.2.3", "yes-sir", "e3", "-", "1-2"])
def test_other_text_stays_as_kubectl_prints_it(plain: str) -> None:
    assert f"commit: {plain}\n" in yaml_of(json.dumps({"commit": plain, "z": 1}).encode()) or plain == "-"


def test_numbers_are_numbers() -> None:
    assert yaml_of(b'{"a":1,"b":1.5,"c":true,"d":null}') == "a: 1\nb: 1.5\nc: true\nd: null"


@pytest.mark.parametrize("name", ["1e3", "123", "y", "null"])
def test_rights_name_namespaces_as_text(name: str, tmp_path: Path) -> None:
    config = {"cluster": "c", "kafka": {"bootstrapServers": ["k:1"]}, "resources": [{"resource": "pods", "namespaces": [name]}]}
    file = tmp_path / "w.yaml"
    file.write_text(json.dumps(config))
    printed = command("rbac", "-c", file, "--service-account", f"{name}/{name}").stdout
    assert re.findall(rf"(?:name|namespace): {name}(?![a-z0-9])", printed) == []
    assert len(re.findall(rf"(?:name|namespace): [\"']{name}[\"']", printed)) >= 5
