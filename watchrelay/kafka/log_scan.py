"""What a state topic holds of its streams, without the control topic: epochs, partitions, keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from watchrelay.contract.control import EPOCH_BASE_MAX, VALUE_BYTES_MAX, Value
from watchrelay.contract.control_state import ControlState
from watchrelay.contract.records import (
    VERB_TYPES,
    MarkerRecord,
    decode,
    parse_epoch,
    stream_named,
)
from watchrelay.core.errors import RecordRefused, TopicRefused
from watchrelay.core.text import short
from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.consumer import STATE_TOPICS
from watchrelay.kafka.client.fetched import Limits
from watchrelay.kafka.reading import offset_ranges, open_reading, partitions_of, read_ranges

_FETCH_BYTES = 4 * 1024 * 1024
_OBJECTS = frozenset(VERB_TYPES.values())
_KEY_FORMATS = {1: "plain", 2: "prefixed"}
"""By slashes in an object's key, of which no name has one: docs/record-contract.md, section 3."""


@dataclass(slots=True)
class Written:
    """What a topic holds of one stream, record by record."""

    epoch: int = 0
    """The highest `ce_wrepoch`."""
    _shape: dict[str, tuple[int, object]] = field(default_factory=dict)
    """By field of a description, the highest epoch that shows it, and its value."""
    _retired: dict[int, int] = field(default_factory=dict)
    """By partition, the highest epoch of a snapshot as `watchrelay retire` leaves it."""
    _newest: dict[int, tuple[int, int, bytes]] = field(default_factory=dict)
    """By partition, epoch, sequence and `ce_source` of the newest record, as readers order them."""

    @property
    def retired(self) -> bool:
        """The highest epoch is that of `watchrelay retire`, which wrote all its partitions."""
        ends = sum(epoch == self.epoch for epoch in self._retired.values())
        _, partitions = self._shape.get("partitions", (0, 1))
        return isinstance(partitions, int) and 0 < ends >= partitions

    @property
    def shape(self) -> dict[str, object]:
        """Of the stream's description what its newest records tell, since it was retired last:
        `partitions` from markers, `keyFormat` and `resource` from objects."""
        before = max((each for each in self._retired.values() if each < self.epoch), default=0)
        return {name: value for name, (epoch, value) in self._shape.items() if epoch > before}

    def other_cluster(self, cluster: str) -> str:
        """The cluster that wrote a partition last, if it is another one and the stream was not
        retired; else ""."""
        if self.retired:
            return ""
        sources = (source for *_, source in self._newest.values())
        return next(filter(None, (_cluster_unless(cluster, each) for each in sources)), "")

    def take(self, epoch: int, record: Any) -> None:
        """Note a record of the stream."""
        self.epoch = max(self.epoch, epoch)
        if record.key is None:
            return
        held = dict(record.headers)
        sequence = held.get("ce_sequence") or b""
        position = epoch, int(sequence) if sequence.isdigit() and len(sequence) <= 20 else 0
        if position > self._newest.get(record.partition, (0, 0))[:2]:
            self._newest[record.partition] = (*position, held.get("ce_source") or b"")
        if held.get("ce_type") in _OBJECTS:
            if (key_format := _KEY_FORMATS.get(record.key.count(b"/"))) is not None:
                self._note("keyFormat", key_format, epoch)
                self._note("resource", _resource(held.get("ce_source") or b""), epoch)
            return
        with suppress(RecordRefused):
            marker = decode(record.key, record.value, held.items())
            if isinstance(marker, MarkerRecord):
                self._note("partitions", marker.partitions, epoch)
                if marker.retires:
                    former = self._retired.get(record.partition, 0)
                    self._retired[record.partition] = max(former, epoch)

    def _note(self, name: str, value: object, epoch: int) -> None:
        if epoch >= self._shape.get(name, (0, None))[0]:
            self._shape[name] = epoch, value


def _resource(source: bytes) -> str:
    """The resource of a `ce_source`, as a description names it; "" where that is none."""
    match source.decode(errors="replace").split("/"):
        case ["", "clusters", _, "apis", group, version, plural]:
            return f"{plural}.{group}/{version}"
        case ["", "clusters", _, "api", version, plural]:
            return f"{plural}/{version}"
    return ""


@dataclass(frozen=True, slots=True)
class TopicContent:
    """What a topic holds, as far as it was read. `streams`: by name, also those that only records
    name which follow no contract; `ends`: by partition, where reading ended."""

    streams: dict[str, Written] = field(default_factory=dict)
    ends: Mapping[int, int] = field(default_factory=dict)


async def highest_epoch(connection: KafkaConnection, topic: str, stream: str) -> int:
    """The `epoch` of a stream on `written`, 0 for nothing. Raises: as `written`; TopicRefused when
    its epochs have run out."""
    found = (await written(connection, topic)).streams.get(stream, Written())
    if why := no_epoch_left(topic, stream, found.epoch):
        raise TopicRefused(why)
    return found.epoch


