"""A producer session: one aiokafka producer, from its start until it is aborted.

aiokafka's producer (0.14) has defects that only a new producer cures: a partition that is stuck
after any error (https://github.com/aio-libs/aiokafka/issues/1017 and 1101), sequence numbers that
wrap, bootstrap servers that are never asked again (issue 459). Its `stop()` flushes, and hangs
while brokers are down; `abort()` is immediate.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError

from watchrelay.kafka.client.client_log import LogTail, listening
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.failures import unreachable
from watchrelay.kafka.client.metadata import topic_ids
from watchrelay.kafka.client.patches import end_in_own_task, patch_client
from watchrelay.kafka.client.record_batch import PackedBatch

_log = logging.getLogger(__name__)

_LEARN_SLICE_S = 0.5
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Timeouts and sizes of the sink.

    `finish_s`: how long a session that got an error may still be answered for its other batches.
    Answers come in milliseconds; a batch without one by then is sent again, and is written twice if
    it had been written. `renew_records`: aiokafka wraps its sequence to a negative number after
    2^31 records of a partition, which brokers refuse, so a producer is renewed well before.
    """

    batch_bytes: int = 512 * 1024
    request_bytes_max: int = 16 * 1024 * 1024
    request_timeout_s: float = 15.0
    start_timeout_s: float = 30.0
    stop_timeout_s: float = 3.0
    finish_s: float = 2.0
    watchdog_s: float = 60.0
    stalled_after_s: float = 10.0
    renew_records: int = 2**30
    secrets_every_s: float = 5.0


class ProducerAborted(Exception):
    """The session ended: whether the batch is in the log is unknown; send it again with the next
    session."""


