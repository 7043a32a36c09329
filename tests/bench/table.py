"""The rows of the benchmarks' tables; the file that keeps them, and the page made of it.

Input: measured figures. Output: a table for the terminal; `measured.json` beside this file, a part
of the benchmarks each time it is recorded; docs/performance.md, for `tools.docs.generate`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import sys
import sysconfig
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

MEASURED = Path(__file__).with_name("measured.json")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure.

    `value` is None where `missing` says why; `span` is the least and the most of several
    runs; `goal` is a bound, the least that is wanted if `at_least` and else the most; `headline`:
    it is in the table of goals.
    """

    what: str
    value: float | None = None
    unit: str = ""
    goal: float | None = None
    span: Sequence[float] = ()
    at_least: bool = False
    headline: bool = False
    missing: str = ""

    @classmethod
    def of(cls, what: str, runs: Sequence[float], unit: str, **more: Any) -> Self:
        """The median of `runs`."""
        span = (min(runs), max(runs)) if len(runs) > 1 else ()
        return cls(what, statistics.median(runs), unit, span=span, **more)

    @property
    def met(self) -> str:
        """Whether the goal is reached."""
        if self.goal is None or self.value is None:
            return ""
        reached = self.value >= self.goal if self.at_least else self.value <= self.goal
        return "yes" if reached else "NO"

    def as_json(self) -> dict[str, Any]:
        """The fields that are not as they are by default, floats to six digits."""
        unlike = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        }
        rounded: dict[str, Any] = json.loads(
            json.dumps(unlike), parse_float=lambda text: float(f"{float(text):.6g}")
        )
        return rounded


def figure(value: float) -> str:
    """Three significant digits, without an exponent; of a count all."""
    if isinstance(value, int):
        return f"{value:,}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def cells(row: Row) -> list[str]:
    """One row of either table."""
    measured = (
        f"not measured: {row.missing}"
        if row.value is None
        else f"{figure(row.value)} {row.unit}".strip()
    )
    goal = "" if row.goal is None else f"{'>=' if row.at_least else '<='} {figure(row.goal)}"
    return [row.what, measured, " - ".join(map(figure, row.span)), goal, row.met]


HEAD = ["figure", "measured", "range of runs", "goal", "met"]


def as_text(rows: Sequence[Row]) -> str:
    """For a terminal."""
    lines = [HEAD, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _markdown(rows: Iterable[Sequence[str]]) -> str:
    lines = [HEAD, ["---"] * len(HEAD), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def record(
    part: str, heading: str, rows: Sequence[Row], *, order: Sequence[str], how: Sequence[str]
) -> None:
    """Replace one part of the file."""
    kept: dict[str, Any] = json.loads(MEASURED.read_text()) if MEASURED.exists() else {}
    today = time.strftime("%Y-%m-%d", time.gmtime())
    machine = [_interpreter(), f"{os.cpu_count()} cores of {_processor()}"]
    kept[part] = {
        "heading": heading,
        "measured": ", ".join([today, *how, *machine]),
        "rows": [row.as_json() for row in rows],
    }
    ordered = {name: kept[name] for name in order if name in kept}
    MEASURED.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def page(measured: Mapping[str, Mapping[str, Any]]) -> str:
    """docs/performance.md, of what the file holds."""
    parts = {name: [Row(**row) for row in part["rows"]] for name, part in measured.items()}
    goals = [cells(row) for rows in parts.values() for row in rows if row.headline]
    sections = [
        f"## {part['heading']}\n\n{part['measured']}.\n\n{_markdown(map(cells, parts[name]))}\n"
        for name, part in measured.items()
    ]
    names = ", ".join(f"`{name}`" for name in measured)
    head = _HEAD.format(parts=names, goals=_markdown([*goals, *_SHOWN_BY_TESTS]))
    return "\n".join([head, *sections])


def _interpreter() -> str:
    """Its version and build: Debian's is optimized, and keeps no word of that in its config."""
    version = f"Python {platform.python_version()}"
    if sys.base_prefix == "/usr" and Path("/etc/debian_version").exists():
        return f"{version} of Debian"
    arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    optimized = "--enable-optimizations" in arguments
    return f"{version} ({'with' if optimized else 'without'} profile-guided optimization)"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.machine()


_SHOWN_BY_TESTS = [
    [
        "records twice after the connection was cut 100 times under load, one life",
        "a test: `tests/integration/test_producer_real.py`",
        "",
        "<= 0",
        "by test",
    ]
]

_HEAD = """\
# Performance

Generated by `make bench BEFORE=HEAD~1`, which compares with that git revision; without `BEFORE` those rows are absent. For a quick look at one part,
which writes nothing: `make bench ARGS="flood --rounds 2"` ({parts}).

## Which goals are met

{goals}

## How to read the figures
What is measured runs on one core; the API server (pods of 5.1 KB, 3.9 KB without managedFields, encoded beforehand), the broker and the
reading consumer share another one. CPU is user and system time of the process, memory its resident set. Each event changes an annotation of
a pod. Topics have 6 partitions unless a row says 1, the default; other settings are the defaults, except addresses and paths.

**Read ratios first.** The speed of a core that shares its hardware changes by half within minutes, and an absolute figure then describes
the neighbours. So the programs below take turns of a few seconds on the same core, each with a source and a topic of its own; another one is first in each
round. A ratio divides two turns of one round. "Both at the same time": two relays share the core for the whole turn. Shown is the median of all rounds, and the range. The fixed loop of Python before each turn
shows how much the core itself changed; "waited for its core" shows how long a process was ready while another one ran. If the loop's range is
wide, compare ratios only; if the process waited more than a few percent of the time, latencies are not meaningful either.

| program | what it is |
| --- | --- |
| relay | this tree |
| the tree before | the git revision named by `BEFORE`, run by the same interpreter with the same libraries |
| floor | `tests/bench/floor.py`: a minimal relay in Python, which decodes one level, hashes, stores, packs and sends, with all headers |
| go-raw | `tests/bench/goraw`: the same in Go with franz-go and its defaults (10 ms linger), without a JSON tree, by byte search, with two headers; it cannot resume, and has no snapshots, bounds or metrics |
| client-go | `tests/bench/clientgo`: a shared informer of client-go 0.36.3 and franz-go 1.22.2 |
| kube-rs | `tests/bench/kubers`: a watcher of kube-rs 5.0.0 and rdkafka 0.39.0 |
| collector | `tests/bench/collector`: an OpenTelemetry Collector 0.111.0 with the k8sobjects receiver and the Kafka exporter |

A median hides what happens in few turns: a flood of about 70,000 events triggers a snapshot. The row "mean of all turns" includes it.
"Byte code" is what Python makes of the sources when it first runs them: a checkout without it, whose directory cannot be written, compiles them
at each start. The image has Debian's interpreter, which is built with profile-guided optimization and so cheaper than a plain build:
`PYTHON=/usr/bin/python3 make install` takes it where the machine has it. Figures of different parts were measured at different times; the line under each heading says when and how.
"""
