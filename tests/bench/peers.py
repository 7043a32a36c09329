"""What users would run instead of the relay: small programs of client-go and kube-rs, and an
OpenTelemetry Collector; each in its directory beside this file.

Input: a rig. Output: CPU per event as ratios to go-raw, latency, memory; what of the listed, the
changed and the deleted arrives on the topic, and in which order.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

from tests.bench.flood import (
    FLOOD_EVENTS,
    OBJECTS,
    PACE_RATE,
    flood_once,
    machine,
    of,
    pace_once,
    take_turns,
)
from tests.bench.footprint import first_list
from tests.bench.rig import (
    GO_RAW,
    PARTITIONS,
    RELAY,
    Program,
    Raw,
    Rig,
    SourceProcess,
    built,
    wait_for,
)
from tests.bench.table import Row
from tests.bench.turns import ratios
from tests.support.pods import pod

COLLECTOR, BY_DEFAULT = "collector", "collector with its queue of 1,000"
PEERS = {"client-go": "clientgo", "kube-rs": "kubers", COLLECTOR: "collector"}
FEW_OBJECTS, SOME = 2_000, 100
_COLLECTOR_CONFIG = Path(__file__).with_name("collector") / "config.yaml"
_QUEUE, _QUEUE_BY_DEFAULT = 100_000, 1_000
"""Events that may wait in the collector; it drops what does not fit."""


class Peer(Raw):
    """A program that says nothing of what it published."""

    def __init__(self, rig: Rig, source: SourceProcess, name: str, queue: int) -> None:
        program, why = built(PEERS[name])
        assert not why, why
        more: list[str | Path] = ["--config", _COLLECTOR_CONFIG] if name == COLLECTOR else []
        environment = [f"KUBECONFIG={rig.kubeconfig(source)}", f"BOOTSTRAP={rig.bootstrap}"]
        environment += [f"QUEUE={queue}", "GOMAXPROCS=1"]
        super().__init__(
            rig,
            source,
            lambda topic: ["env", *environment, f"TOPIC={topic}", program, *more],
            PARTITIONS,
        )

    def await_published(self) -> None:
        """Return once it watches, and is at rest."""
        _await_watch(self)


def _await_watch(program: Program) -> None:
    source = program.source
    assert source is not None, "what is compared has a source of ours"
    wait_for("it watches", lambda: source.watched)
    program.settle()


def peers(rig: Rig) -> list[Row]:
    """CPU, memory, and what arrives."""
    missing = {GO_RAW: rig.no_go_raw} | {name: built(its)[1] for name, its in PEERS.items()}
    if any(missing.values()):
        return [Row(name, missing=why) for name, why in missing.items() if why]
    makers, rows = _makers(rig, _QUEUE), list[Row]()
    for what, once, warm in (("flood", flood_once, 1), (f"{PACE_RATE} events/s", pace_once, 0)):
        turns = take_turns(rig, once, makers, warm)
        cpu = of(turns, "cpu_us")
        for name in makers:
            if name != GO_RAW:
                about = f"{what}, compared: CPU per event, {name} / {GO_RAW}"
                rows.append(Row.of(about, ratios(cpu, name, GO_RAW), ""))
        for figure in ("p50", "p99") if once is pace_once else ():
            for name, runs in of(turns, figure).items():
                rows.append(
                    Row.of(f"{what}, compared: added latency, {figure}, {name}", runs, "ms")
                )
        rows += machine(f"{what}, compared", turns)
    for name, make in makers.items():
        with SourceProcess(objects=OBJECTS) as source:
            run = first_list(make(source))
        what = f"{OBJECTS:,} pods, {name}"
        rows.append(Row(f"{what}: resident memory after the start", run.after.rss / 1e6, "MB"))
        rows.append(Row(f"{what}: peak memory", run.after.peak / 1e6, "MB"))
    by_default = {BY_DEFAULT: _makers(rig, _QUEUE_BY_DEFAULT)[COLLECTOR]}
    for name, make in (makers | by_default).items():
        if name != GO_RAW:
            rows += _arrivals(name, make)
    return rows


def _makers(rig: Rig, queue: int) -> dict[str, Callable[[SourceProcess], Program]]:
    def peer(name: str) -> Callable[[SourceProcess], Program]:
        return lambda source: Peer(rig, source, name, queue)

    ours = rig.programs()
    return {name: ours[name] for name in (RELAY, GO_RAW)} | {name: peer(name) for name in PEERS}


@dataclass(slots=True)
class Arrived:
    """What a consumer read. `objects` by name: partition and stamp of each record, in order;
    `deleted`: keys of null values."""

    records: int = 0
    keyed: int = 0
    objects: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)

    def take(self, message: Message) -> None:
        """The next record of a partition."""
        key, value = message.key(), message.value()
        if value is None:
            self.deleted.add((key or b"").decode())
        elif found := _object(value):
            self.records, self.keyed = self.records + 1, self.keyed + (key is not None)
            name, stamp = found
            self.objects.setdefault(name, []).append((message.partition() or 0, stamp))

    @property
    def scattered(self) -> int:
        """Objects in more than one partition: their records have no order."""
        return sum(len({partition for partition, _ in its}) > 1 for its in self.objects.values())

    @property
    def late(self) -> int:
        """Records after a newer one of the same object in the same partition."""
        newest, count = dict[tuple[str, int], int](), 0
        for name, its in self.objects.items():
            for partition, stamp in its:
                count += stamp < newest.get((name, partition), 0)
                newest[name, partition] = max(stamp, newest.get((name, partition), 0))
        return count

    def stamps(self, since_ns: int) -> set[int]:
        """Changes made since then."""
        return {stamp for its in self.objects.values() for _, stamp in its if stamp >= since_ns}


def _object(value: bytes) -> tuple[str, int] | None:
    """Name and stamp of the pod of a record; None: a record of another kind."""
    tree: Any = json.loads(value)
    metadata = tree.get("object", tree).get("metadata", {})  # the collector's has a type beside it
    if "namespace" not in metadata:
        return None
    stamp = metadata["annotations"]["bench/sent"]
    return f"{metadata['namespace']}/{metadata['name']}", int(stamp)


class Follower:
    """Reads a program's topic; a part of it at each call."""

    def __init__(self, program: Program) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": program.bootstrap, "group.id": "bench-arrivals", "log_level": 0}
        )
        self._places = [TopicPartition(program.topic, each, 0) for each in range(PARTITIONS)]

    def arrived(self) -> Arrived:
        """What came since the last call."""
        found = Arrived()
        for place in self._places:
            _, end = self._consumer.get_watermark_offsets(place, timeout=10.0)
            self._consumer.assign([place])
            while place.offset < end:
                for message in self._consumer.consume(1_000, timeout=1.0):
                    found.take(message)
                    place.offset = (message.offset() or 0) + 1
        return found

    def close(self) -> None:
        self._consumer.close()


