"""The codec of control records: claims, stream descriptions, the snapshot index.

Source: docs/record-contract.md, section 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from watchrelay.contract.records import EPOCH_MAX, PARTITIONS_MAX
from watchrelay.core.errors import RecordRefused
from watchrelay.core.text import BROKEN_JSON, short, why_broken
from watchrelay.core.timestamps import parse_timestamp, rfc3339

ControlKind = Literal["claim", "stream", "snapshot"]

COUNT_MAX: Final = (1 << 53) - 1
"""The largest number that every JSON reader reads alike."""
VALUE_BYTES_MAX: Final = 16 * 1024 * 1024
"""An index record has about a hundred bytes for each partition; decoded, JSON takes up to twenty
times its size."""
EPOCH_BASE_MAX: Final = EPOCH_MAX - (1 << 40)
"""The highest `epochBase` under which a stream is written: each claim uses up as many epochs as the
control topic has grown since the last."""
NAME_MAX: Final = 1000
"""Characters of a stream id, and of any other name in a control record."""
_ID_MAX = 200
_DEPTH_MAX = 32
"""Levels of nesting in a value: the deepest field of the contract has three."""

_Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
_Id = Annotated[str, Meta(min_length=1, max_length=_ID_MAX)]
_Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
_TopicName = Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9._-]{1,249}\Z")]


class _Selectors(msgspec.Struct, rename="camel"):
    label_selector: str = ""
    field_selector: str = ""
    namespaces: list[_Name] | None = None


class _From(msgspec.Struct):
    snapshot: _Id
    begin: list[_Count]


class _IndexPartition(msgspec.Struct):
    partition: _Count
    begin: _Count
    end: _Count = 0
    count: _Count = 0
    digest: str = ""


_FIELDS: dict[str, dict[str, Any]] = {
    "claim": {"instance": _Id, "holder": _Name, "from": _From | None},
    "stream": {
        "topic": _TopicName,
        "partitions": Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)],
        "keyFormat": Literal["plain", "prefixed"],
        "resource": _Name,
        "namespace": _Name | None,
        "selectors": _Selectors,
        "configHash": Annotated[str, Meta(max_length=NAME_MAX)],
        "epochBase": Annotated[int, Meta(ge=0)],
    },
    "snapshot": {
        "snapshot": _Id,
        "epoch": Annotated[int, Meta(ge=0, le=EPOCH_MAX)],
        "rv": Annotated[str, Meta(max_length=NAME_MAX)],
        "time": str,
        "count": _Count,
        "requests": list[_Id],
        "partitions": list[_IndexPartition],
    },
}
"""What this version reads of each kind, and the type that it must have where it is present. A field
of another name is left as it is."""
_REQUIRED: dict[str, str] = {"claim": "instance", "stream": "epochBase"}


class ControlRecord(NamedTuple):
    """A control record, its fields checked.

    `value` is None for a record that was deleted. `odd` names the fields that were left out because
    they cannot be used, "" for none.
    """

    kind: ControlKind
    stream: str
    value: dict[str, object] | None
    odd: str = ""


def control_key(kind: ControlKind, stream: str) -> bytes:
    """The key of a control record: `claim/pods`."""
    return f"{kind}/{stream}".encode()


def parse_control_key(key: bytes | None) -> tuple[ControlKind, str]:
    """The kind and the stream of a control record.

    Raises:
        RecordRefused: It is no key of the contract.
    """
    try:
        kind, slash, stream = (key or b"").decode().partition("/")
    except UnicodeDecodeError:
        kind = slash = stream = ""
    match kind:
        case "claim" | "stream" | "snapshot" if (
            slash and stream and len(stream) <= NAME_MAX and stream.isprintable()
        ):
            return kind, stream
        case _:
            raise RecordRefused(
                f"control record with key {short(repr(key))}: claim/, stream/ or snapshot/ and a "
                "stream id are read"
            )


def control_value(value: dict[str, object]) -> bytes:
    """A control record's value as JSON, keys in the order given."""
    return msgspec.json.encode(value)


