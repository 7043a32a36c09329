"""The warm copy of a stream that another replica writes: its log, recovered as it grows, so that a
takeover reads only what came last."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from watchrelay.contract.records import Decoded
from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import SinkUnavailable
from watchrelay.core.text import short
from watchrelay.daemon.recovery import LogFold, LogReader
from watchrelay.daemon.tasks import unless
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.log_follower import FollowedLog
from watchrelay.kafka.range_reader import OffsetRange
from watchrelay.model.streams import StreamSpec
from watchrelay.store.objects import Store

log = logging.getLogger(__name__)

CATCH_UPS_AT_ONCE: Final = 4
"""Streams that are read to the end for the first time, each by a consumer of its own."""
_AGAIN = Backoff(base_s=1.0, cap_s=300.0)
_HEALTHY_S = 60.0


class Follower(Protocol):
    """Follows logs for all standbys. Implemented and described by kafka/log_follower.py."""

    def follow(self, log: FollowedLog) -> None: ...
    def unfollow(self, log: FollowedLog) -> None: ...
    async def run(self) -> None: ...


class EndOffsets(Protocol):
    """The part of the sink that a standby asks. Implemented by kafka/sink.py."""

    async def end_offset(self, topic: str, partition: int) -> int: ...


class Standby:
    """Use: `run()` as a task, which reads while `wanted`; once that was cancelled, `fold` is what
    was read of a warm stream. Whatever is wrong with the log costs the copy alone.

    Args:
        pinned: the stream as the control topic describes it.
        warmed: called with each change of `is_warm`.
        behind: called with the number of offsets that are not read yet.
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
        behind: Callable[[int], None],
        rng: random.Random,
    ) -> None:
        spec = pinned()
        self.stream, self.topic = spec.id, spec.topic
        self.next: list[int] = []
        self.fold: LogFold | None = None
        """What was read, of a warm stream."""
        self._pinned, self._make_store, self._make_reader = pinned, make_store, make_reader
        self._control, self._sink, self._follower = control, sink, follower
        self._warmed, self._behind, self._rng = warmed, behind, rng
        self._wanted, self._lost = asyncio.Event(), asyncio.Event()
        self._origin: dict[str, object] | None = None
        self._reader: LogReader | None = None

    @property
    def is_warm(self) -> bool:
        """The log was read to its end once, and is followed since."""
        return self.fold is not None

    @property
    def may_be_claimed(self) -> bool:
        """Nothing is gained by reading more before the claim."""
        return self.is_warm or not self._has_log()

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
                fold = await unless(self._lost, self._caught_up(), name=f"warm {self.stream}")
                if fold is not None:
                    self._follow(fold)
                    await self._lost.wait()
            except Exception as error:  # noqa: BLE001 - without a copy a takeover takes longer
                self.lost(f"{type(error).__name__}: {short(str(error))}")
            finally:
                self._follower.unfollow(self)
            self._drop()
            if self._wanted.is_set():
                healthy = clock.now_s() - began_s > _HEALTHY_S
                backoff, wait_s = backoff.after_failure(
                    clock.now_s(), healthy=healthy, rng=self._rng
                )
                await asyncio.sleep(wait_s)

    async def _caught_up(self) -> LogFold:
        """The log, read to the end that it has now. Raises: SinkUnavailable, and what the log's
        records raise."""
        spec = self._pinned()
        self._origin = self._control.starting_point(spec.id, spec.partitions)
        begin = None if self._origin is None else self._origin.get("begin")
        start = begin if isinstance(begin, list) else [None] * spec.partitions
        fold = LogFold(spec, self._make_store(spec), start)
        self._reader = self._make_reader(spec)
        ends = [await self._sink.end_offset(spec.topic, each) for each in range(spec.partitions)]
        if any(at is not None and at > end for at, end in zip(start, ends, strict=True)):
            raise SinkUnavailable(f"topic {spec.topic} ends before the stream's last snapshot")
        spans = [OffsetRange(at, start[at], end) for at, end in enumerate(ends)]
        await self._reader.spans(spans, fold.take)
        fold.next = list(ends)
        return fold

    def _follow(self, fold: LogFold) -> None:
        self.fold, self.next = fold, [at or 0 for at in fold.next]
        self._follower.follow(self)
        log.info("stream is warm", extra={"stream": self.stream, "records": fold.records})
        self._warmed(True)

    def _drop(self) -> None:
        if self.is_warm:
            self.fold = None
            self._warmed(False)

    # ---- FollowedLog: called by the follower -----------------------------------------------------

    def take(self, partition: int, records: Sequence[Any]) -> None:
        """Recover the next records."""
        assert self.fold is not None, "followed once it is warm"
        assert self._reader is not None, "the fold was read by it"
        understood = map(self._reader.understood, records)
        decoded: list[Decoded] = [each for each in understood if each is not None]
        self.fold.take(partition, decoded)
        if self.fold.outdated and self._control.starting_point(
            self.stream, self.fold.spec.partitions
        ) not in (None, self._origin):
            self.lost("a snapshot replaces what was read before")

    def behind(self, records: int) -> None:
        """Note the lag."""
        self._behind(records)

    def lost(self, why: str) -> None:
        """Read the log again."""
        log.info("standby starts again", extra={"stream": self.stream, "reason": why})
        self._lost.set()

    # ---- the takeover ----------------------------------------------------------------------------

    def taken(self, spec: StreamSpec) -> LogFold | None:
        """What was read, if it is warm and the stream is to be written as it was read."""
        fold = self.fold
        if fold is None or fold.spec != spec:
            return None
        fold.next = list(self.next)
        return fold
