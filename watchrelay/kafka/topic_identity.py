"""Whether a topic still exists under the id that it was opened with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from watchrelay.kafka.client.metadata import NO_ID

ABSENT_S: Final = 3.0
"""A topic unknown to brokers for this time was most likely deleted: a broker that starts knows
its topics sooner. (Where all brokers of a cluster with ZooKeeper have just started, it may not.)"""


@dataclass(slots=True)
class _Known:
    id: bytes = NO_ID
    absent_since_s: float | None = None


class TopicIdentity:
    """What brokers answered about some topics. Pure."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._absent: dict[str, bytes] = {}
        """The ids of topics that were lost because brokers did not know them."""

    @property
    def topics(self) -> list[str]:
        """The topics to ask about."""
        return list(self._known)

    def expect(self, topic: str, topic_id: bytes = NO_ID) -> None:
        """Ask about the topic from now on; what is known of it is kept, also the id of one that
        was absent. Args: `topic_id`: as brokers gave it just now."""
        known = self._known.setdefault(topic, _Known(self._absent.pop(topic, NO_ID)))
        known.id = known.id or topic_id

    def forget(self, topic: str) -> None:
        """Ask about the topic no longer."""
        self._known.pop(topic, None)
        self._absent.pop(topic, None)

    def may_return(self, topic: str) -> bool:
        """The topic was lost because brokers did not know it, and it has an id: expected again, it
        is the same if it is there under that id, and lost once more if under another."""
        return topic in self._absent

    @property
    def doubtful(self) -> bool:
        """Some topic was missing in the newest answer: ask another broker."""
        return any(known.absent_since_s is not None for known in self._known.values())

    def seen(self, answer: Mapping[str, bytes | None], now_s: float) -> dict[str, str]:
        """Take an answer of the brokers, at `now_s` (monotonic).

        Returns: by topic that is lost, why. It is not asked about until it is expected again.
        """
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
                    lost[topic] = "brokers do not know it"
                continue
            known.absent_since_s = None
            if known.id and found and found != known.id:
                lost[topic] = "it was deleted and recreated"
            known.id = found or known.id
        for topic in lost:
            known = self._known.pop(topic)
            if known.id and known.absent_since_s is not None:
                self._absent[topic] = known.id
        return lost
