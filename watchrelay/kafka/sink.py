"""The sink: batches of all streams through one producer, until they are acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import RecordTooLarge, SinkUnavailable
from watchrelay.kafka.client import KafkaError, TopicPartition
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.producer import ProducerAborted, ProducerSession, Refused, SinkSettings
from watchrelay.kafka.client.record_batch import PackedBatch, Packer
from watchrelay.kafka.client.secrets import Secrets
from watchrelay.kafka.errors import GONE, NO_RIGHT, SIZES, explain
from watchrelay.kafka.topic_identity import TopicIdentity
from watchrelay.kafka.topic_writers import Lost, TopicWriters
from watchrelay.kafka.written_offsets import WrittenOffsets
from watchrelay.observe.metrics import NO_ACKNOWLEDGEMENT, Metrics, TopicMetrics
from watchrelay.observe.status import StatusRegistry

_log = logging.getLogger(__name__)

MESSAGE_BYTES_DEFAULT = 1_048_588
"""Kafka's default of `max.message.bytes`, assumed of a topic until `limit` is called."""

_BATCH_BYTES_LEAST = 16 * 1024
_RETRY = Backoff(base_s=0.1, cap_s=30.0, jitter=0.5)
_BUILD_RETRY = Backoff(base_s=0.1, cap_s=5.0, jitter=0.5)
_LOOK_EVERY_S = 30.0
_LOOK_DOUBTFUL_S = 1.0
_LOOK_TIMEOUT_S = 5.0
_PROBLEM = "kafka"
_STALLED = "silence"
_SECRETS = "secrets"
_WATCH_EVERY_S = 1.0


_Place = tuple[TopicPartition, str]
"""A partition, and the stream that writes it: each has one batch on its way at most."""


@dataclass(slots=True)
class _Topic:
    """What is known of a topic. `message_bytes` bounds a batch after compression, `batch_bytes`
    before it."""

    metrics: TopicMetrics
    message_bytes: int
    batch_bytes: int


