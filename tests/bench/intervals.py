"""`kafka.flushInterval`: what a longer one saves at 1,000 events a second, and how the relay compares
with go-raw at the latency of go-raw.

Input: a rig. Output: by interval, CPU of relay and broker, latency, bytes of the log; each in turns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bench.flood import OBJECTS, PACE_RATE, PACE_S, WARM_S, pace_once
from tests.bench.rig import GO_RAW, Program, Relay, Rig, SourceProcess, cpu_s
from tests.bench.table import Row
from tests.bench.turns import in_rounds

INTERVALS_MS = (3, 10, 30, 100)
LIKE_GO_RAW_MS = 10
"""go-raw waits for as long with its requests (the linger of franz-go)."""


@dataclass(frozen=True, slots=True)
class Paced:
    """A turn. Units: microseconds per event, milliseconds, bytes of the log per event; NaN where
    the broker is no process of its own."""

    cpu_us: float
    broker_us: float
    p50: float
    log_bytes: float


def intervals(rig: Rig) -> list[Row]:
    """CPU, latency and log by interval."""
    with _live(rig) as doers:
        turns = in_rounds(doers, rounds=rig.rounds)
    shortest, like_go_raw = _name(INTERVALS_MS[0]), _name(LIKE_GO_RAW_MS)
    what = f"{PACE_RATE} events/s"

    def ratios(one: str, other: str, field: str) -> list[float]:
        pairs = zip(turns[one], turns[other], strict=True)
        return [getattr(mine, field) / getattr(its, field) for mine, its in pairs]

    about = f"{what}, {like_go_raw}: CPU per event, relay / {GO_RAW}"
    rows = [Row(about, missing=rig.no_go_raw, headline=True)]
    if GO_RAW in turns:
        latency = f"{what}, {like_go_raw}: latency, p50, relay / {GO_RAW}"
        rows = [
            Row.of(about, ratios(like_go_raw, GO_RAW, "cpu_us"), "", goal=0.95, headline=True),
            Row.of(latency, ratios(like_go_raw, GO_RAW, "p50"), ""),
        ]
    for name in map(_name, INTERVALS_MS):
        for field, label in (
            ("cpu_us", "CPU per event"),
            ("broker_us", "CPU of the broker"),
            ("log_bytes", "bytes of the log"),
        ):
            if name != shortest:
                about = f"{what}, {name}: {label}, to {shortest}"
                rows.append(Row.of(about, ratios(name, shortest, field), ""))
        rows.append(Row.of(f"{what}, {name}: CPU per event", [t.cpu_us for t in turns[name]], "us"))
        rows.append(Row.of(f"{what}, {name}: latency, p50", [t.p50 for t in turns[name]], "ms"))
        rows.append(
            Row.of(f"{what}, {name}: log, per event", [t.log_bytes for t in turns[name]], "B")
        )
    return rows


def _name(interval_ms: int) -> str:
    return f"flushInterval {interval_ms} ms"


@contextmanager
def _live(rig: Rig) -> Iterator[dict[str, Callable[[], Paced]]]:
    """All programs at rest, by name."""
    doers: dict[str, Callable[[], Paced]] = {}
    with ExitStack() as stack:

        def add(name: str, make: Callable[[SourceProcess], Program]) -> None:
            source = stack.enter_context(SourceProcess(objects=OBJECTS))
            program = stack.enter_context(make(source))
            program.await_published()
            program.settle()
            doers[name] = functools.partial(_once, rig, program)

        for interval_ms in INTERVALS_MS:
            add(_name(interval_ms), functools.partial(_relay, rig, interval_ms))
        if go_raw := rig.programs().get(GO_RAW):
            add(GO_RAW, go_raw)
        yield doers


def _relay(rig: Rig, interval_ms: int, source: SourceProcess) -> Relay:
    return Relay(rig, source, flush_interval=f"{interval_ms}ms")


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
