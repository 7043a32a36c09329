"""The whole relay, watch socket to acknowledgement, at full speed and at a given rate.

Room: tests. In: a rig. Out: CPU per event, events per second on one core; latency at 1,000 events a
second, seen by another consumer.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from tests.bench.rig import (
    PARTITIONS,
    Floor,
    Relay,
    Rig,
    SourceProcess,
    cpu_s,
    loop_ms,
    settle,
    usage,
    wait_for,
)
from tests.bench.source import STAMP, STAMP_DIGITS
from tests.bench.table import Row

FLOOD_OBJECTS, FLOOD_EVENTS, FLOOD_RUNS = 20_000, 4_000, 24
"""Many short turns: a core that shares its hardware with others changes its speed by half within
seconds, and neighbours see the same."""
GOAL_US, FLOOR_US = 45.0, 37.0
"""The goal, and what a floor like ours cost on the machine for which it was set."""
FULL_SPEED = 1.1
"""A turn was taken at the core's full speed if the fixed loop, before it and behind it, took at
most so many times its least."""
PACE_RATE, PACE_S = 1_000, 20
_WARM_EVENTS = 3_000


def flood(rig: Rig) -> list[Row]:
    """CPU and rate under flood: the relay and the floor in turns, many times; the first turns warm
    them up and are not counted.

    The relay's turn goes first in every other pair, so that a core that slows down or recovers
    favours neither.
    """
    events = FLOOD_EVENTS * (FLOOD_RUNS + 1)
    with (
        SourceProcess(objects=FLOOD_OBJECTS, events=events) as source,
        SourceProcess(objects=FLOOD_OBJECTS, events=events) as other,
        Relay(rig, source) as relay,
    ):
        relay.await_snapshots()
        with Floor(rig, other) as floor, relay.topic_end() as relays, floor.topic_end() as floors:
            settle(relay.pid)
            settle(floor.pid)
            sides = (_Side(source, relay.pid, relays), _Side(other, floor.pid, floors))
            for number in range(FLOOD_RUNS + 1):
                for side in sides if number % 2 else sides[::-1]:
                    side.take_turn()
    done, least = (side.turns[1:] for side in sides)
    ratios = [turn.cpu_us / beside.cpu_us for turn, beside in zip(done, least, strict=True)]
    return [
        _row(
            "flood: CPU per event, watch socket to acknowledgement",
            [turn.cpu_us for turn in done],
            "us",
            goal=GOAL_US,
            later=30.0,
        ),
        _row(
            "flood: the same for the floor, which took turns with it",
            [turn.cpu_us for turn in least],
            "us",
        ),
        _row(
            "flood: CPU per event, turns at the core's full speed",
            _at_full_speed(done),
            "us",
            goal=GOAL_US,
            later=30.0,
        ),
        _row(
            "flood: the same for the floor, turns at the core's full speed",
            _at_full_speed(least),
            "us",
        ),
        _row("flood: relay / floor", ratios, "", goal=GOAL_US / FLOOR_US),
        _row("flood: events per second on one core", [turn.rate for turn in done], "1/s"),
        _row("flood: waited for its core", [turn.waited for turn in done], "% of the time"),
        _row(
            "flood: the core's own speed, a fixed loop around each turn",
            [turn.loop_ms for turn in done + least],
            "ms",
        ),
    ]


@dataclass(frozen=True, slots=True)
class _Turn:
    """One flood. Units: `cpu_us` per event; `rate` events a second; `waited` percent of the time;
    `loop_ms` as of `rig.loop_ms`, the slower of before and behind."""

    cpu_us: float
    rate: float
    waited: float
    loop_ms: float


class _Side:
    """One of the two that take turns. `end` says how many records its topic holds."""

    def __init__(self, source: SourceProcess, pid: int, end: Callable[[], int]) -> None:
        self.turns: list[_Turn] = []
        self._source, self._pid, self._end = source, pid, end

    def take_turn(self) -> None:
        """One flood, begun and ended at rest."""
        pid, speed_ms = self._pid, loop_ms()
        aim, before, used_s, began_s = (
            self._end() + FLOOD_EVENTS,
            usage(pid),
            cpu_s(pid),
            time.monotonic(),
        )
        self._source.begin(f"flood {FLOOD_EVENTS}")
        _await_end(self._end, aim)
        took_s, after = time.monotonic() - began_s, usage(pid)
        settle(pid)
        self._source.finish()
        waited = (after.waited_s - before.waited_s) / took_s * 100
        cpu_us = (cpu_s(pid) - used_s) / FLOOD_EVENTS * 1e6
        self.turns.append(_Turn(cpu_us, FLOOD_EVENTS / took_s, waited, max(speed_ms, loop_ms())))


def _at_full_speed(turns: list[_Turn]) -> list[float]:
    limit_ms = min(turn.loop_ms for turn in turns) * FULL_SPEED
    return [turn.cpu_us for turn in turns if turn.loop_ms <= limit_ms]


def _row(
    what: str,
    runs: list[float],
    unit: str,
    *,
    goal: float | None = None,
    later: float | None = None,
) -> Row:
    return Row(what, statistics.median(runs), unit, goal=goal, later=later, runs=runs)


def _await_end(end: Callable[[], int], aim: int) -> None:
    wait_for("all events are acknowledged", lambda: end() >= aim)


class Latencies:
    """Reads the topic as any consumer does. Units: `ms` per event, from its writing at the source
    to its arrival here; `sent_s` when it was written there, in seconds since 1970. Members of
    snapshots are read and not counted.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.ms: list[float] = []
        self.sent_s: list[float] = []
        self._over, self._since_ns = threading.Event(), time.monotonic_ns()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bench-latency",
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
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


