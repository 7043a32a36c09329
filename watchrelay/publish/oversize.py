"""Objects that the topic does not accept whole: published in part or withheld, counted, and
logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from watchrelay.contract.records import Trimmed, content_hash
from watchrelay.contract.wire import Reason
from watchrelay.core import clock
from watchrelay.core.errors import RecordTooLarge
from watchrelay.core.text import short
from watchrelay.model.changes import Entry
from watchrelay.model.streams import StreamSpec
from watchrelay.observe.loglimit import LogLimit
from watchrelay.observe.metrics import TopicMetrics
from watchrelay.observe.status import StreamStatus
from watchrelay.publish.partition_queue import PartitionQueue, QueuedRecord, deletion, tombstone
from watchrelay.publish.ports import StateView
from watchrelay.publish.stream_queues import StreamQueues
from watchrelay.publish.trim import less, packed_max, trim

log = logging.getLogger(__name__)


LIMIT_EVERY_S: Final = 30.0
"""A record that cannot be left out and does not fit the topic is tried again this often."""
_LIVE: Final[frozenset[Reason]] = frozenset(("watch", "relist", "resume", "conflated"))


class Oversize:
    """Applies the topic's `max_message_bytes`, which counts compressed batches, to one stream."""

    def __init__(
        self,
        spec: StreamSpec,
        state: StateView,
        metrics: TopicMetrics,
        status: StreamStatus,
        *,
        max_message_bytes: int,
        limit_again: Callable[[], Awaitable[int | None]],
    ) -> None:
        self.fits_bytes = packed_max(max_message_bytes)
        """An entry whose packed value is not larger is published whole, without a check."""
        self.parts: dict[bytes, int] = {}
        """Objects that are published in part, with the hash of that part; the store holds them
        whole. With another hash it is another state."""
        self._spec, self._state, self._metrics, self._status, self._limit_again = (
            spec,
            state,
            metrics,
            status,
            limit_again,
        )
        self._log_limit = LogLimit()
        self._waiting = set[int]()
        """Partitions whose next record does not fit."""

    def before_queueing(
        self, key: bytes, value: bytes | None, entry: Entry
    ) -> tuple[bytes, Trimmed]:
        """The part of the object to publish; the entry's hash becomes that of the part, so that
        later differences start from it.

        What was refused before is published as it is on the log, also where the topic would accept
        more now.
        """
        whole = self._state.unpack(entry) if value is None else value
        published = (
            _as_published(key, whole, entry.hash)
            if value is None and self.parts.get(key) == entry.hash
            else None
        )
        part, trimmed = published or trim(whole, self.fits_bytes)
        if trimmed or value is None:
            entry.hash = content_hash(key, part)
        if trimmed:
            self.parts[key] = entry.hash
            self._report(key, trimmed, len(whole))
        return part, trimmed

    def refused(self, queues: StreamQueues, queue: PartitionQueue, error: RecordTooLarge) -> bool:
        """Queue the batches of `queue` again, nothing of which was appended, with less of the
        refused object, or without it where nothing can be left out.

        Returns: False where the record cannot be left out, so that it waits for a larger limit.
        """
        batch = queue.outstanding
        assert batch is not None, "a refusal of a batch that is not outstanding"
        index = error.index - len(error.acked)
        item, record = batch.items[index], batch.records[index]
        step, value = None, b""
        if isinstance(item, QueuedRecord) and item.verb != "deleted":
            value = self._state.unpack(item.entry) if item.value is None else item.value
            step = less(value, item.trimmed)
        if step is None:
            if not withhold(queues, queue, index):
                return False
            if isinstance(item, QueuedRecord) and (
                item.verb != "deleted" or item.reason == "healed" or item.key in queues.unverified
            ):
                self._report(record.key, "withheld", len(value), deleted=item.verb == "deleted")
            return True
        part, trimmed = step
        queue.put_back()
        self.parts[record.key] = value_hash = content_hash(record.key, part)
        queue.replace(index, part, value_hash, trimmed)
        self._report(record.key, trimmed, len(value))
        return True

    async def wait(self, queues: StreamQueues, partition: int, error: RecordTooLarge) -> None:
        """Wait because a marker or a deletion does not fit the topic. Returns after `LIMIT_EVERY_S`
        with the limit read again; the partition is blocked until it is raised."""
        if partition not in self._waiting:
            self._waiting.add(partition)
            extra = {
                "stream": self._spec.id,
                "topic": self._spec.topic,
                "partition": partition,
                "error": str(error),
            }
            log.error(
                "record exceeds max.message.bytes: partition blocked until the limit is raised",
                extra=extra,
            )
        message = (
            f"partition {partition} is blocked: {error}; raise max.message.bytes of topic "
            f"{self._spec.topic}"
        )
        self._status.not_acknowledged(message, person=True)
        await asyncio.sleep(LIMIT_EVERY_S)
        await self._read_limit(queues)

    async def before_snapshot(self, queues: StreamQueues) -> None:
        """Read the limit again where objects are withheld or published in part: they may fit
        now."""
        if self.parts or queues.unpublished:
            await self._read_limit(queues)

    async def _read_limit(self, queues: StreamQueues) -> None:
        if (limit := await self._limit_again()) is not None:
            self.fits_bytes = queues.packed_max = packed_max(limit)

    def taken(self, partition: int) -> None:
        """Note that the topic accepted records of `partition`."""
        if partition in self._waiting:
            self._waiting.remove(partition)
            if not self._waiting:
                self._status.acknowledged()

    def forget_gone(self) -> None:
        """Drop objects that the store does not hold any more."""
        for key in [key for key in self.parts if self._state.get(key) is None]:
            del self.parts[key]

    def _report(self, key: bytes, kept: str, size_bytes: int, *, deleted: bool = False) -> None:
        self._metrics.records_trimmed_total[kept].inc()
        name = short(key.decode())
        if count := self._log_limit.due((name, kept), clock.now_s()):
            extra = {
                "stream": self._spec.id,
                "object": name,
                "kept": kept,
                "bytes": size_bytes,
                "count": count,
            }
            if deleted:
                log.error(
                    "key too large for the topic: delete not published, consumers may keep a stale "
                    "record",
                    extra=extra,
                )
            elif kept == "withheld":
                log.error(
                    "object exceeds max.message.bytes even without its content: withheld",
                    extra=extra,
                )
            else:
                log.warning("object too large: published in part", extra=extra)


