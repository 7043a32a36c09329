"""Reads a stream's own log back, from its starting point to its claim, into the store."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Protocol

from watchrelay.contract.records import Decoded, MarkerRecord, decode
from watchrelay.core import clock
from watchrelay.core.errors import (
    EpochAhead,
    EpochSpoiled,
    ForeignRecords,
    RecordRefused,
    Shared,
    SinkUnavailable,
)
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.log_scan import no_epoch_left, other_cluster, shared_topic
from watchrelay.kafka.range_reader import OffsetRange, RangeReader
from watchrelay.kafka.sink import KafkaSink
from watchrelay.kafka.topic_reads import TopicReads
from watchrelay.model.streams import StreamSpec
from watchrelay.publish.recovery import (
    FirstSnapshot,
    LogRecovery,
    ReadAgainFromStart,
    RecoveredState,
    decide,
    interleaved,
    lowest_frontier,
    recovered_state,
)
from watchrelay.publish.writer import StreamWriter
from watchrelay.store.objects import Store

log = logging.getLogger(__name__)

Failed = Callable[[SinkUnavailable, float], None]


class Reads(Protocol):
    """The part of `LogReader` that a resume needs."""

    async def spans(
        self, spans: Sequence[OffsetRange], take: Callable[[int, list[Decoded]], None]
    ) -> set[int]: ...


class LogReader:
    """Reads one stream's records of its topic. Implements the writer's `GapReader`."""

    def __init__(
        self,
        spec: StreamSpec,
        connection: KafkaConnection,
        sink: KafkaSink,
        *,
        failed: Failed,
        succeeded: Callable[[], None] = lambda: None,
        reads: TopicReads | None = None,
    ) -> None:
        """`failed` is called after each failed attempt, `succeeded` when all is read.
        `reads` reads the spans of a resume, together with those of other streams; `read` waits
        for none."""
        self._spec, self._connection, self._sink = spec, connection, sink
        self._stream = spec.stream
        self._failed, self._succeeded = failed, succeeded
        self._reads = reads or TopicReads(connection)
        self.refused = 0

    def unacknowledged_ranges(self, partition: int, start: int, stop: int) -> list[tuple[int, int]]:
        """The ranges of offsets in [start, stop) that no acknowledgement of this process covers."""
        return self._sink.unacknowledged_ranges(self._spec.topic, partition, start, stop)

    async def read(
        self,
        ranges: Mapping[int, Sequence[tuple[int, int]]],
        take: Callable[[int, int, Decoded], None],
    ) -> None:
        """Hand over this stream's records in `ranges`, which are in order; one consumer reads each
        partition from its first range to its last one."""

        def decoded(partition: int, records: Sequence[Any]) -> None:
            wanted = ranges[partition]
            for record in records:
                start, _ = wanted[bisect_right(wanted, record.offset, key=itemgetter(1))]
                if start <= record.offset and (each := self.understood(record)) is not None:
                    take(partition, record.offset, each)

        spans = [OffsetRange(each, of[0][0], of[-1][1]) for each, of in ranges.items()]
        reading = RangeReader(
            self._connection, self._spec.topic, spans, decoded, failed=self._failed
        )
        await reading.run()
        self._succeeded()

    async def spans(
        self, spans: Sequence[OffsetRange], take: Callable[[int, list[Decoded]], None]
    ) -> set[int]:
        """Hand the stream's records over, batch by batch; the partitions that were read
        from their start."""

        def decoded(partition: int, records: Sequence[Any]) -> None:
            take(
                partition,
                [each for record in records if (each := self.understood(record)) is not None],
            )

        topic, stream = self._spec.topic, self._stream
        whole = await self._reads.read(topic, stream, spans, decoded, self._failed)
        self._succeeded()
        return whole

    def understood(self, record: Any) -> Decoded | None:
        """The record, if it is one of this stream and follows the contract.

        Raises: Shared for a marker that the same stream of another cluster put there."""
        try:
            content = decode(record.key, record.value, record.headers)
        except RecordRefused as error:
            if not self.refused:
                extra = {
                    "stream": self._spec.id,
                    "topic": self._spec.topic,
                    "partition": record.partition,
                    "offset": record.offset,
                    "error": str(error),
                }
                log.warning("skipping records that do not follow the record contract", extra=extra)
            self.refused += 1
            return None
        if content.stream != self._stream:
            return None
        if type(content) is MarkerRecord and (
            other := other_cluster(record.headers, self._spec.cluster)
        ):
            why = shared_topic(self._spec.topic, other, self._spec.cluster)
            raise Shared(f"stream {self._spec.id}: {why}")
        return content


def log_recovery(spec: StreamSpec, partition: int, store: Store) -> LogRecovery:
    """Of one partition of the stream, into entries of `store`."""
    return LogRecovery(spec.stream, partition, partitions=spec.partitions, pack=store.pack)


class LogFold:
    """One stream's log as far as it was read, recovered in pieces into entries of `store`."""

    def __init__(self, spec: StreamSpec, store: Store) -> None:
        self.recoveries = {
            partition: log_recovery(spec, partition, store) for partition in spec.own_partitions
        }
        self.spec, self.store = spec, store
        self.records = 0
        self._lowest = "0"

    @property
    def outdated(self) -> bool:
        """What was read keeps the watch from going on; read from a newer snapshot, it may not."""
        return any(
            each.api_server_restored or not each.versions_comparable
            for each in self.recoveries.values()
        )

    def take(self, partition: int, records: list[Decoded]) -> None:
        """Apply the next records of a partition. What no watch can show again is forgotten, so that
        a log that is followed for weeks costs its live objects."""
        self.records += len(records)
        self.recoveries[partition].apply(records)
        recoveries = list(self.recoveries.values())
        self.store.loading([recovery.entries for recovery in recoveries])
        lowest = lowest_frontier(recoveries)
        if lowest != self._lowest:
            self._lowest = lowest
            for recovery in recoveries:
                recovery.forget_deleted(lowest)


