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
_BROKERS = ("", SILENCE)


class KafkaTroubles:
    """One message per subject: `topic/partition`, what the producer names, or `SILENCE`. All of
    them are one problem of the status registry."""

    def __init__(self, statuses: StatusRegistry) -> None:
        self.messages: dict[str, str] = {}
        self._problems = statuses.problems

    @property
    def problem(self) -> str:
        """What is shown; "" when nothing is known to be wrong."""
        return self._problems.get(_PROBLEM, "")

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
            elif "/" in subject and not self._is_known(subject):
                topic = subject.partition("/")[0]
                _log.info("topic accepts records again", extra={"topic": topic})
        self._show()

    def forget(self, subject: str) -> None:
        """Nobody writes there any more."""
        self.messages.pop(subject, None)
        self._show()

    def _is_known(self, subject: str) -> bool:
        """The topic, or the way to the brokers, is in trouble already: partitions of one topic are
        one line in the log, and so are brokers that are away and the silence that follows."""
        if subject in _BROKERS:
            return any(other in _BROKERS for other in self.messages)
        name = subject.partition("/")[0]
        return any(other.partition("/")[0] == name for other in self.messages)

    def _show(self) -> None:
        shown = dict(self.messages)
        if shown:
            if SILENCE in shown and "" in shown:
                shown[SILENCE] += f": {shown.pop('')}"
            # an answer of Kafka explains more than its silence
            first, *others = sorted(shown.values(), key=lambda each: each == shown.get(SILENCE))
            self._problems[_PROBLEM] = first + (f" (and {len(others)} more)" if others else "")
        else:
            self._problems.pop(_PROBLEM, None)
