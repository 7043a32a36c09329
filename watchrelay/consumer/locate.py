"""Which partitions to read, where each stream in them starts, and what is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from watchrelay.consumer.changes import Problem, ReadProblems
from watchrelay.contract.control_state import ControlState, DescribedStream, Origin
from watchrelay.contract.records import Decoded, MarkerRecord, decode, refuse_unreadable
from watchrelay.core.errors import RecordRefused, SinkUnavailable
from watchrelay.core.text import counted, printable
from watchrelay.kafka.client import TopicAuthorizationFailedError, TopicPartition
from watchrelay.kafka.client.consumer import partitions_and_ids
from watchrelay.kafka.reading import offset_ranges, read_ranges

TopicPartitions = Mapping[str, frozenset[int]]
"""The partitions of each topic that may be seen."""

_TAIL_RECORDS = 1_000
_TAIL_GROWS = 8


class Finder:
    """Asks the control topic; where there is none to ask, the newest heartbeats. `whole`: a stream
    that was named and is not published yet is waited for before any is read."""

    def __init__(
        self,
        consumer: Any,
        *,
        control_topic: str,
        topics: Sequence[str],
        streams: frozenset[str],
        servers: str,
        whole: bool = True,
    ) -> None:
        self.consumer, self._servers = consumer, servers
        self._topics, self._streams = tuple(topics), streams
        self.problems = ReadProblems()
        self._whole = whole
        self.control = TopicPartition(control_topic, 0) if control_topic else None
        """The partition to follow for new streams; None: there is none, or no right to it."""
        self.control_at = 0
        self.control_there = False
        self.there: TopicPartitions = {}
        """What the last look found, of the topics that are read."""
        self.recreated: set[str] = set()
        """Topics that were recreated, until the reader takes them out."""
        self.unchanged: set[str] = set()
        """Topics whose id is known, and was the same at the last look."""
        self._ids: dict[str, bytes] = {}
        self.missing: dict[str, str] = {}
        """What the last look missed, in words: by stream; without the control topic, by topic."""
        self._view = ControlState(self._streams)

    async def look(self) -> str:
        """ "", or what is missing yet: look again later."""
        there = await self._look_at(self._topics)
        if self.control is not None and self.control.topic in there:
            problem = await self._read_control(self.control)
            if self.control is not None:
                return problem
        elif self.control is not None:
            if not self._topics:
                return (
                    f"topic {self.control.topic} is not there, or may not be seen: start the "
                    "relay, check cluster and kafka.topicPrefix, "
                    "or grant READ and DESCRIBE on it"
                )
            self._without(self.control, "it is not there, or may not be seen")
        missing = ", ".join(topic for topic in self._topics if topic not in there)
        return (
            f"topic {missing} is not there, or may not be seen: check the name, or grant READ on it"
            if missing
            else ""
        )

    async def _look_at(self, topics: Collection[str]) -> TopicPartitions:
        control = {self.control.topic} if self.control else set()
        ids = await self._ids_of({*topics, *control})
        if self._changed(ids):  # one broker may have missed it, and give the former id
            again = await self._ids_of({*topics, *control})
            ids = {
                topic: each
                for topic, each in again.items()
                if each in (ids.get(topic, each), self._ids.get(topic))
            }
        # a recreated topic that is longer already than the former one shows by its id alone
        changed = self._changed(ids)
        self.unchanged = {topic for topic, each in ids.items() if self._ids.get(topic) == each}
        self._ids |= ids
        self.recreated |= changed
        was, self.control_there = self.control_there, bool(control & self.there.keys())
        if was and not self.control_there and self.control is not None:
            detail = (
                "it no longer exists, or may not be seen: streams that are new are not "
                "found until it is there again"
            )
            self.problems.add(Problem("control", self.control.topic, 0, 0, detail))
        if self.control_there and (not was or changed & control):
            # there, or there again: read from its start
            self._view, self.control_at = ControlState(self._streams), 0
        return self.there

    async def _ids_of(self, topics: Collection[str]) -> dict[str, bytes]:
        self.there, found = await partitions_and_ids(self.consumer, topics)
        return {topic: each for topic, each in found.items() if each}

    def _changed(self, ids: Mapping[str, bytes]) -> set[str]:
        return {topic for topic, each in ids.items() if self._ids.get(topic, each) != each}

    def _without(self, control: TopicPartition, why: str) -> None:
        self.control = None
        detail = (
            f"{control.topic} cannot be read ({why}): the start is taken from the newest heartbeats"
        )
        self.problems.add(Problem("control", control.topic, 0, 0, detail))

    async def _read_control(self, control: TopicPartition) -> str:
        consumer = self.consumer
        self._view = ControlState(self._streams)
        try:
            ranges = await offset_ranges(consumer, [control])
            self.control_at, _ = ranges[control]
            read = await read_ranges(consumer, ranges, lambda _, messages: self.learn(messages))
        except TopicAuthorizationFailedError as error:
            if not self._topics:
                raise SinkUnavailable(
                    f"topic {control.topic} may not be read: grant READ on it, or name the topics"
                ) from error
            self._without(control, "READ is not granted")
            return ""
        self.control_at = read[control].next
        # what is asked next would wait for its fetches; `assign` lets it go on
        consumer.pause(control)
        described = self._view.described()
        missing = sorted(self._streams - described.keys())
        if missing and (self._whole or len(missing) == len(self._streams)):
            known = ", ".join(described) or "none"
            return f"stream {', '.join(missing)} has not been published yet; published: {known}"
        if not described:
            return f"no stream has been published yet: {control.topic} describes none"
        elsewhere = (
            f"of the wanted streams none is on topic {', '.join(self._topics)}, as "
            f"{control.topic} describes them"
        )
        return "" if self.described() else elsewhere

    def learn(self, messages: Sequence[Any]) -> bool:
        """Take records of the control topic. True: a stream was described."""
        before = self._view.described()
        if messages and messages[0].offset < self.control_at:
            # the topic was recreated: only its records count from here on
            self._view = ControlState(self._streams)
        for message in messages:
            self.control_at = message.offset + 1
            try:
                refuse_unreadable(dict(message.headers))
                odd = self._view.read(message.offset, message.key, message.value)
            except RecordRefused as error:
                odd = str(error)
            if odd:
                self.problems.add(
                    Problem("foreign", message.topic, message.partition, message.offset, odd)
                )
        return self._view.described() != before

    def described(self) -> Mapping[str, DescribedStream] | None:
        """The streams wanted, as the control topic describes them; None without it."""
        if self.control is None:
            return None
        return {
            stream: each
            for stream, each in self.described_anywhere().items()
            if not self._topics or each.topic in self._topics
        }

    def described_anywhere(self) -> Mapping[str, DescribedStream]:
        """The same, on whatever topic; empty without the control topic."""
        return {
            stream: each
            for stream, each in self._view.described().items()
            if not self._streams or stream in self._streams
        }

    def is_retired(self, stream: str) -> bool:
        """Whether the description of `stream` was deleted. Where it is just not there, a control
        topic that was recreated may not have it again yet."""
        return self._view.of(stream).retired

    def retired(self) -> list[str]:
        """The streams wanted whose description was deleted."""
        return [each for each in self._streams or self._view.streams if self.is_retired(each)]

    def unpublished(self) -> set[str]:
        """The streams that were named and are described nowhere, but for the retired ones; none
        without the control topic."""
        if self.control is None:
            return set()
        unknown = self._streams - self._view.described().keys()
        return {each for each in unknown if not self.is_retired(each)}

    def is_over(self, place: TopicPartition, streams: Collection[str]) -> bool:
        """Whether a partition with these streams, which no longer exists, will never exist
        again. Without the control topic: whether the topic has fewer partitions now, a number that
        never goes down for one topic."""
        if (described := self.described()) is None:
            return place.topic in self.there
        present = (
            each.topic == place.topic and place.partition < each.partitions
            for each in described.values()
        )
        return not any(present) and all(
            stream in described or self._view.of(stream).retired for stream in streams
        )

    async def places(
        self, known: frozenset[TopicPartition]
    ) -> dict[TopicPartition, dict[str, Origin]]:
        """The partitions that are there and not `known` yet, with the origin of each stream."""
        described = self.described()
        wanted = self._topics if described is None else {each.topic for each in described.values()}
        there = await self._look_at({*wanted, *(place.topic for place in known)})
        if described is None:
            self.missing = {
                topic: f"topic {topic} does not exist, or may no longer be seen"
                for topic in wanted
                if topic not in there
            }
            if not known:
                return await self._places_by_heartbeat()
            places = {TopicPartition(topic, each) for topic, all_ in there.items() for each in all_}
            return {place: {} for place in places - known}
        control = self.control.topic if self.control else ""
        self.missing = what_is_missing(described, there, control=control, servers=self._servers)
        found: dict[TopicPartition, dict[str, Origin]] = {}
        for stream, each in described.items():
            for partition, origin in enumerate(self._view.origins(stream)):
                place = TopicPartition(each.topic, partition)
                if place not in known and partition in there.get(each.topic, ()):
                    found.setdefault(place, {})[stream] = origin
        return found

    async def _places_by_heartbeat(self) -> dict[TopicPartition, dict[str, Origin]]:
        """Each partition from the newest heartbeats; from its start where a stream that was named
        has none.

        Streams share topics, and one may be silent where another is busy: those that are named are
        looked for until the partition's start, unless another topic is found to hold them. One that
        is neither named nor has written lately is not known."""
        places = [
            TopicPartition(topic, partition)
            for topic in self._topics
            for partition in sorted(self.there.get(topic, ()))
        ]
        found = {place: await self._newest_heartbeats(place) for place in places}
        home = {stream: place.topic for place, beats in found.items() for stream in beats}
        for place, beats in found.items():
            missing = {
                stream
                for stream in self._streams - beats.keys()
                if home.get(stream, place.topic) == place.topic
            }
            if missing:
                older = await self._newest_heartbeats(place, missing)
                found[place] = older if missing <= older.keys() else {}
                home |= dict.fromkeys(missing & older.keys(), place.topic)
        return {
            place: {
                stream: origin
                for stream, origin in beats.items()
                if not self._streams or stream in self._streams
            }
            for place, beats in found.items()
        }

    async def _newest_heartbeats(
        self, place: TopicPartition, missing: Collection[str] = ()
    ) -> dict[str, Origin]:
        """The origins that the newest heartbeats of a partition name, by stream; read further back
        until there is a heartbeat of each of the streams `missing`."""
        begin, end = (await offset_ranges(self.consumer, [place]))[place]
        span, beats = _TAIL_RECORDS, dict[str, Origin]()
        records: list[Decoded] = []

        def take(_: TopicPartition, messages: Sequence[Any]) -> None:
            for message in messages:
                if b"heartbeat" in (message.key or b""):
                    # a record that is refused is counted when the state is read
                    with suppress(RecordRefused):
                        records.append(decode(message.key, message.value, message.headers))

        while end > begin:
            start = max(begin, end - span)
            records.clear()
            await read_ranges(self.consumer, {place: (start, end)}, take)
            beats = newest_heartbeats(records)
            if start == begin or (beats and beats.keys() >= set(missing)):
                break
            span *= _TAIL_GROWS
        return beats


def within(origins: Mapping[str, Origin], end: int) -> dict[str, Origin]:
    """An origin that is not below the `end` of its partition is of a recreated topic, or of records
    that were lost: the partition's start."""
    return {
        stream: origin if (origin.offset or 0) < end else Origin()
        for stream, origin in origins.items()
    }


