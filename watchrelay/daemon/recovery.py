"""Reads a stream's own log back, from its starting point to its claim, into the store."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Protocol

from watchrelay.contract.records import (
    Decoded,
    Foreign,
    LogRecord,
    MarkerRecord,
    ObjectRecord,
    OtherCluster,
    decode,
    foreign_of,
)
from watchrelay.contract.state import misfit
from watchrelay.core import clock
from watchrelay.core.errors import (
    EpochAhead,
    EpochSpoiled,
    ForeignRecords,
    RecordRefused,
    Shared,
    SinkUnavailable,
)
from watchrelay.core.text import short
from watchrelay.core.turns import Turns
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.log_scan import no_epoch_left, other_cluster, shared_topic
from watchrelay.kafka.range_reader import OffsetRange, RangeReader
from watchrelay.kafka.sink import KafkaSink
from watchrelay.kafka.topic_reads import TopicReads
from watchrelay.model.streams import StreamSpec
from watchrelay.plan.described import keys_described
from watchrelay.publish.recovery import (
    Decision,
    FirstSnapshot,
    ListAndDiff,
    LogRecovery,
    ReadAgainFromStart,
    RecoveredState,
    WatchFrom,
    decide,
    interleaved,
    lowest_frontier,
    recovered_state,
    remove_strays,
)
from watchrelay.publish.writer import StreamWriter
from watchrelay.store.objects import Store

log = logging.getLogger(__name__)

Failed = Callable[[SinkUnavailable, float], None]


class Acknowledged(Protocol):
    """The part of `LogReader` that tells what this process wrote."""

    def unacknowledged_ranges(self, partition: int, start: int, stop: int) -> list[tuple[int, int]]:
        """See `GapReader`."""
        ...


class OwnLog(Acknowledged, Protocol):
    """The part of `LogReader` that a resume needs."""

    async def spans(
        self, spans: Sequence[OffsetRange], take: Callable[[int, list[LogRecord]], None]
    ) -> set[int]: ...

    def owns(self, key: bytes) -> bool:
        """See `GapReader`."""
        ...


class Descriptions(Protocol):
    """The part of the control topic that tells whose a key is."""

    def described(self, stream: str) -> Mapping[str, object] | None: ...
    def described_streams(self) -> Mapping[str, Mapping[str, object]]: ...


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
        control: Descriptions | None = None,
    ) -> None:
        """`failed` is called after each failed attempt, `succeeded` when all is read.
        `reads` reads the spans of a resume, together with those of other streams; `read` waits
        for none."""
        self._spec, self._connection, self._sink = spec, connection, sink
        self._stream, self._keys, self._control = spec.stream, spec.keys, control
        self._failed, self._succeeded = failed, succeeded
        self._reads = reads or TopicReads(connection)
        self.refused = 0
        self._writers: set[str] = set()
        """The other streams of which `between` has met a marker."""
        self._reported: set[str] = set()

    def unacknowledged_ranges(self, partition: int, start: int, stop: int) -> list[tuple[int, int]]:
        """The ranges of offsets in [start, stop) that no acknowledgement of this process covers."""
        return self._sink.unacknowledged_ranges(self._spec.topic, partition, start, stop)

    def log_start(self, partition: int) -> int:
        """See `GapReader`."""
        return self._sink.log_start(self._spec.topic, partition)

    def owns(self, key: bytes) -> bool:
        """See `GapReader`: one that its objects can have, or that has its prefix and can be of no
        other stream on the topic."""
        keys, control = self._keys, self._control
        if not key.startswith(keys.prefix):
            return False
        if keys.has(key) or control is None:
            return True
        return not any(
            keys_described(each).has(key)
            for stream, each in control.described_streams().items()
            if stream != self._stream and each.get("topic") == self._spec.topic
        )

    async def read(
        self,
        ranges: Mapping[int, Sequence[tuple[int, int]]],
        take: Callable[[int, int, LogRecord], None],
    ) -> None:
        """See `GapReader`; one consumer reads each partition from its first range to its last
        one."""

        def decoded(partition: int, records: Sequence[Any]) -> None:
            wanted = ranges[partition]
            for record in records:
                # the first range that ends after the record
                start, _ = wanted[bisect_right(wanted, record.offset, key=itemgetter(1))]
                if start <= record.offset and (each := self.between(record)) is not None:
                    take(partition, record.offset, each)

        spans = [OffsetRange(each, of[0][0], of[-1][1]) for each, of in ranges.items()]
        reading = RangeReader(
            self._connection, self._spec.topic, spans, decoded, failed=self._failed
        )
        await reading.run()
        self._succeeded()

    async def spans(
        self, spans: Sequence[OffsetRange], take: Callable[[int, list[LogRecord]], None]
    ) -> set[int]:
        """Hand the stream's records over, batch by batch; the partitions that were read
        from their start."""

        def decoded(partition: int, records: Sequence[Any]) -> None:
            take(
                partition,
                [each for record in records if (each := self.understood(record)) is not None],
            )

        topic, stream = self._spec.topic, self._stream
        whole = await self._reads.read(topic, stream, spans, decoded, self._failed, keys=self._keys)
        self._succeeded()
        return whole

    def understood(self, record: Any) -> LogRecord | None:
        """What a record of the log says of this stream: its content where it is of this stream and
        follows the contract, else what it may hide (`Foreign`); None: nothing."""
        content = self._content(record)
        if not isinstance(content, Decoded) or content.stream == self._stream:
            return content
        return self._hiding(record, content)

    def between(self, record: Any) -> LogRecord | None:
        """As `understood`, of a record between two of the writer's own. Where a writer that this
        control topic does not know has the same keys, what it hides is reported, and not returned:
        that writer would repair each repair in turn."""
        content = self._content(record)
        if not isinstance(content, Decoded) or content.stream == self._stream:
            return content
        if isinstance(content, MarkerRecord):
            self._writers.add(content.stream)
            return None
        hiding = self._hiding(record, content)
        if hiding is None or content.stream not in self._writers or self._knows(content.stream):
            return hiding
        self._report(content)
        return None

    def _content(self, record: Any) -> LogRecord | None:
        """What a record says, of any stream; or what it may hide, if it does not follow the
        contract."""
        try:
            content = decode(record.key, record.value, record.headers)
        except RecordRefused as error:
            if not self.refused:
                extra = {
                    "stream": self._spec.id,
                    "topic": self._spec.topic,
                    "partition": record.partition,
                    "offset": record.offset,
                    "key": short((record.key or b"").decode(errors="replace")),
                    "error": str(error),
                }
                log.warning("skipping records that do not follow the record contract", extra=extra)
            self.refused += 1
            return foreign_of(record.key, record.headers, self._stream)
        if type(content) is MarkerRecord and content.stream == self._stream and not content.retires:
            cluster = self._spec.cluster
            if other := other_cluster(record.headers, cluster):
                why = shared_topic(self._spec.topic, self._stream, other, cluster)
                return OtherCluster(content.epoch, content.sequence, why)
        return content

    def _hiding(self, record: Any, content: Decoded) -> Foreign | None:
        """What a record of another stream hides of this one."""
        if isinstance(content, MarkerRecord) or not self._keys.has(content.key):
            return None
        return foreign_of(content.key, record.headers, self._stream)

    def _knows(self, stream: str) -> bool:
        described = None if self._control is None else self._control.described(stream)
        return described is not None and described.get("topic") == self._spec.topic

    def _report(self, content: ObjectRecord) -> None:
        if content.stream not in self._reported:
            self._reported.add(content.stream)
            extra = {
                "stream": self._spec.id,
                "topic": self._spec.topic,
                "other": short(content.stream),
                "key": short(content.key.decode(errors="replace")),
                "hint": "give one of the two streams another topic",
            }
            log.error("another relay writes the same keys to the topic", extra=extra)


class LogFold:
    """One stream's log as far as it was read, recovered in pieces into entries of `store`."""

    def __init__(self, spec: StreamSpec, store: Store) -> None:
        self.spec, self.store = spec, store
        self.recoveries: dict[int, LogRecovery] = {}
        self.begin_again(spec.own_partitions)
        self.records = 0
        self._lowest = "0"

    @property
    def outdated(self) -> bool:
        """What was read keeps the watch from going on; read from a newer snapshot, it may not."""
        return any(
            each.versions.api_server_restored or not each.versions.comparable
            for each in self.recoveries.values()
        )

    def begin_again(self, partitions: Iterable[int]) -> None:
        """Forget what was read of these partitions."""
        stream, all_of_it, pack = self.spec.stream, self.spec.partitions, self.store.pack_logged
        for each in partitions:
            self.recoveries[each] = LogRecovery(stream, each, partitions=all_of_it, pack=pack)

    def take(self, partition: int, records: Sequence[LogRecord]) -> None:
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


