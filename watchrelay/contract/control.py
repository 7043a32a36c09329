"""The control topic: its records (claims, releases, stream descriptions, the snapshot index), and
the fold of them that writers and readers use. Pure.

Source: docs/record-contract.md, section 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from watchrelay.contract.records import EPOCH_MAX, PARTITIONS_MAX
from watchrelay.core.errors import RecordRefused
from watchrelay.core.text import BROKEN_JSON, short, why_broken
from watchrelay.core.timestamps import parse_timestamp, rfc3339

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
    "claim": {"instance": _Id, "holder": _Name, "from": _From | None, "ids": list[_Name]},
    "release": {"epoch": _Epoch},
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
    """A control record, its fields checked; `value` None: it was deleted. `odd` names the
    fields that were left out because they cannot be used."""

    kind: ControlKind
    stream: str
    value: Value | None
    odd: str = ""


def control_key(kind: ControlKind, stream: str) -> bytes:
    """The key of a control record: `claim/pods`."""
    return f"{kind}/{stream}".encode()


def parse_control_key(key: bytes | None) -> tuple[ControlKind, str]:
    """The kind and the stream of a control record. Raises: RecordRefused."""
    try:
        kind, slash, stream = (key or b"").decode().partition("/")
    except UnicodeDecodeError:
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
) -> Value:
    """`claim/<stream>`. `starting_point` is {"snapshot","begin":[offset]} or None; `ids`: the
    transactional ids of this writer and of those before it."""
    return {
        "holder": holder,
        "instance": instance,
        "version": version,
        "time": rfc3339(time_ms),
        "from": starting_point,
        **({"ids": [*ids]} if ids else {}),
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


# ---- the fold ------------------------------------------------------------------------------------


class Origin(NamedTuple):
    """Where one partition is read from: an offset (None: its start) and the snapshot that
    begins there."""

    offset: int | None = None
    snapshot: str = ""


class DescribedStream(NamedTuple):
    """The place of a stream, as its writer described it."""

    topic: str
    partitions: int


@dataclass(slots=True)
class StreamControl:
    """One stream on the control topic."""

    instances: dict[str, int] = field(default_factory=dict)
    """The offset of the first record of each claim's instance."""
    claimed: int = -1
    """The highest of those, -1 before any claim."""
    holder: str | None = None
    ids: tuple[str, ...] = ()
    """The transactional ids that its claims have named."""
    released: int = -1
    """The newest epoch of which a release was read; -1 for none."""
    origin: Value | None = None
    """The `from` of the newest claim."""
    epoch_base: int | None = None
    """Never goes down, whatever an older writer may describe later."""
    too_high: int | None = None
    """The `epochBase` of the newest description where it is too high to write under it."""
    description: Value | None = None
    retired: bool = False
    """The description was deleted."""
    overwritten: bool = False
    """An unusable record follows the description: compaction will keep that one."""
    index: Value | None = None

    @property
    def epoch(self) -> int | None:
        """The newest claim's epoch; None before any claim or description."""
        return (
            None if self.epoch_base is None or self.claimed < 0 else self.epoch_base + self.claimed
        )

    @property
    def described(self) -> DescribedStream | None:
        """Its place, as far as it can be read there."""
        if self.description is None or "epochBase" not in self.description:
            return None
        return DescribedStream(self.description["topic"], self.description["partitions"])

    @property
    def next_base(self) -> int:
        """An `epochBase` for a topic whose offsets start again: above all epochs before."""
        return (self.epoch_base or 1) if self.epoch is None else self.epoch + 1

    def starting_point(self, partitions: int) -> Value | None:
        """Where reading starts: {"snapshot", "begin": [offset]}, or None for the start of
        each partition. Source: docs/record-contract.md, sections 4.1 and 5.

        An index record counts only while its writer is the newest: a former one may
        complete a snapshot behind a newer claim, and a reader from that begin would not
        know that it is outdated."""
        if self.index and self.epoch is not None and self.index.get("epoch") == self.epoch:
            point = starting_point(self.index, partitions)
            if point is not None:
                return point
        fits = self.origin is not None and len(self.origin["begin"]) == partitions
        return self.origin if fits else None


