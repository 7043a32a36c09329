"""Test vectors of the record contract: what they look like, and the Python reader put to them.

Input: a vector as in tests/vectors/*.json. Output: what a reader says of it, to be compared with
`expect`.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Any

from watchrelay.consumer.locate import newest_heartbeats
from watchrelay.consumer.partitions import PartitionReplicas
from watchrelay.consumer.replica import (
    Noted,
    Outcome,
    ReadAgain,
    Replaced,
    Unproven,
)
from watchrelay.contract.control_state import ControlState, Origin
from watchrelay.contract.records import DIGEST_MASK, Decoded, ObjectRecord, decode
from watchrelay.contract.state import Changed, Ignored, judged
from watchrelay.contract.wire import WireRecord
from watchrelay.core.errors import RecordRefused


def shown(data: bytes | None) -> Any:
    """Bytes as a vector has them: text, {"base64"} where they are no UTF-8, null."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def read(data: Any) -> bytes | None:
    """The way back."""
    if data is None:
        return None
    return base64.b64decode(data["base64"]) if isinstance(data, dict) else str(data).encode()


def record_of(offset: int, record: WireRecord) -> dict[str, Any]:
    """One record of a vector."""
    return {
        "offset": offset,
        "key": shown(record.key),
        "value": shown(record.value),
        "headers": {name: shown(value) for name, value in record.headers},
    }


class Reading:
    """A reader of one partition: follows the log, and the verdicts."""

    def __init__(
        self, partition: dict[str, Any], origins: dict[str, Origin], only: frozenset[str]
    ) -> None:
        self._records = {record["offset"]: record for record in partition["records"]}
        self._start, self._end = partition["start"], partition["end"]
        self._lost = frozenset(partition["lost"])
        self.replicas = PartitionReplicas(partition["partition"], origins, only=only)
        self.verdicts: list[list[Any]] = []

    def run(self) -> None:
        """To the end, with every reading again."""
        at = max(self._start, self.replicas.start or 0)
        while at < self._end:
            record = self._records.get(at)
            back = None
            if record is not None and at not in self._lost:
                back = self._one(at, record)
            if back is None:
                at += 1
            else:
                self._lost = frozenset()  # what got lost on the way is there on a second reading
                at = max(self._start, back.offset or 0)

    def _one(self, at: int, record: dict[str, Any]) -> ReadAgain | None:
        try:
            decoded_record = decoded(record)
        except RecordRefused:
            self.verdicts.append([at, "", "refused", False])
            return None
        applied = self.replicas.apply(at, decoded_record)
        if applied is None:
            self.verdicts.append([at, decoded_record.stream, "passed", False])
            return None
        partition_replica, outcome = applied
        self.verdicts.append(
            [at, decoded_record.stream, verdict(outcome), partition_replica.replica.proven]
        )
        return outcome if isinstance(outcome, ReadAgain) else None


def decoded(record: dict[str, Any]) -> Decoded:
    """What a record of a vector counts for. Raises: RecordRefused."""
    headers = [(name, read(value) or b"") for name, value in record["headers"].items()]
    found = decode(read(record["key"]), read(record["value"]), headers)
    return judged(found) if isinstance(found, ObjectRecord) else found


def verdict(outcome: Outcome) -> str:
    """The word for what a record did."""
    match outcome:
        case Ignored(duplicate=True):
            return "duplicate"
        case Ignored():
            return "former"
        case Changed():
            return "changed"
        case Noted(swept=()):
            return "noted"
        case Noted():
            return f"swept {len(outcome.swept)}"
        case ReadAgain(offset=None):
            return "read again from the start"
        case ReadAgain():
            return f"read again from {outcome.offset}"
        case Unproven():
            return "unproven"
        case Replaced():
            return f"replaced, {len(outcome.changes)} changes"


def origins_of(vector: dict[str, Any]) -> list[dict[str, Origin]]:
    """By partition, where each stream is begun."""
    partitions = vector["partitions"]
    if vector["bootstrap"] == "heartbeats":
        return [newest_heartbeats(_readable(each["records"])) for each in partitions]
    origins: list[dict[str, Origin]] = [{} for _ in partitions]
    if vector["bootstrap"] == "control":
        view = ControlState()
        for record in vector["control"]:
            with suppress(RecordRefused):  # of a kind or key that this version does not know
                view.read(record["offset"], read(record["key"]), read(record["value"]))
        for stream in view.described():
            for partition, origin in enumerate(view.origins(stream)):
                origins[partition][stream] = origin
    return origins


def _readable(records: list[dict[str, Any]]) -> list[Decoded]:
    readable = []
    for record in records:
        try:
            readable.append(decoded(record))
        except RecordRefused:
            continue
    return readable


def judge(vector: dict[str, Any]) -> dict[str, Any]:
    """Everything that `expect` holds, as this reader has it."""
    origins = origins_of(vector)
    only = frozenset(vector["streams"])
    verdicts, state = [], []
    for partition, starts in zip(vector["partitions"], origins, strict=True):
        reading = Reading(partition, starts, only)
        reading.run()
        verdicts.append(reading.verdicts)
        for stream, partition_replica in sorted(reading.replicas.by_stream.items()):
            replica = partition_replica.replica
            objects = {
                shown(key): {
                    "hash": f"{held.value_hash:016x}",
                    "epoch": held.epoch,
                    "sequence": held.sequence,
                }
                for key, held in sorted(replica.held.items())
            }
            state.append(
                {
                    "stream": stream,
                    "partition": partition["partition"],
                    "epoch": replica.position.epoch,
                    "last": replica.position.sequence,
                    "proven": replica.proven,
                    "rereading": replica.rereading,
                    "count": len(replica.held),
                    "digest": f"{replica.digest & DIGEST_MASK:016x}",
                    "objects": objects,
                }
            )
    return {
        "origins": [
            {
                stream: {"offset": origin.offset, "snapshot": origin.snapshot}
                for stream, origin in sorted(each.items())
            }
            for each in origins
        ],
        "verdicts": verdicts,
        "state": state,
        "table": sorted(key for partition in vector["partitions"] for key in table(partition)),
    }


def table(partition: dict[str, Any]) -> dict[str, Any]:
    """What a table that ignores headers holds: the newest value of each key, null is delete."""
    held: dict[str, Any] = {}
    for record in partition["records"]:
        key = record["key"]
        if not isinstance(key, str):
            continue
        if record["value"] is None:
            held.pop(key, None)
        else:
            held[key] = record["value"]
    return held
