"""The producer: what streams send, to the leaders of its partitions, until it is acknowledged.

One per process, and one per stream that writes within transactions. What is to be done with an
answer is decided in `partition`, and how leaders are found in `leaders`; here are flushes and
timers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from watchrelay.contract.wire import Batch, Receipt
from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.kafka.client import KafkaError, for_code
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.client_log import quiet_client_log
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.error_codes import error_of
from watchrelay.kafka.client.link import Link
from watchrelay.kafka.client.record_batch import Packer
from watchrelay.kafka.errors import SIZE_SETTINGS
from watchrelay.kafka.leaders import LeaderListener, Leaders
from watchrelay.kafka.partition import (
    STEPS,
    Appended,
    Delivery,
    Done,
    Effect,
    Identity,
    Locate,
    Partition,
    Pause,
    Phase,
    Place,
    Refused,
    Renew,
    Step,
    TopicLimits,
)
from watchrelay.kafka.record_times import RecordTimes

_log = logging.getLogger(__name__)

_ASK_RETRY = Backoff(base_s=0.05, cap_s=2.0, jitter=0.5)
_JITTER = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Timeouts and sizes of the produce path.

    `request_timeout_s`: how long brokers may wait for replicas; after a second more in which they
    answer and take nothing the connection is aborted. `stalled_after_s`: when a batch without
    acknowledgement, or a refusal that passes in most cases, is shown to operators.
    `transaction_timeout_s`: brokers abort a transaction that has no end by then.
    """

    batch_bytes: int = 512 * 1024
    request_bytes: int = 1024 * 1024
    request_timeout_s: float = 15.0
    stalled_after_s: float = 10.0
    transaction_timeout_s: float = 15.0
    secrets_every_s: float = 5.0


class ProducerListener(LeaderListener, Protocol):
    """What the producer reports, from within its loop."""

    def limits(self, topic: str) -> TopicLimits:
        """What a batch of the topic may have."""
        ...

    def acked(self, partition: Partition, appended: Appended) -> None:
        """The batch in flight is in the log: call `partition.acked`, or `forget` where the offset
        cannot be of the topic that was opened."""
        ...

    def settled(self, place: Place, delivery: Delivery, outcome: Receipt | Exception) -> None:
        """A delivery is off the queue: a record of it is too large, or its stream is fenced."""
        ...


class Policy(Protocol):
    """When batches are sent and acknowledged, if not each by itself. See `Transactions`. `id`: the
    transactional id."""

    id: str

    def covers(self, partition: Partition) -> bool:
        """Whether the next batch of the partition may be sent now; else the policy enqueues it
        later on."""
        ...

    def passes(self, partition: Partition, effect: Effect) -> bool:
        """Note the effect of an answer. Returns: whether the producer performs it, as without a
        policy."""
        ...

    def idle(self, partition: Partition) -> None:
        """Note that nothing of the partition is sent now."""
        ...


