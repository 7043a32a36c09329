"""Kafka stopped (SIGSTOP) for minutes under a steady load: how far memory grows, what it costs, and
how soon all is published when it is back.

Input: a rig whose broker is a process. Output: memory, CPU, seconds until all that was watched when
it came back is acknowledged; an error unless `watchrelay verify` finds the topic right at the end.
"""

from __future__ import annotations

import json
import time
import urllib.request
from dataclasses import dataclass, field

from tests.bench.rig import Relay, Rig, SourceProcess, wait_for
from tests.bench.table import Row
from tests.support.daemon import command
from tests.support.pace import measure_for
from tests.support.process import PartError

OBJECTS, RATE = 20_000, 2_000
FREEZE_S = 300.0
WARM_S, AFTER_S = 20.0, 30.0
_SAMPLE_S = 0.5
_MIB = 1024 * 1024


@dataclass(slots=True)
class Watched:
    """What was seen of the relay while the load went on. Units: bytes, keys."""

    rss: list[int] = field(default_factory=list)
    queue_bytes: float = 0.0
    dirty_keys: float = 0.0

    def look(self, relay: Relay) -> None:
        """Take a sample."""
        self.rss.append(relay.used().rss)

    def ask(self, relay: Relay) -> None:
        """Read the gauges; asking costs the relay some milliseconds."""
        self.queue_bytes = max(self.queue_bytes, relay.daemon.metric("watchrelay_queue_bytes"))
        self.dirty_keys = max(self.dirty_keys, relay.daemon.metric("watchrelay_queue_dirty_keys"))


def frozen(rig: Rig) -> list[Row]:
    """One freeze under load, then the load goes on for a while, then it ends and everything must be
    there."""
    broker = rig.real_broker
    if broker is None:
        raise PartError(
            "a broker that lives in this process cannot be frozen: build the real parts with "
            "`make real`"
        )
    total = int((WARM_S + rig.freeze_s + AFTER_S) * RATE)
    with (
        SourceProcess(objects=OBJECTS) as source,
        Relay(rig, source, more={"heartbeatInterval": "1s"}) as relay,
    ):
        relay.await_snapshots()
        relay.settle()
        seen = Watched()
        source.begin(f"churn {total} {RATE}")
        _sample(seen, relay, WARM_S)
        before_rss, before, began_s = max(seen.rss), relay.used(), time.monotonic()
        with broker.frozen():
            _sample(seen, relay, rig.freeze_s, ask_every_s=30.0)
            share = (relay.used().cpu_s - before.cpu_s) / (time.monotonic() - began_s) * 100
        back_s, aim = time.monotonic(), _newest(source)
        cpu_s = relay.used().cpu_s
        wait_for(
            "all that was watched before Kafka came back is acknowledged",
            lambda: _frontier(relay, seen) >= aim,
            deadline_s=300.0,
        )
        took_s = time.monotonic() - back_s
        recovery = (relay.used().cpu_s - cpu_s) / took_s * 100
        source.finish()
        newest = _newest(source)
        wait_for(
            "everything is acknowledged", lambda: _frontier(relay, seen) >= newest, deadline_s=120.0
        )
        growth = (max(seen.rss) - before_rss) / _MIB
        conflated = relay.daemon.metric("watchrelay_events_conflated_total")
        verdict = command("verify", "-c", relay.daemon.file, "pods")
    if verdict.code != 0:
        raise PartError(
            "verify after the outage: exit "
            f"{verdict.code}\n{verdict.stdout[-2000:]}{verdict.stderr[-2000:]}"
        )
    what = f"frozen {rig.freeze_s:.0f} s at {RATE:,}/s over {OBJECTS:,} pods"
    was = before_rss / _MIB
    return [
        Row(
            f"{what}: memory grows by (goal: 64 MiB and 20 % of the {was:.0f} MiB before)",
            growth,
            "MiB",
            goal=64 + was / 5,
        ),
        Row(f"{what}: share of one core", share, "%", goal=100.0),
        Row(
            f"{what}: from its return until all is published, the load going on",
            took_s,
            "s",
            goal=30.0,
        ),
        Row(f"{what}: share of one core in that time", recovery, "%"),
        Row(f"{what}: states skipped", conflated, ""),
        Row(f"{what}: largest queue", seen.queue_bytes / _MIB, "MiB"),
        Row(f"{what}: most keys waiting", seen.dirty_keys, ""),
    ]


def _newest(source: SourceProcess) -> int:
    """The version of the newest change."""
    with urllib.request.urlopen(
        f"http://127.0.0.1:{source.port}/api/v1/pods?limit=1", timeout=10.0
    ) as answer:
        return int(json.load(answer)["metadata"]["resourceVersion"])


def _frontier(relay: Relay, seen: Watched) -> int:
    seen.look(relay)
    return int(relay.daemon.stream("pods").get("frontier") or 0)


def _sample(seen: Watched, relay: Relay, for_s: float, *, ask_every_s: float = 0.0) -> None:
    end_s = time.monotonic() + for_s
    ask_s = time.monotonic() + ask_every_s
    while (left_s := end_s - time.monotonic()) > 0:
        seen.look(relay)
        if ask_every_s and time.monotonic() >= ask_s:
            seen.ask(relay)
            ask_s += ask_every_s
        measure_for(min(left_s, _SAMPLE_S))
    seen.ask(relay)
