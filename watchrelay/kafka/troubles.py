"""What is wrong with Kafka, for operators."""

from __future__ import annotations

import logging
from typing import Final

from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kafka.cluster_access import SECRETS
from watchrelay.observe.status import StatusRegistry

_log = logging.getLogger(__name__)

SILENCE: Final = "silence"
"""The subject of batches that are not acknowledged."""

_PROBLEM = "kafka"


class KafkaTroubles:
    """One trouble per subject: `topic/partition`, what the producer names, or `SILENCE`; the way to
    the brokers is "", or `/` and the transactional id. All of them are one problem of the status
    registry."""

    def __init__(self, statuses: StatusRegistry) -> None:
        self.held: dict[str, Trouble] = {}
        self._problems = statuses.problems

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

    def _is_known(self, subject: str) -> bool:
        """The topic, or the way to the brokers, is in trouble already: partitions of one topic are
        one line in the log, and so are brokers that are away and the silence that follows."""
        return any(_name(other) == _name(subject) for other in self.held)

    def _show(self) -> None:
        shown = {each: trouble.message for each, trouble in self.held.items() if _name(each)}
        silence = self.held.get(SILENCE)
        ways = ("" if silence is None else silence.message, self.brokers)
        if any(ways):
            shown = {SILENCE if silence else "": ": ".join(filter(None, ways))} | shown
        if shown:
            # an answer of Kafka explains more than its silence
            first, *others = sorted(shown.values(), key=lambda each: each == shown.get(SILENCE))
            message = first + (f" (and {len(others)} more)" if others else "")
            self._problems.put(_PROBLEM, Trouble("", Cause.KAFKA, message))
        else:
            self._problems.pop(_PROBLEM, None)


def _name(subject: str) -> str:
    """The topic of a partition; "" for the way to the brokers, and silence."""
    return "" if subject == SILENCE else subject.partition("/")[0]
