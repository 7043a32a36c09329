"""An in-memory Kafka behind the relay's ports, with faults by seed: delays, lost acknowledgements
(so resends), refusals, an outage.

The log keeps every copy, as a broker without idempotence would: a record whose
acknowledgement was lost is there twice.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from watchrelay.contract.control_state import from_value, index_origins
from watchrelay.contract.records import LogRecord, decode
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core.errors import Fenced, RecordTooLarge
from watchrelay.kafka.range_reader import OffsetRange
from watchrelay.kafka.written_offsets import WrittenOffsets
from watchrelay.model.streams import StreamSpec


@dataclass(slots=True)
class Faults:
    """What goes wrong, and how often. Units: seconds; probabilities per batch."""

    delay_s: float = 0.0
    lost_ack: float = 0.0
    partial: float = 0.0
    """The connection broke after some records of a batch: they stand in the log, then the whole
    batch comes again."""


class SendsByTask(ABC):
    """A sink whose `deliver` is all there is."""

    @abstractmethod
    async def deliver(self, batch: Batch) -> Receipt:
        """As KafkaSink's."""

    def send(self, batch: Batch, done: Callable[[Receipt | Exception], None]) -> asyncio.Task[Any]:
        """As the port says."""

        def answered(task: asyncio.Task[Receipt]) -> None:
            if not task.cancelled():
                error = task.exception()
                done(error if isinstance(error, Exception) else task.result())

        delivery = asyncio.get_running_loop().create_task(self.deliver(batch))
        delivery.add_done_callback(answered)
        return delivery

    def withdraw(self, delivery: asyncio.Task[Any]) -> None:
        """As the port says."""
        delivery.cancel()


@dataclass
class FakeSink(SendsByTask):
    """Appends batches to lists, one per topic and partition; asserts that each has one outstanding
    batch at most."""

    faults: Faults = field(default_factory=Faults)
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    limit_bytes: int | None = None
    logs: dict[tuple[str, int], list[WireRecord]] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    up: asyncio.Event = field(default_factory=asyncio.Event)
    fenced: bool = False
    _outstanding: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.up.set()

    def log(self, topic: str, partition: int) -> list[WireRecord]:
        """The log of one partition."""
        return self.logs.setdefault((topic, partition), [])

    async def deliver(self, batch: Batch) -> Receipt:
        """As the port says."""
        place = (batch.topic, batch.partition)
        assert batch.records, "an empty batch"
        assert place not in self._outstanding, "two outstanding batches of one partition"
        if self.fenced:
            raise Fenced("fenced by the broker")
        for index, record in enumerate(batch.records):
            if (
                self.limit_bytes is not None
                and record.value is not None
                and len(record.value) > self.limit_bytes
            ):
                raise RecordTooLarge("too large", index=index)
        self._outstanding.add(place)
        try:
            await self.up.wait()
            log = self.log(*place)
            if self.rng.random() < self.faults.partial:
                log.extend(batch.records[: self.rng.randrange(len(batch.records))])
            if self.rng.random() < self.faults.lost_ack:
                log.extend(batch.records)
            await asyncio.sleep(self.rng.random() * self.faults.delay_s)
            first = len(log)
            log.extend(batch.records)
            self.batches.append(batch)
            return Receipt(list(range(first, len(log))))
        finally:
            self._outstanding.discard(place)


