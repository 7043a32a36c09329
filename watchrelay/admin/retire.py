"""Removes a stream from its topic for good: a delete for each key, an empty last snapshot, and the
deletion of its control records. Every consumer ends with an empty state.

It may be interrupted anywhere and repeated (record contract 2): the stream's description is deleted
last; until then a second run claims the stream again and deletes what is left. None of its markers
has a frontier, so a stream with the same id that is configured later lists.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from math import inf
from typing import Any, NamedTuple

import msgspec

from watchrelay.admin.snapshot_request import (
    ReadOnlySink,
    check_control_topic,
    published_streams,
    read_control_topic,
    running,
)
from watchrelay.config import Settings
from watchrelay.config.streams import may_mean, plan
from watchrelay.contract.records import CloudEvents, Marker, ObjectRecord, decode, encoder_for
from watchrelay.contract.state import Held, ObjectState
from watchrelay.contract.wire import Batch, Reason, WireRecord
from watchrelay.core import clock
from watchrelay.core.errors import Fenced, RecordRefused, SinkUnavailable, WatchrelayError
from watchrelay.core.text import BROKEN_JSON
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.failures import SILENCE
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.log_scan import epoch_of, highest_epoch
from watchrelay.kafka.range_reader import OffsetRange, RangeReader
from watchrelay.kafka.reading import Reading, open_reading
from watchrelay.kafka.sink import KafkaSink
from watchrelay.kafka.stream_transactions import StreamTransactions
from watchrelay.kafka.topics import Topics, TopicSpec
from watchrelay.model.resources import Resource, Selection
from watchrelay.model.streams import StreamSpec, WatchPlan
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry
from watchrelay.plan.kafka import control_spec, kafka_connection, transactional_id
from watchrelay.replicas.ownership import is_retirement, retirement_holder

Watching = Callable[[str, float], None]

_BATCH_RECORDS = 500
_LAST_REQUESTS_S = 1.0
"""After the claim, for what a relay sends until it has read that."""
_TAKEOVER_S = 5.0
"""Past a session, until another replica that has the stream in its config has claimed it."""
_INTERVALS = 1.5
_MARGIN_S = 1.0
PATIENCE_S = 60.0
"""How long Kafka may accept and return nothing; then repeat the retirement."""


class StillConfigured(WatchrelayError):
    """The stream is in the config: a relay would publish it again."""


class StillWritten(WatchrelayError):
    """A relay writes the stream: it is in that relay's config."""


class RetirementPlan(NamedTuple):
    """What a retirement would do."""

    stream: str
    topic: str
    objects: int | None
    """The count of the last snapshot, None without one."""
    topic_exists: bool
    """False: only the control records are left."""


class Retired(NamedTuple):
    """What a retirement did."""

    topic: str
    deletes: int | None
    """The number of objects deleted; None: the topic does not exist."""


async def plan_retirement(
    settings: Settings, stream: str, *, force: bool, watching: Watching
) -> RetirementPlan:
    """What `retire_stream` would do; changes nothing. `force`: do not check whether a relay writes
    the stream; `watching` as of `refuse_written`.

    Raises: StillWritten, NotPublished, SinkUnavailable, TopicRefused."""
    connection = kafka_connection(settings, client_id="watchrelay-retire")
    sharding = settings.sharding
    name = await check_control_topic(settings, connection)
    async with read_control_topic(ControlTopic(connection, name, ReadOnlySink())) as control:
        published_streams(control, [stream])
        spec = spec_of(settings, stream, control.described_streams()[stream])
        counts = [each.get("count") for each in control.indexes_by_owners(stream)]
        exists = await _exists(connection, spec)
        if exists and not force:
            await refuse_written(
                spec,
                connection,
                control,
                interval_s=settings.heartbeat_interval_s,
                session_s=sharding.session_timeout_s if sharding.enabled else None,
                watching=watching,
            )
        known = [count for count in counts if isinstance(count, int)]
        objects = sum(known) if known and len(known) == len(counts) else None
        return RetirementPlan(stream, spec.topic, objects, exists)


