"""The records of the control topic: claims, releases, stream descriptions, the snapshot index.
Pure.

Source: docs/record-contract.md, section 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from watchrelay.contract.records import EPOCH_MAX, PARTITIONS_MAX
from watchrelay.core.errors import RecordRefused
from watchrelay.core.text import BROKEN_JSON, short, why_broken
from watchrelay.core.timestamps import parse_timestamp, rfc3339
from watchrelay.model.parts import stream_and_part

ControlKind = Literal["claim", "release", "stream", "snapshot"]
Value = dict[str, Any]
"""A control record's JSON."""

COUNT_MAX: Final = (1 << 53) - 1
"""The largest number that every JSON reader reads alike."""
VALUE_BYTES_MAX: Final = 16 * 1024 * 1024
"""An index record has a hundred bytes for each partition; decoded JSON takes twenty times more."""
EPOCH_BASE_MAX: Final = EPOCH_MAX - (1 << 40)
"""The highest to write under: each claim takes as many epochs as the control topic has grown."""
NAME_MAX: Final = 1000
"""Characters of a stream id, and of any other name in a control record."""
_ID_MAX = 200
_DEPTH_MAX = 32
"""Levels of nesting in a value: the deepest field of the contract has three."""

_Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
_Id = Annotated[str, Meta(min_length=1, max_length=_ID_MAX)]
_Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
_Epoch = Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
_TopicName = Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9._-]{1,249}\Z")]


class _Selectors(msgspec.Struct, rename="camel"):
    label_selector: str = ""
    field_selector: str = ""
    namespaces: list[_Name] | None = None


_PartitionName = Annotated[str, Meta(pattern=r"\A(0|[1-9][0-9]{0,5})\Z")]


class _From(msgspec.Struct):
    snapshot: _Id | dict[_PartitionName, _Id]
    begin: list[_Count] | dict[_PartitionName, _Count]


class _IndexPartition(msgspec.Struct):
    partition: _Count
    begin: _Count
    end: _Count = 0
    count: _Count = 0
    digest: str = ""


_Partitions = Annotated[
    list[Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]], Meta(max_length=PARTITIONS_MAX)
]

_FIELDS: dict[str, dict[str, Any]] = {
    "claim": {
        "instance": _Id,
        "holder": _Name,
        "from": _From | None,
        "ids": list[_Name],
        "partitions": _Partitions,
    },
    "release": {"epoch": _Epoch},
    "stream": {
        "topic": _TopicName,
        "partitions": Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)],
        "keyFormat": Literal["plain", "prefixed"],
        "resource": _Name,
        "kind": Annotated[str, Meta(max_length=NAME_MAX)],
        "namespace": _Name | None,
        "selectors": _Selectors,
        "configHash": Annotated[str, Meta(max_length=NAME_MAX)],
        "epochBase": Annotated[int, Meta(ge=0)],
    },
    "snapshot": {
        "snapshot": _Id,
        "epoch": _Epoch,
        "rv": Annotated[str, Meta(max_length=NAME_MAX)],
        "time": str,
        "count": _Count,
        "requests": list[_Id],
        "partitions": list[_IndexPartition],
    },
}
"""What this version reads of each kind, and its type; other fields are left as they are."""
_REQUIRED = {
    "claim": ("instance",),
    "release": ("epoch",),
    "stream": ("topic", "partitions", "epochBase"),
    "snapshot": (),
}


class ControlRecord(NamedTuple):
    """A control record, its fields checked; `value` None: it was deleted. `stream` is a stream or
    a part of one; `odd` names the fields that were left out because they cannot be used."""

    kind: ControlKind
    stream: str
    value: Value | None
    odd: str = ""


def control_key(kind: ControlKind, stream: str) -> bytes:
    """The key of a control record: `claim/pods`, or of a part `claim/pods%0/4`."""
    return f"{kind}/{stream}".encode()


def parse_control_key(key: bytes | None) -> tuple[ControlKind, str]:
    """The kind of a control record, and its stream or part. Raises: RecordRefused."""
    try:
        kind, slash, stream = (key or b"").decode().partition("/")
        if stream_and_part(stream)[1].of > 1 and kind == "stream":
            stream = ""  # parts have one description
    except ValueError:  # a UnicodeDecodeError is one
        kind = slash = stream = ""
    match kind:
        case "claim" | "release" | "stream" | "snapshot" if (
            slash and stream and len(stream) <= NAME_MAX and stream.isprintable()
        ):
            return kind, stream
        case _:
            raise RecordRefused(
                f"control record with key {short(repr(key))}: claim/, release/, stream/ or "
                "snapshot/ and a stream id are read"
            )


def control_value(value: Value) -> bytes:
    """A control record's value as JSON, keys in the order given."""
    return msgspec.json.encode(value)


def parse_control_value(value: bytes) -> Value:
    """A control record's value, its fields not checked. Raises: RecordRefused."""
    if len(value) > VALUE_BYTES_MAX:
        raise RecordRefused(
            f"control record of {len(value):,} bytes: {VALUE_BYTES_MAX:,} are taken"
        )
    try:
        parsed = msgspec.json.decode(value, type=dict[str, Any])
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
    """A control record with every field checked that this version reads. A claim or an index
    record is read without its odd fields; a description counts as a whole or not at all.

    Raises: RecordRefused: it is not of the contract; names the field."""
    kind, stream = parse_control_key(key)
    if value is None:
        return ControlRecord(kind, stream, None)
    parsed, where = parse_control_value(value), f"record {kind}/{short(stream)}"
    odd = {
        name: why
        for name, shape in _FIELDS[kind].items()
        if name in parsed and (why := _odd(parsed[name], shape, name))
    }
    for required in _REQUIRED[kind]:
        if required not in parsed:
            raise RecordRefused(f"{where} has no field {required}")
    detail = (
        f"{where}: {'; '.join(f'field {name}: {why}' for name, why in odd.items())}" if odd else ""
    )
    if odd and (kind == "stream" or not odd.keys().isdisjoint(_REQUIRED[kind])):
        raise RecordRefused(detail)
    return ControlRecord(
        kind, stream, {name: each for name, each in parsed.items() if name not in odd}, detail
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
    holder: str,
    instance: str,
    version: str,
    time_ms: int,
    starting_point: Value | None,
    ids: Sequence[str] = (),
    partitions: Sequence[int] | None = None,
) -> Value:
    """`claim/<stream>`. `starting_point` as of `StreamControl`; `ids`: the transactional ids of
    this writer and of those before it; `partitions` None: all."""
    claim: Value = {
        "holder": holder,
        "instance": instance,
        "version": version,
        "time": rfc3339(time_ms),
        "from": starting_point,
        **({"ids": [*ids]} if ids else {}),
    }
    return claim if partitions is None else {**claim, "partitions": [*partitions]}


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
) -> Value:
    """`snapshot/<stream>`, the index record of a complete snapshot."""
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
