"""Requests snapshots from a running relay, through Kafka alone, and waits for their index
records."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from watchrelay.config import Settings
from watchrelay.contract.wire import Batch, Receipt
from watchrelay.core.errors import SinkForbidden, SinkUnavailable, WatchrelayError
from watchrelay.daemon.kafka_connection import kafka_connection
from watchrelay.daemon.plan import control_spec, signal_spec
from watchrelay.daemon.tasks import only_error
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.failures import SILENCE
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.signal_records import SnapshotRequest
from watchrelay.kafka.signal_topic import send_signal
from watchrelay.kafka.topics import Topics

_READ_TIMEOUT_S = 60.0


class NotPublished(WatchrelayError):
    """The control topic does not exist, or does not describe the stream."""


class SnapshotTimeout(WatchrelayError):
    """No snapshot was complete in time."""


@dataclass(frozen=True, slots=True)
class SnapshotAnswer:
    """A complete snapshot that names the request."""

    stream: str
    index: dict[str, object]
    """The stream's index record; record contract 7."""


class ReadOnlySink:
    """The sink of a control topic that is only read."""

    async def deliver(self, batch: Batch) -> Receipt:
        raise AssertionError(f"nothing is written to {batch.topic} here")


async def check_control_topic(
    settings: Settings, connection: KafkaConnection, *, writes: Sequence[str] = ()
) -> str:
    """The name of the control topic, after a check that it exists, and of the rights.

    Without the rights, reading and writing would retry without end, as a relay has to.

    Args:
        settings: name the topic.
        connection: to Kafka.
        writes: topics that will be written.

    Raises:
        NotPublished: the topic does not exist.
        SinkUnavailable, TopicRefused: as the message says.
    """
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
async def read_control_topic(control: ControlTopic) -> AsyncIterator[ControlTopic]:
    """`control`, read to its end, and kept up to date inside the block.

    Raises:
        SinkUnavailable: the end was not reached in 60 s.
    """
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(control.run(), name="control")
        try:
            try:
                async with asyncio.timeout(_READ_TIMEOUT_S):
                    await control.caught_up()
            except TimeoutError:
                raise SinkUnavailable(
                    f"topic {control.topic} could not be read within {_READ_TIMEOUT_S:g} s"
                ) from None
            yield control
        finally:
            reading.cancel()


def published_streams(control: ControlTopic, streams: Sequence[str]) -> tuple[str, ...]:
    """`streams` without duplicates; without any, all published streams.

    Raises:
        NotPublished: names the first of `streams` that is not published, and all that are.
    """
    described = control.described_streams()
    for stream in streams:
        if stream not in described:
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
    requested: Callable[[str, Sequence[str]], None],
    completed: Callable[[SnapshotAnswer], None],
) -> None:
    """Request a snapshot of each stream, and wait until all are complete.

    Args:
        settings: of the relay.
        streams: ids; none: all published streams.
        timeout_s: for all of it, also where Kafka accepts connections and does not respond.
        requested: called with the request's id and the streams once it is written.
        completed: called with each snapshot, as they are complete.

    Raises:
        NotPublished: there is no such stream.
        SnapshotTimeout: names the streams without a snapshot.
        SinkUnavailable, TopicRefused: as the message says.
    """
    connection = kafka_connection(settings, client_id="watchrelay-snapshot")
    pending = _Pending(requested, completed)
    try:
        async with asyncio.timeout(timeout_s):
            await _request_and_wait(settings, streams, connection, pending)
    except TimeoutError:
        if pending.request is None:
            raise SinkUnavailable(
                f"kafka at {connection.servers} accepted no request within {timeout_s:g} s "
                f"({SILENCE})"
            ) from None
        missing = [each for each in pending.request.streams if each not in pending.complete]
        raise SnapshotTimeout(
            f"no snapshot of {', '.join(missing)} within {timeout_s:g} s: is a relay running "
            f"that has {'it' if len(missing) == 1 else 'them'} "
            f"in its config? Request {pending.request.id} stays valid: a relay that starts within "
            "the hour answers"
        ) from None


@dataclass(slots=True)
class _Pending:
    """A request and the snapshots that answered it."""

    requested: Callable[[str, Sequence[str]], None]
    completed: Callable[[SnapshotAnswer], None]
    request: SnapshotRequest | None = None
    """None until it is written."""
    complete: set[str] = field(default_factory=set)

    def collect(self, request: SnapshotRequest, control: ControlTopic) -> bool:
        """Report the snapshots that are complete now; whether that is all."""
        for stream in request.streams:
            index = control.index(stream)
            if stream not in self.complete and index is not None and _names(index, request.id):
                self.complete.add(stream)
                self.completed(SnapshotAnswer(stream, index))
        return len(self.complete) == len(request.streams)


async def _request_and_wait(
    settings: Settings, streams: Sequence[str], connection: KafkaConnection, pending: _Pending
) -> None:
    signal = signal_spec(settings)
    control_name = await check_control_topic(settings, connection, writes=[signal.name])
    try:
        async with read_control_topic(
            ControlTopic(connection, control_name, ReadOnlySink())
        ) as control:
            wanted = published_streams(control, streams)
            await Topics(connection, create=settings.kafka.create_topics).ensure_topic(signal)
            request = SnapshotRequest(str(uuid.uuid4()), wanted)
            await send_signal(connection, signal.name, settings.cluster, request)
            pending.request = request
            pending.requested(request.id, wanted)
            await control.until(lambda: pending.collect(request, control))
    except BaseExceptionGroup as group:
        raise only_error(group) from None


def _names(index: dict[str, object], request_id: str) -> bool:
    requests = index.get("requests")
    return isinstance(requests, list) and request_id in requests
