"""A snapshot whose records were removed from the log is replaced by another one."""

from __future__ import annotations

import logging

from watchrelay.model.streams import StreamSpec
from watchrelay.publish.ports import GapReader
from watchrelay.publish.snapshots import SnapshotSchedule
from watchrelay.publish.stream_queues import StreamQueues

log = logging.getLogger(__name__)


def renew_lost(
    spec: StreamSpec,
    reader: GapReader | None,
    queues: StreamQueues,
    schedule: SnapshotSchedule,
    now_s: float,
) -> None:
    """Let a snapshot begin where the log of a partition starts after the begin of the newest one:
    objects that have not changed since may have no record. Called once a heartbeat."""
    for queue in queues.partitions:
        if reader is None or queue.last_snapshot is None:
            continue
        snapshot, begin = queue.last_snapshot
        start = reader.log_start(queue.partition)
        if start > begin and schedule.removed(now_s):
            extra = {
                "stream": spec.id,
                "topic": spec.topic,
                "partition": queue.partition,
                "log_start": start,
                "snapshot": snapshot,
                "begin": begin,
                "hint": "find out who deletes records, or whether retention is too short",
            }
            log.warning("records removed: publishing a snapshot", extra=extra)
            return
