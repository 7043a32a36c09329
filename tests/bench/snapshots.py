"""What a snapshot of 100,000 objects does to live events at 1,000 a second.

Input: a rig. Output: the latencies of events sent while a snapshot ran, against those of the same
relay before it began: from the source to a consumer, who reads the snapshot as well, as each
consumer does.
"""

from __future__ import annotations

import functools
import statistics
from datetime import datetime

from tests.bench.flood import Latencies
from tests.bench.rig import Relay, Rig, SourceProcess, wait_for
from tests.bench.table import Row
from tests.support.anyclient import ask_snapshot
from tests.support.pace import measure_for

OBJECTS, RATE, RUNS = 100_000, 1_000, 3
BEFORE_S, SECONDS = 8, 36
"""Events are sent for so long; the snapshot is asked for at `BEFORE_S`, and begins with the next
heartbeat."""
_WARM_EVENTS = 3_000


def beside_a_snapshot(rig: Rig) -> list[Row]:
    """p99 with and without a running snapshot."""
    apart, beside, lasted, paused = [], [], [], []
    events = RATE * SECONDS
    with (
        SourceProcess(objects=OBJECTS) as source,
        Relay(rig, source) as relay,
    ):
        relay.await_snapshots()
        source.begin(f"pace {_WARM_EVENTS} {RATE}")
        source.finish()
        relay.settle()
        for _ in range(RUNS):
            reader = Latencies(relay)
            try:
                log_bytes = relay.daemon.log_bytes
                source.begin(f"pace {events} {RATE}")
                measure_for(BEFORE_S)  # live events alone: what is compared with
                ask_snapshot(rig.bootstrap, relay.cluster, "pods")
                source.finish()
                reader.await_count("all events arrived", events)
            finally:
                reader.close()
            wait_for("the snapshot is complete", functools.partial(_span, relay, log_bytes))
            begun_s, complete_s = _span(relay, log_bytes)
            during = [
                ms
                for sent_s, ms in zip(reader.sent_s, reader.ms, strict=True)
                if begun_s <= sent_s <= complete_s
            ]
            before = [
                ms for sent_s, ms in zip(reader.sent_s, reader.ms, strict=True) if sent_s < begun_s
            ]
            apart.append(statistics.quantiles(before, n=100)[98])
            beside.append(statistics.quantiles(during, n=100)[98])
            paused.append(max(during))
            lasted.append(complete_s - begun_s)
            relay.settle()
    added = [with_one - without for with_one, without in zip(beside, apart, strict=True)]
    what = f"{RATE} events/s, source to a consumer, p99"
    return [
        Row.of(f"{what}: without a snapshot", apart, "ms"),
        Row.of(f"{what}: while a snapshot of {OBJECTS:,} objects runs", beside, "ms"),
        Row.of("added by the snapshot to the p99", added, "ms", goal=10.0),
        Row.of("the slowest event during the snapshot", paused, "ms"),
        Row.of("the snapshot, begin to index record", lasted, "s"),
    ]


def _span(relay: Relay, since: int) -> tuple[float, ...]:
    """When the snapshot began and was complete, by the relay's log; () before. Units: seconds since
    1970."""
    at: dict[str, float] = {}
    for line in relay.daemon.lines(since=since):
        at.setdefault(line["message"], datetime.fromisoformat(line["time"]).timestamp())
    return (at["snapshot started"], at["snapshot complete"]) if "snapshot complete" in at else ()
