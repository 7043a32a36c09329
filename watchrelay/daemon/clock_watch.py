"""Compares this machine's clock with those of Kafka and the API server: shows it where it is wrong,
and keeps streams from a start that would write records for removal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from watchrelay.core.clock_offset import EVERY_S, SHOWN_FROM_S, TimeSource, off_by
from watchrelay.core.errors import KubeError, SinkUnavailable
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kafka.record_times import RecordTimes
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
DOUBT_S: Final = 60.0
"""How long a start waits because of answers that no others confirm."""
_ASK_AGAIN_S = 30.0
_ASK_WITHIN_S = 5.0
_ASKED_OFTEN = 6
"""This number of answers decides a doubt; after them the API server is asked more rarely."""
_WHOSE: dict[TimeSource, str] = {"kafka": "Kafka's brokers", "kubernetes": "the API server"}


class ClockWatch:
    """Use: `run()` as a task.

    Args:
        ask: Asks the API server for anything; its answer has a time. Raises: KubeError,
            TimeoutError.
        kept: As `Topics.kept`.
    """

    def __init__(
        self,
        times: RecordTimes,
        *,
        metrics: Metrics,
        statuses: StatusRegistry,
        ask: Callable[[], Awaitable[object]],
        kept: Callable[[Sequence[str]], Awaitable[Mapping[str, int]]] | None = None,
    ) -> None:
        self._times, self._statuses, self._ask, self._kept = times, statuses, ask, kept
        self._gauge = metrics.gauge("clock_offset_seconds")
        self._doubted_s: float | None = None
        self._asked, self._ask_at_s, self._topics_at_s = 0, 0.0, 0.0

    def learn(self, topic: str, keeps_ms: int, *, assumed: bool) -> None:
        """As `RecordTimes.learn`."""
        self._times.learn(topic, keeps_ms, assumed=assumed)

    def wrong_for(self, topic: str) -> Trouble | None:
        """Why no stream of the topic may start now; None where one may. A suspicion that no second
        answer confirms counts for `DOUBT_S` from the first call that meets it."""
        times = self._times
        offset_s = times.off_s(topic)
        if offset_s is None:
            suspected_s = times.off_s(topic, suspected=True)
            if suspected_s is not None and not self._doubt_is_over():
                offset_s = suspected_s
        return None if offset_s is None else times.trouble(topic, offset_s)

    @property
    def fit(self) -> bool:
        """False where the clock keeps this process from writing a topic that it has looked at."""
        return self._times.fit

    def _doubt_is_over(self) -> bool:
        now_s = self._times.now_s()
        if self._doubted_s is None:
            self._doubted_s = now_s
        return now_s - self._doubted_s > DOUBT_S

    async def run(self) -> None:
        """Look at the clock until cancelled."""
        while True:
            self._look()
            await self._ask_if_needed()
            await self._look_at_topics()
            await asyncio.sleep(LOOK_EVERY_S)

    def _look(self) -> None:
        """Show how far the clock is off."""
        times = self._times
        offsets = times.offset.by_source(times.now_s(), times.wall_ms())
        for name, offset_s in offsets.items():
            self._gauge.labels(name).set(round(offset_s, 3))
        name, offset_s = next(iter(offsets.items()), ("kubernetes", 0.0))
        problems = self._statuses.problems
        if abs(offset_s) < SHOWN_FROM_S:
            if problems.pop("clock", None) is not None:
                log.info("this machine's clock is right again")
            return
        what = f"this machine's clock is {off_by(offset_s)} by the clock of {_WHOSE[name]}"
        topics = times.topics
        cure = times.cure(topics[0]) if topics else "set the clock (NTP)"
        message = f"{what}: the time of records (ce_time) and of log lines is wrong; {cure}"
        if "clock" not in problems:
            log.error("this machine's clock is wrong", extra={"error": message})
        problems.put("clock", Trouble("", Cause.CLOCK, message, cure))

    async def _ask_if_needed(self) -> None:
        """Ask the API server while too few answers agree and it matters, or the clock seems wrong:
        that of a machine that was paused does so until enough newer answers are there."""
        times = self._times
        now_s, wall_ms = times.now_s(), times.wall_ms()
        suspected_s = times.offset.suspected_s(now_s, wall_ms)
        is_well = suspected_s is None or abs(suspected_s) < SHOWN_FROM_S
        if is_well:
            self._doubted_s = None
        is_known = times.offset.known_s(now_s, wall_ms) is not None
        matters = bool(times.topics)
        if is_well and (is_known or not matters):
            self._asked = 0
            return
        if now_s < self._ask_at_s:
            return
        self._asked += 1
        self._ask_at_s = now_s + (EVERY_S if self._asked <= _ASKED_OFTEN else _ASK_AGAIN_S)
        with contextlib.suppress(KubeError, TimeoutError):
            async with asyncio.timeout(_ASK_WITHIN_S):
                await self._ask()

    async def _look_at_topics(self) -> None:
        """While records wait for the clock: whether the topics still depend on it."""
        now_s = self._times.now_s()
        if self.fit or self._kept is None or now_s < self._topics_at_s:
            return
        self._topics_at_s = now_s + _ASK_AGAIN_S
        with contextlib.suppress(SinkUnavailable):
            found = await self._kept(self._times.topics)
            for topic in found.keys() & set(self._times.topics):  # others were forgotten meanwhile
                self._times.learn(topic, found[topic])
