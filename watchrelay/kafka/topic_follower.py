"""Follows a topic of one partition from its start, through any outage."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Protocol

from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.beside import beside
from watchrelay.core.errors import SinkForbidden, SinkUnavailable, TopicLost
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.core.turns import Turns
from watchrelay.kafka.client import KafkaError, TopicPartition
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.consumer import (
    end_of_leader_epoch,
    ids_of_topics,
    wait_for_topic,
)
from watchrelay.kafka.client.leader_epochs import UNKNOWN, LeaderEpochs
from watchrelay.kafka.open_transactions import OpenTransactions
from watchrelay.kafka.reader import (
    ANSWER_WITHIN_S,
    REQUEST_TIMEOUT_S,
    AnswerLimit,
    assign,
    fetch,
    offset_ranges,
    open_consumer,
)
from watchrelay.kafka.topic_identity import TopicIdentity
from watchrelay.observe.status import Troubles

_log = logging.getLogger(__name__)

_WAIT_MS = 1000
_LOOK_EVERY_S = 10.0
_LOOK_TIMEOUT_S = 5.0
_DOUBT_S = 1.0
"""The pause before a topic that was not there is looked for again."""
_RETRY = Backoff(base_s=0.2, cap_s=10.0, jitter=0.5)


class RecordHandler(Protocol):
    """What a follower calls, from its own task."""

    def began(self, end: int, partition: int, /) -> None:
        """A consumer starts to read; the partition ends at `end`."""
        ...

    def take(self, record: Any) -> None:
        """The next record, as aiokafka gives it."""
        ...

    def moved(self, position: int) -> None:
        """Everything before `position` of a partition was read."""
        ...

    def started_over(self) -> None:
        """The topic was recreated: what was read is void."""
        ...


@dataclass(slots=True)
class _Part:
    """What was read of a partition. `next`: the offset of the first record not read yet; `taken`:
    that after the last record taken, and the leader epoch of that record."""

    next: int = 0
    taken: int = 0
    taken_epoch: int = UNKNOWN


class TopicFollower:
    """Follows one topic, its first partition or `every_partition`. Use: `run()` as a task; again
    after it raised.

    `batch_bytes_max`: of a record batch, unpacked; a larger one is passed over as a record that
    cannot be read.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        handler: RecordHandler,
        *,
        name: str,
        committed: bool,
        batch_bytes_max: int,
        problems: Troubles,
        every_partition: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        self.parts = defaultdict[int, _Part](_Part)
        self._every_partition = every_partition
        self._connection, self._topic, self._handler = connection, topic, handler
        self._name, self._problems = name, problems
        self._limits = {topic: batch_bytes_max}
        self._is_committed = committed
        self._rng = rng or random.Random()
        self._identity = TopicIdentity()
        self._epochs = LeaderEpochs()  # of each consumer, its own

    async def run(self) -> None:
        """Read the topic from its start and follow it.

        Raises: TopicLost when it was deleted or recreated, after `started_over()`; the next run
        reads from the start. Without `started_over()` while brokers do not know it: the next run
        reads on if it is back under its id.
        """
        backoff = _RETRY
        self._identity.expect(self._topic)
        while True:
            began_s = clock.now_s()
            try:
                await self._life()
            except SinkUnavailable as error:
                away = self._name == "control" and not isinstance(error, SinkForbidden)
                self._report(error, Cause.KAFKA if away else Cause(self._name))
                healthy = clock.now_s() - began_s > ANSWER_WITHIN_S
                backoff, wait_s = backoff.after_failure(
                    clock.now_s(), healthy=healthy, rng=self._rng
                )
                await asyncio.sleep(wait_s)
            except TopicLost as lost:
                if self._identity.may_return(self._topic):
                    raise
                _log.warning(
                    "topic was recreated; reading it from the start",
                    extra={"topic": self._topic, "error": str(lost)},
                )
                self.parts.clear()
                self._identity.forget(self._topic)
                self._handler.started_over()
                raise

    def _report(self, error: SinkUnavailable, cause: Cause) -> None:
        if self._name not in self._problems:
            extra = {"topic": self._topic, "error": str(error)}
            _log.warning("cannot read topic", extra=extra)
        message = f"{self._name} topic {self._topic}: {error}"
        self._problems.put(self._name, Trouble(self._topic, cause, message, error.cure))

    async def _life(self) -> None:
        """Follow with one consumer, until new secrets are in use or there are more partitions.
        Raises: SinkUnavailable, TopicLost."""
        proven = self._connection.rotation.proven
        async with open_consumer(
            self._connection,
            self._limits,
            isolation_level="read_committed" if self._is_committed else "read_uncommitted",
            metadata_max_age_ms=60_000,
        ) as consumer:
            await self._find(consumer)
            partitions = [0]
            if self._every_partition:
                partitions = await wait_for_topic(consumer, self._topic)
            places = [TopicPartition(self._topic, each) for each in partitions]
            ranges = await offset_ranges(consumer, places)
            for place, (begin, end) in ranges.items():
                part = self.parts[place.partition]
                if end < part.next:
                    why = f"it ends at offset {end}, and {part.next} were read"
                    raise TopicLost(self._topic, why)
                part.next = max(begin, part.next)
            self._epochs = consumer.leader_epochs
            assign(consumer, {place: self.parts[place.partition].next for place in places})
            for place, (_, end) in ranges.items():
                self._handler.began(end, place.partition)
                self._handler.moved(self.parts[place.partition].next)
            await self._follow(consumer, places, proven)

    async def _follow(self, consumer: Any, places: list[TopicPartition], proven: int) -> None:
        reading = self._read(consumer, places, proven)
        await beside(self._keep_looking(consumer), reading, name=f"look for {self._topic}")

    async def _read(self, consumer: Any, places: list[TopicPartition], proven: int) -> None:
        servers, turns = self._connection.servers, Turns()
        answers, transactions = AnswerLimit(servers), OpenTransactions(servers)
        while self._connection.rotation.proven == proven and not self._has_grown(consumer, places):
            batches = await fetch(consumer, places, wait_ms=_WAIT_MS)
            for place, records in batches.items():
                for record in records:
                    await turns.pause()  # to unpack a large record and to read it are two turns
                    self._in_order(place, record.offset)
                    await self._same_log(consumer, place, record.offset)
                    self._handler.take(record)
            for place in places:
                await self._move(consumer, place)
            await turns.pause()  # `fetch` returns without a pause while there are records
            newest_ms = max(consumer.last_poll_timestamp(place) or 0 for place in places)
            answers.check(batches, newest_ms)
            held = transactions.held_back(consumer, places) if self._is_committed else {}
            if held:
                self._report(held[min(held)], Cause(self._name))
            elif self._problems.pop(self._name, None) is not None:
                _log.info("topic is read again", extra={"topic": self._topic})

    async def _move(self, consumer: Any, place: TopicPartition) -> None:
        """Compaction leaves holes: the position is ahead of the last record's."""
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            position = await consumer.position(place)
        self._in_order(place, position)
        if position > self.parts[place.partition].next:
            self.parts[place.partition].next = position
            self._handler.moved(position)

    def _has_grown(self, consumer: Any, places: list[TopicPartition]) -> bool:
        """Whether the topic has partitions that are to be read, and are not."""
        if not self._every_partition:
            return False
        return len(consumer.partitions_for_topic(self._topic) or ()) > len(places)

    def _in_order(self, place: TopicPartition, offset: int) -> None:
        """Raises: TopicLost where the consumer was reset: the offset that it requested is gone."""
        if offset < (read := self.parts[place.partition].next):
            raise TopicLost(self._topic, f"offset {offset} comes after {read} were read")

    async def _same_log(self, consumer: Any, place: TopicPartition, offset: int) -> None:
        """Note that the record at `offset` is taken. Raises: TopicLost where it follows others than
        those that were taken: brokers lost some, and have others in their place. KafkaError."""
        part, epoch = self.parts[place.partition], self._epochs.at(place, offset)
        if offset < part.taken:
            return  # it was taken before
        if part.taken_epoch != UNKNOWN and epoch > part.taken_epoch:
            end = await end_of_leader_epoch(consumer, place, part.taken_epoch)
            if end is not None and end < part.taken:
                raise TopicLost(
                    self._topic,
                    f"its records from offset {end} on were replaced by others, and {part.taken} "
                    "were read",
                )
        part.taken, part.taken_epoch = offset + 1, epoch

    # ---- whether it exists -----------------------------------------------------------------------

    async def _find(self, consumer: Any) -> None:
        """Return when the topic exists. Raises: TopicLost when it does not for long, or was
        recreated."""
        await self._look(consumer)
        while self._identity.doubtful:
            await asyncio.sleep(_DOUBT_S)
            await self._look(consumer)

    async def _keep_looking(self, consumer: Any) -> None:
        """Beside the reading, which a broker that does not answer this must not delay. Raises:
        TopicLost."""
        while True:
            await asyncio.sleep(_DOUBT_S if self._identity.doubtful else _LOOK_EVERY_S)
            await self._look(consumer)

    async def _look(self, consumer: Any) -> None:
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT_S):
                answer = await ids_of_topics(consumer, [self._topic])
        except (KafkaError, OSError, TimeoutError) as error:
            _log.debug(
                "cannot ask brokers whether the topic exists",
                extra={"topic": self._topic, "error": repr(error)},
            )
            return
        if why := self._identity.seen(answer, clock.now_s()).get(self._topic):
            raise TopicLost(self._topic, why)
