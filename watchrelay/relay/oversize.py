"""What becomes of an object that the topic does not take whole: published in part, counted, and named in the log.

Room: relay. In: objects about to be queued, and refusals of the sink. Out: what is published instead, with its hash. Source: WIRE 6.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from watchrelay.codec import Trimmed, content_hash
from watchrelay.errors import RecordTooLarge
from watchrelay.model.changes import Entry
from watchrelay.observe.metrics import TopicMetrics
from watchrelay.relay.sequencer import Lane, Queued
from watchrelay.relay.trim import less, packed_max, trim

log = logging.getLogger(__name__)


class Oversize:
    """The topic's limit, applied to one stream. Units: `max_message_bytes` is the topic's setting, which counts compressed batches."""

    def __init__(self, stream: str, *, unpack: Callable[[Entry], bytes], metrics: TopicMetrics, max_message_bytes: int) -> None:
        self.fits_bytes = packed_max(max_message_bytes)
        """An entry whose packed value is not larger is taken whole, without a further look."""
        self.parts: dict[bytes, int] = {}
        """Objects of which the broker took a part only, with its hash: the store holds them whole. What has another hash by now is another
        state; there are few, and they stay."""
        self._stream, self._unpack, self._metrics = stream, unpack, metrics

    def before_queueing(self, key: bytes, value: bytes | None, entry: Entry) -> tuple[bytes, Trimmed]:
        """What of the object is published. Shape: the entry's hash becomes that of it, so that all later differences start from it.

        What was refused before is said again as it stands in the log, also where the topic would take more by now.
        """
        whole = self._unpack(entry) if value is None else value
        if value is None and self.parts.get(key) == entry.hash and (said := _as_published(key, whole, entry.hash)) is not None:
            return said
        part, trimmed = trim(whole, self.fits_bytes)
        if trimmed or value is None:
            entry.hash = content_hash(key, part)
        if trimmed:
            self._say(key, trimmed, len(whole))
        return part, trimmed

    def refused(self, lane: Lane, error: RecordTooLarge) -> None:
        """The broker takes less than was thought: put the lane's cuts back, of which nothing is in the log, with less of that object.

        Raises: RecordTooLarge again when nothing is left to leave out.
        """
        cut = lane.outstanding
        assert cut is not None, "a refusal of a batch that is not outstanding"
        index = error.index - len(error.acked)
        item, record = cut.items[index], cut.records[index]
        step = None
        if isinstance(item, Queued) and item.verb != "deleted":
            value = self._unpack(item.entry) if item.value is None else item.value
            step = less(value, item.trimmed)
        if step is None:
            raise error
        part, trimmed = step
        lane.put_back()
        self.parts[record.key] = said = content_hash(record.key, part)
        lane.replace(index, part, said, trimmed)
        self._say(record.key, trimmed, len(value))

    def _say(self, key: bytes, trimmed: Trimmed, size_bytes: int) -> None:
        self._metrics.records_trimmed_total[trimmed].inc()
        extra = {"stream": self._stream, "object": key.decode(), "kept": trimmed, "bytes": size_bytes}
        log.warning("object too large, published in part", extra=extra)


def _as_published(key: bytes, whole: bytes, published: int) -> tuple[bytes, Trimmed] | None:
    """The part of the object that has this hash."""
    step: tuple[bytes, Trimmed] | None = (whole, "")
    while step is not None and content_hash(key, step[0]) != published:
        step = less(*step)
    return step
