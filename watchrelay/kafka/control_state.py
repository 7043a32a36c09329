"""What the control topic says, record by record. Pure.

Room: sink. In: records of the control topic in log order. Out: per stream its newest claim,
description and index.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from watchrelay.contract.control import (
    EPOCH_BASE_MAX,
    epoch_base_too_high,
    is_count,
    parse_control,
    starting_point,
)
from watchrelay.core.errors import RecordRefused

Value = dict[str, object]


@dataclass(slots=True)
class StreamControl:
    """One stream on the control topic.

    Shape: `instances` maps each claim's instance to the offset of the first record that had it;
    `claimed` is the highest of those, -1 before any; `epoch_base` never goes down, whatever an
    older writer may describe later; `origin` is the `from` of the newest claim.
    """

    instances: dict[str, int] = field(default_factory=dict)
    claimed: int = -1
    holder: str | None = None
    origin: Value | None = None
    epoch_base: int | None = None
    too_high: int | None = None
    """The `epochBase` of the newest description where it is too high to write the stream under
    it."""
    description: Value | None = None
    overwritten: bool = False
    """A record that cannot be used follows the description: compaction will keep that one and
    take this."""
    index: Value | None = None

    @property
    def epoch(self) -> int | None:
        """The newest claim's epoch; None before any claim or description."""
        return (
            None if self.epoch_base is None or self.claimed < 0 else self.epoch_base + self.claimed
        )

    @property
    def next_base(self) -> int:
        """An `epochBase` for a topic whose offsets start again: every epoch to come is above all
        before."""
        return (self.epoch_base or 1) if self.epoch is None else self.epoch + 1

    def starting_point(self, partitions: int) -> Value | None:
        """Where the next writer starts to read; None: at the start of each partition. Source:
        record contract 4.1.

        An index record counts only while its writer is the newest: a former one may complete a
        snapshot behind a newer claim, and the recovery of what follows that begin would not know
        that it is outdated.
        """
        if (
            self.index is not None
            and self.epoch is not None
            and self.index.get("epoch") == self.epoch
        ):
            return starting_point(self.index, partitions)
        return _checked(self.origin, partitions)


class ControlState:
    """All streams on the control topic, as far as it was read.

    Law: reading the same records again changes nothing.
    """

    def __init__(self) -> None:
        self.streams: dict[str, StreamControl] = {}

    def of(self, stream: str) -> StreamControl:
        """What is known of `stream`, empty when nothing was read."""
        return self.streams.get(stream) or StreamControl()

    def read(self, offset: int, key: bytes | None, value: bytes | None) -> str:
        """Take one record.

        Returns:
            Which of its fields were passed over and why, "" for none.

        Raises:
            RecordRefused: It is not of the contract. Of its stream nothing changed but `too_high`
            and `overwritten`; read on.
        """
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
                instance = str(parsed["instance"])
                # A repeated instance is no new claim. Source: record contract 4.1.
                if held.instances.setdefault(instance, offset) > held.claimed:
                    held.claimed = held.instances[instance]
                    holder, origin = parsed.get("holder"), parsed.get("from")
                    held.holder = holder if isinstance(holder, str) else None
                    held.origin = origin if isinstance(origin, dict) else None
            case "stream":
                self._described(held, stream, parsed)
            case "snapshot":
                held.index = parsed
            case _:
                pass
        return odd

    @staticmethod
    def _described(held: StreamControl, stream: str, parsed: Value | None) -> None:
        held.too_high = None
        if parsed is None:
            held.description = None
            return
        base = parsed["epochBase"]
        assert isinstance(base, int), "checked by parse_control"
        if base > EPOCH_BASE_MAX:
            held.too_high = base
            if held.description is None:  # `retire` needs to know what it is to retire
                held.description = {
                    name: each for name, each in parsed.items() if name != "epochBase"
                }
            raise epoch_base_too_high(stream, base)
        held.description, held.epoch_base, held.overwritten = (
            parsed,
            max(base, held.epoch_base or 0),
            False,
        )


def remembered(former: ControlState, lost: ControlState) -> ControlState:
    """What is known when a topic is lost that followed on one lost before: of a stream that nobody
    claimed since, the older word."""
    both = ControlState()
    both.streams = former.streams | {
        stream: held
        for stream, held in lost.streams.items()
        if held.claimed >= 0 or stream not in former.streams
    }
    return both


def _checked(origin: Value | None, partitions: int) -> Value | None:
    """A claim's `from` as far as it can be used: one offset per partition."""
    begin = origin.get("begin") if origin is not None else None
    fits = isinstance(begin, list) and len(begin) == partitions and all(map(is_count, begin))
    return origin if fits else None
