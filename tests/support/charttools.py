"""CHART and what `tools/charttools.sh` got: both Helms, promtool and the checkers, to run."""

import functools
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "watchrelay"
VALUES = sorted((CHART / "ci").glob("*-values.yaml"))
"""The matrix of values that every check of the chart goes through."""
HELMS = ("helm3", "helm4")


@functools.cache
def tools_directory() -> Path:
    """The directory of this tree's programs, there or not; a change of versions changes its
    name."""
    answer = subprocess.run(
        [str(ROOT / "tools" / "charttools.sh"), "--path"],
        check=True,
        capture_output=True,
        text=True,
    )
    return Path(answer.stdout.strip())


def wanted() -> bool:
    """True when CHART=1 asks for the checks of the chart."""
    return os.environ.get("CHART", "") == "1"


def unavailable() -> str | None:
    """One line that says why the programs cannot be run although they are wanted; None when they
    can."""
    directory = tools_directory()
    if directory.is_dir():
        return None
    return (
        f"the chart's tools are wanted (CHART=1 or REAL=1) but not there (no {directory}): "
        "run `make chart-tools`"
    )


def program(name: str) -> str:
    """The path of a Go program: helm3, helm4, helm-unittest, helm-docs, promtool, prometheus."""
    return str(tools_directory() / "bin" / name)


def python_program(name: str) -> str:
    """The path of a program of the pinned Python requirements: kubernetes-validate, checkov,
    hadolint."""
    return str(tools_directory().with_name(tools_directory().name + ".venv") / "bin" / name)


def run(
    *argv: str | Path, stdin: str | None = None, timeout_s: float = 100.0
) -> subprocess.CompletedProcess[str]:
    """The program's end, whatever its exit code."""
    return subprocess.run(
        [str(each) for each in argv],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=ROOT,
    )


def template(
    values: Path, *arguments: str, helm: str = "helm4", release: str = "rel", namespace: str = "ns"
) -> subprocess.CompletedProcess[str]:
    """What `helm template` says of these values."""
    return run(
        program(helm),
        "template",
        release,
        CHART,
        "--namespace",
        namespace,
        "--values",
        values,
        *arguments,
    )


def rendered(
    values: Path, *arguments: str, helm: str = "helm4", release: str = "rel", namespace: str = "ns"
) -> list[dict[str, Any]]:
    """The objects that the chart makes of these values."""
    done = template(values, *arguments, helm=helm, release=release, namespace=namespace)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def values_file(directory: Path, config: Mapping[str, Any], **more: Any) -> Path:
    """A values file with this config of the daemon."""
    path = directory / "values.yaml"
    path.write_text(yaml.safe_dump({"config": dict(config), **more}, sort_keys=False))
    return path
