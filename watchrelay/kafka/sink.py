"""The sink: batches of all streams through one producer, until they are acknowledged."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.clock_offset import is_time
from watchrelay.core.errors import Fenced, RecordTooLarge
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kafka.client import KafkaError, TopicPartition, for_code
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.failures import unreachable
from watchrelay.kafka.client.metadata import NO_ID
from watchrelay.kafka.client.record_batch import PackedBatch, Packer
from watchrelay.kafka.errors import GONE, SIZE_SETTINGS, UNTIMELY, explain, subject
from watchrelay.kafka.outstanding import Outstanding, Place
from watchrelay.kafka.produce_state import PendingBatch
from watchrelay.kafka.producer import CUT, Producer, ProducerSettings
from watchrelay.kafka.record_times import RecordTimes
from watchrelay.kafka.topic_incarnation import TopicIncarnations
from watchrelay.kafka.topic_writers import Lost, TopicWriters
from watchrelay.kafka.transactions import FENCED, Result, TransactionalProducer
from watchrelay.kafka.troubles import KafkaTroubles
from watchrelay.kafka.written_offsets import WrittenOffsets
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

_log = logging.getLogger(__name__)

MESSAGE_BYTES_DEFAULT = 1_048_588
"""Kafka's default of `max.message.bytes`, assumed of a topic until `limit` is called."""

_BATCH_BYTES_LEAST = 16 * 1024
_RETRY = Backoff(base_s=0.1, cap_s=30.0, jitter=0.5)
_LOOK_EVERY_S = 30.0
_WATCH_EVERY_S = 1.0
_ACK_SHOWN_EVERY_S = 0.05
"""How often the time of the newest acknowledgement is set at most: a thousand come a second."""


_Writer = tuple[str, str]
"""(topic, stream)."""


@dataclass(slots=True)
class _Topic:
    """What is known of a topic. `message_bytes` bounds a batch after compression, by the setting
    `bounded_by`, `batch_bytes` before it."""

    message_bytes: int
    batch_bytes: int
    bounded_by: str = "max.message.bytes"


Answered = Callable[[Receipt | Exception], None]


def _withdrawn(_answer: Receipt | Exception) -> None:
    """The `done` of a batch that was withdrawn."""


class Delivery:
    """A batch of one stream on its way: `offsets` are those of its acknowledged records, `at` is
    the index of its first record in `deliveries.records`."""

    __slots__ = ("at", "batch", "deliveries", "done", "offsets")

    def __init__(self, batch: Batch, deliveries: _Deliveries, done: Answered) -> None:
        self.batch, self.deliveries, self.done = batch, deliveries, done
        self.offsets: list[int] = []
        self.at = 0


class _Deliveries:
    """All deliveries to one partition. The records of `packed` are packed together, those of
    `waiting` once these are acknowledged: many streams write one topic, and each batch costs more
    than its records. The first of `packs` is with the producer or waits for `timer`."""

    __slots__ = (
        "backoff", "is_enqueued", "marker_at", "packed", "packs", "partition", "pending",
        "producer", "records", "sent_s", "stop", "timer", "topic", "waiting",
    )  # fmt: skip

    def __init__(self, partition: TopicPartition, topic: _Topic, producer: Producer) -> None:
        self.partition, self.topic, self.producer = partition, topic, producer
        self.waiting: deque[Delivery] = deque()
        self.packed: deque[Delivery] = deque()
        self.records: list[WireRecord] = []
        self.packs: deque[PackedBatch] = deque()
        self.pending: PendingBatch | None = None
        self.timer: asyncio.Handle | None = None
        self.is_enqueued = False
        self.backoff = _RETRY
        self.sent_s = 0.0
        self.stop = 0
        """The least offset of the next record, after what is acknowledged."""
        self.marker_at = -1
        """Where the marker of the newest commit is, if no other writer wrote meanwhile."""

    def unpack(self) -> list[Delivery]:
        """The deliveries that were packed; nothing is from now on."""
        deliveries = list(self.packed)
        if self.timer is not None:
            self.timer.cancel()
        self.packed.clear()
        self.packs.clear()
        self.records, self.pending, self.timer = [], None, None
        return deliveries