class Producer:
    """Use: `run()` as a task; `send` from any other, also before. What streams send to a partition
    is appended in the order of `send`; what is sent in one step of the event loop leaves in one
    batch per partition and one request per broker. A batch that is refused is sent again after a
    pause, the same records; that holds up its own partition alone.

    Args:
        packer: It is used for each batch.
        times: Whether the time of a record is right; it learns of those that brokers give.
        policy: None: each batch by itself.
        make_brokers: In tests another one.
    """

    partition_class: type[Partition] = Partition
    """The simulation has others."""

    def __init__(
        self,
        connection: KafkaConnection,
        settings: ProducerSettings,
        listener: ProducerListener,
        *,
        packer: Packer,
        times: RecordTimes,
        policy: Policy | None = None,
        make_brokers: Callable[[KafkaConnection], Brokers] = Brokers,
        rng: random.Random | None = None,
    ) -> None:
        self.settings, self.listener = settings, listener
        self._packer, self._times, self._policy = packer, times, policy
        self._client_id, self._rng = connection.client_id, rng or random.Random()
        self.leaders = Leaders(
            connection,
            listener,
            request_timeout_s=settings.request_timeout_s,
            make_link=self._make_link,
            found=self._enqueue_again,
            topics=lambda: {place.topic for place in self.partitions},
            make_brokers=make_brokers,
            rng=self._rng,
            transactional_id="" if policy is None else policy.id,
        )
        self.partitions: dict[Place, Partition] = {}
        self.untimely: dict[Partition, None] = {}
        """Those not packed, because the clock is wrong: what waits grows as while Kafka is away."""
        self._ready: list[Partition] = []
        self._tasks: asyncio.TaskGroup | None = None
        self._is_flushing = self._is_cut = False

    async def run(self) -> None:
        """Serve until cancelled; then `cut`."""
        access = self.leaders.access
        quiet_client_log()
        try:
            async with asyncio.TaskGroup() as self._tasks:
                if access.secrets:
                    self._spawn(access.rotate(self.settings.secrets_every_s), "producer-secrets")
                try:
                    await self.leaders.run(self._tasks)
                finally:
                    self.cut()
        finally:
            access.close()
            # transports close their sockets in the next turn of the loop
            await asyncio.sleep(0)

    def send(self, batch: Batch, done: Done) -> Delivery:
        """Append the records; `done` is called once, in a later step of the loop."""
        delivery = Delivery(batch, done, asyncio.get_running_loop().time())
        if not self._is_cut:
            place = Place(batch.topic, batch.partition)
            partition = self.partitions.get(place)
            if partition is None:
                partition = self.partitions[place] = self.partition_class(
                    place,
                    self.listener.limits(batch.topic),
                    transactional=self._policy is not None,
                )
            partition.deliveries.append(delivery)
            self.enqueue(partition)
        return delivery

    def deliveries(self) -> Iterator[tuple[Place, Delivery]]:
        """All that is waited for."""
        for place, partition in self.partitions.items():
            for each in partition.deliveries:
                if each.done is not None:
                    yield place, each

    def withdraw(self, delivery: Delivery) -> None:
        """The caller no longer waits for it: it is not sent, unless it was already."""
        delivery.done = None
        batch = delivery.batch
        if (partition := self.partitions.get(Place(batch.topic, batch.partition))) is not None:
            partition.withdraw(delivery)
            if not partition.deliveries:
                self._resume(partition)

    def forget(self, topic: str) -> list[Place]:
        """The topic is lost, or not written: what is pending is never answered, and what is on its
        way is cut. Returns: its partitions."""
        forgotten = [place for place in self.partitions if place.topic == topic]
        for place in forgotten:
            self.drop(place)
        if forgotten:
            self.leaders.identity = None  # a new topic of the name must be begun by another
        self.leaders.forget_topic(topic)
        return forgotten

    def drop(self, place: Place) -> None:
        """What is pending in the partition is neither sent nor answered."""
        self._forget(self.partitions.pop(place))

    def _forget(self, partition: Partition) -> None:
        partition.forget()
        self.leaders.forget(partition)
        self.untimely.pop(partition, None)
        if self._policy is not None:
            self._policy.idle(partition)

    async def topic_ids(
        self, topics: Collection[str], *, of_another: bool
    ) -> dict[str, bytes | None] | None:
        """As `metadata.topic_ids`; None while no broker is known. Args: `of_another`: than the
        broker asked last. Raises: KafkaError, OSError."""
        brokers = self.leaders.access.brokers
        if brokers is None:
            return None
        if of_another:
            brokers.ask_another()
        return await brokers.topic_ids(topics)

    async def end_offset(self, place: Place, *, committed: bool) -> int:
        """As `Brokers.end_offset`, by its leader of now. Raises: KafkaError, OSError."""
        brokers = await self.leaders.access.reach()
        await self.leaders.refresh(brokers, {place.topic})
        return await brokers.end_offset(*place, committed=committed)

    def cut(self) -> None:
        """From here on no byte leaves, and nothing is answered: whether it is in the log is
        unknown."""
        self._is_cut = True
        for partition in self.partitions.values():
            partition.forget()
        self.leaders.cut()

    def restart(self, identity: Identity) -> None:
        """Send all that is pending again, under another identity: nothing that was sent is in the
        log for good."""
        self.leaders.identity = identity
        for place, former in list(self.partitions.items()):
            self.partitions[place] = partition = former.successor(identity)
            self._forget(former)
            self.enqueue(partition)

    # ---- out -------------------------------------------------------------------------------------

    def enqueue(self, partition: Partition) -> None:
        """Send what the partition has with the next flush."""
        if (
            partition.phase is Phase.IDLE
            and partition.deliveries
            and (self._policy is None or self._policy.covers(partition))
        ):
            partition.phase = Phase.QUEUED
            self._ready.append(partition)
            if not self._is_flushing:
                self._is_flushing = True
                asyncio.get_running_loop().call_soon(self._flush)

    def _enqueue_again(self, partition: Partition) -> None:
        """It waited for a link: send it by another one, unless all of it was withdrawn."""
        if partition.phase is Phase.QUEUED:
            partition.phase = Phase.IDLE
        self.enqueue(partition)
        if not partition.deliveries and self._policy is not None:
            self._policy.idle(partition)

    def _flush(self) -> None:
        self._is_flushing = False
        ready, self._ready = self._ready, []
        by_link: dict[Link, list[Partition]] = {}
        for partition in ready:
            if partition.phase is not Phase.QUEUED:
                continue
            link = self.leaders.link_of(partition)
            if link is None:
                self.leaders.wait(partition)
            else:
                by_link.setdefault(link, []).append(partition)
        for link, partitions in by_link.items():
            link.send(partitions)

    def stamp_ms(self, partition: Partition) -> int | None:
        """The time of records that are packed now. None while the clock is wrong: `look_at_clock`
        enqueues them later on."""
        now_ms = self._times.stamp_ms(partition.place.topic)
        if now_ms is None:
            self.untimely[partition] = None
        return now_ms

    def look_at_clock(self) -> None:
        """Enqueue what waited for the clock, if that is right by now."""
        now_s = asyncio.get_running_loop().time()
        for partition in list(self.untimely):
            if self._times.off_s(partition.place.topic) is None:
                del self.untimely[partition]
                for delivery in partition.deliveries:
                    delivery.since_s = now_s
                self.enqueue(partition)

    def _take(self, partition: Partition) -> bytes:
        """What a link sends of a partition now; b"": nothing."""
        if (
            partition.batch is None
            and partition.deliveries
            and (now_ms := self.stamp_ms(partition)) is not None
        ):
            pack, now_s = self._packer.pack, asyncio.get_running_loop().time()
            while (too_large := partition.pack(pack, now_ms, now_s)) is not None:
                self.listener.settled(partition.place, *too_large)
        data = partition.take()
        if partition.phase is Phase.IDLE and self._policy is not None:
            self._policy.idle(partition)
        return data

    # ---- in --------------------------------------------------------------------------------------

    def _make_link(self) -> Link:
        return Link(
            client_id=self._client_id,
            transactional_id="" if self._policy is None else self._policy.id,
            timeout_s=self.settings.request_timeout_s,
            request_bytes=self.settings.request_bytes,
            take=self._take,
            answered=self._answered,
            lost=self._link_lost,
            timed=self._note_time,
        )

    def _answered(self, partition: Partition, code: int, offset: int) -> None:
        if partition.phase is Phase.FORGOTTEN:
            return
        if code:
            retriable = STEPS.get(code) not in (None, Step.DENIED)
            self.listener.failed(partition.place, error_of(code), retriable=retriable)
        self._perform(partition, partition.answered(code, offset))

    def _note_time(self, partition: Partition, at_ms: int, sent_s: float) -> None:
        """Learn the brokers' clock from the time that one of them gave to a batch, unless that was
        sent before: the answer to a repetition may have the time of the first attempt, or ours."""
        if partition.batch is not None and partition.batch.tries == 1:
            took_s = asyncio.get_running_loop().time() - sent_s
            self._times.timed(partition.place.topic, at_ms, took_s)

    def _link_lost(self, link: Link, unanswered: list[Partition], waiting: list[Partition]) -> None:
        self.leaders.leave(link)
        for partition in unanswered:
            if partition.phase is not Phase.FORGOTTEN:
                self._perform(partition, partition.unanswered())
        for partition in waiting:
            self._enqueue_again(partition)

    def _perform(self, partition: Partition, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if self._policy is None or self._policy.passes(partition, effect):
                match effect:
                    case Appended():
                        self.listener.acked(partition, effect)
                    case Refused(code):
                        self._refused(partition, code)
                    case Pause(seconds, find_leader):
                        if find_leader:
                            self.leaders.doubt(partition)
                        seconds *= self._rng.uniform(1 - _JITTER, 1 + _JITTER)
                        asyncio.get_running_loop().call_later(seconds, self._resume, partition)
                    case Locate(offset, code):
                        self._spawn(self._locate(partition, offset, code), "producer-locate")
                    case Renew(doubtful):
                        self.listener.rebuilt("identity")
                        if doubtful:
                            extra = partition.place._asdict()
                            _log.warning("records may be in the topic twice", extra=extra)
                        self._spawn(self._renew(partition), "producer-identity")
        self.enqueue(partition)

    def _refused(self, partition: Partition, code: int) -> None:
        setting = SIZE_SETTINGS.get(for_code(code))
        if setting is not None:
            partition.limits.bounded_by = setting
            if (too_large := partition.halve()) is not None:
                self.listener.settled(partition.place, *too_large)
            return
        partition.put_back()  # packed again with a new time, since that may be what is refused
        partition.backoff, wait_s = partition.backoff.after_failure(
            clock.now_s(), healthy=False, rng=self._rng
        )
        if partition.phase is Phase.IDLE:
            partition.phase = Phase.PAUSED
            asyncio.get_running_loop().call_later(wait_s, self._resume, partition)

    def _resume(self, partition: Partition) -> None:
        """A pause is over, or what was paused was withdrawn."""
        if partition.phase is Phase.PAUSED:
            partition.phase = Phase.IDLE
            self.enqueue(partition)

    def _spawn(self, work: Any, name: str) -> None:
        assert self._tasks is not None, "answers come while the producer runs"
        self._tasks.create_task(work, name=name)

    async def _locate(self, partition: Partition, start: int, code: int) -> None:
        place, batch, identity = partition.place, partition.batch, partition.identity
        assert batch is not None, "a batch is looked for"
        assert identity is not None, "the batch was sent under one"

        async def locate(brokers: Brokers) -> None:
            await self.leaders.refresh(brokers, {place.topic})
            found = await brokers.locate(*place, start, identity, batch.sequence)
            if partition.phase is Phase.LOCATING:
                self._perform(partition, partition.located(found, code))

        await self._ask(partition, locate, shown=False)

    async def _renew(self, partition: Partition) -> None:
        async def renew(brokers: Brokers) -> None:
            identity = Identity(*await brokers.producer_id())
            if partition.phase is Phase.RENEWING:
                self._perform(partition, partition.renewed(identity))

        await self._ask(partition, renew, shown=True)

    async def _ask(
        self,
        partition: Partition,
        question: Callable[[Brokers], Awaitable[None]],
        *,
        shown: bool,
    ) -> None:
        """Ask until brokers answer, unless the partition is forgotten. Args: `shown`: report why
        they do not."""
        access, backoff = self.leaders.access, _ASK_RETRY
        while partition.phase is not Phase.FORGOTTEN:
            brokers = await access.reach()
            try:
                await question(brokers)
            except (KafkaError, OSError) as error:
                if shown:
                    access.complain(None, error)
                backoff, wait_s = backoff.after_failure(clock.now_s(), healthy=False, rng=self._rng)
                await asyncio.sleep(wait_s)
            else:
                break
        if shown:
            access.well(None)
