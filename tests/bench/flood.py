"""The whole relay, watch socket to acknowledgement, at full speed and at a given rate, in turns with
the programs that it is measured against.

Input: a rig. Output: CPU per event as ratios first, events per second on one core; latency at 1,000
events a second, seen by another consumer.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import Consumer, TopicPartition

from tests.bench.rig import (
    BEFORE,
    PARTITIONS,
    RELAY,
    Program,
    Rig,
    SourceProcess,
    cpu_s,
    loop_ms,
    wait_for,
)
from tests.bench.source import STAMP, STAMP_DIGITS
from tests.bench.table import Row
from tests.bench.turns import compared, in_rounds, ratios

T = TypeVar("T")
OBJECTS, FLOOD_EVENTS = 20_000, 12_000
"""Short turns: a core that shares its hardware with others changes its speed by half within
seconds, and neighbours see the same."""
PACE_RATE, PACE_S, WARM_S = 1_000, 10, 3
LIVE_ROUNDS = 4
"""After so many the programs are started again: a watch lasts 300 s at least, and its end would be
part of a turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one program. Units: `cpu_us` per event; `rate` events a second; `waited` percent
    of the time; `loop_ms` as of `rig.loop_ms`, just before; `p50`, `p99` milliseconds."""

    cpu_us: float
    rate: float
    waited: float
    loop_ms: float
    p50: float = 0.0
    p99: float = 0.0


Turns = Mapping[str, Sequence[Turn]]
"""By program, a turn for each round."""
Makers = Mapping[str, Callable[[SourceProcess], Program]]
"""How to make programs, by name."""


def take_turns(
    rig: Rig, once: Callable[[Program], T], makers: Makers, warm: int = 0
) -> dict[str, list[T]]:
    """All programs live, those that wait at rest."""
    turns: dict[str, list[T]] = {}
    for begun in range(0, rig.rounds, LIVE_ROUNDS):
        rounds = min(LIVE_ROUNDS, rig.rounds - begun)
        with live(makers) as programs:
            doers = {name: functools.partial(once, program) for name, program in programs.items()}
            for name, its in in_rounds(doers, rounds=rounds, warm=warm).items():
                turns.setdefault(name, []).extend(its)
    return turns


@contextmanager
def live(makers: Makers) -> Iterator[dict[str, Program]]:
    """Programs that have published what they listed, each with a source of its own, at rest."""
    programs = {}
    with ExitStack() as stack:
        for name, make in makers.items():
            source = stack.enter_context(SourceProcess(objects=OBJECTS))
            programs[name] = stack.enter_context(make(source))
            programs[name].await_published()
            programs[name].settle()
        yield programs


def flood(rig: Rig) -> list[Row]:
    """CPU and rate under flood."""
    turns = take_turns(rig, flood_once, rig.programs(), warm=1)
    cpu = of(turns, "cpu_us")
    first, *rows = compared(rig, "flood: CPU per event", cpu, "us", to_go_raw=1.0)
    pure = dataclasses.replace(first, what=f"{first.what}, bound for pure Python", goal=1.1)
    mean = statistics.mean(cpu[RELAY])
    return [
        first,
        pure,
        *rows,
        Row("flood: CPU per event, mean of all turns, with the snapshots they cause", mean, "us"),
        Row.of("flood: events per second on one core", of(turns, "rate")[RELAY], "/s"),
        *machine("flood", turns),
    ]


def flood_once(program: Program) -> Turn:
    """Begun and ended at rest."""
    source, pid, speed_ms = program.source, program.pid, loop_ms()
    assert source is not None, "what takes turns has a source of ours"
    source.prepare(FLOOD_EVENTS)
    with program.topic_end() as end:
        aim, before, used_s, began_s = (
            end() + FLOOD_EVENTS,
            program.used(),
            cpu_s(pid),
            time.monotonic(),
        )
        source.begin("flood")
        wait_for("all events are acknowledged", lambda: end() >= aim)
        took_s, after = time.monotonic() - began_s, program.used()
    source.finish()
    program.settle()
    cpu_us = (cpu_s(pid) - used_s) / FLOOD_EVENTS * 1e6
    waited = (after.waited_s - before.waited_s) / took_s * 100
    return Turn(cpu_us, FLOOD_EVENTS / took_s, waited, speed_ms)


def paced(rig: Rig) -> list[Row]:
    """CPU and latency at 1,000 events a second."""
    what = f"{PACE_RATE} events/s"
    rows = _paced(rig, what, PARTITIONS, cpu_goal=1.15, p50_goal=0.5)
    return [*rows, *_beside_the_tree_before(rig, what)]


def _beside_the_tree_before(rig: Rig, what: str) -> list[Row]:
    if BEFORE not in rig.relays:
        return []
    makers = rig.programs()
    cpu = at_the_same_time(rig, {name: makers[name] for name in rig.relays})
    about = f"{what}: CPU per event, relay / {BEFORE}, both at the same time"
    return [Row.of(about, ratios(cpu, RELAY, BEFORE), "")]


def at_the_same_time(rig: Rig, makers: Makers) -> dict[str, list[float]]:
    """Microseconds per event at 1,000 a second for each, on one core together: what the machine
    does meanwhile, it does to all, so a ratio varies by 2 % where that of turns varies by 15 %."""
    with live(makers) as programs:
        windows = [_window(programs, seconds) for seconds in (WARM_S, *[PACE_S] * rig.rounds)]
    return {name: [window[name] for window in windows[1:]] for name in programs}


def _window(programs: Mapping[str, Program], seconds: int) -> dict[str, float]:
    used_s, events = {name: cpu_s(each.pid) for name, each in programs.items()}, PACE_RATE * seconds
    sources = [each.source for each in programs.values() if each.source is not None]
    for source in sources:
        source.begin(f"pace {events} {PACE_RATE}")
    for source in sources:
        source.finish()
    for each in programs.values():
        each.settle()
    return {
        name: (cpu_s(each.pid) - used_s[name]) / events * 1e6 for name, each in programs.items()
    }


def paced_on_one(rig: Rig) -> list[Row]:
    """The same, with the partitions that a topic has by default."""
    return _paced(rig, f"{PACE_RATE} events/s, 1 partition", 1, cpu_goal=1.0)


def _paced(
    rig: Rig, what: str, partitions: int, *, cpu_goal: float, p50_goal: float | None = None
) -> list[Row]:
    turns = take_turns(rig, pace_once, rig.programs(partitions))
    cpu, p50, p99 = (of(turns, field) for field in ("cpu_us", "p50", "p99"))
    added = f"{what}: added latency, source to a consumer"
    return [
        *compared(rig, f"{what}: CPU per event", cpu, "us", to_go_raw=cpu_goal),
        *compared(rig, f"{added}, p50", p50, "ms", goal=3.5, to_go_raw=p50_goal),
        *compared(rig, f"{added}, p99", p99, "ms", goal=8.0),
        *machine(what, turns),
    ]


def pace_once(program: Program) -> Turn:
    """Some seconds that do not count, then those that do."""
    source, pid, speed_ms = program.source, program.pid, loop_ms()
    assert source is not None, "what takes turns has a source of ours"
    reader = Latencies(program)
    try:
        for seconds in (WARM_S, PACE_S):
            events = PACE_RATE * seconds
            reader.ms.clear()
            before, used_s, began_s = program.used(), cpu_s(pid), time.monotonic()
            source.begin(f"pace {events} {PACE_RATE}")
            source.finish()
            reader.await_count("all events arrived", events)
            cpu_us = (cpu_s(pid) - used_s) / events * 1e6
            took_s = time.monotonic() - began_s
            waited = (program.used().waited_s - before.waited_s) / took_s * 100
    finally:
        reader.close()
    cuts = statistics.quantiles(reader.ms, n=100)
    return Turn(cpu_us, events / took_s, waited, speed_ms, cuts[49], cuts[98])


def of(turns: Turns, field: str) -> dict[str, list[float]]:
    """One figure of each turn."""
    return {name: [getattr(turn, field) for turn in its] for name, its in turns.items()}


def machine(what: str, turns: Turns) -> list[Row]:
    """What tells how much the machine disturbed."""
    loops = [turn.loop_ms for its in turns.values() for turn in its]
    waited = [turn.waited for turn in turns[RELAY]]
    return [
        Row.of(f"{what}: waited for its core", waited, "% of the time"),
        Row.of(f"{what}: the core's own speed, a fixed loop before each turn", loops, "ms"),
    ]


class Latencies:
    """Reads a program's topic as any consumer does. Units: `ms` per event, from its writing at the
    source to its arrival here; `sent_s` when it was written there, in seconds since 1970. Members
    of snapshots are read and not counted.
    """

    def __init__(self, program: Program) -> None:
        self.ms: list[float] = []
        self.sent_s: list[float] = []
        self._over, self._since_ns = threading.Event(), time.monotonic_ns()
        self._consumer = Consumer(
            {
                "bootstrap.servers": program.bootstrap,
                "group.id": "bench-latency",
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        places = [TopicPartition(program.topic, number) for number in range(program.partitions)]
        for place in places:
            place.offset = self._consumer.get_watermark_offsets(place, timeout=10.0)[1]
        self._consumer.assign(places)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        epoch_s, seen = time.time() - time.monotonic(), set[int]()
        while not self._over.is_set():
            for message in self._consumer.consume(256, timeout=0.001):
                now_ns, value = time.monotonic_ns(), message.value() or b""
                at = value.find(STAMP)
                sent_ns = (
                    int(value[at + len(STAMP) : at + len(STAMP) + STAMP_DIGITS]) if at >= 0 else 0
                )
                # a snapshot says again what was sent before
                if sent_ns > self._since_ns and sent_ns not in seen:
                    seen.add(sent_ns)
                    self.sent_s.append(epoch_s + sent_ns / 1e9)
                    self.ms.append((now_ns - sent_ns) / 1e6)
        self._consumer.close()

    def await_count(self, claim: str, count: int) -> None:
        """Return once so many events were counted."""
        wait_for(claim, lambda: len(self.ms) >= count)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
