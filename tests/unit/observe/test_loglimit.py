"""Floods of one kind of log line: each subject is named once, then counted, in bounded memory."""

from __future__ import annotations

from watchrelay.observe.loglimit import LINE_EVERY_S, SUBJECTS_MAX, LogLimit


def test_a_subject_is_a_line_at_once_and_then_one_with_a_count_per_interval() -> None:
    limit = LogLimit()
    assert limit.due("a", 0.0) == 1
    assert [limit.due("a", float(second)) for second in range(1, 11)] == [0] * 10
    assert limit.due("b", 5.0) == 1, "another subject is news"
    assert limit.due("a", LINE_EVERY_S) == 11
    assert limit.due("a", LINE_EVERY_S + 1) == 0


def test_a_flood_of_subjects_is_a_bounded_number_of_lines_in_bounded_memory() -> None:
    limit = LogLimit()
    counts = [limit.due(subject, 0.001 * subject) for subject in range(50_000)]
    assert sum(map(bool, counts)) == SUBJECTS_MAX + 1
    assert len(limit._subjects) <= SUBJECTS_MAX + 1
    later = [limit.due(subject, LINE_EVERY_S + 100) for subject in range(50_000)]
    assert sum(map(bool, later)) <= SUBJECTS_MAX + 1
    assert max(later) > 1, "a line that replaces others has their number"