async def written(
    connection: KafkaConnection,
    topic: str,
    *,
    cluster: str = "",
    before: TopicContent | None = None,
) -> TopicContent:
    """What `topic` holds. Reads the whole topic: seconds per million records.

    Args:
        before: as this topic, under the same id, was read before. Its streams are taken on from
            its ends, and are those of the result.

    Raises: SinkUnavailable; ask again. TopicRefused when a stream of another than `cluster` is
    there that was not retired.
    """
    found = before or TopicContent()

    def look(record: Any) -> None:
        if (named := stream_named(record.headers)) is not None:
            name = named.decode(errors="replace")
            there = found.streams.setdefault(name, Written())
            if epoch := epoch_of(record.headers, name):
                there.take(epoch, record)

    ends = await _read(connection, topic, look, STATE_TOPICS, found.ends)
    for name, each in found.streams.items() if cluster else ():
        if other := each.other_cluster(cluster):
            raise TopicRefused(shared_topic(topic, name, other, cluster))
    return replace(found, ends=ends)


def no_epoch_left(topic: str, stream: str, highest: int) -> str:
    """Why `stream` cannot be described above the highest epoch on its topic, and the cure; "" when
    it can."""
    if highest < EPOCH_BASE_MAX:
        return ""
    return (
        f"topic {topic} holds a record of stream {stream} whose epoch {highest} exceeds the "
        f"maximum {EPOCH_BASE_MAX - 1}, above which no "
        "epochs are left: find out who else may write to it, and name another topic"
    )


def shared_topic(topic: str, stream: str, other: str, cluster: str) -> str:
    """What is wrong with a topic that holds a stream of another cluster, and what mends it."""
    return (
        f"topic {topic} holds records of cluster {other}, this is cluster {cluster}: the "
        "topics of two clusters must differ: "
        "name another one, or have {cluster} in kafka.topicTemplate; if nothing writes as cluster "
        f"{other} now, retire its stream (`watchrelay retire --cluster {other} {short(stream)}`)"
    )


def other_cluster(headers: Iterable[tuple[str, bytes | None]], cluster: str) -> str:
    """The cluster that a record of the contract is from; "" for `cluster` itself and for what is no
    record of the contract."""
    held = dict(headers)
    return _cluster_unless(cluster, held.get("ce_source") or b"") if "ce_wrstream" in held else ""


def _cluster_unless(cluster: str, source: bytes) -> str:
    """The cluster of a `ce_source`; "" where that is `cluster`."""
    _, _, rest = source.decode(errors="replace").partition("/clusters/")
    found = rest.partition("/")[0]
    return short(found) if found != cluster else ""


async def descriptions(connection: KafkaConnection, control_topic: str) -> Mapping[str, Value]:
    """The description of each stream on the control topic. Raises: SinkUnavailable; retry."""
    state = ControlState()

    def look(record: Any) -> None:
        with suppress(RecordRefused):  # the relay reports it
            state.read(record.offset, record.key, record.value)

    await _read(connection, control_topic, look, {control_topic: VALUE_BYTES_MAX})
    return state.descriptions()


def epoch_of(headers: Iterable[tuple[str, bytes | None]], stream: str) -> int:
    """The epoch in a record's headers; 0 for a record of another stream, or without a valid
    epoch."""
    epoch, wanted, mine = b"", stream.encode(), False
    for name, value in headers:
        if name == "ce_wrepoch":
            epoch = value or b""  # a header of somebody else may be null
        elif name == "ce_wrstream":
            mine = value == wanted
    try:
        return parse_epoch(epoch) if mine else 0
    except ValueError:
        return 0


async def _read(
    connection: KafkaConnection,
    topic: str,
    take: Callable[[Any], None],
    limits: Limits,
    begins: Mapping[int, int] = MappingProxyType({}),
) -> dict[int, int]:
    """Hand each record to `take`, from `begins` on, or the start of a partition, up to the end as
    it is now. A log that ends before its `begins` lost records, and is read from its start.
    Returns: where each partition was read to."""

    def take_all(_: TopicPartition, records: Sequence[Any]) -> None:
        for record in records:
            take(record)

    async with open_reading(connection, limits, max_partition_fetch_bytes=_FETCH_BYTES) as reading:
        ranges = await offset_ranges(
            reading.consumer, await partitions_of(reading.consumer, [topic])
        )
        for place, (first, end) in ranges.items():
            begin = begins.get(place.partition, first)
            ranges[place] = begin if first <= begin <= end else first, end
        read = await read_ranges(reading.consumer, ranges, take_all)
        return {place.partition: cursor.next for place, cursor in read.items()}
