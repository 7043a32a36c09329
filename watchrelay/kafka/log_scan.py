"""The highest epoch of a stream, read from its state topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from watchrelay.contract.control import EPOCH_BASE_MAX, Value
from watchrelay.contract.control_state import ControlState
from watchrelay.contract.records import parse_epoch
from watchrelay.core.errors import RecordRefused, TopicRefused
from watchrelay.core.text import short
from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.consumer import wait_for_topic
from watchrelay.kafka.reader import offset_ranges, open_consumer, read_ranges

_FETCH_BYTES = 4 * 1024 * 1024
_SNAPSHOT_END = b"dev.watchrelay.snapshot.end.v1"
"""See docs/record-contract.md, section 3."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a topic holds of a stream: its highest `ce_wrepoch`, 0 for nothing, and whether all ends
    as `watchrelay retire` leaves it."""

    epoch: int
    retired: bool


async def highest_epoch(connection: KafkaConnection, topic: str, stream: str) -> int:
    """The `epoch` of `written`. Raises: as `written`."""
    return (await written(connection, topic, stream)).epoch


async def written(
    connection: KafkaConnection, topic: str, stream: str, *, cluster: str = ""
) -> Written:
    """What `topic` holds of `stream`. Reads the whole topic: seconds per million records.

    Raises: SinkUnavailable; ask again. TopicRefused when a stream of another than `cluster` is
    there, or epochs have run out.
    """
    highest = 0
    empty: dict[int, bool] = {}

    def look(record: Any) -> None:
        nonlocal highest
        if epoch := epoch_of(record.headers, stream):
            highest = max(highest, epoch)
            held = dict(record.headers)
            empty[record.partition] = (
                held.get("ce_type") == _SNAPSHOT_END and held.get("ce_wrcount") == b"0"
            )
        if cluster and (other := other_cluster(record.headers, cluster)):
            raise TopicRefused(shared_topic(topic, other, cluster))

    await _read(connection, topic, look)
    if why := no_epoch_left(topic, stream, highest):
        raise TopicRefused(why)
    return Written(highest, bool(empty) and all(empty.values()))


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


def shared_topic(topic: str, other: str, cluster: str) -> str:
    """What is wrong with a topic that holds streams of another cluster, and what mends it."""
    return (
        f"topic {topic} holds records of cluster {other}, this is cluster {cluster}: the "
        "topics of two clusters must differ: "
        "name another one, or have {cluster} in kafka.topicTemplate"
    )


def other_cluster(headers: Iterable[tuple[str, bytes | None]], cluster: str) -> str:
    """The cluster that a record of the contract is from; "" for `cluster` itself and for what is no
    record of the contract."""
    held = dict(headers)
    _, _, rest = (held.get("ce_source") or b"").decode(errors="replace").partition("/clusters/")
    found = rest.partition("/")[0]
    return short(found) if found != cluster and "ce_wrstream" in held else ""


async def descriptions(connection: KafkaConnection, control_topic: str) -> dict[str, Value]:
    """The description of each stream on the control topic. Raises: SinkUnavailable; retry."""
    state = ControlState()

    def look(record: Any) -> None:
        with suppress(RecordRefused):  # the relay reports it
            state.read(record.offset, record.key, record.value)

    await _read(connection, control_topic, look)
    return state.descriptions()


def epoch_of(headers: Iterable[tuple[str, bytes | None]], stream: str) -> int:
    """The epoch in a record's headers; 0 when it is of another stream or of no contract, as is one
    that is none."""
    epoch, wanted = b"", stream.encode()
    mine = False
    for name, value in headers:
        if name == "ce_wrepoch":
            epoch = value or b""  # a header of somebody else may be null
        elif name == "ce_wrstream":
            mine = value == wanted
    try:
        return parse_epoch(epoch) if mine else 0
    except ValueError:
        return 0


async def _read(connection: KafkaConnection, topic: str, take: Callable[[Any], None]) -> None:
    """Hand each record to `take`, up to the end as it is now."""

    def take_all(_: TopicPartition, records: Sequence[Any]) -> None:
        for record in records:
            take(record)

    async with open_consumer(connection, max_partition_fetch_bytes=_FETCH_BYTES) as consumer:
        partitions = await wait_for_topic(consumer, topic)
        places = [TopicPartition(topic, partition) for partition in partitions]
        await read_ranges(consumer, await offset_ranges(consumer, places), take_all)