async def _leave_to_others(fold: LogFold, owns: Callable[[bytes], bool]) -> bool:
    """Take what is under keys of other streams out of what was read. Nothing is published for
    them: it would hide the objects of those streams. Whether one was held: only a snapshot tells
    readers that it is not of this stream."""
    held, turns = False, Turns()
    for recovery in fold.recoveries.values():
        for key in [*recovery.to_repair, *recovery.tail.keys]:
            if not owns(key):
                held = recovery.leave(key) or held
            await turns.pause()
    return held


async def _misfit_of(fold: LogFold) -> str:
    """Why a value after the newest markers is not the object of its key, "" for none. JSON is
    decoded only here: what is before a marker that agrees, a writer had taken from the server."""
    prefix = fold.spec.key_prefix
    turns = Turns()
    for partition, recovery in fold.recoveries.items():
        for key in list(recovery.tail.keys):
            if (entry := recovery.entries.get(key)) is None:
                continue
            why = misfit(
                key, prefix, fold.store.unpack(entry), uid=entry.uid, version=entry.resource_version
            )
            if why:
                return f"partition {partition}, key {short(key.decode(errors='replace'))}: {why}"
            await turns.pause()
    return ""


def _check_epochs(spec: StreamSpec, recoveries: Sequence[LogRecovery], epoch: int) -> None:
    """Raises: as `resume`, unless the log has no record of a higher epoch than our claim, and of
    this `epoch` its claim marker alone."""
    highest = max((recovery.writers.highest_epoch for recovery in recoveries), default=0)
    if highest > epoch:
        if why := no_epoch_left(spec.topic, spec.id, highest):
            raise ForeignRecords(why)
        if shared := next((each.writers.shared for each in recoveries if each.writers.shared), ""):
            raise Shared(f"stream {spec.id}: {shared}")
        raise EpochAhead(spec.id, highest, epoch)
    for recovery in recoveries:
        writers = recovery.writers
        # the claim before is that of the last writer: the other cluster wrote after it
        if writers.shared and writers.shared_epoch >= writers.claimed_before:
            raise Shared(f"stream {spec.id}: {writers.shared}")
        # of our epoch there may be nothing but our claim marker, with the sequence 1
        epoch_read, last = recovery.state.epoch, recovery.state.last
        if epoch_read == epoch and (last > 1 or writers.claimed < epoch):
            raise EpochSpoiled(spec.id, recovery.partition, epoch, last)


