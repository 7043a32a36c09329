"""The one reader of Kafka: a reading moves cursors with one consumer, and notices where nothing is
answered, where a transaction holds it back, and where a topic is another than was read."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final

from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import SinkForbidden, SinkUnavailable, TransactionOpen
from watchrelay.core.text import short
from watchrelay.core.turns import Turns
from watchrelay.kafka.client import KafkaError, TopicAuthorizationFailedError, TopicPartition
from watchrelay.kafka.client.client_log import quiet_client_log
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.consumer import (
    STATE_TOPICS,
    connection_failure,
    make_consumer,
    position_if_known,
    stop_consumer,
    wait_for_topic,
)
from watchrelay.kafka.client.failures import unreachable, unreadable
from watchrelay.kafka.client.fetched import Limits
from watchrelay.kafka.cursor import Cursor
from watchrelay.kafka.open_transactions import OpenTransactions

ANSWER_WITHIN_S: Final = 20.0
"""Seconds without an answer after which a consumer that follows topics is replaced."""
SILENT_AFTER_S: Final = 60.0
"""Longer than a broker of a healthy cluster is away, or than the client takes to find the next
leader."""
REQUEST_TIMEOUT_S: Final = 15.0
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 3.0
_WAIT_MS = 500
_RETRY = Backoff(base_s=0.2, cap_s=10.0, jitter=0.5)
RECORDS_AT_ONCE: Final = 500
COMMITTED: Final[Mapping[str, Any]] = {
    "isolation_level": "read_committed",
    "max_partition_fetch_bytes": 4 << 20,
}
"""Options of a consumer for people and verification: blind to what was aborted."""

Take = Callable[[TopicPartition, Sequence[Any]], object]
"""Gets records as aiokafka gives them (offset, timestamp, key, value, headers), never none."""
Lost = Callable[[TopicPartition, str], bool | None]
"""Called with a partition whose topic is another than was read, and the reason. It may raise, which
ends the reading. Returns: whether to read on what is there now; else that is passed over."""


async def through_outages(
    attempt: Callable[[], Awaitable[bool]],
    failed: Callable[[SinkUnavailable, float], None],
    *,
    healthy_after_s: float = ANSWER_WITHIN_S,
    rng: Random,
) -> None:
    """Return once `attempt` gives True.

    Args:
        failed: gets each error and the seconds until the next attempt.
        healthy_after_s: one that took longer was served by brokers.
    """
    backoff, done = _RETRY, False
    while not done:
        began_s = clock.now_s()
        try:
            done = await attempt()
        except SinkUnavailable as error:
            healthy = clock.now_s() - began_s > healthy_after_s
            backoff, wait_s = backoff.after_failure(clock.now_s(), healthy=healthy, rng=rng)
            failed(error, wait_s)
            await asyncio.sleep(wait_s)


async def partitions_of(consumer: Any, topics: Iterable[str]) -> list[TopicPartition]:
    """All partitions of these topics, once brokers know them. Raises: KafkaError, TimeoutError."""
    return [
        TopicPartition(topic, partition)
        for topic in dict.fromkeys(topics)
        for partition in await wait_for_topic(consumer, topic)
    ]


async def offset_ranges(
    consumer: Any, places: Collection[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """The first offset and the end of each partition, as they are now. Raises: KafkaError."""
    begins = await consumer.beginning_offsets(list(places))
    ends = await consumer.end_offsets(list(places))
    return {place: (begins[place], ends[place]) for place in places}


class Reading:
    """What one consumer reads of some partitions. Use: `fetch`, take what that gives, `move`; again
    and again. Make it inside the event loop, where reading begins.

    Args:
        committed: the consumer reads committed records alone.
        lost: called where offsets go back, for the one that the consumer requested is gone; None:
            what is there now is read.
        silent_after_s: how long nothing may arrive before the ends of the cursors; None: nothing
            has to arrive, but brokers must answer.
    """

    def __init__(
        self,
        consumer: Any,
        servers: str = "",
        *,
        committed: bool = False,
        lost: Lost | None = None,
        silent_after_s: float | None = SILENT_AFTER_S,
    ) -> None:
        self.cursors: Mapping[TopicPartition, Cursor] = {}
        self.turns = Turns()
        self.transactions = OpenTransactions(servers)
        self.consumer, self.servers, self._lost = consumer, servers, lost
        self._committed = committed
        self._silent_after_s = silent_after_s
        self._now_s = asyncio.get_running_loop().time
        self._newest_s = self._now_s()
        self._answers: dict[TopicPartition, tuple[int, float]] = {}
        """By partition, the wall clock of its newest answer, and when that was noticed."""

    def assign(self, cursors: Mapping[TopicPartition, Cursor]) -> None:
        """Read these partitions on from their cursors, and no others. Silence counts from the first
        time on; a partition that is added counts as answered with the newest answer."""
        if not self.cursors:
            self._newest_s = self._now_s()
        answered_s = max((since_s for _, since_s in self._answers.values()), default=self._now_s())
        self._answers = {place: self._answers.get(place, (0, answered_s)) for place in cursors}
        self.cursors = cursors
        self.consumer.assign(list(cursors))
        for place, cursor in cursors.items():
            # `seek_to_beginning` would lose against the reset that `assign` starts (aiokafka 0.14)
            self.seek(place, cursor.next)

    async def assign_ends(self, topics: Iterable[str]) -> None:
        """Read what is still to come of these topics. Raises: KafkaError."""
        ends = await self.consumer.end_offsets(await partitions_of(self.consumer, topics))
        self.assign({place: Cursor(end) for place, end in ends.items()})

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Read the partition on from `offset`."""
        self.cursors[place].next = offset
        self.consumer.seek(place, offset)

    @property
    def behind(self) -> list[TopicPartition]:
        """The partitions that are not read to their end."""
        return [place for place, cursor in self.cursors.items() if cursor.is_behind]

    async def fetch(
        self,
        places: Collection[TopicPartition] = (),
        *,
        max_records: int = RECORDS_AT_ONCE,
        wait_ms: int = _WAIT_MS,
    ) -> dict[TopicPartition, list[Any]]:
        """What has been fetched of `places` (of all: none named), or arrives within `wait_ms`; the
        event loop has its turn before.

        Raises: KafkaError; TimeoutError and SinkUnavailable when nothing arrives for too long."""
        await self.turns.pause()  # `getmany` returns without a pause while there are records
        fetched: dict[TopicPartition, list[Any]] = await self.consumer.getmany(
            *places, timeout_ms=wait_ms, max_records=max_records
        )
        self._notice_silence(fetched)
        return {
            place: records
            for place, records in fetched.items()
            if self._is_read_on(place, records[0].offset)
        }

    def move(self) -> dict[TopicPartition, int]:
        """What was fetched is taken. By the positions of the consumer: compaction leaves holes.

        Returns: where the cursors were that have moved."""
        moved: dict[TopicPartition, int] = {}
        for place, cursor in self.cursors.items():
            position, former = position_if_known(self.consumer, place), cursor.next
            if position is not None and position != former and self._is_read_on(place, position):
                moved[place], cursor.next = former, position
        return moved

    def unanswered(self) -> list[TopicPartition]:
        """The partitions about which brokers have given no answer for `ANSWER_WITHIN_S`, though
        they are asked: of a reading without `silent_after_s`."""
        oldest_s = self._now_s() - ANSWER_WITHIN_S
        return [place for place, (_, since_s) in self._answers.items() if since_s < oldest_s]

    def held_back(self) -> Mapping[TopicPartition, TransactionOpen]:
        """The partitions that an open transaction holds back."""
        cursors = self.cursors if self._committed else {}
        return self.transactions.held_back(self.consumer, cursors)

    async def step(self, take: Take, places: Collection[TopicPartition] = ()) -> bool:
        """Pass what `fetch` gives to `take`, and `move`. Whether that was anything."""
        fetched = await self.fetch(places)
        for place, records in fetched.items():
            take(place, records)
        self.move()
        return bool(fetched)

    async def read_to_end(self, take: Take) -> None:
        """Pass the records of each partition to `take`, up to its end; the last ones may be beyond.
        Raises: TransactionOpen; as `fetch`."""
        while behind := self.behind:
            if not await self.step(take, behind):
                held = self.held_back()
                for place in behind:
                    if place in held:
                        raise held[place]

    def _is_read_on(self, place: TopicPartition, offset: int) -> bool:
        """Call `lost` where the partition goes back to `offset`. Returns: whether it is read on.
        Raises: what `lost` raises."""
        read, lost = self.cursors[place].next, self._lost
        if lost is None or offset >= read:
            return True
        return bool(lost(place, f"offset {offset} comes after {read} were read"))

    def _notice_silence(self, fetched: Collection[TopicPartition]) -> None:
        """aiokafka retries forever, and never asks the bootstrap servers again
        (https://github.com/aio-libs/aiokafka/issues/459)."""
        if self._silent_after_s is None:
            self._note_answers(fetched)
            if self._answers and len(self.unanswered()) == len(self._answers):
                raise SinkUnavailable(
                    f"kafka at {self.servers} has not answered for {ANSWER_WITHIN_S:g} s"
                )
            return
        if fetched:
            self._newest_s = self._now_s()
        silent_s = self._now_s() - self._newest_s
        if silent_s > self._silent_after_s and (behind := self.behind):
            topics = short(", ".join(dict.fromkeys(place.topic for place in behind)))
            raise TimeoutError(
                f"no records of {topics} for {self._silent_after_s:g} s, and its end is not reached"
            )

    def _note_answers(self, fetched: Collection[TopicPartition]) -> None:
        """The consumer notes the wall clock of an answer, which may be set: only a change of it
        counts."""
        now_s = self._now_s()
        for place, (former_ms, _) in self._answers.items():
            answer_ms = self.consumer.last_poll_timestamp(place) or 0
            if answer_ms not in (0, former_ms) or place in fetched:
                self._answers[place] = answer_ms, now_s


