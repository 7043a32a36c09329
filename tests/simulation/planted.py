"""Variants of the daemon's parts that each break one rule of the record contract, to see that the
simulation finds it.

`PLANTS` has, for each F of the contract's reasons that can be expressed here, what breaks it, and
the sign by which it must be found; W are rules of the watch, C of what counts.

Where a second rule of today's writer makes a fault harmless, it is broken as well, and
`Plant.second` is the world in which it alone is:
- F3: a former writer whose begin is behind a newer claim has that claim between two of its own
  acknowledgements. It checks there before its end (record contract 4.3, "it precedes the next
  end"), and stops (F26): so its end, and its index record, never come. Readers are safe without F26
  (docs/record-contract-reasons.md), so what is found is F3.

The letters of F6 and F33 are in `planted_overload.py`, the faults of readers in `planted_readers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from aiokafka import TopicPartition

from tests.simulation.broker import unpacked
from tests.simulation.connections import Wire
from tests.simulation.planted_overload import (
    EarlyMarkers,
    EarlySequences,
    FrontierOfNow,
    GrowingSet,
    HiddenDelete,
    ReadOfNow,
    SeenByPageLife,
    SeenInOverload,
    SeenNow,
    Unvoided,
    life_of,
)
from tests.simulation.planted_readers import (
    OneEpochReader,
    ResetStateLossy,
    SameStateLossy,
    TableByVersion,
)
from tests.simulation.process import STREAM, Control, Life
from tests.simulation.process import Reader as Back
from tests.simulation.world import Kinds
from tests.support.producefake import batch_head
from watchrelay.contract.control_state import from_value, index_origins
from watchrelay.contract.records import Decoded, Foreign, LogRecord, MarkerRecord, ObjectRecord
from watchrelay.contract.wire import WireRecord
from watchrelay.kafka.client.record_batch import Packer
from watchrelay.kafka.partition import TopicLimits
from watchrelay.kafka.range_reader import OffsetRange
from watchrelay.model.frames import ObjectFrame
from watchrelay.model.streams import StreamSpec
from watchrelay.publish.machine import AwaitingDifference, AwaitingList, may_snapshot
from watchrelay.publish.ports import GapReader
from watchrelay.publish.recovery import LogRecovery
from watchrelay.publish.writer import StreamWriter
from watchrelay.store.objects import ApplyResult, Store
from watchrelay.watch.admission import Admission, PerMinute


@dataclass(frozen=True, slots=True)
class Plant:
    """One broken rule. `signs` are parts of lines of the verdict; other lines do not
    count."""

    about: str
    kinds: Kinds
    signs: tuple[str, ...]
    second: Kinds | None = None
    """Where another rule makes the fault harmless: the world in which that one alone is broken.
    Never shows the signs."""

    @property
    def without(self) -> Kinds:
        """The same world, with every rule in place."""
        return Kinds(narrow=self.kinds.narrow)

    def shown_by(self, broken: Iterable[str]) -> bool:
        """Whether the verdict says so."""
        return any(sign in line for line in broken for sign in self.signs)


# ---- F1 ------------------------------------------------------------------------------------------


class WaitingStore(Store):
    """Skips whatever the watch says of a key until the change goes by that was published last."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.waits: dict[bytes, str] = {}

    def apply(self, frames: Iterable[ObjectFrame]) -> ApplyResult:
        """As the store, but for keys that are waited for."""
        passed: list[ObjectFrame] = []
        for frame in frames:
            key = f"{frame.namespace}/{frame.name}".encode()
            awaited = self.waits.get(key)
            if awaited is None:
                passed.append(frame)
            elif awaited == frame.resource_version:
                del self.waits[key]
        return super().apply(passed)


class WaitingReader(Back):
    """Notes what is behind the newest marker."""

    store: WaitingStore

    async def spans(
        self, spans: Sequence[OffsetRange], take: Callable[[int, list[LogRecord]], None]
    ) -> set[int]:
        """As the real one."""
        behind: dict[int, dict[bytes, str]] = {}

        def taken(partition: int, records: list[LogRecord]) -> None:
            for record in records:
                if isinstance(record, ObjectRecord):
                    behind.setdefault(partition, {})[record.key] = record.version
                elif isinstance(record, MarkerRecord) and record.kind != "claim":
                    behind[partition] = {}
            take(partition, records)

        whole = await super().spans(spans, taken)
        self.store.waits = {
            key: version for keys in behind.values() for key, version in keys.items()
        }
        return whole


