"""Which offsets of a partition this process wrote. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable
from typing import Any

KEPT = 1000
"""Ranges per partition; older ones are forgotten, and then read once more than necessary."""


class WrittenOffsets:
    """Written ranges, joined where they touch: with `gaps(a, b)` they cover [a, b)."""

    def __init__(self) -> None:
        self._ranges: dict[Hashable, tuple[list[int], list[int]]] = {}

    def note(self, place: Hashable, start: int, stop: int) -> None:
        """[start, stop) of `place` was written by this process."""
        starts, stops = self._ranges.setdefault(place, ([], []))
        if starts and start == stops[-1]:
            stops[-1] = stop
            return
        low, high = bisect_left(stops, start), bisect_right(starts, stop)
        if low < high:
            start, stop = min(start, starts[low]), max(stop, stops[high - 1])
        starts[low:high], stops[low:high] = [start], [stop]
        if len(starts) > KEPT:
            del starts[0], stops[0]

    def forget(self, which: Callable[[Any], bool]) -> None:
        """Forget the places for which `which` is true: their topics were recreated."""
        for place in [place for place in self._ranges if which(place)]:
            del self._ranges[place]

    def gaps(self, place: Hashable, start: int, stop: int) -> list[tuple[int, int]]:
        """What of [start, stop) was not noted."""
        starts, stops = self._ranges.get(place, ([], []))
        found: list[tuple[int, int]] = []
        for index in range(bisect_right(stops, start), len(starts)):
            if starts[index] >= stop:
                break
            if starts[index] > start:
                found.append((start, starts[index]))
            start = stops[index]
        if start < stop:
            found.append((start, stop))
        return found
