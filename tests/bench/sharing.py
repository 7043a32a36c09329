"""What replicas cost beside what they write: a copy of a stream that another one writes, and events
of parts that other ones write.

Input: a rig. Output: CPU per event of a standby, its memory against the owner's; CPU per event of
another part.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tests.bench.failover import started
from tests.bench.rig import Relay, Rig, SourceProcess, cpu_s, usage
from tests.bench.rig import settle as at_rest
from tests.bench.table import Row
from tests.support.daemon import Daemon

OBJECTS, EVENTS, PER_S = 100_000, 10_000, 1000
PARTS = 3
SPLIT_OBJECTS = 10_000
"""So many that each part has a dictionary to compress with, as the whole stream has."""
_SHARED: dict[str, Any] = {"sharding": {"enabled": True}}


def standby(rig: Rig) -> list[Row]:
    """One of two replicas writes a stream, the other one follows its log."""
    with SourceProcess(objects=OBJECTS) as source, ExitStack() as stack:
        owner = stack.enter_context(Relay(rig, source, more=_SHARED))
        owner.await_snapshots()
        config = {key: value for key, value in owner.daemon.config.items() if key != "observe"}
        other = Daemon(config, rig.workspace.path, name=f"{owner.cluster}-2", environment={})
        stack.callback(other.kill)
        started(other)
        used = {"owner": list[float](), "standby": list[float]()}
        for _ in range(rig.rounds):
            pids = {"owner": owner.pid, "standby": other.pid}
            for pid in pids.values():
                at_rest(pid)
            before = {name: cpu_s(pid) for name, pid in pids.items()}
            source.begin(f"churn {EVENTS} {PER_S}")
            source.finish()
            for pid in pids.values():
                at_rest(pid)
            for name, pid in pids.items():
                used[name].append((cpu_s(pid) - before[name]) / EVENTS * 1e6)
        memory = usage(other.pid).rss / usage(owner.pid).rss
    what = f"standby, {OBJECTS:,} pods, {PER_S:,} events a second"
    return [
        Row.of(f"{what}: CPU per event", used["standby"], "us", goal=60.0),
        Row.of(f"{what}: CPU per event of the owner", used["owner"], "us"),
        Row(f"{what}: resident memory / that of the owner", memory, goal=1.1),
    ]


def split(rig: Rig) -> list[Row]:
    """One process writes all parts of a stream, so that it drops each event once for each other
    part; against one that writes the stream unsplit. The difference has the cost of three writers
    as well, which produce twice as many requests."""
    costs = {number: list[float]() for number in (1, PARTS)}
    with SourceProcess(objects=SPLIT_OBJECTS) as source:
        for _ in range(rig.rounds):
            for number, its in costs.items():
                entry = {"resource": "pods", "split": number}
                with Relay(rig, source, resources=[entry], more=_SHARED) as relay:
                    relay.await_snapshots(number)
                    relay.settle()
                    before = cpu_s(relay.pid)
                    source.begin(f"churn {EVENTS} {PER_S}")
                    source.finish()
                    relay.settle()
                    its.append((cpu_s(relay.pid) - before) / EVENTS * 1e6)
    foreign = [
        (of_parts - whole) / (PARTS - 1)
        for whole, of_parts in zip(costs[1], costs[PARTS], strict=True)
    ]
    what = f"split into {PARTS}, {PER_S:,} events a second"
    return [
        Row.of(f"{what}: CPU per event of another part", foreign, "us", goal=12.0),
        Row.of(f"{what}: CPU per event, unsplit", costs[1], "us"),
    ]
