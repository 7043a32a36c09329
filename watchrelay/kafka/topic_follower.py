"""Follows a topic of one partition from its start, through any outage."""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol

from watchrelay.core.beside import beside
from watchrelay.core.errors import SinkForbidden, SinkUnavailable, TopicLost
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.consumer import end_of_leader_epoch, ids_of_topics, wait_for_topic
from watchrelay.kafka.client.leader_epochs import UNKNOWN
from watchrelay.kafka.cursor import Cursor
from watchrelay.kafka.reading import (
    ANSWER_WITHIN_S,
    RECORDS_AT_ONCE,
    Reading,
    offset_ranges,
    open_reading,
    through_outages,
)
from watchrelay.kafka.topic_incarnation import TopicIncarnations
from watchrelay.observe.status import Troubles

_log = logging.getLogger(__name__)

_WAIT_MS = 1000


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
class _Part(Cursor):
    """What was read of a partition. `taken`: the offset after the last record taken; `taken_epoch`:
    the leader epoch of that record."""

    taken: int = 0
    taken_epoch: int = UNKNOWN


class TopicFollower:
    """Follows one topic, its first partition or `every_partition`. Use: `run()` as a task; again
    after it raised.

    `name`: what the topic is, the value of a `Cause`; what is wrong is reported under it, of the
    control topic as `Cause.KAFKA` while brokers do not answer. `batch_bytes_max`: of a record
    batch, unpacked; a larger one is passed over as a record that cannot be read.
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
        self._incarnations = TopicIncarnations(self._lose)

    async def run(self) -> None:
        """Read the topic from its start and follow it.

        Raises: TopicLost when it was deleted or recreated, after `started_over()`; the next run
        reads from the start. Without `started_over()` while brokers do not know it: the next run
        reads on if it is back under its id.
        """
        self._incarnations.expect(self._topic)
        try:
            await through_outages(self._life, self._failed, rng=self._rng)
        except TopicLost as lost:  # its reading has ended: nothing more is taken
            if not self._incarnations.may_return(self._topic):
                self._start_over(lost)
            raise

    def _failed(self, error: SinkUnavailable, _wait_s: float) -> None:
        is_outage = self._name == "control" and not isinstance(error, SinkForbidden)
        self._report(error, Cause.KAFKA if is_outage else Cause(self._name))

    def _report(self, error: SinkUnavailable, cause: Cause) -> None:
        if self._name not in self._problems:
            extra = {"topic": self._topic, "error": str(error)}
            _log.warning("cannot read topic", extra=extra)
        message = f"{self._name} topic {self._topic}: {error}"
        self._problems.put(self._name, Trouble(self._topic, cause, message, error.cure))

    def _lose(self, topic: str, why: str) -> NoReturn:
        """Raises: TopicLost."""
        raise TopicLost(topic, why)

    def _start_over(self, lost: TopicLost) -> None:
        """What was read is void."""
        extra = {"topic": self._topic, "error": str(lost)}
        _log.warning("topic was recreated; reading it from the start", extra=extra)
        self.parts.clear()
        self._incarnations.forget(self._topic)
        self._handler.started_over()

    async def _life(self) -> bool:
        """Follow with one consumer, until new secrets are in use or there are more partitions.
        Raises: SinkUnavailable, TopicLost."""
        proven = self._connection.rotation.proven
        async with open_reading(
            self._connection,
            self._limits,
            lost=lambda place, why: self._lose(place.topic, why),
            silent_after_s=None,
            isolation_level="read_committed" if self._is_committed else "read_uncommitted",
            metadata_max_age_ms=60_000,
        ) as reading:
            consumer = reading.consumer
            await self._incarnations.look_until_sure(partial(ids_of_topics, consumer))
            partitions = [0]
            if self._every_partition:
                partitions = await wait_for_topic(consumer, self._topic)
            places = {TopicPartition(self._topic, each): self.parts[each] for each in partitions}
            ranges = await offset_ranges(consumer, places)
            for place, (begin, end) in ranges.items():
                if end < (read := places[place].next):
                    self._lose(self._topic, f"it ends at offset {end}, and {read} were read")
                places[place].next = max(begin, read)
            reading.assign(places)
            for place, (_, end) in ranges.items():
                self._handler.began(end, place.partition)
                self._handler.moved(places[place].next)
            await self._follow(reading, proven)
        return False

    async def _follow(self, reading: Reading, proven: int) -> None:
        looking = self._incarnations.keep_looking(partial(ids_of_topics, reading.consumer))
        await beside(looking, self._read(reading, proven), name=f"look for {self._topic}")

    async def _read(self, reading: Reading, proven: int) -> None:
        while self._connection.rotation.proven == proven and not self._has_grown(reading):
            fetched = await reading.fetch(wait_ms=_WAIT_MS)
            for place, records in fetched.items():
                for record in records:
                    await reading.turns.pause()  # to unpack a large record is a turn of its own
                    await self._note_taken(reading, place, record.offset)
                    self._handler.take(record)
            for place in reading.move():
                self._handler.moved(self.parts[place.partition].next)
            # of a partition whose records wait their turn nothing is asked
            if sum(map(len, fetched.values())) < RECORDS_AT_ONCE and (
                silent := reading.unanswered()
            ):
                raise SinkUnavailable(
                    f"no broker has answered about partition {silent[0].partition} for "
                    f"{ANSWER_WITHIN_S:g} s: is the broker away that leads it?"
                )
            if held := reading.held_back():
                self._report(held[min(held)], Cause(self._name))
            elif self._problems.pop(self._name, None) is not None:
                _log.info("topic is read again", extra={"topic": self._topic})

    def _has_grown(self, reading: Reading) -> bool:
        """Whether the topic has partitions that are to be read, and are not."""
        if not self._every_partition:
            return False
        known = reading.consumer.partitions_for_topic(self._topic) or ()
        return len(known) > len(reading.cursors)

    async def _note_taken(self, reading: Reading, place: TopicPartition, offset: int) -> None:
        """Note that the record at `offset` is taken; lose the topic where it follows others than
        those that were taken: brokers lost some, and have others in their place. Raises:
        KafkaError."""
        part = self.parts[place.partition]
        epoch = reading.consumer.leader_epochs.at(place, offset)
        if offset < part.taken:
            return  # it was taken before
        if part.taken_epoch != UNKNOWN and epoch > part.taken_epoch:
            end = await end_of_leader_epoch(reading.consumer, place, part.taken_epoch)
            if end is not None and end < part.taken:
                self._lose(
                    self._topic,
                    f"its records from offset {end} on were replaced by others, and {part.taken} "
                    "were read",
                )
        part.taken, part.taken_epoch = offset + 1, epoch
