"""What transactions cost: a relay with them and one without, in turns, at 1,000 events a second.

Input: a rig. Output: what is added to CPU and latency, seen by a consumer of committed records; the
rate of a flood over one partition.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

from tests.bench.flood import PACE_RATE, Turn, flood_once, pace_once
from tests.bench.rig import PARTITIONS, RELAY, Program, Relay, Rig, SourceProcess
from tests.bench.table import Row
from tests.bench.turns import in_rounds

_IDEMPOTENT = "idempotent"
OBJECTS = 5_000


def _turns(
    rig: Rig, once: Callable[[Program], Turn], *, partitions: int, warm: int = 0
) -> Mapping[str, Sequence[Turn]]:
    doers = {}
    with ExitStack() as stack:
        for name, delivery in ((RELAY, "transactional"), (_IDEMPOTENT, _IDEMPOTENT)):
            source = stack.enter_context(SourceProcess(objects=OBJECTS))
            relay = stack.enter_context(
                Relay(rig, source, partitions=partitions, delivery=delivery)
            )
            relay.await_published()
            relay.settle()
            doers[name] = functools.partial(once, relay)
        return in_rounds(doers, rounds=rig.rounds, warm=warm)


def transactional(rig: Rig) -> list[Row]:
    """CPU and latency with transactions and without, and the rate of a flood over one partition."""
    turns = _turns(rig, pace_once, partitions=PARTITIONS)
    floods = _turns(rig, flood_once, partitions=1, warm=1)

    def of(name: str, field: str) -> list[float]:
        return [getattr(turn, field) for turn in turns[name]]

    def both(field: str) -> list[tuple[float, float]]:
        return list(zip(of(RELAY, field), of(_IDEMPOTENT, field), strict=True))

    what = f"{PACE_RATE} events/s, transactional"
    ratios = [one / other for one, other in both("cpu_us")]
    rows = [Row.of(f"{what}: CPU per event, to idempotent", ratios, "", goal=1.0, headline=True)]
    for field, goal in (("p50", 60.0), ("p99", 100.0)):
        more = [one - other for one, other in both(field)]
        rows.append(Row.of(f"{what}: latency, {field}, more", more, "ms", goal=goal, headline=True))
    for name in (RELAY, _IDEMPOTENT):
        label = "transactional" if name == RELAY else name
        for field, unit in (("cpu_us", "us"), ("p50", "ms"), ("p99", "ms")):
            rows.append(Row.of(f"{PACE_RATE} events/s, {label}: {field}", of(name, field), unit))
    rates = [
        one.rate / other.rate for one, other in zip(floods[RELAY], floods[_IDEMPOTENT], strict=True)
    ]
    what = "flood over 1 partition, transactional"
    rows.append(Row.of(f"{what}: events per second, to idempotent", rates, "", headline=True))
    cpu = [
        one.cpu_us / other.cpu_us
        for one, other in zip(floods[RELAY], floods[_IDEMPOTENT], strict=True)
    ]
    rows.append(Row.of(f"{what}: CPU per event, to idempotent", cpu, "", goal=1.0))
    rows.append(Row.of(f"{what}: events per second", [each.rate for each in floods[RELAY]], "/s"))
    return rows
