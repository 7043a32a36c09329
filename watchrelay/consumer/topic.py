"""Streams followed on Kafka: from the newest snapshot, then live, proven at every marker, repaired
after a loss.

Room: consumer. In: where Kafka is, the control topic or the topics, perhaps saved positions. Out:
changes, the state, what is proven.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from watchrelay.consumer.changes import Change, LaneState, Problem, Problems
from watchrelay.consumer.connecting import (
    STOP_TIMEOUT_S,
    away,
    check_library,
    checked_servers,
    make_consumer,
    start_consumer,
    unreadable,
)
from watchrelay.consumer.cursors import Cursors
from watchrelay.consumer.errors import NothingPublished, own_errors
from watchrelay.consumer.locate import Finder
from watchrelay.consumer.objects import Objects
from watchrelay.consumer.origin import DescribedStream
from watchrelay.consumer.partitions import PartitionReplica, PartitionReplicas, Pending
from watchrelay.consumer.reader import LOOK_AGAIN_S
from watchrelay.consumer.replica import Changed, Ignored, Noted, ReadAgain, Replaced, Unproven
from watchrelay.consumer.saved import UnreachedPositions, saved_from
from watchrelay.consumer.topic_metadata import what_is_unproven
from watchrelay.contract.records import Decoded, MarkerRecord, ObjectRecord, content_hash, decode
from watchrelay.core.errors import RecordRefused, SinkUnavailable
from watchrelay.kafka.client import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    TopicPartition,
)
from watchrelay.kafka.client.consumer import stop_consumer
from watchrelay.kafka.client.failures import servers_text
from watchrelay.kafka.reader import fetch

LOOK_ANYWAY_S = 15.0
"""However well all goes: a topic that was deleted, and a broker that is away, are only seen by
asking. Longer than a heartbeat interval."""
_LOOK_TIMEOUT_S = 10.0
_AT_ONCE = 2_000


class TopicReader:
    """The state of some streams, and every change of it.

        async with TopicReader("kafka:9092", control_topic="k8s.prod.control", streams=["pods"]) as
        reader:
            await reader.ready()
            async for change in reader:
                ...

    `kafka` is a bootstrap address, several, or keyword arguments for aiokafka's consumer
    (`bootstrap_servers`, `security_protocol`, ...). Name the `control_topic`
    (`<prefix>.<cluster>.control`), or `topics`, or both. With the control topic, `streams` names
    those wanted (none: all that are described there, also later) and reading starts at the newest
    snapshot that can be verified. Without it, or the right to read it, at the snapshot that the
    newest heartbeats name; a stream that nobody writes any more is then found by name alone.

    The iteration gives each object of the proven state once, as `added`; then each change of it. A
    partition begins when it was read to the end that it had at first and a marker proved it; after
    `ready()` all have. Nothing is given that is not proven: after a loss the changes of that
    partition are held back until its state is proven again, then what differs is given. An object
    that changes before it was given comes as it is then. All loops over a reader, also in several
    tasks, share one sequence. Who is cancelled loses no change.

    There is no consumer group and nothing is committed to Kafka. `positions()` is what to save
    together with what was made of the changes; given back as `resume`, the changes since then come,
    deletes included, and perhaps those since the last heartbeat once more (at least once). The
    state at the saved place is built again and proven by its digest first, so that `old` is right.

    Nothing happens in the background: `ready()` and the iteration read on. Of changes that nobody
    takes meanwhile, only what they come to is kept for each object, so memory is bounded by the
    state; each value is held once.

    `waiting` is called about once a second with what is missing, while something is: a topic or its
    partitions, a broker, the proof. Reading goes on by itself when it comes. `close()` ends an
    iteration that goes on in another task.

    Raises: ValueError or TypeError, at once, for arguments that can never be right;
    KafkaUnavailable when no broker answers at the start or a right is missing; PositionsLost;
    NothingPublished, only with `until_end`, where waiting would never end.
    """

    def __init__(
        self,
        kafka: str | Sequence[str] | Mapping[str, Any],
        *,
        control_topic: str = "",
        topics: Sequence[str] = (),
        streams: Sequence[str] = (),
        resume: Sequence[Mapping[str, Any]] | None = None,
        until_end: bool = False,
        waiting: Callable[[str], None] = lambda _: None,
    ) -> None:
        if not control_topic and not topics:
            raise ValueError(
                "name the control topic, or topics: without either there is nothing to read"
            )
        for name, given in (("topics", topics), ("streams", streams)):
            if isinstance(given, str):
                raise TypeError(f"{name} takes several: [{given!r}], not {given!r}")
        self._arguments = (
            dict(kafka) if isinstance(kafka, Mapping) else {"bootstrap_servers": kafka}
        )
        checked_servers(self._arguments)
        self._streams = frozenset(streams)
        self._until_end, self._waiting = until_end, waiting
        saved = [each for each in saved_from(resume) if not streams or each.stream in streams]
        self._owed = UnreachedPositions(saved)
        self._consumer: Any = None
        self._finder: Finder | None = None
        self._cursors = Cursors(None)
        self._find_in = (control_topic, tuple(topics))
        self._lanes: dict[TopicPartition, PartitionReplicas] = {}
        self._behind: dict[TopicPartition, int] = {}
        """Partitions that were not read yet to the end they had when they were found, or when they
        had to be read again."""
        self._look_at_s = self._unproven_s = 0.0
        self._scope: asyncio.Timeout | None = None
        """Around what is awaited of Kafka: `close()` ends it."""
        self._pending = Pending()
        self._problems = Problems()
        self._turn = asyncio.Lock()

    # ---- life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect. Raises: KafkaUnavailable; RuntimeError when it was entered before, or closed
        meanwhile."""
        if self._finder is not None:
            raise RuntimeError("a TopicReader is entered once: make another one")
        consumer = self._consumer = make_consumer(self._arguments)
        self._cursors = Cursors(consumer)
        servers, (control, topics) = servers_text(self._arguments), self._find_in
        self._finder = Finder(
            consumer,
            control_topic=control,
            topics=topics,
            streams=self._streams,
            problems=self._problems,
            servers=servers,
        )
        try:
            await self._begin(consumer)
        except BaseException:
            self._consumer = None
            raise
        return self

    async def _begin(self, consumer: Any) -> None:
        try:
            with own_errors():
                async with asyncio.timeout(None) as self._scope:
                    await start_consumer(consumer, self._arguments, check=check_library)
        except TimeoutError:
            raise RuntimeError("the reader was closed before it had started") from None
        finally:
            self._scope = None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect, and end what goes on in other tasks; the state can be looked at still."""
        consumer, self._consumer = self._consumer, None
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())
        if consumer is not None:
            await stop_consumer(consumer, within_s=STOP_TIMEOUT_S)

    # ---- what readers ask ------------------------------------------------------------------------

    async def ready(self) -> None:
        """Return once the whole state as of the first call is read and every partition of every
        stream wanted is proven.

        Raises: as the class says; NothingPublished with `until_end` when the end comes first;
        RuntimeError when the reader is closed.
        """
        while not self.proven:
            self._at_end_proven()
            if not await self._read_on():
                raise RuntimeError("the reader is closed, and was not ready")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        """The next change.

        Raises: as the class says; StopAsyncIteration when the reader is closed, or at the end with
        `until_end`; NothingPublished at that end when a partition is not proven there: what is
        missing was not given.
        """
        while (change := self._pending.take()) is None:
            if self._at_end_proven():
                raise StopAsyncIteration
            # closed: what was read before is given still
            if not await self._read_on() and not self._pending:
                raise StopAsyncIteration
        return change

    @property
    def proven(self) -> bool:
        """Every partition of every stream wanted agreed with its newest marker, and has been read
        to the end that it had at first."""
        if not self._lanes or self._behind or self._owed or self._cursors.gone:
            return False
        expected = self._expected()
        return bool(expected) and all(
            sum(lane.proven for lane in self._of(stream)) >= partitions
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

    def objects(self, stream: str) -> Objects:
        """The state of `stream` by key: a live view that decodes an object when asked for it. Not
        the truth where it is not proven."""
        return Objects(stream, self._lanes)

    def get(self, key: str, *, stream: str = "") -> Any:
        """The object at `key`, decoded; None where there is none. `stream` may be left out where
        the reader has only one.

        Raises: ValueError where it has several; ObjectUnreadable.
        """
        names = [stream] if stream else sorted(self._streams) or self.streams
        if len(names) > 1:
            raise ValueError(f"name the stream: this reader has {', '.join(names)}")
        return self.objects(names[0]).get(key) if names else None

    def lanes(self) -> list[LaneState]:
        """The state of each stream in each partition, with count and digest."""
        return [
            lane.state(place.topic)
            for place, lanes in sorted(self._lanes.items())
            for _, lane in sorted(lanes.by_stream.items())
        ]

    def positions(self) -> list[dict[str, Any]]:
        """What to save, as plain JSON values: per stream and partition the newest proven place
        behind which all was handed out.

        Shape: a partition that had none yet is missing: given back so, it is read from the newest
        snapshot.
        """
        passed = [each for lanes in self._lanes.values() for each in lanes.passed()]
        saved = {
            (each.stream, each.partition): each
            for each in [*self._owed.all(), *self._pending.left(), *passed]
        }
        return [msgspec.to_builtins(saved[place]) for place in sorted(saved)]

    def _of(self, stream: str) -> list[PartitionReplica]:
        return [
            lanes.by_stream[stream] for lanes in self._lanes.values() if stream in lanes.by_stream
        ]

    def _expected(self) -> dict[str, int]:
        """Partitions by stream: as described; without the control topic, of those met or named, as
        their markers say."""
        assert self._finder is not None, "enter the reader before asking it"
        if (described := self._finder.described()) is not None:
            return {stream: each.partitions for stream, each in described.items()}
        names = self._streams or set(self.streams)
        return {
            name: max((lane.partitions for lane in self._of(name)), default=0) or len(self._lanes)
            for name in names
        }

    @property
    def _at_end(self) -> bool:
        """What is there was read to its end; what is missing speaks for itself."""
        return (
            bool(self._lanes) and not self._behind and not (self._finder and self._finder.missing)
        )

    def _at_end_proven(self) -> bool:
        """Whether all was read, with `until_end`. Raises: NothingPublished where it was and is not
        proven."""
        ended = self._until_end and bool(self._lanes) and not self._behind
        if ended and not self.proven:
            raise NothingPublished(f"read to the end, and not proven: {self._unproven()}")
        return ended

    def _unproven(self) -> str:
        assert self._finder is not None, "there is something to prove once the reader was entered"
        return what_is_unproven(self.lanes(), self._expected(), self._finder.missing)

    # ---- reading ---------------------------------------------------------------------------------

    async def _read_on(self) -> bool:
        """Read some more, and say what waits for its proof. False: the reader is closed."""
        with own_errors():
            going = await self._step()
        now_s = asyncio.get_running_loop().time()
        if not self._at_end or self.proven:
            self._unproven_s = now_s
        elif now_s >= self._unproven_s + LOOK_AGAIN_S:
            self._unproven_s = now_s
            self._waiting(
                f"read to the end, and not proven yet: {self._unproven()}; the next heartbeat tells"
            )
        return going

    async def _step(self) -> bool:
        """Read some more; one caller at a time. False: the reader is closed."""
        if self._finder is None:
            raise RuntimeError(
                "enter the reader before reading: async with TopicReader(...) as reader"
            )
        problem = ""
        async with self._turn:
            if self._consumer is None:
                return False
            try:
                async with asyncio.timeout(None) as self._scope:
                    problem = await (self._advance() if self._lanes else self._find())
            except (KafkaConnectionError, KafkaTimeoutError, TimeoutError) as error:
                problem = self._away(error)
            except (KafkaError, OSError) as error:
                if self._consumer is None:
                    return False
                raise SinkUnavailable(f"kafka does not let us read: {unreadable(error)}") from error
            finally:
                self._scope = None
            if self._consumer is None:
                return False
        if problem:
            self._waiting(problem)
        return True

    def _away(self, error: BaseException) -> str:
        """What to say while no broker answers. Raises: SinkUnavailable with `until_end`."""
        if self._consumer is None:
            return ""
        why = (
            f"kafka at {servers_text(self._arguments)} cannot be asked: "
            f"{away(self._consumer, error)}"
        )
        if self._until_end:
            raise SinkUnavailable(why) from error
        self._look_at_s = asyncio.get_running_loop().time() + LOOK_AGAIN_S
        return f"{why}; reading goes on when it can be"

    async def _find(self) -> str:
        """Find what to read and where to start. Shape: "", or what is missing."""
        assert self._finder is not None, "enter the reader before reading"
        await asyncio.sleep(self._look_at_s - asyncio.get_running_loop().time())
        problem = await self._finder.look()
        if not problem:
            await self._extend()
            problem = "; ".join(self._finder.missing.values())
        if problem and self._until_end and not self._lanes:
            raise NothingPublished(problem)
        self._look_at_s = asyncio.get_running_loop().time() + LOOK_AGAIN_S
        return "" if self._until_end else problem

    async def _look_again(self) -> str:
        """Whether what is read is there still, and what was missing has come. Shape: "", or what is
        missing."""
        finder, loop = self._finder, asyncio.get_running_loop()
        assert finder is not None, "enter the reader before reading"
        if loop.time() < self._look_at_s:
            return ""
        async with asyncio.timeout(_LOOK_TIMEOUT_S):
            await self._extend()
            await self._shorten()
        problem = "; ".join(finder.missing.values())
        if self._until_end and any(place in self._cursors.gone for place in self._behind):
            raise NothingPublished(problem)
        self._look_at_s = loop.time() + (LOOK_AGAIN_S if problem else LOOK_ANYWAY_S)
        return "" if self._until_end else problem

    async def _extend(self) -> None:
        """Take in the partitions that were found since, let go of those that are gone, and stand
        where each is to be read."""
        assert self._finder is not None, "enter the reader before reading"
        finder, cursors = self._finder, self._cursors
        self._let_go(finder.described() or {})
        found = await finder.places(frozenset(self._lanes))
        gone = {
            place
            for place in self._lanes
            if place.partition not in finder.there.get(place.topic, ())
        }
        over = {place for place in gone if finder.is_over(place, self._lanes[place].by_stream)}
        gone -= over
        control = finder.control if finder.control_there else None
        if (
            not (found or over or finder.anew)
            and gone == cursors.gone
            and control == cursors.control
        ):
            return
        new = sorted(found)
        begins = await self._consumer.beginning_offsets(new)
        ends = await self._consumer.end_offsets(new)
        # From here on without an await: a cancellation leaves all or nothing.
        for place in new:
            found[place].update(self._owed.origins(place.topic, place.partition, ends[place]))
        for place in over:
            self._bury(place)
        # asked before: `assign` forgets it
        at = {place: cursors.stands(place) for place in self._lanes}
        for place in new:
            lanes = self._lanes[place] = PartitionReplicas(
                place.partition, found[place], only=self._streams
            )
            at[place] = max(begins[place], lanes.start or 0)
            if ends[place] > at[place]:
                self._behind[place] = ends[place]
        for place in (
            {*cursors.gone, *(place for place in self._lanes if place.topic in finder.anew)}
            - gone
            - over
        ):
            self._made_anew(place)
            at[place] = 0
        finder.anew.clear()
        cursors.assign(at, gone, control, finder.control_at)
        self._settle_owed()

    def _made_anew(self, place: TopicPartition) -> None:
        """The topic was recreated: it is read from its start. Raises: PositionsLost."""
        self._owed.made_anew(place.topic, place.partition)
        self._problems.add(
            Problem(
                "anew",
                place.topic,
                place.partition,
                0,
                "the topic was recreated: read from its start",
            )
        )
        self._lanes[place].begin_anew()
        self._cursors.at[place] = 0
        # up to the end that the look finds, `_shorten`
        self._behind[place], self._look_at_s = sys.maxsize, 0.0

    def _bury(self, place: TopicPartition) -> None:
        """The partition will never be there again: what was held of it is gone."""
        self._behind.pop(place, None)
        for lane in self._lanes.pop(place).by_stream.values():
            self._pending.close(place.topic, lane, "gone")

    async def _shorten(self) -> None:
        """An end that will never be reached, for the log is shorter now, is not waited for."""
        behind = [place for place in self._behind if place not in self._cursors.gone]
        for place, end in (await self._consumer.end_offsets(behind)).items() if behind else ():
            self._behind[place] = min(self._behind[place], end)

    def _let_go(self, described: Mapping[str, DescribedStream]) -> None:
        """What was held of streams that stand on other topics now is gone; what is there comes
        again. Raises: PositionsLost."""
        self._owed.compare(described)
        for place, lanes in self._lanes.items():
            for stream, each in described.items():
                if each.topic == place.topic:
                    lanes.come_back(stream)
                elif stream in lanes.by_stream:
                    self._pending.close(place.topic, lanes.leave(stream), "moved")

    async def _advance(self) -> str:
        """Take what comes. Shape: "", or what is missing."""
        assert self._finder is not None, "enter the reader before reading"
        cursors = self._cursors
        # Named, for what aiokafka still has to say of a control topic that may not be read must not
        # be raised here.
        places = cursors.read
        if not places:
            await asyncio.sleep(self._look_at_s - asyncio.get_running_loop().time())
            return await self._look_again()
        fetched = await fetch(self._consumer, places, max_records=_AT_ONCE)
        for place, messages in fetched.items():
            if place != cursors.control:
                self._take(place, self._lanes[place], messages)
            elif self._finder.learn(messages):
                # kept here: after a cancellation the next step continues with it
                self._look_at_s = 0.0
        for place in [*self._behind]:
            if cursors.stands(place) >= self._behind[place]:
                del self._behind[place]
        self._settle_owed()
        self._begin_proven()
        return await self._look_again()

    def _begin_proven(self) -> None:
        """What was read to its end and is proven may be given out."""
        for place, lanes in self._lanes.items():
            for lane in lanes.by_stream.values() if place not in self._behind else ():
                if (
                    not lane.outbox.begun
                    and lane.proven
                    and not self._owed.holds(place.topic, place.partition, lane.stream)
                ):
                    self._pending.begin(place.topic, lane, self._cursors.stands(place) - 1)

    def _take(
        self, place: TopicPartition, lanes: PartitionReplicas, messages: Sequence[Any]
    ) -> None:
        """Apply what was fetched of one partition, up to where it has to be read again."""
        if messages and messages[0].offset < self._cursors.at[place]:
            self._made_anew(place)
        for message in messages:
            offset = message.offset
            self._cursors.at[place] = offset + 1
            try:
                record = decode(message.key, message.value, message.headers)
            except RecordRefused as error:
                self._problems.add(
                    Problem("foreign", place.topic, place.partition, offset, str(error))
                )
                continue
            if self._owed:
                self._owed.settle(place.topic, place.partition, offset, lanes)
            if isinstance(record, ObjectRecord) and record.value is not None:
                found = content_hash(record.key, record.value)
                if found != record.value_hash:
                    self._problems.add(
                        Problem(
                            "hash",
                            place.topic,
                            place.partition,
                            offset,
                            "a value is not what ce_wrhash says",
                        )
                    )
                    # the digest is to speak of what is held
                    record = msgspec.structs.replace(record, value_hash=found)
            applied = lanes.apply(offset, record)
            if applied is not None and not self._took(place, offset, record, *applied):
                return

    def _took(
        self,
        place: TopicPartition,
        offset: int,
        record: Decoded,
        lane: PartitionReplica,
        outcome: object,
    ) -> bool:
        """Hand on what a record did. False: the rest of what was fetched is void, the cursor went
        back."""
        match outcome:
            case Ignored():
                # of a former writer, or of a recreated topic
                if not outcome.duplicate and isinstance(record, MarkerRecord):
                    self._look_at_s = min(
                        self._look_at_s, asyncio.get_running_loop().time() + LOOK_AGAIN_S
                    )
                return True
            case Changed():
                assert isinstance(record, ObjectRecord), "a marker changes nothing by itself"
                self._pending.add(place.topic, lane, outcome, record.reason, offset)
                return True
            case Noted():
                for change in outcome.swept:
                    self._pending.add(place.topic, lane, change, "swept", offset)
            case Replaced():
                for change in outcome.changes:
                    self._pending.add(place.topic, lane, change, "repaired", offset)
            case ReadAgain() | Unproven():
                detail = f"{lane.stream}: the state disagreed with a marker, "
                detail += (
                    "read again"
                    if isinstance(outcome, ReadAgain)
                    else "also after reading again: the next snapshot will mend it"
                )
                self._problems.add(Problem("digest", place.topic, place.partition, offset, detail))
                if isinstance(outcome, ReadAgain):
                    self._cursors.seek(place, outcome.offset or 0)
                    self._behind[place] = max(self._behind.get(place, 0), offset + 1)
                    return False
        agreed = isinstance(record, MarkerRecord) and record.kind != "claim" and lane.proven
        if agreed and not self._owed.holds(place.topic, place.partition, lane.stream):
            self._pending.reach(place.topic, lane, offset + 1)
        return True

    # ---- saved positions -------------------------------------------------------------------------

    def _settle_owed(self) -> None:
        """Prove the saved places that were reached, and forget those of topics that are not wanted
        any more. Raises: PositionsLost."""
        if not self._owed or not self._lanes:
            return
        assert self._finder is not None, "enter the reader before reading"
        described = self._finder.described()
        for place in map(TopicPartition._make, self._owed.places()):
            if place in self._lanes:
                self._owed.settle(
                    place.topic, place.partition, self._cursors.stands(place), self._lanes[place]
                )
            else:
                topics = self._find_in[1]
                partitions = (
                    len(self._finder.there.get(place.topic, ())) if place.topic in topics else 0
                )
                wanted = not topics or place.topic in topics
                self._owed.forget(
                    place.topic, place.partition, described, partitions, wanted=wanted
                )
