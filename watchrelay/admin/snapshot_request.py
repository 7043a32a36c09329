"""Requests snapshots from a running relay, through Kafka, and waits for their index records."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from watchrelay.config import Settings
from watchrelay.contract.wire import Batch, Receipt
from watchrelay.core.errors import SinkForbidden, SinkUnavailable, WatchrelayError, first_cause
from watchrelay.daemon.kafka_connection import kafka_connection
from watchrelay.daemon.plan import control_spec, signal_spec
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.failures import SILENCE
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.signal_records import requests_for
from watchrelay.kafka.signal_topic import send_signal
from watchrelay.kafka.topics import Topics

_READ_TIMEOUT_S = 60.0


class NotPublished(WatchrelayError):
    """The control topic does not exist, or does not describe the stream."""


class SnapshotTimeout(WatchrelayError):
    """No snapshot was complete in time."""


class ReadOnlySink:
    """The sink of a control topic that is only read."""

    async def deliver(self, batch: Batch) -> Receipt:
        raise AssertionError(f"nothing is written to {batch.topic} here")


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

    Raises: NotPublished; SnapshotTimeout: names the streams; SinkUnavailable, TopicRefused."""
    connection = kafka_connection(settings, client_id="watchrelay-snapshot")
    signal = signal_spec(settings)
    request = ""
    missing: list[str] = []
    try:
        async with asyncio.timeout(timeout_s):
            name = await check_control_topic(settings, connection, writes=[signal.name])
            async with read_control_topic(
                ControlTopic(connection, name, ReadOnlySink())
            ) as control:
                missing += published_streams(control, streams)
                await Topics(connection, create=settings.kafka.create_topics).ensure_topic(signal)
                wanted = str(uuid.uuid4())
                for each in requests_for(wanted, missing):
                    await send_signal(connection, signal.name, settings.cluster, each)
                request = wanted
                answers: dict[str, dict[str, Mapping[str, object]]] = {}

                def all_complete() -> bool:
                    for stream in list(missing):
                        found = answers.setdefault(stream, {})
                        for writer, index in control.index_records(stream).items():
                            requests = index.get("requests")
                            if isinstance(requests, list) and wanted in requests:
                                found.setdefault(writer, index)
                        if covers(found.values(), control.described(stream)):
                            missing.remove(stream)
                            for writer in found:
                                completed(writer, found[writer])
                    return not missing

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
            f"in its config? Request {request} stays valid: a relay that starts within "
            "the hour answers"
        ) from None


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
