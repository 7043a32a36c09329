"""What the whole relay needs: to start, to hold pods, to do nothing.

Input: a rig. Output: CPU and peak memory of a first list, resident memory per pod held, cost of
idle streams; what has a goal in turns with the programs that it is measured against.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tests.bench.rig import (
    RELAY,
    Program,
    Relay,
    Rig,
    SourceProcess,
    Usage,
    cpu_s,
    loop_ms,
    wait_for,
)
from tests.bench.table import Row
from tests.bench.turns import compared, in_rounds, ratios
from tests.support.pace import measure_for

SMALL, LARGE = 20_000, 100_000
STREAMS = (1, 50, 300, 1_000)
IDLE_STREAMS, IDLE_S = 200, 10.0
"""As long as a heartbeat interval: each window has as many heartbeats."""
BARE = "this tree without byte code"


@dataclass(frozen=True, slots=True)
class FirstList:
    """One start. Units: seconds since the launch. `after` a moment later, at rest."""

    took_s: float
    used: Usage
    after: Usage


def first_list(program: Program) -> FirstList:
    """Start a program and wait until all it listed is published and acknowledged."""
    with program:
        program.await_published()
        took_s, used = program.elapsed_s, program.used()
        program.settle()
        return FirstList(took_s, used, program.used())


def start(rig: Rig) -> list[Row]:
    """From the launch to the first request; then 100,000 pods, to the acknowledged snapshot: in
    pages, and as a streaming list."""
    with SourceProcess(objects=0) as source:
        trees = {**rig.relays, BARE: rig.uncompiled()}

        def asked(name: str) -> Callable[[], float]:
            def once() -> float:
                source.asked_s = 0.0
                with Relay(rig, source, tree=trees[name]) as relay:
                    wait_for("it asks the API server", lambda: source.asked_s)
                    return source.asked_s - relay.launched_s

            return once

        requests = in_rounds({name: asked(name) for name in trees}, rounds=rig.rounds)
    rows = [
        *compared(
            rig, f"start: launch to the first request ({rig.byte_code})", requests, "s", goal=0.4
        )
    ]
    what = f"start, {LARGE:,} pods, pages"
    with SourceProcess(objects=LARGE) as source:
        makers = rig.programs()

        def listed(name: str) -> Callable[[], FirstList]:
            return lambda: first_list(makers[name](source))

        runs = in_rounds({name: listed(name) for name in makers}, rounds=rig.rounds)
    cpu = {name: [run.used.cpu_s for run in its] for name, its in runs.items()}
    rows += compared(rig, f"{what}: CPU until published and acknowledged", cpu, "s", goal=5.0)
    rows += _memory_and_time(what, runs[RELAY])
    what = f"start, {LARGE:,} pods, streaming list"
    with SourceProcess(objects=LARGE, streaming=True) as source:
        run = first_list(Relay(rig, source))
    rows.append(Row(f"{what}: CPU until published and acknowledged", run.used.cpu_s, "s", goal=5.0))
    return rows + _memory_and_time(what, [run])


def _memory_and_time(what: str, runs: Sequence[FirstList]) -> list[Row]:
    return [
        Row.of(f"{what}: peak memory", [run.used.peak / 1e6 for run in runs], "MB", goal=180.0),
        Row.of(f"{what}: wall time", [run.took_s for run in runs], "s"),
    ]


def streams(rig: Rig) -> list[Row]:
    """First starts of many streams on one topic, to the first snapshot of each."""

    def started(count: int) -> float:
        with Relay(rig, source, resources=_namespaces(count), partitions=1) as relay:
            relay.await_snapshots(count, deadline_s=600.0)
            return relay.used().cpu_s

    with SourceProcess(objects=0) as source:
        starts: dict[str, Callable[[], float]] = {
            f"{count:,}": functools.partial(started, count) for count in STREAMS
        }
        cpu = in_rounds({**starts, "loop": loop_ms}, rounds=rig.rounds)
    what, (*_, fewer, most) = "first start on one topic, 1 partition, CPU", starts
    goals = {fewer: 5.0, most: 15.0}
    return [
        Row.of(f"{what}: {most} streams / {fewer}", ratios(cpu, most, fewer), "", goal=3.5),
        *(
            Row.of(f"{what}: {count} streams", cpu[count], "s", goal=goals.get(count))
            for count in starts
        ),
        Row.of(f"{what}: the core's own speed, a fixed loop in each round", cpu["loop"], "ms"),
    ]


def _namespaces(count: int) -> list[dict[str, Any]]:
    return [{"resource": "pods", "namespaces": [f"ns-{number}" for number in range(count)]}]


def memory(rig: Rig) -> list[Row]:
    """Resident memory per pod held, above the process that holds none, after first list and
    snapshot."""
    with SourceProcess(objects=0) as source:
        idle = first_list(Relay(rig, source)).after.rss
    rows = [Row("memory: idle process", idle / 1e6, "MB", goal=45.0)]
    for objects, goal in ((SMALL, 1.0), (LARGE, 0.8)):
        with SourceProcess(objects=objects) as source:
            held = first_list(Relay(rig, source)).after.rss
        per_pod = (held - idle) / objects / 1024
        rows.append(Row(f"memory: per pod held, {objects:,} pods", per_pod, "KiB", goal=goal))
        rows.append(Row(f"memory: resident, {objects:,} pods", held / 1e6, "MB"))
    return rows


def idle(rig: Rig) -> list[Row]:
    """Many streams with nothing to do but heartbeats and bookmarks; the trees at the same time, as
    they hardly disturb each other."""
    shares: dict[str, list[float]] = {name: [] for name in rig.relays}
    with SourceProcess(objects=0) as source, ExitStack() as stack:
        relays = {}
        for name, tree in rig.relays.items():
            relay = Relay(rig, source, resources=_namespaces(IDLE_STREAMS), tree=tree)
            relays[name] = stack.enter_context(relay)
            relay.await_snapshots(IDLE_STREAMS)
            relay.settle()
        for _ in range(rig.rounds):
            before = {name: (cpu_s(relay.pid), time.monotonic()) for name, relay in relays.items()}
            measure_for(IDLE_S)
            for name, relay in relays.items():
                used_s, began_s = before[name]
                took_s = time.monotonic() - began_s
                shares[name].append((cpu_s(relay.pid) - used_s) / took_s * 100)
        rss = relays[RELAY].used().rss
    what = f"idle, {IDLE_STREAMS} streams"
    return [
        *compared(rig, f"{what}: share of one core", shares, "%", goal=1.0),
        Row(f"{what}: resident memory", rss / 1e6, "MB"),
    ]
