"""The sink: batches of all streams through one producer, until they are acknowledged."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from watchrelay.contract.wire import Batch, Receipt
from watchrelay.core import clock
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kafka.client import KafkaError
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.failures import unreachable
from watchrelay.kafka.client.metadata import NO_ID
from watchrelay.kafka.client.record_batch import Packer
from watchrelay.kafka.errors import GONE, SIZE_SETTINGS, UNTIMELY, explain, subject_of
from watchrelay.kafka.partition import Appended, Delivery, Done, Partition, Place, TopicLimits
from watchrelay.kafka.producer import Producer, ProducerSettings
from watchrelay.kafka.record_times import RecordTimes
from watchrelay.kafka.topic_incarnation import TopicIncarnations
from watchrelay.kafka.topic_writers import Lost, TopicWriters
from watchrelay.kafka.transactions import Result, Transactions, fenced
from watchrelay.kafka.troubles import KafkaTroubles
from watchrelay.kafka.written_offsets import WrittenOffsets
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

_log = logging.getLogger(__name__)

MESSAGE_BYTES_DEFAULT = 1_048_588
"""Kafka's default of `max.message.bytes`, assumed of a topic until `set_limit` is called."""

_LOOK_EVERY_S = 30.0
_WATCH_EVERY_S = 1.0
_ACK_SHOWN_EVERY_S = 0.05
"""How often the time of the newest acknowledgement is set at most: a thousand come a second."""


_Writer = tuple[str, str]
"""(topic, stream)."""


