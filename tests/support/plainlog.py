"""A Kafka that loses nothing, as a list of records: what a writer appends, a later one reads back.

Room: test support.  In: batches.  Out: the same records in order, to whoever reads the log as
`daemon/recovery.py` asks it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.support.fakesink import FakeSink, Faults
from watchrelay.contract.records import Decoded, decode
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.kafka.range_reader import Span
from watchrelay.kafka.written_offsets import Ledger
from watchrelay.model.streams import StreamSpec


@dataclass
class Kafka:
    """The logs, by topic and partition."""

    logs: dict[tuple[str, int], list[WireRecord]] = field(default_factory=dict)


class Connection:
    """One process's way to the logs: it notes where its own records stand."""

    def __init__(self, kafka: Kafka, rng: random.Random) -> None:
        self.kafka = kafka
        self.ledger = Ledger()
        self._sink = FakeSink(Faults(), rng, logs=kafka.logs)

    async def deliver(self, batch: Batch) -> Receipt:
        """As the port says."""
        receipt = await self._sink.deliver(batch)
        self.ledger.note(
            (batch.topic, batch.partition), receipt.offsets[0], receipt.offsets[-1] + 1
        )
        return receipt


class Log:
    """Reads a stream's log back as `LogReader` does."""

    def __init__(self, spec: StreamSpec, connection: Connection) -> None:
        self._spec, self._connection = spec, connection

    def _decoded(self, partition: int, start: int, stop: int) -> list[Decoded]:
        log = self._connection.kafka.logs.get((self._spec.topic, partition), [])
        return [decode(*record) for record in log[start:stop]]

    async def spans(
        self, spans: Sequence[Span], take: Callable[[int, list[Decoded]], None]
    ) -> set[int]:
        """As `LogReader.spans`."""
        for span in spans:
            for start in range(span.start or 0, span.stop, 7):
                await asyncio.sleep(0.01)
                take(
                    span.partition, self._decoded(span.partition, start, min(start + 7, span.stop))
                )
        return {span.partition for span in spans if not span.start}

    def foreign_ranges(self, partition: int, start: int, stop: int) -> list[tuple[int, int]]:
        """As `LogReader.strange`."""
        return self._connection.ledger.gaps((self._spec.topic, partition), start, stop)

    async def read(self, partition: int, start: int, stop: int) -> Sequence[tuple[int, Decoded]]:
        """As `LogReader.read`."""
        await asyncio.sleep(0.01)
        return list(enumerate(self._decoded(partition, start, stop), start))
