"""Follows a topic of one partition from its start, through any outage."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any, Protocol

from watchrelay.core import causes, clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.beside import beside
from watchrelay.core.errors import SinkForbidden, SinkUnavailable, TopicLost
from watchrelay.kafka.client import KafkaError, TopicPartition
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.consumer import ids_of_topics
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
from watchrelay.observe.status import Problems

_log = logging.getLogger(__name__)

_WAIT_MS = 1000
_LOOK_EVERY_S = 10.0
_LOOK_TIMEOUT_S = 5.0
_DOUBT_S = 1.0
"""The pause before a topic that was not there is looked for again."""
_RETRY = Backoff(base_s=0.2, cap_s=10.0, jitter=0.5)


class RecordHandler(Protocol):
    """What a follower calls, from its own task."""

    def began(self, end: int) -> None:
        """A consumer starts to read; the topic ends at `end`."""
        ...

    def take(self, record: Any) -> None:
        """The next record, as aiokafka gives it."""
        ...

    def moved(self, position: int) -> None:
        """Everything before `position` was read."""
        ...

    def started_over(self) -> None:
        """The topic was recreated: what was read is void."""
        ...


class TopicFollower:
    """Follows one topic. Use: `run()` as a task; again after it raised.

    `next` is the offset of the first record not read yet.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        handler: RecordHandler,
        *,
        name: str,
        committed: bool,
        problems: Problems,
        rng: random.Random | None = None,
    ) -> None:
        self.next = 0
        self._connection, self._topic, self._handler = connection, topic, handler
        self._name, self._problems = name, problems
        self._isolation = "read_committed" if committed else "read_uncommitted"
        self._rng = rng or random.Random()
        self._identity = TopicIdentity()

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
                if self._name not in self._problems:
                    _log.warning(
                        "cannot read topic",
                        extra={"topic": self._topic, "error": str(error)},
                    )
                away = self._name == "control" and not isinstance(error, SinkForbidden)
                message = f"{self._name} topic {self._topic}: {error}"
                self._problems.put(self._name, message, cause=causes.KAFKA if away else None)
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
                    extra={"topic": self._topic, "held": self.next, "error": str(lost)},
                )
                self.next = 0
                self._identity.forget(self._topic)
                self._handler.started_over()
                raise

    async def _life(self) -> None:
        """Follow with one consumer, until new secrets are in use. Raises: SinkUnavailable,
        TopicLost."""
        partition, proven = TopicPartition(self._topic, 0), self._connection.rotation.proven
        async with open_consumer(
            self._connection,
            isolation_level=self._isolation,
            metadata_max_age_ms=60_000,
        ) as consumer:
            await self._find(consumer)
            begin, end = (await offset_ranges(consumer, [partition]))[partition]
            if end < self.next:
                raise TopicLost(self._topic, f"it ends at offset {end}, and {self.next} were read")
            self.next = max(begin, self.next)
            assign(consumer, {partition: self.next})
            self._handler.began(end)
            self._handler.moved(self.next)
            await self._follow(consumer, partition, proven)

    async def _follow(self, consumer: Any, partition: TopicPartition, proven: int) -> None:
        reading = self._read(consumer, partition, proven)
        await beside(self._keep_looking(consumer), reading, name=f"look for {self._topic}")

    async def _read(self, consumer: Any, partition: TopicPartition, proven: int) -> None:
        answers = AnswerLimit(self._connection.servers)
        while self._connection.rotation.proven == proven:
            batches = await fetch(consumer, [partition], wait_ms=_WAIT_MS)
            for record in batches.get(partition, ()):
                self._in_order(record.offset)
                self._handler.take(record)
            # Compaction leaves holes: the position is ahead of the last record's.
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                position = await consumer.position(partition)
            self._in_order(position)
            if position > self.next:
                self.next = position
                self._handler.moved(position)
            answers.check(consumer.last_poll_timestamp(partition))
            if self._problems.pop(self._name, None) is not None:
                _log.info("topic is read again", extra={"topic": self._topic})

    def _in_order(self, offset: int) -> None:
        """Raises: TopicLost where the consumer was reset: the offset that it requested is gone."""
        if offset < self.next:
            raise TopicLost(self._topic, f"offset {offset} comes after {self.next} were read")

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
