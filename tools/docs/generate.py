"""Writes the reference pages, or checks that nothing drifted.

    python -m tools.docs.generate             writes
    python -m tools.docs.generate --check     changes nothing, names what differs, exits 1

| file | source |
|---|---|
| docs/reference/config.md | the settings model, what is hot, what comes later |
| docs/reference/cli.md, exit-codes.md | the command line |
| docs/reference/metrics.md | the metric catalogue |
| docs/reference/alerts.md | helm/watchrelay/files/rules/watchrelay.yaml |
| docs/reference/logs.md | the calls of the loggers in watchrelay/ |
| docs/reference/headers.md | the headers' schemas |
| docs/reference/topics.md | the rules for topics |
| docs/performance.md | tests/bench/measured.json, in which `make bench` keeps its figures |
| docs/capacity.md, comparison.md, decisions.md and README.md, at marks | docs/performance.md |
| docs/images/rooms.svg | the import contracts in pyproject.toml |
| docs/how-the-watch-works.md, at its marks | the watch machine |
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

from tests.bench.table import MEASURED, page
from tools.docs import reference
from tools.docs.capacity import with_figures
from tools.docs.loglines import found
from tools.docs.machine import with_machine
from tools.docs.pages import DOCS, ROOT
from tools.docs.rooms import drawing

RULES = ROOT / "helm" / "watchrelay" / "files" / "rules" / "watchrelay.yaml"
REFERENCE = DOCS / "reference"


def made() -> dict[Path, str]:
    """Every generated file with its text."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text()
        for path in (ROOT / "watchrelay").rglob("*.py")
    }
    performance = page(json.loads(MEASURED.read_text()))
    measured = {
        path: with_figures(path.read_text(), performance)
        for path in (
            DOCS / "capacity.md",
            DOCS / "comparison.md",
            DOCS / "decisions.md",
            ROOT / "README.md",
        )
    }
    watch = DOCS / "how-the-watch-works.md"
    return {
        watch: with_machine(watch.read_text()),
        DOCS / "performance.md": performance,
        REFERENCE / "config.md": reference.config(),
        REFERENCE / "cli.md": reference.cli(),
        REFERENCE / "exit-codes.md": reference.exit_codes(),
        REFERENCE / "metrics.md": reference.metrics(),
        REFERENCE / "alerts.md": reference.alerts(yaml.safe_load(RULES.read_text())),
        REFERENCE / "logs.md": reference.logs(found(modules)),
        REFERENCE / "headers.md": reference.headers(),
        REFERENCE / "topics.md": reference.topics(),
        DOCS / "images" / "rooms.svg": drawing((ROOT / "pyproject.toml").read_text()),
        **measured,
    }


def drifted() -> list[str]:
    """The generated files that are not what they would be now."""
    return [
        str(path.relative_to(ROOT))
        for path, text in made().items()
        if not path.is_file() or path.read_text() != text
    ]


def main() -> int:
    """Exit code 1 when checking found a difference."""
    if "--check" in sys.argv[1:]:
        for name in (stale := drifted()):
            print(f"{name}: run `make generate-docs`", file=sys.stderr)
        return 1 if stale else 0
    for path, text in made().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
