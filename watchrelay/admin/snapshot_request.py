"""Asking a running relay for snapshots, through Kafka alone, and waiting for its answer.

Room: app. In: settings, which streams. Out: what the index record of each says, as they come.
"""

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


class NotThere(WatchrelayError):
    """What was named is not on the control topic."""


class Unanswered(WatchrelayError):
    """No snapshot named the request in time."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A snapshot that answered. Shape: `index` is the stream's index record; record contract 7."""

    stream: str
    index: dict[str, object]


class Mute:
    """For whoever only reads the control topic."""

    async def deliver(self, batch: Batch) -> Receipt:
        raise AssertionError(f"nothing is written to {batch.topic} here")


async def checked_control(
    settings: Settings, connection: KafkaConnection, *, writes: Sequence[str] = ()
) -> str:
    """The name of the control topic, which is there and may be read. `writes`: topics that are
    going to be written, too.

    Without the rights whoever goes on would try for ever, as a relay must. Raises: NotThere,
    SinkUnavailable, TopicRefused.
    """
    spec = control_spec(settings)
    topics = Topics(connection, create=True)
    if await topics.check_topic(spec) is None:
        raise NotThere(
            f"topic {spec.name} does not exist: no relay ever ran here; start it, or check "
            "cluster and kafka.topicPrefix"
        )
    told = await topics.rights({spec.name, *writes})
    for topic, right, done in (
        (spec.name, "READ", "read"),
        *((each, "WRITE", "written") for each in writes),
    ):
        if topic in told and right not in told[topic]:
            raise SinkForbidden(
                f"topic {topic} may not be {done} by this user: grant {right} on it or its prefix"
            )
    return spec.name


@asynccontextmanager
async def following(control: ControlTopic) -> AsyncIterator[ControlTopic]:
    """`control`, read to its end and followed inside the block. Raises: SinkUnavailable."""
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


def known(control: ControlTopic, streams: Sequence[str]) -> tuple[str, ...]:
    """The streams meant: those named, else all that are published. Raises: NotThere naming the
    first that is not, and all that are."""
    described = control.described_streams()
    for stream in streams:
        if stream not in described:
            raise NotThere(
                f"stream {stream} is not published: {control.topic} describes "
                f"{', '.join(described) or 'none'}"
            )
    if not described:
        raise NotThere(f"no stream is published: {control.topic} describes none")
    return tuple(dict.fromkeys(streams)) or tuple(described)


async def ask_for_snapshots(
    settings: Settings,
    streams: Sequence[str],
    *,
    timeout_s: float,
    asked: Callable[[str, Sequence[str]], None] = lambda _id, _streams: None,
    taken: Callable[[Taken], None] = lambda _: None,
) -> list[Taken]:
    """Ask for a snapshot of each stream (none named: of all published); the answers, in the order
    of the streams.

    Shape: `asked` is told the request's id and the streams once it is written; `taken` each answer
    as it comes. `timeout_s` is for all of it: also for a Kafka that takes connections and says
    nothing.
    Raises: NotThere; Unanswered, naming the streams that are still owed; SinkUnavailable;
    TopicRefused.
    """
    connection = kafka_connection(settings, client_id="watchrelay-snapshot")
    asking = _Asking(asked, taken)
    try:
        async with asyncio.timeout(timeout_s):
            return await _ask(settings, streams, connection, asking)
    except TimeoutError:
        if asking.request is None:
            raise SinkUnavailable(
                f"kafka at {connection.servers} let no request be written within {timeout_s:g} s "
                f"({SILENCE})"
            ) from None
        owed = [stream for stream in asking.request.streams if stream not in asking.answers]
        raise Unanswered(
            f"no snapshot of {', '.join(owed)} within {timeout_s:g} s: is a relay running "
            f"that has {'it' if len(owed) == 1 else 'them'} "
            f"in its config? Request {asking.request.id} stands: a relay that starts within "
            "the hour answers"
        ) from None


@dataclass(slots=True)
class _Asking:
    """How far the asking has come. Shape: `request` once it is written."""

    asked: Callable[[str, Sequence[str]], None]
    taken: Callable[[Taken], None]
    request: SnapshotRequest | None = None
    answers: dict[str, Taken] = field(default_factory=dict)

    def complete(self, request: SnapshotRequest, control: ControlTopic) -> bool:
        """Take what has come; whether that is all."""
        for stream in request.streams:
            index = control.index(stream)
            if stream not in self.answers and index is not None and _names(index, request.id):
                self.answers[stream] = Taken(stream, index)
                self.taken(self.answers[stream])
        return len(self.answers) == len(request.streams)


async def _ask(
    settings: Settings, streams: Sequence[str], connection: KafkaConnection, asking: _Asking
) -> list[Taken]:
    signal = signal_spec(settings)
    control = ControlTopic(
        connection, await checked_control(settings, connection, writes=[signal.name]), Mute()
    )
    try:
        async with following(control):
            wanted = known(control, streams)
            await Topics(connection, create=settings.kafka.create_topics).ensure_topic(signal)
            request = SnapshotRequest(str(uuid.uuid4()), wanted)
            await send_signal(connection, signal.name, settings.cluster, request)
            asking.request = request
            asking.asked(request.id, wanted)
            await control.until(lambda: asking.complete(request, control))
            return [asking.answers[stream] for stream in request.streams]
    except BaseExceptionGroup as group:
        raise only_error(group) from None


def _names(index: dict[str, object], request_id: str) -> bool:
    requests = index.get("requests")
    return isinstance(requests, list) and request_id in requests
