"""A restart with 100,000 pods and nothing changed, the whole relay: what it costs until it is live,
what it asks for, what it writes.

Input: a rig. Output: CPU and wall time from the launch until the watch goes on from the log, lists
asked for, object records appended, memory during the resume against that of the steady state; in
turns with the tree before.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from confluent_kafka import Consumer, TopicPartition

from tests.bench.rig import PARTITIONS, RELAY, Relay, Rig, SourceProcess, wait_for
from tests.bench.table import Row
from tests.bench.turns import compared, in_rounds

OBJECTS = 100_000
_MARKER = b"%wr/"


@dataclass(frozen=True, slots=True)
class Restarted:
    """One restart. Units: seconds, bytes."""

    cpu_s: float
    wall_s: float
    peak: int
    rest: int
    lists: int
    appended: int


def restart(rig: Rig) -> list[Row]:
    """Stop a relay that holds 100,000 pods, start it again, several times."""
    doers, steady = {}, 0
    with SourceProcess(objects=OBJECTS) as source, ExitStack() as stack:
        for name, tree in rig.relays.items():
            relay = stack.enter_context(Relay(rig, source, tree=tree))
            relay.await_snapshots()
            relay.settle()
            steady = steady or relay.used().rss
            topic = stack.enter_context(_Topic(rig.bootstrap, relay.topic))
            doers[name] = functools.partial(_once, relay, source, topic)
        given = in_rounds(doers, rounds=rig.rounds)
    runs = given[RELAY]
    cpu = {name: [run.cpu_s for run in its] for name, its in given.items()}
    steady = min([steady, *(run.rest for run in runs)])
    what = f"restart, {OBJECTS:,} pods"
    return [
        *compared(rig, f"{what}: CPU from the launch until live again", cpu, "s", goal=2.5),
        Row.of(f"{what}: wall time until live again", [run.wall_s for run in runs], "s"),
        Row(f"{what}: requests for a list", max(run.lists for run in runs), goal=0.0),
        Row(f"{what}: object records appended", max(run.appended for run in runs), goal=0.0),
        Row.of(
            f"{what}: peak memory during the resume / steady state",
            [run.peak / steady for run in runs],
            "",
            goal=1.3,
        ),
        Row(f"{what}: resident in steady state", steady / 1e6, "MB"),
    ]


def _once(relay: Relay, source: SourceProcess, topic: _Topic) -> Restarted:
    relay.stop()
    topic.objects()
    log_bytes, lists = relay.daemon.log_bytes, source.lists
    relay.start()

    def live() -> bool:
        lines = relay.daemon.lines(since=log_bytes)
        return any(
            line["message"] == "stream changed state" and line["state"] == "watching"
            for line in lines
        )

    wait_for("the watch goes on from the log", live)
    used, wall_s = relay.used(), relay.elapsed_s
    relay.settle()
    return Restarted(
        used.cpu_s, wall_s, used.peak, relay.used().rss, source.lists - lists, topic.objects()
    )


class _Topic:
    """What a topic gains; a context manager."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "bench-gains", "log_level": 0}
        )
        self._at = dict.fromkeys(range(PARTITIONS), 0)
        self._name = topic

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def objects(self) -> int:
        """Object records since the last call."""
        count = 0
        for partition, at in self._at.items():
            place = TopicPartition(self._name, partition, at)
            _, end = self._consumer.get_watermark_offsets(place, timeout=10.0, cached=False)
            if end > at:
                self._consumer.assign([place])
                while at < end:
                    for message in self._consumer.consume(1000, timeout=1.0):
                        count += not (message.key() or b"").startswith(_MARKER)
                        at = (message.offset() or 0) + 1
            self._at[partition] = at
        return count
