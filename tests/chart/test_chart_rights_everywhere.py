"""Every config in the tests, the docs, the examples and deploy/: proof that the chart
grants for it what `watchrelay rbac` prints.

Entries are found by how they look, file by file; `test_chart_rights.py` has the cases that are
there for their own sake.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from tests.chart.test_chart_rights import granted_by
from tests.support.charttools import ROOT, rendered, values_file
from watchrelay.config import Settings
from watchrelay.config.rights import manifests, rights
from watchrelay.config.settings import with_defaults

pytestmark = pytest.mark.usefixtures("tools")

Entry = dict[str, Any]
KEPT = ("resource", "namespaces", "scope", "name", "excludeNamespaces")
"""What decides about rights, and may stand with the rest of its entry."""
OF_CONFIGS = {"relay", "config", "relay_config"}
"""Functions of the tests that take names of resources."""


def _of_python(text: str) -> Iterator[Any]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Dict):
            try:
                yield ast.literal_eval(node)
            except ValueError:  # not a literal
                continue
        elif isinstance(node, ast.Call) and _name(node.func) in OF_CONFIGS:
            yield from (
                {"resource": each.value} for each in node.args if isinstance(each, ast.Constant)
            )
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and "resources:" in node.value
        ):
            yield from _of_yaml(node.value)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _of_yaml(text: str) -> Iterator[Any]:
    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError:
        return
    for document in documents:
        for config in (document, document.get("config")) if isinstance(document, dict) else ():
            defaults = config.get("defaults") if isinstance(config, dict) else None
            listed = config.get("resources") if isinstance(config, dict) else None
            for entry in listed if isinstance(listed, list) else ():
                yield (
                    {**(defaults if isinstance(defaults, dict) else {}), **entry}
                    if isinstance(entry, dict)
                    else {}
                )


def _of_page(text: str) -> Iterator[Any]:
    for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield from _of_yaml(block)


READERS = {
    ".py": (["tests"], _of_python),
    ".yaml": (["deploy", "examples", "helm/watchrelay/ci", "helm/watchrelay/tests"], _of_yaml),
    ".md": (["docs", "deploy", "README.md"], _of_page),
}


def _settings(entries: Iterable[Entry]) -> Settings:
    return with_defaults(
        Settings.model_validate(
            {"cluster": "c", "kafka": {"bootstrapServers": ["k:1"]}, "resources": list(entries)}
        )
    )


def _legal(entry: Entry) -> bool:
    """It may stand in a config, and its rights are known without asking a cluster."""
    try:
        return not rights(_settings([entry]))[1]
    except ValidationError:
        return False


def _found() -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for suffix, (places, reader) in READERS.items():
        for place in map(ROOT.joinpath, places):
            for path in sorted(place.rglob(f"*{suffix}")) if place.is_dir() else [place]:
                entries = [
                    each
                    for each in reader(path.read_text())
                    if isinstance(each, dict) and isinstance(each.get("resource"), str)
                ]
                entries = [{key: each[key] for key in KEPT if key in each} for each in entries]
                known = [
                    each
                    for index, each in enumerate(entries)
                    if each not in entries[:index] and _legal(each)
                ]
                if known:
                    found[str(path.relative_to(ROOT))] = known
    return found


def test_for_every_config_of_this_tree_the_chart_grants_what_rbac_prints(tmp_path: Path) -> None:
    found = _found()
    assert len(found) > 40, found.keys()
    differ = []
    seen: set[str] = set()
    for path, entries in found.items():
        if (key := repr(sorted(map(repr, entries)))) in seen:
            continue
        seen.add(key)
        printed = manifests(rights(_settings(entries))[0], namespace="ns", name="rel-watchrelay")
        values = values_file(
            tmp_path, {"cluster": "c", "kafka": {"bootstrapServers": ["k:1"]}, "resources": entries}
        )
        if granted_by(rendered(values)) != granted_by(printed):
            differ.append(path)
    assert differ == []
