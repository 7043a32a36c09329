"""Two replicas share one stream of 100,000 pods, at 1,000 events a second: how long no record comes
when its owner is killed, and when it ends as an operator ends it.

Input: a rig. Output: the longest time between two records, by how the owner ended; the lists asked
for meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack

from tests.bench.rig import RELAY_CORE, Relay, Rig, SourceProcess, wait_for
from tests.bench.table import Row
from tests.support.arrivals import Arrivals
from tests.support.daemon import Daemon
from tests.support.pace import measure_for

OBJECTS, PER_S = 100_000, 1000
SESSION_S = 6.0
_BEFORE_S, _AFTER_S = 3.0, 2.0
_CHURN_S = 30
"""From before the end until the other owns the stream, and a while longer."""


def failover(rig: Rig) -> list[Row]:
    """End the owner, start it again, several times each way."""
    with SourceProcess(objects=OBJECTS) as source, ExitStack() as stack:
        first = stack.enter_context(Relay(rig, source, more={"sharding": {"enabled": True}}))
        first.await_snapshots()
        config = {key: value for key, value in first.daemon.config.items() if key != "observe"}
        second = Daemon(config, rig.workspace.path, name=f"{first.cluster}-2", environment={})
        stack.callback(second.kill)
        owner, other = first.daemon, started(second)
        arrivals = stack.enter_context(Arrivals(rig.bootstrap, first.topic))
        lists = source.lists
        killed, ended = list[float](), list[float]()
        for _ in range(rig.rounds):
            killed.append(_once(source, arrivals, other, owner.kill))
            owner, other = other, started(owner)
            ended.append(_once(source, arrivals, other, owner.stop))
            owner, other = other, started(owner)
        lists = source.lists - lists
    what = f"{OBJECTS:,} pods, {PER_S:,} events a second"
    return [
        Row.of(
            f"kill -9 of the owner, {what}: longest time without a record",
            killed,
            "s",
            goal=SESSION_S + 1.5,
        ),
        Row.of(
            f"SIGTERM of the owner, {what}: longest time without a record", ended, "s", goal=0.5
        ),
        Row("both: requests for a list", lists, goal=0.0),
    ]


def started(replica: Daemon) -> Daemon:
    """It is a member of the group, on the relay's core, and its standby is warm."""
    since = replica.log_bytes
    replica.start()
    os.sched_setaffinity(replica.pid, {RELAY_CORE})
    replica.wait(
        "its standby is warm",
        lambda: any(line["message"] == "stream is warm" for line in replica.lines(since=since)),
        deadline_s=120.0,
    )
    return replica


def _once(
    source: SourceProcess, arrivals: Arrivals, other: Daemon, end: Callable[[], object]
) -> float:
    """The longest time without a record around the end of the owner."""
    source.begin(f"churn {PER_S * _CHURN_S} {PER_S}")
    measure_for(_BEFORE_S)
    arrivals.begin()
    end()

    def owns() -> bool:
        row = other.stream("pods")
        return bool(row) and row["state"] == "watching" and bool(row["complete"])

    wait_for("the other owns the stream", owns)
    measure_for(_AFTER_S)
    longest_s = arrivals.longest_s()
    source.finish()
    return longest_s
