"""How old the state that a reader has proven may be, whatever the clocks of others say. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from watchrelay.contract.records import MarkerRecord
from watchrelay.core.timestamps import parse_timestamp

APPEND_TIME: Final = 1
"""`timestamp_type` of a record whose time the broker has set (LogAppendTime); 0: the producer."""


class StateAge(NamedTuple):
    """`seconds` since the API server had last sent something that is in the state. `by_broker`: on
    a LogAppendTime topic; else it is off by as much as the clocks of writer and reader differ."""

    seconds: float
    by_broker: bool


def state_age(
    heartbeat: MarkerRecord, *, timestamp_ms: int, timestamp_type: int, now_ms: int
) -> StateAge | None:
    """The age of what the newest heartbeat of a partition proves: since it was appended, and, by
    the writer's clock alone, from the last answer of the API server until it was queued.

    Args:
        timestamp_ms: of its record.
        timestamp_type: of its record, as aiokafka has it.
        now_ms: Unix time of the reader.

    Returns: None where the heartbeat does not tell when the API server last answered.
    """
    try:
        queued_ms = parse_timestamp(heartbeat.time.encode())
        seen_ms = parse_timestamp(heartbeat.seen.encode())
    except ValueError:
        return None
    by_broker = timestamp_type == APPEND_TIME
    appended_ms = timestamp_ms if by_broker else queued_ms
    # a clock that was set between two readings makes no negative age
    age_ms = max(0, now_ms - appended_ms) + max(0, queued_ms - seen_ms)
    return StateAge(age_ms / 1000, by_broker)