def parse_control_value(value: bytes) -> dict[str, object]:
    """A control record's value, its fields not checked.

    Raises:
        RecordRefused: It is too large, too deep or no JSON object.
    """
    if len(value) > VALUE_BYTES_MAX:
        raise RecordRefused(
            f"control record of {len(value):,} bytes: {VALUE_BYTES_MAX:,} are taken"
        )
    try:
        parsed = msgspec.json.decode(value, type=dict[str, object])
    except BROKEN_JSON as error:
        raise RecordRefused(
            f"control record that is not a JSON object: {why_broken(error, value)}"
        ) from error
    level: list[object] = [parsed]
    for _ in range(_DEPTH_MAX):
        level = [each for outer in level for each in _inside(outer)]
        if not level:
            return parsed
    raise RecordRefused(f"control record that is nested deeper than {_DEPTH_MAX} levels")


def _inside(value: object) -> Sequence[object]:
    return (
        [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    )


def parse_control(key: bytes | None, value: bytes | None) -> ControlRecord:
    """A control record with every field checked that this version reads.

    A claim or an index record is read without its odd fields, which are then treated as absent:
    a claim counts whatever else the record holds. A description counts as a whole or not at all.

    Raises:
        RecordRefused: It is not of the contract; names the field.
    """
    kind, stream = parse_control_key(key)
    if value is None:
        return ControlRecord(kind, stream, None)
    parsed, where = parse_control_value(value), f"record {kind}/{short(stream)}"
    odd = {
        name: why
        for name, shape in _FIELDS[kind].items()
        if name in parsed and (why := _odd(parsed[name], shape, name))
    }
    required = _REQUIRED.get(kind)
    if required is not None and required not in parsed:
        raise RecordRefused(f"{where} has no field {required}")
    detail = (
        f"{where}: {'; '.join(f'field {name}: {why}' for name, why in odd.items())}" if odd else ""
    )
    if odd and (kind == "stream" or required in odd):
        raise RecordRefused(detail)
    return ControlRecord(
        kind, stream, {name: each for name, each in parsed.items() if name not in odd}, detail
    )


def epoch_base_too_high(stream: str, base: int) -> RecordRefused:
    """What to raise for a description whose `epochBase` leaves no epochs."""
    return RecordRefused(
        f"record stream/{short(stream)}: field epochBase: {short(str(base))} exceeds the maximum "
        f"{EPOCH_BASE_MAX}"
    )


def _odd(value: object, shape: Any, name: str) -> str:
    """Why `value` cannot be used, "" if it can."""
    try:
        msgspec.convert(value, shape)
        if name == "time":
            parse_timestamp(str(value).encode())
    except (ValueError, OverflowError) as error:  # a ValidationError of msgspec is a ValueError
        return short(str(error))
    return ""


def claim_value(
    *,
    holder: str,
    instance: str,
    version: str,
    time_ms: int,
    starting_point: dict[str, object] | None,
) -> dict[str, object]:
    """`claim/<stream>`. `starting_point` is {"snapshot","begin":[offset]} or None. Source:
    docs/record-contract.md, section 7."""
    return {
        "holder": holder,
        "instance": instance,
        "version": version,
        "time": rfc3339(time_ms),
        "from": starting_point,
    }


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
    """`snapshot/<stream>`, the index record of a complete snapshot. Source:
    docs/record-contract.md, section 7."""
    return {
        "snapshot": snapshot,
        "epoch": epoch,
        "rv": frontier,
        "time": rfc3339(time_ms),
        "count": sum(each.count for each in partitions),
        "requests": list(requests),
        "partitions": [
            {**msgspec.structs.asdict(each), "digest": f"{each.digest:016x}"} for each in partitions
        ],
    }


def starting_point(index: Mapping[str, object], partitions: int) -> dict[str, object] | None:
    """The `from` that an index record gives; None (the start) if it does not cover exactly these
    partitions."""
    listed, snapshot = index.get("partitions"), index.get("snapshot")
    if not isinstance(listed, list) or not isinstance(snapshot, str):
        return None
    begins = {}
    for each in listed:
        if (
            not isinstance(each, dict)
            or not is_count(partition := each.get("partition"))
            or not is_count(each.get("begin"))
        ):
            return None
        begins[partition] = each["begin"]
    if len(listed) != partitions or begins.keys() != set(range(partitions)):
        return None
    return {"snapshot": snapshot, "begin": [begins[partition] for partition in range(partitions)]}


def is_count(value: object, most: int = COUNT_MAX) -> bool:
    """Whether this value of a record is a valid offset, epoch or count: an integer from 0 to
    `most`."""
    return type(value) is int and 0 <= value <= most
