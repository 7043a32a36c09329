"""Objects that the topic does not accept whole: published in part or withheld, counted, and
logged."""

from __future__ import annotations

import asyncio
import logging

from watchrelay.contract.records import Trimmed, content_hash
from watchrelay.core import clock
from watchrelay.core.errors import RecordTooLarge
from watchrelay.core.text import short
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.model.changes import Entry
from watchrelay.model.streams import StreamSpec
from watchrelay.observe.loglimit import LogLimit
from watchrelay.publish.partition_queue import PartitionQueue, QueuedRecord
from watchrelay.publish.ports import WriterContext
from watchrelay.publish.stream_queues import Fitting, StreamQueues
from watchrelay.publish.trim import next_smaller, packed_max, trim

log = logging.getLogger(__name__)

REREAD_EVERY_S = 30.0
"""A record that cannot be left out and does not fit the topic is tried again this often."""


class Oversize:
    """Applies the limit of the topic to one stream."""

    def __init__(self, spec: StreamSpec, context: WriterContext) -> None:
        self.fitting = Fitting(packed_max(context.max_message_bytes), self._fit)
        self._spec, self._context = spec, context
        self._log_limit = LogLimit()
        self._blocked_partitions = set[int]()
        """Partitions whose next record does not fit."""

    def _fit(
        self, key: bytes, value: bytes | None, entry: Entry, form_hash: int | None
    ) -> tuple[bytes, Trimmed]:
        """The form of an object to publish (`Fit`): one that the log has is repeated, also where
        the topic would accept more now."""
        whole = self._context.store.unpack(entry) if value is None else value
        known = None if form_hash is None else _as_published(key, whole, form_hash)
        form, trimmed = known or trim(whole, self.fitting.packed_max)
        if trimmed:
            self._context.store.published_in_part(entry)
            self._report(key, trimmed, len(whole))
        return form, trimmed

    def shrink_or_withhold(self, queues: StreamQueues, queue: PartitionQueue, index: int) -> bool:
        """Replace the object in the queued record `index`, which the topic refused, by a smaller
        form of it, or withhold it where there is none.

        Returns: False where the record cannot be withheld either, so that it waits for a larger
            limit: a marker, or a deletion that the log needs.
        """
        item = queue.waiting[index]
        if not isinstance(item, QueuedRecord):
            return False
        deleted, value = item.verb == "deleted", item.value or b""
        if not deleted:
            self._context.store.published_in_part(item.entry)
            value = value or self._context.store.unpack(item.entry)
            if (smaller := next_smaller(value, item.trimmed)) is not None:
                queues.replace_value(queue, index, *smaller)
                self._report(item.key, smaller[1], len(value))
                return True
        if not queues.withhold(queue, index):
            return False
        # a delete that cannot be sent is a loss only where the log may hold its key: where it is a
        # repair, or the log is not verified
        if not deleted or item.reason == "healed" or item.key in queues.unverified_keys:
            self._report(item.key, "withheld", len(value), deleted=deleted)
        return True

    async def wait(self, partition: int, error: RecordTooLarge) -> None:
        """Wait because a marker or a deletion does not fit the topic, so that the partition is
        blocked until the limit is raised. Returns after `REREAD_EVERY_S`, with the limit read
        again."""
        topic = self._spec.topic
        if partition not in self._blocked_partitions:
            self._blocked_partitions.add(partition)
            log.error(
                "record too large for the topic: partition blocked until its limit is raised",
                extra={
                    "stream": self._spec.id,
                    "topic": topic,
                    "partition": partition,
                    "setting": error.setting,
                    "error": str(error),
                },
            )
        cure = f"raise {error.setting} of topic {topic}"
        message = f"partition {partition} is blocked: {error}; {cure}"
        trouble = Trouble(topic, Cause.TOPIC_UNUSABLE, message, cure, operator=True)
        self._context.status.failed("size", trouble)
        await asyncio.sleep(REREAD_EVERY_S)
        await self._read_limit()

    async def before_snapshot(self, queues: StreamQueues) -> None:
        """Read the limit again where objects are withheld or published in part: the snapshot adds
        what was withheld and fits now; the next state of what was trimmed may come whole."""
        if queues.trimmed_hashes or queues.trimmed_before or queues.withheld:
            await self._read_limit()

    async def _read_limit(self) -> None:
        if (limit := await self._context.reread_limit()) is not None:
            self.fitting.packed_max = packed_max(limit)

    def accepted(self, partition: int) -> None:
        """Note that the topic accepted records of `partition`."""
        if partition in self._blocked_partitions:
            self._blocked_partitions.remove(partition)
            if not self._blocked_partitions:
                self._context.status.recovered("size")

    def ended(self) -> None:
        """The writer's tasks have ended: no partition is blocked."""
        if self._blocked_partitions:
            self._blocked_partitions.clear()
            self._context.status.recovered("size")

    def _report(self, key: bytes, how: str, size_bytes: int, *, deleted: bool = False) -> None:
        self._context.topic_metrics.records_trimmed_total[how].inc()
        name = short(key.decode())
        if not (count := self._log_limit.due((name, how), clock.now_s())):
            return
        extra = {
            "stream": self._spec.id,
            "object": name,
            "how": how,
            "bytes": size_bytes,
            "count": count,
        }
        if deleted:
            log.error(
                "key too large for the topic: delete not published, consumers may keep the object",
                extra=extra,
            )
        elif how == "withheld":
            log.error(
                "object too large for the topic even without its content: withheld", extra=extra
            )
        else:
            log.warning("object too large: published in part", extra=extra)


def _as_published(key: bytes, whole: bytes, form_hash: int) -> tuple[bytes, Trimmed] | None:
    """The form of the object, whole or trimmed, that has this hash; None: no form has it."""
    smaller: tuple[bytes, Trimmed] | None = (whole, "")
    while smaller is not None and content_hash(key, smaller[0]) != form_hash:
        smaller = next_smaller(*smaller)
    return smaller
