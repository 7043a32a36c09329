"""What is wrong with Kafka, for operators."""

from __future__ import annotations

import logging
from typing import Final

from watchrelay.kafka.cluster_access import SECRETS
from watchrelay.observe.status import StatusRegistry

_log = logging.getLogger(__name__)

SILENCE: Final = "silence"
"""The subject of batches that are not acknowledged."""

_PROBLEM = "kafka"


class KafkaTroubles:
    """One message per subject: `topic/partition`, what the producer names, or `SILENCE`; the way to
    the brokers is "", or `/` and the transactional id. All of them are one problem of the status
    registry."""

    def __init__(self, statuses: StatusRegistry) -> None:
        self.messages: dict[str, str] = {}
        self._problems = statuses.problems

    @property
    def problem(self) -> str:
        """What is shown; "" when nothing is known to be wrong."""
        return self._problems.get(_PROBLEM, "")

    @property
    def brokers(self) -> str:
        """Why brokers cannot be reached; "" when they can."""
        for subject, message in self.messages.items():
            if subject != SILENCE and not _name(subject):
                return message
        return ""

    def began(self, subject: str, message: str) -> None:
        """Show the message; log it if it is news."""
        if subject == SECRETS:
            if subject not in self.messages:
                _log.warning(
                    "new kafka secrets are not usable; keeping the previous ones",
                    extra={"error": message},
                )
        elif not self._is_known(subject):
            _log.warning("kafka does not accept records", extra={"error": message})
        self.messages[subject] = message
        self._show()

    def ended(self, subject: str) -> None:
        """The subject is in order."""
        if self.messages.pop(subject, None) is None:
            return
        if subject != SECRETS:
            if not self.messages:
                _log.info("kafka accepts records again")
            elif "/" in subject and (topic := _name(subject)) and not self._is_known(subject):
                _log.info("topic accepts records again", extra={"topic": topic})
        self._show()

    def forget(self, subject: str) -> None:
        """Nobody writes there any more."""
        self.messages.pop(subject, None)
        self._show()

    def _is_known(self, subject: str) -> bool:
        """The topic, or the way to the brokers, is in trouble already: partitions of one topic are
        one line in the log, and so are brokers that are away and the silence that follows."""
        return any(_name(other) == _name(subject) for other in self.messages)

    def _show(self) -> None:
        shown = {each: text for each, text in self.messages.items() if _name(each)}
        if ways := [each for each in (self.messages.get(SILENCE), self.brokers) if each]:
            shown = {SILENCE if SILENCE in self.messages else "": ": ".join(ways)} | shown
        if shown:
            # an answer of Kafka explains more than its silence
            first, *others = sorted(shown.values(), key=lambda each: each == shown.get(SILENCE))
            self._problems[_PROBLEM] = first + (f" (and {len(others)} more)" if others else "")
        else:
            self._problems.pop(_PROBLEM, None)


def _name(subject: str) -> str:
    """The topic of a partition; "" for the way to the brokers, and silence."""
    return "" if subject == SILENCE else subject.partition("/")[0]