class KafkaSink:
    """Implements the relay's `Sink`. Use: `run()` as a task that ends last, `deliver` from any
    other.

    One producer serves all streams; partitions whose batches are delivered in one step of the event
    loop leave in one request per broker. A producer that gave an error is never given a batch
    again: the next one is built, and what was refused is sent again, the same bytes. The other
    batches in flight are of other partitions: they get a moment to be answered, then the session is
    aborted, and those without an answer are sent again too. So no partition of a stream is ever
    written by two producers: a batch goes to the next session only after the former has answered
    it, or was aborted. What fails again waits by itself, so that one bad topic does not slow
    the others.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        metrics: Metrics,
        statuses: StatusRegistry,
        settings: SinkSettings | None = None,
        rng: random.Random | None = None,
        start: Callable[
            [KafkaConnection, SinkSettings], Awaitable[ProducerSession]
        ] = ProducerSession.start,
    ) -> None:
        """Args: `start` makes a session that can write, or raises SinkUnavailable."""
        self._connection = connection
        self._start = start
        self._metrics = metrics
        self._statuses = statuses
        self._settings = settings or SinkSettings()
        self._rng = rng or random.Random()
        self._packer = Packer()
        self._written = WrittenOffsets()
        self._topics: dict[str, _Topic] = {}
        self._secrets = Secrets(connection.secret_files)
        self._current: ProducerSession | None = None
        self._spare: ProducerSession | None = None
        """Built from secrets that changed, before the one built from the former is let go."""
        self._ready = asyncio.Event()
        self._over = asyncio.Event()
        self._retired: dict[ProducerSession, float | None] = {}
        """Those that are answered for what they have on the way, for so many seconds at most; None:
        for as long as it takes."""
        self._closing: set[ProducerSession] = set()
        self._troubles: dict[str, str] = {}
        self._outstanding: dict[_Place, float] = {}
        """Since when (loop time) a batch is on its way, through as many producers as it takes."""
        self._silent: dict[_Place, float] = {}
        """Of these, those that are overdue, and when each is counted again."""
        self._identity = TopicIdentity()
        self._writers = TopicWriters()
        self._look = asyncio.Event()

    @property
    def trouble(self) -> str:
        """What is wrong with Kafka, for people; "" when nothing is known to be."""
        return self._statuses.problems.get(_PROBLEM, "")

    # ---- the port --------------------------------------------------------------------------------

    async def deliver(self, batch: Batch) -> Receipt:
        """Append all records in order, however long it takes; return when all are acknowledged,
        with the offset of each.

        At most one batch of a (topic, partition) may be outstanding. Cancelling leaves the outcome
        unknown.
        Raises: RecordTooLarge: record `index` fits the topic not even alone. `acked` holds the
        offsets of the records before it that are in the log (a prefix of the batch; none when the
        size was known beforehand, which is the rule); no record from there on is or will be in the
        log by this call. Trim that record and deliver again from `len(acked)` on, or everything,
        under the same positions.
        """
        topic = self._topic(batch.topic)
        partition = TopicPartition(batch.topic, batch.partition)
        packed, too_large = self._pack(topic, batch.records, 0, len(batch.records))
        if too_large is not None:
            raise self._too_large(batch, too_large, [])
        place = (partition, batch.stream)
        self._outstanding[place] = asyncio.get_running_loop().time()
        try:
            return Receipt(await self._deliver(batch, topic, partition, packed))
        finally:
            self._outstanding.pop(place, None)
            if place in self._silent:
                self._heard(place)
            if self._troubles and not any(other == partition for other, _ in self._outstanding):
                # it is nobody's any more who was stopped
                self._troubles.pop(f"{partition.topic}/{partition.partition}", None)
                self._show()

    async def _deliver(
        self, batch: Batch, topic: _Topic, partition: TopicPartition, packed: list[PackedBatch]
    ) -> list[int]:
        """The offset of each record. Raises: RecordTooLarge."""
        records = batch.records
        offsets: list[int] = []
        waiting = deque(packed)
        while waiting:
            pack = waiting.popleft()
            try:
                first = await self._append(topic, partition, pack, batch.stream)
            except _TooLarge as error:
                if pack.record_count() == 1:
                    raise self._too_large(batch, pack.start, offsets, pack) from error
                topic.batch_bytes = max(_BATCH_BYTES_LEAST, pack.raw_bytes // 2)
                middle, halves = (pack.start + pack.stop) // 2, list[PackedBatch]()
                for start, stop in ((pack.start, middle), (middle, pack.stop)):
                    more, too_large = self._pack(topic, records, start, stop)
                    # the limit was lowered while the batch was on its way
                    if too_large is not None:
                        raise self._too_large(batch, too_large, offsets) from error
                    halves += more
                waiting.extendleft(reversed(halves))
            else:
                offsets.extend(range(first, first + pack.record_count()))
                stop = first + pack.record_count()
                await self._unless_lost(batch.topic, batch.stream)
                if why := self._writers.note(
                    batch.topic, batch.partition, batch.stream, first, stop
                ):
                    self._lose(batch.topic, why)
                    await self._unless_lost(batch.topic, batch.stream)
                self._written.note(partition, first, stop)
                topic.metrics.last_ack_timestamp_seconds.set(clock.wall_ms() / 1000)
        return offsets

    def open(self, topic: str, stream: str, lost: Lost, *, made: bool) -> bool:
        """`stream` writes the topic as it is now.

        When that is deleted or recreated, `lost` is called once, and no batch of the stream returns
        any more: cancel what waits, and open again.

        Args:
            made: the topic was just created.

        Returns: whether this is another topic than the stream opened before, so that nothing known
        of its content is valid.
        """
        recreated, others = self._writers.open(topic, stream, lost, made=made)
        if made:
            self._identity.forget(topic)
        self._identity.expect(topic)
        self._tell(topic, "it was missing and was recreated", others)
        return recreated

    def close(self, topic: str, stream: str) -> None:
        """`stream` stops writing the topic."""
        if self._writers.close(topic, stream):
            self._identity.forget(topic)

    def foreign_ranges(
        self, topic: str, partition: int, start: int, stop: int
    ) -> list[tuple[int, int]]:
        """The ranges of offsets in [start, stop) that this process did not write, as far as
        acknowledgements tell."""
        return self._written.gaps(TopicPartition(topic, partition), start, stop)

    def limit(self, topic: str, message_bytes: int) -> None:
        """Tell the topic's `max.message.bytes`, as often as it is read."""
        known = self._topic(topic)
        known.message_bytes = message_bytes
        known.batch_bytes = self._settings.batch_bytes

    async def run(self) -> None:
        """Build and replace producers until cancelled; then release all within a few seconds."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch(), name="sink-watchdog")
                tasks.create_task(self._look_for_topics(), name="sink-look")
                if self._secrets:
                    tasks.create_task(self._rotate(), name="sink-secrets")
                while True:
                    self._current, self._spare = self._spare or await self._build(), None
                    self._over.clear()
                    self._ready.set()
                    await self._over.wait()
                    for session in self._retired:
                        if session not in self._closing:
                            self._closing.add(session)
                            tasks.create_task(self._close(session), name="sink-close")
        finally:
            if self._current is not None:
                self._retire(self._current, "stopped")
            if self._spare is not None:
                self._retired[self._spare] = 0.0
            for session in list(self._retired):
                session.abort()
                await session.close()

    # ---- one batch -------------------------------------------------------------------------------

    async def _append(
        self, topic: _Topic, partition: TopicPartition, pack: PackedBatch, stream: str
    ) -> int:
        """Offset of the pack's first record, through as many producer sessions as it takes.

        Raises: _TooLarge.
        """
        backoff = _RETRY
        while True:
            await self._unless_lost(partition.topic, stream)
            session = self._current
            if session is None:
                await self._ready.wait()
                continue
            started_s = clock.now_s()
            try:
                first = await session.append(partition, pack)
            except ProducerAborted:
                continue
            except Refused as refused:
                if refused.sent:
                    self._retire(session, "error", within_s=self._settings.finish_s)
                error = refused.error
                topic.metrics.produce_failed(
                    type(error).__name__, retriable=bool(getattr(error, "retriable", False))
                )
                if isinstance(error, SIZES):
                    raise _TooLarge from error
                if isinstance(error, GONE):
                    self._look.set()
                self._trouble(
                    f"{partition.topic}/{partition.partition}",
                    explain(error, partition, session.tail.reason),
                )
                backoff, wait_s = backoff.after_failure(clock.now_s(), healthy=False, rng=self._rng)
                await asyncio.sleep(wait_s)
            else:
                topic.metrics.produce_duration_seconds.observe(clock.now_s() - started_s)
                if self._troubles:
                    self._well(f"{partition.topic}/{partition.partition}")
                return first

    def _pack(
        self, topic: _Topic, records: list[WireRecord], start: int, stop: int
    ) -> tuple[list[PackedBatch], int | None]:
        return self._packer.pack(
            records,
            start=start,
            stop=stop,
            batch_bytes=topic.batch_bytes,
            limit_bytes=topic.message_bytes,
            now_ms=clock.wall_ms(),
        )

    def _too_large(
        self, batch: Batch, index: int, acked: list[int], refused: PackedBatch | None = None
    ) -> RecordTooLarge:
        limit = self._topic(batch.topic).message_bytes
        what = (
            f"record {batch.records[index].key.decode(errors='replace')} is too large for "
            f"topic {batch.topic}"
        )
        if refused is None:
            message = f"{what}: compressed it is over max.message.bytes, {limit}"
        else:
            message = (
                f"{what}: kafka refused it with {refused.size()} bytes compressed; "
                f"max.message.bytes was {limit} when last read"
            )
        return RecordTooLarge(message, index=index, acked=acked)

    def _topic(self, name: str) -> _Topic:
        known = self._topics.get(name)
        if known is None:
            known = _Topic(
                self._metrics.topic(name), MESSAGE_BYTES_DEFAULT, self._settings.batch_bytes
            )
            self._topics[name] = known
        return known

    # ---- topics that are lost --------------------------------------------------------------------

    async def _unless_lost(self, topic: str, stream: str) -> None:
        """Return at once, or never if the topic of `stream` was lost."""
        if not self._writers.counts(topic, stream):
            await asyncio.get_running_loop().create_future()

    def _lose(self, topic: str, why: str) -> None:
        _log.error("topic was deleted or recreated", extra={"topic": topic, "error": why})
        self._identity.forget(topic)
        self._tell(topic, why, self._writers.lose(topic))
        for former in self._retired:
            former.abort()  # what it still has for the lost topic must not come late into a new one
        if self._current is not None:
            self._retire(self._current, "error")

    def _tell(self, topic: str, why: str, streams: Sequence[Lost]) -> None:
        if streams:
            self._written.forget(lambda place: place.topic == topic)
        for lost in streams:
            lost(f"topic {topic} was deleted or recreated: {why}")

    async def _look_for_topics(self) -> None:
        """See whether opened topics are there: rarely, at once when one of them gave an error that
        says so, often while one is not."""
        while True:
            try:
                async with asyncio.timeout(
                    _LOOK_DOUBTFUL_S if self._identity.doubtful else _LOOK_EVERY_S
                ):
                    await self._look.wait()
                    await asyncio.sleep(_LOOK_DOUBTFUL_S)  # errors come in numbers
            except TimeoutError:
                pass
            self._look.clear()
            session, topics = self._current, self._identity.topics
            if session is None or not topics:
                continue
            try:
                async with asyncio.timeout(_LOOK_TIMEOUT_S):
                    answer = await session.topic_ids(topics)
            except (KafkaError, OSError, TimeoutError) as error:
                _log.debug("cannot ask brokers whether topics exist", extra={"error": repr(error)})
                continue
            for name, why in self._identity.seen(answer, clock.now_s()).items():
                self._lose(name, why)

    # ---- producer sessions -----------------------------------------------------------------------

    async def _build(self) -> ProducerSession:
        backoff = _BUILD_RETRY
        while True:
            try:
                self._secrets.using()
                session = await self._start(self._connection, self._settings)
            except SinkUnavailable as error:
                self._trouble("", str(error))
                backoff, wait_s = backoff.after_failure(clock.now_s(), healthy=False, rng=self._rng)
                await asyncio.sleep(wait_s)
            else:
                self._let_in()
                self._well("")
                return session

    def _let_in(self) -> None:
        """The current secrets are in use; clients that hold the previous ones reconnect."""
        if self._secrets.let_in():
            _log.info("kafka secrets changed and are in use")
            self._connection.rotation.proven += 1
        if self._troubles.pop(_SECRETS, None) is not None:
            self._show()

    async def _rotate(self) -> None:
        """Make a producer of secrets that changed; only when they let it in is the one of the
        former secrets let go."""
        while True:
            await asyncio.sleep(self._settings.secrets_every_s)
            if not self._ready.is_set() or not self._secrets.changed():
                continue  # one that is being built reads them anyway
            try:
                fresh = await self._start(self._connection, self._settings)
            except SinkUnavailable as error:
                if self._secrets.in_use:
                    # another producer was built of the same meanwhile, or says itself why it could
                    # not be
                    continue
                if _SECRETS not in self._troubles:
                    _log.warning(
                        "new kafka secrets are not usable; keeping the previous ones",
                        extra={"error": str(error)},
                    )
                self._troubles[_SECRETS] = (
                    "the kafka secrets changed and are not usable; keeping the previous ones: "
                    f"{error}"
                )
                self._show()
                continue
            if (held := self._current) is None:  # the next one is being built, of these secrets too
                self._retired[fresh] = 0.0
                self._closing.add(fresh)
                await self._close(fresh)
                continue
            self._secrets.took()
            self._let_in()
            self._spare = fresh
            waits = (
                held.oldest_s is not None
                and asyncio.get_running_loop().time() - held.oldest_s
                > self._settings.stalled_after_s
            )
            self._retire(held, "credentials", within_s=0.0 if waits else None)

    def _retire(
        self, session: ProducerSession, reason: str, *, within_s: float | None = 0.0
    ) -> None:
        """Never hand it another batch; what it has on the way is answered within `within_s`, or
        sent again. None: without a limit."""
        session.drain()
        if within_s == 0.0:
            session.abort()
        if session is not self._current:
            return
        self._current = None
        self._ready.clear()
        self._retired[session] = within_s
        self._over.set()
        if reason != "stopped":
            self._metrics.counter("producer_rebuilds").labels(reason).inc()

    async def _close(self, session: ProducerSession) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._retired[session] or None):
                await session.idle.wait()
        session.abort()
        await session.close()
        del self._retired[session]
        self._closing.discard(session)

    async def _watch(self) -> None:
        """Report silence after `stalled_after_s`, rebuild after `watchdog_s`; renew in time."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(
                min(
                    _WATCH_EVERY_S,
                    self._settings.watchdog_s / 4,
                    self._settings.stalled_after_s / 4,
                )
            )
            stalled = ""
            for session in (
                *self._retired,
                *([self._current] if self._current is not None else []),
            ):
                oldest_s = session.oldest_s
                silent_s = 0.0 if oldest_s is None else loop.time() - oldest_s
                if silent_s > self._settings.stalled_after_s:
                    stalled = (
                        f"no acknowledgement from kafka at {self._connection.servers} for "
                        f"{silent_s:.0f} s"
                    )
                    stalled += f": {session.tail.reason}" if session.tail.reason else ""
                elif session is self._current:
                    # older log lines explain no later failure
                    session.tail.clear()
                if silent_s > self._settings.watchdog_s:
                    self._retire(session, "watchdog")
                elif session is self._current and session.needs_renewal:
                    self._retire(session, "renewal", within_s=None)
            if stalled:
                self._trouble(_STALLED, stalled)
            elif _STALLED in self._troubles and self._current is not None:
                self._well(_STALLED)
            self._count_silence(loop.time())

    def _count_silence(self, now_s: float) -> None:
        """Whatever the reason: what is on its way for too long is counted once per
        `stalled_after_s`, and shown with its stream."""
        patience_s = self._settings.stalled_after_s
        for place, since_s in self._outstanding.items():
            if now_s - since_s <= patience_s:
                continue
            partition, stream = place
            refused = self._troubles.get(f"{partition.topic}/{partition.partition}")
            if self._silent.get(place, 0.0) <= now_s:
                self._silent[place] = now_s + patience_s
                if refused is None:  # what was refused is counted with its error
                    self._topic(partition.topic).metrics.produce_failed(
                        NO_ACKNOWLEDGEMENT, retriable=True
                    )
            silence = (
                f"no acknowledgement from kafka at {self._connection.servers} for "
                f"{now_s - since_s:.0f} s"
            )
            if (status := self._statuses.streams.get(stream)) is not None:
                person = refused is not None and NO_RIGHT in refused
                status.not_acknowledged(refused or self._troubles.get("") or silence, person=person)

    def _heard(self, place: _Place) -> None:
        """An overdue batch is on its way no more."""
        del self._silent[place]
        stream = place[1]
        status = self._statuses.streams.get(stream)
        if status is not None and not any(other == stream for _, other in self._silent):
            status.acknowledged()

    # ---- what is wrong ---------------------------------------------------------------------------

    def _trouble(self, about: str, message: str) -> None:
        if not self._troubled(about):
            _log.warning("kafka does not accept records", extra={"error": message})
        self._troubles[about] = message
        self._show()

    def _well(self, about: str) -> None:
        if self._troubles.pop(about, None) is not None:
            if not self._troubles:
                _log.info("kafka accepts records again")
            elif "/" in about and not self._troubled(about):
                _log.info("topic accepts records again", extra={"topic": about.partition("/")[0]})
            self._show()

    def _troubled(self, about: str) -> bool:
        """The topic, or the connection, is in trouble already: partitions of one topic are one line
        in the log."""
        name = about.partition("/")[0]
        return any(other.partition("/")[0] == name for other in self._troubles)

    def _show(self) -> None:
        if self._troubles:
            # an answer of Kafka explains more than its silence
            first, *others = sorted(
                self._troubles.values(), key=lambda trouble: trouble == self._troubles.get(_STALLED)
            )
            self._statuses.problems[_PROBLEM] = first + (
                f" (and {len(others)} more)" if others else ""
            )
        else:
            self._statuses.problems.pop(_PROBLEM, None)


class _TooLarge(Exception):
    """Kafka refused a batch for its size, although it was within the limit that we know."""
