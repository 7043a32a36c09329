"""Writers over plain values: what a stream's writer would put on its topic, record by record, with
every fault by hand.

A writer fills `Log`s, one per partition, of rendered records with their offsets.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from watchrelay.contract.partitioning import partition_of
from watchrelay.contract.records import DIGEST_MASK, Marker, Trimmed, content_hash, encoder_for
from watchrelay.contract.wire import MarkerKind, Reason, Verb, WireRecord
from watchrelay.model.resources import Resource, Selection
from watchrelay.model.streams import Format, StreamSpec, WatchPlan

PODS = Resource("", "v1", "pods", "Pod", namespaced=True)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
SERVICES = Resource("", "v1", "services", "Service", namespaced=True)
AT_MS = 1_767_323_045_006


def stream(
    resource: Resource = PODS,
    *,
    partitions: int = 1,
    prefix: bytes = b"",
    form: Format = "cloudevents",
) -> StreamSpec:
    """A stream of `resource`."""
    return StreamSpec(
        id=resource.qualified,
        cluster="test",
        topic="k8s.test.core.pods",
        partitions=partitions,
        plan=WatchPlan(Selection(resource)),
        config_hash="c0ffee",
        key_prefix=prefix,
        format=form,
    )


@dataclass(slots=True)
class Log:
    """One partition. By offset; an offset without a record was compacted away, or never
    appended."""

    records: dict[int, WireRecord] = field(default_factory=dict)
    end: int = 0
    start: int = 0

    def append(self, record: WireRecord) -> int:
        """Its offset."""
        self.records[self.end] = record
        self.end += 1
        return self.end - 1

    def compact(self, *, up_to: int) -> None:
        """Keep only the newest record of each key below `up_to`, as Kafka's cleaner does."""
        newest = {record.key: offset for offset, record in self.records.items()}
        self.records = {
            at: each for at, each in self.records.items() if at >= up_to or newest[each.key] == at
        }

    def truncate(self, start: int) -> None:
        """Delete what is before `start`, as retention does."""
        self.start = start
        self.records = {at: each for at, each in self.records.items() if at >= start}


@dataclass(slots=True)
class PublishedObject:
    """One object as a writer assumes it to be on the log."""

    value: bytes
    hash: int
    uid: str
    version: str