@asynccontextmanager
async def open_reading(
    connection: KafkaConnection,
    limits: Limits = STATE_TOPICS,
    *,
    lost: Lost | None = None,
    silent_after_s: float | None = SILENT_AFTER_S,
    **options: Any,
) -> AsyncIterator[Reading]:
    """A reading by a consumer that has started, and is stopped at the end of the block.

    Args:
        limits: of topics that are no state topics.
        lost, silent_after_s: as for `Reading`.
        options: keyword arguments of AIOKafkaConsumer.

    Raises: SinkUnavailable, with the reason and the cure, for each error of Kafka or the network in
    the block, and for each ValueError: of what aiokafka cannot configure or decode. One of our own
    code in the block looks the same.
    """
    quiet_client_log()
    consumer = make_consumer(
        connection.arguments(),
        limits,
        request_timeout_ms=int(REQUEST_TIMEOUT_S * 1000),
        **options,
    )
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            await consumer.start()
        yield Reading(
            consumer,
            connection.servers,
            committed=options.get("isolation_level") == "read_committed",
            lost=lost,
            silent_after_s=silent_after_s,
        )
    except TopicAuthorizationFailedError as error:
        raise SinkForbidden(unreadable(error)) from error
    except (KafkaError, OSError, TimeoutError, ValueError) as error:
        raise unreachable(connection, error, connection_failure(consumer)) from error
    finally:
        await stop_consumer(consumer, within_s=_STOP_TIMEOUT_S)


async def read_ranges(
    consumer: Any, ranges: Mapping[TopicPartition, tuple[int, int]], take: Take
) -> Mapping[TopicPartition, Cursor]:
    """Assign each partition, and pass its records to `take` from the first offset of its range
    until the second is reached; the last ones may be beyond it.

    Returns: how far each was read.
    Raises: KafkaError; TimeoutError when nothing arrives for `SILENT_AFTER_S`.
    """
    reading = Reading(consumer)
    reading.assign({place: Cursor(*span) for place, span in ranges.items()})
    await reading.read_to_end(take)
    return reading.cursors
