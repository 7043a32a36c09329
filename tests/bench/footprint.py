"""What the whole relay needs: to start, to hold pods, to do nothing.

Room: tests. In: a rig. Out: CPU and peak memory of a first list, resident memory per pod held, cost
of idle streams.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from tests.bench.rig import Relay, Rig, SourceProcess, Usage
from tests.bench.table import Row
from tests.support.pace import measure_for

SMALL, LARGE = 20_000, 100_000
START_RUNS = 3
IDLE_STREAMS, IDLE_S = 200, 30.0


@dataclass(frozen=True, slots=True)
class FirstList:
    """One start. Units: seconds since the launch. `after` a moment later, at rest."""

    asked_s: float
    took_s: float
    used: Usage
    after: Usage


def first_list(rig: Rig, source: SourceProcess) -> FirstList:
    """Start a relay on `source` and wait until everything is published, acknowledged and
    indexed."""
    source.asked_s = 0.0
    with Relay(rig, source) as relay:
        relay.await_snapshots()
        took_s, used = time.monotonic() - relay.launched_s, relay.used()
        relay.settle()
        return FirstList(source.asked_s - relay.launched_s, took_s, used, relay.used())


def start(rig: Rig) -> list[Row]:
    """100,000 pods, from the launch to the acknowledged snapshot: in pages, and as a streaming
    list."""
    rows: list[Row] = []
    with SourceProcess(objects=0) as source:
        asked = [first_list(rig, source).asked_s for _ in range(START_RUNS)]
    rows.append(
        Row(
            "start: launch to the first request",
            statistics.median(asked),
            "s",
            later=0.4,
            runs=asked,
        )
    )
    for how, streaming in (("pages", False), ("streaming list", True)):
        with SourceProcess(objects=LARGE, streaming=streaming) as source:
            runs = [first_list(rig, source) for _ in range(START_RUNS if not streaming else 1)]
        cpu = [run.used.cpu_s for run in runs]
        peak = [run.used.peak / 1e6 for run in runs]
        took = [run.took_s for run in runs]
        what = f"start, {LARGE:,} pods, {how}"
        rows += [
            Row(
                f"{what}: CPU until published and acknowledged",
                statistics.median(cpu),
                "s",
                goal=10.0,
                later=5.0,
                runs=cpu,
            ),
            Row(
                f"{what}: peak memory",
                statistics.median(peak),
                "MB",
                goal=250.0,
                later=180.0,
                runs=peak,
            ),
            Row(f"{what}: wall time", statistics.median(took), "s", runs=took),
        ]
    return rows


def memory(rig: Rig) -> list[Row]:
    """Resident memory per pod held, above the process that holds none, after first list and
    snapshot."""
    with SourceProcess(objects=0) as source:
        idle = first_list(rig, source).after.rss
    rows = [Row("memory: idle process", idle / 1e6, "MB", goal=60.0, later=45.0)]
    for objects in (SMALL, LARGE):
        with SourceProcess(objects=objects) as source:
            held = first_list(rig, source)
        per_pod = (held.after.rss - idle) / objects / 1024
        rows.append(
            Row(f"memory: per pod held, {objects:,} pods", per_pod, "KiB", goal=1.5, later=1.0)
        )
        rows.append(Row(f"memory: resident, {objects:,} pods", held.after.rss / 1e6, "MB"))
    return rows


def idle(rig: Rig) -> list[Row]:
    """Many streams with nothing to do but heartbeats and bookmarks."""
    namespaces = [f"ns-{number}" for number in range(IDLE_STREAMS)]
    with (
        SourceProcess(objects=0) as source,
        Relay(rig, source, resources=[{"resource": "pods", "namespaces": namespaces}]) as relay,
    ):
        relay.await_snapshots(IDLE_STREAMS)
        relay.settle()
        before, began_s = relay.used().cpu_s, time.monotonic()
        measure_for(IDLE_S)
        used_s, rss = relay.used().cpu_s - before, relay.used().rss
        share = used_s / (time.monotonic() - began_s) * 100
    return [
        Row(f"idle, {IDLE_STREAMS} streams: share of one core", share, "%", later=1.0),
        Row(f"idle, {IDLE_STREAMS} streams: resident memory", rss / 1e6, "MB"),
    ]