async def unread() -> None:
    """For a limit that cannot be read again."""


def _as_published(key: bytes, whole: bytes, published: int) -> tuple[bytes, Trimmed] | None:
    """The trimmed form of the object that has this hash."""
    step: tuple[bytes, Trimmed] | None = (whole, "")
    while step is not None and content_hash(key, step[0]) != published:
        step = less(*step)
    return step


def withhold(queues: StreamQueues, queue: PartitionQueue, index: int) -> bool:
    """Remove record `index` of the outstanding batch, of which nothing was appended; the other
    records are queued again.

    The log then holds nothing of the object, and count and digest agree: what it held before is
    deleted. The key counts as unpublished, so the object is "added" once a state of it fits, and
    each snapshot tries again.

    Returns: False, and nothing is changed, where the record cannot be left out: a marker, or the
        deletion of what the log holds.
    """
    batch = queue.outstanding
    assert batch is not None, "no batch is outstanding"
    item = batch.items[index]
    if not isinstance(item, QueuedRecord) or (item.verb == "deleted" and item.before is not None):
        return False
    queue.put_back()
    del queue.waiting[index]
    queues.held_bytes -= item.held_bytes
    queues.held_records -= 1
    queues.object_records -= 1
    if item.verb != "deleted":
        _forget(queues, queue, index, item)
        if item.before is not None:
            _delete(queues, queue, index, item)
    return True


def _forget(queues: StreamQueues, queue: PartitionQueue, index: int, item: QueuedRecord) -> None:
    """Adjust the next queued record of this key: the log does not hold the object."""
    for later in list(queue.waiting)[index:]:
        if isinstance(later, QueuedRecord) and later.key == item.key:
            if later.before == item.value_hash:
                later.before = None
                if later.verb != "deleted" and item.key not in queues.unverified:
                    later.verb = "added"
            return
    dirty_key = None if queue.dirty is None else queue.dirty.get(item.key)
    if dirty_key is None:
        queues.unpublished.add(item.key)
    elif dirty_key.hash == item.value_hash:
        dirty_key.hash = None


def _delete(queues: StreamQueues, queue: PartitionQueue, index: int, item: QueuedRecord) -> None:
    """Queue the deletion of what the log holds of the object, in the place of its new state."""
    reason: Reason = item.reason if item.reason in _LIVE else "conflated"
    key, entry, version, time_ms = item.key, item.entry, item.version, item.time_ms
    records = [deletion(key, entry, reason, item.before, version, time_ms, item.received_s)]
    if queues.tombstones:
        records.append(tombstone(key, entry, reason, version, time_ms))
    for place, each in enumerate(records):
        queue.waiting.insert(index + place, each)
    queues.held_bytes += sum(each.held_bytes for each in records)
    queues.held_records += len(records)
    queues.object_records += len(records)
