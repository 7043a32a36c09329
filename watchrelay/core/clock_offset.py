"""How far this process's clock is off, by the times in the answers of others. Pure.

An answer with a time bounds what the clock of its sender shows at an instant of our monotonic
clock: it was made after the request left and before it was received. So a clock of ours that is set
while the process runs is known at once, without another answer. One answer may be wrong (a cache, a
proxy that sets `Date`, one server of several): what most of the newest answers agree on counts, and
only if it was asked at different times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

TimeSource = Literal["kafka", "kubernetes"]

SHOWN_FROM_S: Final = 300.0
"""From here on a clock that is off is shown."""
EVERY_S: Final = 5.0
"""Of answers that follow each other sooner the first alone counts: a cache repeats one time for a
while."""
AGREE_MIN: Final = 3
_ANSWERS_MAX = 9
_TRIP_MAX_S: Final = 5.0
_SLACK_MS = 500.0
"""For the drift of a clock between two answers, which may be hours apart."""
_FIRST_MS = 946_684_800_000
_LAST_MS = 32_503_680_000_000
"""The years 2000 to 3000: other times are stand-ins for none."""


def is_time(time_ms: float) -> bool:
    """Whether these Unix milliseconds can be a time: others stand for none."""
    return _FIRST_MS <= time_ms <= _LAST_MS


class _Bounds(NamedTuple):
    """What the sender's clock shows when our monotonic clock is 0, in Unix milliseconds."""

    low_ms: float
    high_ms: float

    @property
    def middle_ms(self) -> float:
        return (self.low_ms + self.high_ms) / 2


class TimeAnswers:
    """The newest answers of one source."""

    def __init__(self) -> None:
        self._answers: deque[_Bounds] = deque(maxlen=_ANSWERS_MAX)
        self._due_s = float("-inf")
        self.agreed_ms: float | None = None
        """Unix milliseconds at 0 of our monotonic clock, by the newest majority of answers; None
        before there is one. A former majority counts until another one forms: ours is the clock
        that may be set."""

    def due(self, now_s: float) -> bool:
        """Whether an answer that comes now would count. `now_s`: monotonic."""
        return now_s >= self._due_s

    def note(self, time_ms: float, *, within_ms: float, asked_s: float, answered_s: float) -> None:
        """An answer with a time.

        Args:
            time_ms: the time in it, Unix milliseconds.
            within_ms: the true time may be later by so much: 1000 where it has whole seconds.
            asked_s, answered_s: when the request left and the answer was there, monotonic.
        """
        if not (
            is_time(time_ms) and 0 <= answered_s - asked_s <= _TRIP_MAX_S and self.due(answered_s)
        ):
            return
        self._due_s = answered_s + EVERY_S
        low_ms, high_ms = time_ms - answered_s * 1000, time_ms + within_ms - asked_s * 1000
        self._answers.append(_Bounds(low_ms - _SLACK_MS, high_ms + _SLACK_MS))
        if common := _common(self._answers):
            self.agreed_ms = common.middle_ms

    @property
    def each_ms(self) -> list[float]:
        """The same by each of the newest answers alone, which may be wrong."""
        return [answer.middle_ms for answer in self._answers]


def _common(answers: Sequence[_Bounds]) -> _Bounds | None:
    """The bounds that the largest group of answers has in common; of equal groups that with the
    newest answer."""
    best: list[int] = []
    for start in answers:
        group = [
            place
            for place, each in enumerate(answers)
            if each.low_ms <= start.low_ms <= each.high_ms
        ]
        best = max(best, group, key=lambda places: (len(places), places[-1:]))
    if len(best) < max(AGREE_MIN, len(answers) // 2 + 1):
        return None
    chosen = [answers[place] for place in best]
    return _Bounds(max(each.low_ms for each in chosen), min(each.high_ms for each in chosen))


class ClockOffset:
    """Offsets are seconds by which our wall clock is ahead; negative: behind. Kafka's word comes
    before the API server's: its brokers decide which record is too old."""

    def __init__(self) -> None:
        self.kafka, self.kubernetes = TimeAnswers(), TimeAnswers()

    def by_source(self, now_s: float, wall_ms: int) -> dict[TimeSource, float]:
        """What is known, by several answers that agree. Args: now_s: monotonic."""
        sources: tuple[tuple[TimeSource, TimeAnswers], ...] = (
            ("kafka", self.kafka),
            ("kubernetes", self.kubernetes),
        )
        return {
            name: (wall_ms - answers.agreed_ms) / 1000 - now_s
            for name, answers in sources
            if answers.agreed_ms is not None
        }

    def known_s(self, now_s: float, wall_ms: int) -> float | None:
        """The offset by several answers that agree; None while it is not known."""
        agreed_ms = self.kafka.agreed_ms
        if agreed_ms is None:
            agreed_ms = self.kubernetes.agreed_ms
        return None if agreed_ms is None else (wall_ms - agreed_ms) / 1000 - now_s

    def suspected_s(self, now_s: float, wall_ms: int) -> float | None:
        """The offset; where too few answers agree, the largest by any of them."""
        if (known_s := self.known_s(now_s, wall_ms)) is not None:
            return known_s
        alone_ms = [*self.kafka.each_ms, *self.kubernetes.each_ms]
        return max(((wall_ms - each) / 1000 - now_s for each in alone_ms), key=abs, default=None)

    def true_ms(self, now_s: float, wall_ms: int) -> int:
        """Our best knowledge of the time, Unix milliseconds: the wall clock, unless answers say
        that it is off by more than what is shown."""
        offset_s = self.suspected_s(now_s, wall_ms)
        if offset_s is None or abs(offset_s) < SHOWN_FROM_S:
            return wall_ms
        return wall_ms - round(offset_s * 1000)


def off_by(offset_s: float) -> str:
    """An offset for people: "20 d 3 h behind"."""
    minutes = round(abs(offset_s) / 60)
    days, hours = divmod(minutes // 60, 24)
    span = f"{minutes} min" if minutes < 60 else f"{hours} h {minutes % 60} min"
    if days:
        span = f"{days} d {hours} h"
    return f"{span} {'ahead' if offset_s > 0 else 'behind'}"
