"""Taking a stream off its topic for good: a delete for each key, an empty last snapshot, its
control records forgotten.

Room: app. In: settings, the id of a stream that is no longer in them. Out: records that leave every
reader with nothing.

Why it may be stopped anywhere and run again (record contract 2): the stream's description goes
last, and as long as it stands a second run claims anew, finds what is left, and does the rest. No
marker of it claims a frontier, so a stream that comes back later lists.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from watchrelay.admin.snapshot_request import Mute, checked_control, following, known
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
from watchrelay.kafka.client.patches import SILENCE
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.log_scan import highest_epoch
from watchrelay.kafka.range_reader import ReadBack, Span
from watchrelay.kafka.sink import KafkaSink
from watchrelay.kafka.topics import Topics, TopicSpec
from watchrelay.model.resources import Resource, Selection
from watchrelay.model.streams import StreamSpec, WatchPlan
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

_BATCH_RECORDS = 500
PATIENCE_S = 60.0
"""How long Kafka may take nothing and tell nothing until a retirement gives up: a person waits for
it, and may run it again at any time."""


class StillConfigured(WatchrelayError):
    """The stream is in the config: a relay would publish it again."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is about to be done. Shape: `objects` is the count of the last snapshot, None when there
    is none; `topic_exists` False: only the control records are left."""

    stream: str
    topic: str
    objects: int | None
    topic_exists: bool


@dataclass(frozen=True, slots=True)
class Retired:
    """What was done. Shape: `deletes` are objects, each of which got one delete; None: the topic is
    gone, nothing was to be written."""

    stream: str
    topic: str
    deletes: int | None


def _in_silence(_topic: str, _seconds: float) -> None:
    """For whoever need not know."""


async def look(
    settings: Settings, stream: str, *, force: bool = False, watching: Watching = _in_silence
) -> Plan:
    """What `retire` would do; changes nothing.

    Shape: `force`: do not ask whether a relay writes the stream; `watching` is told when that takes
    a while.
    Raises: StillConfigured; StillWritten; NotThere when the stream is not described (any more);
    SinkUnavailable, TopicRefused.
    """
    refuse_configured(settings, stream)
    connection = kafka_connection(settings, client_id="watchrelay-retire")
    try:
        async with following(
            ControlTopic(connection, await checked_control(settings, connection), Mute())
        ) as control:
            known(control, [stream])
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
            return Plan(stream, spec.topic, count if isinstance(count, int) else None, exists)
    except BaseExceptionGroup as group:
        raise only_error(group) from None


async def retire(settings: Settings, stream: str) -> Retired:
    """Retire `stream`, whoever writes it: `look` first.

    Raises: what `look` does, but for StillWritten; Fenced when a relay claimed it meanwhile;
    SinkUnavailable also when Kafka went away on the way and stayed so for `PATIENCE_S`.
    """
    refuse_configured(settings, stream)
    connection = kafka_connection(settings, client_id="watchrelay-retire")
    name = await checked_control(settings, connection, writes=[control_spec(settings).name])
    try:
        async with (
            _sink(connection) as sink,
            following(ControlTopic(connection, name, sink, holder=retirement_holder())) as control,
        ):
            return await retire_by(
                settings, stream, connection=connection, sink=sink, control=control
            )
    except BaseExceptionGroup as group:
        raise only_error(group) from None


async def retire_by(
    settings: Settings,
    stream: str,
    *,
    connection: KafkaConnection,
    sink: KafkaSink,
    control: ControlTopic,
    patience_s: float = PATIENCE_S,
) -> Retired:
    """As `retire`, by a sink and a control topic that run already."""
    known(control, [stream])
    spec = spec_of(settings, stream, control.described_streams()[stream])
    try:
        async with asyncio.timeout(patience_s) as patience:

            def went_on() -> None:
                patience.reschedule(asyncio.get_running_loop().time() + patience_s)

            deletes = (
                await _Retirement(spec, connection, sink, control, went_on).run()
                if await _exists(connection, spec)
                else None
            )
            went_on()
            await control.forget(stream)
    except TimeoutError:
        raise SinkUnavailable(
            f"kafka at {connection.servers} has taken nothing for {patience_s:g} s, so "
            f"stream {stream} is not retired, or in part "
            f"({sink.trouble or SILENCE}): run it again when Kafka is back, it does the rest"
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


# ---- what is retired -----------------------------------------------------------------------------


def refuse_configured(settings: Settings, stream: str) -> None:
    """Raises: StillConfigured when an entry of the config means `stream`, or may mean it as far as
    can be told without a cluster."""
    for planned in plan(settings):
        if may_mean(planned, stream):
            entry = f"resources[{planned.index}] ({planned.entry.resource})"
            raise StillConfigured(
                f"stream {stream} is still in the config, by {entry}: take it out there, which a "
                "relay notices by itself, then retire it"
            )


def spec_of(settings: Settings, stream: str, description: dict[str, object]) -> StreamSpec:
    """The stream as its description on the control topic has it. Raises: RecordRefused when that is
    not of the contract."""
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


# ---- what is left of it --------------------------------------------------------------------------


@dataclass(slots=True)
class Remains:
    """The keys of one partition that any reader may still hold: by the rules of the contract, or as
    a plain table.

    Law: too many rather than too few: keys that only a sweep removed are among them.
    """

    stream: str
    _table: dict[bytes, ObjectRecord] = field(default_factory=dict)
    _held: dict[bytes, ObjectRecord] = field(default_factory=dict)
    _at: tuple[int, int] = (0, 0)

    def take(self, record: ObjectRecord) -> None:
        """The next object record of the log."""
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
        """What must be deleted, as last said."""
        return {**self._table, **self._held}


class _Kind(msgspec.Struct):
    kind: object = None


def kind_of(remains: Sequence[Remains]) -> str:
    """The kind that the objects carry: the control topic does not tell it. "" when none is left
    that says it."""
    values = (record.value for each in remains for record in each.objects.values())
    return next((kind for value in values if value is not None and (kind := _said_kind(value))), "")


def _said_kind(value: bytes) -> str:
    """Shape: "" for what is no object, or says no kind: whoever may write to the topic may write
    anything."""
    try:
        kind = msgspec.json.decode(value, type=_Kind).kind
    except BROKEN_JSON:
        return ""
    return kind if isinstance(kind, str) else ""


class _Retirement:
    """The writing part: one epoch, begun with a claim, ended with an empty snapshot."""

    def __init__(
        self,
        spec: StreamSpec,
        connection: KafkaConnection,
        sink: KafkaSink,
        control: ControlTopic,
        went_on: Callable[[], None],
    ) -> None:
        self._spec, self._connection, self._sink, self._control, self._went_on = (
            spec,
            connection,
            sink,
            control,
            went_on,
        )
        self._epoch = 0
        self._sequence = [0] * spec.partitions
        self._remains = [Remains(spec.id) for _ in range(spec.partitions)]

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
        spans = [Span(partition, None, offset) for partition, (_, offset) in enumerate(claims)]
        await ReadBack(self._connection, spec.topic, spans, self._take).run()
        kind = kind_of(self._remains)
        resource = replace(spec.plan.selection.resource, kind=kind)
        encoder = encoder_for(replace(spec, plan=WatchPlan(Selection(resource))), self._epoch)
        for partition, remains in enumerate(self._remains):
            records = list(self._deletes(encoder, partition, remains.objects.values()))
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
        return sum(len(each.objects) for each in self._remains)

    def _take(self, partition: int, records: Sequence[Any]) -> None:
        self._went_on()
        for record in records:
            try:
                said = decode(record.key, record.value, record.headers)
            except RecordRefused:
                continue  # not ours: whoever wrote it is left to clean it up
            if isinstance(said, ObjectRecord) and said.stream == self._spec.id:
                self._remains[partition].take(said)

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
        self, encoder: CloudEvents, said: Callable[[int], Marker]
    ) -> list[tuple[int, int]]:
        """A marker on every partition, acknowledged: its sequence and offset on each."""
        places: list[tuple[int, int]] = []
        for partition in range(self._spec.partitions):
            sequence = self._next(partition)
            record = encoder.marker(partition, sequence, clock.wall_ms(), said(partition))
            places.append((sequence, (await self._deliver(partition, [record]))[0]))
        return places

    def _next(self, partition: int) -> int:
        self._sequence[partition] += 1
        return self._sequence[partition]

    async def _deliver(self, partition: int, records: list[WireRecord]) -> list[int]:
        if self._control.outclaimed(self._spec.id, self._epoch):
            raise Fenced(
                f"stream {self._spec.id}: a relay claimed it meanwhile: take it out of that "
                "relay's config first"
            )
        offsets = (await self._sink.deliver(Batch(self._spec.topic, partition, records))).offsets
        self._went_on()
        return offsets

    async def _highest_epoch(self) -> int:
        return await highest_epoch(self._connection, self._spec.topic, self._spec.id)
