"""The age of a state: no clock but the reader's and the broker's counts on LogAppendTime topics."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from watchrelay.contract.age import APPEND_TIME, StateAge, state_age
from watchrelay.contract.records import MarkerRecord
from watchrelay.core.timestamps import rfc3339

NOW_MS = 1_790_000_000_000
DAY_MS = 86_400_000
CREATE_TIME = 0


def heartbeat(*, queued_ms: int, seen_ms: int | None) -> MarkerRecord:
    return MarkerRecord(
        stream="pods", epoch=1, sequence=1, kind="heartbeat", partition=0,
        time=rfc3339(queued_ms), config="", partitions=1,
        seen="" if seen_ms is None else rfc3339(seen_ms),
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """The writer's clock is off by `skew_ms`; its heartbeat was queued `queued_ago_ms` ago, and
    appended `appended_ago_ms` ago; the API server had last answered `silent_ms` before it was queued."""

    skew_ms: int = 0
    queued_ago_ms: int = 5_000
    appended_ago_ms: int = 5_000
    silent_ms: int = 3_000

    def age(self, timestamp_type: int) -> StateAge | None:
        queued_ms = NOW_MS + self.skew_ms - self.queued_ago_ms
        marker = heartbeat(queued_ms=queued_ms, seen_ms=queued_ms - self.silent_ms)
        stamp_ms = NOW_MS - self.appended_ago_ms if timestamp_type == APPEND_TIME else queued_ms
        return state_age(
            marker, timestamp_ms=stamp_ms, timestamp_type=timestamp_type, now_ms=NOW_MS
        )


@pytest.mark.parametrize("skew_ms", [0, -20 * DAY_MS, DAY_MS, 500])
def test_the_clock_of_the_writer_does_not_touch_the_age_on_a_topic_with_append_times(
    skew_ms: int,
) -> None:
    assert Case(skew_ms).age(APPEND_TIME) == StateAge(8.0, by_broker=True)


def test_the_time_that_a_heartbeat_waited_for_kafka_is_not_in_the_age() -> None:
    # only the two clocks together could tell it, and the next heartbeat is 10 s away
    case = Case(queued_ago_ms=3_600_000, appended_ago_ms=1_000)
    assert case.age(APPEND_TIME) == StateAge(4.0, by_broker=True)


@pytest.mark.parametrize(
    ("skew_ms", "seconds"), [(0, 8.0), (-60_000, 68.0), (60_000, 3.0), (DAY_MS, 3.0)]
)
def test_on_a_topic_with_create_times_the_age_says_that_the_writer_clock_is_in_it(
    skew_ms: int, seconds: float
) -> None:
    assert Case(skew_ms).age(CREATE_TIME) == StateAge(seconds, by_broker=False)


def test_a_clock_that_was_set_back_before_the_heartbeat_gives_no_negative_age() -> None:
    assert Case(silent_ms=-3_600_000).age(APPEND_TIME) == StateAge(5.0, by_broker=True)


@pytest.mark.parametrize("seen", ["", "yesterday", "2026-01-01T00:00:00"])
def test_a_heartbeat_without_the_time_of_the_last_answer_has_no_age(seen: str) -> None:
    marker = heartbeat(queued_ms=NOW_MS, seen_ms=None)
    other = MarkerRecord(
        stream="pods", epoch=1, sequence=1, kind="heartbeat", partition=0,
        time=marker.time, config="", partitions=1, seen=seen,
    )  # fmt: skip
    assert state_age(other, timestamp_ms=NOW_MS, timestamp_type=APPEND_TIME, now_ms=NOW_MS) is None
