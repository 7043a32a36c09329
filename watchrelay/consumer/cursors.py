"""The next offset of each partition, kept across assignments and across topics that are deleted and
recreated."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.client.consumer import position_if_known
from watchrelay.kafka.reader import assign


class Cursors:
    """`at` is behind what was applied last; what comes from before it, unasked, is of a log of a
    recreated topic."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self.at: dict[TopicPartition, int] = {}
        self.gone: frozenset[TopicPartition] = frozenset()
        """Places that were read and are not there any more."""
        self.control: TopicPartition | None = None
        """The control partition, while it is read."""

    @property
    def read(self) -> list[TopicPartition]:
        """What is fetched."""
        return [
            *(place for place in self.at if place not in self.gone),
            *([self.control] if self.control else []),
        ]

    def assign(
        self,
        at: dict[TopicPartition, int],
        gone: Collection[TopicPartition],
        control: TopicPartition | None,
        control_at: int,
    ) -> None:
        """Read from `at` on; of a partition that is gone the client would ask again and again.

        0 is the start, wherever it is: what comes from there is still of a log of a recreated topic
        if it is before what was applied.
        """
        self.at = {place: offset or self.at.get(place, 0) for place, offset in at.items()}
        self.gone, self.control = frozenset(gone), control
        starts = {place: offset for place, offset in at.items() if place not in self.gone}
        if control is not None:
            starts[control] = control_at
        assign(self._consumer, starts)

    def seek(self, place: TopicPartition, offset: int) -> None:
        """Read `place` again from `offset`; out of reach, from the earliest there is."""
        self._consumer.seek(place, offset)
        self.at[place] = 0

    def stands(self, place: TopicPartition) -> int:
        """The offset of the next record; 0 while the client asks for it, because the one that it
        had is out of reach.
        """
        if place in self.gone or place not in self._consumer.assignment():
            return self.at.get(place, 0)
        return position_if_known(self._consumer, place) or 0