async def retire_stream(settings: Settings, stream: str) -> Retired:
    """Retire `stream`, even while a relay writes it: call `plan_retirement` first.

    Raises: NotPublished, TopicRefused; Fenced: a relay claimed the stream meanwhile;
    SinkUnavailable: also when Kafka was unavailable for `PATIENCE_S` in the middle."""
    connection = kafka_connection(settings, client_id="watchrelay-retire")
    name = await check_control_topic(settings, connection, writes=[control_spec(settings).name])
    sink = KafkaSink(connection, metrics=Metrics(), statuses=StatusRegistry())
    control = ControlTopic(connection, name, sink, holder=retirement_holder())
    async with running(sink.run(), name="sink"), read_control_topic(control):
        return await retire_with(
            settings, stream, connection=connection, sink=sink, control=control
        )


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
    own = transactional_id(settings, stream)
    transactions = StreamTransactions(own, spec.topic, stream, sink, control) if own else None
    try:
        async with asyncio.timeout(patience_s) as patience:

            def progressed() -> None:
                patience.reschedule(asyncio.get_running_loop().time() + patience_s)

            deletes = (
                await _RetirementWriter(
                    spec, connection, sink, control, transactions, progressed
                ).run()
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
    return Retired(spec.topic, deletes)


async def _exists(connection: KafkaConnection, spec: StreamSpec) -> bool:
    wanted = TopicSpec(
        name=spec.topic, partitions=spec.partitions, replication_factor=1, min_insync_replicas=1
    )
    return await Topics(connection).check_topic(wanted) is not None


# ---- the stream ----------------------------------------------------------------------------------


def refuse_configured(settings: Settings, stream: str) -> None:
    """Check that no entry of the config means `stream`, or may on some cluster. Raises:
    StillConfigured."""
    for planned in plan(settings):
        if may_mean(planned, stream):
            entry = f"resources[{planned.index}] ({planned.entry.resource})"
            meant, other = "is still in the config, by", ""
            if planned.may_be_short and planned.id != stream:
                meant = "may be meant by"
                other = ", or write plural and group there if it means another"
            raise StillConfigured(
                f"stream {stream} {meant} {entry}: remove it there{other} (a running relay reloads "
                "the config by itself), then retire it"
            )


def spec_of(settings: Settings, stream: str, description: dict[str, object]) -> StreamSpec:
    """The stream, from its description on the control topic. Raises: RecordRefused."""
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


async def refuse_written(
    spec: StreamSpec,
    connection: KafkaConnection,
    control: ControlTopic,
    *,
    interval_s: float,
    session_s: float | None = None,
    watching: Watching,
) -> None:
    """Return when no relay writes the stream: none of its records comes in one and a half
    heartbeat intervals, whatever the clocks of other hosts show. A claim would stop that relay
    as a whole (exit 75), and its next start would publish again what was retired. Of replicas that
    share streams one takes over what another gives up, while any has the stream in its config.

    Args:
        control: has been read to its end.
        interval_s: between two heartbeats.
        session_s: of the group, after which a dead replica is replaced; None: no streams are
            shared.
        watching: called with the topic and the seconds before it is watched.

    Raises: StillWritten: names the relay and the cure. SinkUnavailable."""
    holder = control.holder_of(spec.id) or "of unknown name"
    if is_retirement(holder):
        return  # an earlier retirement was interrupted; the writer before it has read that claim
    wait_s = _INTERVALS * interval_s + _MARGIN_S
    configs = "that relay's config"
    ends = "that relay then stops all its streams and exits with code 75"
    if session_s is not None:
        wait_s = max(wait_s, session_s + _TAKEOVER_S)
        configs, ends = "the config of every replica", "they then end this stream alone"
    async with open_reading(connection, silent_after_s=inf) as reading:
        await reading.assign_ends([spec.topic])  # heartbeats come when nothing changes
        watching(spec.topic, wait_s)
        if epoch := await _next_epoch(reading, spec.id, within_s=wait_s):
            raise StillWritten(
                f"stream {spec.id} is being written by relay {holder} (epoch {epoch}, topic "
                f"{spec.topic}): remove it from {configs}, which is reloaded without a restart, "
                f"then retire it; or use --force: {ends}"
            )


async def _next_epoch(reading: Reading, stream: str, *, within_s: float) -> int:
    """The epoch of the next record of the stream; 0 if none comes in that time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while True:
                for record in chain(*(await reading.fetch()).values()):
                    if epoch := epoch_of(record.headers, stream):
                        return epoch
    return 0


# ---- what is left on its topic -------------------------------------------------------------------


class RemainingObjects:
    """The objects of one partition that any consumer may still have: one of the record
    contract, or a plain table."""

    def __init__(self) -> None:
        self._table, self._state = ObjectState(), ObjectState()

    def apply(self, record: ObjectRecord) -> None:
        self._table.put(record)
        if self._state.admit(record.epoch, record.sequence) is None:
            self._state.put(record)

    @property
    def objects(self) -> dict[bytes, Held]:
        """What must be deleted, by key: the last state of each."""
        return {**self._table.held, **self._state.held}


class _Kind(msgspec.Struct):
    kind: str = ""


def kind_of(remaining: Sequence[RemainingObjects]) -> str:
    """The kind of the objects as these name it, for an older description lacks it; "" for none."""
    for held in (held for each in remaining for held in each.objects.values()):
        try:
            kind = msgspec.json.decode(held.value, type=_Kind).kind
        except BROKEN_JSON:
            continue  # the value may be anything
        if kind:
            return kind
    return ""


@dataclass(slots=True)
class _RetirementWriter:
    """Writes one epoch: a claim, the deletes, an empty snapshot; the last two again while records
    of the former writer came after its deletes."""

    spec: StreamSpec
    connection: KafkaConnection
    sink: KafkaSink
    control: ControlTopic
    transactions: StreamTransactions | None
    progressed: Callable[[], None]
    epoch: int = 0
    sequences: Counter[int] = field(default_factory=Counter)
    remaining: list[RemainingObjects] = field(default_factory=list)
    read: dict[int, int] = field(default_factory=dict)
    """By partition, the offset up to which it was read."""

    async def run(self) -> int:
        spec = self.spec
        self.epoch = await self.control.claim(
            spec.id,
            spec.description,
            starting_point=None,
            highest_epoch=lambda: highest_epoch(self.connection, spec.topic, spec.id),
            transactional_id="" if self.transactions is None else self.transactions.id,
            replace_description=bool(self.control.blocked(spec.id)),
        )
        if self.transactions is not None:
            await self.transactions.begin(self.epoch)
        await asyncio.sleep(_LAST_REQUESTS_S)
        claims = await self._mark(encoder_for(spec, self.epoch), lambda _: Marker("claim"))
        await self._read_up_to(claims)
        resource = replace(spec.plan.selection.resource, kind=kind_of(self.remaining))
        encoder = encoder_for(replace(spec, plan=WatchPlan(Selection(resource))), self.epoch)
        deleted: set[bytes] = set()
        reason: Reason = "resume"
        snapshots = 0
        while True:
            for partition, remaining in enumerate(self.remaining):
                objects = remaining.objects
                deleted |= objects.keys()
                records = list(self._deletes(encoder, partition, objects, reason))
                for first in range(0, len(records), _BATCH_RECORDS):
                    await self._deliver(partition, records[first : first + _BATCH_RECORDS])
            snapshots += 1
            await self._read_up_to(await self._snapshot(encoder, f"{self.epoch}-{snapshots}"))
            if not any(remaining.objects for remaining in self.remaining):
                return len(deleted)
            reason = "healed"

    async def _snapshot(self, encoder: CloudEvents, snapshot: str) -> list[tuple[int, int]]:
        """Write an empty snapshot; the places of its ends."""
        begins = await self._mark(encoder, lambda _: Marker("begin", "0", snapshot=snapshot))
        return await self._mark(
            encoder,
            lambda partition: Marker(
                "end",
                "0",
                snapshot=snapshot,
                begin_sequence=begins[partition][0],
                begin_offset=begins[partition][1],
            ),
        )

    async def _read_up_to(self, places: Sequence[tuple[int, int]]) -> None:
        """Find out what remains of the records from the last such places on."""
        self.remaining = [RemainingObjects() for _ in places]
        spans = [
            OffsetRange(partition, self.read.get(partition), offset)
            for partition, (_, offset) in enumerate(places)
        ]
        await RangeReader(self.connection, self.spec.topic, spans, self._take).run()
        self.read = {span.partition: span.stop for span in spans}

    def _take(self, partition: int, records: Sequence[Any]) -> None:
        self.progressed()
        for record in records:
            try:
                decoded = decode(record.key, record.value, record.headers)
            except RecordRefused:
                continue  # not of the record contract: left to its writer
            if isinstance(decoded, ObjectRecord) and decoded.stream == self.spec.id:
                self.remaining[partition].apply(decoded)

    def _deletes(
        self,
        encoder: CloudEvents,
        partition: int,
        objects: Mapping[bytes, Held],
        reason: Reason,
    ) -> Iterator[WireRecord]:
        now_ms = clock.wall_ms()
        healed = reason == "healed"  # a null in every format
        plain = healed or self.spec.format == "cloudevents"
        for key, last in objects.items():
            for tombstone in (False,) if plain else (False, True):
                yield encoder.object(
                    partition,
                    self._next(partition),
                    key,
                    None,
                    "deleted",
                    reason,
                    "" if healed else last.uid,
                    "0" if healed else last.version,
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
        for partition in range(self.spec.partitions):
            sequence = self._next(partition)
            record = encoder.marker(partition, sequence, clock.wall_ms(), marker(partition))
            places.append((sequence, (await self._deliver(partition, [record]))[0]))
        return places

    def _next(self, partition: int) -> int:
        self.sequences[partition] += 1
        return self.sequences[partition]

    async def _deliver(self, partition: int, records: list[WireRecord]) -> list[int]:
        if self.control.superseded(self.spec.id, self.epoch):
            raise Fenced(
                f"stream {self.spec.id}: a relay claimed it meanwhile: remove it from that "
                "relay's config first"
            )
        batch = Batch(self.spec.topic, partition, records, self.spec.id)
        receipt = await self.sink.deliver(batch)
        self.progressed()
        return receipt.offsets