def _arrivals(name: str, make: Callable[[SourceProcess], Program]) -> Iterator[Row]:
    """A first start, a burst, deletes; and after a restart, what happened meanwhile."""
    with (
        SourceProcess(objects=FEW_OBJECTS) as source,
        make(source) as program,
        closing(Follower(program)) as follower,
    ):
        program.await_published()
        program.settle()
        listed = follower.arrived()
        source.prepare(FLOOD_EVENTS)
        source.order("flood")
        program.settle()
        burst = follower.arrived()
        source.order(f"delete {SOME}")
        program.settle()
        deleted = follower.arrived()
        program.stop()
        source.watched, since_ns = 0, time.monotonic_ns()
        source.order(f"lose {SOME}")
        source.prepare(SOME)
        program.start()
        _await_watch(program)
        back = follower.arrived()
    changed, last = back.stamps(since_ns), FEW_OBJECTS - SOME
    for what, value, unit in (
        (f"of {FEW_OBJECTS:,} objects at the first start", len(listed.objects), ""),
        (f"of {FLOOD_EVENTS:,} changes in a burst", len(burst.stamps(1)), ""),
        ("records with a key", burst.keyed / burst.records * 100, "%"),
        ("objects of the burst in more than one partition", burst.scattered, ""),
        ("records of the burst after a newer one of the object in the partition", burst.late, ""),
        (f"of {SOME} deletes, as null values", len(deleted.deleted & _names(last)), ""),
        (f"of {SOME} objects changed while it was stopped", len(changed), ""),
        (
            f"of {SOME} objects deleted while it was stopped, as null values",
            len(back.deleted & _names(last - SOME)),
            "",
        ),
        ("objects that a restart repeats, unchanged", len(back.objects) - len(changed), ""),
    ):
        yield Row(f"arrives, {name}: {what}", value, unit)


def _names(first: int) -> set[str]:
    found = (pod(number)["metadata"] for number in range(first, first + SOME))
    return {f"{each['namespace']}/{each['name']}" for each in found}
