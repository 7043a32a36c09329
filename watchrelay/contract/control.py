"""The control topic: its records (claims, releases, stream descriptions, the snapshot index), and
the fold of them that writers and readers use. Pure.

Source: docs/record-contract.md, section 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from watchrelay.contract.records import EPOCH_MAX, PARTITIONS_MAX
from watchrelay.core.errors import RecordRefused
from watchrelay.core.text import BROKEN_JSON, short, why_broken
from watchrelay.core.timestamps import parse_timestamp, rfc3339
from watchrelay.model.parts import Part, stream_and_part

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


# ---- the fold ------------------------------------------------------------------------------------


class Origin(NamedTuple):
    """The starting point in one partition: an offset (None: its start) and the snapshot that begins
    there."""

    offset: int | None = None
    snapshot: str = ""


class DescribedStream(NamedTuple):
    """The place of a stream, as its writer described it."""

    topic: str
    partitions: int


@dataclass(slots=True)
class WriterControl:
    """The claims, releases and index records of a stream, or of a part, under its own keys."""

    instances: dict[str, int] = field(default_factory=dict)
    """The offset of the first record of each claim's instance."""
    claimed: int = -1
    """The highest of those, -1 before any claim."""
    holder: str | None = None
    ids: tuple[str, ...] = ()
    """The transactional ids that the claims under its key have named."""
    released: int = -1
    """The newest epoch of which a release was read; -1 for none."""
    starting_point_claimed: Value | None = None
    """The `from` of the newest claim."""
    partitions: frozenset[int] | None = None
    """Those that the newest claim names; None: all."""
    index: Value | None = None

    def claims(self, partition: int) -> bool:
        """Whether the newest claim is of `partition`."""
        return self.claimed >= 0 and (self.partitions is None or partition in self.partitions)

    def origins(self, partitions: int, epoch: int | None) -> dict[int, Origin]:
        """Where those who read on from the newest claim, of `epoch`, start; partitions that are
        missing are read from their start. Source: docs/record-contract.md, sections 4.1 and 5.

        An index record counts only while its writer is the newest: a former one may
        complete a snapshot behind a newer claim, and a reader from that begin would not
        know that it is outdated."""
        if self.index and epoch is not None and self.index.get("epoch") == epoch:
            claimed = range(partitions) if self.partitions is None else sorted(self.partitions)
            if indexed := index_origins(self.index, claimed):
                return indexed
        return claim_origins(self.starting_point_claimed, partitions)


