"""The warm copy of a stream that another replica writes: its log, recovered as it grows, so that a
takeover reads only what came last."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from watchrelay.contract.control import Origin, claim_origins
from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import SinkUnavailable
from watchrelay.core.text import short
from watchrelay.daemon.recovery import LogFold, LogReader
from watchrelay.daemon.tasks import first_of, unless
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.log_follower import FollowedLog
from watchrelay.kafka.range_reader import OffsetRange
from watchrelay.model.streams import StreamSpec
from watchrelay.store.objects import Store

log = logging.getLogger(__name__)

CATCH_UPS_AT_ONCE: Final = 4
"""Streams that are read to the end for the first time, each by a consumer of its own."""
_REST_WITHIN_S: Final = 3.0
"""How long the rest of a log may take; then all of it is read back."""
_AGAIN = Backoff(base_s=1.0, cap_s=300.0)
_HEALTHY_S = 60.0


class Follower(Protocol):
    """Follows logs for all standbys. Implemented and described by kafka/log_follower.py."""

    def follow(self, log: FollowedLog) -> None: ...
    def unfollow(self, log: FollowedLog) -> None: ...
    def hurry(self) -> None: ...
    async def run(self) -> None: ...


class EndOffsets(Protocol):
    """The part of the sink that a standby asks. Implemented by kafka/sink.py."""

    async def end_offset(self, topic: str, partition: int) -> int: ...


class Standby:
    """Use: `run()` as a task, which reads while `want` says so. To take the stream over: cancel it,
    claim, and call `read_rest`; `close` in any case. Whatever is wrong with the log costs the copy
    alone.

    Args:
        pinned: the stream as the control topic describes it.
        warmed: called with each change of `is_warm`.
        lag: called with the number of offsets that are not read yet.
    """

    def __init__(
        self,
        pinned: Callable[[], StreamSpec],
        make_store: Callable[[StreamSpec], Store],
        make_reader: Callable[[StreamSpec], LogReader],
        *,
        control: ControlTopic,
        sink: EndOffsets,
        follower: Follower,
        warmed: Callable[[bool], None],
        lag: Callable[[int], None],
        rng: random.Random,
    ) -> None:
        spec = pinned()
        self.id, self.stream, self.topic = spec.id, spec.stream, spec.topic
        self.next: dict[int, int] = {}
        self.urgent = False
        self._pinned, self._make_store, self._make_reader = pinned, make_store, make_reader
        self._control, self._sink, self._follower = control, sink, follower
        self._warmed, self._lag, self._rng = warmed, lag, rng
        self._wanted, self._lost, self._reached = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._fold: LogFold | None = None
        """What was read, of a warm stream."""
        self._reader: LogReader | None = None
        self._starting_point: dict[str, object] | None = None
        self._stops: Mapping[int, int] = {}
        """By partition, the offset before which the rest ends."""

    @property
    def is_warm(self) -> bool:
        """The log was read to its end once, and is followed since."""
        return self._fold is not None

    @property
    def may_be_claimed(self) -> bool:
        """Nothing is gained by reading more before the claim."""
        return self.is_warm or not self._has_log()

    @property
    def store(self) -> Store | None:
        """That of what was read, of a warm stream."""
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
            began_s = clock.now_s()
            self._lost.clear()
            try:
                fold = await unless(self._lost, self._catch_up(), name=f"warm {self.id}")
                if fold is not None:
                    self._follow(fold)
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

    async def _catch_up(self) -> LogFold:
        """The log, read to the end that it has now. Raises: SinkUnavailable, and what the log's
        records raise."""
        spec = self._pinned()
        self._starting_point = self._control.starting_point(spec.id, spec.partitions)
        origins = claim_origins(self._starting_point, spec.partitions)
        starts = {each: origins.get(each, Origin()).offset for each in spec.own_partitions}
        fold, self._reader = LogFold(spec, self._make_store(spec)), self._make_reader(spec)
        ends = {each: await self._sink.end_offset(spec.topic, each) for each in starts}
        if any(at is not None and at > ends[each] for each, at in starts.items()):
            raise SinkUnavailable(f"topic {spec.topic} ends before the stream's last snapshot")
        spans = [OffsetRange(each, at, ends[each]) for each, at in starts.items()]
        await self._reader.spans(spans, fold.take)
        self.next = ends
        return fold

    def _follow(self, fold: LogFold) -> None:
        self._fold = fold
        self._follower.follow(self)
        log.info("stream is warm", extra={"stream": self.id, "records": fold.records})
        self._warmed(True)

    def close(self) -> None:
        """Read no more, and drop what was read."""
        self._follower.unfollow(self)
        if self._fold is not None:
            self._fold = None
            self._warmed(False)

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
        if self._stops and all(
            self.next[partition] >= stop for partition, stop in self._stops.items()
        ):
            self._reached.set()

    def lost(self, why: str) -> None:
        """Read the log again."""
        log.info("standby starts again", extra={"stream": self.id, "reason": why})
        self._lost.set()

    # ---- the takeover ----------------------------------------------------------------------------

    async def read_rest(self, spec: StreamSpec, stops: Mapping[int, int]) -> LogFold | None:
        """What was read of a warm stream, read on to these offsets (by partition, exclusive); None
        where it was lost, is of another topic or number of partitions, or takes too long."""
        fold = self._fold
        if fold is None or fold.spec != spec or self._lost.is_set():
            return None
        self._stops, self.urgent = stops, True
        self._follower.hurry()
        await first_of(self._reached, self._lost, timeout_s=_REST_WITHIN_S)
        return fold if self._reached.is_set() and not self._lost.is_set() else None
