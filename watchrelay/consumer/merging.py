"""Merges the records of several partitions in order of time, as far as the order is known without
waiting for unread records. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable
from heapq import heapify, heappop, heapreplace
from typing import Generic, TypeVar

Place = TypeVar("Place", bound=Hashable)
Item = TypeVar("Item")


class Merge(Generic[Place, Item]):
    """Holds what was read of each partition until nothing older can come. Within a partition the
    order stays as it is."""

    def __init__(self) -> None:
        self._waiting: dict[Place, deque[tuple[float, int, Item]]] = {}
        self._added = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __contains__(self, place: object) -> bool:
        return place in self._waiting

    def add(self, place: Place, items: Iterable[tuple[float, Item]]) -> None:
        """More of one partition, each with its time in milliseconds since 1970."""
        for time_ms, item in items:
            self._added += 1
            self._waiting.setdefault(place, deque()).append((time_ms, self._added, item))

    def take(self, behind: Collection[Place]) -> list[Item]:
        """What comes next in order of time, until something is missing of a partition in `behind`:
        more of it is still to be read."""
        taken: list[Item] = []
        if any(place not in self._waiting for place in behind):
            return taken
        heads = [(queue[0][:2], place) for place, queue in self._waiting.items()]
        heapify(heads)
        while heads:
            place = heads[0][1]
            queue = self._waiting[place]
            taken.append(queue.popleft()[2])
            if queue:
                heapreplace(heads, (queue[0][:2], place))
                continue
            heappop(heads)
            del self._waiting[place]
            if place in behind:
                break
        return taken