def left_to_read(
    reader: Acknowledged, partition: int, start: int | None, claim: int, empty_before: int | None
) -> OffsetRange:
    """What of a partition, from `start` to our claim marker at `claim`, may hold more of the stream
    than that marker. Nothing where it is the very first record: a new topic costs no consumer.

    If no record before `empty_before` names the stream, none that this process has written since
    does, but perhaps the marker of a claim that was cancelled: a writer that it had of these
    partitions has ended, or had written its claim marker before the topic was read."""
    if start is None and empty_before is not None and empty_before <= claim:
        others = reader.unacknowledged_ranges(partition, empty_before, claim + 1)
        start, claim = (others[0][0], claim) if others else (0, 0)
    return OffsetRange(partition, start, claim + 1 if claim else 0)


async def _recovered(recoveries: Sequence[LogRecovery], decision: Decision) -> RecoveredState:
    turns = Turns()
    for _ in remove_strays(recoveries):
        await turns.pause()
    return recovered_state(recoveries, decision)


def _fill(store: Store, result: RecoveredState, partitions: Iterable[int]) -> None:
    """Let `store` hold what was recovered of these `partitions`; nothing where nothing was
    published before."""
    decision = result.decision
    if isinstance(decision, FirstSnapshot) and not decision.log_unverified:
        store.loading(())
        return
    by_what_counts = isinstance(decision, WatchFrom) or (
        isinstance(decision, ListAndDiff) and not (decision.config_changed or decision.doubted)
    )
    store.resume(
        interleaved(result.entries),
        skip=result.deleted_versions,
        newest=result.newest_on_log,
        # none, unless they differ
        frontiers=dict(zip(partitions, result.frontiers, strict=False)),
        in_full=not by_what_counts,
    )


