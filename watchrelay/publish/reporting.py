"""Metrics, status and log lines of one stream's writer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

from watchrelay.core.timestamps import parse_timestamp, rfc3339
from watchrelay.model.progress import StreamProgress
from watchrelay.model.streams import StreamSpec
from watchrelay.observe.metrics import StreamMetrics, TopicMetrics
from watchrelay.observe.status import StreamStatus
from watchrelay.publish.partition_queue import RenderedBatch
from watchrelay.publish.snapshots import Snapshot
from watchrelay.publish.stream_queues import StreamQueues

log = logging.getLogger(__name__)

LOG_EVERY_S = 60.0
"""Queues that are over their bound repeatedly are logged at most this often."""


class PublishReporter:
    """Reports the work of one writer; counts per batch, never per event."""

    def __init__(
        self,
        spec: StreamSpec,
        metrics: StreamMetrics,
        topic_metrics: TopicMetrics,
        status: StreamStatus,
        progress: StreamProgress,
    ) -> None:
        self._stream, self._status, self._progress = spec.id, status, progress
        self._metrics, self._topic_metrics = metrics, topic_metrics
        metrics.snapshot_interval_seconds.set(spec.snapshot_interval_s)
        self._overload: tuple[float, int] | None = None
        """When the logged overload began, and the states skipped since."""
        self._next_log_at_s = float("-inf")

    def acked(self, batch: RenderedBatch, queues: StreamQueues, now_s: float) -> None:
        """Count an acknowledged batch, which was removed from `queues`. `now_s` is monotonic."""
        topic_metrics = self._topic_metrics
        for kind, count in batch.kinds().items():
            if count:
                topic_metrics.records_acked_total[kind].inc(count)
        topic_metrics.record_bytes_total.inc(batch.payload_bytes)
        slowest_s = self._metrics.relay_lag.observe_batch(batch.received_at_s(), now_s)
        # markers alone, and nothing left: the stream is idle, so the lag shown falls back to 0
        only_markers = len(batch.markers) == len(batch.records) and queues.empty
        self._status.acked(lag_s=slowest_s, rest=not queues.empty, idle=only_markers)
        if self._progress.next_acked is not None:
            self._progress.acked()

    def queued(self, queues: StreamQueues, now_s: float) -> None:
        """Update the queue metrics and status. `now_s` is monotonic."""
        dirty, skipped = queues.dirty_keys, queues.take_skipped()
        metrics = self._metrics
        metrics.queue_records.set(queues.queued_records)
        metrics.queue_bytes.set(queues.queued_bytes)
        metrics.queue_dirty_keys.set(dirty)
        self._status.queues(
            records=queues.queued_records, size_bytes=queues.queued_bytes, dirty_keys=dirty
        )
        if skipped:
            metrics.events_conflated_total.inc(skipped)
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

    def ended(self) -> None:
        """Report that the writer's tasks ended: what they have not sent is no longer queued."""
        metrics = self._metrics
        for gauge in (metrics.queue_records, metrics.queue_bytes, metrics.queue_dirty_keys):
            gauge.set(0)
        metrics.snapshot_running.set(0)
        self._status.queues(records=0, size_bytes=0, dirty_keys=0)

    def partition_conflated(self, queues: StreamQueues, now_s: float) -> None:
        """Log that an overload began, at most once in `LOG_EVERY_S`. `now_s` is monotonic."""
        if self._overload is None and now_s >= self._next_log_at_s:
            self._overload, self._next_log_at_s = (now_s, 0), now_s + LOG_EVERY_S
            extra = {"stream": self._stream, "queued_bytes": queues.queued_bytes}
            log.warning("queue full; conflating intermediate states", extra=extra)

    def resumed(self, index: Mapping[str, object], *, now_ms: int) -> None:
        """Show the last snapshot of a previous writer. `index`: its index record, {} for none;
        `now_ms`: wall milliseconds."""
        ended = index.get("time")
        self._status.last_snapshot = str(ended) if "time" in index else None
        with suppress(ValueError):
            # its clock may be ahead of ours
            ended_ms = min(parse_timestamp(str(ended).encode()), now_ms)
            self._metrics.snapshot_last_success_timestamp_seconds.set(ended_ms / 1000)
            self._metrics.snapshot_age_seconds.restart(ago_s=(now_ms - ended_ms) / 1000)

    def snapshot_completed(
        self, snapshot: Snapshot, *, objects: int, took_s: float, now_ms: int
    ) -> None:
        """Report a snapshot whose index record is written. `objects`: those held."""
        metrics, stream = self._metrics, self._stream
        self._status.last_snapshot = rfc3339(now_ms)
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
