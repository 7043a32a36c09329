"""Streams followed on Kafka: from the newest snapshot, then live, proven at every marker, repaired after a loss.

Room: consumer. In: where Kafka is, the control topic or the topics, perhaps saved positions. Out: changes, the state, what is proven.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from watchrelay.codec import DIGEST_MASK, Decoded, MarkerRecord, ObjectRecord, content_hash, decode
from watchrelay.consumer.changes import Change, ChangeVerb, LaneState, Pending, Problem, Problems, Saved, Why
from watchrelay.consumer.finding import Finder
from watchrelay.consumer.lanes import Lane, Lanes
from watchrelay.consumer.origin import Origin
from watchrelay.consumer.reader import START_TIMEOUT_S, STOP_TIMEOUT_S, NothingPublished, make_consumer
from watchrelay.consumer.replica import Changed, Ignored, Noted, ReadAgain, Replaced, Unproven
from watchrelay.errors import RecordRefused, SinkUnavailable, WatchrelayError
from watchrelay.kafkaclient import plain_words, servers_text, stop_consumer
from watchrelay.printable import counted

__all__ = ["PositionsLost", "TopicReader"]

LOOK_AGAIN_S = 1.0
_POLL_MS = 500
_AT_ONCE = 2_000


class PositionsLost(WatchrelayError):
    """The log no longer holds what leads to the saved positions: start without them, and forget what was built from them."""


class TopicReader:
    """The state of some streams, and every change of it.

        async with TopicReader("kafka:9092", control_topic="k8s.prod.control", streams=["pods"]) as reader:
            await reader.ready()
            async for change in reader:
                ...

    `kafka` is a bootstrap address, several, or keyword arguments for aiokafka's consumer (`bootstrap_servers`, `security_protocol`, ...).
    Name the `control_topic` (`<prefix>.<cluster>.control`), or `topics`, or both. With the control topic, `streams` names those wanted
    (none: all that are described there, also later) and reading starts at the newest snapshot that can be believed. Without it, or
    without the right to read it, it starts at the snapshot that the newest heartbeats name.

    There is no consumer group and nothing is committed to Kafka. `positions()` is what to save together with whatever was made of the
    changes; given back as `resume`, the changes behind it come, and perhaps some before it once more: those since the last heartbeat.
    The state at the saved place is built anew and proven by its digest first, so that deletes are told and `old` is right.

    Nothing happens in the background: `ready()` and the iteration read on. Of changes that nobody takes meanwhile, only what they come to
    is kept for each object, so memory is bounded by the state.

    Raises: SinkUnavailable when no broker answers or a right is missing; PositionsLost; NothingPublished, only with `until_end`, where
    waiting would be for ever.
    """

    def __init__(
        self,
        kafka: str | Sequence[str] | Mapping[str, Any],
        *,
        control_topic: str = "",
        topics: Sequence[str] = (),
        streams: Sequence[str] = (),
        resume: Sequence[Mapping[str, Any]] = (),
        until_end: bool = False,
        waiting: Callable[[str], None] = lambda _: None,
    ) -> None:
        if not control_topic and not topics:
            raise ValueError("name the control topic, or topics: without either there is nothing to read")
        self._arguments = dict(kafka) if isinstance(kafka, Mapping) else {"bootstrap_servers": kafka}
        self._streams = frozenset(streams)
        self._until_end, self._waiting = until_end, waiting
        try:
            saved = msgspec.convert(list(resume), list[Saved])
        except msgspec.ValidationError as error:
            raise ValueError(f"resume is not what positions() gave: {error}") from error
        saved = [each for each in saved if not streams or each.stream in streams]
        self._owed = {(each.topic, each.partition, each.stream): each for each in saved}
        """Saved places that were not reached again yet: up to there nothing is handed out."""
        self._consumer: Any = None
        self._finder: Finder | None = None
        self._find_in = (control_topic, tuple(topics))
        self._lanes: dict[TopicPartition, Lanes] = {}
        self._behind: dict[TopicPartition, int] = {}
        """Partitions that were not read yet to the end they had when they were found, or when they had to be read again."""
        self._pending = Pending()
        self._problems = Problems()
        self._turn = asyncio.Lock()

    # ---- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect. Raises: SinkUnavailable."""
        self._consumer = make_consumer(self._arguments)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await self._consumer.start()
        except (KafkaError, OSError, TimeoutError) as error:
            await self.close()
            servers = servers_text(self._arguments)
            raise SinkUnavailable(f"kafka at {servers} is not usable: {plain_words(error)}") from error
        control, topics = self._find_in
        self._finder = Finder(self._consumer, control_topic=control, topics=topics, streams=self._streams, problems=self._problems)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect; the state can be looked at still."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await stop_consumer(consumer, within_s=STOP_TIMEOUT_S)

    # ---- what readers ask --------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Return once the whole state as of the first call is read and every partition of every stream wanted is proven.

        Raises: as the class says; NothingPublished with `until_end` when the end comes first.
        """
        while not self.proven:
            if self._ended:
                raise NothingPublished(f"read to the end, and not proven: {self._unproven()}")
            await self._step()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        while (change := self._pending.take()) is None:
            if self._ended:
                raise StopAsyncIteration
            await self._step()
        return change

    @property
    def proven(self) -> bool:
        """Every partition of every stream wanted agreed with its newest marker, and has been read to the end that it had at first."""
        if not self._lanes or self._behind or self._owed:
            return False
        expected = self._expected()
        return bool(expected) and all(
            sum(lane.replica.proven and not lane.replica.rereading for lane in self._of(stream)) >= partitions
            for stream, partitions in expected.items()
        )

    @property
    def problems(self) -> list[Problem]:
        """What was not as it should be, each once, counted."""
        return self._problems.all()

    @property
    def streams(self) -> list[str]:
        """The streams met or described so far."""
        return sorted({stream for lanes in self._lanes.values() for stream in lanes.by_stream})

    def objects(self, stream: str) -> dict[bytes, bytes]:
        """The state of `stream`: JSON by key. Not the truth where it is not proven."""
        return {key: held.value for lane in self._of(stream) for key, held in lane.replica.held.items()}

    def lanes(self) -> list[LaneState]:
        """How each stream stands in each partition, with count and digest."""
        return [
            LaneState(
                stream=stream,
                topic=place.topic,
                partition=place.partition,
                epoch=lane.replica.position.epoch,
                sequence=lane.replica.position.sequence,
                objects=len(lane.replica.held),
                digest=f"{lane.replica.digest & DIGEST_MASK:016x}",
                proven=lane.replica.proven and not lane.replica.rereading,
                frontier=lane.replica.frontier,
                seen=lane.seen,
            )
            for place, lanes in sorted(self._lanes.items())
            for stream, lane in sorted(lanes.by_stream.items())
        ]

    def positions(self) -> list[dict[str, Any]]:
        """What to save, as plain JSON values: per stream and partition the newest proven place behind which all was handed out.

        Shape: a partition that had none yet is missing: given back so, it is read from the newest snapshot.
        """
        bool(self._pending)  # places at the head of the queue count as passed
        saved = {(each.stream, each.partition): each for each in self._owed.values()} | self._pending.saved
        return [msgspec.to_builtins(saved[place]) for place in sorted(saved)]

    def _of(self, stream: str) -> list[Lane]:
        return [lanes.by_stream[stream] for lanes in self._lanes.values() if stream in lanes.by_stream]

    def _expected(self) -> dict[str, int]:
        """Partitions by stream: as described; without the control topic, of those met or named, as their markers say."""
        assert self._finder is not None, "enter the reader before asking it"
        if (described := self._finder.described()) is not None:
            return {stream: each.partitions for stream, each in described.items()}
        names = self._streams or set(self.streams)
        return {name: max((lane.partitions for lane in self._of(name)), default=0) or len(self._lanes) for name in names}

    @property
    def _ended(self) -> bool:
        return self._until_end and bool(self._lanes) and not self._behind

    def _unproven(self) -> str:
        waits = [f"{each.stream}/{each.partition}" for each in self.lanes() if not each.proven]
        return ", ".join(waits) or "no stream was found"

    # ---- reading -----------------------------------------------------------------------------------------------------

    async def _step(self) -> None:
        """Read some more; one caller at a time."""
        async with self._turn:
            try:
                if not self._lanes and not await self._found():
                    return
                await self._read()
            except KafkaError as error:
                raise SinkUnavailable(f"kafka does not let us read: {plain_words(error)}") from error

    async def _found(self) -> bool:
        """Find what to read and where to start. False: there is nothing yet."""
        assert self._finder is not None, "enter the reader before reading"
        problem = await self._finder.look()
        if problem:
            if self._until_end:
                raise NothingPublished(problem)
            self._waiting(problem)
            await asyncio.sleep(LOOK_AGAIN_S)
            return False
        await self._extend()
        return bool(self._lanes)

    async def _extend(self) -> None:
        """Take in the partitions that were found since, and stand where each is to be read."""
        assert self._finder is not None, "enter the reader before reading"
        self._let_go({stream: each.topic for stream, each in (self._finder.described() or {}).items()})
        found = await self._finder.places(frozenset(self._lanes))
        if not found:
            return
        new = sorted(found)
        # Where the others stand is asked before: `assign` forgets it.
        at = {place: await self._consumer.position(place) for place in self._lanes}
        begins = await self._consumer.beginning_offsets(new)
        ends = await self._consumer.end_offsets(new)
        # From here on without an await: whoever is cancelled leaves all or nothing.
        for place in new:
            origins = found[place]
            for (topic, partition, stream), saved in self._owed.items():
                if (topic, partition) == place:
                    origins[stream] = Origin(saved.begin, saved.snapshot)
                    if saved.offset > ends[place]:
                        raise PositionsLost(_lost(saved, f"the log ends at {ends[place]}: was the topic made anew?"))
        for place in new:
            lanes = self._lanes[place] = Lanes(place.partition, found[place], only=self._streams)
            at[place] = max(begins[place], lanes.start or 0)
            if ends[place] > at[place]:
                self._behind[place] = ends[place]
        control = self._finder.control
        if control:
            at[control] = self._finder.control_at
        self._consumer.assign(list(at))
        for place, offset in at.items():
            self._consumer.seek(place, offset)
        if self._owed:
            await self._settle_owed()

    def _let_go(self, topics: Mapping[str, str]) -> None:
        """What was held of streams that stand on other topics now is gone; what is there comes anew. Raises: PositionsLost."""
        for saved in self._owed.values():
            if (topic := topics.get(saved.stream, saved.topic)) != saved.topic:
                raise PositionsLost(_lost(saved, f"the stream stands on topic {topic} now"))
        for place, lanes in self._lanes.items():
            for stream, topic in topics.items():
                if topic == place.topic:
                    lanes.come_back(stream)
                elif stream in lanes.by_stream:
                    lane = lanes.leave(stream)
                    for key, held in lane.replica.held.items():
                        self._say(place, lane, Changed(key, held, None), "moved", lane.start)

    async def _read(self) -> None:
        assert self._finder is not None, "enter the reader before reading"
        control = self._finder.control
        # Named, for what aiokafka still has to say of a control topic that may not be read must not be raised here.
        places = [*self._lanes, *([control] if control else [])]
        fetched = await self._consumer.getmany(*places, timeout_ms=_POLL_MS, max_records=_AT_ONCE)
        grown = False
        for place, messages in fetched.items():
            if place == control:
                grown = self._finder.learn(messages) or grown
            else:
                self._take(place, self._lanes[place], messages)
        for place in [*self._behind]:
            if await self._consumer.position(place) >= self._behind[place]:
                del self._behind[place]
        if self._owed:
            await self._settle_owed()
        if grown:
            await self._extend()

    def _take(self, place: TopicPartition, lanes: Lanes, messages: Sequence[Any]) -> None:
        """Apply what was fetched of one partition, up to where it has to be read again."""
        for message in messages:
            offset = message.offset
            try:
                record = decode(message.key, message.value, message.headers)
            except RecordRefused as error:
                self._problems.add(Problem("foreign", place.topic, place.partition, offset, str(error)))
                continue
            if self._owed:
                self._prove_owed(place, offset)
            if isinstance(record, ObjectRecord) and record.value is not None:
                found = content_hash(record.key, record.value)
                if found != record.value_hash:
                    self._problems.add(Problem("hash", place.topic, place.partition, offset, "a value is not what ce_wrhash says"))
                    record = msgspec.structs.replace(record, value_hash=found)  # the digest is to speak of what is held
            applied = lanes.apply(offset, record)
            if applied is not None and not self._took(place, offset, record, *applied):
                return

    def _took(self, place: TopicPartition, offset: int, record: Decoded, lane: Lane, outcome: object) -> bool:
        """Hand on what a record did. False: the rest of what was fetched is void, the cursor went back."""
        match outcome:
            case Ignored():
                return True
            case Changed():
                assert isinstance(record, ObjectRecord), "a marker changes nothing by itself"
                self._say(place, lane, outcome, record.reason, offset)
                return True
            case Noted():
                for change in outcome.swept:
                    self._say(place, lane, change, "swept", offset)
            case Replaced():
                for change in outcome.changes:
                    self._say(place, lane, change, "repaired", offset)
            case ReadAgain() | Unproven():
                detail = f"{lane.stream}: the state disagreed with a marker, "
                detail += "read again" if isinstance(outcome, ReadAgain) else "also after reading again: the next snapshot will mend it"
                self._problems.add(Problem("digest", place.topic, place.partition, offset, detail))
                if isinstance(outcome, ReadAgain):
                    self._consumer.seek(place, outcome.offset or 0)  # out of reach: the reset goes to the earliest there is
                    self._behind[place] = max(self._behind.get(place, 0), offset + 1)
                    return False
        if isinstance(record, MarkerRecord) and record.kind != "claim":
            self._mark(place, lane, offset)
        return True

    def _say(self, place: TopicPartition, lane: Lane, changed: Changed, why: Why, offset: int) -> None:
        before, after = changed.before, changed.after
        if before is None and after is None:
            return
        if before is not None and after is not None and before.value_hash == after.value_hash:
            return  # the uid is in the value
        if self._owed and (place.topic, place.partition, lane.stream) in self._owed:
            return
        told = after or before
        assert told is not None
        verb: ChangeVerb = "deleted" if after is None else "added" if before is None else "modified"
        self._pending.add(
            Change(
                stream=lane.stream,
                topic=place.topic,
                partition=place.partition,
                key=changed.key,
                verb=verb,
                object=None if after is None else after.value,
                old=None if before is None else before.value,
                uid=told.uid,
                resource_version=told.version,
                reason=why,
                position=lane.replica.position,
                offset=offset,
                proven=lane.replica.proven,
            )
        )

    def _mark(self, place: TopicPartition, lane: Lane, offset: int) -> None:
        """A marker that agreed is a place to go on from."""
        replica = lane.replica
        if not replica.proven or replica.rereading or (place.topic, place.partition, lane.stream) in self._owed:
            return
        snapshot, begin = replica.last_snapshot
        self._pending.add(
            Saved(
                stream=lane.stream,
                topic=place.topic,
                partition=place.partition,
                offset=offset + 1,
                epoch=replica.position.epoch,
                sequence=replica.position.sequence,
                count=len(replica.held),
                digest=f"{replica.digest & DIGEST_MASK:016x}",
                snapshot=snapshot,
                begin=begin,
            )
        )

    # ---- saved positions ---------------------------------------------------------------------------------------------

    async def _settle_owed(self) -> None:
        for place in {TopicPartition(topic, partition) for topic, partition, _ in self._owed}:
            if place in self._lanes:
                self._prove_owed(place, await self._consumer.position(place))
            elif self._lanes:
                for gone in [key for key in self._owed if (key[0], key[1]) == place]:
                    del self._owed[gone]  # of a stream that is not read any more

    def _prove_owed(self, place: TopicPartition, at: int) -> None:
        """Where a saved place is reached, the state must be what it was. Raises: PositionsLost."""
        for key in [key for key in self._owed if (key[0], key[1]) == place]:
            saved = self._owed[key]
            if at < saved.offset:
                continue
            lane = self._lanes[place].by_stream[saved.stream]
            if (len(lane.replica.held), lane.replica.digest & DIGEST_MASK) != (saved.count, int(saved.digest, 16)):
                held = f"{counted(len(lane.replica.held), 'object')} where there were {saved.count}, or others"
                raise PositionsLost(_lost(saved, f"what is left of the log leads to {held}"))
            del self._owed[key]
            self._pending.saved[saved.stream, saved.partition] = saved  # nothing of it waits to be handed out, and no marker came yet


def _lost(saved: Saved, why: str) -> str:
    return (
        f"stream {saved.stream}: the positions saved at {saved.topic}/{saved.partition}, offset {saved.offset}, cannot be gone on from: "
        f"{why}; start without them and forget what was built before"
    )
