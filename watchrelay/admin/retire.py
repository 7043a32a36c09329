"""Removes a stream from its topic for good: a delete for each key, an empty last snapshot, and the
deletion of its control records. Every consumer ends with an empty state.

It may be interrupted anywhere and repeated (record contract 2): the stream's description is deleted
last; until then a second run claims the stream again and deletes what is left. None of its markers
has a frontier, so a stream with the same id that is configured later lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from watchrelay.admin.snapshot_request import (
    ReadOnlySink,
    check_control_topic,
    published_streams,
    read_control_topic,
)
from watchrelay.admin.writer_check import Watching, refuse_written
from watchrelay.config import Settings
from watchrelay.config.streams import may_mean, plan
from watchrelay.contract.records import CloudEvents, Marker, ObjectRecord, decode, encoder_for
from watchrelay.contract.wire import Batch, WireRecord
from watchrelay.core import clock
from watchrelay.core.errors import Fenced, RecordRefused, SinkUnavailable, WatchrelayError
from watchrelay.core.text import BROKEN_JSON
from watchrelay.daemon.kafka_connection import kafka_connection
from watchrelay.daemon.ownership import retirement_holder
from watchrelay.daemon.plan import control_spec
from watchrelay.daemon.tasks import only_error
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.failures import SILENCE
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.log_scan import highest_epoch
from watchrelay.kafka.range_reader import OffsetRange, RangeReader
from watchrelay.kafka.sink import KafkaSink
from watchrelay.kafka.topics import Topics, TopicSpec
from watchrelay.model.resources import Resource, Selection
from watchrelay.model.streams import StreamSpec, WatchPlan
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

_BATCH_RECORDS = 500
PATIENCE_S = 60.0
"""How long Kafka may accept and return nothing until the retirement gives up; it may be repeated at
any time."""


class StillConfigured(WatchrelayError):
    """The stream is in the config: a relay would publish it again."""


@dataclass(frozen=True, slots=True)
class RetirementPlan:
    """What a retirement would do."""

    stream: str
    topic: str
    objects: int | None
    """The count of the last snapshot, None without one."""
    topic_exists: bool
    """False: only the control records are left."""


@dataclass(frozen=True, slots=True)
class Retired:
    """What a retirement did."""

    stream: str
    topic: str
    deletes: int | None
    """The number of objects deleted; None: the topic does not exist."""


def _no_message(_topic: str, _seconds: float) -> None:
    """The default of `watching`."""


async def plan_retirement(
    settings: Settings, stream: str, *, force: bool = False, watching: Watching = _no_message
) -> RetirementPlan:
    """What `retire_stream` would do; changes nothing.

    Args:
        settings: the config without the stream.
        stream: id of the stream.
        force: do not check whether a relay writes the stream.
        watching: called with the topic and the seconds before a check that takes long.

    Raises:
        StillConfigured: the stream is in the config.
        StillWritten: a relay writes the stream.
        NotPublished: the control topic does not describe the stream.
        SinkUnavailable, TopicRefused: as the message says.
    """
    refuse_configured(settings, stream)
    connection = kafka_connection(settings, client_id="watchrelay-retire")
    try:
        name = await check_control_topic(settings, connection)
        async with read_control_topic(ControlTopic(connection, name, ReadOnlySink())) as control:
            published_streams(control, [stream])
            spec = spec_of(settings, stream, control.described_streams()[stream])
            count = (control.index(stream) or {}).get("count")
            exists = await _exists(connection, spec)
            if exists and not force:
                await refuse_written(
                    spec,
                    connection,
                    control,
                    interval_s=settings.heartbeat_interval_s,
                    watching=watching,
                )
            objects = count if isinstance(count, int) else None
            return RetirementPlan(stream, spec.topic, objects, exists)
    except BaseExceptionGroup as group:
        raise only_error(group) from None


async def retire_stream(settings: Settings, stream: str) -> Retired:
    """Retire `stream`, even while a relay writes it: call `plan_retirement` first.

    Raises:
        StillConfigured, NotPublished, TopicRefused: as in `plan_retirement`.
        Fenced: a relay claimed the stream meanwhile.
        SinkUnavailable: also when Kafka was unavailable for `PATIENCE_S` in the middle.
    """
    refuse_configured(settings, stream)
    connection = kafka_connection(settings, client_id="watchrelay-retire")
    name = await check_control_topic(settings, connection, writes=[control_spec(settings).name])
    try:
        async with (
            _sink(connection) as sink,
            read_control_topic(
                ControlTopic(connection, name, sink, holder=retirement_holder())
            ) as control,
        ):
            return await retire_with(
                settings, stream, connection=connection, sink=sink, control=control
            )
    except BaseExceptionGroup as group:
        raise only_error(group) from None


async def retire_with(
    settings: Settings,
    stream: str,
    *,
    connection: KafkaConnection,
    sink: KafkaSink,
    control: ControlTopic,
    patience_s: float = PATIENCE_S,
) -> Retired:
    """As `retire_stream`, with a sink and a control topic that already run."""
    published_streams(control, [stream])
    spec = spec_of(settings, stream, control.described_streams()[stream])
    try:
        async with asyncio.timeout(patience_s) as patience:

            def progressed() -> None:
                patience.reschedule(asyncio.get_running_loop().time() + patience_s)

            deletes = (
                await _RetirementWriter(spec, connection, sink, control, progressed).run()
                if await _exists(connection, spec)
                else None
            )
            progressed()
            await control.forget(stream)
    except TimeoutError:
        raise SinkUnavailable(
            f"kafka at {connection.servers} has accepted nothing for {patience_s:g} s, so "
            f"stream {stream} is not retired, or only partly "
            f"({sink.trouble or SILENCE}): run the command again when Kafka is available: "
            "it completes the retirement"
        ) from None
    return Retired(stream, spec.topic, deletes)


async def _exists(connection: KafkaConnection, spec: StreamSpec) -> bool:
    wanted = TopicSpec(
        name=spec.topic, partitions=spec.partitions, replication_factor=1, min_insync_replicas=1
    )
    return await Topics(connection).check_topic(wanted) is not None


@asynccontextmanager
async def _sink(connection: KafkaConnection) -> AsyncIterator[KafkaSink]:
    sink = KafkaSink(connection, metrics=Metrics(), statuses=StatusRegistry())
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(sink.run(), name="sink")
        try:
            yield sink
        finally:
            running.cancel()


# ---- the stream ----------------------------------------------------------------------------------


def refuse_configured(settings: Settings, stream: str) -> None:
    """Check that no entry of the config means `stream`, or may mean it on some cluster.

    Raises:
        StillConfigured: names the entry.
    """
    for planned in plan(settings):
        if may_mean(planned, stream):
            entry = f"resources[{planned.index}] ({planned.entry.resource})"
            raise StillConfigured(
                f"stream {stream} is still in the config, by {entry}: remove it there (a running "
                "relay reloads the config by itself), then retire it"
            )


def spec_of(settings: Settings, stream: str, description: dict[str, object]) -> StreamSpec:
    """The stream, from its description on the control topic.

    Raises:
        RecordRefused: the description is not of the record contract.
    """
    match description:
        case {
            "topic": str(topic),
            "partitions": int(partitions),
            "keyFormat": str(key_format),
            "resource": str(named),
        }:
            qualified, _, version = named.rpartition("/")
            plural, _, group = qualified.partition(".")
        case _:
            raise RecordRefused(
                f"the description of stream {stream} on the control topic is not of this "
                "contract version"
            )
    return StreamSpec(
        id=stream,
        cluster=settings.cluster,
        topic=topic,
        partitions=partitions,
        plan=WatchPlan(Selection(Resource(group, version, plural, "", namespaced=True))),
        config_hash=str(description.get("configHash") or "none"),
        key_prefix=f"{qualified}/".encode() if key_format == "prefixed" else b"",
        format=settings.kafka.format,
        description={name: value for name, value in description.items() if name != "epochBase"},
    )


# ---- what is left on its topic -------------------------------------------------------------------


@dataclass(slots=True)
class RemainingObjects:
    """The objects of one partition that any consumer may still have: one that follows the record
    contract, or a plain table. May include keys that only a sweep removed."""

    stream: str
    _table: dict[bytes, ObjectRecord] = field(default_factory=dict)
    _held: dict[bytes, ObjectRecord] = field(default_factory=dict)
    _at: tuple[int, int] = (0, 0)

    def apply(self, record: ObjectRecord) -> None:
        """Apply the next object record of the log."""
        states = [self._table]
        if (record.epoch, record.sequence) > self._at:
            self._at = (record.epoch, record.sequence)
            states.append(self._held)
        for state in states:
            if record.verb == "deleted":
                state.pop(record.key, None)
            else:
                state[record.key] = record

    @property
    def objects(self) -> dict[bytes, ObjectRecord]:
        """What must be deleted, by key: the last record of each."""
        return {**self._table, **self._held}


class _Kind(msgspec.Struct):
    kind: object = None


def kind_of(remaining: Sequence[RemainingObjects]) -> str:
    """The kind of the objects, which the control topic does not have; "" when no object has it."""
    values = (record.value for each in remaining for record in each.objects.values())
    return next((kind for value in values if value is not None and (kind := _kind_in(value))), "")


def _kind_in(value: bytes) -> str:
    """The kind in `value`, which may be anything; "" without one."""
    try:
        kind = msgspec.json.decode(value, type=_Kind).kind
    except BROKEN_JSON:
        return ""
    return kind if isinstance(kind, str) else ""


class _RetirementWriter:
    """Writes one epoch: a claim, the deletes, an empty snapshot."""

    def __init__(
        self,
        spec: StreamSpec,
        connection: KafkaConnection,
        sink: KafkaSink,
        control: ControlTopic,
        progressed: Callable[[], None],
    ) -> None:
        self._spec, self._connection, self._sink, self._control, self._progressed = (
            spec,
            connection,
            sink,
            control,
            progressed,
        )
        self._epoch = 0
        self._sequence = [0] * spec.partitions
        self._remaining = [RemainingObjects(spec.id) for _ in range(spec.partitions)]

    async def run(self) -> int:
        """The number of objects deleted."""
        spec = self._spec
        self._epoch = await self._control.claim(
            spec.id,
            spec.description,
            starting_point=None,
            highest_epoch=self._highest_epoch,
            replace_description=bool(self._control.blocked(spec.id)),
        )
        encoder = encoder_for(spec, self._epoch)
        claims = await self._mark(encoder, lambda _: Marker("claim"))
        spans = [
            OffsetRange(partition, None, offset) for partition, (_, offset) in enumerate(claims)
        ]
        await RangeReader(self._connection, spec.topic, spans, self._take).run()
        kind = kind_of(self._remaining)
        resource = replace(spec.plan.selection.resource, kind=kind)
        encoder = encoder_for(replace(spec, plan=WatchPlan(Selection(resource))), self._epoch)
        for partition, remaining in enumerate(self._remaining):
            records = list(self._deletes(encoder, partition, remaining.objects.values()))
            for first in range(0, len(records), _BATCH_RECORDS):
                await self._deliver(partition, records[first : first + _BATCH_RECORDS])
        snapshot = f"{self._epoch}-1"
        begins = await self._mark(encoder, lambda _: Marker("begin", "0", snapshot=snapshot))
        await self._mark(
            encoder,
            lambda partition: Marker(
                "end",
                "0",
                snapshot=snapshot,
                begin_sequence=begins[partition][0],
                begin_offset=begins[partition][1],
            ),
        )
        return sum(len(each.objects) for each in self._remaining)

    def _take(self, partition: int, records: Sequence[Any]) -> None:
        self._progressed()
        for record in records:
            try:
                decoded = decode(record.key, record.value, record.headers)
            except RecordRefused:
                continue  # not of the record contract: left to its writer
            if isinstance(decoded, ObjectRecord) and decoded.stream == self._spec.id:
                self._remaining[partition].apply(decoded)

    def _deletes(
        self, encoder: CloudEvents, partition: int, objects: Iterable[ObjectRecord]
    ) -> Iterator[WireRecord]:
        now_ms = clock.wall_ms()
        for last in objects:
            for tombstone in (False, True) if self._spec.format != "cloudevents" else (False,):
                yield encoder.object(
                    partition,
                    self._next(partition),
                    last.key,
                    None,
                    "deleted",
                    "resume",
                    last.uid,
                    last.version,
                    0,
                    now_ms,
                    "",
                    tombstone,
                )

    async def _mark(
        self, encoder: CloudEvents, marker: Callable[[int], Marker]
    ) -> list[tuple[int, int]]:
        """Write a marker to every partition; its sequence and offset on each."""
        places: list[tuple[int, int]] = []
        for partition in range(self._spec.partitions):
            sequence = self._next(partition)
            record = encoder.marker(partition, sequence, clock.wall_ms(), marker(partition))
            places.append((sequence, (await self._deliver(partition, [record]))[0]))
        return places

    def _next(self, partition: int) -> int:
        self._sequence[partition] += 1
        return self._sequence[partition]

    async def _deliver(self, partition: int, records: list[WireRecord]) -> list[int]:
        if self._control.outclaimed(self._spec.id, self._epoch):
            raise Fenced(
                f"stream {self._spec.id}: a relay claimed it meanwhile: remove it from that "
                "relay's config first"
            )
        offsets = (await self._sink.deliver(Batch(self._spec.topic, partition, records))).offsets
        self._progressed()
        return offsets

    async def _highest_epoch(self) -> int:
        return await highest_epoch(self._connection, self._spec.topic, self._spec.id)
