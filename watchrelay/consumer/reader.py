"""Reads topics in order of arrival, decoded, for people and scripts that look on.

The control topic describes the streams and their topics, so no API server is needed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from watchrelay.consumer.errors import NothingPublished
from watchrelay.consumer.locate import Finder
from watchrelay.contract.control import VALUE_BYTES_MAX
from watchrelay.contract.records import Decoded, decode
from watchrelay.core.errors import RecordRefused
from watchrelay.core.timestamps import parse_timestamp
from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.cursor import Cursor
from watchrelay.kafka.reading import (
    COMMITTED,
    SILENT_AFTER_S,
    Reading,
    offset_ranges,
    open_reading,
)

Place = TypeVar("Place")
Item = TypeVar("Item")

LOOK_AGAIN_S = 1.0
_AT_ONCE = 2_000
_AT_LEAST = 20
"""Records of one fetch: of each partition that much is held while the past is put in order."""
_MERGE_WAIT_S = 2.0
"""How long the past of all partitions waits for one of which nothing comes."""
_FETCH_WAIT_MS = 50
"""A fetch that waits for live records holds up those of the past on its connection."""


@dataclass(frozen=True, slots=True)
class TailRecord:
    """One record on a topic; `record` None: `refused` has why. `source` is its ce_source."""

    topic: str
    partition: int
    offset: int
    record: Decoded | None
    refused: str = ""
    source: str = ""


class Attached(NamedTuple):
    """A topic that is read, the streams wanted of it, and by partition the first offset."""

    topic: str
    streams: tuple[str, ...]
    offsets: Mapping[int, int]

    def __str__(self) -> str:
        return (
            f"{self.topic}: stream {', '.join(self.streams)}, from "
            f"{' '.join(f'{partition}@{offset}' for partition, offset in self.offsets.items())}"
        )


class Merge(Generic[Place, Item]):
    """Holds what was read of each partition, in its order, until nothing older can come."""

    def __init__(self) -> None:
        self._waiting: dict[Place, deque[tuple[float, int, Item]]] = {}
        self._added = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, place: object) -> bool:
        return place in self._waiting

    def add(self, place: Place, items: Iterable[tuple[float, Item]]) -> None:
        """More of one partition, each with its time in milliseconds since 1970."""
        for time_ms, item in items:
            self._added += 1
            self._waiting.setdefault(place, deque()).append((time_ms, self._added, item))

    def take(self, unfinished: Collection[Place]) -> list[Item]:
        """What comes next in order of time, until something of a partition in `unfinished` is
        missing."""
        taken: list[Item] = []
        if any(place not in self._waiting for place in unfinished):
            return taken
        heads = [(queue[0][:2], place) for place, queue in self._waiting.items()]
        heapify(heads)
        while heads:
            place = heads[0][1]
            queue = self._waiting[place]
            taken.append(queue.popleft()[2])
            if queue:
                heapreplace(heads, (queue[0][:2], place))
                continue
            heappop(heads)
            del self._waiting[place]
            if place in unfinished:
                break
        return taken


class TailReader:
    """Reads the topics of some streams (all: none named) without a group, without commits; what is
    aborted is not shown.

    What was there before comes in order of time over all partitions; what comes live, as it is
    read. `awaited` tells of a stream that is not described yet whether it is worth waiting for.
    `attached` gets the partitions that are taken in, with the offset of the first record read.
    Use: `async for batch in TailReader(...).batches()`; close the generator when leaving early
    (`contextlib.aclosing`)."""

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        control_topic: str,
        streams: Sequence[str] = (),
        from_beginning: bool = False,
        until_end: bool = False,
        waiting: Callable[[str], None] = lambda _: None,
        awaited: Callable[[str], bool] = lambda _: True,
        attached: Callable[[Sequence[Attached]], None] = lambda _: None,
        silent_after_s: float = SILENT_AFTER_S,
    ) -> None:
        wait = {"fetch_max_wait_ms": _FETCH_WAIT_MS} if from_beginning else {}
        self._connection, self._fetching = connection, {**COMMITTED, **wait}
        self._silent_after_s = silent_after_s
        self._control = TopicPartition(control_topic, 0)
        self._limits = {control_topic: VALUE_BYTES_MAX}
        self._streams = frozenset(streams)
        self._from_beginning, self._until_end = from_beginning, until_end
        self._waiting, self._awaited, self._attached = waiting, awaited, attached
        self._look_at_s = 0.0
        self._finder = Finder(
            None,
            control_topic=control_topic,
            topics=(),
            streams=self._streams,
            servers=connection.servers,
        )

    async def batches(self) -> AsyncGenerator[list[TailRecord], None]:
        """The records as they come, some at a time; ends only with `until_end`.

        Raises: SinkUnavailable; NothingPublished where waiting would never end: with
        `until_end`, or for a stream that is not awaited."""
        silent_after_s = self._silent_after_s if self._until_end else inf
        async with open_reading(
            self._connection, self._limits, silent_after_s=silent_after_s, **self._fetching
        ) as reading:
            self._finder.consumer = reading.consumer
            await self._find(reading)
            now_s = asyncio.get_running_loop().time
            merge, late, newest_s = (
                Merge[TopicPartition, TailRecord](),
                set[TopicPartition](),
                now_s(),
            )
            while merge or reading.behind or not self._until_end:
                missing = [
                    place for place in reading.behind if place not in late and place not in merge
                ]
                fetched = await self._fetch(
                    reading, merge, [*missing, *late] if missing else [*reading.cursors]
                )
                late -= fetched
                if fetched:
                    newest_s = now_s()
                elif now_s() - newest_s > _MERGE_WAIT_S:
                    late.update(missing)  # they hold up the others no longer
                if not self._until_end:
                    for held in reading.held_back().values() if not fetched else ():
                        self._waiting(str(held))
                    if now_s() >= self._look_at_s:
                        await self._extend(reading, from_beginning=True)
                if seen := merge.take({*reading.behind} - late):
                    yield seen  # noqa: ASYNC119  # callers close the generator, by `aclosing`

    async def _fetch(
        self,
        reading: Reading,
        merge: Merge[TopicPartition, TailRecord],
        places: Collection[TopicPartition],
    ) -> set[TopicPartition]:
        """Read some more of `places`; of which of them something came."""
        at_once = max(_AT_ONCE // (len(reading.behind) or 1), _AT_LEAST)
        fetched = await reading.fetch(dict.fromkeys([*places, self._control]), max_records=at_once)
        if self._finder.learn(fetched.pop(self._control, ())):
            self._look_at_s = 0.0
        for place, messages in fetched.items():
            end = reading.cursors[place].end if self._until_end else None
            looked = (self._look(message, end) for message in messages)
            merge.add(place, (timed for timed in looked if timed is not None))
        reading.move()
        return set(fetched)

    async def _find(self, reading: Reading) -> None:
        """Wait until the streams are described on the control topic, then go to the first
        offsets."""
        finder = self._finder
        while problem := await finder.look():
            strange = [
                stream
                for stream in sorted(self._streams - (finder.described() or {}).keys())
                if not self._awaited(stream)
            ]
            if strange:
                problem += f"; the config has no stream {', '.join(strange)} either"
            if strange or self._until_end:
                raise NothingPublished(problem)
            self._waiting(problem)
            await asyncio.sleep(LOOK_AGAIN_S)
        await self._extend(reading, from_beginning=self._from_beginning)
        if self._until_end and finder.missing and not reading.cursors.keys() - {self._control}:
            raise NothingPublished("; ".join(finder.missing.values()))

    async def _extend(self, reading: Reading, *, from_beginning: bool) -> None:
        """Take in the partitions that are new; one that appears while reading is read from
        its start."""
        finder = self._finder
        known = frozenset(reading.cursors) - {self._control}
        new = sorted(await finder.places(known))
        for problem in finder.missing.values():
            self._waiting(problem)
        loop = asyncio.get_running_loop()
        self._look_at_s = loop.time() + LOOK_AGAIN_S if finder.missing else inf
        cursors = {
            place: Cursor(begin if from_beginning else end, end)
            for place, (begin, end) in (await offset_ranges(reading.consumer, new)).items()
        }
        if new or not known:
            control = Cursor(finder.control_at, finder.control_at)
            reading.assign({**reading.cursors, **cursors, self._control: control})
        if new:
            starts = {place: cursor.next for place, cursor in cursors.items()}
            self._attached(self._attachments(starts))

    def _attachments(self, starts: Mapping[TopicPartition, int]) -> list[Attached]:
        described = self._finder.described() or {}
        return [
            Attached(
                topic,
                tuple(stream for stream, each in described.items() if each.topic == topic),
                {place.partition: starts[place] for place in places},
            )
            for topic, places in groupby(sorted(starts), attrgetter("topic"))
        ]

    def _look(self, message: Any, end: int | None) -> tuple[float, TailRecord] | None:
        """The record with its time, in milliseconds since 1970; None for one that is not wanted."""
        if end is not None and message.offset >= end:
            return None
        place = (message.topic, message.partition, message.offset)
        try:
            record = decode(message.key, message.value, message.headers)
        except RecordRefused as error:
            return message.timestamp, TailRecord(*place, None, str(error))
        if self._streams and record.stream not in self._streams:
            return None
        source = next((value for name, value in message.headers if name == "ce_source"), b"")
        try:
            time_ms: float = parse_timestamp(record.time.encode())
        except ValueError:
            time_ms = message.timestamp
        return time_ms, TailRecord(*place, record, source=source.decode(errors="replace"))
