"""What the relay tells of its work: metrics, status, and the log line of a snapshot.

Room: relay. In: acknowledged cuts, the queues, complete snapshots. Out: counters and gauges of the
stream and its topic, its row on the board.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

from watchrelay.core.timestamps import parse_timestamp, rfc3339
from watchrelay.observe.metrics import StreamMetrics, TopicMetrics
from watchrelay.observe.status import StreamStatus
from watchrelay.publish.conflation import Conflator
from watchrelay.publish.partition_queue import Cut
from watchrelay.publish.snapshots import Snapshot

log = logging.getLogger(__name__)

SAY_EVERY_S = 60.0
"""A queue that is over its bound again and again is a line in the log this often."""


class Accounts:
    """The accounts of one stream; counts per batch, never per event."""

    def __init__(
        self,
        metrics: StreamMetrics,
        topic: TopicMetrics,
        status: StreamStatus,
        *,
        snapshot_interval_s: float,
    ) -> None:
        self._metrics, self._topic, self._status = metrics, topic, status
        metrics.snapshot_interval_seconds.set(snapshot_interval_s)
        self._overload: tuple[float, int] | None = None
        """When the overload that was said began, and how many states have been skipped since."""
        self._say_again_s = float("-inf")

    def acked(self, cut: Cut, queues: Conflator, now_s: float) -> None:
        """Count an acknowledged batch; `queues` no longer hold it. Units: monotonic seconds."""
        topic = self._topic
        for kind, count in cut.kinds().items():
            if count:
                topic.records_acked_total[kind].inc(count)
        topic.record_bytes_total.inc(cut.payload_bytes)
        slowest_s = self._metrics.relay_lag.observe_batch(cut.received_s(), now_s)
        if (
            slowest_s is None
            and self._status.lag_ms
            and queues.empty
            and len(cut.markers) == len(cut.records)
        ):
            # heartbeats alone, and nothing waits: the lag of the last event is over
            slowest_s = 0.0
        self._status.acked(lag_s=slowest_s, rest=not queues.empty)

    def queued(self, queues: Conflator, now_s: float) -> None:
        """Show what is queued. Units: monotonic seconds."""
        dirty, skipped = queues.dirty_keys, queues.take_skipped()
        metrics = self._metrics
        metrics.queue_records.set(queues.held_records)
        metrics.queue_bytes.set(queues.held_bytes)
        metrics.queue_dirty_keys.set(dirty)
        self._status.queues(
            records=queues.held_records, size_bytes=queues.held_bytes, dirty_keys=dirty
        )
        if skipped:
            metrics.events_conflated_total.inc(skipped)
        if self._overload is not None:
            began_s, count = self._overload
            self._overload = (began_s, count + skipped)
            if not queues.conflating:
                self._overload = None
                extra = {
                    "stream": self._status.stream,
                    "took_s": round(now_s - began_s, 3),
                    "states_skipped": count + skipped,
                }
                log.info(
                    "overload is over: the present state of each object is queued", extra=extra
                )

    def overflown(self, queues: Conflator, now_s: float) -> None:
        """A partition is past its bound. Units: monotonic seconds."""
        if self._overload is None and now_s >= self._say_again_s:
            self._overload, self._say_again_s = (now_s, 0), now_s + SAY_EVERY_S
            extra = {"stream": self._status.stream, "queued_bytes": queues.held_bytes}
            log.warning(
                "kafka takes less than is watched: states in between are skipped, last ones are "
                "not",
                extra=extra,
            )

    def resumed(self, index: Mapping[str, object], *, now_ms: int) -> None:
        """Show a former writer's last snapshot.

        Args:
            index: Its index record; empty: there is none.
            now_ms: Wall milliseconds.
        """
        ended = index.get("time")
        self._status.last_snapshot = str(ended) if "time" in index else None
        with suppress(ValueError):
            # its clock may be ahead of ours
            ended_ms = min(parse_timestamp(str(ended).encode()), now_ms)
            self._metrics.snapshot_last_success_timestamp_seconds.set(ended_ms / 1000)

    def concluded(self, snapshot: Snapshot, *, live: int, took_s: float, now_ms: int) -> None:
        """Tell of a snapshot whose index record is written. Units: `now_ms` wall milliseconds;
        `live` objects held."""
        metrics, stream = self._metrics, self._status.stream
        self._status.last_snapshot = rfc3339(now_ms)
        metrics.snapshot_running.set(0)
        metrics.snapshot_objects.set(live)
        metrics.snapshot_duration_seconds.set(took_s)
        metrics.snapshot_last_success_timestamp_seconds.set(now_ms / 1000)
        log.info(
            "snapshot complete",
            extra={
                "stream": stream,
                "snapshot": snapshot.id,
                "said": snapshot.objects,
                "took_s": round(took_s, 3),
            },
        )