class KafkaSink:
    """Implements the relay's `RecordSink`. Use: `run()` as a task that ends last, `send` or
    `deliver` from any other.

    One producer serves all streams; what is delivered in one step of the event loop leaves in one
    batch per partition and one request per broker. A batch that is refused is sent again after a
    pause, the same records; that holds up its own partition alone, and within a transaction those
    that are in it.
    """

    transactional_producer: type[TransactionalProducer] = TransactionalProducer

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        metrics: Metrics,
        statuses: StatusRegistry,
        settings: ProducerSettings | None = None,
        times: RecordTimes | None = None,
        rng: random.Random | None = None,
        reach: Callable[[KafkaConnection], Brokers] = Brokers,
    ) -> None:
        """Args: `reach` as of Producer."""
        self._connection = connection
        self._metrics = metrics
        self._statuses = statuses
        self._settings = settings or ProducerSettings()
        self._rng = rng or random.Random()
        self.times = times or RecordTimes(servers=connection.servers)
        self._producer = Producer(
            connection, self._settings, self, reach=reach, timed=self._timed, rng=self._rng
        )
        self._reach = reach
        self._transactional: dict[_Writer, TransactionalProducer] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._running: dict[_Writer, asyncio.Task[None]] = {}
        self._packer = Packer()
        self._written = WrittenOffsets()
        self._topics: dict[str, _Topic] = {}
        self._troubles = KafkaTroubles(statuses)
        self._outstanding = Outstanding(
            servers=connection.servers,
            times=self.times,
            troubles=self._troubles,
            metrics=metrics,
            statuses=statuses,
            patience_s=self._settings.stalled_after_s,
            now_s=lambda: asyncio.get_running_loop().time(),
        )
        self._deliveries: dict[TopicPartition | Place, _Deliveries] = {}
        """By partition; those of a stream with a producer of its own by both."""
        self._ready: deque[_Deliveries] = deque()
        """Those to pack with the next flush."""
        self._untimely: dict[_Deliveries, None] = {}
        """Those not packed, because the clock is wrong: what waits grows as while Kafka is away."""
        self._incarnations = TopicIncarnations(self._lose)
        self._writers = TopicWriters()

    @property
    def trouble(self) -> str:
        """What is wrong with Kafka, for people; "" when nothing is known to be."""
        return self._troubles.problem

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
        partition = TopicPartition(batch.topic, batch.partition)
        producer, place = self._producer, partition
        if self._transactional and (batch.topic, batch.stream) in self._transactional:
            producer = self._transactional[batch.topic, batch.stream]
            place = (partition, batch.stream)
        deliveries = self._deliveries.get(place)
        if deliveries is None:
            deliveries = _Deliveries(partition, self._topic(batch.topic), producer)
            self._deliveries[place] = deliveries
        delivery = Delivery(batch, deliveries, done)
        self._outstanding.add(partition, batch.stream, asyncio.get_running_loop().time())
        # what is of a lost topic is neither sent nor answered
        if self._writers.counts(batch.topic, batch.stream):
            deliveries.waiting.append(delivery)
            self._enqueue(deliveries)
        return delivery

    def withdraw(self, delivery: Delivery) -> None:
        """The caller withdraws the batch: `done` is not called, the outcome is unknown."""
        deliveries, delivery.done = delivery.deliveries, _withdrawn
        if delivery in deliveries.waiting:
            deliveries.waiting.remove(delivery)
        elif deliveries.packed and all(each.done is _withdrawn for each in deliveries.packed):
            if deliveries.pending is not None:
                deliveries.producer.withdraw(deliveries.partition, deliveries.pending)
            deliveries.unpack()
            self._enqueue(deliveries)
        elif (pending := deliveries.pending) is not None and deliveries.producer.take_back(
            deliveries.partition, pending
        ):  # what others packed with it leaves without it
            self._put_back(deliveries, deliveries.unpack())
        self._close(delivery)

    async def deliver(self, batch: Batch) -> Receipt:
        """As `send`. Cancelling withdraws the batch. Raises: RecordTooLarge."""
        answered: asyncio.Future[Receipt | Exception] = asyncio.get_running_loop().create_future()

        def done(answer: Receipt | Exception) -> None:
            if not answered.cancelled():  # it is until the `finally` below runs
                answered.set_result(answer)

        delivery = self.send(batch, done)
        try:
            answer = await answered
        finally:
            if answered.cancelled():
                self.withdraw(delivery)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def open(
        self, topic: str, stream: str, lost: Lost, *, made: bool, topic_id: bytes = NO_ID
    ) -> bool:
        """`stream` writes the topic as it is now.

        When that is deleted or recreated, `lost` is called once, and no batch of the stream returns
        now: cancel what waits, and open again.

        Args:
            made: the topic was just created.
            topic_id: as brokers give it.

        Returns: whether this is another topic than the stream opened before, or was just created,
        so that nothing known of its content is valid.
        """
        is_another_topic, others = self._writers.open(
            topic, stream, lost, made=made, topic_id=topic_id
        )
        if made or others:
            self._incarnations.forget(topic)
        if others:
            self._forget(topic)
        self._incarnations.expect(topic, topic_id)
        self._topic_lost(topic, "it was missing and was recreated", others)
        return is_another_topic

    def close(self, topic: str, stream: str, *, taken_over: bool = False) -> None:
        """`stream` stops writing the topic. Args: `taken_over` as of TopicWriters."""
        self._end_transactions(topic, stream)
        if self._writers.close(topic, stream, taken_over=taken_over):
            self._incarnations.forget(topic)
            self._written.forget(lambda place: place.topic == topic)
            self.times.forget(topic)
            self._forget(topic)
            self._topics.pop(topic, None)

    async def begin_transactions(
        self,
        topic: str,
        stream: str,
        *,
        transactional_id: str,
        former_ids: Sequence[str],
        is_ours: Callable[[], Awaitable[bool]],
    ) -> None:
        """Abort what former writers of `stream` have open. From now on, until `close`, it writes
        the topic within transactions of its own, and receipts are given at their commits.

        Args:
            former_ids: the transactional ids of former writers.
            is_ours: whether the stream's claim is the newest, read when it is called.

        Raises: Fenced when it is not.
        """
        assert self._tasks is not None, "streams begin while the sink runs"
        self._end_transactions(topic, stream)
        producer = self.transactional_producer(
            self._connection,
            self._settings,
            self,
            transactional_id=transactional_id,
            former_ids=former_ids,
            is_ours=is_ours,
            reach=self._reach,
            timed=self._timed,
            rng=self._rng,
        )
        producer.held = self._producer.held
        self._transactional[topic, stream] = producer
        self._running[topic, stream] = self._tasks.create_task(
            producer.run(), name=f"transactions {stream}"
        )
        await producer.taken.wait()
        if producer.is_fenced:
            raise _fenced(stream)

    def _end_transactions(self, topic: str, stream: str) -> None:
        producer = self._transactional.pop((topic, stream), None)
        if producer is None:
            return
        producer.cut()
        for each in producer.subjects:
            self._troubles.forget(each)
        self._running.pop((topic, stream)).cancel()
        self._drop(lambda deliveries: deliveries.producer is producer)

    @property
    def _producers(self) -> list[Producer]:
        return [self._producer, *self._transactional.values()]

    def unacknowledged_ranges(
        self, topic: str, partition: int, start: int, stop: int
    ) -> list[tuple[int, int]]:
        """The ranges of offsets in [start, stop) that this process did not write, as far as
        acknowledgements tell."""
        return self._written.gaps(TopicPartition(topic, partition), start, stop)

    def log_start(self, topic: str, partition: int) -> int:
        """The first offset of the partition's log, as far as acknowledgements tell; 0 before the
        first."""
        place = TopicPartition(topic, partition)
        return max(producer.log_start(place) for producer in self._producers)

    def limit(self, topic: str, message_bytes: int, bounded_by: str = "max.message.bytes") -> None:
        """Tell the largest batch that the topic takes, by which setting, as often as it is read."""
        known = self._topic(topic)
        known.message_bytes, known.bounded_by = message_bytes, bounded_by
        known.batch_bytes = self._settings.batch_bytes

    def limit_of(self, topic: str) -> int:
        """The largest batch that the topic takes, as far as it is known."""
        return self._topic(topic).message_bytes

    def hold_while(self, held: Callable[[], bool]) -> None:
        """Ask `held` before each produce request is written: while it is true none leaves."""
        for producer in self._producers:
            producer.held = held

    def resume(self) -> None:
        """Send what was held."""
        for producer in self._producers:
            producer.resume()

    def reset(self) -> None:
        """Keep what was sent and not acknowledged from reaching a broker later on; it is sent
        again."""
        for producer in self._producers:
            producer.reset()

    async def end_offset(self, topic: str, partition: int, *, committed: bool = False) -> int:
        """The end of a partition, or of what is `committed`, as its leader knows it now. Raises:
        SinkUnavailable."""
        try:
            place = TopicPartition(topic, partition)
            return await self._producer.end_offset(place, committed=committed)
        except (KafkaError, OSError) as error:
            raise unreachable(self._connection, error) from error

    async def run(self) -> None:
        """Serve until cancelled; then nothing is sent."""
        async with asyncio.TaskGroup() as self._tasks:
            tasks = self._tasks
            tasks.create_task(self._watch(), name="sink-watchdog")
            tasks.create_task(self._look_for_topics(), name="sink-look")
            await self._producer.run()

    # ---- one partition ---------------------------------------------------------------------------

    def _enqueue(self, deliveries: _Deliveries) -> None:
        """Pack what waits with the next flush, unless something is packed."""
        if deliveries.waiting and not deliveries.packed and not deliveries.is_enqueued:
            deliveries.is_enqueued = True
            self._ready.append(deliveries)
            deliveries.producer.flush_soon()

    def gather(self) -> None:
        """See `ProducerListener`."""
        while self._ready:
            deliveries = self._ready.popleft()
            deliveries.is_enqueued = False
            self._pack_waiting(deliveries)

    def _pack_waiting(self, deliveries: _Deliveries) -> None:
        """Pack about `batch_bytes` of what waits, and append it, unless Kafka would remove records
        by the time that they get here."""
        if self.times.off_s(deliveries.partition.topic) is not None:
            self._untimely[deliveries] = None
            return
        waiting, packed, records = deliveries.waiting, deliveries.packed, deliveries.records
        topic, size = deliveries.topic, 0
        while waiting and size < topic.batch_bytes:
            delivery = waiting.popleft()
            left = delivery.batch.records[len(delivery.offsets) :]
            delivery.at = len(records) - len(delivery.offsets)
            packed.append(delivery)
            records += left
            if waiting:
                size += sum(len(record.value or b"") for record in left)
        if not packed:
            return
        packs, too_large = self._pack(topic, records, 0, len(records))
        if too_large is not None:
            self._refuse(deliveries, too_large)
            return
        deliveries.packs.extend(packs)
        self._append(deliveries)

    def _append(self, deliveries: _Deliveries) -> None:
        """Append the next pack, unless records of it were withdrawn while the pack before it was on
        its way."""
        for each in deliveries.packed:
            if each.done is _withdrawn:
                self._put_back(deliveries, deliveries.unpack())
                return
        deliveries.timer, deliveries.sent_s = None, clock.now_s()
        deliveries.pending = deliveries.producer.append(
            deliveries.partition, deliveries.packs[0], partial(self._answered, deliveries)
        )

    def _answered(self, deliveries: _Deliveries, first: int, code: int) -> None:
        """The first pack is in the log from offset `first` on, or was refused."""
        deliveries.pending = None
        loop = asyncio.get_running_loop()
        if not code:
            # what follows from a lost topic cuts connections: not while one of them is read
            if why := self._acked(deliveries, first):
                loop.call_soon(self._lose, deliveries.partition.topic, why)
        elif code == CUT:
            pass  # whether it is in the log is not known
        elif code == FENCED:
            for delivery in deliveries.unpack():
                self._finish(delivery, _fenced(delivery.batch.stream))
        elif setting := SIZE_SETTINGS.get(for_code(code)):
            deliveries.topic.bounded_by = setting
            self._split(deliveries)
        else:
            deliveries.backoff, wait_s = deliveries.backoff.after_failure(
                clock.now_s(), healthy=False, rng=self._rng
            )
            deliveries.timer = loop.call_later(wait_s, self._pack_again, deliveries)

    def _pack_again(self, deliveries: _Deliveries) -> None:
        """Send again what is certainly not in the log; a batch of the same age may be too old, or
        too far in the future, for the topic."""
        self._put_back(deliveries, deliveries.unpack())

    def _put_back(self, deliveries: _Deliveries, packed: Sequence[Delivery]) -> None:
        """Pack them again, without those that were withdrawn: a newer owner may have claimed."""
        wanted = [each for each in packed if each.done is not _withdrawn]
        deliveries.waiting.extendleft(reversed(wanted))
        self._enqueue(deliveries)

    def _acked(self, deliveries: _Deliveries, first: int) -> str:
        """Why the offset cannot be of the topic that a stream opened, "" if it can."""
        packed, partition = deliveries.packed, deliveries.partition
        at, stop = first, first + deliveries.packs.popleft().record_count()
        behind, deliveries.stop = deliveries.stop, stop
        for delivery in packed:
            start, offsets = at, delivery.offsets
            at = min(stop, start + len(delivery.batch.records) - len(offsets))
            if why := self._writers.contradicts(partition, delivery.batch.stream, first, behind):
                return why
            offsets.extend(range(start, at))
            if at == stop:
                break
        metrics, now_s = self._metrics.topic(partition.topic), clock.now_s()
        metrics.produce_duration_seconds.observe(now_s - deliveries.sent_s)
        if now_s - metrics.ack_shown_s >= _ACK_SHOWN_EVERY_S:
            metrics.ack_shown_s = now_s
            metrics.last_ack_timestamp_seconds.set(clock.wall_ms() / 1000)
            metrics.last_ack_age_seconds.restart()
        self._note_written(deliveries, first, stop)
        if self._troubles.held:
            self._troubles.ended(subject(partition))
        deliveries.backoff = _RETRY
        whole: list[Delivery] = []
        while packed and len(packed[0].offsets) == len(packed[0].batch.records):
            whole.append(packed.popleft())
        if deliveries.packs:
            self._append(deliveries)
        else:
            deliveries.records = []
            self._enqueue(deliveries)
        for delivery in whole:
            self._finish(delivery, Receipt(delivery.offsets))
        return ""

    def _note_written(self, deliveries: _Deliveries, first: int, stop: int) -> None:
        if deliveries.producer is not self._producer:
            first, deliveries.marker_at = first - (first - 1 == deliveries.marker_at), stop
        self._written.note(deliveries.partition, first, stop)

    def _split(self, deliveries: _Deliveries) -> None:
        """Append in two halves what was refused for its size."""
        if self.times.off_s(deliveries.partition.topic) is not None:
            self._pack_again(deliveries)
            return
        topic, pack = deliveries.topic, deliveries.packs.popleft()
        if pack.record_count() == 1:
            self._refuse(deliveries, pack.start, pack)
            return
        topic.batch_bytes = max(_BATCH_BYTES_LEAST, pack.raw_bytes // 2)
        middle, halves = (pack.start + pack.stop) // 2, list[PackedBatch]()
        for start, stop in ((pack.start, middle), (middle, pack.stop)):
            more, too_large = self._pack(topic, deliveries.records, start, stop)
            # the limit was lowered while the batch was on its way
            if too_large is not None:
                self._refuse(deliveries, too_large)
                return
            halves += more
        deliveries.packs.extendleft(reversed(halves))
        self._append(deliveries)

    def _refuse(
        self, deliveries: _Deliveries, index: int, refused: PackedBatch | None = None
    ) -> None:
        """Record `index` of those packed is too large: its delivery is answered, and what else is
        not acknowledged is packed again."""
        packed = deliveries.unpack()
        which = next(each for each in packed if index < each.at + len(each.batch.records))
        packed.remove(which)
        self._put_back(deliveries, packed)
        batch, place = which.batch, index - which.at
        self._finish(which, self._too_large(batch, place, which.offsets, refused))

    def _finish(self, delivery: Delivery, answer: Receipt | RecordTooLarge | Fenced) -> None:
        if delivery.done is not _withdrawn:
            self._close(delivery)
            delivery.done(answer)

    def _close(self, delivery: Delivery) -> None:
        """The batch is no longer being delivered."""
        self._outstanding.remove(delivery.deliveries.partition, delivery.batch.stream)

    def _pack(
        self, topic: _Topic, records: list[WireRecord], start: int, stop: int
    ) -> tuple[list[PackedBatch], int | None]:
        return self._packer.pack(
            records,
            start=start,
            stop=stop,
            batch_bytes=topic.batch_bytes,
            limit_bytes=topic.message_bytes,
            now_ms=self.times.wall_ms(),
        )

    def _too_large(
        self, batch: Batch, index: int, acked: list[int], refused: PackedBatch | None = None
    ) -> RecordTooLarge:
        topic = self._topic(batch.topic)
        what = (
            f"record {batch.records[index].key.decode(errors='replace')} is too large for "
            f"topic {batch.topic}"
        )
        if refused is None:
            message = f"{what}: compressed it is over {topic.bounded_by}, {topic.message_bytes}"
        else:
            message = (
                f"{what}: kafka refused it with {refused.size()} bytes compressed, over "
                f"{topic.bounded_by}"
            )
        return RecordTooLarge(message, index=index, acked=acked, setting=topic.bounded_by)

    def _topic(self, name: str) -> _Topic:
        known = self._topics.get(name)
        if known is None:
            known = _Topic(MESSAGE_BYTES_DEFAULT, self._settings.batch_bytes)
            self._topics[name] = known
        return known

    # ---- topics that are lost --------------------------------------------------------------------

    def _lose(self, topic: str, why: str) -> None:
        _log.error("topic was deleted or recreated", extra={"topic": topic, "error": why})
        streams = self._writers.lose(topic, may_return=self._incarnations.may_return(topic))
        self._incarnations.forget(topic)
        self._forget(topic)
        self._topic_lost(topic, why, streams)

    def _forget(self, topic: str) -> None:
        """Nothing that is on its way to the topic is sent or answered."""
        for producer in self._producers:
            producer.forget(topic)
        self._drop(lambda deliveries: deliveries.partition.topic == topic)

    def _drop(self, unwanted: Callable[[_Deliveries], bool]) -> None:
        for place, deliveries in list(self._deliveries.items()):
            if unwanted(deliveries):
                del self._deliveries[place]
                self._untimely.pop(deliveries, None)
                deliveries.unpack()
                deliveries.waiting.clear()
                self._troubles.forget(subject(deliveries.partition))

    def _topic_lost(self, topic: str, why: str, streams: Sequence[Lost]) -> None:
        if streams:
            self._written.forget(lambda place: place.topic == topic)
        for lost in streams:
            lost(f"topic {topic} was deleted or recreated: {why}")

    async def _look_for_topics(self) -> None:
        """See whether opened topics are there: rarely, at once when one of them gave an error that
        says so, often while one is not."""
        known = self._incarnations
        await known.keep_looking(
            lambda topics: self._producer.topic_ids(topics, of_another=known.doubtful),
            every_s=_LOOK_EVERY_S,
        )

    # ---- what the producer reports ---------------------------------------------------------------

    def failed(self, place: TopicPartition, error: Exception, *, retriable: bool) -> None:
        """See `ProducerListener`: what passes soon by itself is counted, and not shown."""
        metrics = self._metrics.topic(place.topic)
        metrics.produce_failed(type(error).__name__, retriable=retriable)
        if type(error) in SIZE_SETTINGS:
            return
        if isinstance(error, GONE):
            self._incarnations.hurry()
        waits_long = self._outstanding.waits_long(place)
        if waits_long or (waits_long is not None and not retriable):
            hint = self.times.refused(place.topic) if isinstance(error, UNTIMELY) else ""
            self._troubles.began(explain(error, place, hint))

    def report(self, about: str, message: str) -> None:
        """See `ProducerListener`."""
        if message:
            self._troubles.began(Trouble(about, Cause.KAFKA, message))
        else:
            self._troubles.ended(about)

    def _timed(self, topic: str, at_ms: int, took_s: float) -> None:
        """A broker's clock showed `at_ms` at some time in the last `took_s`, and gave that time to
        records of `topic`."""
        if not is_time(at_ms):
            return
        self.times.timed_by_brokers(topic)
        now_s = self.times.now_s()
        self.times.offset.kafka.note(at_ms, within_ms=1, asked_s=now_s - took_s, answered_s=now_s)

    def rebuilt(self, reason: str) -> None:
        """See `ProducerListener`."""
        self._metrics.counter("producer_rebuilds").labels(reason).inc()

    def transaction_ended(self, result: Result, took_s: float) -> None:
        """See `TransactionListener`."""
        self._metrics.counter("transactions").labels(result).inc()
        self._metrics.histogram("transaction_duration_seconds").observe(took_s)

    # ---- silence ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Report batches that are not acknowledged in time, and pack what waited for the clock."""
        while True:
            await asyncio.sleep(min(_WATCH_EVERY_S, self._settings.stalled_after_s / 4))
            self._outstanding.look()
            for deliveries in list(self._untimely):
                if self.times.off_s(deliveries.partition.topic) is None:
                    del self._untimely[deliveries]
                    self._outstanding.restart(deliveries.partition)
                    self._enqueue(deliveries)


def _fenced(stream: str) -> Fenced:
    return Fenced(f"stream {stream}: a newer claim was read")
