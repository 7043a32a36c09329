"""The daemon's runner of a stream as a replica has it: without the topic's administration, and with
places at which the process may be suspended.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.broker import Broker
from tests.simulation.process import TOPIC, Reader, now_s, scanned, wall_ms
from watchrelay.daemon.context import DaemonContext
from watchrelay.daemon.recovery import LogReader
from watchrelay.daemon.stream_runner import StreamRunner
from watchrelay.daemon.stream_topic import StreamTopic
from watchrelay.kafka.stream_transactions import StreamTransactions
from watchrelay.kafka.topic_config import TopicFacts
from watchrelay.kafka.topic_reads import TopicReads
from watchrelay.model.progress import StreamProgress
from watchrelay.model.streams import StreamSpec
from watchrelay.observe.status import StreamStatus
from watchrelay.publish.ports import WriterContext
from watchrelay.publish.writer import StreamWriter
from watchrelay.store.objects import Store

if TYPE_CHECKING:
    from tests.simulation.replica import Replica


class SimulatedTopic(StreamTopic):
    """A topic that is there, and that nobody changes."""

    def __init__(
        self,
        spec: StreamSpec,
        context: DaemonContext,
        status: StreamStatus,
        progress: StreamProgress,
        broker: Broker,
    ) -> None:
        super().__init__(spec, context, status, progress)
        self._broker = broker

    async def ready(self, planned: StreamSpec) -> TopicFacts:
        self.spec, self.empty_before = planned, {}
        count = planned.partitions
        return TopicFacts(TOPIC, count, 1, 1 << 20, checked=True, created=False)

    async def highest_epoch(self) -> int:
        highest, self.empty_before = await scanned(self._broker, self.spec.partitions)
        return highest


class Runner(StreamRunner):
    """The daemon's, without the topic's administration."""

    replica: Replica
    reader_class: type[Reader] = Reader

    def belong_to(self, replica: Replica) -> None:
        """Run in this process."""
        self.replica = replica
        self._topic = SimulatedTopic(
            self.spec, self._context, self._status, self._progress, replica.world.broker
        )

    def _lose(self, error: Exception) -> None:
        if self.replica.over:  # killed: it does nothing more
            raise asyncio.CancelledError from error
        self.replica.world.noted_loss(self)
        super()._lose(error)

    def _transactions(self) -> StreamTransactions | None:
        made = super()._transactions()
        if made is None:
            return None
        return SuspendedInTransactions(
            made.id, made.topic, made.stream, made.sink, made.control, self.replica
        )

    def _reader(self, spec: StreamSpec, reads: TopicReads) -> LogReader:
        return self.reader_class(spec, self.replica.world, self._context.sink)

    def _writer(self, store: Store, message_bytes: int, reader: LogReader) -> StreamWriter:
        return StreamWriter(
            self.spec,
            WriterContext(
                sink=self._context.sink,
                control=self._context.control,
                store=store,
                metrics=self._metrics,
                topic_metrics=self._context.metrics.topic(TOPIC),
                status=self._status,
                progress=self._progress,
                heartbeat_interval=self._context.heartbeat_interval,
                must_stop=self._tenure.must_stop,
                queue_bytes=64 << 20,
                max_message_bytes=message_bytes,
                gap_reader=reader,
                transactions=self._transactions(),
                rng=self._context.rng,
                now_s=now_s,
                wall_ms=wall_ms,
            ),
        )


@dataclass(frozen=True, slots=True)
class SuspendedInTransactions(StreamTransactions):
    """After a look at the claims the process may be suspended."""

    replica: Replica

    async def is_ours(self, epoch: int) -> bool:
        # slots=True makes another class, which `super()` does not know
        ours = await StreamTransactions.is_ours(self, epoch)
        await self.replica.world.looked(self.replica)
        return ours
