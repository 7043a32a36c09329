"""The records of the control topic: claims, releases, stream descriptions, the snapshot index.
Pure.

Source: docs/record-contract.md, section 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple, NotRequired, TypedDict

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
"""An index record has a hundred bytes for each partition."""
VALUES_MAX: Final = 700_000
"""Commas and opening brackets in a value, wherever they are: about the values in it. An index
record has six for each partition; decoded, each takes up to a hundred bytes."""
REQUESTS_MAX: Final = 10_000
"""Requests that an index record names."""
_BYTES_OF_FIELD: Final = {"ids": 1 << 20, "requests": 4 << 20}
"""Of these fields as JSON: a relay writes far less."""
_VALUES_OF_FIELD: Final = {"from": 2 * PARTITIONS_MAX + 10, "selectors": 2 * PARTITIONS_MAX + 10}
"""Of these fields: keys of objects take several times as long to decode as anything else."""
_VALUE_BYTES, _FROM_BYTES = 64, 130
"""What a decoded value takes, about; those of a `from` by partition have keys of their own."""
EPOCH_BASE_MAX: Final = EPOCH_MAX - (1 << 40)
"""The highest to write under: each claim takes as many epochs as the control topic has grown."""
NAME_MAX: Final = 1000
"""Characters of a stream id, and of any other name in a control record."""
_ID_MAX = 200
_DEPTH_MAX = 32
"""Levels of nesting in a value: the deepest field of the contract has three."""
_OTHERS_BYTES_MAX, _OTHER_VALUES_MAX = 64 << 10, 1000
"""Fields of another version are decoded if the whole record has at most that many bytes, and these
fields together at most that many values; otherwise they are passed over."""

_Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
_Id = Annotated[str, Meta(min_length=1, max_length=_ID_MAX)]
_Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
_Epoch = Annotated[int, Meta(ge=0, le=EPOCH_MAX)]
_TopicName = Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9._-]{1,249}\Z")]


class _Selectors(TypedDict):
    labelSelector: NotRequired[str]
    fieldSelector: NotRequired[str]
    namespaces: NotRequired[list[_Name] | None]


_PartitionName = Annotated[str, Meta(pattern=r"\A(0|[1-9][0-9]{0,5})\Z")]


class _From(TypedDict):
    snapshot: _Id | dict[_PartitionName, _Id]
    begin: list[_Count] | dict[_PartitionName, _Count]


class _IndexPartition(TypedDict):
    partition: _Count
    begin: _Count
    end: NotRequired[_Count]
    count: NotRequired[_Count]
    digest: NotRequired[str]


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
        "ignoreChanges": list[str],
        "publishWhen": list[str],
    },
    "snapshot": {
        "snapshot": _Id,
        "epoch": _Epoch,
        "rv": Annotated[str, Meta(max_length=NAME_MAX)],
        "time": str,
        "count": _Count,
        "requests": Annotated[list[_Id], Meta(max_length=REQUESTS_MAX)],
        "partitions": Annotated[list[_IndexPartition], Meta(max_length=PARTITIONS_MAX)],
    },
}
"""What this version reads of each kind, and its type; other fields are kept if they are small."""
_DECODERS: Final = {
    kind: {name: msgspec.json.Decoder(shape) for name, shape in fields.items()}
    for kind, fields in _FIELDS.items()
}
_UNDECODED: Final = {
    kind: msgspec.json.Decoder(
        msgspec.defstruct(kind, [(name, msgspec.Raw, msgspec.Raw()) for name in fields])
    )
    for kind, fields in _FIELDS.items()
}
_EACH_UNDECODED: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_REQUIRED = {
    "claim": ("instance",),
    "release": ("epoch",),
    "stream": ("topic", "partitions", "epochBase"),
    "snapshot": (),
}


class ControlRecord(NamedTuple):
    """A control record, its fields checked; `value` None: it was deleted. `stream` is a stream or
    a part of one; `odd` names the fields that were left out because they cannot be used. `size`:
    what `value` takes in memory, about, in bytes."""

    kind: ControlKind
    stream: str
    value: Value | None
    odd: str = ""
    size: int = 0


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


def _values_in(value: bytes) -> int:
    return value.count(b",") + value.count(b"[") + value.count(b"{")


def parse_control(key: bytes | None, value: bytes | None) -> ControlRecord:
    """A control record with every field checked that this version reads. A claim or an index
    record is read without its odd fields; a description counts as a whole or not at all.

    Raises: RecordRefused: it is not of the contract; names the field."""
    kind, stream = parse_control_key(key)
    if value is None:
        return ControlRecord(kind, stream, None)
    where, count = f"record {kind}/{short(stream)}", _bounded_count(value)
    fields, parsed = _fields(value, kind)
    odd = dict[str, str]()
    size = len(value) + (_FROM_BYTES if "from" in fields else _VALUE_BYTES) * count
    for name, decoder in _DECODERS[kind].items():
        if name in fields:
            try:
                parsed[name] = _decoded(fields[name], decoder, name)
            except (ValueError, OverflowError, RecursionError) as error:
                odd[name] = short(str(error))
    for required in _REQUIRED[kind]:
        if required not in fields:
            raise RecordRefused(f"{where} has no field {required}")
    detail = (
        f"{where}: {'; '.join(f'field {name}: {why}' for name, why in odd.items())}" if odd else ""
    )
    if odd and (kind == "stream" or not odd.keys().isdisjoint(_REQUIRED[kind])):
        raise RecordRefused(detail)
    return ControlRecord(kind, stream, parsed, detail, size)


def _bounded_count(value: bytes) -> int:
    """As `_values_in`. Raises: RecordRefused: more values or bytes than may be decoded."""
    if len(value) > VALUE_BYTES_MAX:
        raise RecordRefused(
            f"control record of {len(value):,} bytes: {VALUE_BYTES_MAX:,} are taken"
        )
    if (count := _values_in(value)) > VALUES_MAX:
        raise RecordRefused(
            f"control record with {count:,} commas and opening brackets: {VALUES_MAX:,} are taken"
        )
    return count


def _fields(value: bytes, kind: ControlKind) -> tuple[dict[str, msgspec.Raw], Value]:
    """The fields that this version reads, undecoded, and those of another version, unless they are
    large. Raises: RecordRefused."""
    try:
        known = msgspec.structs.asdict(_UNDECODED[kind].decode(value))
        others = dict[str, msgspec.Raw]()
        if len(value) <= _OTHERS_BYTES_MAX:
            others = _EACH_UNDECODED.decode(value)
    except BROKEN_JSON as error:
        raise RecordRefused(
            f"control record that is not a JSON object: {why_broken(error, value)}"
        ) from error
    fields = {name: field for name, field in known.items() if memoryview(field)}
    return fields, _decoded_others(
        {name: bytes(field) for name, field in others.items() if name not in known}
    )


def _decoded_others(found: dict[str, bytes]) -> Value:
    """The fields of another version, none if they have too many values. Raises: RecordRefused."""
    if sum(map(_values_in, found.values())) > _OTHER_VALUES_MAX:
        return {}
    try:
        parsed = {name: msgspec.json.decode(each) for name, each in found.items()}
    except BROKEN_JSON as error:
        raise RecordRefused(f"control record that cannot be read: {short(str(error))}") from error
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


def _decoded(field: msgspec.Raw, decoder: msgspec.json.Decoder[Any], name: str) -> Any:
    """A field's value. Raises: ValueError (those of msgspec are some), OverflowError,
    RecursionError: it cannot be used."""
    if (most := _BYTES_OF_FIELD.get(name)) and (size := len(memoryview(field))) > most:
        raise ValueError(f"{size:,} bytes: {most:,} are taken")
    if (most := _VALUES_OF_FIELD.get(name)) and (count := _values_in(bytes(field))) > most:
        raise ValueError(f"{count:,} commas and opening brackets: {most:,} are taken")
    value = decoder.decode(field)
    if name == "time":
        parse_timestamp(value.encode())
    return value


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
