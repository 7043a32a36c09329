"""The batches that are being delivered, and what is shown of those that take long."""

from __future__ import annotations

from collections.abc import Callable

from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.errors import subject
from watchrelay.kafka.record_times import RecordTimes
from watchrelay.kafka.troubles import SILENCE, KafkaTroubles
from watchrelay.observe.metrics import NO_ACKNOWLEDGEMENT, Metrics
from watchrelay.observe.status import StatusRegistry

Place = tuple[TopicPartition, str]
"""A partition and a stream that writes it: each has one batch on its way at most."""


class Outstanding:
    """Times are those of the event loop. Args: `patience_s`: from here on a batch without an
    acknowledgement is shown."""

    def __init__(
        self,
        *,
        servers: str,
        times: RecordTimes,
        troubles: KafkaTroubles,
        metrics: Metrics,
        statuses: StatusRegistry,
        patience_s: float,
        now_s: Callable[[], float],
    ) -> None:
        self._servers, self._times, self._troubles = servers, times, troubles
        self._metrics, self._statuses = metrics, statuses
        self._patience_s, self._now_s = patience_s, now_s
        self._since_s: dict[Place, float] = {}
        """Since when a batch is being delivered, however often it is sent."""
        self._shown: dict[Place, float] = {}
        """Of these, those that are shown, and when each is counted again."""

    def add(self, partition: TopicPartition, stream: str, now_s: float) -> None:
        """A batch is on its way from now on."""
        self._since_s[partition, stream] = now_s

    def remove(self, partition: TopicPartition, stream: str) -> None:
        """The batch was answered, or withdrawn."""
        self._since_s.pop((partition, stream), None)
        if self._shown.pop((partition, stream), None) is not None:
            status = self._statuses.streams.get(stream)
            if status is not None and not any(other == stream for _, other in self._shown):
                status.recovered("records")
        if self._troubles.held and not self._of(partition):
            # the stopped stream's batches have no owner
            self._troubles.forget(subject(partition))

    def restart(self, partition: TopicPartition) -> None:
        """What waited for the clock is sent from now on."""
        for place in self._of(partition):
            self._since_s[place] = self._now_s()

    def waits_long(self, partition: TopicPartition) -> bool | None:
        """Whether a batch to it is overdue; None: there is none."""
        since_s = [self._since_s[place] for place in self._of(partition)]
        return self._now_s() - min(since_s) >= self._patience_s if since_s else None

    def _of(self, partition: TopicPartition) -> list[Place]:
        return [place for place in self._since_s if place[0] == partition]

    def look(self) -> None:
        """Show, with their streams, what waits for the clock and what is overdue."""
        now_s, oldest_s = self._now_s(), self._now_s()
        for place, since_s in self._since_s.items():
            offset_s = self._times.off_s(place[0].topic)
            if offset_s is not None:
                self._show_clock(place, offset_s)
                continue
            if subject(place[0]) not in self._troubles.held:
                oldest_s = min(oldest_s, since_s)
            if now_s - since_s > self._patience_s:
                self._show(place, now_s, since_s)
        if now_s - oldest_s > self._patience_s:
            self._troubles.began(self._silence(now_s - oldest_s))
        else:
            self._troubles.ended(SILENCE)

    def _silence(self, silent_s: float, why: str = "") -> Trouble:
        message = f"no acknowledgement from kafka at {self._servers} for {silent_s:.0f} s"
        return Trouble(SILENCE, Cause.KAFKA, f"{message}: {why}" if why else message)

    def _show_clock(self, place: Place, offset_s: float) -> None:
        partition, stream = place
        self._shown.setdefault(place, 0.0)
        if (status := self._statuses.streams.get(stream)) is not None:
            status.failed("records", self._times.trouble(partition.topic, offset_s))

    def _show(self, place: Place, now_s: float, since_s: float) -> None:
        """Whatever the reason: an overdue batch is counted once per `patience_s`."""
        partition, stream = place
        refused = self._troubles.held.get(subject(partition))
        if self._shown.get(place, 0.0) <= now_s:
            self._shown[place] = now_s + self._patience_s
            if refused is None:  # what was refused is counted with its error
                topic = self._metrics.topic(partition.topic)
                topic.produce_failed(NO_ACKNOWLEDGEMENT, retriable=True)
        if (status := self._statuses.streams.get(stream)) is not None:
            silence = self._silence(now_s - since_s, self._troubles.brokers)
            status.failed("records", refused or silence)
