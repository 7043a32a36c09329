"""The sink: batches of all streams through one producer, until they are acknowledged."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core import causes, clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import RecordTooLarge
from watchrelay.kafka.client import KafkaError, TopicPartition, for_code
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.failures import unreachable
from watchrelay.kafka.client.record_batch import PackedBatch, Packer
from watchrelay.kafka.cluster_access import SECRETS
from watchrelay.kafka.errors import GONE, NO_RIGHT, SIZES, explain
from watchrelay.kafka.produce_state import PendingBatch
from watchrelay.kafka.producer import CUT, Producer, ProducerSettings
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
_LOOK_EVERY_S = 30.0
_LOOK_DOUBTFUL_S = 1.0
_LOOK_TIMEOUT_S = 5.0
_PROBLEM = "kafka"
_STALLED = "silence"
_BROKERS = ("", _STALLED)
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


Answered = Callable[[Receipt | Exception], None]


class Delivery:
    """A batch on its way: `waiting` are the packs that are not acknowledged, the first of which is
    with the producer or waits for `timer`; `offsets` those of the records before them."""

    __slots__ = (
        "backoff", "batch", "done", "offsets", "partition", "pending", "place", "sent_s", "timer",
        "topic", "waiting",
    )  # fmt: skip

    def __init__(self, batch: Batch, topic: _Topic, done: Answered) -> None:
        self.batch, self.topic, self.done = batch, topic, done
        self.partition = TopicPartition(batch.topic, batch.partition)
        self.place: _Place = (self.partition, batch.stream)
        self.waiting: deque[PackedBatch] = deque()
        self.offsets: list[int] = []
        self.pending: PendingBatch | None = None
        self.timer: asyncio.Handle | None = None
        self.backoff = _RETRY
        self.sent_s = 0.0


class KafkaSink:
    """Implements the relay's `RecordSink`. Use: `run()` as a task that ends last, `send` or
    `deliver` from any other.

    One producer serves all streams; partitions whose batches are delivered in one step of the event
    loop leave in one request per broker. A batch that is refused is sent again after a pause, the
    same records; that holds up nobody but its partition.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        metrics: Metrics,
        statuses: StatusRegistry,
        settings: ProducerSettings | None = None,
        rng: random.Random | None = None,
        reach: Callable[[KafkaConnection], Brokers] = Brokers,
    ) -> None:
        """Args: `reach` as of Producer."""
        self._connection = connection
        self._metrics = metrics
        self._statuses = statuses
        self._settings = settings or ProducerSettings()
        self._rng = rng or random.Random()
        self._producer = Producer(connection, self._settings, self, reach=reach, rng=self._rng)
        self._packer = Packer()
        self._written = WrittenOffsets()
        self._topics: dict[str, _Topic] = {}
        self._troubles: dict[str, str] = {}
        """By topic/partition, or what the producer names."""
        self._outstanding: dict[_Place, float] = {}
        """Since when (loop time) a batch is being delivered, however often it is sent."""
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

    def send(self, batch: Batch, done: Answered) -> Delivery:
        """Append all records in order, however long it takes; `done` is called once, in a later
        step of the loop, with a Receipt when all are acknowledged.

        At most one batch of a (topic, partition) may be outstanding. `done` gets a RecordTooLarge
        when record `index` fits the topic not even alone. `acked` holds the offsets of the records
        before it that are in the log (a prefix of the batch; none when the size was known
        beforehand, which is the rule); no record from there on is or will be in the log by this
        call. Trim that record and send again from `len(acked)` on, or everything, under the same
        positions.
        """
        topic = self._topic(batch.topic)
        delivery = Delivery(batch, topic, done)
        packed, too_large = self._pack(topic, batch.records, 0, len(batch.records))
        if too_large is not None:
            error = self._too_large(batch, too_large, [])
            delivery.timer = asyncio.get_running_loop().call_soon(done, error)
            return delivery
        delivery.waiting.extend(packed)
        self._outstanding[delivery.place] = asyncio.get_running_loop().time()
        self._append(delivery)
        return delivery

    def withdraw(self, delivery: Delivery) -> None:
        """Nobody waits for the batch any more: `done` is not called, the outcome is unknown."""
        if delivery.timer is not None:
            delivery.timer.cancel()
        if delivery.pending is not None:
            self._producer.withdraw(delivery.partition, delivery.pending)
        self._close(delivery)

    async def deliver(self, batch: Batch) -> Receipt:
        """As `send`. Cancelling withdraws the batch. Raises: RecordTooLarge."""
        answered: asyncio.Future[Receipt | Exception] = asyncio.get_running_loop().create_future()
        delivery = self.send(batch, answered.set_result)
        try:
            answer = await answered
        finally:
            if answered.cancelled():
                self.withdraw(delivery)
        if isinstance(answer, Exception):
            raise answer
        return answer

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
        if others:
            self._producer.forget(topic)
        self._identity.expect(topic)
        self._tell(topic, "it was missing and was recreated", others)
        return recreated

    def close(self, topic: str, stream: str) -> None:
        """`stream` stops writing the topic."""
        if self._writers.close(topic, stream):
            self._identity.forget(topic)
            self._producer.forget(topic)

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

    def hold_while(self, held: Callable[[], bool]) -> None:
        """Ask `held` before each produce request is written: while it is true none leaves."""
        self._producer.held = held

    def resume(self) -> None:
        """Send what was held."""
        self._producer.resume()

    def reset(self) -> None:
        """Have nothing that was sent and not acknowledged reach a broker later on; it is sent
        again."""
        self._producer.reset()

    async def end_offset(self, topic: str, partition: int) -> int:
        """The end of a partition, as its leader knows it now. Raises: SinkUnavailable."""
        try:
            return await self._producer.end_offset(TopicPartition(topic, partition))
        except (KafkaError, OSError) as error:
            raise unreachable(self._connection, error) from error

    async def run(self) -> None:
        """Serve until cancelled; then no byte leaves any more."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(), name="sink-watchdog")
            tasks.create_task(self._look_for_topics(), name="sink-look")
            await self._producer.run()

    # ---- one batch -------------------------------------------------------------------------------

    def _append(self, delivery: Delivery) -> None:
        """Append the next pack. Nothing happens any more once the topic of the stream was lost."""
        if self._counts(delivery):
            delivery.sent_s = clock.now_s()
            delivery.pending = self._producer.append(
                delivery.partition,
                delivery.waiting[0],
                lambda offset, code: self._answered(delivery, offset, code),
            )

    def _answered(self, delivery: Delivery, first: int, code: int) -> None:
        """The first pack that waits is in the log from offset `first` on, or was refused."""
        delivery.pending = None
        loop = asyncio.get_running_loop()
        if not code:
            # what follows from a lost topic cuts connections: not while one of them is read
            if self._counts(delivery) and (why := self._acked(delivery, first)):
                loop.call_soon(self._lose, delivery.batch.topic, why)
        elif code == CUT:
            pass  # nobody knows whether it is in the log
        elif issubclass(for_code(code), SIZES):
            self._split(delivery)
        else:
            delivery.backoff, wait_s = delivery.backoff.after_failure(
                clock.now_s(), healthy=False, rng=self._rng
            )
            delivery.timer = loop.call_later(wait_s, self._append, delivery)

    def _acked(self, delivery: Delivery, first: int) -> str:
        """Why the offset cannot be of the topic that the stream opened, "" if it can."""
        batch, topic, pack = delivery.batch, delivery.topic, delivery.waiting.popleft()
        stop = first + pack.record_count()
        if why := self._writers.note(batch.topic, batch.partition, batch.stream, first, stop):
            return why
        topic.metrics.produce_duration_seconds.observe(clock.now_s() - delivery.sent_s)
        topic.metrics.last_ack_timestamp_seconds.set(clock.wall_ms() / 1000)
        self._written.note(delivery.partition, first, stop)
        if self._troubles:
            self._well(f"{batch.topic}/{batch.partition}")
        delivery.offsets.extend(range(first, stop))
        delivery.backoff = _RETRY
        if delivery.waiting:
            self._append(delivery)
        else:
            self._finish(delivery, Receipt(delivery.offsets))
        return ""

    def _split(self, delivery: Delivery) -> None:
        """Append in two halves what was refused for its size."""
        batch, topic, pack = delivery.batch, delivery.topic, delivery.waiting.popleft()
        if pack.record_count() == 1:
            self._finish(delivery, self._too_large(batch, pack.start, delivery.offsets, pack))
            return
        topic.batch_bytes = max(_BATCH_BYTES_LEAST, pack.raw_bytes // 2)
        middle, halves = (pack.start + pack.stop) // 2, list[PackedBatch]()
        for start, stop in ((pack.start, middle), (middle, pack.stop)):
            more, too_large = self._pack(topic, batch.records, start, stop)
            # the limit was lowered while the batch was on its way
            if too_large is not None:
                self._finish(delivery, self._too_large(batch, too_large, delivery.offsets))
                return
            halves += more
        delivery.waiting.extendleft(reversed(halves))
        self._append(delivery)

    def _finish(self, delivery: Delivery, answer: Receipt | RecordTooLarge) -> None:
        self._close(delivery)
        delivery.done(answer)

    def _close(self, delivery: Delivery) -> None:
        """The batch is not being delivered any more."""
        place, partition = delivery.place, delivery.partition
        self._outstanding.pop(place, None)
        if place in self._silent:
            self._heard(place)
        if self._troubles and not any(other == partition for other, _ in self._outstanding):
            # it is nobody's any more who was stopped
            self._troubles.pop(f"{partition.topic}/{partition.partition}", None)
            self._show()

    def _counts(self, delivery: Delivery) -> bool:
        """Whether the topic is the one that the stream opened: what is of a lost one is neither
        sent nor answered."""
        return self._writers.counts(delivery.batch.topic, delivery.batch.stream)

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

    def _lose(self, topic: str, why: str) -> None:
        _log.error("topic was deleted or recreated", extra={"topic": topic, "error": why})
        self._identity.forget(topic)
        self._producer.forget(topic)
        self._tell(topic, why, self._writers.lose(topic))

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
            topics = self._identity.topics
            if not topics:
                continue
            try:
                async with asyncio.timeout(_LOOK_TIMEOUT_S):
                    answer = await self._producer.topic_ids(topics) or {}
            except (KafkaError, OSError, TimeoutError) as error:
                _log.debug("cannot ask brokers whether topics exist", extra={"error": repr(error)})
                continue
            for name, why in self._identity.seen(answer, clock.now_s()).items():
                self._lose(name, why)

    # ---- what the producer reports ---------------------------------------------------------------

    def failed(self, place: TopicPartition, error: Exception, *, retriable: bool) -> None:
        """As of ProducerListener: what passes soon by itself is counted, and not shown."""
        metrics = self._topic(place.topic).metrics
        metrics.produce_failed(type(error).__name__, retriable=retriable)
        if isinstance(error, SIZES):
            return
        if isinstance(error, GONE):
            self._look.set()
        since_s = [since_s for (other, _), since_s in self._outstanding.items() if other == place]
        if since_s and not (
            retriable
            and asyncio.get_running_loop().time() - min(since_s) < self._settings.stalled_after_s
        ):
            self._trouble(f"{place.topic}/{place.partition}", explain(error, place))

    def report(self, about: str, message: str) -> None:
        """As of ProducerListener."""
        if about != SECRETS:
            if message:
                self._trouble(about, message)
            else:
                self._well(about)
        elif message:
            if about not in self._troubles:
                _log.warning(
                    "new kafka secrets are not usable; keeping the previous ones",
                    extra={"error": message},
                )
            self._troubles[about] = message
            self._show()
        elif self._troubles.pop(about, None) is not None:
            self._show()

    def rebuilt(self, reason: str) -> None:
        """As of ProducerListener."""
        self._metrics.counter("producer_rebuilds").labels(reason).inc()

    # ---- silence ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Report batches that are not acknowledged within `stalled_after_s`."""
        loop = asyncio.get_running_loop()
        patience_s = self._settings.stalled_after_s
        while True:
            await asyncio.sleep(min(_WATCH_EVERY_S, patience_s / 4))
            unanswered = [
                since_s
                for (place, _), since_s in self._outstanding.items()
                if f"{place.topic}/{place.partition}" not in self._troubles
            ]
            silent_s = loop.time() - min(unanswered, default=loop.time())
            if silent_s > patience_s:
                self._trouble(_STALLED, self._silence(silent_s))
            elif _STALLED in self._troubles:
                self._well(_STALLED)
            self._count_silence(loop.time())

    def _silence(self, silent_s: float) -> str:
        return f"no acknowledgement from kafka at {self._connection.servers} for {silent_s:.0f} s"

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
            silence, brokers = self._silence(now_s - since_s), self._troubles.get("")
            if brokers:
                silence = f"{silence}: {brokers}"
            if (status := self._statuses.streams.get(stream)) is not None:
                operator = refused is not None and NO_RIGHT in refused
                cause = causes.TOPIC_UNUSABLE.about(partition.topic) if operator else causes.KAFKA
                status.failed("records", refused or silence, cause=cause, operator=operator)

    def _heard(self, place: _Place) -> None:
        """An overdue batch is on its way no more."""
        del self._silent[place]
        stream = place[1]
        status = self._statuses.streams.get(stream)
        if status is not None and not any(other == stream for _, other in self._silent):
            status.recovered("records")

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
        """The topic, or the way to the brokers, is in trouble already: partitions of one topic are
        one line in the log, and so are brokers that are away and the silence that follows."""
        if about in _BROKERS:
            return any(other in _BROKERS for other in self._troubles)
        name = about.partition("/")[0]
        return any(other.partition("/")[0] == name for other in self._troubles)

    def _show(self) -> None:
        shown = dict(self._troubles)
        if shown:
            if _STALLED in shown and "" in shown:
                shown[_STALLED] += f": {shown.pop('')}"
            # an answer of Kafka explains more than its silence
            first, *others = sorted(shown.values(), key=lambda each: each == shown.get(_STALLED))
            self._statuses.problems[_PROBLEM] = first + (
                f" (and {len(others)} more)" if others else ""
            )
        else:
            self._statuses.problems.pop(_PROBLEM, None)
