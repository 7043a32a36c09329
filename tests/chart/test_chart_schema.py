"""The config model, values.yaml, the generated files: proof that they say the same."""

import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.support.charttools import CHART, ROOT, VALUES
from tools.chart.generate import chart_files, comments, config_schema, values_schema
from watchrelay.config.settings import json_schema


def test_what_is_generated_without_tools_is_committed() -> None:
    for path, text in chart_files().items():
        assert path.read_text() == text, (
            f"{path.relative_to(ROOT)} differs from its source: run `make generate`"
        )


@pytest.mark.usefixtures("tools")
def test_what_is_generated_with_helm_and_helm_docs_is_committed() -> None:
    argv = [sys.executable, "-m", "tools.chart.generate", "--check"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_config_of_the_values_is_that_of_the_daemon() -> None:
    daemon = json_schema()
    schema, definitions = config_schema()
    assert schema["properties"] == daemon["properties"]
    assert definitions == daemon["$defs"]
    assert schema["required"] == daemon["required"]
    whole = values_schema()
    assert whole["properties"]["config"]["properties"] == schema["properties"]
    assert definitions.items() <= whole["$defs"].items()


def _keys(node: Any, at: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    found = set()
    for key, value in node.items():
        found.add((*at, key))
        if isinstance(value, dict) and value and (*at, key) not in FREE:
            found |= _keys(value, (*at, key))
    return found


FREE = {("config",), ("podSecurityContext",), ("securityContext",), ("resources",), ("dashboards", "labels"),
        ("probes", "startup"), ("probes", "liveness"), ("probes", "readiness")}  # fmt: skip
"""Sections of values.yaml whose keys are Kubernetes' or the operator's, not the chart's."""


def _schema_keys(
    schema: dict[str, Any], node: dict[str, Any], at: tuple[str, ...] = ()
) -> set[tuple[str, ...]]:
    found = set()
    for key, value in node.get("properties", {}).items():
        path = (*at, key)
        section = (
            {**schema["$defs"][value["$ref"].rpartition("/")[2]], **value}
            if "$ref" in value
            else value
        )
        found.add(path)
        if (
            path not in FREE
            and section.get("additionalProperties") is False
            and path not in CREDENTIALS
        ):
            found |= _schema_keys(schema, section, path)
    return found


CREDENTIALS = {("kafka", "auth", "keys"), ("kafka", "auth", "inline")}


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = values_schema()
    assert _keys(values) == _schema_keys(schema, schema) - {("global",)}


def _set_by_tests() -> set[tuple[str, ...]]:
    """The values that a release of the matrix or a unit test of the chart sets."""
    found = set[tuple[str, ...]]()
    for values in VALUES:
        found |= _keys(yaml.safe_load(values.read_text()))
    for suite in (CHART / "tests").glob("*_test.yaml"):
        read = yaml.safe_load(suite.read_text())
        for given in (read.get("set", {}), *(test.get("set", {}) for test in read["tests"])):
            for dotted, value in given.items():
                path = tuple(dotted.split("."))
                found |= {path[:end] for end in range(1, len(path) + 1)}
                found |= (
                    _keys(value, path) if isinstance(value, dict) and path not in FREE else set()
                )
    return found


def test_every_value_is_set_by_some_test_of_the_chart() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    leaves = {
        path
        for path in _keys(values)
        if not any(other[: len(path)] == path and other != path for other in _keys(values))
    }
    assert leaves - _set_by_tests() == set()


def test_every_value_is_described() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    described = set(comments((CHART / "values.yaml").read_text()))
    leaves = {
        path
        for path in _keys(values)
        if not any(other[: len(path)] == path and other != path for other in _keys(values))
    }
    inside = {
        path for path in leaves if any(path[: len(free)] == free and path != free for free in FREE)
    }
    assert {path for path in leaves - inside if path not in described} == set()
