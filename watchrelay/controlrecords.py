"""The control topic's records <-> bytes (WIRE 7): claims, stream descriptions, the snapshot index.

Room: below every room. In: what a writer claims and concludes, or what stands on the control topic. Out: keys and JSON values, both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from watchrelay.codec import Instants
from watchrelay.errors import RecordRefused
from watchrelay.printable import short, why_broken

ControlKind = Literal["claim", "stream", "snapshot"]

COUNT_MAX: Final = (1 << 53) - 1
"""The largest number that every JSON reader reads alike."""
PARTITIONS_MAX: Final = 100_000
"""More than any topic has: whoever reads a description makes that many of something."""
VALUE_BYTES_MAX: Final = 16 * 1024 * 1024
"""An index record says about a hundred bytes of each partition; decoded, JSON takes up to twenty times its size."""


def control_key(kind: ControlKind, stream: str) -> bytes:
    """The key of a control record: `claim/pods`."""
    return f"{kind}/{stream}".encode()


def parse_control_key(key: bytes | None) -> tuple[ControlKind, str]:
    """The kind and the stream of a control record. Raises: RecordRefused."""
    kind, slash, stream = (key or b"").decode(errors="replace").partition("/")
    match kind:
        case "claim" | "stream" | "snapshot" if slash and stream:
            return kind, stream
        case _:
            raise RecordRefused(f"control record with key {short(repr(key))}")


def control_value(value: dict[str, object]) -> bytes:
    """A control record's value as JSON, keys in the order given."""
    return msgspec.json.encode(value)


def parse_control_value(value: bytes) -> dict[str, object]:
    """A control record's value. Raises: RecordRefused."""
    if len(value) > VALUE_BYTES_MAX:
        raise RecordRefused(f"control record of {len(value):,} bytes: {VALUE_BYTES_MAX:,} are taken")
    try:
        return msgspec.json.decode(value, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordRefused(f"control record that is not a JSON object: {why_broken(error, value)}") from error


def claim_value(*, holder: str, instance: str, version: str, time_ms: int, starting_point: dict[str, object] | None) -> dict[str, object]:
    """`claim/<stream>`. Shape: `starting_point` is {"snapshot","begin":[offset]} or None. Source: WIRE 7."""
    time = Instants().render(time_ms).decode()
    return {"holder": holder, "instance": instance, "version": version, "time": time, "from": starting_point}


class SnapshotPartition(msgspec.Struct, frozen=True, gc=False):
    """One partition in an index record: offsets of its markers, count and digest at its end."""

    partition: int
    begin: int
    end: int
    count: int
    digest: int


def snapshot_value(
    *,
    snapshot: str,
    epoch: int,
    frontier: str,
    time_ms: int,
    requests: Sequence[str],
    partitions: Sequence[SnapshotPartition],
) -> dict[str, object]:
    """`snapshot/<stream>`, the index record of a complete snapshot. Source: WIRE 7."""
    return {
        "snapshot": snapshot,
        "epoch": epoch,
        "rv": frontier,
        "time": Instants().render(time_ms).decode(),
        "count": sum(each.count for each in partitions),
        "requests": list(requests),
        "partitions": [{**msgspec.structs.asdict(each), "digest": f"{each.digest:016x}"} for each in partitions],
    }


def starting_point(index: dict[str, object], partitions: int) -> dict[str, object] | None:
    """The `from` that an index record gives; None (the start) if it does not speak of exactly these partitions."""
    listed, snapshot = index.get("partitions"), index.get("snapshot")
    if not isinstance(listed, list) or not isinstance(snapshot, str):
        return None
    begins = {}
    for each in listed:
        if not isinstance(each, dict) or not is_count(partition := each.get("partition")) or not is_count(each.get("begin")):
            return None
        begins[partition] = each["begin"]
    if begins.keys() != set(range(partitions)):
        return None
    return {"snapshot": snapshot, "begin": [begins[partition] for partition in range(partitions)]}


def is_count(value: object, most: int = COUNT_MAX) -> bool:
    """Whether this value of a record is a number that an offset, an epoch or a count can have: no flag, not negative, not beyond all."""
    return type(value) is int and 0 <= value <= most
