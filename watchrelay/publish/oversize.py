"""What becomes of an object that the topic does not take whole: published in part, counted, and
named in the log.

Room: relay. In: objects about to be queued, and refusals of the sink. Out: what is published
instead, with its hash. Source: WIRE 6.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from watchrelay.contract.records import Trimmed, content_hash
from watchrelay.core import clock
from watchrelay.core.errors import RecordTooLarge
from watchrelay.core.text import short
from watchrelay.model.changes import Entry
from watchrelay.model.streams import StreamSpec
from watchrelay.observe.loglimit import LogLimit
from watchrelay.observe.metrics import TopicMetrics
from watchrelay.observe.status import StreamStatus
from watchrelay.publish.partition_queue import Lane, Queued, Sequencer
from watchrelay.publish.ports import StateView
from watchrelay.publish.trim import less, packed_max, trim
from watchrelay.publish.withholding import withhold

log = logging.getLogger(__name__)


LIMIT_EVERY_S: Final = 30.0
"""A record that must be written and does not fit the topic is tried again this often."""


class Oversize:
    """The topic's limit, applied to one stream. Units: `max_message_bytes` is the topic's setting,
    which counts compressed batches."""

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
        """An entry whose packed value is not larger is taken whole, without a further look."""
        self.parts: dict[bytes, int] = {}
        """Objects that are published in part, with the hash of that: the store holds them whole.
        What has another hash by now is another state."""
        self._spec, self._state, self._metrics, self._status, self._limit_again = (
            spec,
            state,
            metrics,
            status,
            limit_again,
        )
        self._said = LogLimit()
        self._waiting = set[int]()
        """Partitions whose next record does not fit."""

    def before_queueing(
        self, key: bytes, value: bytes | None, entry: Entry
    ) -> tuple[bytes, Trimmed]:
        """What of the object is published. Shape: the entry's hash becomes that of it, so that all
        later differences start from it.

        What was refused before is said again as it stands in the log, also where the topic would
        take more by now.
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
            self._say(key, trimmed, len(whole))
        return part, trimmed

    def refused(self, queues: Sequencer, lane: Lane, error: RecordTooLarge) -> bool:
        """The broker takes less than was thought: put the lane's cuts back, of which nothing is in
        the log, with less of that object, or without it where nothing is left to leave out.

        Returns: False where the record must be said as it is, so that it waits for a larger limit.
        """
        cut = lane.outstanding
        assert cut is not None, "a refusal of a batch that is not outstanding"
        index = error.index - len(error.acked)
        item, record = cut.items[index], cut.records[index]
        step, value = None, b""
        if isinstance(item, Queued) and item.verb != "deleted":
            value = self._state.unpack(item.entry) if item.value is None else item.value
            step = less(value, item.trimmed)
        if step is None:
            if not withhold(queues, lane, index):
                return False
            if isinstance(item, Queued) and (
                item.verb != "deleted" or item.reason == "healed" or item.key in queues.doubted
            ):
                self._say(record.key, "withheld", len(value), deleted=item.verb == "deleted")
            return True
        part, trimmed = step
        lane.put_back()
        self.parts[record.key] = said = content_hash(record.key, part)
        lane.replace(index, part, said, trimmed)
        self._say(record.key, trimmed, len(value))
        return True

    async def wait(self, queues: Sequencer, partition: int, error: RecordTooLarge) -> None:
        """A marker or a deletion does not fit the topic: its partition waits until the limit is
        raised. Returns after a while, with the limit read again."""
        if partition not in self._waiting:
            self._waiting.add(partition)
            extra = {
                "stream": self._spec.id,
                "topic": self._spec.topic,
                "partition": partition,
                "error": str(error),
            }
            log.error(
                "record does not fit max.message.bytes: its partition waits until the limit is "
                "raised",
                extra=extra,
            )
        message = (
            f"partition {partition} waits: {error}; raise max.message.bytes of topic "
            f"{self._spec.topic}"
        )
        self._status.not_acknowledged(message, person=True)
        await asyncio.sleep(LIMIT_EVERY_S)
        await self._read_limit(queues)

    async def before_snapshot(self, queues: Sequencer) -> None:
        """What is withheld or published in part may fit by now: go by the limit that the topic has
        now."""
        if self.parts or queues.unpublished:
            await self._read_limit(queues)

    async def _read_limit(self, queues: Sequencer) -> None:
        if (limit := await self._limit_again()) is not None:
            self.fits_bytes = queues.packed_max = packed_max(limit)

    def taken(self, partition: int) -> None:
        """The topic took records of `partition`."""
        if partition in self._waiting:
            self._waiting.remove(partition)
            if not self._waiting:
                self._status.acknowledged()

    def forget_gone(self) -> None:
        """Forget objects that the store does not hold any more."""
        for key in [key for key in self.parts if self._state.get(key) is None]:
            del self.parts[key]

    def _say(self, key: bytes, kept: str, size_bytes: int, *, deleted: bool = False) -> None:
        self._metrics.records_trimmed_total[kept].inc()
        name = short(key.decode())
        if count := self._said.due((name, kept), clock.now_s()):
            extra = {
                "stream": self._spec.id,
                "object": name,
                "kept": kept,
                "bytes": size_bytes,
                "count": count,
            }
            if deleted:
                log.error(
                    "key too large for the topic: its delete is not published, tables may keep a "
                    "stale record",
                    extra=extra,
                )
            elif kept == "withheld":
                log.error(
                    "object does not fit max.message.bytes even without its content: withheld",
                    extra=extra,
                )
            else:
                log.warning("object too large, published in part", extra=extra)


async def unread() -> None:
    """A limit that is never read again."""


def _as_published(key: bytes, whole: bytes, published: int) -> tuple[bytes, Trimmed] | None:
    """The part of the object that has this hash."""
    step: tuple[bytes, Trimmed] | None = (whole, "")
    while step is not None and content_hash(key, step[0]) != published:
        step = less(*step)
    return step
