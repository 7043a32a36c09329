"""Requests snapshots from a running relay, through Kafka, and waits for their index records."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from math import inf
from typing import Any

from watchrelay.config import Settings
from watchrelay.contract.control import parse_control_key
from watchrelay.contract.wire import Batch, Receipt
from watchrelay.core.errors import (
    NotRelayed,
    RecordRefused,
    SinkForbidden,
    SinkUnavailable,
    TransactionOpen,
    WatchrelayError,
    first_cause,
)
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.failures import SILENCE
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.log_scan import epoch_of
from watchrelay.kafka.reading import COMMITTED, Reading, open_reading
from watchrelay.kafka.signal_records import requests_for
from watchrelay.kafka.signal_topic import send_signal
from watchrelay.kafka.topics import Topics
from watchrelay.model.parts import stream_and_part
from watchrelay.plan.kafka import control_spec, kafka_connection, signal_spec

_READ_TIMEOUT_S = 60.0
_INTERVALS = 3
_MARGIN_S = 1.0
_TAKEOVER_S = 5.0
"""Past a session, until another replica has claimed the streams of one that died."""
_STAYS_VALID = "stays valid: a relay that starts within the hour answers"


class NotPublished(WatchrelayError):
    """The control topic does not exist, or does not describe the stream."""


class SnapshotTimeout(WatchrelayError):
    """No snapshot was complete in time."""


class ReadOnlySink:
    """The sink of a control topic that is only read."""

    async def deliver(self, batch: Batch) -> Receipt:
        raise AssertionError(f"nothing is written to {batch.topic} here")


class Answers(ControlTopic):
    """A control topic, and the index records on it that name `request`, also those that were
    replaced: the next snapshot may follow so soon that both records are read at once."""

    def __init__(self, connection: KafkaConnection, topic: str) -> None:
        super().__init__(connection, topic, ReadOnlySink())
        self.request = str(uuid.uuid4())
        self.found = defaultdict[str, dict[str, Mapping[str, object]]](dict)
        """By stream, and by the stream or part that wrote it."""

    def take(self, record: Any) -> None:
        super().take(record)
        try:
            kind, writer = parse_control_key(record.key)
        except RecordRefused:
            return
        if kind == "snapshot":
            stream, _ = stream_and_part(writer)
            index = self.index_by(writer)
            requests = index.get("requests")
            if isinstance(requests, list) and self.request in requests:
                self.found[stream].setdefault(writer, index)


async def check_control_topic(
    settings: Settings, connection: KafkaConnection, *, writes: Sequence[str] = ()
) -> str:
    """The name of the control topic, after a check of it and of the rights: without these,
    reading and writing would retry without end. `writes`: topics that will be written.

    Raises: NotPublished: it does not exist. SinkUnavailable, TopicRefused."""
    spec = control_spec(settings)
    topics = Topics(connection, create=True)
    if await topics.check_topic(spec) is None:
        raise NotPublished(
            f"topic {spec.name} does not exist: no relay has run with this config; start one, or "
            "check cluster and kafka.topicPrefix"
        )
    granted = await topics.rights({spec.name, *writes})
    for topic, right, participle in (
        (spec.name, "READ", "read"),
        *((each, "WRITE", "written") for each in writes),
    ):
        if topic in granted and right not in granted[topic]:
            raise SinkForbidden(
                f"topic {topic} may not be {participle} by this user: grant {right} on it or its "
                "prefix"
            )
    return spec.name


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None], *, name: str) -> AsyncIterator[None]:
    """Inside the block `work` runs as a task. An error of either is raised as it is, not as a
    group."""
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(work, name=name)
            try:
                yield
            finally:
                task.cancel()
    except BaseExceptionGroup as group:
        raise first_cause(group) from None


@asynccontextmanager
async def read_control_topic(control: ControlTopic) -> AsyncIterator[ControlTopic]:
    """`control`, read to its end, kept up to date in the block. Raises: SinkUnavailable after
    60 s."""
    async with running(control.run(), name="control"):
        try:
            async with asyncio.timeout(_READ_TIMEOUT_S):
                await control.caught_up()
        except TimeoutError:
            raise SinkUnavailable(
                f"topic {control.topic} could not be read within {_READ_TIMEOUT_S:g} s"
            ) from None
        yield control


def published_streams(control: ControlTopic, streams: Sequence[str]) -> tuple[str, ...]:
    """`streams` without duplicates; without any, all published streams. Raises: NotPublished."""
    described = control.described_streams()
    for stream in streams:
        if stream not in described:
            if (whole := stream.partition("%")[0]) in described:
                raise NotPublished(f"{stream} is a part: name its stream, {whole}")
            raise NotPublished(
                f"stream {stream} is not published: {control.topic} describes "
                f"{', '.join(described) or 'none'}"
            )
    if not described:
        raise NotPublished(f"no stream is published: {control.topic} describes none")
    return tuple(dict.fromkeys(streams)) or tuple(described)


async def request_snapshots(
    settings: Settings,
    streams: Sequence[str],
    *,
    timeout_s: float,
    completed: Callable[[str, Mapping[str, object]], None],
) -> None:
    """Request a snapshot of each stream, and wait until all are complete.

    Args:
        streams: ids; none: all published streams.
        timeout_s: for all of it, also where Kafka accepts connections and does not respond.
        completed: called with each stream, or each part of it, and its index record (record
            contract 7).

    Raises: NotPublished; SnapshotTimeout: names the streams; NotRelayed: no record of these streams
    came for three heartbeat intervals; SinkUnavailable, TopicRefused."""
    connection = kafka_connection(settings, client_id="watchrelay-snapshot")
    signal = signal_spec(settings)
    request = ""
    missing: list[str] = []
    try:
        async with asyncio.timeout(timeout_s):
            name = await check_control_topic(settings, connection, writes=[signal.name])
            control = Answers(connection, name)
            async with read_control_topic(control):
                missing += published_streams(control, streams)
                await Topics(connection, create=settings.kafka.create_topics).ensure_topic(signal)
                for each in requests_for(control.request, missing):
                    await send_signal(connection, signal.name, settings.cluster, each)
                request = control.request

                def all_complete() -> bool:
                    for stream in list(missing):
                        found = control.found[stream]
                        if covers(found.values(), control.described(stream)):
                            missing.remove(stream)
                            for writer, index in found.items():
                                completed(writer, index)
                    return not missing

                described = control.described_streams()
                topics = {stream: str(described[stream].get("topic")) for stream in missing}
                silence = end_when_silent(
                    connection, topics, missing, within_s=silent_after_s(settings)
                )
                held_back = end_when_held_back(connection, {signal.name, *topics.values()})
                async with (
                    running(silence, name="silence"),
                    running(held_back, name="transactions"),
                ):
                    await control.until(all_complete)
    except TimeoutError:
        if not request:
            raise SinkUnavailable(
                f"kafka at {connection.servers} accepted no request within {timeout_s:g} s "
                f"({SILENCE})"
            ) from None
        raise SnapshotTimeout(
            f"no snapshot of {', '.join(missing)} within {timeout_s:g} s: is a relay running "
            f"that has {'it' if len(missing) == 1 else 'them'} "
            f"in its config? Request {request} {_STAYS_VALID}"
        ) from None
    except (NotRelayed, TransactionOpen) as error:
        raise type(error)(f"{error}. Request {request} {_STAYS_VALID}", cure=error.cure) from None


def silent_after_s(settings: Settings) -> float:
    """Seconds without a record of a stream after which no relay writes it: three heartbeats are
    missed, and of several replicas another one would have taken it over."""
    missed_s = _INTERVALS * settings.heartbeat_interval_s + _MARGIN_S
    sharding = settings.sharding
    taken_over_s = sharding.session_timeout_s + _TAKEOVER_S if sharding.enabled else 0.0
    return max(missed_s, taken_over_s)


async def end_when_silent(
    connection: KafkaConnection,
    topics: Mapping[str, str],
    missing: Sequence[str],
    *,
    within_s: float,
) -> None:
    """Raise NotRelayed once no record of any stream in `missing` has come for `within_s`. Returns
    where that is unknown: a topic may not be read, or Kafka is away.

    Args:
        topics: by stream.
        missing: the streams without a snapshot yet; it shrinks meanwhile."""
    # heartbeats are written when nothing changes, to each partition: one without a leader gets none
    now_s = asyncio.get_running_loop().time
    try:
        async with open_reading(connection, silent_after_s=inf) as reading:
            await reading.assign_ends(topics.values())
            newest_s = dict.fromkeys(topics, now_s())
            while True:
                for place, records in (await reading.fetch()).items():
                    names = {_writer(record.headers) for record in records}
                    newest_s |= {
                        stream: now_s() for stream in names if topics.get(stream) == place.topic
                    }
                silent = all(now_s() - newest_s[stream] > within_s for stream in missing)
                if missing and silent and await _at_end(reading):
                    break
    except SinkUnavailable:
        return
    raise NotRelayed(
        f"no relay writes {', '.join(missing)}: no heartbeat came in {within_s:g} s (topic "
        f"{', '.join(dict.fromkeys(topics[stream] for stream in missing))}): start the relay"
    )


async def end_when_held_back(connection: KafkaConnection, topics: Collection[str]) -> None:
    """Raise TransactionOpen once a transaction holds the relay back from what is on `topics`.
    Returns where that is unknown: a topic may not be read, or Kafka is away."""
    try:
        async with open_reading(connection, silent_after_s=inf, **COMMITTED) as reading:
            await reading.assign_ends(topics)
            while not (held := reading.held_back()):
                await reading.step(lambda *_: None)
            raise held[min(held)]
    except TransactionOpen:
        raise
    except SinkUnavailable:
        return


def _writer(headers: Sequence[tuple[str, bytes | None]]) -> str:
    """The stream of a record; "" for one that no writer wrote."""
    stream = (dict(headers).get("ce_wrstream") or b"").decode(errors="replace")
    return stream if epoch_of(headers, stream) else ""


async def _at_end(reading: Reading) -> bool:
    """Whether all is read: a broker answers, and has no further records."""
    reading.move()
    ends = await reading.consumer.end_offsets(list(reading.cursors))
    return all(reading.cursors[place].next >= end for place, end in ends.items())


def covers(
    indexes: Iterable[Mapping[str, object]], description: Mapping[str, object] | None
) -> bool:
    """Whether the snapshots of these index records are, together, of every partition: while a
    stream is split otherwise, parts of both layouts may answer."""
    found = set[object]()
    for index in indexes:
        partitions = index.get("partitions")
        found |= (
            {each["partition"] for each in partitions} if isinstance(partitions, list) else set()
        )
    count = (description or {}).get("partitions")
    return isinstance(count, int) and found >= set(range(count))