class KafkaSink:
    """Implements the relay's `RecordSink`. Use: `run()` as a task that ends last, `send` or
    `deliver` from any other.

    One producer serves all streams; what is delivered in one step of the event loop leaves in one
    batch per partition and one request per broker. A batch that is refused is sent again after a
    pause, the same records; that holds up its own partition alone, and within a transaction those
    that are in it.
    """

    transactions_class: type[Transactions] = Transactions
    """The simulation has others."""

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        metrics: Metrics,
        statuses: StatusRegistry,
        settings: ProducerSettings | None = None,
        times: RecordTimes | None = None,
        rng: random.Random | None = None,
        make_brokers: Callable[[KafkaConnection], Brokers] = Brokers,
    ) -> None:
        """Args: `make_brokers` as of Producer."""
        self._connection = connection
        self._metrics = metrics
        self._settings = settings or ProducerSettings()
        self.times = times or RecordTimes(servers=connection.servers)
        self._options: dict[str, Any] = {
            "packer": Packer(),
            "times": self.times,
            "make_brokers": make_brokers,
            "rng": rng or random.Random(),
        }
        self._producer = Producer(connection, self._settings, self, **self._options)
        self._transactions: dict[_Writer, Transactions] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._held: Callable[[], bool] | None = None
        self._written = WrittenOffsets()
        self._limits: dict[str, TopicLimits] = {}
        self._troubles = KafkaTroubles(
            statuses,
            metrics,
            self.times,
            servers=connection.servers,
            patience_s=self._settings.stalled_after_s,
            deliveries=lambda: (each for made in self._producers for each in made.deliveries()),
        )
        self._incarnations = TopicIncarnations(self._lose)
        self._writers = TopicWriters()

    @property
    def trouble(self) -> str:
        """What is wrong with Kafka, for people; "" when nothing is known to be."""
        return self._troubles.problem

    # ---- the port --------------------------------------------------------------------------------

    def send(self, batch: Batch, done: Done) -> Delivery:
        """Append all records in order, however long it takes; `done` is called once, in a later
        step of the loop, with a Receipt when all are acknowledged.

        At most one batch of a (topic, partition) may be outstanding. `done` gets a RecordTooLarge
        when record `index` fits the topic not even alone. `acked` holds the offsets of the records
        before it that are in the log (a prefix of the batch; none when the size was known
        beforehand, which is the rule); no record from there on is or will be in the log by this
        call. Trim that record and send again from `len(acked)` on, or everything, under the same
        positions.
        """
        if self._writers.has_lost(batch.topic, batch.stream):
            return Delivery(batch, done, 0.0)  # neither sent nor answered
        producer = self._producer_of(batch) if self._transactions else self._producer
        return producer.send(batch, done)

    def withdraw(self, delivery: Delivery) -> None:
        """The caller withdraws the batch: `done` is not called, the outcome is unknown."""
        batch = delivery.batch
        self._producer_of(batch).withdraw(delivery)
        self._troubles.closed(Place(batch.topic, batch.partition), delivery)

    def _producer_of(self, batch: Batch) -> Producer:
        own = self._transactions.get((batch.topic, batch.stream))
        return self._producer if own is None else own.producer

    async def deliver(self, batch: Batch) -> Receipt:
        """As `send`. Cancelling withdraws the batch. Raises: RecordTooLarge."""
        settled: asyncio.Future[Receipt | Exception] = asyncio.get_running_loop().create_future()

        def done(outcome: Receipt | Exception) -> None:
            if not settled.cancelled():  # the caller may be cancelled, and not have withdrawn yet
                settled.set_result(outcome)

        delivery = self.send(batch, done)
        try:
            outcome = await settled
        finally:
            if settled.cancelled():
                self.withdraw(delivery)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

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
        is_another_topic, losing = self._writers.open(
            topic, stream, lost, made=made, topic_id=topic_id
        )
        if made or losing:
            self._incarnations.forget(topic)
        if losing:
            self._forget(topic)
        self._incarnations.expect(topic, topic_id)
        self._tell_lost(topic, "it was missing and was recreated", losing)
        return is_another_topic

    def close(self, topic: str, stream: str, *, taken_over: bool = False) -> None:
        """`stream` stops writing the topic. Args: `taken_over` as of TopicWriters."""
        self._end_transactions(topic, stream)
        if self._writers.close(topic, stream, taken_over=taken_over):
            self._incarnations.forget(topic)
            self._written.forget(lambda place: place.topic == topic)
            self.times.forget(topic)
            self._forget(topic)
            self._limits.pop(topic, None)

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
        transactions = self.transactions_class(
            self._connection,
            self._settings,
            self,
            transactional_id=transactional_id,
            former_ids=former_ids,
            is_ours=is_ours,
            **self._options,
        )
        if self._held is not None:
            transactions.producer.leaders.hold_while(self._held)
        self._transactions[topic, stream] = transactions
        transactions.begin(self._tasks, f"transactions {stream}")
        await transactions.taken.wait()
        if transactions.is_fenced:
            raise fenced(stream)

    def _end_transactions(self, topic: str, stream: str) -> None:
        transactions = self._transactions.pop((topic, stream), None)
        if transactions is not None:
            for subject in transactions.end():
                self._troubles.forget(subject)

    @property
    def _producers(self) -> list[Producer]:
        return [self._producer, *(each.producer for each in self._transactions.values())]

    def unacknowledged_ranges(
        self, topic: str, partition: int, start: int, stop: int
    ) -> list[tuple[int, int]]:
        """The ranges of offsets in [start, stop) that this process did not write, as far as
        acknowledgements tell."""
        return self._written.gaps(Place(topic, partition), start, stop)

    def log_start(self, topic: str, partition: int) -> int:
        """The first offset of the partition's log, as far as acknowledgements tell; 0 before the
        first."""
        known = [each.partitions.get(Place(topic, partition)) for each in self._producers]
        return max((each.log_start for each in known if each is not None), default=0)

    def set_limit(
        self, topic: str, message_bytes: int, bounded_by: str = "max.message.bytes"
    ) -> None:
        """Tell the largest batch that the topic takes, by which setting, as often as it is read."""
        known = self.limits(topic)
        known.message_bytes, known.bounded_by = message_bytes, bounded_by
        known.batch_bytes = self._settings.batch_bytes

    def hold_while(self, held: Callable[[], bool]) -> None:
        """Ask `held` before each produce request is written: while it is true none leaves."""
        self._held = held
        for producer in self._producers:
            producer.leaders.hold_while(held)

    def resume(self) -> None:
        """Send what was held."""
        for producer in self._producers:
            producer.leaders.resume()

    def reset(self) -> None:
        """Keep what was sent and not acknowledged from reaching a broker later on; it is sent
        again."""
        for producer in self._producers:
            producer.leaders.reset()

    async def end_offset(self, topic: str, partition: int, *, committed: bool = False) -> int:
        """The end of a partition, or of what is `committed`, as its leader knows it now. Raises:
        SinkUnavailable."""
        try:
            place = Place(topic, partition)
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

    # ---- what producers report -------------------------------------------------------------------

    def limits(self, topic: str) -> TopicLimits:
        """See `ProducerListener`."""
        known = self._limits.get(topic)
        if known is None:
            known = TopicLimits(MESSAGE_BYTES_DEFAULT, self._settings.batch_bytes)
            self._limits[topic] = known
        return known

    def acked(self, partition: Partition, appended: Appended) -> None:
        """See `ProducerListener`."""
        place, (first, known_end) = partition.place, appended
        if first < known_end and (why := self._contradiction(partition, first, known_end)):
            partition.forget()
            # what follows from a lost topic cuts connections: not while one of them is read
            asyncio.get_running_loop().call_soon(self._lose, place.topic, why)
            return
        metrics, now_s = self._metrics.topic(place.topic), asyncio.get_running_loop().time()
        if now_s - metrics.ack_shown_s >= _ACK_SHOWN_EVERY_S:
            metrics.ack_shown_s = now_s
            metrics.last_ack_timestamp_seconds.set(clock.wall_ms() / 1000)
            metrics.last_ack_age_seconds.restart()
        if self._troubles.held:
            self._troubles.ended(subject_of(place))
        batch = partition.batch
        assert batch is not None, "a batch was acknowledged"
        metrics.produce_duration_seconds.observe(now_s - batch.packed_s)
        self._written.note(place, first, first + batch.count)
        for delivery in partition.acked(first):
            self.settled(place, delivery, Receipt(delivery.offsets))

    def _contradiction(self, partition: Partition, first: int, known_end: int) -> str:
        """Why the offset cannot be of the topic that one of the streams opened, "" if it can."""
        for delivery in list(partition.deliveries)[: partition.in_flight]:
            stream = delivery.batch.stream
            if why := self._writers.contradicts(partition.place, stream, first, known_end):
                return why
        return ""

    def settled(self, place: Place, delivery: Delivery, outcome: Receipt | Exception) -> None:
        """See `ProducerListener`."""
        if delivery.done is not None:
            if delivery.shown_s is not None or self._troubles.held:
                self._troubles.closed(place, delivery)
            delivery.done(outcome)

    def noted(self, place: Place, offset: int) -> None:
        """See `TransactionListener`."""
        self._written.note(place, offset, offset + 1)

    def failed(self, place: Place, error: Exception, *, retriable: bool) -> None:
        """See `ProducerListener`: what passes soon by itself is counted, and not shown."""
        metrics = self._metrics.topic(place.topic)
        metrics.produce_failed(type(error).__name__, retriable=retriable)
        if type(error) in SIZE_SETTINGS:
            return
        if isinstance(error, GONE):
            self._incarnations.hurry()
        if self._troubles.is_awaited(place, overdue=retriable):
            hint = self.times.refused(place.topic) if isinstance(error, UNTIMELY) else ""
            self._troubles.began(explain(error, place, hint))

    def report(self, about: str, message: str) -> None:
        """See `ProducerListener`."""
        if message:
            self._troubles.began(Trouble(about, Cause.KAFKA, message))
        else:
            self._troubles.ended(about)

    def rebuilt(self, reason: str) -> None:
        """See `ProducerListener`."""
        self._metrics.counter("producer_rebuilds").labels(reason).inc()

    def transaction_ended(self, result: Result, took_s: float) -> None:
        """See `TransactionListener`."""
        self._metrics.counter("transactions").labels(result).inc()
        self._metrics.histogram("transaction_duration_seconds").observe(took_s)

    # ---- topics that are lost --------------------------------------------------------------------

    def _lose(self, topic: str, why: str) -> None:
        _log.error("topic was deleted or recreated", extra={"topic": topic, "error": why})
        losing = self._writers.lose(topic, may_return=self._incarnations.may_return(topic))
        self._incarnations.forget(topic)
        self._forget(topic)
        self._tell_lost(topic, why, losing)

    def _forget(self, topic: str) -> None:
        """Nothing that is on its way to the topic is sent or answered."""
        for producer in self._producers:
            for place in producer.forget(topic):
                self._troubles.forget(subject_of(place))

    def _tell_lost(self, topic: str, why: str, losing: Sequence[Lost]) -> None:
        """Call the streams that had opened the topic."""
        if losing:
            self._written.forget(lambda place: place.topic == topic)
        for lost in losing:
            lost(f"topic {topic} was deleted or recreated: {why}")

    async def _look_for_topics(self) -> None:
        """See whether opened topics are there: rarely, at once when one of them gave an error that
        says so, often while one is not."""
        known = self._incarnations
        await known.keep_looking(
            lambda topics: self._producer.topic_ids(topics, of_another=known.doubtful),
            every_s=_LOOK_EVERY_S,
        )

    # ---- silence ---------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Report batches that are not acknowledged in time, and pack what waited for the clock."""
        while True:
            await asyncio.sleep(min(_WATCH_EVERY_S, self._settings.stalled_after_s / 4))
            self._troubles.look()
            for producer in self._producers:
                producer.look_at_clock()