async def resume(
    spec: StreamSpec,
    writer: StreamWriter,
    store: Store,
    reader: OwnLog,
    epoch: int,
    *,
    followed: LogFold | None = None,
    empty_before: Mapping[int, int] = MappingProxyType({}),
    recreated: bool = False,
    foreign: bool = False,
) -> RecoveredState:
    """Read back, fill `store`, tell `writer`; what was found decides how the watch begins.
    `recreated` and `foreign` as for `decide`. `followed`, of this store, was read up to our claim
    already; where it does not match its digests, everything is read back. `empty_before`: by
    partition, the offset before which no record names the stream, as far as that is known.

    Raises: EpochAhead, or ForeignRecords where no epoch is left: there are records of a higher
    epoch. EpochSpoiled: there are more records of this epoch than its claim, or not even that."""
    began_s, places = clock.now_s(), writer.to_read
    fold = followed or LogFold(spec, store)
    if followed is None:
        spans = [
            left_to_read(reader, partition, start, stop, empty_before.get(partition))
            for partition, (start, stop) in places.items()
        ]
        from_start: Collection[int] = await reader.spans(spans, fold.take)
    else:
        # of a followed log no partition is read again by itself: `decide` is to answer
        # FirstSnapshot in place of ReadAgainFromStart, and below everything is read back
        from_start = spec.own_partitions
    recoveries = fold.recoveries
    others = await _leave_to_others(fold, reader.owns)
    wrong = await _misfit_of(fold)
    decided = partial(
        decide,
        config=spec.config_hash,
        recreated=recreated,
        foreign=foreign,
        wrong=wrong,
        bookmarks=spec.plan.bookmarks,
    )
    decision = decided(list(recoveries.values()), from_start=from_start, others=others)
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
        fold.begin_again(decision.partitions)
        whole = [OffsetRange(each, None, places[each][1] + 1) for each in decision.partitions]
        await reader.spans(whole, fold.take)
        others = await _leave_to_others(fold, reader.owns) or others
        decision = decided(list(recoveries.values()), from_start=recoveries, others=others)
    if isinstance(decision, FirstSnapshot) and decision.log_unverified:
        extra = {"stream": spec.id, "topic": spec.topic, "reason": decision.reason}
        log.warning("verification failed; relisting and publishing a snapshot", extra=extra)
    _check_epochs(spec, list(recoveries.values()), epoch)
    result = await _recovered(list(recoveries.values()), decision)
    _fill(store, result, recoveries)
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
