"""Reads topics once from their last complete snapshots to their ends, and audits them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from watchrelay.consumer.audit import Audit, AuditProblem, Bare
from watchrelay.consumer.changes import Problem, ReadProblems
from watchrelay.consumer.errors import NothingPublished
from watchrelay.consumer.locate import Finder, within
from watchrelay.contract.control import VALUE_BYTES_MAX
from watchrelay.contract.records import decode
from watchrelay.core.errors import RecordRefused
from watchrelay.core.text import counted
from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.cursor import Cursor
from watchrelay.kafka.reading import COMMITTED, Reading, offset_ranges, open_reading

_FETCHING: dict[str, Any] = {
    **COMMITTED,
    # little at a time: what was just unpacked is still in the processor's cache when it is checked
    "fetch_max_bytes": 8 << 20,
    "max_partition_fetch_bytes": 1 << 20,
    # a fetch that waits for records holds up whatever is asked after it on its connection
    "fetch_max_wait_ms": 50,
}


@dataclass(slots=True)
class _Log:
    """One partition: its audits, and where it was begun."""

    start: int
    by_stream: dict[str, Audit]
    previous_offset: int = -1
    hole: int = -1
    """The newest offset directly before which there is no record."""
    foreign: ReadProblems = field(default_factory=ReadProblems)


class Auditor:
    """Use: `async with open_auditor(...) as auditor`, then `read_to_end()`; later `read_on()` as
    long as there is a reason to."""

    def __init__(
        self,
        reading: Reading,
        *,
        control_topic: str,
        streams: Sequence[str],
        bare: Callable[[str], Bare | None],
    ) -> None:
        self._reading, self._bare = reading, bare
        self._control, self._streams = control_topic, frozenset(streams)
        self._logs: dict[TopicPartition, _Log] = {}
        self.missing: dict[str, str] = {}
        """By stream, why not all of its partitions can be read."""

    async def read_to_end(self) -> None:
        """Read every partition of the streams to the end that it has now; `missing` has those that
        are not there. Raises: NothingPublished if none is there."""
        self._reading.assign(await self._find())
        await self._reading.read_to_end(self._take)
        await self._look_for_transactions()

    async def read_on(self, stream: str) -> None:
        """Read what came to the partitions of `stream` since, for half a second at most."""
        places = [place for place, log in self._logs.items() if stream in log.by_stream]
        await self._reading.step(self._take, places)

    async def _look_for_transactions(self) -> None:
        """Where one is open, read on until it has ended, or is held against the partition."""
        while not (held := self._reading.held_back()):
            if not self._reading.transactions.any_open:
                return
            await self._reading.step(self._take)
        for place, error in held.items():
            for audit in self._logs[place].by_stream.values():
                audit.add(AuditProblem("transaction", None, None, str(error)))

    def rows(self) -> list[tuple[Audit, int, int]]:
        """All audits, finished, with the first offset read and the one after the last."""
        self._share_out()
        rows: list[tuple[Audit, int, int]] = []
        for place, log in self._logs.items():
            to = self._reading.cursors[place].next
            for audit in log.by_stream.values():
                audit.finish()
                rows.append((audit, max(log.start, audit.start), to))
        return sorted(rows, key=lambda row: (row[0].stream, row[0].topic, row[0].partition))

    def of(self, stream: str) -> list[Audit]:
        return [log.by_stream[stream] for log in self._logs.values() if stream in log.by_stream]

    @property
    def streams(self) -> list[str]:
        return sorted({stream for log in self._logs.values() for stream in log.by_stream})

    async def _find(self) -> dict[TopicPartition, Cursor]:
        finder = Finder(
            self._reading.consumer,
            control_topic=self._control,
            topics=(),
            streams=self._streams,
            servers=self._reading.servers,
        )
        if problem := await finder.look():
            raise NothingPublished(problem)
        described = finder.described() or {}
        places = await finder.places(frozenset())
        self.missing = dict(finder.missing)
        if self.missing and not places:
            raise NothingPublished("; ".join(self.missing.values()))
        offsets = await offset_ranges(self._reading.consumer, places)
        cursors: dict[TopicPartition, Cursor] = {}
        for place, origins in sorted(places.items()):
            audits = {
                stream: Audit(
                    stream,
                    *place,
                    origin=origin,
                    partitions=described[stream].partitions,
                    bare=self._bare(stream),
                )
                for stream, origin in within(origins, offsets[place][1]).items()
            }
            begin, end = offsets[place]
            start = max(begin, min(audit.start for audit in audits.values()))
            self._logs[place] = _Log(start, audits)
            cursors[place] = Cursor(start, end)
        return cursors

    def _take(self, place: TopicPartition, messages: Sequence[Any]) -> None:
        log = self._logs[place]
        by_stream = log.by_stream
        for message in messages:
            offset, headers = message.offset, message.headers
            if log.previous_offset != offset - 1:
                log.hole = offset
            log.previous_offset = offset
            try:
                record = decode(message.key, message.value, headers)
            except RecordRefused as error:
                log.foreign.add(
                    Problem("foreign", place.topic, place.partition, offset, str(error))
                )
            else:
                audit = by_stream.get(record.stream)
                if audit is not None and offset >= audit.start:
                    audit.take(offset, log.hole, record, headers)
                    if audit.newest_marker is record:
                        audit.newest_stamp = message.timestamp, message.timestamp_type

    def _share_out(self) -> None:
        """A problem of a partition is reported for its first stream; a key of two streams,
        for the later."""
        for log in self._logs.values():
            audits = [log.by_stream[stream] for stream in sorted(log.by_stream)]
            for each in log.foreign.all():
                why = f"{counted(each.count, 'record')}: {each.detail}"
                audits[0].add(AuditProblem("foreign", each.offset, None, why))
            log.foreign = ReadProblems()
            for index, audit in enumerate(audits):
                for other in audits[:index]:
                    for key in sorted(audit.state.held.keys() & other.state.held.keys()):
                        named = key.decode(errors="replace")
                        why = f"stream {other.stream} has this key too"
                        audit.add(AuditProblem("overlap", None, named, why))


@asynccontextmanager
async def open_auditor(
    connection: KafkaConnection,
    *,
    control_topic: str,
    streams: Sequence[str] = (),
    bare: Callable[[str], Bare | None] = lambda _stream: None,
) -> AsyncIterator[Auditor]:
    """An auditor of these streams, or of all. Raises SinkUnavailable for each error of Kafka in the
    block.

    Args:
        bare: that of `Audit`, by stream."""
    limits = {control_topic: VALUE_BYTES_MAX}
    async with open_reading(connection, limits, **_FETCHING) as reading:
        yield Auditor(reading, control_topic=control_topic, streams=streams, bare=bare)