def paced(rig: Rig) -> list[Row]:
    """Latency and CPU at 1,000 events a second."""
    events = PACE_RATE * PACE_S
    with (
        SourceProcess(objects=FLOOD_OBJECTS, events=events + 2 * _WARM_EVENTS) as source,
        Relay(rig, source) as relay,
    ):
        relay.await_snapshots()
        source.begin(f"flood {_WARM_EVENTS}")
        source.finish()
        relay.settle()
        reader = Latencies(rig.bootstrap, relay.topic)
        try:
            source.begin(f"pace {_WARM_EVENTS} {PACE_RATE}")
            source.finish()
            reader.await_count("the warming-up is over", _WARM_EVENTS)
            reader.ms.clear()
            lag_before, before, began_s = _lag(relay), relay.used(), time.monotonic()
            source.begin(f"pace {events} {PACE_RATE}")
            source.finish()
            reader.await_count("all events arrived", events)
            cpu_us = (relay.used().cpu_s - before.cpu_s) / events * 1e6
            waited = (relay.used().waited_s - before.waited_s) / (time.monotonic() - began_s) * 100
            lag_s, count = (
                after - earlier for after, earlier in zip(_lag(relay), lag_before, strict=True)
            )
        finally:
            reader.close()
    cuts = statistics.quantiles(reader.ms, n=100)
    return [
        Row(
            f"{PACE_RATE} events/s: added latency, source to a consumer, p50",
            cuts[49],
            "ms",
            goal=8.0,
            later=3.5,
        ),
        Row(
            f"{PACE_RATE} events/s: added latency, source to a consumer, p99",
            cuts[98],
            "ms",
            goal=25.0,
            later=8.0,
        ),
        Row(
            f"{PACE_RATE} events/s: received to acknowledged, mean (the relay's own metric)",
            lag_s / count * 1000,
            "ms",
        ),
        Row(f"{PACE_RATE} events/s: CPU per event", cpu_us, "us", later=130.0),
        Row(f"{PACE_RATE} events/s: waited for its core", waited, "% of the time"),
    ]


def _lag(relay: Relay) -> tuple[float, float]:
    metric = relay.daemon.metric
    return metric("watchrelay_relay_lag_seconds_sum"), metric("watchrelay_relay_lag_seconds_count")