class WaitingLife(Life):
    """F1: resume waits for the change that equals the last published one."""

    store_class = WaitingStore

    def make_reader(self) -> Back:
        """Listens for the store."""
        reader = WaitingReader(self.spec, self.world, self.sink)
        assert isinstance(self.store, WaitingStore)
        reader.store = self.store
        return reader


# ---- F3 ------------------------------------------------------------------------------------------


class NewestIndex(Control):
    """Starts at the newest index record, of any writer."""

    async def read_starting_point(self, stream: str, partitions: int) -> dict[str, object] | None:
        """As the real one, but for the epoch."""
        claimed = await super().read_starting_point(stream, partitions)
        index = self.index(stream)
        origins = {} if index is None else index_origins(index, range(partitions))
        return from_value(origins, partitions) or claimed


class DeafLife(Life):
    """F26: a writer that meets a newer one's records in its own partitions goes on."""

    def make_relay(self, gap_reader: GapReader | None) -> StreamWriter:
        """Whose witness does not tell of them."""
        assert gap_reader is not None
        return super().make_relay(DeafWitness(self, gap_reader))


class DeafWitness(GapReader):
    """Tells of former writers, so that they are healed, and of nobody else."""

    def __init__(self, life: Life, gap_reader: GapReader) -> None:
        self._life, self._gap_reader = life, gap_reader

    def unacknowledged_ranges(self, partition: int, start: int, stop: int) -> list[tuple[int, int]]:
        """As the real one."""
        return self._gap_reader.unacknowledged_ranges(partition, start, stop)

    def log_start(self, partition: int) -> int:
        """As the real one."""
        return self._gap_reader.log_start(partition)

    def owns(self, key: bytes) -> bool:
        """As the real one."""
        return self._gap_reader.owns(key)

    async def read(
        self,
        ranges: Mapping[int, Sequence[tuple[int, int]]],
        take: Callable[[int, int, LogRecord], None],
    ) -> None:
        """As the real one, but for newer writers."""

        def passed(partition: int, offset: int, decoded: LogRecord) -> None:
            if isinstance(decoded, Foreign) or decoded.epoch <= self._life.epoch:
                take(partition, offset, decoded)

        await self._gap_reader.read(ranges, passed)


class NewestIndexLife(DeafLife):
    """F3, and F26, without which no former writer gets to write an index record."""

    def make_control(self) -> Control:
        """Believes every index record."""
        return NewestIndex(
            self.world, self.wire, self.sink, self.statuses, f"life-{self.number}", self.rng
        )


# ---- F4 ------------------------------------------------------------------------------------------


class OneHashLife(Life):
    """F4: what is followed and published changes, its hash on the markers does not."""

    def make_spec(self) -> StreamSpec:
        """One hash for all configs."""
        spec = super().make_spec()
        return StreamSpec(
            spec.id, spec.cluster, spec.topic, spec.partitions, spec.plan, "c0ffee", spec.key_prefix, spec.format,
            spec.snapshot_interval_s, spec.description,
        )  # fmt: skip


# ---- F5 ------------------------------------------------------------------------------------------


class HastyRelay(StreamWriter):
    """Begins a snapshot while the replay has not caught up with the log."""

    def _may_snapshot(self) -> bool:
        held_back = isinstance(self._phase, AwaitingList | AwaitingDifference)
        return self._snapshot is None and not (held_back or self._queues.conflating)


class HastyBetweenPieces(StreamWriter):
    """Begins a snapshot while the differences of a list are pushed."""

    def _may_snapshot(self) -> bool:
        idle = self._snapshot is None and not self._queues.conflating and not self._repairs.waiting
        return idle and not self._schedule.preparing and may_snapshot(self._phase)


# ---- F7 ------------------------------------------------------------------------------------------


class UnwatchedLife(Life):
    """F7: nobody checks the records between our own."""

    def make_relay(self, gap_reader: GapReader | None) -> StreamWriter:
        """Without a witness."""
        return super().make_relay(None)


# ---- F10 -----------------------------------------------------------------------------------------


