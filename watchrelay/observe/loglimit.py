"""Which of many similar log lines are written: the first of a subject, then one now and then."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

LINE_EVERY_S: Final = 300.0
"""A subject that occurs again and again is one line in this time."""
SUBJECTS_MAX: Final = 100
"""Subjects remembered: a line each, and one for all others, in `LINE_EVERY_S`."""
_OTHERS: Final = object()


class LogLimit:
    """Counts occurrences of subjects in bounded memory and says when one is worth a line."""

    def __init__(self) -> None:
        self._subjects: dict[Hashable, tuple[float, int]] = {_OTHERS: (0.0, 0)}
        """When each may be a line again, and how often it occurred since its last one."""

    def due(self, subject: Hashable, now_s: float) -> int:
        """How many occurrences of `subject` a line written now represents; 0: write none.
        `now_s` is monotonic."""
        subjects = self._subjects
        if subject not in subjects and len(subjects) > SUBJECTS_MAX:
            for known in [
                known
                for known, (next_at_s, _) in subjects.items()
                if next_at_s <= now_s and known is not _OTHERS
            ]:
                self._others(subjects.pop(known)[1])
            if len(subjects) > SUBJECTS_MAX:
                subject = _OTHERS
        next_at_s, count = subjects.get(subject, (now_s, 0))
        if now_s < next_at_s:
            subjects[subject] = (next_at_s, count + 1)
            return 0
        subjects[subject] = (now_s + LINE_EVERY_S, 0)
        return count + 1

    def _others(self, count: int) -> None:
        next_at_s, others = self._subjects[_OTHERS]
        self._subjects[_OTHERS] = (next_at_s, others + count)
