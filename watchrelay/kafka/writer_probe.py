"""Whether somebody writes a stream right now, as its topic alone tells.

Room: sink. In: a state topic, a stream id, how long to look. Out: the newest record of the stream,
and whether more came while one looked. One partition tells enough: markers go to all of them,
heartbeats also when nothing happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from watchrelay.kafka.client import KafkaError, TopicPartition
from watchrelay.kafka.client.client_log import listening
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.consumer import make_consumer, stop_consumer, wait_for_topic
from watchrelay.kafka.client.failures import unreachable
from watchrelay.kafka.log_scan import epoch_of

_REQUEST_TIMEOUT_S = 15.0
_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 3.0
_POLL_MS = 200
_RECORDS_AT_ONCE = 500
_TAIL_RECORDS: Final = 2_000
"""So far back the newest record of the stream is looked for; where others fill the topic with more,
it may be out of sight."""
_CLAIM_KEY: Final = b"%wr/claim/"


@dataclass(frozen=True, slots=True)
class ProbedRecord:
    """A record of the stream. Shape: `claim`: it is a claim marker. Units: `at_ms` by the clock of
    whoever wrote it."""

    epoch: int
    at_ms: int
    claim: bool


class WriterProbe:
    """Looks at the end of one partition. Use: `async with probe_writer(...) as probe`."""

    def __init__(self, consumer: Any, place: TopicPartition, stream: str) -> None:
        self._consumer, self._place, self._stream = consumer, place, stream
        self.truncated = False
        """More stands on the partition than was looked through for the newest record."""

    async def newest(self) -> ProbedRecord | None:
        """The stream's newest record, None where there is none in sight."""
        begin = (await self._consumer.beginning_offsets([self._place]))[self._place]
        end = (await self._consumer.end_offsets([self._place]))[self._place]
        self._consumer.assign([self._place])
        self._consumer.seek(self._place, max(begin, end - _TAIL_RECORDS))
        self.truncated = begin < end - _TAIL_RECORDS
        found: ProbedRecord | None = None
        while await self._consumer.position(self._place) < end:
            found = await self._read() or found
        return found

    async def more(self, *, within_s: float) -> ProbedRecord | None:
        """The next record of the stream, None if none comes in that time."""
        try:
            async with asyncio.timeout(within_s):
                while (found := await self._read()) is None:
                    pass
                return found
        except TimeoutError:
            return None

    async def _read(self) -> ProbedRecord | None:
        fetched = await self._consumer.getmany(
            self._place, timeout_ms=_POLL_MS, max_records=_RECORDS_AT_ONCE
        )
        return newest_of(fetched.get(self._place, ()), self._stream)


def newest_of(records: Sequence[Any], stream: str) -> ProbedRecord | None:
    """The last of `records`, as aiokafka gives them, that is of `stream`."""
    for record in reversed(records):
        if epoch := epoch_of(record.headers, stream):
            return ProbedRecord(
                epoch, record.timestamp, claim=(record.key or b"").startswith(_CLAIM_KEY)
            )
    return None


@asynccontextmanager
async def probe_writer(
    connection: KafkaConnection, topic: str, stream: str
) -> AsyncIterator[WriterProbe]:
    """A look at the topic, which must be there. Raises: SinkUnavailable."""
    with listening() as said:
        consumer = make_consumer(
            connection.arguments(), request_timeout_ms=int(_REQUEST_TIMEOUT_S * 1000)
        )
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await consumer.start()
                await wait_for_topic(consumer, topic)
            yield WriterProbe(consumer, TopicPartition(topic, 0), stream)
        except (KafkaError, OSError, TimeoutError, ValueError) as error:
            raise unreachable(connection, error, said.reason) from error
        finally:
            await stop_consumer(consumer, within_s=_STOP_TIMEOUT_S)