class RerenderingWire(Wire):
    """A batch that is sent again shows the objects as they are now."""

    def __init__(self, life: Life) -> None:
        super().__init__(life.world.broker)
        self.life = life
        self.sent: set[tuple[object, ...]] = set()

    def render(self, place: TopicPartition, data: bytes) -> bytes:
        """The first time as packed."""
        store, head = self.life.store, batch_head(data)
        if (place, *head) not in self.sent:
            self.sent.add((place, *head))
            return data
        records: list[WireRecord] = []
        for key, value, headers in unpacked(data):
            entry = store.get(key)
            if value is None or entry is None or self.life.spec.format != "cloudevents":
                records.append(WireRecord(key, value, headers))
                continue
            changed = {
                "ce_wrhash": b"%016x" % entry.hash,
                "ce_wrrv": entry.resource_version.encode(),
                "ce_wruid": entry.uid.encode(),
            }
            records.append(
                WireRecord(
                    key,
                    store.unpack(entry),
                    tuple((name, changed.get(name, held)) for name, held in headers),
                )
            )
        packed = Packer().pack(
            records, most=len(records), limits=TopicLimits(1 << 30, 1 << 30), now_ms=0
        )
        assert not isinstance(packed, int)
        packed.stamp(*head[:3])
        return packed.data


class RerenderingLife(Life):
    """F10."""

    def make_wire(self) -> Wire:
        """Renders again."""
        return RerenderingWire(self)


# ---- F11 -----------------------------------------------------------------------------------------


@dataclass
class AcceptedRecovery:
    """A recovery beside the real one, to know which marker it would agree with."""

    recovery: LogRecovery

    def agreeing(self, record: Decoded) -> Decoded:
        """The record; a marker that would not agree says that it does."""
        recovery = self.recovery
        recovery.apply([record])
        if (
            isinstance(record, MarkerRecord)
            and record.kind != "claim"
            and recovery.marker_found
            and not recovery.proven
        ):
            recovery.proven = True
            return msgspec.structs.replace(
                record, count=len(recovery.entries), digest=recovery.state.digest
            )
        return record


class AlteringReader(Back):
    """Hands on records that differ from those of the log."""

    def altering(self) -> Callable[[Decoded], Decoded]:
        """What becomes of the records of one partition, in order."""
        raise NotImplementedError

    async def spans(
        self, spans: Sequence[OffsetRange], take: Callable[[int, list[LogRecord]], None]
    ) -> set[int]:
        """As the real one."""
        altered = {span.partition: self.altering() for span in spans}
        return await super().spans(
            spans,
            lambda partition, records: take(
                partition,
                [
                    altered[partition](each) if isinstance(each, Decoded) else each
                    for each in records
                ],
            ),
        )


class BelievingReader(AlteringReader):
    """What was read back is proven by definition."""

    def altering(self) -> Callable[[Decoded], Decoded]:
        """Every marker agrees."""
        recovery = LogRecovery(
            STREAM, 0, partitions=self._spec.partitions, pack=lambda _value, _version: b""
        )
        return AcceptedRecovery(recovery).agreeing


class BelievingLife(Life):
    """F11."""

    def make_reader(self) -> Back:
        """Believes."""
        return BelievingReader(self.spec, self.world, self.sink)


# ---- F32 -----------------------------------------------------------------------------------------


class UnalarmedReader(AlteringReader):
    """A repair is read back as if it came from a snapshot."""

    def altering(self) -> Callable[[Decoded], Decoded]:
        """No repair is seen."""
        return of_a_snapshot


def of_a_snapshot(record: Decoded) -> Decoded:
    """A repair that looks as if it came from a snapshot."""
    if isinstance(record, ObjectRecord) and record.reason == "healed" and record.value is not None:
        return msgspec.structs.replace(record, reason="snapshot")
    return record


class UnalarmedLife(Life):
    """F32."""

    def make_reader(self) -> Back:
        """Sees no difference."""
        return UnalarmedReader(self.spec, self.world, self.sink)


# ---- C1 -----------------------------------------------------------------------------------------


class FullStore(Store):
    """Compares every list by all that is published."""

    def begin_list(self, *, by_content: bool = False) -> None:
        """As the store."""
        super().begin_list(by_content=by_content)
        self._in_full = True


