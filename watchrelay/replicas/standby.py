"""The warm copy of a stream that another replica writes: its log, recovered as it grows, so that a
takeover reads only what came last."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from watchrelay.contract.control_state import Origin, claim_origins
from watchrelay.contract.records import LogRecord
from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import SinkUnavailable
from watchrelay.core.tasks import first_of, unless
from watchrelay.core.text import short
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.log_follower import FollowedLog
from watchrelay.kafka.range_reader import OffsetRange
from watchrelay.model.streams import StreamSpec
from watchrelay.store.objects import Store

log = logging.getLogger(__name__)

_STALLED_S: Final = 3.0
"""If nothing of the rest of a followed log is read for this time, all of it is read back."""
_AGAIN = Backoff(base_s=1.0, cap_s=15.0, jitter=0.1)
"""At most 15 s: a live writer hands its stream over only to a replica that has read the log."""
_HEALTHY_S = 60.0


class Follower(Protocol):
    """Follows logs for all standbys. Implemented and described by kafka/log_follower.py."""

    def follow(self, log: FollowedLog) -> None: ...
    def unfollow(self, log: FollowedLog) -> None: ...
    def hurry(self) -> None: ...
    async def run(self) -> None: ...


class EndOffsets(Protocol):
    """The part of the sink that a standby asks. Implemented by kafka/sink.py."""

    async def end_offset(self, topic: str, partition: int, *, committed: bool) -> int: ...


class FoldedLog(Protocol):
    """A log as far as it was read, in a store. Implemented by daemon/recovery.py."""

    @property
    def store(self) -> Store: ...
    @property
    def records(self) -> int: ...
    @property
    def outdated(self) -> bool: ...
    def take(self, partition: int, records: Sequence[LogRecord]) -> None: ...


class Reader(Protocol):
    """Reads the records of a stream. Implemented and described by daemon/recovery.py."""

    async def spans(
        self, spans: Sequence[OffsetRange], take: Callable[[int, list[LogRecord]], None]
    ) -> object: ...
    def understood(self, record: Any) -> LogRecord | None: ...


Folded = TypeVar("Folded", bound=FoldedLog)


class FollowedCopy(Generic[Folded]):
    """A log as far as it was read, from one start of its reading on; implements `FollowedLog`.

    Args:
        lag: called with the number of offsets that are not read yet.
    """

    def __init__(
        self,
        spec: StreamSpec,
        fold: Folded,
        reader: Reader,
        control: ControlTopic,
        lag: Callable[[int], None],
    ) -> None:
        self.spec, self.fold = spec, fold
        self.stream, self.topic, self.keys = spec.stream, spec.topic, spec.keys
        self.next: dict[int, int] = {}
        self.urgent = self.is_warm = False
        self.over = asyncio.Event()
        """Nothing more of it is taken."""
        self.ends: Mapping[int, int] = {}
        """By partition, the offset before which `catch_up` ends."""
        self.stops: Mapping[int, int] = {}
        """By partition, the offset before which a takeover ends its reading; empty before one."""
        self.reached = asyncio.Event()
        """It was read up to `stops`."""
        self._reader, self._control, self._lag = reader, control, lag
        self._starting_point = control.starting_point(spec.id, spec.partitions)

    async def catch_up(self, sink: EndOffsets) -> bool:
        """Read what is committed of the log now; True. Raises: SinkUnavailable, and what the
        log's records raise."""
        spec = self.spec
        origins = claim_origins(self._starting_point, spec.partitions)
        starts = {each: origins.get(each, Origin()).offset for each in spec.own_partitions}
        # what a former writer has left open is aborted by the claim, which must not wait for it
        now = {each: await sink.end_offset(spec.topic, each, committed=True) for each in starts}
        self.ends = ends = self.stops or now  # a takeover may have begun meanwhile
        if any(start is not None and start > ends[each] for each, start in starts.items()):
            raise SinkUnavailable(f"topic {spec.topic} ends before the stream's last snapshot")

        def take(partition: int, records: list[LogRecord]) -> None:
            if not self.over.is_set():
                self.fold.take(partition, records)

        spans = [OffsetRange(each, start, ends[each]) for each, start in starts.items()]
        await self._reader.spans(spans, take)
        self.next = dict(ends)
        log.info("stream is warm", extra={"stream": spec.id, "records": self.fold.records})
        return True

    def take(self, partition: int, records: Sequence[Any]) -> None:
        """Recover the next records."""
        if self.stops:
            records = [each for each in records if each.offset < self.stops[partition]]
        understood = map(self._reader.understood, records)
        self.fold.take(partition, [each for each in understood if each is not None])
        if self.fold.outdated:
            starting_point = self._control.starting_point(self.spec.id, self.spec.partitions)
            if starting_point not in (None, self._starting_point):
                raise SinkUnavailable("a snapshot replaces what was read before")

    def behind(self, records: int) -> None:
        """Note how far the log was read."""
        self._lag(records)
        self.note_reached()

    def note_reached(self) -> None:
        """Tell whether the rest was read."""
        if self.stops and all(self.next[each] >= stop for each, stop in self.stops.items()):
            self.reached.set()

    def lost(self, why: str) -> None:
        """The log is to be read again."""
        log.info("standby starts again", extra={"stream": self.spec.id, "reason": why})
        self.over.set()


