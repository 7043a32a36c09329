"""A topic of one partition, followed from its start, for ever, through any outage.

Room: sink. In: the control or the signal topic. Out: its records, in order, to a follower; an error
when the topic is another than before.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any, Protocol

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import SinkUnavailable, TopicLost
from watchrelay.kafka.client.client_log import listening
from watchrelay.kafka.client.connection import KafkaConnection, make_reader, unreachable
from watchrelay.kafka.client.metadata import look
from watchrelay.kafka.client.patches import stop_consumer
from watchrelay.kafka.topic_identity import Presence

_log = logging.getLogger(__name__)

_POLL_MS = 1000
_RECORDS_AT_ONCE = 500
_REQUEST_TIMEOUT_S = 15.0
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 3.0
_SILENT_AFTER_S = 20.0
"""A consumer whose broker has not answered for so long is built anew: aiokafka never asks the
bootstrap servers again (issue 459)."""
_LOOK_EVERY_S = 10.0
_LOOK_TIMEOUT_S = 5.0
_DOUBT_S = 1.0
"""The pause before a topic that was not there is looked for again."""
_RETRY = Backoff(base_s=0.2, cap_s=10.0, jitter=0.5)


class Follower(Protocol):
    """Whoever reads. All calls are made by the tail's task."""

    def began(self, end: int) -> None:
        """A consumer starts to read; the topic ends at `end` now."""
        ...

    def take(self, record: Any) -> None:
        """The next record, as aiokafka gives it."""
        ...

    def moved(self, position: int) -> None:
        """Everything before `position` was read."""
        ...

    def started_over(self) -> None:
        """The topic is another one: what was read counts no longer."""
        ...


class Tail:
    """Follows one topic for a follower. Use: `run()` as a task; again after it raised.

    Shape: `next` is the offset of the first record not read yet. `name` is what the topic is called
    on the statuses.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        follower: Follower,
        *,
        name: str,
        committed: bool,
        problems: dict[str, str],
        rng: random.Random | None = None,
    ) -> None:
        self.next = 0
        self._connection, self._topic, self._follower = connection, topic, follower
        self._name, self._problems = name, problems
        self._isolation = "read_committed" if committed else "read_uncommitted"
        self._rng = rng or random.Random()
        self._presence = Presence()
        self._looked_s = 0.0

    async def run(self) -> None:
        """Read the topic from its start and follow it.

        Raises: TopicLost when it was deleted, or made anew; the follower was told, and the next run
        reads from the start.
        """
        backoff = _RETRY
        self._presence.expect(self._topic)
        while True:
            began_s = clock.now_s()
            try:
                await self._life()
            except SinkUnavailable as error:
                if self._name not in self._problems:
                    _log.warning(
                        "topic cannot be followed",
                        extra={"topic": self._topic, "error": str(error)},
                    )
                self._problems[self._name] = f"{self._name} topic {self._topic}: {error}"
                healthy = clock.now_s() - began_s > _SILENT_AFTER_S
                backoff, wait_s = backoff.after_failure(
                    clock.now_s(), healthy=healthy, rng=self._rng
                )
                await asyncio.sleep(wait_s)
            except TopicLost as lost:
                _log.warning(
                    "topic starts over",
                    extra={"topic": self._topic, "held": self.next, "error": str(lost)},
                )
                self.next = 0
                self._presence.forget(self._topic)
                self._follower.started_over()
                raise

    async def _life(self) -> None:
        """One consumer's life; it ends when other secrets came into use. Raises: SinkUnavailable
        when it cannot go on; TopicLost."""
        partition, proven = TopicPartition(self._topic, 0), self._connection.rotation.proven
        with listening() as said:
            consumer = make_reader(
                self._connection,
                request_timeout_s=_REQUEST_TIMEOUT_S,
                isolation_level=self._isolation,
                metadata_max_age_ms=60_000,
            )
            try:
                async with asyncio.timeout(_START_TIMEOUT_S):
                    await consumer.start()
                    await self._find(consumer)
                    consumer.assign([partition])
                    begin = (await consumer.beginning_offsets([partition]))[partition]
                    end = (await consumer.end_offsets([partition]))[partition]
                if end < self.next:
                    raise TopicLost(
                        self._topic, f"it ends at offset {end}, and {self.next} were read"
                    )
                self.next = max(begin, self.next)
                consumer.seek(partition, self.next)
                self._follower.began(end)
                self._follower.moved(self.next)
                await self._follow(consumer, partition, proven)
            except (KafkaError, OSError, TimeoutError, ValueError) as error:
                raise unreachable(self._connection, error, said.reason) from error
            finally:
                await stop_consumer(consumer, within_s=_STOP_TIMEOUT_S)

    async def _follow(self, consumer: Any, partition: TopicPartition, proven: int) -> None:
        answered_ms, answered_s = 0, clock.now_s()
        while self._connection.rotation.proven == proven:
            batches = await consumer.getmany(
                partition, timeout_ms=_POLL_MS, max_records=_RECORDS_AT_ONCE
            )
            for record in batches.get(partition, ()):
                self._in_order(record.offset)
                self._follower.take(record)
            # Compaction leaves holes: the position is ahead of the last record's.
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                position = await consumer.position(partition)
            self._in_order(position)
            if position > self.next:
                self.next = position
                self._follower.moved(position)
            # by the wall clock, which may be set: only a change of it counts
            newest_ms = consumer.last_poll_timestamp(partition)
            if newest_ms != answered_ms:
                answered_ms, answered_s = newest_ms, clock.now_s()
            if clock.now_s() - answered_s > _SILENT_AFTER_S:
                raise SinkUnavailable(
                    f"kafka at {self._connection.servers} has not answered for "
                    f"{_SILENT_AFTER_S:g} s"
                )
            if self._problems.pop(self._name, None) is not None:
                _log.info("topic is followed again", extra={"topic": self._topic})
            if clock.now_s() - self._looked_s >= (
                _DOUBT_S if self._presence.doubtful else _LOOK_EVERY_S
            ):
                await self._look(consumer)

    def _in_order(self, offset: int) -> None:
        """Raises: TopicLost where the consumer was sent back: the offset that it asked for is not
        there any more."""
        if offset < self.next:
            raise TopicLost(self._topic, f"offset {offset} comes after {self.next} were read")

    # ---- whether it is there ---------------------------------------------------------------------

    async def _find(self, consumer: Any) -> None:
        """Return when the topic is there. Raises: TopicLost when it is not for long, or is
        another."""
        await self._look(consumer)
        while self._presence.doubtful:
            await asyncio.sleep(_DOUBT_S)
            await self._look(consumer)

    async def _look(self, consumer: Any) -> None:
        self._looked_s = clock.now_s()
        try:
            async with asyncio.timeout(_LOOK_TIMEOUT_S):
                answer = await look(consumer._client, [self._topic])
        except (KafkaError, OSError, TimeoutError) as error:
            _log.debug(
                "brokers do not tell whether the topic is there",
                extra={"topic": self._topic, "error": repr(error)},
            )
            return
        if why := self._presence.seen(answer, clock.now_s()).get(self._topic):
            raise TopicLost(self._topic, why)
