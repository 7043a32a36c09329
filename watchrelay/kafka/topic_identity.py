"""Whether a topic is still the one that was written: there, and under the same id.

Room: sink. In: what brokers answer about topics. Out: the words for a topic that was deleted, or
deleted and made anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from watchrelay.kafka.client.metadata import NO_ID

ABSENT_S: Final = 3.0
"""A topic that brokers have not known for so long was deleted: one that comes up knows all its
topics sooner."""


@dataclass(slots=True)
class _Known:
    id: bytes = NO_ID
    absent_since_s: float | None = None


class TopicIdentity:
    """What was seen of some topics. Pure. Law: after `lost` a topic is as if never seen."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    @property
    def topics(self) -> list[str]:
        """Those that are looked for."""
        return list(self._known)

    def expect(self, topic: str) -> None:
        """From now on the topic is looked for; whatever was known of it stands."""
        self._known.setdefault(topic, _Known())

    def forget(self, topic: str) -> None:
        """The topic is looked for no longer."""
        self._known.pop(topic, None)

    @property
    def doubtful(self) -> bool:
        """Some topic was not there when last looked for."""
        return any(known.absent_since_s is not None for known in self._known.values())

    def seen(self, answer: Mapping[str, bytes | None], now_s: float) -> dict[str, str]:
        """Take what brokers answered; the topics that are lost, and how. Units: `now_s` monotonic.
        Shape: lost ones are forgotten."""
        lost: dict[str, str] = {}
        for topic, found in answer.items():
            known = self._known.get(topic)
            if known is None:
                continue
            if found is None:
                known.absent_since_s = (
                    now_s if known.absent_since_s is None else known.absent_since_s
                )
                if now_s - known.absent_since_s >= ABSENT_S:
                    lost[topic] = "it was deleted"
                continue
            known.absent_since_s = None
            if known.id and found and found != known.id:
                lost[topic] = "it was deleted and made anew"
            known.id = found or known.id
        for topic in lost:
            del self._known[topic]
        return lost
