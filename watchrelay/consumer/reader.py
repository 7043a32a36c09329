"""Topics read in order of arrival, decoded, for people and scripts that look on.

Room: consumer. In: connection arguments for aiokafka, the control topic, which streams. Out:
`Seen`, one per record, decoded or refused. Which topics there are is asked of the control topic:
every writer describes its streams there, so no API server is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from watchrelay.consumer.connecting import (
    STOP_TIMEOUT_S,
    make_consumer,
    silent,
    start_consumer,
    unreadable,
)
from watchrelay.consumer.errors import NothingPublished
from watchrelay.consumer.merging import Merge
from watchrelay.consumer.origin import DescribedStream
from watchrelay.consumer.topic_metadata import what_is_missing
from watchrelay.contract.control import parse_control
from watchrelay.contract.records import Decoded, decode
from watchrelay.core.errors import RecordRefused, SinkUnavailable
from watchrelay.core.timestamps import parse_timestamp
from watchrelay.kafka.client import KafkaError, TopicPartition
from watchrelay.kafka.client.consumer import partitions_of_topics, stop_consumer
from watchrelay.kafka.client.failures import servers_text, what_to_check
from watchrelay.kafka.reader import (
    SILENT_AFTER_S,
    SilenceLimit,
    assign,
    fetch,
    offset_ranges,
    read_ranges,
)

LOOK_AGAIN_S = 1.0
_AT_ONCE = 2_000
_AT_LEAST = 20
"""Records of one fetch: of each partition that much is held at most while the past is put in
order."""
_MERGE_WAIT_S = 2.0
"""How long the past of all partitions waits for one of which nothing comes."""
_FETCH_WAIT_MS = 50
"""A fetch that waits for live records holds up what is to be read of the past on the same
connection."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One record on a topic. `record` is None where it does not follow the contract, `refused` then
    says why; `source` is its ce_source."""

    topic: str
    partition: int
    offset: int
    record: Decoded | None
    refused: str = ""
    source: str = ""


@dataclass(slots=True)
class _Follow:
    """What is read: by partition, the next offset, and where it ended when it was found."""

    next: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def behind(self) -> set[TopicPartition]:
        """The partitions that are not read yet to the end they had when they were found."""
        return {partition for partition, end in self.ends.items() if self.next[partition] < end}


class TailReader:
    """Reads the topics of some streams (all: none named) without a group, without commits; what is
    aborted is not shown.

    What was there before comes in order of time over all partitions; what comes live, as it is
    read. `awaited` tells of a stream that is not described yet whether it is worth waiting for.
    Use: `async for batch in TailReader(...).batches()`; close the generator when leaving early
    (`contextlib.aclosing`).
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        *,
        control_topic: str,
        streams: Sequence[str] = (),
        from_beginning: bool = False,
        until_end: bool = False,
        waiting: Callable[[str], None] = lambda _: None,
        awaited: Callable[[str], bool] = lambda _: True,
        silent_after_s: float = SILENT_AFTER_S,
    ) -> None:
        self._arguments = (
            {**arguments, "fetch_max_wait_ms": _FETCH_WAIT_MS}
            if from_beginning
            else dict(arguments)
        )
        self._silent_after_s = silent_after_s
        self._control = TopicPartition(control_topic, 0)
        self._streams = frozenset(streams)
        self._from_beginning, self._until_end = from_beginning, until_end
        self._waiting, self._awaited = waiting, awaited
        self._described: dict[str, DescribedStream] = {}
        self._missing: dict[str, str] = {}

    async def batches(self) -> AsyncGenerator[list[Seen], None]:
        """The records as they come, some at a time; ends only with `until_end`.

        Raises: SinkUnavailable when no broker answers at the start or, before an end that was asked
        for, any more; NothingPublished where waiting would never end: with `until_end`, or for a
        stream that nobody awaits.
        """
        consumer = make_consumer(self._arguments)
        await start_consumer(consumer, self._arguments, check=what_to_check)
        try:
            follow = await self._find(consumer)
            silence = SilenceLimit(self._silent_after_s)
            now_s = asyncio.get_running_loop().time
            merge, late, newest_s = Merge[TopicPartition, Seen](), set[TopicPartition](), now_s()
            while merge or follow.behind or not self._until_end:
                missing = [place for place in follow.behind - late if place not in merge]
                fetched = await self._fetch(
                    consumer, follow, merge, [*missing, *late] if missing else [*follow.next]
                )
                late -= fetched
                if fetched:
                    newest_s = now_s()
                elif now_s() - newest_s > _MERGE_WAIT_S:
                    late.update(missing)  # they hold up the others no longer
                if self._until_end:
                    silence.check(
                        fetched,
                        ", ".join(sorted({place.topic for place in follow.behind}))
                        or self._control.topic,
                    )
                else:
                    await self._extend(consumer, follow, from_beginning=True)
                if seen := merge.take(follow.behind - late):
                    yield seen
        except TimeoutError as error:
            raise silent(self._arguments, error) from None
        except KafkaError as error:
            raise SinkUnavailable(
                f"kafka at {self._servers} stopped answering: {unreadable(error)}"
            ) from error
        finally:
            await stop_consumer(consumer, within_s=STOP_TIMEOUT_S)

    async def _fetch(
        self,
        consumer: Any,
        follow: _Follow,
        merge: Merge[TopicPartition, Seen],
        places: Collection[TopicPartition],
    ) -> set[TopicPartition]:
        """Read some more of `places`; of which of them something came."""
        at_once = max(_AT_ONCE // (len(follow.behind) or 1), _AT_LEAST)
        fetched = await fetch(consumer, [*places, self._control], max_records=at_once)
        self._learn(fetched.pop(self._control, ()))
        for place, messages in fetched.items():
            span = (follow.next[place], follow.ends[place] if self._until_end else None)
            merge.add(
                place,
                (
                    timed
                    for message in messages
                    if (timed := self._look(message, *span)) is not None
                ),
            )
        for place in places:
            follow.next[place] = await consumer.position(place)
        return set(fetched)

    @property
    def _servers(self) -> str:
        return servers_text(self._arguments)

    async def _find(self, consumer: Any) -> _Follow:
        """Wait until what was asked for is described on the control topic, then stand where reading
        starts."""
        while True:
            problem = await self._read_control(consumer)
            if not problem:
                break
            strange = [
                stream
                for stream in sorted(self._streams - self._described.keys())
                if not self._awaited(stream)
            ]
            if strange:
                raise NothingPublished(
                    f"{problem}; the config has no stream {', '.join(strange)} either"
                )
            if self._until_end:
                raise NothingPublished(problem)
            self._waiting(problem)
            await asyncio.sleep(LOOK_AGAIN_S)
        follow = _Follow()
        await self._extend(consumer, follow, from_beginning=self._from_beginning)
        if self._until_end and self._missing and not follow.next:
            raise NothingPublished("; ".join(self._missing.values()))
        return follow

    async def _read_control(self, consumer: Any) -> str:
        """Read the control topic to its end. Shape: "" or what is missing."""
        if not await partitions_of_topics(consumer, {self._control.topic}):
            return (
                f"topic {self._control.topic} does not exist yet: start the relay, or check "
                "cluster and kafka.topicPrefix"
            )
        await read_ranges(
            consumer,
            await offset_ranges(consumer, [self._control]),
            lambda _, messages: self._learn(messages),
            max_records=_AT_ONCE,
            silent_after_s=self._silent_after_s,
        )
        missing = sorted(self._streams - self._described.keys())
        if missing:
            known = ", ".join(sorted(self._described)) or "none"
            return f"stream {', '.join(missing)} has not been published yet; published: {known}"
        return (
            ""
            if self._described
            else f"no stream has been published yet: {self._control.topic} describes none"
        )

    def _learn(self, messages: Sequence[Any]) -> None:
        for message in messages:
            try:
                record = parse_control(message.key, message.value)
            except RecordRefused:
                # the relay reports it; a reader misses nothing but a stream that is
                # not described
                continue
            if record.kind == "stream":
                match record.value:
                    case {"topic": str(topic), "partitions": int(partitions)}:
                        self._described[record.stream] = DescribedStream(topic, partitions)
                    case _:
                        self._described.pop(record.stream, None)

    async def _extend(self, consumer: Any, follow: _Follow, *, from_beginning: bool) -> None:
        """Take in the topics described since; one that appears while we look on is read from its
        start."""
        wanted = {
            stream: each
            for stream, each in self._described.items()
            if not self._streams or stream in self._streams
        }
        places = {
            TopicPartition(each.topic, partition)
            for each in wanted.values()
            for partition in range(each.partitions)
        }
        new = sorted(places - follow.next.keys())
        if new:
            there = await partitions_of_topics(consumer, {place.topic for place in new})
            lacking = {
                stream: each
                for stream, each in wanted.items()
                if any(place.topic == each.topic for place in new)
            }
            self._missing = what_is_missing(
                lacking, there, control=self._control.topic, servers=self._servers
            )
            for problem in self._missing.values():
                self._waiting(problem)
            new = [place for place in new if place.partition in there.get(place.topic, ())]
        if not new:
            return
        control_at = await consumer.position(self._control)
        for place, (begin, end) in (await offset_ranges(consumer, new)).items():
            follow.ends[place], follow.next[place] = end, begin if from_beginning else end
        assign(consumer, {self._control: control_at, **follow.next})

    def _look(self, message: Any, start: int, end: int | None) -> tuple[float, Seen] | None:
        """The record with its time, in milliseconds since 1970; None for one that is not wanted."""
        if message.offset < start or (end is not None and message.offset >= end):
            return None
        place = (message.topic, message.partition, message.offset)
        try:
            record = decode(message.key, message.value, message.headers)
        except RecordRefused as error:
            return message.timestamp, Seen(*place, None, str(error))
        if self._streams and record.stream not in self._streams:
            return None
        source = next((value for name, value in message.headers if name == "ce_source"), b"")
        try:
            time_ms: float = parse_timestamp(record.time.encode())
        except ValueError:
            time_ms = message.timestamp
        return time_ms, Seen(*place, record, source=source.decode(errors="replace"))