class Refused(Exception):
    """The batch got an error. `sent` is False if it certainly never left this process, so that the
    session is still usable."""

    def __init__(self, error: Exception, *, sent: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.sent = sent


class ProducerSession:
    """One started producer. `outstanding` maps each unanswered batch to when it was handed over
    (loop time), oldest first."""

    def __init__(self, producer: Any, tail: LogTail, settings: SinkSettings) -> None:
        self.outstanding: dict[asyncio.Future[int], float] = {}
        self.is_aborted = self.is_draining = False
        self.idle = asyncio.Event()
        self.idle.set()
        self.tail = tail
        self._producer = producer
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._cluster = producer.client.cluster
        self._followed: set[str] = producer.client._topics
        """The topics that the client asks about. It adds only those that it did not know: one that
        it found when it asked about all, as it does while there are none here, is forgotten once it
        asks about another, and what waits for it then waits for nothing, until it fails for want of
        a leader and costs the producer."""
        self._accumulator = producer._message_accumulator
        self._sent: dict[TopicPartition, int] = {}

    @classmethod
    async def start(cls, connection: KafkaConnection, settings: SinkSettings) -> Self:
        """A producer that knows the cluster and has a producer id.

        Raises: SinkUnavailable with the reason that the client only logged.
        """
        with listening() as tail:
            producer = AIOKafkaProducer(
                **connection.arguments(),
                acks="all",
                enable_idempotence=True,
                max_batch_size=settings.batch_bytes,
                max_request_size=settings.request_bytes_max,
                linger_ms=0,
                request_timeout_ms=int(settings.request_timeout_s * 1000),
                retry_backoff_ms=100,
                metadata_max_age_ms=60_000,
            )
            patch_client(producer.client)
            session = cls(producer, tail, settings)
            try:
                async with asyncio.timeout(settings.start_timeout_s):
                    await producer.start()
            except (KafkaError, OSError, TimeoutError, ValueError) as error:
                session.abort()
                await session.close()
                raise unreachable(connection, error, tail.reason) from error
            except asyncio.CancelledError:
                session.abort()
                await session.close()
                raise
            return session

    async def append(self, partition: TopicPartition, batch: PackedBatch) -> int:
        """The offset of the batch's first record, once all in-sync replicas hold it.

        Raises: ProducerAborted, Refused.
        """
        self._followed.add(partition.topic)
        if partition.partition not in (self._cluster.partitions_for_topic(partition.topic) or ()):
            await self._learn(partition)
        if self.is_aborted or self.is_draining:
            raise ProducerAborted
        acked: asyncio.Future[int] = self._loop.create_future()
        self.outstanding[acked] = self._loop.time()
        self.idle.clear()
        try:
            self._hand_over(partition, batch, acked)
            return await acked
        finally:
            del self.outstanding[acked]
            if not self.outstanding:
                self.idle.set()

    def _hand_over(
        self, partition: TopicPartition, batch: PackedBatch, acked: asyncio.Future[int]
    ) -> None:
        """As `send_batch`, without its waiting: batches handed over in one step of the loop leave
        in one request per broker.

        It follows `AIOKafkaProducer.send_batch`; there is one batch per partition at a time, so
        nothing is pending there.
        """
        if self._accumulator._exception is not None:
            raise Refused(self._accumulator._exception, sent=True)
        message = self._accumulator._append_batch(batch, partition)
        self._sent[partition] = self._sent.get(partition, 0) + batch.record_count()

        def settle(future: asyncio.Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            # A batch that failed before it was drained has a second future with the same error,
            # which nobody else reads.
            drained = message._drain_waiter
            if drained.done() and not drained.cancelled():
                drained.exception()
            if acked.done():
                return
            if error is not None or future.cancelled():
                acked.set_exception(
                    Refused(
                        error
                        if isinstance(error, Exception)
                        else KafkaError("the producer gave up"),
                        sent=True,
                    )
                )
            elif (offset := future.result().offset) < 0:
                # DuplicateSequenceNumber without the batch's place: appended, nobody knows where.
                # Once more gives an offset.
                acked.set_exception(
                    Refused(KafkaError("acknowledged without an offset"), sent=True)
                )
            else:
                acked.set_result(offset)

        message.future.add_done_callback(settle)

    async def _learn(self, partition: TopicPartition) -> None:
        """Wait until the partition is in the metadata.

        Raises: ProducerAborted; Refused when the brokers do not know it, nothing was sent.
        """
        deadline_s = self._loop.time() + self._settings.request_timeout_s
        while not (self.is_aborted or self.is_draining):
            known = None
            try:
                async with asyncio.timeout(_LEARN_SLICE_S):
                    known = await self._producer.partitions_for(partition.topic)
            except TimeoutError:
                pass
            except KafkaError as error:
                raise Refused(error, sent=False) from error
            if known is not None:
                if partition.partition in known:
                    return
                self._producer.client.force_metadata_update()
                missing = UnknownTopicOrPartitionError(
                    f"topic {partition.topic} has no partition {partition.partition}"
                )
                raise Refused(missing, sent=False)
            if self._loop.time() > deadline_s:
                raise Refused(
                    UnknownTopicOrPartitionError(
                        f"topic {partition.topic} is not known to the brokers"
                    ),
                    sent=False,
                )
        raise ProducerAborted

    @property
    def needs_renewal(self) -> bool:
        """Whether the sequence number of a partition would soon wrap."""
        return any(sent >= self._settings.renew_records for sent in self._sent.values())

    @property
    def oldest_s(self) -> float | None:
        """When the oldest unanswered batch was handed over (loop time); None when all are
        answered."""
        return next(iter(self.outstanding.values()), None)

    async def topic_ids(self, topics: Iterable[str]) -> dict[str, bytes | None]:
        """As `metadata.topic_ids`."""
        return await topic_ids(self._producer.client, topics)

    def drain(self) -> None:
        """Take no further batch; those in flight are still answered."""
        self.is_draining = True

    def abort(self) -> None:
        """End it at once: nothing leaves any more, and all that wait get `ProducerAborted`.

        A second call does nothing.

        Connections are reset, not closed, so that what the kernel still holds is dropped too.
        """
        if self.is_aborted:
            return
        self.is_aborted = True
        client = self._producer.client
        client.send = _refuse
        for connection in list(client._conns.values()):
            writer = connection._writer
            if writer is not None:
                plain = writer.get_extra_info("socket")
                if plain is not None:
                    with contextlib.suppress(OSError):
                        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                writer.transport.abort()
            connection.close()
        for acked in list(self.outstanding):
            if not acked.done():
                acked.set_exception(ProducerAborted())

    async def close(self) -> None:
        """Release what an aborted session holds, within twice `stop_timeout_s`, whatever its state.

        Call it again if it was interrupted.
        """
        assert self.is_aborted, "only an aborted session is closed"
        # Whatever is still queued there got ProducerAborted: let nobody wait for it.
        self._accumulator._batches.clear()
        self._accumulator._pending_batches = _Forgetful()
        self._producer._closed = True
        for release in (self._producer.client.close, self._producer._sender.close):
            await end_in_own_task(release, within_s=self._settings.stop_timeout_s, what="producer")
            waiting = self._producer.client._md_update_fut
            if waiting is not None and not waiting.done():
                waiting.set_result(False)


class _Forgetful(set[Any]):
    """A set whose `remove` accepts missing items: aiokafka's tasks still remove their batches."""

    def remove(self, item: Any) -> None:
        self.discard(item)


async def _refuse(*_: object, **__: object) -> Any:
    # Not retriable, so that aiokafka gives up instead of trying again.
    raise KafkaError("this producer was retired")


async def send_record(
    connection: KafkaConnection,
    topic: str,
    *,
    key: bytes,
    value: bytes,
    request_timeout_s: float,
    within_s: float,
) -> int:
    """Write one record to partition 0 and return its offset.

    Raises: SinkUnavailable; the record may have been written all the same.
    """
    with listening() as tail:
        try:
            async with asyncio.timeout(within_s):
                producer = AIOKafkaProducer(
                    **connection.arguments(),
                    acks="all",
                    request_timeout_ms=int(request_timeout_s * 1000),
                )
                patch_client(producer.client)
                try:
                    await producer.start()
                    sent = await producer.send_and_wait(topic, value, key=key, partition=0)
                finally:
                    await producer.stop()
        except (KafkaError, OSError, TimeoutError) as error:
            raise unreachable(connection, error, tail.reason) from error
    return int(sent.offset)
