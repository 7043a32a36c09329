"""The one loop that reads partitions: a caller says where it starts, where it ends, and how long
nothing may arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from watchrelay.core import clock
from watchrelay.core.errors import SinkForbidden, SinkUnavailable
from watchrelay.core.turns import Turns
from watchrelay.kafka.client import KafkaError, TopicAuthorizationFailedError, TopicPartition
from watchrelay.kafka.client.client_log import quiet_client_log
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.consumer import (
    STATE_TOPICS,
    connection_failure,
    make_consumer,
    stop_consumer,
)
from watchrelay.kafka.client.failures import unreachable, unreadable
from watchrelay.kafka.client.fetched import Limits
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
RECORDS_AT_ONCE: Final = 500
COMMITTED: Final = {"isolation_level": "read_committed", "max_partition_fetch_bytes": 4 << 20}
"""Options of a consumer for people and verification: blind to what was aborted."""

Take = Callable[[TopicPartition, Sequence[Any]], object]
"""Gets records as aiokafka gives them (offset, timestamp, key, value, headers), never none."""


@asynccontextmanager
async def open_consumer(
    connection: KafkaConnection, limits: Limits = STATE_TOPICS, **options: object
) -> AsyncIterator[Any]:
    """A consumer that has started, stopped at the end of the block.

    Args:
        limits: of topics that are no state topics.
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
        yield consumer
    except TopicAuthorizationFailedError as error:
        raise SinkForbidden(unreadable(error)) from error
    except (KafkaError, OSError, TimeoutError, ValueError) as error:
        raise unreachable(connection, error, connection_failure(consumer)) from error
    finally:
        await stop_consumer(consumer, within_s=_STOP_TIMEOUT_S)


async def offset_ranges(
    consumer: Any, places: Collection[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """The first offset and the end of each partition, as they are now. Raises: KafkaError."""
    begins = await consumer.beginning_offsets(list(places))
    ends = await consumer.end_offsets(list(places))
    return {place: (begins[place], ends[place]) for place in places}


def assign(consumer: Any, starts: Mapping[TopicPartition, int]) -> None:
    """Read these partitions from these offsets on, and no others.

    `seek_to_beginning` would lose against the reset that `assign` starts (seen with aiokafka 0.14).
    """
    consumer.assign(list(starts))
    for place, offset in starts.items():
        consumer.seek(place, offset)


async def fetch(
    consumer: Any,
    places: Collection[TopicPartition],
    *,
    max_records: int = RECORDS_AT_ONCE,
    wait_ms: int = _WAIT_MS,
) -> dict[TopicPartition, list[Any]]:
    """What has been fetched of `places`, or arrives within `wait_ms`. Raises: KafkaError."""
    fetched: dict[TopicPartition, list[Any]] = await consumer.getmany(
        *places, timeout_ms=wait_ms, max_records=max_records
    )
    return fetched


async def read_ranges(
    consumer: Any,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    take: Take,
    *,
    max_records: int = RECORDS_AT_ONCE,
    silent_after_s: float = SILENT_AFTER_S,
    transactions: OpenTransactions | None = None,
) -> None:
    """Assign each partition, and pass its records to `take` from the first offset of its range
    until the position of the consumer has reached the second; the last ones may be beyond it.

    Args:
        transactions: looks for those that hold the consumer back, which reads committed records
            up to an end that may be after them.

    Raises: KafkaError; TransactionOpen; TimeoutError when nothing arrives for `silent_after_s`.
    """
    assign(consumer, {place: start for place, (start, _) in ranges.items()})
    silence, turns = SilenceLimit(silent_after_s), Turns()
    while behind := await _behind(consumer, ranges):
        fetched = await fetch(consumer, behind, max_records=max_records)
        for place, records in fetched.items():
            take(place, records)
        if transactions is not None:
            transactions.check(consumer, behind)
        silence.check(fetched, behind[0].topic)
        await turns.pause()  # `fetch` returns without a pause while there are records


async def _behind(
    consumer: Any, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> list[TopicPartition]:
    """The partitions that are not read to their end. By position: the last records before an end
    may be compacted away."""
    async with asyncio.timeout(REQUEST_TIMEOUT_S):
        return [place for place, (_, end) in ranges.items() if await consumer.position(place) < end]


class AnswerLimit:
    """Bounds how long no broker answers a consumer that follows topics, which is then to be
    replaced: aiokafka never asks the bootstrap servers again
    (https://github.com/aio-libs/aiokafka/issues/459). Make it where reading begins.
    """

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._newest_ms, self._newest_s = 0, clock.now_s()

    def check(self, fetched: object, newest_ms: int | None) -> None:
        """Call it after each fetch, with what it gave, which may be a part of an older answer, and
        the consumer's `last_poll_timestamp`: the wall clock, which may be set, so that only a
        change of it counts. Raises: SinkUnavailable."""
        if fetched or (newest_ms and newest_ms != self._newest_ms):
            self._newest_ms, self._newest_s = newest_ms or 0, clock.now_s()
        elif clock.now_s() - self._newest_s > ANSWER_WITHIN_S:
            raise SinkUnavailable(
                f"kafka at {self._servers} has not answered for {ANSWER_WITHIN_S:g} s"
            )


class SilenceLimit:
    """Bounds how long nothing arrives where something must: aiokafka retries forever.

    Make it inside the event loop, where reading begins.
    """

    def __init__(self, after_s: float = SILENT_AFTER_S) -> None:
        self._after_s = after_s
        self._now_s = asyncio.get_running_loop().time
        self._newest_s = self._now_s()

    def check(self, fetched: object, topic: str) -> None:
        """Call it after each fetch. Raises: TimeoutError."""
        if fetched:
            self._newest_s = self._now_s()
        elif self._now_s() - self._newest_s > self._after_s:
            raise TimeoutError(
                f"no records of {topic} for {self._after_s:g} s, and its end is not reached"
            )
