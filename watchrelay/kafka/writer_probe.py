"""Whether a relay writes a stream right now, judged by its topic alone.

One partition is enough: markers go to all of them, and heartbeats are written when nothing
changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.consumer import wait_for_topic
from watchrelay.kafka.log_scan import epoch_of
from watchrelay.kafka.reader import fetch, offset_ranges, open_consumer, read_ranges

_TAIL_RECORDS: Final = 2_000
"""How far back the newest record of the stream is looked for; a busy neighbour may have pushed it
out of sight."""
_CLAIM_KEY: Final = b"%wr/claim/"


@dataclass(frozen=True, slots=True)
class ProbedRecord:
    """A record of the stream. `at_ms` is by the clock of its writer; `claim`: a claim marker."""

    epoch: int
    at_ms: int
    claim: bool


class WriterProbe:
    """Looks at the end of one partition. Use: `async with probe_writer(...) as probe`."""

    def __init__(self, consumer: Any, place: TopicPartition, stream: str) -> None:
        self._consumer, self._place, self._stream = consumer, place, stream

    async def newest(self) -> ProbedRecord | None:
        """The stream's newest record, None where there is none in sight."""
        begin, end = (await offset_ranges(self._consumer, [self._place]))[self._place]
        found: ProbedRecord | None = None

        def take(_: TopicPartition, records: Sequence[Any]) -> None:
            nonlocal found
            found = newest_of(records, self._stream) or found

        await read_ranges(
            self._consumer, {self._place: (max(begin, end - _TAIL_RECORDS), end)}, take
        )
        return found

    async def more(self, *, within_s: float) -> ProbedRecord | None:
        """The next record of the stream, None if none comes in that time."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    fetched = await fetch(self._consumer, [self._place])
                    if found := newest_of(fetched.get(self._place, ()), self._stream):
                        return found
        except TimeoutError:
            return None


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
    """A probe of the topic, which must exist. Raises: SinkUnavailable."""
    async with open_consumer(connection) as consumer:
        await wait_for_topic(consumer, topic)
        yield WriterProbe(consumer, TopicPartition(topic, 0), stream)
