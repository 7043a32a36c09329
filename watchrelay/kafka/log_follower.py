"""Follows the logs of many streams from given offsets, with one consumer for all their topics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from watchrelay.core.beside import beside
from watchrelay.core.errors import SinkUnavailable
from watchrelay.kafka.by_stream import ByStream
from watchrelay.kafka.client import TopicAuthorizationFailedError, TopicPartition
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.consumer import ids_of_topics, may_have_more
from watchrelay.kafka.cursor import Cursor
from watchrelay.kafka.reading import RECORDS_AT_ONCE, Reading, open_reading, through_outages
from watchrelay.kafka.topic_incarnation import TopicIncarnations
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
        self._changed, self._hurry = asyncio.Event(), asyncio.Event()
        self._incarnations = TopicIncarnations(self._gone)

    def follow(self, log: FollowedLog) -> None:
        """Read `log` on from `log.next`."""
        self._topics.setdefault(log.topic, []).append(log)
        self._incarnations.expect(log.topic)
        self._incarnations.hurry()
        self._changed.set()

    def unfollow(self, log: FollowedLog) -> None:
        """Stop handing on records of `log`."""
        logs = self._topics.get(log.topic, [])
        if log in logs:
            logs.remove(log)
            if not logs:
                del self._topics[log.topic]
                self._incarnations.forget(log.topic)
            self._changed.set()

    def hurry(self) -> None:
        """Read on now: a log has become urgent."""
        self._hurry.set()

    async def run(self) -> None:
        """Follow, through any outage, until cancelled."""
        await through_outages(self._life, self._failed, rng=self._rng)

    def _failed(self, error: SinkUnavailable, wait_s: float) -> None:
        extra = {"error": str(error), "retry_in_s": round(wait_s, 1)}
        _log.info("cannot follow the streams of other replicas", extra=extra)

    async def _life(self) -> bool:
        """Follow with one consumer, until there is no log or new secrets are in use. Raises:
        SinkUnavailable."""
        while not self._topics:
            self._changed.clear()
            await self._changed.wait()
        proven = self._connection.rotation.proven
        async with open_reading(
            self._connection,
            lost=lambda place, why: self._lose(place.topic, why),
            silent_after_s=None,
            isolation_level="read_committed",
            metadata_max_age_ms=60_000,
            max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
            fetch_max_bytes=_FETCH_BYTES,
        ) as reading:
            await self._follow(reading, proven)
        return False

    async def _follow(self, reading: Reading, proven: int) -> None:
        self._incarnations.hurry()  # they may be others since the last consumer
        looking = self._incarnations.keep_looking(partial(ids_of_topics, reading.consumer))
        await beside(looking, self._read(reading, proven), name="check followed topics")

    async def _read(self, reading: Reading, proven: int) -> None:
        self._changed.set()
        while self._topics and self._connection.rotation.proven == proven:
            if self._changed.is_set():
                self._changed.clear()
                reading.assign(self._cursors())
            await self._look(reading)
            await self._pause()

    async def _pause(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self._urgent() else _PAUSE_S):
                await self._hurry.wait()
        self._hurry.clear()

    def _urgent(self) -> bool:
        return any(log.urgent for logs in self._topics.values() for log in logs)

    def _cursors(self) -> dict[TopicPartition, Cursor]:
        """Where the first of its logs is to be read on, by partition."""
        found: dict[TopicPartition, Cursor] = {}
        for topic, logs in self._topics.items():
            for log in logs:
                for partition, following in log.next.items():
                    cursor = found.setdefault(TopicPartition(topic, partition), Cursor(following))
                    cursor.next = min(following, cursor.next)
        return found

    async def _look(self, reading: Reading) -> None:
        """Read what is there."""
        not_full = 0
        while not_full < _NOT_FULL_MAX and not self._changed.is_set():
            try:
                fetched = await reading.fetch(wait_ms=_ANSWER_WAIT_MS)
            except TopicAuthorizationFailedError as error:
                for topic in self._topics.keys() & set(error.args):
                    self._lose(topic, "it may not be read")
                return
            for place, records in fetched.items():
                self._pass_on(place, records, reading.cursors[place].next)
            for place, former in reading.move().items():
                position, partition = reading.cursors[place].next, place.partition
                for log in self._current(place, former):
                    log.next[partition] = max(position, log.next[partition])
            if not fetched:
                break
            is_full = sum(map(len, fetched.values())) >= RECORDS_AT_ONCE
            if not is_full and not may_have_more(reading.consumer):
                not_full += 1
            if self._urgent():  # who takes over does not wait for the rest of all logs
                self._tell_lag(reading)
        self._tell_lag(reading)

    def _pass_on(self, place: TopicPartition, records: Sequence[Any], position: int) -> None:
        current = self._current(place, position)
        shares = ByStream({log.stream.encode(): log.keys for log in current}).split(records)
        for log in current:
            ours, following = shares[log.stream.encode()], log.next[place.partition]
            try:
                log.take(place.partition, [each for each in ours if each.offset >= following])
            except Exception as error:  # noqa: BLE001 - the other logs are followed on
                self.unfollow(log)
                log.lost(f"{type(error).__name__}: {error}")

    def _current(self, place: TopicPartition, position: int) -> list[FollowedLog]:
        """The logs that take what the consumer reads at `position`: one that was added since the
        partitions were assigned may have to read from further back first."""
        logs, partition = self._topics.get(place.topic, ()), place.partition
        return [log for log in logs if log.next.get(partition, -1) >= position]

    def _tell_lag(self, reading: Reading) -> None:
        behind = Counter[str]()
        for place, cursor in reading.cursors.items():
            behind[place.topic] += max(0, (reading.consumer.highwater(place) or 0) - cursor.next)
        for topic, logs in self._topics.items():
            for log in logs:
                log.behind(behind[topic])

    def _lose(self, topic: str, why: str) -> None:
        for log in list(self._topics.get(topic, ())):
            self.unfollow(log)
            log.lost(why)

    def _gone(self, topic: str, why: str) -> None:
        if self._incarnations.may_return(topic):  # a topic that is gone is created by its writer
            self._incarnations.expect(topic)
        else:
            self._lose(topic, why)