def newest_heartbeats(records: Iterable[Decoded]) -> dict[str, Origin]:
    """By stream, the snapshot that the newest heartbeat of the highest epoch names; the start
    where it names none. `records` are of one partition, in log order."""
    newest: dict[str, MarkerRecord] = {}
    for record in records:
        if isinstance(record, MarkerRecord) and record.kind == "heartbeat":
            held = newest.get(record.stream)
            if held is None or (record.epoch, record.sequence) > (held.epoch, held.sequence):
                newest[record.stream] = record
    return {
        stream: Origin(beat.last_snapshot_offset, beat.last_snapshot)
        for stream, beat in newest.items()
    }


def what_is_missing(
    described: Mapping[str, DescribedStream], there: TopicPartitions, *, control: str, servers: str
) -> dict[str, str]:
    """By stream: which part of its topic is not there, where it is described, and the cure."""
    missing: dict[str, str] = {}
    for stream, each in described.items():
        topic, found = printable(each.topic), len(there.get(each.topic, ()))
        if not found:
            missing[stream] = (
                f"topic {topic} of stream {stream} is described on {control} and not there, "
                "or may not be seen: start the relay, which "
                "makes it where kafka.createTopics allows, or grant READ and DESCRIBE on it; "
                "if no relay is to write the stream again, "
                f"retire it: watchrelay retire {printable(stream)}"
            )
        elif found < each.partitions:
            missing[stream] = (
                f"topic {topic} of stream {stream} has {counted(found, 'partition')}, the "
                f"description on {control} says {each.partitions}: "
                f"kafka-topics.sh --bootstrap-server {servers} --alter --topic {topic} "
                f"--partitions {each.partitions}"
            )
    return missing
