"""Writes what the chart, the dashboards and the manifests take from one source, or checks that
nothing drifted.

    python -m tools.chart.generate             writes
    python -m tools.chart.generate --check     changes nothing, names what differs, exits 1

| file | source |
|---|---|
| helm/watchrelay/values.schema.json | the config model, values.schema.base.yaml, the comments of values.yaml, the names of the alerts |
| helm/watchrelay/files/relay.json | the table of built-in resources, the keys that need a restart |
| helm/watchrelay/files/dashboards/*.json | tools/dashboards |
| helm/watchrelay/README.md | values.yaml, README.md.gotmpl (helm-docs) |
| deploy/base/*.yaml | the chart with ci/default-values.yaml (helm) |
| deploy/example/rbac.yaml, deploy/strimzi/topics.yaml | deploy/example/watchrelay.yaml |
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tools.dashboards.build import dashboards
from watchrelay.config import load_settings
from watchrelay.config.settings import json_schema
from watchrelay.config.streams import plan
from watchrelay.kafka.topic_config import TopicSpec
from watchrelay.model.builtin import BUILTIN
from watchrelay.plan.kafka import control_spec, signal_spec

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "watchrelay"
DEPLOY = ROOT / "deploy"
BASE = DEPLOY / "base"
MADE = "# Made by tools/chart/generate.py.\n"


def tools_directory() -> Path:
    """Where tools/charttools.sh puts the programs."""
    answer = subprocess.run(
        [str(ROOT / "tools" / "charttools.sh"), "--path"],
        check=True,
        capture_output=True,
        text=True,
    )
    return Path(answer.stdout.strip())


def config_schema() -> tuple[dict[str, Any], dict[str, Any]]:
    """The daemon's schema: that of `config`, and its definitions."""
    schema = json_schema()
    definitions = schema.pop("$defs")
    del schema["$schema"], schema["title"]
    return schema, definitions


