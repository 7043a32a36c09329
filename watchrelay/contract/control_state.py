"""The fold of the control topic that writers and readers use: what is known of each stream. Pure.

Source: docs/record-contract.md, sections 4.1, 5 and 7.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

from watchrelay.contract.control import EPOCH_BASE_MAX, Value, parse_control
from watchrelay.core.errors import RecordRefused
from watchrelay.core.text import short
from watchrelay.model.parts import Part, stream_and_part

IDS_MAX: Final = 50
"""Transactional ids that a claim names, the newest: a claimant fences all that it names, so one
that was left out has been fenced by each claimant since."""
_INSTANCES_MAX: Final = 100
"""A claim is appended again while its outcome is unknown: few others come between."""
KEPT_BYTES: Final = 48 << 20
"""What all streams and parts may take in memory, about; beyond it the oldest are forgotten."""
KEPT_BYTES_A_STREAM: Final = 64 << 10
"""The same, for each stream that is wanted: five times what one of ten partitions takes."""
_ROW_BYTES: Final = 1200
"""Of a stream or part without its records."""


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
    """The offset of the first record of each claim's instance, of the newest `_INSTANCES_MAX`."""
    claimed: int = -1
    """The highest of those that name partitions, -1 before any claim."""
    closed: int = -1
    """The offset of the newest claim under its key that names none, -1 before any. It claims
    nothing: the claim before it counts for what no other has claimed since."""
    holder: str | None = None
    ids: tuple[str, ...] = ()
    """The transactional ids that the claims under its key have named."""
    released: int = -1
    """The newest epoch of which a release was read; -1 for none."""
    starting_point_claimed: Value | None = None
    """The `from` of the newest claim."""
    partitions: frozenset[int] | None = None
    """Those that the claim at `claimed` names; None: all."""
    index: Value | None = None
    claim_bytes: int = 0
    index_bytes: int = 0

    @property
    def size(self) -> int:
        """What it takes in memory, about, in bytes."""
        return _ROW_BYTES + self.claim_bytes + self.index_bytes

    def origins(self, partitions: int, epoch: int | None) -> dict[int, Origin]:
        """Where those who read on from the newest claim, of `epoch`, start; partitions that are
        missing are read from their start. Source: docs/record-contract.md, sections 4.1 and 5.

        An index record counts only while its writer is the newest: a former one may
        complete a snapshot after a newer claim, and a reader from that begin would not
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
    description_bytes: int = 0
    _owners: list[WriterControl | None] | None = None
    _indexes: dict[int, Value] | None = None
    _claimants: dict[str, list[WriterControl]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The same, without its parts."""
        return _ROW_BYTES + self.claim_bytes + self.index_bytes + self.description_bytes

    def changed(self) -> None:
        """Forget what was computed from its claims and index records."""
        self._owners = self._indexes = None
        self._claimants.clear()

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
        if not self.parts:
            return self.claimed
        return max(self.claimed, *(each.claimed for each in self.parts.values()))

    @property
    def next_base(self) -> int:
        """An `epochBase` for a topic whose offsets start again: above all epochs before."""
        base = self.epoch_base or 1
        unclaimed = self.epoch_base is None or self.last_claimed < 0
        return base if unclaimed else base + self.last_claimed + 1

    def owners(self, partitions: int) -> list[WriterControl | None]:
        """By partition, whose claim of it is the newest; None before any."""
        if self._owners is None or len(self._owners) != partitions:
            self._owners = _owners([self, *self.parts.values()], partitions)
        return self._owners

    def claimants(self, name: str) -> list[WriterControl]:
        """Whose claims of the partitions of the stream, or of a part of it, are the newest, oldest
        first."""
        if (known := self._claimants.get(name)) is None:
            _, part = stream_and_part(name)
            known = [self.writer(name)]
            if (self.parts or part.of > 1) and self.description is not None:
                total = self.description["partitions"]
                owners = self.owners(total)
                found = (owners[partition] for partition in part.partitions(total))
                by_claim = {each.claimed: each for each in found if each is not None}
                known = [by_claim[claimed] for claimed in sorted(by_claim)]
            self._claimants[name] = known
        return known

    def claimed_by_parts(self, partitions: int) -> bool:
        """Whether every partition was claimed by a part after the newest claim under the stream's
        own key, and that is not one of no partition."""
        is_closed = self.closed > self.claimed
        return not is_closed and not any(
            each is None or each is self for each in self.owners(partitions)
        )

    def newest_index(self, part: Part) -> Value | None:
        """The oldest of `newest_indexes`; None for none."""
        return min(self.newest_indexes(part), key=_epoch_in, default=None)

    def newest_indexes(self, part: Part) -> list[Value]:
        """The newest index record of each partition of `part`, possibly of another part then;
        empty where a partition has none."""
        if not self.parts or self.description is None:
            return [self.index] if self.index else []
        if self._indexes is None:
            self._indexes = _by_partition(
                each.index for each in (self, *self.parts.values()) if each.index
            )
        wanted = part.partitions(self.description["partitions"])
        found = [self._indexes[each] for each in wanted if each in self._indexes]
        return found if len(found) == len(wanted) else []

    def starts(self, partitions: int) -> dict[int, Origin]:
        """Where each partition is read from, by its newest claim; those that are missing, from
        their start."""
        by_writer: dict[int, dict[int, Origin]] = {}
        found: dict[int, Origin] = {}
        for partition, writer in enumerate(self.owners(partitions)):
            if writer is None:
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
            former: counts for the partitions that were not claimed since."""
        owners = self.owners(partitions)
        starts = {
            partition: origin
            for partition, origin in (former.starts(partitions) if former else {}).items()
            if owners[partition] is None
        } | self.starts(partitions)
        if own is None:
            return from_value(starts, partitions)
        return from_value({each: starts[each] for each in own if each in starts}, None)


class ControlState:
    """All streams on the control topic, as far as it was read; reading a record again changes
    nothing.

    What it keeps is bounded: beyond `KEPT_BYTES` and `KEPT_BYTES_A_STREAM`, streams and parts are
    forgotten as if none of their records were there: first those that are not `wanted`, of these
    first those without claim, then by the age of their newest claim."""

    def __init__(self, wanted: Collection[str] = ()) -> None:
        """Args: `wanted`: streams, or parts, that are forgotten after all others."""
        self.streams: dict[str, StreamControl] = {}
        self.forgotten = 0
        """How many streams and parts were forgotten."""
        self.wanted = wanted
        self._size = 0
        self._descriptions: Mapping[str, Value] | None = None

    def of(self, stream: str) -> StreamControl:
        """What is known of `stream`, empty when nothing was read."""
        return self.streams.get(stream) or StreamControl()

    def descriptions(self) -> Mapping[str, Value]:
        """The description of each stream that has one, by stream id, in order; the same object
        while none has changed."""
        if self._descriptions is None:
            self._descriptions = {
                stream: held.description
                for stream, held in sorted(self.streams.items())
                if held.description is not None
            }
        return self._descriptions

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
            kind, written, parsed, odd, size = parse_control(key, value)
        except RecordRefused:
            if key is not None and key.startswith(b"stream/"):
                described = self.streams.get(key.removeprefix(b"stream/").decode(errors="replace"))
                if described is not None:
                    described.overwritten = True
            raise
        stream, part = stream_and_part(written)
        held = self._stream(stream)
        writer = held if part.of == 1 else self._part(held, written)
        before = writer.size
        try:
            match kind:
                case "claim" if parsed is not None:
                    _claim(writer, offset, parsed, size)
                case "stream":
                    self._descriptions = None
                    _describe(held, stream, parsed, size)
                case "release" if parsed is not None:
                    writer.released = max(writer.released, parsed["epoch"])
                case "snapshot":
                    writer.index, writer.index_bytes = parsed, size
                case _:
                    pass
        finally:
            held.changed()
            self._size += writer.size - before
            if self._size > KEPT_BYTES + KEPT_BYTES_A_STREAM * len(self.wanted):
                self._forget_oldest()
        return odd

    def _stream(self, stream: str) -> StreamControl:
        if (held := self.streams.get(stream)) is None:
            held = self.streams[stream] = StreamControl()
            self._size += held.size
        return held

    def _part(self, held: StreamControl, name: str) -> WriterControl:
        if (part := held.parts.get(name)) is None:
            part = held.parts[name] = WriterControl()
            self._size += part.size
        return part

    def _forget_oldest(self) -> None:
        """Leave a tenth of the room free, so that the next time is not the next record."""
        room = (KEPT_BYTES + KEPT_BYTES_A_STREAM * len(self.wanted)) * 9 // 10
        for *_, stream, name in sorted(self._rows()):
            if self._size <= room:
                break
            held, self._descriptions = self.streams[stream], None
            self._size -= (held.parts.pop(name) if name else self.streams.pop(stream)).size
            held.changed()
            self.forgotten += 1

    def _rows(self) -> Iterable[tuple[bool, int, bool, str, str]]:
        """Of each stream and part: whether it is wanted, the offset of its newest claim (of a
        stream, or of a part of it), whether it is a stream; its stream and, of a part, its id."""
        for stream, held in self.streams.items():
            is_wanted = stream in self.wanted
            parts_wanted = False
            for name, part in held.parts.items():
                part_wanted = is_wanted or name in self.wanted
                parts_wanted = parts_wanted or part_wanted
                yield part_wanted, part.claimed, False, stream, name
            yield is_wanted or parts_wanted, held.last_claimed, True, stream, ""


def newest_ids(*older_first: Sequence[str]) -> tuple[str, ...]:
    """The newest transactional ids of those in sequences, oldest first, each once, at the place
    where it is named last."""
    known: dict[str, None] = {}
    for each in chain.from_iterable(reversed(ids) for ids in reversed(older_first)):
        if each:
            known[each] = None
        if len(known) == IDS_MAX:
            break
    return tuple(reversed(known))


def _owners(writers: Sequence[WriterControl], partitions: int) -> list[WriterControl | None]:
    """Whose claim of each partition is the newest, in one walk from the newest claim on."""
    found: list[WriterControl | None] = [None] * partitions
    free = set(range(partitions))
    for each in sorted(writers, key=lambda each: each.claimed, reverse=True):
        if each.claimed < 0 or not free:
            break
        named = free if each.partitions is None else free & each.partitions
        for partition in named:
            found[partition] = each
        free = free - named
    return found


def _by_partition(indexes: Iterable[Value]) -> dict[int, Value]:
    """The index record of the highest epoch that lists each partition."""
    newest: dict[int, Value] = {}
    for index in sorted(indexes, key=_epoch_in):
        newest |= dict.fromkeys((each["partition"] for each in index.get("partitions", ())), index)
    return newest


def _claim(writer: WriterControl, offset: int, parsed: Value, size: int) -> None:
    """Take a claim. A repeated instance is no new one: docs/record-contract.md, section 4.1."""
    writer.ids = newest_ids(writer.ids, parsed.get("ids", ()))
    first = writer.instances.setdefault(parsed["instance"], offset)
    if len(writer.instances) > _INSTANCES_MAX:
        del writer.instances[min(writer.instances, key=writer.instances.__getitem__)]
    named = parsed.get("partitions")
    if named is not None and not named:
        writer.closed = max(writer.closed, first)
    elif first == offset > writer.claimed:
        writer.claimed = first
        writer.partitions = None if named is None else frozenset(named)
        writer.holder, writer.starting_point_claimed = parsed.get("holder"), parsed.get("from")
        writer.claim_bytes = size
    named_bytes = sum(map(len, writer.ids)) + sum(map(len, writer.instances))
    writer.claim_bytes = max(writer.claim_bytes, named_bytes)


def _describe(held: StreamControl, stream: str, parsed: Value | None, size: int) -> None:
    held.too_high = None
    held.retired = parsed is None
    held.description_bytes = size
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