class ControlState:
    """All streams on the control topic, as far as it was read; reading a record again changes
    nothing."""

    def __init__(self) -> None:
        self.streams: dict[str, StreamControl] = {}

    def of(self, stream: str) -> StreamControl:
        """What is known of `stream`, empty when nothing was read."""
        return self.streams.get(stream) or StreamControl()

    def descriptions(self) -> dict[str, Value]:
        """The description of each stream that has one, by stream id, in order."""
        return {
            stream: held.description
            for stream, held in sorted(self.streams.items())
            if held.description is not None
        }

    def described(self) -> dict[str, DescribedStream]:
        """The place of each stream that can be read."""
        return {
            stream: described
            for stream, held in sorted(self.streams.items())
            if (described := held.described) is not None
        }

    def origins(self, stream: str) -> list[Origin]:
        """Where a reader of `stream` starts, by partition; empty without a description."""
        held = self.of(stream)
        if (described := held.described) is None:
            return []
        point = held.starting_point(described.partitions)
        if point is None:
            return [Origin()] * described.partitions
        return [Origin(begin, point["snapshot"]) for begin in point["begin"]]

    def read(self, offset: int, key: bytes | None, value: bytes | None) -> str:
        """Take one record; which of its fields were passed over and why, "" for none.

        Raises: RecordRefused: it is not of the contract. Of its stream nothing changed but
        `too_high` and `overwritten`; read on."""
        try:
            kind, stream, parsed, odd = parse_control(key, value)
        except RecordRefused:
            if key is not None and key.startswith(b"stream/"):
                described = self.streams.get(key.removeprefix(b"stream/").decode(errors="replace"))
                if described is not None:
                    described.overwritten = True
            raise
        held = self.streams.setdefault(stream, StreamControl())
        match kind:
            case "claim" if parsed is not None:
                # A repeated instance is no new claim. Source: docs/record-contract.md, section 4.1.
                held.ids = tuple(dict.fromkeys((*held.ids, *parsed.get("ids", ()))))
                first = held.instances.setdefault(parsed["instance"], offset)
                if first > held.claimed:
                    held.claimed = first
                    held.holder, held.origin = parsed.get("holder"), parsed.get("from")
            case "stream":
                _describe(held, stream, parsed)
            case "release" if parsed is not None:
                held.released = max(held.released, parsed["epoch"])
            case "snapshot":
                held.index = parsed
            case _:
                pass
        return odd


def _describe(held: StreamControl, stream: str, parsed: Value | None) -> None:
    held.too_high = None
    held.retired = parsed is None
    if parsed is None:
        held.description = None
        return
    base = parsed["epochBase"]
    if base > EPOCH_BASE_MAX:
        held.too_high = base
        if held.description is None:  # `retire` needs to know what it is to retire
            held.description = {name: each for name, each in parsed.items() if name != "epochBase"}
        raise RecordRefused(
            f"record stream/{short(stream)}: field epochBase: {short(str(base))} exceeds the "
            f"maximum {EPOCH_BASE_MAX}"
        )
    held.description, held.overwritten = parsed, False
    held.epoch_base = max(base, held.epoch_base or 0)


def remembered(former: ControlState, lost: ControlState) -> ControlState:
    """What is known after two losses in a row: of a stream not claimed since, what the older
    one held."""
    both = ControlState()
    both.streams = former.streams | {
        stream: held
        for stream, held in lost.streams.items()
        if held.claimed >= 0 or stream not in former.streams
    }
    return both


def starting_point(index: Value, partitions: int) -> Value | None:
    """The `from` that an index record gives; None if it does not cover exactly these partitions."""
    listed = sorted((each["partition"], each["begin"]) for each in index.get("partitions", ()))
    if "snapshot" not in index or [each for each, _ in listed] != list(range(partitions)):
        return None
    return {"snapshot": index["snapshot"], "begin": [begin for _, begin in listed]}
