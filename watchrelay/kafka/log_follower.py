"""Follows the logs of many streams from given offsets, with one consumer for all their topics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from typing import Any, Protocol

from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.beside import beside
from watchrelay.core.errors import SinkUnavailable
from watchrelay.kafka.by_stream import ByStream
from watchrelay.kafka.client import KafkaError, TopicAuthorizationFailedError, TopicPartition
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.consumer import ids_of_topics, may_have_more, position_if_known
from watchrelay.kafka.reader import (
    ANSWER_WITHIN_S,
    RECORDS_AT_ONCE,
    AnswerLimit,
    assign,
    fetch,
    open_consumer,
)
from watchrelay.kafka.topic_identity import TopicIdentity
from watchrelay.model.reach import KeyRange

_log = logging.getLogger(__name__)

_PAUSE_S = 1.0
"""Between two looks: a few large answers cost a fraction of the CPU of one for each batch."""
_ANSWER_WAIT_MS = 50
_NOT_FULL_MAX = 3
"""A look ends after this many fetches that were not full: the first brings only what the client had
prefetched since the look before, the next answer has the rest."""
_PARTITION_FETCH_BYTES = 512 * 1024
_FETCH_BYTES = 4 * 1024 * 1024
_CHECK_EVERY_S = 10.0
_CHECK_TIMEOUT_S = 5.0
_RETRY = Backoff(base_s=0.2, cap_s=10.0, jitter=0.5)


class FollowedLog(Protocol):
    """One stream's part of its topic."""

    stream: str
    topic: str
    keys: KeyRange
    next: dict[int, int]
    """By partition that is read, the offset of the first record not read."""
    urgent: bool
    """It is read on without a pause."""

    def take(self, partition: int, records: Sequence[Any]) -> None:
        """The next records that concern the stream (`ByStream`), as aiokafka gives them."""
        ...

    def behind(self, records: int) -> None:
        """The number of offsets of the topic that are not read yet."""
        ...

    def lost(self, why: str) -> None:
        """The log is no longer followed: what was read of it ends here."""
        ...


