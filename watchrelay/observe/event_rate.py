"""Counts of events over the last ten minutes in bins of ten seconds, without a timer."""

from __future__ import annotations

from array import array
from typing import Final

BIN_MS: Final = 10_000
BINS: Final = 60


class EventRate:
    """A ring of counts; 300 bytes, none before the first. Units: wall milliseconds. A bin is
    named by its time over `BIN_MS`."""

    __slots__ = ("_bins", "_newest")

    def __init__(self) -> None:
        self._bins: array[int] | None = None
        self._newest = 0

    def count(self, now_ms: int, events: int) -> None:
        """So many events came."""
        newest = now_ms // BIN_MS
        if newest != self._newest or self._bins is None:
            self._roll(newest)
        assert self._bins is not None
        self._bins[newest % BINS] += events

    def _roll(self, newest: int) -> None:
        """Begin the bin `newest`, those in between held nothing. A wall clock that is set back
        starts over."""
        if self._bins is None or not 0 < newest - self._newest < BINS:
            self._bins = array("I", bytes(4 * BINS))
        else:
            for each in range(self._newest + 1, newest + 1):
                self._bins[each % BINS] = 0
        self._newest = newest

    def latest(self) -> tuple[int, int, int]:
        """The newest bin that was counted in, what the one before it holds, and what it holds
        itself; zeros while there is none."""
        if self._bins is None:
            return (0, 0, 0)
        return (
            self._newest,
            self._bins[(self._newest - 1) % BINS],
            self._bins[self._newest % BINS],
        )

    def history(self) -> list[int]:
        """All bins up to the newest one counted in, oldest first, without the empty ones at the
        beginning."""
        if self._bins is None:
            return []
        bins = [
            self._bins[each % BINS] for each in range(self._newest - BINS + 1, self._newest + 1)
        ]
        first = next((index for index, events in enumerate(bins) if events), BINS)
        return bins[first:]

    def per_s(self, now_ms: int) -> float:
        """Events a second over the last ten: of the former bin the share that is that young, and
        the present one."""
        newest, former, present = self.latest()
        now, into_ms = divmod(now_ms, BIN_MS)
        if now == newest:
            return (former * (1 - into_ms / BIN_MS) + present) * 1000 / BIN_MS
        return present * (1 - into_ms / BIN_MS) * 1000 / BIN_MS if now == newest + 1 else 0.0
