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
"""No longer: a live writer hands its stream over only to a replica that has read the log."""
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
    def spec(self) -> StreamSpec: ...
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


class Standby(Generic[Folded]):
    """Use: `run()` as a task, which reads while `want` says so. To take the stream over: claim and
    call `read_rest`; then `end`, in any case. Whatever is wrong with the log costs the copy alone.

    Args:
        pinned: the stream as the control topic describes it.
        warmed: called with each change of `is_warm`.
        lag: called with the number of offsets that are not read yet.
        dropped: called when what was read is dropped, and reading it has ended.
    """

    def __init__(
        self,
        pinned: Callable[[], StreamSpec],
        make_fold: Callable[[StreamSpec], Folded],
        make_reader: Callable[[StreamSpec], Reader],
        *,
        control: ControlTopic,
        sink: EndOffsets,
        follower: Follower,
        warmed: Callable[[bool], None],
        lag: Callable[[int], None],
        dropped: Callable[[], None],
        rng: random.Random,
    ) -> None:
        spec = pinned()
        self.id, self.stream, self.topic = spec.id, spec.stream, spec.topic
        self.keys = spec.keys
        self.next: dict[int, int] = {}
        self.urgent = False
        self._pinned, self._make_fold, self._make_reader = pinned, make_fold, make_reader
        self._control, self._sink, self._follower = control, sink, follower
        self._warmed, self._lag, self._dropped, self._rng = warmed, lag, dropped, rng
        self._wanted, self._lost, self._reached = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._fold: Folded | None = None
        """What was read."""
        self._is_warm = False
        self._reader: Reader | None = None
        self._starting_point: dict[str, object] | None = None
        self._ends: Mapping[int, int] = {}
        """By partition, the offset before which the first reading ends."""
        self._stops: Mapping[int, int] = {}
        """By partition, the offset before which the rest ends."""

    @property
    def is_warm(self) -> bool:
        """The log was read to its end once, and is followed since."""
        return self._is_warm

    @property
    def may_be_claimed(self) -> bool:
        """Nothing is gained by reading more before the claim."""
        return self.is_warm or not self._has_log()

    @property
    def store(self) -> Store | None:
        """That of what was read, and is read on."""
        return None if self._fold is None else self._fold.store

    def want(self, wanted: bool) -> None:
        """Whether the assignment asks for a copy; without one, what was read is dropped."""
        if wanted:
            self._wanted.set()
        elif self._wanted.is_set():
            self._wanted.clear()
            self._lost.set()

    def _has_log(self) -> bool:
        described = self._control.described(self.stream)
        return described is not None and described.get("topic") == self.topic

    # ---- reading ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Catch up, and follow, again where the log was lost; until cancelled."""
        backoff = _AGAIN
        while True:
            await self._wanted.wait()
            await self._control.until(self._has_log)
            if not self._wanted.is_set():
                continue
            began_s = clock.now_s()
            self._lost.clear()
            try:
                caught_up = await unless(self._lost, self._catch_up(), name=f"warm {self.id}")
                if caught_up and not self._lost.is_set():
                    self._follow()
                    await self._lost.wait()
            except Exception as error:  # noqa: BLE001 - without a copy a takeover takes longer
                self.lost(f"{type(error).__name__}: {short(str(error))}")
            self.close()
            if self._wanted.is_set():
                healthy = clock.now_s() - began_s > _HEALTHY_S
                backoff, wait_s = backoff.after_failure(
                    clock.now_s(), healthy=healthy, rng=self._rng
                )
                await asyncio.sleep(wait_s)

    async def _catch_up(self) -> bool:
        """Read what is committed of the log now; True. Raises: SinkUnavailable, and what the
        log's records raise."""
        spec = self._pinned()
        self.keys = spec.keys
        self._starting_point = self._control.starting_point(spec.id, spec.partitions)
        origins = claim_origins(self._starting_point, spec.partitions)
        starts = {each: origins.get(each, Origin()).offset for each in spec.own_partitions}
        fold, self._reader = self._make_fold(spec), self._make_reader(spec)
        self._fold = fold
        # what a former writer has left open is aborted by the claim, which must not wait for it
        ends = {
            each: await self._sink.end_offset(spec.topic, each, committed=True) for each in starts
        }
        ends = dict(self._stops or ends)
        self._ends = ends
        if any(at is not None and at > ends[each] for each, at in starts.items()):
            raise SinkUnavailable(f"topic {spec.topic} ends before the stream's last snapshot")
        spans = [OffsetRange(each, at, ends[each]) for each, at in starts.items()]

        def take(partition: int, records: list[LogRecord]) -> None:
            if self._fold is fold:
                fold.take(partition, records)

        await self._reader.spans(spans, take)
        self.next = dict(ends)
        log.info("stream is warm", extra={"stream": self.id, "records": fold.records})
        return True

    def _follow(self) -> None:
        self._is_warm = True
        self._follower.follow(self)
        self._warmed(True)
        self._note_reached()

    def close(self) -> None:
        """Stop reading, and drop what was read."""
        self._follower.unfollow(self)
        self._fold = None
        if self._is_warm:
            self._is_warm = False
            self._warmed(False)
        self._dropped()

    def end(self) -> None:
        """No copy is wanted."""
        self._wanted.clear()
        self._lost.set()
        self.close()

    # ---- FollowedLog: called by the follower -----------------------------------------------------

    def take(self, partition: int, records: Sequence[Any]) -> None:
        """Recover the next records."""
        assert self._fold is not None, "followed once it is warm"
        assert self._reader is not None, "the fold was read by it"
        if self._stops:
            records = [each for each in records if each.offset < self._stops[partition]]
        understood = map(self._reader.understood, records)
        self._fold.take(partition, [each for each in understood if each is not None])
        if self._fold.outdated:
            starting_point = self._control.starting_point(self.id, self._fold.spec.partitions)
            if starting_point not in (None, self._starting_point):
                raise SinkUnavailable("a snapshot replaces what was read before")

    def behind(self, records: int) -> None:
        """Note how far the log was read."""
        self._lag(records)
        self._note_reached()

    def _note_reached(self) -> None:
        stops = self._stops
        if stops and all(self.next[partition] >= stop for partition, stop in stops.items()):
            self._reached.set()

    def lost(self, why: str) -> None:
        """Read the log again."""
        log.info("standby starts again", extra={"stream": self.id, "reason": why})
        self._lost.set()

    # ---- the takeover ----------------------------------------------------------------------------

    async def read_rest(
        self, spec: StreamSpec, store: Store, stops: Mapping[int, int]
    ) -> Folded | None:
        """What was read into `store`, read on to these offsets (by partition, exclusive), also
        where that has only begun; None where it was lost, is of another topic or number of
        partitions, or where the followed log stalls."""
        fold = self._fold
        if (
            fold is None
            or self._lost.is_set()
            or fold.store is not store
            or fold.spec != spec
            or any(self._ends.get(partition, 0) > stop for partition, stop in stops.items())
        ):
            self.end()
            return None
        self._stops, self.urgent = stops, True
        self._follower.hurry()
        while self._fold is fold and not self._reached.is_set():
            followed = dict(self.next) if self._is_warm else None
            await first_of(self._reached, self._lost, timeout_s=_STALLED_S)
            if self._lost.is_set() or self.next == followed:
                break
        reached = self._fold is fold and self._reached.is_set()
        self.end()  # what comes after the claim is not of this fold
        return fold if reached else None
