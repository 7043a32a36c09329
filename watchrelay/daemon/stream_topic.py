"""The topic of one stream: created or checked, waited for while it is refused or Kafka is away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from watchrelay.core import causes, clock
from watchrelay.core.backoff import Backoff
from watchrelay.core.errors import (
    EpochAhead,
    ForeignRecords,
    SinkError,
    SinkForbidden,
    SinkUnavailable,
    TopicRefused,
)
from watchrelay.daemon.context import DaemonContext
from watchrelay.daemon.described import KeyFormats, pinned_conflict, topic_conflict
from watchrelay.daemon.plan import topic_spec
from watchrelay.kafka.log_scan import Written, written
from watchrelay.kafka.topic_config import TopicFacts
from watchrelay.model.streams import StreamSpec
from watchrelay.observe.status import StreamStatus

log = logging.getLogger(__name__)

Result = TypeVar("Result")

REFUSED = Backoff(base_s=30.0, cap_s=300.0, jitter=0.1)
"""A refused topic waits for a person, as a missing right does: looked at again rarely."""
_AWAY = Backoff(base_s=0.8, cap_s=30.0)
_LIMIT_READ_S = 3.0
"""Less than the 5 s within which a superseded relay has ended: heartbeats wait for it."""


class StreamTopic:
    """The topic of one stream. What it waits for is shown in `status` and logged once."""

    def __init__(self, spec: StreamSpec, context: DaemonContext, status: StreamStatus) -> None:
        self.spec = spec
        """The stream, with the keys and the partitions of its topic once that is `ready`."""
        self._context, self._status = context, status
        self._written: dict[str, Written] | None = None
        """What the topic holds, by stream, where the control topic does not describe this one."""

    async def ready(self, planned: StreamSpec) -> TopicFacts:
        """The facts of the topic of `planned` once it exists and is safe."""

        facts = await self._until_usable(lambda: self._ensured(planned))
        for warning in facts.warnings:
            log.warning(
                "topic has a questionable setting",
                extra={"topic": self.spec.topic, "warning": warning},
            )
        self._context.sink.limit(self.spec.topic, facts.max_message_bytes)
        return facts

    async def _ensured(self, planned: StreamSpec) -> TopicFacts:
        """The topic, and the stream as it was started there: as the control topic describes it,
        else as the topic itself shows."""
        self._written = None
        self._check_pins(planned)
        facts = await self._ensure()
        described = self._context.control.described(planned.id)
        if facts.created or (described is not None and not self.moved()):
            return facts
        self._written, expected = await self._read(), self.spec
        self._check_pins(planned)
        found = self._written.get(planned.stream, Written())
        self._written = {planned.stream: found}  # there may be hundreds of others
        return facts if self.spec == expected else await self._ensure()

    async def _ensure(self) -> TopicFacts:
        return await self._context.topics.ensure_topic(
            topic_spec(self.spec, self._context.settings)
        )

    async def _read(self) -> dict[str, Written]:
        spec = self.spec
        async with self._context.scanning:
            return await written(
                self._context.connection, spec.topic, spec.stream, cluster=spec.cluster
            )

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
        """The topic's max.message.bytes, read again; None: it cannot be read now."""
        with contextlib.suppress(TopicRefused, SinkUnavailable, TimeoutError):
            async with asyncio.timeout(_LIMIT_READ_S):
                facts = await self._context.topics.check_topic(
                    topic_spec(self.spec, self._context.settings)
                )
            if facts is not None:
                self._context.sink.limit(self.spec.topic, facts.max_message_bytes)
                return facts.max_message_bytes
        return None

    def _check_pins(self, planned: StreamSpec) -> None:
        """Take the keys and the partitions that the topic has.

        Raises: TopicRefused when another shape is pinned there, or a stream has the same keys."""
        control, shown = self._context.control, self._shown(planned)
        own: Mapping[str, object] | None = control.described(planned.id)
        if own is None or own.get("topic") != planned.topic:
            own = shown.get(planned.stream, own)
        described = {**shown, **control.described_streams()}
        formats = KeyFormats(described if own is None else {**described, planned.stream: own})
        self.spec = formats.kept(planned)
        all_planned = [formats.kept(each) for each in self._context.planned]
        if reason := pinned_conflict(self.spec, own) or topic_conflict(
            self.spec, all_planned, described
        ):
            raise TopicRefused(reason)
        self._context.topics.expect(
            topic_spec(each, self._context.settings)
            for each in all_planned
            if each.topic == self.spec.topic
        )

    def _shown(self, planned: StreamSpec) -> dict[str, Mapping[str, object]]:
        """Descriptions of the streams of the config on the topic, with what the topic shows."""
        there = self._written or {}
        return {
            each.stream: {**each.description, **found.shape}
            for each in (*self._context.planned, planned)
            if each.topic == planned.topic
            and (found := there.get(each.stream)) is not None
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
        if self._status.waits_for != str(error):
            extra = {"stream": self.spec.id, "topic": self.spec.topic, "error": str(error)}
            log.error(
                "stream refused" if isinstance(error, EpochAhead) else "topic refused", extra=extra
            )
        self._wait(error, wait_s, operator=True)

    def unreadable(self, error: SinkUnavailable, wait_s: float) -> None:
        """Show why the log cannot be read, tried again in `wait_s`."""
        forbidden = isinstance(error, SinkForbidden)
        self._status.failed(
            "log",
            str(error),
            cause=causes.TOPIC_UNUSABLE.about(self.spec.topic) if forbidden else causes.KAFKA,
            operator=forbidden,
            next_attempt_ms=clock.wall_ms_in(wait_s),
        )

    def _wait(self, error: SinkError, wait_s: float, *, operator: bool) -> None:
        self._status.state = "waiting"
        self._status.failed(
            "stream",
            str(error),
            cause=(error.cause if operator else causes.KAFKA).about(self.spec.topic),
            operator=operator,
            next_attempt_ms=clock.wall_ms_in(wait_s),
        )
