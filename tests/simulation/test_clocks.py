"""Wrong clocks by seed, and faults planted to see that they are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.clocks import play
from watchrelay.core.clock_offset import ClockOffset
from watchrelay.kafka.record_times import RecordTimes

SEEDS = 10
PLANTED_SEEDS = 40


def test_no_record_is_written_for_removal_and_no_answer_alone_stops_a_stream() -> None:
    happened = Counter[str]()
    for seed in range(SEEDS):
        world = play(seed)
        assert world.broken == [], f"seed {seed}: {world.broken}"
        happened.update(written=world.written, lies=world.lies, jumps=world.jumps)
    assert all(happened[each] > 0 for each in ("written", "lies", "jumps")), happened


class NeverWrong(RecordTimes):
    """Planted: records are written whatever the clock shows."""

    def off_s(self, topic: str, *, suspected: bool = False) -> float | None:
        return None


class OneAnswer(ClockOffset):
    """Planted: one answer decides."""

    def known_s(self, now_s: float, wall_ms: int) -> float | None:
        alone_ms = self.kubernetes.each_ms
        return (wall_ms - alone_ms[-1]) / 1000 - now_s if alone_ms else None


class KeptOffset(ClockOffset):
    """Planted: the offset at the last answer is taken for that of now, though the clock was set."""

    _kept: tuple[list[float], float | None] = ([], None)

    def known_s(self, now_s: float, wall_ms: int) -> float | None:
        seen, offset_s = self._kept
        if seen != self.kubernetes.each_ms:
            self._kept = self.kubernetes.each_ms, super().known_s(now_s, wall_ms)
            return self._kept[1]
        return offset_s


def with_offset(kind: type[ClockOffset]) -> Callable[..., RecordTimes]:
    def make(**clocks: Any) -> RecordTimes:
        return RecordTimes(kind(), **clocks)

    return make


@pytest.mark.full
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (NeverWrong, "a record is written whose time is"),
        (with_offset(OneAnswer), "nothing is written, though"),
        (with_offset(KeptOffset), "a record is written whose time is"),
    ],
    ids=["never wrong", "one answer", "kept offset"],
)
def test_a_planted_fault_is_found(make: Callable[..., RecordTimes], found: str) -> None:
    assert any(
        found in broken for seed in range(PLANTED_SEEDS) for broken in play(seed, make).broken
    )
