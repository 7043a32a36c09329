"""Reads topics once from their last complete snapshots to their ends, and audits them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from watchrelay.consumer.audit import Audit, AuditProblem
from watchrelay.consumer.changes import Problems
from watchrelay.consumer.connecting import (
    STOP_TIMEOUT_S,
    make_consumer,
    silent,
    start_consumer,
    unreadable,
)
from watchrelay.consumer.errors import NothingPublished
from watchrelay.consumer.locate import Finder, within
from watchrelay.contract.records import decode
from watchrelay.core.errors import RecordRefused, SinkUnavailable
from watchrelay.core.text import counted
from watchrelay.kafka.client import KafkaError, TopicPartition
from watchrelay.kafka.client.consumer import stop_consumer
from watchrelay.kafka.client.failures import plain_words, servers_text, what_to_check
from watchrelay.kafka.reader import fetch, offset_ranges, read_ranges

_PARTITION_FETCH_BYTES = 1 << 20
_FETCH_WAIT_MS = 50
"""A fetch that waits for records holds up whatever is asked behind it on its connection."""
_FETCH_BYTES = 8 << 20
"""Little at a time: what was just unpacked is still in the processor's cache when it is checked."""


@dataclass(slots=True)
class _Log:
    """One partition: its audits, where it is read and where it ended when the reading began."""

    start: int
    end: int
    by_stream: dict[str, Audit]
    before: int = -1
    foreign: dict[str, tuple[int, int]] = field(default_factory=dict)
    """What is wrong -> (first offset, how often)."""


class Auditor:
    """Use: `async with Auditor(...) as auditor`, then `read_to_end()`; later `read_on()` as long as
    there is a reason to."""

    def __init__(
        self,
        arguments: Mapping[str, Any],
        *,
        control_topic: str,
        streams: Sequence[str] = (),
        bare: bool = False,
    ) -> None:
        fetch = {
            "fetch_max_bytes": _FETCH_BYTES,
            "max_partition_fetch_bytes": _PARTITION_FETCH_BYTES,
            "fetch_max_wait_ms": _FETCH_WAIT_MS,
        }
        self._arguments = {**arguments, **fetch}
        self._control, self._streams = control_topic, frozenset(streams)
        self._bare = bare
        self._logs: dict[TopicPartition, _Log] = {}
        self._consumer: Any = None
        self.missing: dict[str, str] = {}
        """By stream, why not all of its partitions can be read."""

    async def __aenter__(self) -> Self:
        """Connect. Raises: SinkUnavailable."""
        self._consumer = make_consumer(self._arguments)
        await start_consumer(self._consumer, self._arguments, check=what_to_check)
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop_consumer(self._consumer, within_s=STOP_TIMEOUT_S)

    async def read_to_end(self) -> None:
        """Read every partition of the streams to the end that it has now; `missing` has those that
        are not there.

        Raises: NothingPublished if none is there; SinkUnavailable.
        """
        try:
            await self._find()
            ranges = {place: (log.start, log.end) for place, log in self._logs.items()}
            await read_ranges(self._consumer, ranges, self._take)
        except TimeoutError as error:
            raise silent(self._arguments, error) from None
        except KafkaError as error:
            raise SinkUnavailable(f"kafka does not let us read: {unreadable(error)}") from error

    async def read_on(self, stream: str) -> None:
        """Read what came to the partitions of `stream` since, for half a second at most."""
        try:
            places = [place for place, log in self._logs.items() if stream in log.by_stream]
            for place, messages in (await fetch(self._consumer, places)).items():
                self._take(place, messages)
        except KafkaError as error:
            raise SinkUnavailable(f"kafka stopped answering: {plain_words(error)}") from error

    async def rows(self) -> list[tuple[Audit, int, int]]:
        """All audits, finished, with the offsets between which they read (the second is the next
        one's), by stream and partition."""
        self._share_out()
        rows: list[tuple[Audit, int, int]] = []
        for place, log in self._logs.items():
            to = await self._consumer.position(place)
            for audit in log.by_stream.values():
                audit.finish()
                rows.append((audit, max(log.start, audit.start), to))
        return sorted(rows, key=lambda row: (row[0].stream, row[0].topic, row[0].partition))

    def of(self, stream: str) -> list[Audit]:
        """The audits of one stream."""
        return [log.by_stream[stream] for log in self._logs.values() if stream in log.by_stream]

    @property
    def streams(self) -> list[str]:
        """The streams that are read."""
        return sorted({stream for log in self._logs.values() for stream in log.by_stream})

    async def _find(self) -> None:
        finder = Finder(
            self._consumer,
            control_topic=self._control,
            topics=(),
            streams=self._streams,
            problems=Problems(),
            servers=servers_text(self._arguments),
        )
        if problem := await finder.look():
            raise NothingPublished(problem)
        described = finder.described() or {}
        places = await finder.places(frozenset())
        self.missing = dict(finder.missing)
        if self.missing and not places:
            raise NothingPublished("; ".join(self.missing.values()))
        offsets = await offset_ranges(self._consumer, places)
        for place, origins in sorted(places.items()):
            audits = {
                stream: Audit(
                    stream,
                    *place,
                    origin=origin,
                    partitions=described[stream].partitions,
                    bare=self._bare,
                )
                for stream, origin in within(origins, offsets[place][1]).items()
            }
            begin, end = offsets[place]
            start = max(begin, min(audit.start for audit in audits.values()))
            self._logs[place] = _Log(start, end, audits)

    def _take(self, place: TopicPartition, messages: Sequence[Any]) -> None:
        log = self._logs[place]
        before, by_stream = log.before, log.by_stream
        for message in messages:
            offset, headers = message.offset, message.headers
            try:
                record = decode(message.key, message.value, headers)
            except RecordRefused as error:
                first, count = log.foreign.get(str(error), (offset, 0))
                log.foreign[str(error)] = (first, count + 1)
            else:
                audit = by_stream.get(record.stream)
                if audit is not None and offset >= audit.start:
                    audit.take(offset, before, record, headers)
            before = offset
        log.before = before

    def _share_out(self) -> None:
        """A problem of a partition is reported for the first of its streams; keys that two of them
        have, of the later one."""
        for log in self._logs.values():
            audits = [log.by_stream[stream] for stream in sorted(log.by_stream)]
            for detail, (first, count) in log.foreign.items():
                why = f"{counted(count, 'record')}: {detail}"
                audits[0].add(AuditProblem("foreign", first, None, why))
            log.foreign.clear()
            for index, audit in enumerate(audits):
                for other in audits[:index]:
                    for key in sorted(audit.state.held.keys() & other.state.held.keys()):
                        named = key.decode(errors="replace")
                        why = f"stream {other.stream} has this key too"
                        audit.add(AuditProblem("overlap", None, named, why))
