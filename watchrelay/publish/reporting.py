"""Metrics, status and log lines of one stream's writer."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from watchrelay.core.timestamps import parse_timestamp, rfc3339
from watchrelay.model.streams import StreamSpec
from watchrelay.observe.status import NOTHING_QUEUED, Queued
from watchrelay.publish.partition_queue import RenderedBatch
from watchrelay.publish.ports import WriterContext
from watchrelay.publish.snapshots import Snapshot
from watchrelay.publish.stream_queues import StreamQueues

log = logging.getLogger(__name__)

LOG_EVERY_S = 60.0
"""Queues that are over their bound repeatedly are logged at most this often."""


class PublishReporter:
    """Reports the work of one writer; counts per batch, never per event."""

    def __init__(self, spec: StreamSpec, context: WriterContext) -> None:
        self._stream, self._context, self._metrics = spec.id, context, context.metrics
        context.metrics.snapshot_interval_seconds.set(spec.snapshot_interval_s)
        context.metrics.queue_capacity_bytes.set(context.queue_bytes)
        self._overload: tuple[float, int] | None = None
        """When the logged overload began, and the states skipped since."""
        self._next_log_at_s = float("-inf")

    def claimed(self, epoch: int) -> None:
        """Show the epoch that was opened."""
        self._context.status.epoch = epoch
        self._metrics.stream_epoch.set(epoch)

    @contextmanager
    def showing_queues(self, queues: StreamQueues) -> Iterator[None]:
        """Show what is queued. After the block, what was not sent is no longer queued."""
        self._show_queued(queues)
        try:
            yield
        finally:
            self._show_queued(NOTHING_QUEUED)
            self._metrics.snapshot_running.set(0)

    def _show_queued(self, queued: Queued) -> None:
        metrics, self._context.status.queues = self._metrics, queued
        metrics.queue_records.set_function(lambda: queued.queued_records)
        metrics.queue_bytes.set_function(lambda: queued.queued_bytes)
        metrics.queue_dirty_keys.set_function(lambda: queued.dirty_keys)

    @contextmanager
    def showing_age(self, queues: StreamQueues) -> Iterator[None]:
        """Show how old is what consumers have. After the block it grows older, and the queues are
        not kept for that."""
        wall_ms = self._context.wall_ms
        self._metrics.show_age(lambda: _age_s(queues.oldest_seen_ms, wall_ms()))
        try:
            yield
        finally:
            oldest_ms = queues.oldest_seen_ms
            self._metrics.show_last_age(lambda: _age_s(oldest_ms, wall_ms()))

    def acked(self, batch: RenderedBatch, queues: StreamQueues, now_s: float) -> None:
        """Count an acknowledged batch, which was removed from `queues`. `now_s` is monotonic."""
        topic_metrics, status = self._context.topic_metrics, self._context.status
        for kind, count in batch.kinds.items():
            if count:
                topic_metrics.records_acked_total[kind].inc(count)
        topic_metrics.record_bytes_total.inc(batch.payload_bytes)
        slowest_s = self._metrics.relay_lag.observe_batch(batch.received_at_s, now_s)
        # markers alone, and nothing left: the stream is idle, so the lag shown falls back to 0
        only_markers = len(batch.markers) == len(batch.records) and queues.empty
        status.acked(lag_s=slowest_s, idle=only_markers)
        if batch.markers and batch.markers[-1].marker.kind != "claim":
            status.frontier = queues.frontier
        if self._context.progress.next_acked is not None:
            self._context.progress.acked()

    def skipped(self, queues: StreamQueues, now_s: float) -> None:
        """Count the states that were skipped, and log that an overload ended. Called unless
        `queues.skipped` is None. `now_s` is monotonic."""
        skipped = queues.take_skipped()
        self._metrics.events_conflated_total.inc(skipped)
        if self._overload is not None:
            began_at_s, count = self._overload
            self._overload = (began_at_s, count + skipped)
            if not queues.conflating:
                self._overload = None
                extra = {
                    "stream": self._stream,
                    "took_s": round(now_s - began_at_s, 3),
                    "states_skipped": count + skipped,
                }
                log.info("overload ended: the present state of each object is queued", extra=extra)

    def partition_conflated(self, queues: StreamQueues, now_s: float) -> None:
        """Log that an overload began, at most once in `LOG_EVERY_S`. `now_s` is monotonic."""
        if self._overload is None and now_s >= self._next_log_at_s:
            self._overload, self._next_log_at_s = (now_s, 0), now_s + LOG_EVERY_S
            extra = {"stream": self._stream, "queued_bytes": queues.queued_bytes}
            log.warning("queue full; conflating intermediate states", extra=extra)

    def resumed(self, queues: StreamQueues, index: Mapping[str, object], *, now_ms: int) -> None:
        """Show the frontier and last snapshot of a previous writer. `index`: its index record, {}
        for none; `now_ms`: wall milliseconds."""
        self._context.status.frontier = queues.frontier
        ended = index.get("time")
        self._context.status.last_snapshot = str(ended) if "time" in index else None
        with suppress(ValueError):
            # its clock may be ahead of ours
            ended_ms = min(parse_timestamp(str(ended).encode()), now_ms)
            self._metrics.snapshot_last_success_timestamp_seconds.set(ended_ms / 1000)
            self._metrics.snapshot_age_seconds.restart(ago_s=(now_ms - ended_ms) / 1000)

    def snapshot_started(self, snapshot: Snapshot, *, objects: int) -> None:
        """Report a snapshot whose begin is queued. `objects`: those held."""
        self._metrics.snapshot_running.set(1)
        extra = {"stream": self._stream, "snapshot": snapshot.id, "objects": objects}
        log.info("snapshot started", extra=extra)

    def snapshot_abandoned(self, snapshot: Snapshot) -> None:
        """Report a snapshot that is not continued."""
        self._metrics.snapshot_running.set(0)
        extra = {"stream": self._stream, "snapshot": snapshot.id}
        log.info("snapshot abandoned: queue full", extra=extra)

    def snapshot_completed(
        self, snapshot: Snapshot, *, objects: int, took_s: float, now_ms: int
    ) -> None:
        """Report a snapshot whose index record is written. `objects`: those held."""
        metrics, stream = self._metrics, self._stream
        self._context.status.last_snapshot = rfc3339(now_ms)
        metrics.snapshot_running.set(0)
        metrics.snapshot_objects.set(objects)
        metrics.snapshot_duration_seconds.set(took_s)
        metrics.snapshot_last_success_timestamp_seconds.set(now_ms / 1000)
        metrics.snapshot_age_seconds.restart()
        log.info(
            "snapshot complete",
            extra={
                "stream": stream,
                "snapshot": snapshot.id,
                "members": snapshot.members,
                "took_s": round(took_s, 3),
            },
        )


def _age_s(seen_ms: int | None, now_ms: int) -> float | None:
    return None if seen_ms is None else max(now_ms - seen_ms, 0) / 1000
