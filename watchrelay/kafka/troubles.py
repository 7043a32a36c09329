"""What is wrong with Kafka, for operators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kafka.cluster_access import SECRETS
from watchrelay.kafka.errors import subject_of
from watchrelay.kafka.partition import Delivery, Place
from watchrelay.kafka.record_times import RecordTimes
from watchrelay.observe.metrics import NO_ACKNOWLEDGEMENT, Metrics
from watchrelay.observe.status import StatusRegistry

_log = logging.getLogger(__name__)

SILENCE: Final = "silence"
"""The subject of batches that are not acknowledged."""

_PROBLEM = "kafka"


class KafkaTroubles:
    """One trouble per subject: a partition (`topic/partition`), a transactional id, `SECRETS`,
    `SILENCE`, or a producer's way to the brokers ("", or `/` and its transactional id). All of them
    are one problem of the status registry; what keeps a stream's records is shown with the stream
    as well.

    Args:
        deliveries: Gives all that is being delivered.
        patience_s: From here on a delivery without an acknowledgement is shown.
    """

    def __init__(
        self,
        statuses: StatusRegistry,
        metrics: Metrics,
        times: RecordTimes,
        *,
        servers: str,
        patience_s: float,
        deliveries: Callable[[], Iterable[tuple[Place, Delivery]]],
    ) -> None:
        self.held: dict[str, Trouble] = {}
        self._problems, self._streams = statuses.problems, statuses.streams
        self._metrics, self._times, self._servers = metrics, times, servers
        self._patience_s, self._deliveries = patience_s, deliveries

    @property
    def problem(self) -> str:
        """What is shown; "" when nothing is known to be wrong."""
        shown = self._problems.get(_PROBLEM)
        return "" if shown is None else shown.message

    @property
    def brokers(self) -> str:
        """Why brokers cannot be reached; "" when they can."""
        for subject, trouble in self.held.items():
            if subject != SILENCE and not _name(subject):
                return trouble.message
        return ""

    def began(self, trouble: Trouble) -> None:
        """Show the trouble; log it if it is news."""
        subject = trouble.subject
        if subject == SECRETS:
            if subject not in self.held:
                _log.warning(
                    "new kafka secrets are not usable; keeping the previous ones",
                    extra={"error": trouble.message},
                )
        elif not self._is_known(subject):
            _log.warning("kafka does not accept records", extra={"error": trouble.message})
        self.held[subject] = trouble
        self._show()

    def ended(self, subject: str) -> None:
        """The subject is in order."""
        if self.held.pop(subject, None) is None:
            return
        if subject != SECRETS:
            if not self.held:
                _log.info("kafka accepts records again")
            elif "/" in subject and (topic := _name(subject)) and not self._is_known(subject):
                _log.info("topic accepts records again", extra={"topic": topic})
        self._show()

    def forget(self, subject: str) -> None:
        """No writer is left there."""
        self.held.pop(subject, None)
        self._show()

    # ---- deliveries ------------------------------------------------------------------------------

    def closed(self, place: Place, delivery: Delivery) -> None:
        """The delivery was answered, or withdrawn."""
        if delivery.shown_s is not None:
            delivery.shown_s = None
            stream = delivery.batch.stream
            status = self._streams.get(stream)
            shown = {
                each.batch.stream for _, each in self._deliveries() if each.shown_s is not None
            }
            if status is not None and stream not in shown:
                status.recovered("records")
        if self.held and not any(other == place for other, _ in self._deliveries()):
            self.forget(subject_of(place))  # no acknowledgement comes that would end it

    def is_awaited(self, place: Place, *, overdue: bool) -> bool:
        """Whether a delivery to it waits; with `overdue`, for too long."""
        until_s = asyncio.get_running_loop().time() - (self._patience_s if overdue else 0.0)
        return any(
            other == place and delivery.since_s <= until_s for other, delivery in self._deliveries()
        )

    def look(self) -> None:
        """Show, with their streams, what waits for the clock and what is overdue."""
        oldest_s = now_s = asyncio.get_running_loop().time()
        for place, delivery in self._deliveries():
            offset_s = self._times.off_s(place.topic)
            if offset_s is not None:
                self._show_clock(place, delivery, offset_s)
                continue
            if subject_of(place) not in self.held:
                oldest_s = min(oldest_s, delivery.since_s)
            if now_s - delivery.since_s > self._patience_s:
                self._show_overdue(place, delivery, now_s)
        if now_s - oldest_s > self._patience_s:
            self.began(self._silence(now_s - oldest_s))
        else:
            self.ended(SILENCE)

    def _silence(self, silent_s: float, why: str = "") -> Trouble:
        message = f"no acknowledgement from kafka at {self._servers} for {silent_s:.0f} s"
        return Trouble(SILENCE, Cause.KAFKA, f"{message}: {why}" if why else message)

    def _show_clock(self, place: Place, delivery: Delivery, offset_s: float) -> None:
        delivery.shown_s = delivery.shown_s or 0.0  # counted once it is overdue by a right clock
        if (status := self._streams.get(delivery.batch.stream)) is not None:
            status.failed("records", self._times.trouble(place.topic, offset_s))

    def _show_overdue(self, place: Place, delivery: Delivery, now_s: float) -> None:
        """Whatever the reason: an overdue batch is counted once per `patience_s`."""
        refused = self.held.get(subject_of(place))
        if (delivery.shown_s or 0.0) <= now_s:
            delivery.shown_s = now_s + self._patience_s
            if refused is None:  # what was refused is counted with its error
                self._metrics.topic(place.topic).produce_failed(NO_ACKNOWLEDGEMENT, retriable=True)
        if (status := self._streams.get(delivery.batch.stream)) is not None:
            silence = self._silence(now_s - delivery.since_s, self.brokers)
            status.failed("records", refused or silence)

    # ---- what is shown ---------------------------------------------------------------------------

    def _is_known(self, subject: str) -> bool:
        """The topic, or the way to the brokers, is in trouble already: partitions of one topic are
        one line in the log, and so are brokers that are away and the silence that follows."""
        return any(_name(other) == _name(subject) for other in self.held)

    def _show(self) -> None:
        named = [trouble.message for subject, trouble in self.held.items() if _name(subject)]
        if silence := self.held.get(SILENCE):
            why = self.brokers
            # last, as an answer of Kafka explains more
            lines = [*named, f"{silence.message}: {why}" if why else silence.message]
        else:
            lines = [*filter(None, [self.brokers]), *named]
        if lines:
            message = lines[0] + (f" (and {len(lines) - 1} more)" if len(lines) > 1 else "")
            self._problems.put(_PROBLEM, Trouble("", Cause.KAFKA, message))
        else:
            self._problems.pop(_PROBLEM, None)


def _name(subject: str) -> str:
    """What a line calls the subject: the topic of a partition, a transactional id, or SECRETS; ""
    for ways to the brokers, which are "" or begin with "/", and for SILENCE."""
    return "" if subject == SILENCE else subject.partition("/")[0]