@dataclass(slots=True)
class StreamControl(WriterControl):
    """One stream on the control topic."""

    parts: dict[str, WriterControl] = field(default_factory=dict)
    """By id, the parts that a record was read of."""
    epoch_base: int | None = None
    """Never goes down, whatever an older writer may describe later."""
    too_high: int | None = None
    """The `epochBase` of the newest description where it is too high to write under it."""
    description: Value | None = None
    retired: bool = False
    """The description was deleted."""
    overwritten: bool = False
    """An unusable record follows the description: compaction will keep that one."""

    def epoch_of(self, writer: WriterControl) -> int | None:
        """The epoch of the newest claim of the stream or a part of it; None before any claim or
        description."""
        unknown = self.epoch_base is None or writer.claimed < 0
        return None if unknown else (self.epoch_base or 0) + writer.claimed

    def writer(self, name: str) -> WriterControl:
        """What is under the keys of the stream itself, or of a part of it."""
        _, part = stream_and_part(name)
        return self if part.of == 1 else self.parts.get(name) or WriterControl()

    @property
    def described(self) -> DescribedStream | None:
        """Its place, as far as it can be read there."""
        if self.description is None or "epochBase" not in self.description:
            return None
        return DescribedStream(self.description["topic"], self.description["partitions"])

    @property
    def last_claimed(self) -> int:
        """The offset of the newest claim of the stream or any part, -1 before any."""
        return max(self.claimed, *(each.claimed for each in self.parts.values()), -1)

    @property
    def next_base(self) -> int:
        """An `epochBase` for a topic whose offsets start again: above all epochs before."""
        base = self.epoch_base or 1
        unclaimed = self.epoch_base is None or self.last_claimed < 0
        return base if unclaimed else base + self.last_claimed + 1

    def newest(self, partition: int) -> WriterControl | None:
        """Whose claim of `partition` is the newest; None before any."""
        claims = (each for each in (self, *self.parts.values()) if each.claims(partition))
        return max(claims, key=lambda each: each.claimed, default=None)

    def claimed_by_parts(self, partitions: int) -> bool:
        """Whether every partition was claimed by a part behind the newest claim under the stream's
        own key, which names partitions."""
        owners = [self.newest(partition) for partition in range(partitions)]
        named = self.partitions is None or bool(self.partitions)
        return named and not any(each is None or each is self for each in owners)

    def newest_index(self, part: Part) -> Value | None:
        """The oldest of `newest_indexes`; None for none."""
        return min(self.newest_indexes(part), key=_epoch_in, default=None)

    def newest_indexes(self, part: Part) -> list[Value]:
        """The newest index record of each partition of `part`, possibly of another part then;
        empty where a partition has none."""
        if not self.parts or self.description is None:
            return [self.index] if self.index else []
        found: list[Value] = []
        indexes = [each.index for each in (self, *self.parts.values()) if each.index]
        for partition in part.partitions(self.description["partitions"]):
            of_it = [
                index
                for index in indexes
                if any(each["partition"] == partition for each in index.get("partitions", ()))
            ]
            if not of_it:
                return []
            found.append(max(of_it, key=_epoch_in))
        return found

    def starts(self, partitions: int) -> dict[int, Origin]:
        """Where each partition is read from, by its newest claim; those that are missing, from
        their start."""
        by_writer: dict[int, dict[int, Origin]] = {}
        found: dict[int, Origin] = {}
        for partition in range(partitions):
            if (writer := self.newest(partition)) is None:
                continue
            if (origins := by_writer.get(writer.claimed)) is None:
                origins = writer.origins(partitions, self.epoch_of(writer))
                by_writer[writer.claimed] = origins
            if partition in origins:
                found[partition] = origins[partition]
        return found

    def starting_point(
        self,
        partitions: int,
        own: Sequence[int] | None = None,
        *,
        former: StreamControl | None = None,
    ) -> Value | None:
        """The `from` of a claim that is made now, None for the start of each partition.

        Args:
            own: the partitions of a part.
            former: counts for the partitions that nobody has claimed since."""
        starts = {
            partition: origin
            for partition, origin in (former.starts(partitions) if former else {}).items()
            if self.newest(partition) is None
        } | self.starts(partitions)
        if own is None:
            return from_value(starts, partitions)
        return from_value({each: starts[each] for each in own if each in starts}, None)


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
        starts = held.starts(described.partitions)
        return [starts.get(partition, Origin()) for partition in range(described.partitions)]

    def read(self, offset: int, key: bytes | None, value: bytes | None) -> str:
        """Take one record; which of its fields were passed over and why, "" for none.

        Raises: RecordRefused: it is not of the contract. Of its stream nothing changed but
        `too_high` and `overwritten`; read on."""
        try:
            kind, written, parsed, odd = parse_control(key, value)
        except RecordRefused:
            if key is not None and key.startswith(b"stream/"):
                described = self.streams.get(key.removeprefix(b"stream/").decode(errors="replace"))
                if described is not None:
                    described.overwritten = True
            raise
        stream, part = stream_and_part(written)
        held = self.streams.setdefault(stream, StreamControl())
        writer = held if part.of == 1 else held.parts.setdefault(written, WriterControl())
        match kind:
            case "claim" if parsed is not None:
                # A repeated instance is no new claim. Source: docs/record-contract.md, section 4.1.
                writer.ids = tuple(dict.fromkeys((*writer.ids, *parsed.get("ids", ()))))
                first = writer.instances.setdefault(parsed["instance"], offset)
                if first > writer.claimed:
                    named = parsed.get("partitions")
                    writer.claimed = first
                    writer.partitions = None if named is None else frozenset(named)
                    writer.holder, writer.starting_point_claimed = (
                        parsed.get("holder"),
                        parsed.get("from"),
                    )
            case "stream":
                _describe(held, stream, parsed)
            case "release" if parsed is not None:
                writer.released = max(writer.released, parsed["epoch"])
            case "snapshot":
                writer.index = parsed
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
        if held.last_claimed >= 0 or stream not in former.streams
    }
    return both


def _epoch_in(index: Value) -> int:
    return int(index.get("epoch", 0))


def index_origins(index: Value, partitions: Sequence[int]) -> dict[int, Origin]:
    """By partition, the begin that an index record names; empty if it is not of exactly these
    `partitions`, which are in order."""
    listed = sorted((each["partition"], each["begin"]) for each in index.get("partitions", ()))
    if "snapshot" not in index or [each for each, _ in listed] != [*partitions]:
        return {}
    return {partition: Origin(begin, index["snapshot"]) for partition, begin in listed}


def claim_origins(starting_point: Value | None, partitions: int) -> dict[int, Origin]:
    """By partition, the starting point that a claim names (`from`); empty for none, or one that
    cannot be used."""
    match starting_point:
        case {"snapshot": str(snapshot), "begin": list(begins)} if len(begins) == partitions:
            return {partition: Origin(each, snapshot) for partition, each in enumerate(begins)}
        case {"snapshot": dict(snapshots), "begin": dict(begins)}:
            return {
                int(partition): Origin(begin, snapshots[partition])
                for partition, begin in begins.items()
                if partition in snapshots
            }
        case _:
            return {}


def from_value(origins: Mapping[int, Origin], partitions: int | None) -> Value | None:
    """The `from` of a claim, of which `claim_origins` gives `origins` again; None for none.

    Args:
        partitions: of a claim of the whole stream, their number: readers that know no parts read
            from the start what is not of one snapshot."""
    snapshots = {each.snapshot for each in origins.values()}
    if len(origins) == partitions and len(snapshots) == 1:
        begins = [origins[partition].offset for partition in range(partitions)]
        return {"snapshot": snapshots.pop(), "begin": begins}
    by_name = {str(partition): each for partition, each in sorted(origins.items())}
    return (
        {
            "snapshot": {name: each.snapshot for name, each in by_name.items()},
            "begin": {name: each.offset for name, each in by_name.items()},
        }
        if by_name
        else None
    )