def comments(text: str) -> dict[tuple[str, ...], str]:
    """The `# --` comment above each key of values.yaml, by the key's path."""
    found: dict[tuple[str, ...], str] = {}
    above: list[str] = []
    path: list[str] = []
    for line in text.splitlines():
        comment = re.match(r"\s*# (-- )?(.*)", line)
        key = re.match(r"( *)([A-Za-z]+):", line)
        if comment:
            above = [comment[2]] if comment[1] else [*above, comment[2]] if above else []
        elif key:
            path = [*path[: len(key[1]) // 2], key[2]]
            if above:
                found[tuple(path)] = " ".join(above)
            above = []
        else:
            above = []
    return found


def rules() -> dict[str, Any]:
    """The alert rules."""
    found: dict[str, Any] = yaml.safe_load(
        (CHART / "files" / "rules" / "watchrelay.yaml").read_text()
    )
    return found


def values_schema() -> dict[str, Any]:
    """The schema of values.yaml."""
    schema: dict[str, Any] = yaml.safe_load((CHART / "values.schema.base.yaml").read_text())
    config, definitions = config_schema()
    schema["properties"]["config"] = config
    schema["$defs"] |= definitions
    schema["$defs"]["alert"] = {
        "enum": [rule["alert"] for group in rules()["groups"] for rule in group["rules"]]
    }
    for path, comment in comments((CHART / "values.yaml").read_text()).items():
        section = schema
        for key in path:
            if section.get("$ref") == "#/$defs/monitor":
                break  # both monitors share one definition: its keys are described in values.yaml
            section = section["properties"][key]
        else:
            section["description"] = comment
    return schema


def relay_json() -> dict[str, Any]:
    """What the templates must know of the daemon."""
    resources = []
    for entry in BUILTIN:
        resource = entry.resource
        names = [resource.plural, entry.singular, *entry.short_names]
        resources.append(
            {
                "group": resource.group,
                "version": resource.version,
                "plural": resource.plural,
                "namespaced": resource.namespaced,
                "names": list(dict.fromkeys(names)),
            }
        )
    return {"restartKeys": restart_keys(), "resources": resources}


def restart_keys() -> list[str]:
    """The keys that a running daemon cannot take; all of them ("*") while it takes none."""
    if importlib.util.find_spec("watchrelay.config.edits") is None:
        return ["*"]
    edits = importlib.import_module("watchrelay.config.edits")
    return [".".join(path) for path in edits.COLD]


def _relay_text(value: dict[str, Any]) -> str:
    rows = ",\n".join("    " + json.dumps(row) for row in value["resources"])
    return (
        f'{{\n  "restartKeys": {json.dumps(value["restartKeys"])},\n  "resources": '
        f"[\n{rows}\n  ]\n}}\n"
    )


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def chart_files() -> dict[Path, str]:
    """The files of the chart that are made without any tool."""
    made = {
        CHART / "values.schema.json": _json(values_schema()),
        CHART / "files" / "relay.json": _relay_text(relay_json()),
    }
    return made | {
        CHART / "files" / "dashboards" / f"{name}.json": _json(board)
        for name, board in dashboards().items()
    }


def readme() -> str:
    """The chart's README, as helm-docs makes it of a copy of the chart."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "watchrelay"
        copy.mkdir()
        for name in ("Chart.yaml", "values.yaml", "README.md.gotmpl"):
            shutil.copy(CHART / name, copy / name)
        argv = [
            str(tools_directory() / "bin" / "helm-docs"),
            "-s",
            "file",
            "--skip-version-footer",
            "-c",
            directory,
            "-l",
            "warning",
        ]
        subprocess.run(argv, check=True, capture_output=True, text=True)
        return (copy / "README.md").read_text()


def manifests() -> Iterator[tuple[str, str]]:
    """The plain manifests: file name and text, the kustomization included. Config and rights are
    the overlay's."""
    argv = [
        str(tools_directory() / "bin" / "helm4"),
        "template",
        "watchrelay",
        str(CHART),
        "--namespace",
        "watchrelay",
    ]
    argv += ["--values", str(CHART / "ci" / "default-values.yaml")]
    rendered = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    objects = {each["kind"]: each for each in yaml.safe_load_all(rendered) if each}
    for kind in ("Deployment", "Service"):
        manifest = objects[kind]
        for key in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
            del manifest["metadata"]["labels"][key]
        if kind == "Deployment":
            del manifest["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        yield f"{kind.lower()}.yaml", f"{MADE}{_yaml(manifest)}"
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "watchrelay",
    }
    yield (
        "kustomization.yaml",
        MADE + _yaml({**kustomization, "resources": ["deployment.yaml", "service.yaml"]}),
    )


def example_rights() -> str:
    """What `watchrelay rbac` prints for the example's config."""
    argv = [
        sys.executable,
        "-m",
        "watchrelay",
        "rbac",
        "-c",
        str(DEPLOY / "example" / "watchrelay.yaml"),
    ]
    return subprocess.run(argv, check=True, capture_output=True, text=True, cwd=ROOT).stdout


def strimzi_topics() -> str:
    """The topics of the example's config as KafkaTopics, with the settings that the relay would
    give them."""
    settings = load_settings(str(DEPLOY / "example" / "watchrelay.yaml"), environ={})
    specs = [control_spec(settings), signal_spec(settings)]
    for stream in plan(settings):
        assert stream.topic, "the example names resources that are built in"
        specs.append(
            TopicSpec(
                name=stream.topic,
                partitions=stream.partitions,
                replication_factor=settings.kafka.replication_factor,
                min_insync_replicas=settings.kafka.min_insync_replicas,
                snapshot_interval_s=stream.entry.snapshot_interval_s,
            )
        )
    return MADE + "---\n".join(_yaml(_kafka_topic(spec)) for spec in specs)


def _kafka_topic(spec: TopicSpec) -> dict[str, Any]:
    metadata = {"name": spec.name, "namespace": "kafka", "labels": {"strimzi.io/cluster": "kafka"}}
    body = {
        "partitions": spec.partitions,
        "replicas": spec.replication_factor,
        "config": spec.configs(),
    }
    return {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "KafkaTopic",
        "metadata": metadata,
        "spec": body,
    }


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, sort_keys=False, width=140)


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    if not check:
        for path, text in chart_files().items():  # the README and the manifests are made of these
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    wanted = {
        **chart_files(),
        CHART / "README.md": readme(),
        **{BASE / name: text for name, text in manifests()},
    }
    wanted |= {
        DEPLOY / "example" / "rbac.yaml": example_rights(),
        DEPLOY / "strimzi" / "topics.yaml": strimzi_topics(),
    }
    drifted = [
        path for path, text in wanted.items() if not path.exists() or path.read_text() != text
    ]
    stray = [
        path
        for place in (BASE, CHART / "files" / "dashboards")
        for path in sorted(place.glob("*"))
        if path not in wanted
    ]
    if not check:
        for path in drifted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path])
        for path in stray:
            path.unlink()
    for path in [*drifted, *stray]:
        print(f"{'differs from its source' if check else 'written'}: {path.relative_to(ROOT)}")
    if check and (drifted or stray):
        print("run `make generate`, look at the difference, commit it")
    return 1 if check and (drifted or stray) else 0


if __name__ == "__main__":
    sys.exit(main())
