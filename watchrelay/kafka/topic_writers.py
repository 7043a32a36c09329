"""Which of the topics that bore a name each stream writes. Pure.

Room: sink. In: streams that open topics, where their records stand, topics that are lost. Out: who
is to be told, and whose records still count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Lost = Callable[[str], None]
"""Called with why the topic is not the one that was opened: it was deleted, or made anew."""

_Writer = tuple[str, str]
"""(topic, stream)."""


@dataclass(slots=True)
class _Opened:
    """Shape: `stops` tells by partition behind which offset the stream's next record must stand."""

    incarnation: int
    lost: Lost
    stops: dict[int, int] = field(default_factory=dict)


class TopicWriters:
    """Counts, by name, the topics that were lost. Law: a stream is told once of each loss of what
    it had opened."""

    def __init__(self) -> None:
        self._incarnation: dict[str, int] = {}
        self._opened: dict[_Writer, _Opened] = {}
        self._seen: dict[_Writer, int] = {}
        """The incarnation that each writer opened last, also where it has closed it since."""

    def open(self, topic: str, stream: str, lost: Lost, *, made: bool) -> tuple[bool, list[Lost]]:
        """`stream` writes the topic as it stands. Shape: `made`: it was not there a moment ago.

        True: it is not the one that the stream opened before. The list is of those who had opened
        that and do not know it yet.
        """
        now, before = self._incarnation.get(topic, 0), self._seen.get((topic, stream))
        told = self.lose(topic) if made and before == now else []
        now = self._incarnation.get(topic, 0)
        self._seen[topic, stream] = now
        self._opened[topic, stream] = _Opened(now, lost)
        return made or before not in (None, now), told

    def close(self, topic: str, stream: str) -> bool:
        """`stream` writes the topic no more, for now. True: nobody does."""
        self._opened.pop((topic, stream), None)
        return not any(name == topic for name, _ in self._opened)

    def counts(self, topic: str, stream: str) -> bool:
        """What `stream` writes there belongs to the topic that it opened; of one that opened none,
        everything does."""
        opened = self._opened.get((topic, stream))
        return opened is None or opened.incarnation == self._incarnation.get(topic, 0)

    def note(self, topic: str, partition: int, stream: str, start: int, stop: int) -> str:
        """Records of `stream` stand in [start, stop). Why that cannot be the topic that it opened;
        "" where it can.

        Source: a stream has one batch of a partition on its way, and offsets of a log only grow.
        """
        opened = self._opened.get((topic, stream))
        if opened is None:
            return ""
        behind = opened.stops.get(partition, 0)
        opened.stops[partition] = stop
        if start >= behind:
            return ""
        where = f"partition {partition}: a record got offset {start} after one at {behind - 1}"
        return f"{where}; it was deleted and made anew, or lost records that were acknowledged"

    def lose(self, topic: str) -> list[Lost]:
        """The topic is gone; those who had opened it."""
        now = self._incarnation.get(topic, 0)
        self._incarnation[topic] = now + 1
        return [
            opened.lost
            for (name, _), opened in self._opened.items()
            if name == topic and opened.incarnation == now
        ]
