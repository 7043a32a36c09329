"""`kafka.flushInterval`: what a longer one saves at 1,000 events a second, and how the relay compares
with go-raw at the latency of go-raw.

Input: a rig. Output: the ratio to go-raw at the default and at equal latency; by interval, CPU of
relay and broker, latency, bytes of the log; each in turns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.flood import (
    PACE_RATE,
    PACE_S,
    WARM_S,
    Makers,
    at_the_same_time,
    pace_once,
    take_turns,
)
from tests.bench.rig import GO_RAW, Program, Relay, Rig, SourceProcess, cpu_s
from tests.bench.table import Row
from tests.bench.turns import ratios

INTERVALS_MS = (3, 10, 30, 100)
LIKE_GO_RAW_MS = 10
"""go-raw waits for as long with its requests (the linger of franz-go)."""
WHAT = f"{PACE_RATE} events/s"


@dataclass(frozen=True, slots=True)
class Paced:
    """A turn. Units: microseconds per event, milliseconds, bytes of the log per event; NaN where
    the broker is no process of its own."""

    cpu_us: float
    broker_us: float
    p50: float
    log_bytes: float


FIGURES = (
    ("cpu_us", "CPU per event", "us"),
    ("p50", "added latency, p50", "ms"),
    ("log_bytes", "log, per event", "B"),
    ("broker_us", "CPU of the broker, per event", "us"),
)


def intervals(rig: Rig) -> list[Row]:
    """CPU, latency and log by interval."""
    makers: Makers = {_name(each): _relay(rig, each) for each in INTERVALS_MS}
    if go_raw := rig.programs().get(GO_RAW):
        makers = {**makers, GO_RAW: go_raw}
    turns = take_turns(rig, functools.partial(_once, rig), makers)
    rows = _to_go_raw(rig, makers, turns)
    shortest = _name(INTERVALS_MS[0])
    for field, label, unit in FIGURES:
        runs = {name: [getattr(turn, field) for turn in its] for name, its in turns.items()}
        for name in runs:
            rows.append(Row.of(f"{WHAT}, {name}: {label}", runs[name], unit))
            if name not in (shortest, GO_RAW):
                about = f"{WHAT}, {name}: {label}, to {shortest}"
                rows.append(Row.of(about, ratios(runs, name, shortest), ""))
    return rows


def _to_go_raw(rig: Rig, makers: Makers, turns: dict[str, list[Paced]]) -> list[Row]:
    """At the default and at its latency; CPU at the same time on one core, latency in turns."""
    names = [_name(LIKE_GO_RAW_MS), _name(INTERVALS_MS[0])]
    goals: Sequence[float | None] = (0.95, None)
    about = [f"{WHAT}, {name}: CPU per event, relay / {GO_RAW}" for name in names]
    if GO_RAW not in makers:
        return [Row(about[0], missing=rig.no_go_raw, headline=True)]
    cpu = at_the_same_time(rig, {name: makers[name] for name in (*names, GO_RAW)})
    p50 = {name: [turn.p50 for turn in its] for name, its in turns.items()}
    rows = []
    for name, what, goal in zip(names, about, goals, strict=True):
        rows += [
            Row.of(what, ratios(cpu, name, GO_RAW), "", goal=goal, headline=goal is not None),
            Row.of(
                f"{WHAT}, {name}: latency, p50, relay / {GO_RAW}", ratios(p50, name, GO_RAW), ""
            ),
        ]
    return rows


def _name(interval_ms: int) -> str:
    return f"flushInterval {interval_ms} ms"


def _relay(rig: Rig, interval_ms: int) -> Callable[[SourceProcess], Relay]:
    return lambda source: Relay(rig, source, flush_interval=f"{interval_ms}ms")


def _once(rig: Rig, program: Program) -> Paced:
    broker, events = rig.real_broker, PACE_RATE * (WARM_S + PACE_S)
    if broker is None:
        turn = pace_once(program)
        return Paced(turn.cpu_us, float("nan"), turn.p50, float("nan"))
    logs = broker.directory / "data"
    used_s, size = cpu_s(broker.pid), _log_bytes(logs, program.topic)
    turn = pace_once(program)
    broker_us = (cpu_s(broker.pid) - used_s) / events * 1e6
    return Paced(
        turn.cpu_us, broker_us, turn.p50, (_log_bytes(logs, program.topic) - size) / events
    )


def _log_bytes(logs: Path, topic: str) -> int:
    return sum(each.stat().st_size for each in logs.glob(f"{topic}-*/*.log"))