class Writer:
    """One tenure of a stream: positions, counts and digests as the contract wants them.

    `lose=True` gives a record its position and lets it vanish. Each call that appends
    returns the record, to be sent again.
    """

    def __init__(
        self,
        spec: StreamSpec,
        logs: list[Log],
        *,
        epoch: int,
        before: Writer | None = None,
        own: Sequence[int] | None = None,
    ) -> None:
        """`own`: the partitions of a part."""
        self.spec, self.logs, self.epoch = spec, logs, epoch
        self.own = range(len(logs)) if own is None else own
        self._render = encoder_for(spec, epoch)
        self.held: list[dict[bytes, PublishedObject]] = (
            copy.deepcopy(before.held) if before else [{} for _ in logs]
        )
        self.last_snapshot: list[tuple[str, int] | None] = (
            list(before.last_snapshot) if before else [None] * len(logs)
        )
        self.version: int = before.version if before else 100
        self._sequence = [0] * len(logs)
        self._begun: list[tuple[str, int, int]] = [("", 0, 0)] * len(logs)
        self._snapshots = 0
        self.knows_nothing = False
        """Markers have the frontier 0, as while the first list is read."""
        self._at_ms: int = before._at_ms if before else AT_MS

    def key(self, name: str) -> bytes:
        """The record key of `namespace/name`, or of a cluster-scoped `name`."""
        return self.spec.key_prefix + (name if "/" in name else f"/{name}").encode()

    def _next(self, partition: int) -> int:
        self._sequence[partition] += 1
        self._at_ms += 7
        return self._sequence[partition]

    def _object(self, name: str, number: int, uid: str) -> bytes:
        namespace, _, plain = name.rpartition("/")
        resource = self.spec.plan.selection.resource
        metadata = {"name": plain, "uid": uid, "resourceVersion": str(self.version)} | (
            {"namespace": namespace} if namespace else {}
        )
        shown = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": metadata,
            "spec": {"n": number, "text": "Grüße €"},
        }
        return json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode()

    def put(
        self, name: str, number: int = 1, *, uid: str = "", verb: Verb | None = None, reason: Reason = "watch", trimmed: Trimmed = "",
        lose: bool = False,
    ) -> WireRecord:  # fmt: skip
        """`name` is created, or changed."""
        key = self.key(name)
        partition = partition_of(key, len(self.logs))
        held = self.held[partition].get(key)
        self.version += 1
        uid = uid or (held.uid if held else f"u-{name.rpartition('/')[2]}")
        value = self._object(name, number, uid)
        self.held[partition][key] = PublishedObject(
            value, content_hash(key, value), uid, str(self.version)
        )
        return self._say(
            partition,
            key,
            verb or ("modified" if held else "added"),
            reason,
            trimmed=trimmed,
            lose=lose,
        )

    def republish(
        self, name: str, *, reason: Reason = "snapshot", verb: Verb = "read", lose: bool = False
    ) -> WireRecord:
        """`name` with the value that it has."""
        key = self.key(name)
        return self._say(partition_of(key, len(self.logs)), key, verb, reason, lose=lose)

    def _say(
        self,
        partition: int,
        key: bytes,
        verb: Verb,
        reason: Reason,
        *,
        trimmed: Trimmed = "",
        lose: bool = False,
    ) -> WireRecord:
        held = self.held[partition][key]
        place = (partition, self._next(partition), key)
        record = self._render.object(
            *place,
            held.value,
            verb,
            reason,
            held.uid,
            held.version,
            held.hash,
            self._at_ms,
            trimmed,
        )
        if not lose:
            self.logs[partition].append(record)
        return record

    def delete(self, name: str, *, reason: Reason = "watch", lose: bool = False) -> WireRecord:
        """`name` is gone. A `healed` null is of an object that is gone already: it has the frontier
        and no uid."""
        key = self.key(name)
        partition = partition_of(key, len(self.logs))
        uid = ""
        if reason != "healed":
            self.version += 1
            uid = self.held[partition].pop(key).uid
        place = (partition, self._next(partition), key)
        record = self._render.object(
            *place, None, "deleted", reason, uid, str(self.version), 0, self._at_ms
        )
        if not lose:
            self.logs[partition].append(record)
        if record.value is not None:  # an envelope: the tombstone behind it is a record of its own
            place = (partition, self._next(partition), key)
            tomb = self._render.object(
                *place, None, "deleted", reason, uid, str(self.version), 0, self._at_ms, "", True
            )
            self.logs[partition].append(tomb)
        return record

    def mark(
        self, kind: MarkerKind, *, partitions: list[int] | None = None, lose: bool = False
    ) -> list[WireRecord]:
        """A marker on these partitions (all)."""
        records = []
        for partition in self.own if partitions is None else partitions:
            held = self.held[partition].values()
            marker = Marker(kind)
            if kind != "claim":
                digest = sum(each.hash for each in held) & DIGEST_MASK
                frontier = "0" if self.knows_nothing else str(self.version)
                marker = Marker(kind, frontier, len(held), digest, self._at_ms)
            if kind == "begin":
                marker = replace_marker(marker, snapshot=f"{self.epoch}-{self._snapshots}")
            elif kind == "end":
                snapshot, sequence, offset = self._begun[partition]
                marker = replace_marker(
                    marker, snapshot=snapshot, begin_sequence=sequence, begin_offset=offset
                )
            elif kind == "heartbeat" and (last := self.last_snapshot[partition]) is not None:
                marker = replace_marker(marker, last_snapshot=last[0], last_snapshot_offset=last[1])
            sequence = self._next(partition)
            record = self._render.marker(partition, sequence, self._at_ms, marker)
            offset = self.logs[partition].end if lose else self.logs[partition].append(record)
            if kind == "begin":
                self._begun[partition] = (marker.snapshot, sequence, offset)
            elif kind == "end":
                self.last_snapshot[partition] = (marker.snapshot, marker.begin_offset)
            records.append(record)
        return records

    def claim(self) -> list[WireRecord]:
        """The claim marker on every partition."""
        return self.mark("claim")

    def beat(self, *partitions: int) -> list[WireRecord]:
        """A heartbeat."""
        return self.mark("heartbeat", partitions=list(partitions) or None)

    def begin(self) -> None:
        """A snapshot begins."""
        self._snapshots += 1
        self.mark("begin")

    def end(self) -> None:
        """The snapshot that began ends."""
        self.mark("end")

    def names(self) -> list[str]:
        """What is held, as `put` takes it."""
        cut = len(self.spec.key_prefix)
        return sorted(
            key[cut:].decode().removeprefix("/") for own in self.own for key in self.held[own]
        )

    def snapshot(self, *, lose: tuple[str, ...] = ()) -> None:
        """Begin, everything held, end."""
        self.begin()
        for name in self.names():
            self.republish(name, lose=name in lose)
        self.end()

    def first(self, *names: str) -> None:
        """What a new stream begins with: claim, and a snapshot that says `added`."""
        self.claim()
        self.begin()
        for name in names:
            if partition_of(self.key(name), len(self.logs)) in self.own:
                self.put(name, verb="added", reason="snapshot")
        self.end()

    def index(self) -> dict[str, object]:
        """The control topic's record of the last snapshot, as far as readers look at it."""
        lasts = {own: last for own in self.own if (last := self.last_snapshot[own]) is not None}
        assert len(lasts) == len(self.own), "not every partition has a complete snapshot"
        places = [
            {
                "partition": partition,
                "begin": begin,
                "end": begin + 1,
                "count": 0,
                "digest": "0" * 16,
            }
            for partition, (_, begin) in lasts.items()
        ]
        return {
            "snapshot": lasts[self.own[0]][0], "epoch": self.epoch, "rv": str(self.version), "time": "2026-01-02T03:04:05.006Z", "count": 0,
            "requests": [], "partitions": places,
        }  # fmt: skip

    def origin(self) -> dict[str, object]:
        """The `from` that a claim of the whole stream made of that index has."""
        lasts = [last for last in self.last_snapshot if last is not None]
        return {"snapshot": lasts[0][0], "begin": [begin for _, begin in lasts]}

    def origin_of(self, *partitions: int) -> dict[str, object]:
        """The `from` of a claim of a part."""
        lasts = {str(own): last for own in partitions if (last := self.last_snapshot[own])}
        return {
            "snapshot": {own: snapshot for own, (snapshot, _) in lasts.items()},
            "begin": {own: begin for own, (_, begin) in lasts.items()},
        }


def replace_marker(marker: Marker, **more: object) -> Marker:
    """A copy of `marker` with these fields."""
    fields = {name: getattr(marker, name) for name in marker.__struct_fields__}
    return Marker(**(fields | more))


def resend(log: Log, *records: WireRecord) -> None:
    """The same bytes again."""
    for record in records:
        log.append(record)
