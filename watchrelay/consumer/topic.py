"""Follows streams on Kafka: from the newest snapshot, live, verified, repaired after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Any, Self

import msgspec

from watchrelay.consumer.changes import Change, PartitionState, Problem, ProblemKind
from watchrelay.consumer.connecting import (
    STOP_TIMEOUT_S,
    Waiting,
    away,
    checked_servers,
    make_consumer,
    start_consumer,
)
from watchrelay.consumer.errors import NothingPublished, no_record_of, own_errors
from watchrelay.consumer.locate import Finder, within
from watchrelay.consumer.partitions import (
    Objects,
    PartitionReplica,
    PartitionReplicas,
    Pending,
)
from watchrelay.consumer.reader import LOOK_AGAIN_S
from watchrelay.consumer.replica import Noted, Outcome, ReadAgain, Replaced, Unproven
from watchrelay.consumer.saved import UnreachedPositions, saved_from
from watchrelay.contract.control import VALUE_BYTES_MAX
from watchrelay.contract.records import Decoded, MarkerRecord, ObjectRecord, decode
from watchrelay.contract.state import Changed, Ignored, judged
from watchrelay.core.errors import RecordRefused, SinkUnavailable
from watchrelay.core.text import counted, printable
from watchrelay.kafka.client import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    TopicPartition,
)
from watchrelay.kafka.client.consumer import stop_consumer
from watchrelay.kafka.client.failures import servers_text, unreadable
from watchrelay.kafka.cursor import Cursor
from watchrelay.kafka.reading import Reading, offset_ranges

LOOK_ANYWAY_S = 15.0
"""Only asking shows a deleted topic or a broker away. Longer than a heartbeat interval."""
SILENT_AFTER_S = 20.0
"""Seconds without an answer after which the consumer is replaced: aiokafka never asks the bootstrap
servers again (https://github.com/aio-libs/aiokafka/issues/459)."""
_LOOK_TIMEOUT_S = 10.0
_AT_ONCE = 2_000


class TopicReader:
    """The state of some streams, and every change of it; use it as in the package's example.

    The iteration gives each object of the proven state once, as `added`, then each change of it.
    Nothing is given that is not proven: after a loss the changes of that partition are held back
    until its state is proven again, then what differs is given. All loops over a reader, also in
    several tasks, share one sequence; a task that is cancelled loses no change. Nothing happens in
    the background: only `ready()` and the iteration read. Of changes that are not taken meanwhile,
    only the latest state of each object is kept.

    There is no consumer group and nothing is committed to Kafka: save `positions()` together with
    what was made of the changes.

    Args:
        kafka: A bootstrap address, several, or keyword arguments of aiokafka's consumer.
        control_topic: `<prefix>.<cluster>.control`. Reading starts at the newest snapshot that can
            be verified; without it, or the right to read it, at the one that the newest heartbeats
            name, and a stream without a writer is found by name alone.
        topics: Only these; required without `control_topic`.
        streams: Only these; none: all, also those that are described later.
        resume: What `positions()` gave. The changes since then come, deletes included, perhaps
            those since the last heartbeat once more; the state at that place is proven first.
            Discard before what you hold of each stream and partition that is not in it.
        until_end: Stop at the end that the partitions have at the start.
        waiting: Called about once a second with what is missing: a topic or its partitions, a
            broker, the proof. Reading goes on by itself when it comes. Default: a warning of the
            logger `watchrelay.consumer`, once for each thing missing.

    Raises:
        ValueError or TypeError: At once, for arguments that can never be right.
        KafkaUnavailable: No broker answers at the start, or a right is missing.
        PositionsLost: The log no longer leads to `resume`.
        NothingPublished: Only with `until_end`, where waiting would never end.
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
        waiting: Callable[[str], None] | None = None,
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
        self._servers = servers_text(self._arguments)
        self._limits = {control_topic: VALUE_BYTES_MAX} if control_topic else {}
        self._streams, self._topics = frozenset(streams), tuple(topics)
        self._until_end = until_end
        self._waiting = Waiting(waiting)
        saved = [each for each in saved_from(resume) if not streams or each.stream in streams]
        self._unreached = UnreachedPositions(saved)
        self._entered, self._open = False, asyncio.Event()
        self._reading: Reading
        """Since the start."""
        self._finder = Finder(
            None,
            control_topic=control_topic,
            topics=topics,
            streams=self._streams,
            servers=self._servers,
            whole=until_end,
        )
        self._control: TopicPartition | None = None
        """The control partition, while it is read."""
        self._replicas: dict[TopicPartition, PartitionReplicas] = {}
        self._look_at_s = self._unproven_s = 0.0
        self._away_since_s: float | None = None
        """Since when no broker answers."""
        self._scope: asyncio.Timeout | None = None
        """Around what is awaited of Kafka: `close()` ends it."""
        self._pending = Pending()
        self._turn = asyncio.Lock()

    # ---- life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Connect. Raises: KafkaUnavailable; RuntimeError: entered before, or closed meanwhile."""
        if self._entered:
            raise RuntimeError("a TopicReader is entered once: make another one")
        self._entered = True
        consumer = make_consumer(self._arguments, self._limits)
        self._use(consumer)
        self._open.set()
        try:
            await self._begin(consumer)
        except BaseException:
            self._open.clear()
            raise
        return self

    def _use(self, consumer: Any) -> None:
        self._finder.consumer = consumer
        self._reading = Reading(
            consumer, self._servers, committed=True, lost=self._lost, silent_after_s=inf
        )

    async def _begin(self, consumer: Any) -> None:
        try:
            with own_errors():
                async with asyncio.timeout(None) as self._scope:
                    await start_consumer(consumer, self._arguments)
        except TimeoutError:
            raise RuntimeError("the reader was closed before it had started") from None
        finally:
            self._scope = None

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect, and end what goes on in other tasks; the state can be looked at still."""
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())
        if self._open.is_set():
            self._open.clear()
            await stop_consumer(self._reading.consumer, within_s=STOP_TIMEOUT_S)

    # ---- what readers ask ------------------------------------------------------------------------

    async def ready(self) -> None:
        """Return once the whole state as of the first call is read and proven.

        Raises: as the class says; RuntimeError when the reader is closed."""
        while not self.proven:
            self._at_end_proven()
            if not await self._read_on():
                raise RuntimeError("the reader is closed, and was not ready")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Change:
        """The next change.

        Raises: as the class says; StopAsyncIteration when the reader is closed, or at the end with
        `until_end`; NothingPublished where a partition is not proven at that end."""
        while (change := self._pending.take()) is None:
            if self._at_end_proven():
                raise StopAsyncIteration
            # closed: what was read before is given still
            if not await self._read_on() and not self._pending:
                raise StopAsyncIteration
        return change

    @property
    def proven(self) -> bool:
        """Every partition of every stream wanted agreed with its newest marker, and is read
        to the end that it had at first."""
        if not (self._replicas or self._control) or self._behind or self._unreached:
            return False
        if any(replicas.absent for replicas in self._replicas.values()):
            return False
        expected = self._expected()
        return bool(expected) and all(
            sum(partition_replica.proven for partition_replica in self._of(stream)) >= partitions
            for stream, partitions in expected.items()
        )

    @property
    def problems(self) -> list[Problem]:
        """What was not as it should be, each once, counted."""
        return self._finder.problems.all()

    @property
    def streams(self) -> list[str]:
        """The streams met or described so far."""
        return sorted(
            {stream for replicas in self._replicas.values() for stream in replicas.by_stream}
        )

    def objects(self, stream: str) -> Objects:
        """The objects of `stream` by key, a live view. Not the truth where it is not proven."""
        return Objects(stream, self._replicas)

    def get(self, key: str, *, stream: str = "") -> Any:
        """The object at `key`, decoded; None where there is none. `stream` may be left out
        where there is only one.

        Raises: ValueError where there are several; ObjectUnreadable."""
        names = [stream] if stream else sorted(self._streams) or self.streams
        if len(names) > 1:
            raise ValueError(f"name the stream: this reader has {', '.join(names)}")
        return self.objects(names[0]).get(key) if names else None

    def partitions(self) -> list[PartitionState]:
        return [
            partition_replica.state()
            for _, replicas in sorted(self._replicas.items())
            for _, partition_replica in sorted(replicas.by_stream.items())
        ]

    def positions(self) -> list[dict[str, Any]]:
        """What to save, as plain JSON values: per stream and partition the newest proven
        place before which all was given. One that had none yet is missing: it is read from
        the newest snapshot, and deletes of what was given of it before do not come."""
        passed = [each for replicas in self._replicas.values() for each in replicas.passed()]
        saved = {
            (each.stream, each.partition): each
            for each in [*self._unreached.all(), *self._pending.left(), *passed]
        }
        return [msgspec.to_builtins(saved[place]) for place in sorted(saved)]

    def _of(self, stream: str) -> list[PartitionReplica]:
        return [
            replicas.by_stream[stream]
            for replicas in self._replicas.values()
            if stream in replicas.by_stream
        ]

    def _expected(self) -> dict[str, int]:
        """Partitions by stream: as described; without the control topic, as the markers
        have them."""
        if (described := self._finder.described()) is not None:
            partitions = {stream: each.partitions for stream, each in described.items()}
            unpublished = self._by_markers(self._finder.unpublished(), 1)
            return dict.fromkeys(self._finder.retired(), 0) | unpublished | partitions
        return self._by_markers(self._streams or set(self.streams), len(self._replicas))

    def _by_markers(self, streams: Collection[str], unknown: int) -> dict[str, int]:
        return {
            stream: max((each.partitions for each in self._of(stream)), default=0) or unknown
            for stream in streams
        }

    @property
    def _behind(self) -> bool:
        """Something is not read yet to the end that it had when it was found."""
        return any(replicas.cursor.is_behind for replicas in self._replicas.values())

    def _at_end_proven(self) -> bool:
        """Whether all was read, with `until_end`. Raises: NothingPublished where it is not
        proven."""
        ended = self._until_end and bool(self._replicas) and not self._behind
        if ended and not self.proven:
            raise NothingPublished(f"read to the end, and not proven: {self._unproven()}")
        return ended

    def _unproven(self) -> str:
        missing = self._finder.missing
        unproven = [each for each in self.partitions() if not each.proven]
        waits = [f"{each.stream}/{each.partition}" for each in unproven]
        empty = sorted({each.stream for each in unproven if not each.epoch})
        waits += [
            f"{stream} ({found} of {counted(partitions, 'partition')} found)"
            for stream, partitions in sorted(self._expected().items())
            if stream not in missing and (found := len(self._of(stream))) < partitions
        ]
        causes = [*([no_record_of(empty)] if empty else ()), *missing.values()]
        return "; ".join([", ".join(waits)] * bool(waits) + causes) or "no stream was found"

    # ---- reading ---------------------------------------------------------------------------------

    async def _read_on(self) -> bool:
        """Read some more, and say what waits for its proof. False: the reader is closed."""
        with own_errors():
            going = await self._step()
        at_end = self._replicas and not self._behind and not self._finder.missing
        if not at_end or self.proven:
            self._unproven_s = _now_s()
            if at_end and not self._reading.transactions.any_open:
                self._waiting.forget()
        elif _now_s() >= self._unproven_s + LOOK_AGAIN_S:
            self._unproven_s = _now_s()
            self._waiting.unproven(
                f"read to the end, and not proven yet: {self._unproven()}; waiting for a heartbeat"
            )
        return going

    async def _step(self) -> bool:
        """Read some more; one caller at a time. False: the reader is closed."""
        if not self._entered:
            raise RuntimeError(
                "enter the reader before reading: async with TopicReader(...) as reader"
            )
        problem = ""
        async with self._turn:
            if not self._open.is_set():
                return False
            try:
                async with asyncio.timeout(None) as self._scope:
                    since_s = self._away_since_s
                    silent = since_s is not None and _now_s() >= since_s + SILENT_AFTER_S
                    problem = await (self._renew() if silent else self._advance())
            except (KafkaConnectionError, KafkaTimeoutError, TimeoutError) as error:
                problem = self._away(error)
            except (KafkaError, OSError) as error:
                if not self._open.is_set():
                    return False
                raise SinkUnavailable(f"kafka does not let us read: {unreadable(error)}") from error
            finally:
                self._scope = None
            if not self._open.is_set():
                return False
        if problem:
            self._waiting.missing(problem)
        return True

    def _away(self, error: BaseException) -> str:
        """What to say while no broker answers. Raises: SinkUnavailable with `until_end`."""
        if not self._open.is_set():
            return ""
        why = f"kafka at {self._servers} cannot be asked: {away(self._reading.consumer, error)}"
        if self._until_end:
            raise SinkUnavailable(why) from error
        self._look_at_s = _now_s() + LOOK_AGAIN_S
        self._away_since_s = self._away_since_s or _now_s()
        return f"{why}; reading goes on when it can be"

    async def _renew(self) -> str:
        """Go on with a consumer that asks the bootstrap servers, if they answer; ""."""
        self._away_since_s = None
        consumer = make_consumer(self._arguments, self._limits)
        try:
            await start_consumer(consumer, self._arguments)
        except SinkUnavailable:
            return ""  # the former one goes on asking
        former = consumer
        if self._open.is_set():  # else it was closed meanwhile
            former, cursors = self._reading.consumer, self._reading.cursors
            self._use(consumer)
            self._reading.assign(cursors)
            self._look_at_s = 0.0
        try:
            await stop_consumer(former, within_s=STOP_TIMEOUT_S)
        except asyncio.CancelledError:
            await stop_consumer(former, within_s=STOP_TIMEOUT_S)
            raise
        return ""

    async def _advance(self) -> str:
        """Take what arrives, and look again when it is time; "", or what is missing."""
        await asyncio.sleep(0)  # the program that reads has work of its own
        # Named, for what aiokafka still has to say of a control topic that may not be read must not
        # be raised here.
        if places := [*self._reading.cursors] if self._replicas else []:
            fetched = await self._reading.fetch(places, max_records=_AT_ONCE)
            for place, messages in fetched.items():
                if place != self._control:
                    self._take(place, self._replicas[place], messages)
                elif self._finder.learn(messages):
                    # kept here: after a cancellation the next step continues with it
                    self._look_at_s = 0.0
            self._reading.move()
            self._verify_reached()
            self._give_proven()
        else:
            await asyncio.sleep(self._look_at_s - _now_s())
        return await self._look() if _now_s() >= self._look_at_s else ""

    async def _look(self) -> str:
        """Find what to read, from where, and whether what is read exists still; "", or what
        is missing."""
        problem = "" if self._replicas else await self._finder.look()
        self._unreached.compare(self._finder.described_anywhere(), self._topics)
        if problem:
            self._verify_reached()
        else:
            async with asyncio.timeout(_LOOK_TIMEOUT_S if self._replicas else None):
                await self._extend()
                await self._lower_ends()
            for stream in self._finder.unpublished():
                if not self._of(stream):
                    text = f"stream {printable(stream)} has not been published yet"
                    self._finder.missing[stream] = text
            problem = "; ".join(self._finder.missing.values())
        self._away_since_s = None
        # also where a partition that was not read to its end no longer exists
        lost = not self._replicas or any(
            each.absent and each.cursor.is_behind for each in self._replicas.values()
        )
        if problem and self._until_end and lost:
            raise NothingPublished(problem)
        held_back = {} if self._until_end else self._reading.held_back()
        soon = problem or not self._replicas
        self._look_at_s = _now_s() + (LOOK_AGAIN_S if soon else LOOK_ANYWAY_S)
        if held_back:
            return "; ".join(map(str, held_back.values()))
        return "" if self._until_end or self.proven else problem

    async def _extend(self) -> None:
        """Take in partitions that were found, restart recreated ones, drop those that will
        not come back."""
        finder = self._finder
        self._drop_moved()
        found = await finder.places(frozenset(self._replicas))
        absent = {
            place
            for place in self._replicas
            if place.partition not in finder.there.get(place.topic, ())
        }
        final = {
            place for place in absent if finder.is_over(place, self._replicas[place].by_stream)
        }
        absent -= final
        control = finder.control if finder.control_there else None
        if (
            not (found or final or finder.recreated)
            and absent == {place for place, replicas in self._replicas.items() if replicas.absent}
            and control == self._control
        ):
            return
        ranges = await offset_ranges(self._reading.consumer, sorted(found))
        # From here on without an await: a cancellation leaves all or nothing.
        for place, (_, end) in ranges.items():
            unreached = self._unreached.origins(place.topic, place.partition, end)
            found[place] = within(found[place], end) | unreached
        for place in final:
            # the partition will never exist again: its objects are deleted
            for partition_replica in self._replicas.pop(place).by_stream.values():
                self._pending.close(partition_replica, "gone")
        for place, (begin, end) in ranges.items():
            replicas = self._replicas[place] = PartitionReplicas(
                place.partition, found[place], topic=place.topic, only=self._streams
            )
            replicas.cursor = Cursor(max(begin, replicas.start), end)
        self._drop_moved()
        for place, replicas in self._replicas.items():
            doubtful = replicas.absent and place.topic not in finder.unchanged
            if place not in absent and (doubtful or place.topic in finder.recreated):
                self._restart(replicas)
            replicas.absent = place in absent
        finder.recreated.clear()
        # the client would ask for an absent partition again and again
        reads = {
            place: replicas.cursor
            for place, replicas in self._replicas.items()
            if not replicas.absent
        }
        self._control = control
        # its past was read
        self._reading.assign(reads | ({control: Cursor(finder.control_at, 0)} if control else {}))
        self._verify_reached()

    def _lost(self, place: TopicPartition, _why: str) -> bool:
        """The offsets of a partition went back: what is there now is read."""
        if place != self._control:
            self._restart(self._replicas[place])
        return True

    def _restart(self, replicas: PartitionReplicas) -> None:
        """The topic was recreated: what it holds now replaces the state once proven.
        Raises: PositionsLost."""
        self._unreached.restarted(replicas.topic, replicas.partition)
        self._note("recreated", replicas, 0, "the topic was recreated: read from its start")
        replicas.restart()
        self._look_at_s = 0.0  # it finds the end, in `_lower_ends`

    async def _lower_ends(self) -> None:
        """An end that will never be reached, for the log is shorter now, is not waited for."""
        ends = await self._reading.consumer.end_offsets(self._reading.behind)
        for place, end in ends.items():
            cursor = self._reading.cursors[place]
            cursor.end = end if cursor.end is None else min(end, cursor.end)

    def _drop_moved(self) -> None:
        """Give up the streams that are on other topics, or have fewer partitions, now."""
        described, retired = self._finder.described_anywhere(), set(self._finder.retired())
        for replicas in self._replicas.values():
            elsewhere = {
                stream
                for stream, each in described.items()
                if each.topic != replicas.topic or each.partitions <= replicas.partition
            }
            replicas.elsewhere = elsewhere | retired - replicas.by_stream.keys()
            for stream in elsewhere & replicas.by_stream.keys():
                moved = described[stream].topic != replicas.topic
                self._pending.close(replicas.by_stream.pop(stream), "moved" if moved else "gone")

    def _give_proven(self) -> None:
        """What was read to its end and is proven may be given out."""
        for replicas in self._replicas.values():
            behind = replicas.cursor.is_behind
            for partition_replica in replicas.by_stream.values() if not behind else ():
                partition_replica.outbox.catch_up()
                if (
                    not partition_replica.outbox.begun
                    and partition_replica.proven
                    and partition_replica not in self._unreached
                ):
                    self._pending.begin(partition_replica, replicas.cursor.next - 1)

    def _take(
        self, place: TopicPartition, replicas: PartitionReplicas, messages: Sequence[Any]
    ) -> None:
        """Apply what was fetched of one partition, up to where it has to be read again."""
        for message in messages:
            offset = message.offset
            try:
                record = decode(message.key, message.value, message.headers)
            except RecordRefused as error:
                self._note("foreign", replicas, offset, str(error))
                continue
            if self._unreached:
                self._unreached.verify(offset, replicas)
            if isinstance(record, ObjectRecord):
                claimed, record = record, judged(record)
                if record is not claimed:
                    self._note("hash", replicas, offset, "a value is not what ce_wrhash says")
            applied = replicas.apply(offset, record)
            if applied is None:
                continue
            partition_replica, outcome = applied
            self._apply_outcome(offset, record, partition_replica, outcome)
            if isinstance(outcome, ReadAgain):
                # the rest of what was fetched is void; records may name offsets of another log
                again = outcome.offset or 0
                self._reading.seek(place, again if again < offset else 0)
                if replicas.cursor.end is not None:
                    replicas.cursor.end = max(replicas.cursor.end, offset + 1)
                return

    def _note(
        self,
        kind: ProblemKind,
        replicas: PartitionReplicas | PartitionReplica,
        offset: int,
        why: str,
    ) -> None:
        self._finder.problems.add(Problem(kind, replicas.topic, replicas.partition, offset, why))

    def _apply_outcome(
        self, offset: int, record: Decoded, partition_replica: PartitionReplica, outcome: Outcome
    ) -> None:
        match outcome:
            case Ignored():
                # of a former writer, or of a recreated topic
                if not outcome.duplicate and isinstance(record, MarkerRecord):
                    self._look_at_s = min(self._look_at_s, _now_s() + LOOK_AGAIN_S)
            case Changed():
                assert isinstance(record, ObjectRecord), "a marker changes nothing by itself"
                self._pending.add(partition_replica, outcome, record.reason, offset)
            case Noted():
                for change in outcome.swept:
                    self._pending.add(partition_replica, change, "swept", offset)
            case Replaced():
                for change in outcome.changes:
                    self._pending.add(partition_replica, change, "repaired", offset)
            case ReadAgain():
                why = f"{partition_replica.stream}: the state disagreed with a marker, read again"
                self._note("digest", partition_replica, offset, why)
            case Unproven():
                why = (
                    f"{partition_replica.stream}: the state disagreed with a marker, also after "
                    "reading again: the next snapshot will mend it"
                )
                self._note("digest", partition_replica, offset, why)
        marked = isinstance(record, MarkerRecord) and record.kind != "claim"
        agreed = marked and partition_replica.proven and not isinstance(outcome, Ignored)
        if agreed and partition_replica not in self._unreached:
            self._pending.reach(partition_replica, offset + 1)

    def _verify_reached(self) -> None:
        """Prove the saved places that were reached, and forget those not wanted. Raises:
        PositionsLost."""
        if not self._unreached:
            return
        described = self._finder.described()
        for (topic, partition), streams in self._unreached.places().items():
            place = TopicPartition(topic, partition)
            if place in self._replicas:
                replicas = self._replicas[place]
                self._unreached.verify(replicas.cursor.next, replicas)
            elif self._replicas or any(map(self._finder.is_retired, streams)):
                named = place.topic in self._topics
                partitions = len(self._finder.there.get(place.topic, ())) if named else 0
                self._unreached.forget(
                    place.topic,
                    place.partition,
                    described,
                    partitions,
                    wanted=named or not self._topics,
                )


def _now_s() -> float:
    return asyncio.get_running_loop().time()
