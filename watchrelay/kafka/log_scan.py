"""What is on a state topic already, when the control topic cannot tell.

Room: sink. In: a topic and a stream id. Out: the highest epoch of the stream on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from watchrelay.contract.control import EPOCH_BASE_MAX
from watchrelay.contract.records import parse_epoch
from watchrelay.core.errors import RecordRefused, TopicRefused
from watchrelay.core.text import short
from watchrelay.kafka.client.client_log import listening
from watchrelay.kafka.client.connection import KafkaConnection, make_reader, unreachable
from watchrelay.kafka.client.patches import stop_consumer
from watchrelay.kafka.control_state import ControlState, Value

_REQUEST_TIMEOUT_S = 15.0
_START_TIMEOUT_S = 30.0
_SILENT_AFTER_S = 60.0
_STOP_TIMEOUT_S = 3.0
_POLL_MS = 1000
_RECORDS_AT_ONCE = 500
_FETCH_BYTES = 4 * 1024 * 1024
_SNAPSHOT_END = b"dev.watchrelay.snapshot.end.v1"
"""Source: record contract, section 3."""


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

    Raises: SinkUnavailable; ask again. TopicRefused when a stream of another than `cluster` stands
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
    """What the control topic says of each stream now. Raises: SinkUnavailable; ask again."""
    state = ControlState()

    def look(record: Any) -> None:
        with suppress(RecordRefused):  # the relay reports it
            state.read(record.offset, record.key, record.value)

    await _read(connection, control_topic, look)
    return {
        stream: held.description
        for stream, held in state.streams.items()
        if held.description is not None
    }


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
    with listening() as tail:
        consumer = make_reader(
            connection, request_timeout_s=_REQUEST_TIMEOUT_S, max_partition_fetch_bytes=_FETCH_BYTES
        )
        try:
            async with aclosing(_batches(consumer, topic)) as batches:
                async for records in batches:
                    for record in records:
                        take(record)
        except (KafkaError, OSError, TimeoutError, ValueError) as error:
            raise unreachable(connection, error, tail.reason) from error
        finally:
            await stop_consumer(consumer, within_s=_STOP_TIMEOUT_S)


async def _batches(consumer: Any, topic: str) -> AsyncGenerator[list[Any], None]:
    """Records of all partitions, each up to the end that it had at first. Raises: TimeoutError
    after a minute without progress."""
    async with asyncio.timeout(_START_TIMEOUT_S):
        await consumer.start()
        known = await consumer._client._wait_on_metadata(topic)
        partitions = [TopicPartition(topic, partition) for partition in sorted(known)]
        consumer.assign(partitions)
        begins = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
    at = dict(begins)
    for partition, offset in begins.items():
        consumer.seek(partition, offset)
    loop = asyncio.get_running_loop()
    progress_s = loop.time()
    while behind := [partition for partition in partitions if at[partition] < ends[partition]]:
        for partition, records in (
            await consumer.getmany(*behind, timeout_ms=_POLL_MS, max_records=_RECORDS_AT_ONCE)
        ).items():
            progress_s = loop.time()
            yield records
            at[partition] = records[-1].offset + 1
        for partition in behind:
            # Compaction may have taken the last records before the end: the position says so,
            # records do not.
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                at[partition] = max(at[partition], await consumer.position(partition))
        if loop.time() - progress_s > _SILENT_AFTER_S:
            raise TimeoutError(f"no records of topic {topic} for {_SILENT_AFTER_S:g} s")
