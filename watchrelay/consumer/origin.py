"""Where a reader starts: the begin of the newest valid snapshot of each partition. Pure.

The newest index record alone is not enough: a former writer that has not seen the newest claim may
have written it (docs/record-contract.md, section 5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from watchrelay.contract.control import (
    EPOCH_BASE_MAX,
    epoch_base_too_high,
    parse_control,
    starting_point,
)
from watchrelay.contract.records import Decoded, MarkerRecord
from watchrelay.core.errors import RecordRefused
from watchrelay.core.text import short


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one partition is read from. `offset` None is the partition's start; `snapshot` begins
    there, "" for none."""

    offset: int | None = None
    snapshot: str = ""


@dataclass(frozen=True, slots=True)
class DescribedStream:
    """A stream as its writer described it on the control topic."""

    topic: str
    partitions: int


@dataclass(slots=True)
class _Stream:
    instances: dict[str, int] = field(default_factory=dict)
    claimed: int = -1
    claimed_from: object = None
    epoch_base: int = 0
    described: DescribedStream | None = None
    retired: bool = False
    index: dict[str, object] | None = None


class ControlView:
    """The control topic as a reader needs it. Reading the same records again changes nothing."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}

    def read(self, offset: int, key: bytes | None, value: bytes | None) -> str:
        """Take one record.

        Returns:
            Which of its fields were passed over and why, "" for none.

        Raises:
            RecordRefused: It is not of the contract. Nothing changed; read on.
        """
        kind, stream, parsed, odd = parse_control(key, value)
        held = self._streams.setdefault(stream, _Stream())
        match kind:
            case "claim" if parsed is not None:
                first = held.instances.setdefault(str(parsed["instance"]), offset)
                if first > held.claimed:
                    held.claimed, held.claimed_from = first, parsed.get("from")
            case "claim":
                held.instances, held.claimed, held.claimed_from = {}, -1, None
            case "stream" if parsed is not None:
                self._describe(held, stream, parsed)
            case "stream":
                held.described, held.retired, held.epoch_base = None, True, 0
            case "snapshot":
                held.index = parsed
        return odd

    @staticmethod
    def _describe(held: _Stream, stream: str, parsed: Mapping[str, object]) -> None:
        match parsed:
            case {"topic": str(topic), "partitions": int(partitions), "epochBase": int(base)} if (
                base <= EPOCH_BASE_MAX
            ):
                held.described, held.retired = DescribedStream(topic, partitions), False
                held.epoch_base = max(base, held.epoch_base)
            case {"topic": _, "partitions": _, "epochBase": int(base)}:
                raise epoch_base_too_high(stream, base)
            case _:
                raise RecordRefused(
                    f"record stream/{short(stream)} has no field topic or partitions"
                )

    def described(self) -> dict[str, DescribedStream]:
        """Every stream that has a description: one that was retired has none."""
        return {
            name: held.described
            for name, held in sorted(self._streams.items())
            if held.described is not None
        }

    def retired(self, stream: str) -> bool:
        """Whether its writer has taken the description back; what is only not described may be
        described yet."""
        return stream in self._streams and self._streams[stream].retired

    def origins(self, stream: str) -> list[Origin]:
        """Where to start, by partition. Empty for a stream without a description.

        The index record if its epoch is that of the newest claim, else the `from` of that claim.
        Source: record contract, section 5.
        """
        held = self._streams.get(stream)
        if held is None or held.described is None:
            return []
        partitions = held.described.partitions
        point: object = held.claimed_from
        if (
            held.claimed >= 0
            and held.index is not None
            and held.index.get("epoch") == held.epoch_base + held.claimed
        ):
            point = starting_point(held.index, partitions) or point
        match point:
            case {"snapshot": str(snapshot), "begin": list(begins)} if len(begins) == partitions:
                return [Origin(begin, snapshot) for begin in begins]
            case _:
                return [Origin()] * partitions


def newest_heartbeats(records: Iterable[Decoded]) -> dict[str, Origin]:
    """By stream, where the newest heartbeat of the highest epoch among `records` (one partition, in
    log order) points to.

    A stream without a heartbeat there is missing; one whose heartbeat names no snapshot starts at
    the partition's start.
    """
    newest: dict[str, MarkerRecord] = {}
    for record in records:
        if isinstance(record, MarkerRecord) and record.kind == "heartbeat":
            held = newest.get(record.stream)
            if held is None or (record.epoch, record.sequence) > (held.epoch, held.sequence):
                newest[record.stream] = record
    return {
        stream: Origin(beat.last_snapshot_offset, beat.last_snapshot)
        for stream, beat in newest.items()
    }
