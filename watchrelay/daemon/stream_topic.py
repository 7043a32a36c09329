"""The topic of one stream: created or checked, waited for while it is refused or Kafka is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from watchrelay.core import clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import (
    EpochAhead,
    ForeignRecords,
    SinkError,
    SinkForbidden,
    SinkUnavailable,
    TopicRefused,
)
from watchrelay.core.trouble import Cause, Trouble
from watchrelay.daemon.clock_watch import LOOK_EVERY_S
from watchrelay.daemon.context import DaemonContext, read_limit
from watchrelay.kafka.client.metadata import NO_ID
from watchrelay.kafka.log_scan import Written, no_epoch_left
from watchrelay.kafka.topic_config import TopicFacts
from watchrelay.model.progress import StreamProgress
from watchrelay.model.streams import StreamSpec
from watchrelay.observe.status import StreamStatus
from watchrelay.plan.described import KeyFormats, pinned_conflict, topic_conflict
from watchrelay.plan.kafka import topic_spec

log = logging.getLogger(__name__)

Result = TypeVar("Result")

REFUSED = Backoff(base_s=30.0, cap_s=300.0, jitter=0.1)
"""A refused topic waits for a person, as a missing right does: looked at again rarely."""
_TOPIC_AGAIN_S = 30.0
"""How often a stream that waits for the clock looks whether its topic depends on it still."""
_AWAY = Backoff(base_s=0.8, cap_s=30.0)


class StreamTopic:
    """The topic of one stream. What it waits for is shown in `status` and logged once."""

    def __init__(
        self,
        spec: StreamSpec,
        context: DaemonContext,
        status: StreamStatus,
        progress: StreamProgress,
    ) -> None:
        self.spec = spec
        """The stream, with the keys and the partitions of its topic once that is `ready`."""
        self._context, self._status, self._progress = context, status, progress
        self._written: Mapping[str, Written] | None = None
        """What the topic holds, by stream, where the control topic does not describe this one."""
        self._id = NO_ID
        self.empty_before: Mapping[int, int] = {}
        """By partition, the offset before which no record of the topic names the stream; none where
        that is not known."""

    async def ready(self, planned: StreamSpec) -> TopicFacts:
        """The facts of the topic of `planned` once it exists and is safe."""

        facts = await self._until_usable(lambda: self._ensured(planned))
        self._learn(facts)
        if why := self._wrong_clock():
            extra = {"stream": self.spec.id, "topic": self.spec.topic, "error": why.message}
            log.error("stream waits for this machine's clock", extra=extra)
        while why := self._wrong_clock():
            await self._until_right(why)
            # by now its brokers may give the time of records
            facts = await self._until_usable(lambda: self._ensured(planned))
            self._learn(facts)
        self._context.note_topic(facts)
        return facts

    async def _ensured(self, planned: StreamSpec) -> TopicFacts:
        """The topic, and the stream as it was started there: as the control topic describes it,
        else as the topic itself shows."""
        self._written, self.empty_before = None, {}
        await self._context.one_by_one.turn()
        self._check_pins(planned)
        facts = await self._ensure()
        self._id = facts.topic_id
        described = self._context.control.described(planned.id)
        if facts.created or (described is not None and not self.moved()):
            return facts
        self._written, ensured = await self._read(), self.spec
        await self._context.one_by_one.turn()
        self._check_pins(planned)
        found = self._written.get(planned.stream, Written())
        self._written = {planned.stream: found}  # there may be hundreds of others
        return facts if self.spec == ensured else await self._ensure()

    async def _ensure(self) -> TopicFacts:
        return await self._context.topics.ensure_topic(
            topic_spec(self.spec, self._context.settings)
        )

    async def _read(self) -> Mapping[str, Written]:
        topic, stream = self.spec.topic, self.spec.stream
        found = await self._context.reads.scans.result((topic, self._id))
        own = found.streams.get(stream)
        if own is not None and (why := no_epoch_left(topic, stream, own.epoch)):
            raise TopicRefused(why)
        self.empty_before = found.ends if own is None else {}
        return found.streams

    async def _until_usable(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """What `attempt` returns, repeated while the topic is refused or Kafka is away."""
        refused, away = REFUSED, _AWAY
        while True:
            now_s, rng = clock.now_s(), self._context.rng
            try:
                return await attempt()
            except TopicRefused as error:
                refused, wait_s = refused.after_failure(now_s, healthy=False, rng=rng)
                self.refuse(error, wait_s)
            except SinkUnavailable as error:
                away, wait_s = away.after_failure(now_s, healthy=False, rng=rng)
                self._wait(error, wait_s, operator=False)
            await asyncio.sleep(wait_s)

    async def limit_again(self) -> int | None:
        """The size that the topic takes, read again; None: it cannot be read now."""
        context = self._context
        spec = topic_spec(self.spec, context.settings)
        if (facts := await read_limit(context.topics, context.sink, spec)) is None:
            return None
        self._learn(facts)
        return facts.max_message_bytes

    # ---- the clock -------------------------------------------------------------------------------

    def _learn(self, facts: TopicFacts) -> None:
        if (watch := self._context.clock_watch) is not None:
            watch.learn(self.spec.topic, facts.keeps_ms, assumed=not facts.checked)

    def _wrong_clock(self) -> Trouble | None:
        """Why the clock keeps the stream from writing its topic; None where it does not."""
        watch = self._context.clock_watch
        return None if watch is None else watch.wrong_for(self.spec.topic)

    async def _until_right(self, why: Trouble | None) -> None:
        """Return once the clock is right, or when the topic is to be looked at again."""
        until_s = clock.now_s() + _TOPIC_AGAIN_S
        while why is not None and clock.now_s() < until_s:
            self._progress.state = "waiting"
            self._status.failed("stream", why)
            await asyncio.sleep(LOOK_EVERY_S)
            why = self._wrong_clock()

    # ---- what the topic was written with ---------------------------------------------------------

    def _check_pins(self, planned: StreamSpec) -> None:
        """Take the keys and the partitions that the topic has.

        Raises: TopicRefused when another shape is pinned there, or a stream has the same keys."""
        context = self._context
        described: Mapping[str, Mapping[str, object]] = context.control.described_streams()
        own: Mapping[str, object] | None = context.control.described(planned.id)
        if shown := self._shown(planned, described):
            if own is None or own.get("topic") != planned.topic:
                own = shown.get(planned.stream, own)
            described = {**shown, **described}
        formats = context.formats
        formats.take(described)
        if own is not None and own is not described.get(planned.stream):
            formats = KeyFormats({**described, planned.stream: own})
        self.spec = formats.kept(planned)
        conflict = pinned_conflict(self.spec, own)
        if not conflict and formats.may_conflict(self.spec):
            others = [formats.kept(each) for each in context.planned.values()]
            conflict = topic_conflict(self.spec, others, described)
        if conflict:
            raise TopicRefused(conflict)
        shape = formats.shape(planned.topic)
        context.topics.expect(
            planned.topic,
            lambda: (
                topic_spec(formats.kept(each), context.settings)
                for each in context.planned.values()
                if each.topic == planned.topic
            ),
            version=None if shape is None else (context.planned, shape),
        )

    def _shown(
        self, planned: StreamSpec, described: Mapping[str, object]
    ) -> dict[str, Mapping[str, object]]:
        """Descriptions of the streams of the config on the topic, with what the topic shows; of
        others than this one, those that are not `described`."""
        there, own = self._written or {}, planned.stream
        planned_now = {**self._context.planned, own: planned}
        return {
            stream: {**each.description, **found.shape}
            for stream in sorted((there.keys() - described.keys()) | ({own} & there.keys()))
            if (each := planned_now.get(stream)) is not None
            and each.topic == planned.topic
            and (found := there[stream]).epoch
            and not found.retired
        }

    def moved(self) -> bool:
        """The stream was on another topic: offsets of its snapshots are of that one."""
        described = self._context.control.described(self.spec.id)
        return described is not None and described.get("topic") != self.spec.topic

    async def highest_epoch(self) -> int:
        """The epoch of the last writer by the stream's own topic, where the control topic does not
        know the stream; 0 for none."""
        spec, there = self.spec, self._written
        if there is None:
            there = await self._until_usable(self._read)
        found = there.get(spec.stream, Written())
        self._status.recovered("stream")
        extra = {
            "stream": spec.id,
            "topic": spec.topic,
            "epoch": found.epoch,
            "partitions": spec.partitions,
        }
        if found.retired:
            log.info("stream was retired before and starts again", extra=extra)
        elif found.epoch:
            log.warning(
                "control topic has no claim of the stream, continuing above the epoch on "
                "its own topic",
                extra=extra,
            )
        return found.epoch

    def refuse(self, error: TopicRefused | ForeignRecords, wait_s: float) -> None:
        """Log and show why the topic cannot be written, looked at again in `wait_s`."""
        if self._wait(error, wait_s, operator=True):
            extra = {"stream": self.spec.id, "topic": self.spec.topic, "error": str(error)}
            log.error(
                "stream refused" if isinstance(error, EpochAhead) else "topic refused", extra=extra
            )

    def unreadable(self, error: SinkUnavailable, wait_s: float) -> None:
        """Show why the log cannot be read, tried again in `wait_s`."""
        trouble = error.trouble(subject=self.spec.topic, operator=isinstance(error, SinkForbidden))
        self._status.failed("log", trouble, next_attempt_ms=clock.wall_ms_in(wait_s))

    def _wait(self, error: SinkError, wait_s: float, *, operator: bool) -> bool:
        """Show it. Returns: whether it says something new."""
        trouble = error.trouble(subject=self.spec.topic, operator=operator)
        if not operator:
            trouble = replace(trouble, cause=Cause.KAFKA)
        self._progress.state = "waiting"
        return self._status.failed("stream", trouble, next_attempt_ms=clock.wall_ms_in(wait_s))