async def resume(
    spec: StreamSpec,
    writer: StreamWriter,
    store: Store,
    reader: Reads,
    epoch: int,
    *,
    followed: LogFold | None = None,
    recreated: bool = False,
    foreign: bool = False,
) -> RecoveredState:
    """Read back, fill `store`, tell `writer`; what was found decides how the watch begins.
    `recreated` and `foreign` as for `decide`. `followed`, of this store, was read up to our claim
    already; where it does not match its digests, everything is read back.

    Raises: EpochAhead, or ForeignRecords where no epoch is left: there are records of a higher
    epoch. EpochSpoiled: there are more records of this epoch than its claim."""
    began_s, places = clock.now_s(), writer.to_read
    # of a followed log nothing is read again in part: `decide` is to answer FirstSnapshot where it
    # would else answer ReadAgainFromStart, and below everything is read back
    whole: Collection[int] = spec.own_partitions
    fold = followed or LogFold(spec, store)
    if followed is None:
        # Where our claim is the very first record there is nothing to read: a new topic costs no
        # consumer.
        spans = [
            OffsetRange(partition, start, stop + 1 if stop else 0)
            for partition, (start, stop) in places.items()
        ]
        whole = await reader.spans(spans, fold.take)
    recoveries = fold.recoveries
    decided = partial(
        decide,
        config=spec.config_hash,
        recreated=recreated,
        foreign=foreign,
        bookmarks=spec.plan.bookmarks,
    )
    decision = decided(list(recoveries.values()), from_start=whole)
    if followed is not None and isinstance(decision, FirstSnapshot):
        log.info("followed log does not verify, reading it back", extra={"stream": spec.id})
        return await resume(
            spec, writer, store, reader, epoch, recreated=recreated, foreign=foreign
        )
    if isinstance(decision, ReadAgainFromStart):
        log.warning(
            "log does not verify from its last snapshot on, reading it from its start",
            extra={"stream": spec.id},
        )
        for partition in decision.partitions:
            recoveries[partition] = log_recovery(spec, partition, store)
        await reader.spans(
            [
                OffsetRange(partition, None, places[partition][1] + 1)
                for partition in decision.partitions
            ],
            fold.take,
        )
        decision = decided(list(recoveries.values()), from_start=recoveries)
    fresh = isinstance(decision, FirstSnapshot) and not decision.log_unverified
    if isinstance(decision, FirstSnapshot) and decision.log_unverified:
        extra = {"stream": spec.id, "topic": spec.topic, "reason": decision.reason}
        log.warning("verification failed; relisting and publishing a snapshot", extra=extra)
    highest = max((recovery.highest_epoch for recovery in recoveries.values()), default=0)
    if highest > epoch:
        if why := no_epoch_left(spec.topic, spec.id, highest):
            raise ForeignRecords(why)
        raise EpochAhead(spec.id, highest, epoch)
    for recovery in recoveries.values():
        epoch_read, last = recovery.state.epoch, recovery.state.last
        if epoch_read == epoch and (last > 1 or recovery.claimed_epoch < epoch):
            raise EpochSpoiled(spec.id, recovery.partition, epoch, last)
    result = recovered_state(list(recoveries.values()), decision)
    if fresh:
        store.loading(())
    else:
        store.resume(
            interleaved(result.entries),
            skip=result.deleted_versions,
            newest=result.newest_on_log,
            frontiers=dict(zip(recoveries, result.frontiers, strict=False)),
        )
    writer.resume(result)
    log.info(
        "log read back",
        extra={
            "stream": spec.id,
            "records": fold.records,
            "followed": followed is not None,
            "objects": len(store),
            "then": type(decision).__name__,
            "reason": getattr(decision, "reason", ""),
            "frontier": getattr(decision, "frontier", ""),
            "stale": len(result.pending_repairs),
            "took_s": round(clock.now_s() - began_s, 3),
        },
    )
    for state in result.entries:
        state.clear()
    return result
