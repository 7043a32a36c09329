"""Which incarnation of a topic each stream writes. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.client.metadata import NO_ID

Lost = Callable[[str], None]
"""Called with why the topic is no longer the one that was opened: it was deleted or recreated."""

_Writer = tuple[str, str]
"""(topic, stream)."""


@dataclass(slots=True)
class _Opened:
    """What a stream opened."""

    lost: Lost
    is_lost: bool = False


class TopicWriters:
    """Counts, by name, how often a topic was lost; calls each stream that had opened it once."""

    def __init__(self) -> None:
        self._incarnation: dict[str, int] = {}
        self._opened: dict[_Writer, _Opened] = {}
        self._seen: dict[_Writer, int] = {}
        """The incarnation that each writer opened last, also where it has closed it since."""
        self._ids: dict[str, bytes] = {}
        """Under which id each topic was opened last."""
        self._absent = set[str]()
        """Lost because brokers did not know them, and not opened since."""

    def open(
        self, topic: str, stream: str, lost: Lost, *, made: bool, topic_id: bytes = NO_ID
    ) -> tuple[bool, list[Lost]]:
        """`stream` writes the topic as it is now.

        Args:
            made: the topic was just created.
            topic_id: as brokers give it.

        Returns: whether it is another than the stream opened before; and the callbacks of the
        streams that had opened that one and were not called yet.
        """
        opened, former_id = self._seen.get((topic, stream)), self._ids.get(topic, NO_ID)
        # an answer without an id says nothing, unless the topic was gone
        is_known = topic_id != NO_ID or topic in self._absent
        has_other_id = is_known and former_id not in (NO_ID, topic_id)
        self._ids[topic] = topic_id if has_other_id else topic_id or former_id
        self._absent.discard(topic)
        # a topic that is made was lost, unless the stream knows only an older one of the name
        is_news = has_other_id or (made and opened == self._incarnation.get(topic, 0))
        losing = self.lose(topic) if is_news else []
        incarnation = self._seen[topic, stream] = self._incarnation.get(topic, 0)
        self._opened[topic, stream] = _Opened(lost)
        return made or opened not in (None, incarnation), losing

    def close(self, topic: str, stream: str, *, taken_over: bool = False) -> bool:
        """`stream` stops writing the topic. True: no stream writes it.

        Args:
            taken_over: another process writes it now, and answers for the topic meanwhile."""
        self._opened.pop((topic, stream), None)
        if taken_over:
            self._seen.pop((topic, stream), None)
        return not any(name == topic for name, _ in self._opened)

    def has_lost(self, topic: str, stream: str) -> bool:
        """Whether the topic that `stream` opened is lost; false if it opened none."""
        opened = self._opened.get((topic, stream))
        return opened is not None and opened.is_lost

    def contradicts(self, place: TopicPartition, stream: str, first: int, known_end: int) -> str:
        """Records of `stream` were appended from offset `first` on, by a producer whose records
        before them, also those of other streams, end at offset `known_end`.

        Returns: why that cannot be the topic that the stream opened, "" if it can: a producer has
        one batch of a partition in flight, and offsets of a log only grow.
        """
        if first >= known_end or (place.topic, stream) not in self._opened:
            return ""
        what = f"a record got offset {first} after one at {known_end - 1}"
        why = "it was deleted and recreated, or lost records that were acknowledged"
        return f"partition {place.partition}: {what}; {why}"

    def lose(self, topic: str, *, may_return: bool = False) -> list[Lost]:
        """The topic is gone. Returns: the callbacks of the streams that had opened it, and were
        not called yet. Args: `may_return`: brokers do not know it: opened again under the id that
        it has, it is the same topic."""
        if may_return and self._ids.get(topic):
            self._absent.add(topic)
        else:
            self._incarnation[topic] = self._incarnation.get(topic, 0) + 1
        losing = [
            opened
            for (name, _), opened in self._opened.items()
            if name == topic and not opened.is_lost
        ]
        for opened in losing:
            opened.is_lost = True
        return [opened.lost for opened in losing]