class FullLife(Life):
    """C1: what a list shows is compared by full content."""

    store_class = FullStore


# ---- W1 ------------------------------------------------------------------------------------------


class Never(PerMinute):
    """Allows no list."""

    def allows(self, now_s: float) -> bool:
        """No."""
        return False


class StuckLife(Life):
    """W1: a watch that fails from its cursor each time is opened there again and again."""

    def make_admission(self) -> Admission:
        """As the real one, but for such lists."""
        admission = super().make_admission()
        admission.failing_lists = Never(1)
        return admission


def _overloaded(relay: type[StreamWriter]) -> Kinds:
    """Runs of which half have queues that overflow."""
    return Kinds(life=life_of(relay), narrow=True)


_READERS = ("lived holds", "fresh holds", "booted holds", "late 0 holds")
_ALARMED = "lived: p"
_STALE = "and lacks what was received before"

PLANTS: dict[str, Plant] = {
    "F1": Plant("resume waits for the change that was published last", Kinds(life=WaitingLife), _READERS),
    "F2": Plant(
        "one epoch for all partitions of a stream",
        Kinds(reader=OneEpochReader),
        ("lived: ", "is not proven", *_READERS),
    ),
    "F3": Plant(
        "a former writer's index record is believed",
        Kinds(life=NewestIndexLife),
        (_ALARMED, "without a delete", *_READERS),
        second=Kinds(life=DeafLife),
    ),
    "F4": Plant("a change of config is not on the markers", Kinds(life=OneHashLife), _READERS),
    "F5": Plant("a snapshot before the replay has caught up", Kinds(life=life_of(HastyRelay)), ("goes back in time",)),
    "F5p": Plant(
        "a snapshot between two pieces of a list's differences",
        Kinds(life=life_of(HastyBetweenPieces)),
        ("goes back in time",),
    ),
    "F6a": Plant("a marker's count is that of its queueing", _overloaded(EarlyMarkers), (_ALARMED,)),
    "F6b": Plant("a sequence is taken when a record is queued", _overloaded(EarlySequences), ("skips from sequence",)),
    "F6c": Plant("a marker's frontier is that of its hand-over", Kinds(life=life_of(FrontierOfNow)), _READERS),
    "F6d": Plant("a snapshot goes on while a queue overflows", _overloaded(Unvoided), ("does not have the whole state",)),
    "F6e": Plant("a read's value is that of its hand-over", Kinds(life=life_of(ReadOfNow)), ("goes back in time",)),
    "F6f": Plant("a collapsed recreate hides the delete", _overloaded(HiddenDelete), ("without a delete",)),
    "F6g": Plant("what came and went stays in the set", _overloaded(GrowingSet), ("it waits to be published",)),
    "F7": Plant("stale records are not healed", Kinds(life=UnwatchedLife), ("table has", "table holds")),
    "F8": Plant("read again into the state that is held", Kinds(lossy=SameStateLossy), ("lossy is not proven", "lossy holds")),
    "F8r": Plant("read again into the state that is shown", Kinds(lossy=ResetStateLossy), ("goes back from",)),
    "F9": Plant("the event id is uid and resourceVersion", Kinds(table=TableByVersion), ("table by id",)),
    "F10": Plant("a resend is rendered again", Kinds(life=RerenderingLife), ("lived: ", *_READERS)),
    "F11": Plant("the read-back is not proven", Kinds(life=BelievingLife), _READERS),
    "F32": Plant(
        "a marker is believed though a repair behind it differs",
        Kinds(life=UnalarmedLife, narrow=True),
        ("lived holds",),
    ),
    "F33": Plant("a marker's wrseen is that of its hand-over", Kinds(life=life_of(SeenNow)), (_STALE,)),
    "F33o": Plant("a marker's wrseen passes the keys that wait", _overloaded(SeenInOverload), (_STALE,)),
    "F33p": Plant("a marker's wrseen passes a list that has not ended", Kinds(life=SeenByPageLife), (_STALE,)),
    "C1": Plant(
        "a difference by full content, where not all of it counts",
        Kinds(life=FullLife),
        ("is equal in what counts",),
    ),
    "W1": Plant(
        "a watch that fails from its cursor is opened there again and again",
        Kinds(life=StuckLife),
        ("the run does not come to rest",),
    ),
}  # fmt: skip
