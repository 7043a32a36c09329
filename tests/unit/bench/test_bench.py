"""The benchmarks' command, and the page made of their figures."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bench.__main__ import PARTS, main
from tests.bench.table import Row, as_text, page

ROOT = Path(__file__).parents[3]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """Runs the command: its exit code."""

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        try:
            return main()
        except SystemExit as end:
            return int(end.code or 0)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_help_names_every_part(
    bench: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    code = bench("--help")
    words = capsys.readouterr().out.replace(",", " ").replace(";", " ").split()
    assert (code, [part for part in PARTS if part not in words]) == (0, [])


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["flood", "floood"], "no such part: floood"),
        (["flood", "--rounds", "0"], "--rounds must be at least 1"),
        (["flood", "--before", "no-such-revision"], "no tree of no-such-revision"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    arguments: list[str],
    why: str,
    bench: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert why in printed.err


def test_goals_missed_and_figures_not_measured_are_shown() -> None:
    rows = [
        Row.of("fast: ratio", [1.3, 0.9, 1.2], "", goal=1.0, headline=True),
        Row.of("fast: itself", [40.0], "us"),
        Row("other: ratio", missing="no Go", goal=1.0, headline=True),
        Row.of("many", [2.0, 4.0], "1/s", goal=3.0, at_least=True),
    ]
    missed = "| fast: ratio | 1.20 | 0.90 - 1.30 | <= 1.00 | NO |"
    absent = "| other: ratio | not measured: no Go |  | <= 1.00 |  |"
    part = {"heading": "Fast", "measured": "today", "rows": [row.as_json() for row in rows]}
    goals, _, tables = page({"fast": part}).partition("## How to read")
    assert missed in goals
    assert absent in goals
    assert "itself" not in goals
    assert [missed, absent] == [line for line in tables.splitlines() if line in (missed, absent)]
    assert "| many | 3.00 1/s | 2.00 - 4.00 | >= 3.00 | yes |" in tables
    assert "not measured: no Go" in as_text(rows)


def test_a_go_that_builds_nothing_is_explained_in_the_last_line(tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.write_text(
        '#!/bin/sh\n[ "$1" = env ] && echo go1.99.0 && exit\necho no module >&2\nexit 1\n'
    )
    go.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "WATCHRELAY_TOOLS": str(tmp_path)}
    script = ROOT / "tests" / "bench" / "build.sh"
    done = subprocess.run(
        [script, "goraw"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == "goraw: it was not built: no module"
