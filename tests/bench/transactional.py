"""What transactions cost: a relay with them and one without, in turns, at 1,000 events a second.

Room: tests. In: a rig. Out: what is added to CPU and latency, seen by a consumer of committed
records.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack

from tests.bench.flood import PACE_RATE, pace_once
from tests.bench.rig import PARTITIONS, RELAY, Relay, Rig, SourceProcess
from tests.bench.table import Row
from tests.bench.turns import in_rounds

_IDEMPOTENT = "idempotent"
OBJECTS = 5_000


def transactional(rig: Rig) -> list[Row]:
    """CPU and latency with transactions and without."""
    doers = {}
    with ExitStack() as stack:
        for name, delivery in ((RELAY, "transactional"), (_IDEMPOTENT, _IDEMPOTENT)):
            source = stack.enter_context(SourceProcess(objects=OBJECTS))
            relay = stack.enter_context(
                Relay(rig, source, partitions=PARTITIONS, delivery=delivery)
            )
            relay.await_published()
            relay.settle()
            doers[name] = functools.partial(pace_once, relay)
        turns = in_rounds(rig, doers)

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
    return rows