@dataclass(slots=True)
class FakeControl:
    """A control topic of one process, and the means to claim behind its back."""

    epoch: int = 0
    claims: list[tuple[str, dict[str, object] | None]] = field(default_factory=list)
    written: list[tuple[str, str, dict[str, object] | None]] = field(default_factory=list)
    newest: dict[str, int] = field(default_factory=dict)
    indexes: dict[str, dict[str, object]] = field(default_factory=dict)
    releases: dict[str, int] = field(default_factory=dict)

    async def claim(
        self,
        stream: str,
        description: dict[str, object],
        *,
        starting_point: dict[str, object] | None,
        highest_epoch: Callable[[], Awaitable[int]],
        transactional_id: str = "",
    ) -> int:
        """As the port says."""
        await asyncio.sleep(0)
        self.claims.append((stream, starting_point))
        return self.claimed_elsewhere(stream)

    async def read_starting_point(self, stream: str, partitions: int) -> dict[str, object] | None:
        """As the port says."""
        index = self.indexes.get(stream)
        if index is not None and index.get("epoch") == self.newest.get(stream):
            return from_value(index_origins(index, range(partitions)), partitions)
        return next(
            (origin for claimed, origin in reversed(self.claims) if claimed == stream), None
        )

    def newest_claims(self, stream: str) -> dict[str, int]:
        """As the port says."""
        return {stream: self.newest[stream]} if stream in self.newest else {}

    async def released(self, claims: Mapping[str, int], *, within_s: float) -> bool:
        """As the port says."""
        deadline_s = asyncio.get_running_loop().time() + within_s
        while any(self.releases.get(stream, -1) < epoch for stream, epoch in claims.items()):
            if asyncio.get_running_loop().time() >= deadline_s:
                return False
            await asyncio.sleep(0.01)
        return True

    def claimed_elsewhere(self, stream: str) -> int:
        """Another writer claims."""
        self.epoch += 1
        self.newest[stream] = self.epoch
        return self.epoch

    def holder_of(self, stream: str) -> str | None:
        """As the port says."""
        return "another" if stream in self.newest else None

    def superseded(self, stream: str, epoch: int) -> bool:
        """A newer claim than that of `epoch` was made."""
        return self.newest.get(stream, 0) > epoch

    async def write(
        self, kind: Literal["snapshot", "stream"], stream: str, value: dict[str, object] | None
    ) -> None:
        """As the port says."""
        await asyncio.sleep(0)
        self.written.append((kind, stream, value))
        if kind == "snapshot" and value is not None:
            self.indexes[stream] = value

    def index(self, stream: str) -> dict[str, object] | None:
        """As the port says."""
        return self.indexes.get(stream)

    def newest_indexes(self, stream: str) -> list[dict[str, object]]:
        """Of each partition; they all have the stream's."""
        return [self.indexes[stream]] if stream in self.indexes else []


@dataclass
class KafkaLogs:
    """The logs, by topic and partition."""

    logs: dict[tuple[str, int], list[WireRecord]] = field(default_factory=dict)
    log_starts: dict[tuple[str, int], int] = field(default_factory=dict)
    """Where they start; 0 where they are whole."""


class LogConnection(SendsByTask):
    """One process's way to the logs: it notes where its own records stand."""

    def __init__(self, kafka: KafkaLogs, rng: random.Random) -> None:
        self.kafka = kafka
        self.written = WrittenOffsets()
        self._sink = FakeSink(Faults(), rng, logs=kafka.logs)

    async def deliver(self, batch: Batch) -> Receipt:
        """As the port says."""
        receipt = await self._sink.deliver(batch)
        self.written.note(
            (batch.topic, batch.partition), receipt.offsets[0], receipt.offsets[-1] + 1
        )
        return receipt


class FakeLogReader:
    """Reads a stream's log back as `LogReader` does."""

    def __init__(self, spec: StreamSpec, connection: LogConnection) -> None:
        self._spec, self._connection = spec, connection

    def _decoded(self, partition: int, start: int, stop: int) -> list[LogRecord]:
        log = self._connection.kafka.logs.get((self._spec.topic, partition), [])
        return [decode(*record) for record in log[start:stop]]

    async def spans(
        self, spans: Sequence[OffsetRange], take: Callable[[int, list[LogRecord]], None]
    ) -> set[int]:
        """As `LogReader.spans`."""
        for span in spans:
            for start in range(span.start or 0, span.stop, 7):
                await asyncio.sleep(0.01)
                take(
                    span.partition, self._decoded(span.partition, start, min(start + 7, span.stop))
                )
        return {span.partition for span in spans if not span.start}

    def unacknowledged_ranges(self, partition: int, start: int, stop: int) -> list[tuple[int, int]]:
        """As `LogReader.unacknowledged_ranges`."""
        return self._connection.written.gaps((self._spec.topic, partition), start, stop)

    def log_start(self, partition: int) -> int:
        """As `LogReader.log_start`."""
        return self._connection.kafka.log_starts.get((self._spec.topic, partition), 0)

    def owns(self, key: bytes) -> bool:
        """The stream is alone on its topic."""
        return True

    async def read(
        self,
        ranges: Mapping[int, Sequence[tuple[int, int]]],
        take: Callable[[int, int, LogRecord], None],
    ) -> None:
        """As `LogReader.read`."""
        await asyncio.sleep(0.01)
        for partition, wanted in ranges.items():
            for start, stop in wanted:
                for offset, record in enumerate(self._decoded(partition, start, stop), start):
                    take(partition, offset, record)
