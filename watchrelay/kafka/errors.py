"""Errors of the producer: which mean a size, which a missing topic, and a line for operators."""

from __future__ import annotations

from typing import Final

from watchrelay.core.trouble import Cause, Trouble
from watchrelay.kafka.client import (
    ClusterAuthorizationFailedError,
    InvalidTimestampError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NotLeaderForPartitionError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from watchrelay.kafka.client.error_codes import cure_of
from watchrelay.kafka.partition import Place

SIZE_SETTINGS: Final[dict[type[Exception], str]] = {
    MessageSizeTooLargeError: "max.message.bytes",
    RecordListTooLargeError: "segment.bytes",
}
"""By the error of a size, the setting of the topic that bounds it."""
GONE: Final = (UnknownTopicOrPartitionError, NotLeaderForPartitionError, LeaderNotAvailableError)
"""Errors after which the brokers are asked whether the topic still exists."""
UNTIMELY: Final = (InvalidTimestampError,)
"""Errors about the time that our clock gave to a record."""
_NO_RIGHT: Final = (TopicAuthorizationFailedError, ClusterAuthorizationFailedError)
_GRANT: Final = "this user may not write it: grant WRITE on the topic"


def subject_of(partition: Place) -> str:
    """A partition as the subject of a trouble."""
    return f"{partition.topic}/{partition.partition}"


def explain(error: Exception, partition: Place, hint: str = "") -> Trouble:
    """Why a partition cannot be written. `hint`: what is known beyond the error."""
    known = cure_of(error)
    cause = Cause.CLOCK if isinstance(error, UNTIMELY) else Cause.KAFKA
    if isinstance(error, _NO_RIGHT):
        known, cause = _GRANT, Cause.TOPIC_UNUSABLE
    reason = hint or known or " ".join(str(error).split())
    message = f"topic {partition.topic} partition {partition.partition}: {reason}"
    return Trouble(subject_of(partition), cause, message, operator=cause is not Cause.KAFKA)