class Standby(Generic[Folded]):
    """Use: `run()` as a task, which reads while `want` says so. To take the stream over: claim and
    call `read_rest`; then `end`, in any case. Whatever is wrong with the log costs the copy alone.

    Args:
        spec: the stream as it is planned.
        make_copy: makes a copy that holds nothing, of the stream as the control topic describes it.
        warmed: called with each change of `is_warm`.
        dropped: called when what was read is dropped, and reading it has ended.
    """

    def __init__(
        self,
        spec: StreamSpec,
        make_copy: Callable[[], FollowedCopy[Folded]],
        *,
        control: ControlTopic,
        sink: EndOffsets,
        follower: Follower,
        warmed: Callable[[bool], None],
        dropped: Callable[[], None],
        rng: random.Random,
    ) -> None:
        self._spec, self._make_copy = spec, make_copy
        self._control, self._sink, self._follower = control, sink, follower
        self._warmed, self._dropped, self._rng = warmed, dropped, rng
        self._wanted = asyncio.Event()
        self.copy: FollowedCopy[Folded] | None = None
        """What was read, and is read on."""

    @property
    def is_warm(self) -> bool:
        """The log was read to its end once, and is followed since."""
        return self.copy is not None and self.copy.is_warm

    @property
    def may_be_claimed(self) -> bool:
        """Nothing is gained by reading more before the claim."""
        return self.is_warm or not self._has_log()

    @property
    def store(self) -> Store | None:
        """That of what was read, and is read on."""
        return None if self.copy is None else self.copy.fold.store

    def want(self, wanted: bool) -> None:
        """Whether the assignment asks for a copy; without one, what was read is dropped."""
        if wanted:
            self._wanted.set()
        else:
            self._wanted.clear()
            if self.copy is not None:
                self.copy.over.set()

    def _has_log(self) -> bool:
        described = self._control.described(self._spec.stream)
        return described is not None and described.get("topic") == self._spec.topic

    async def run(self) -> None:
        """Catch up, and follow, again where the log was lost; until cancelled."""
        backoff = _AGAIN
        while True:
            await self._wanted.wait()
            await self._control.until(self._has_log)
            if not self._wanted.is_set():
                continue
            began_s = clock.now_s()
            try:
                await self._read()
            except Exception as error:  # noqa: BLE001 - without a copy a takeover takes longer
                why = f"{type(error).__name__}: {short(str(error))}"
                log.info("standby starts again", extra={"stream": self._spec.id, "reason": why})
            self._drop()
            if self._wanted.is_set():
                healthy = clock.now_s() - began_s > _HEALTHY_S
                backoff, wait_s = backoff.after_failure(
                    clock.now_s(), healthy=healthy, rng=self._rng
                )
                await asyncio.sleep(wait_s)

    async def _read(self) -> None:
        """Read the log until it is lost, or is to be dropped."""
        copy = self.copy = self._make_copy()
        reading = copy.catch_up(self._sink)
        if (
            await unless(copy.over, reading, name=f"warm {self._spec.id}")
            and not copy.over.is_set()
        ):
            copy.is_warm = True
            self._follower.follow(copy)
            self._warmed(True)
            copy.note_reached()
            await copy.over.wait()

    def end(self) -> None:
        """No copy is wanted."""
        self._wanted.clear()
        self._drop()

    def _drop(self) -> None:
        copy, self.copy = self.copy, None
        if copy is None:
            return
        copy.over.set()
        self._follower.unfollow(copy)
        if copy.is_warm:
            self._warmed(False)
        self._dropped()

    async def read_rest(
        self, spec: StreamSpec, store: Store, stops: Mapping[int, int]
    ) -> Folded | None:
        """What was read into `store`, read on to these offsets (by partition, exclusive), also
        where that has only begun; None where it was lost, is of another topic or number of
        partitions, or where the followed log stalls."""
        copy = self.copy
        if (
            copy is None
            or copy.over.is_set()
            or copy.fold.store is not store
            or copy.spec != spec
            or any(copy.ends.get(partition, 0) > stop for partition, stop in stops.items())
        ):
            self.end()
            return None
        copy.stops, copy.urgent = stops, True
        self._follower.hurry()
        while not (copy.over.is_set() or copy.reached.is_set()):
            before, is_followed = dict(copy.next), copy.is_warm
            await first_of(copy.reached, copy.over, timeout_s=_STALLED_S)
            if is_followed and copy.next == before:
                break  # it stalls
        read = copy.reached.is_set() and not copy.over.is_set()
        self.end()  # what comes after the claim is not of this fold
        return copy.fold if read else None