class LogFollower:
    """Use: `run()` as a task. What is wrong with one topic, or in what takes its records, ends the
    following of that topic or log alone."""

    def __init__(self, connection: KafkaConnection, *, rng: random.Random | None = None) -> None:
        self._connection, self._rng = connection, rng or random.Random()
        self._topics: dict[str, list[FollowedLog]] = {}
        self._position: dict[TopicPartition, int] = {}
        """Of the consumer: it never goes back."""
        self._changed, self._hurry = asyncio.Event(), asyncio.Event()
        self._identity = TopicIdentity()
        self._check_due_s = 0.0

    def follow(self, log: FollowedLog) -> None:
        """Read `log` on from `log.next`."""
        self._topics.setdefault(log.topic, []).append(log)
        self._identity.expect(log.topic)
        self._check_due_s = 0.0
        self._changed.set()

    def unfollow(self, log: FollowedLog) -> None:
        """Stop handing on records of `log`."""
        logs = self._topics.get(log.topic, [])
        if log in logs:
            logs.remove(log)
            if not logs:
                del self._topics[log.topic]
                self._identity.forget(log.topic)
            self._changed.set()

    def hurry(self) -> None:
        """Read on now: a log has become urgent."""
        self._hurry.set()

    async def run(self) -> None:
        """Follow, through any outage, until cancelled."""
        backoff = _RETRY
        while True:
            while not self._topics:
                self._changed.clear()
                await self._changed.wait()
            began_s = clock.now_s()
            try:
                await self._life()
            except SinkUnavailable as error:
                healthy = clock.now_s() - began_s > ANSWER_WITHIN_S
                backoff, wait_s = backoff.after_failure(
                    clock.now_s(), healthy=healthy, rng=self._rng
                )
                extra = {"error": str(error), "retry_in_s": round(wait_s, 1)}
                _log.info("cannot follow the streams of other replicas", extra=extra)
                await asyncio.sleep(wait_s)

    async def _life(self) -> None:
        """Follow with one consumer, until there is no log or new secrets are in use. Raises:
        SinkUnavailable."""
        proven = self._connection.rotation.proven
        async with open_consumer(
            self._connection,
            isolation_level="read_committed",
            metadata_max_age_ms=60_000,
            max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
            fetch_max_bytes=_FETCH_BYTES,
        ) as consumer:
            await self._follow(consumer, proven)

    async def _follow(self, consumer: Any, proven: int) -> None:
        reading = self._read(consumer, proven)
        await beside(self._keep_checking(consumer), reading, name="check followed topics")

    async def _read(self, consumer: Any, proven: int) -> None:
        self._changed.set()
        answers = AnswerLimit(self._connection.servers)
        while self._topics and self._connection.rotation.proven == proven:
            if self._changed.is_set():
                self._changed.clear()
                self._assign(consumer)
            found = await self._look(consumer)
            newest_ms = max(consumer.last_poll_timestamp(at) or 0 for at in self._position)
            answers.check(found, newest_ms)
            await self._pause()

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self._urgent() else _PAUSE_S):
                await self._hurry.wait()
        self._hurry.clear()

    def _urgent(self) -> bool:
        return any(log.urgent for logs in self._topics.values() for log in logs)

    def _assign(self, consumer: Any) -> None:
        self._position = {}
        for topic, logs in self._topics.items():
            for log in logs:
                for partition, following in log.next.items():
                    place = TopicPartition(topic, partition)
                    self._position[place] = min(following, self._position.get(place, following))
        assign(consumer, self._position)

    async def _look(self, consumer: Any) -> bool:
        """Read what is there; whether something was."""
        found, not_full = False, 0
        while not_full < _NOT_FULL_MAX and not self._changed.is_set():
            try:
                fetched = await fetch(consumer, (), wait_ms=_ANSWER_WAIT_MS)
            except TopicAuthorizationFailedError as error:
                for topic in self._topics.keys() & set(error.args):
                    self._lose(topic, "it may not be read")
                return found
            found = found or bool(fetched)
            for place, records in fetched.items():
                if self._in_order(place, records[0].offset):
                    self._pass_on(place, records)
            if not fetched:
                break
            full = sum(map(len, fetched.values())) >= RECORDS_AT_ONCE or may_have_more(consumer)
            not_full += not full
            if self._urgent():  # who takes over does not wait for the rest of all logs
                self._tell_lag(consumer)
            await asyncio.sleep(0)  # `fetch` returns without a pause while there are records
        for place, position in self._position.items():
            at = position_if_known(consumer, place)
            if at is not None and at != position and self._in_order(place, at):
                self._moved(place, at)  # compaction leaves holes
        self._tell_lag(consumer)
        return found

    def _in_order(self, place: TopicPartition, offset: int) -> bool:
        """Whether the topic goes on there; else the consumer was reset, for the offset that it
        requested does not exist."""
        if offset >= self._position[place]:
            return True
        self._lose(place.topic, f"offset {offset} follows {self._position[place] - 1}")
        return False

    def _pass_on(self, place: TopicPartition, records: Sequence[Any]) -> None:
        current = self._current(place)
        shares = ByStream({log.stream.encode(): log.keys for log in current}).split(records)
        for log in current:
            ours, following = shares[log.stream.encode()], log.next[place.partition]
            try:
                log.take(place.partition, [each for each in ours if each.offset >= following])
            except Exception as error:  # noqa: BLE001 - the other logs are followed on
                self.unfollow(log)
                log.lost(f"{type(error).__name__}: {error}")
        self._moved(place, records[-1].offset + 1)

    def _current(self, place: TopicPartition) -> list[FollowedLog]:
        """The logs that have read what is before the consumer: one that was added since the
        partitions were assigned may have not."""
        position, partition = self._position[place], place.partition
        logs = self._topics.get(place.topic, ())
        return [log for log in logs if log.next.get(partition, -1) >= position]

    def _moved(self, place: TopicPartition, position: int) -> None:
        for log in self._current(place):
            log.next[place.partition] = max(position, log.next[place.partition])
        self._position[place] = position

    def _tell_lag(self, consumer: Any) -> None:
        behind: dict[str, int] = {}
        for place, position in self._position.items():
            left = max(0, (consumer.highwater(place) or 0) - position)
            behind[place.topic] = behind.get(place.topic, 0) + left
        for topic, logs in self._topics.items():
            for log in logs:
                log.behind(behind.get(topic, 0))

    def _lose(self, topic: str, why: str) -> None:
        for log in list(self._topics.get(topic, ())):
            self.unfollow(log)
            log.lost(why)

    async def _keep_checking(self, consumer: Any) -> None:
        """Beside the reading, which a broker that does not answer this must not delay."""
        while True:
            if clock.now_s() >= self._check_due_s:
                await self._check_topics(consumer)
            await asyncio.sleep(_PAUSE_S)

    async def _check_topics(self, consumer: Any) -> None:
        """Whether the topics are those that were read first."""
        self._check_due_s = clock.now_s() + _CHECK_EVERY_S
        try:
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                answer = await ids_of_topics(consumer, list(self._topics))
        except (KafkaError, OSError, TimeoutError) as error:
            _log.debug("cannot ask brokers whether topics exist", extra={"error": repr(error)})
            return
        for topic, why in self._identity.seen(answer, clock.now_s()).items():
            if self._identity.may_return(topic):  # its writer makes it again, if it is gone
                self._identity.expect(topic)
            else:
                self._lose(topic, why)
