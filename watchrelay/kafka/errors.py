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
    for_code,
)
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
NO_RIGHT: Final = "this user may not write it: grant WRITE on the topic"

_KNOWN: Final[dict[type[Exception], str]] = {
    TopicAuthorizationFailedError: NO_RIGHT,
    ClusterAuthorizationFailedError: NO_RIGHT,
    UnknownTopicOrPartitionError: "the brokers do not know it: was the topic deleted?",
    NotLeaderForPartitionError: (
        "it has no leader that is known: was the topic deleted, or is its broker away?"
    ),
    LeaderNotAvailableError: "it has no leader: is its broker away?",
}


def subject_of(partition: Place) -> str:
    """A partition as the subject of a trouble."""
    return f"{partition.topic}/{partition.partition}"


def explain(error: Exception, partition: Place, hint: str = "") -> Trouble:
    """Why a partition cannot be written. `hint`: what is known beyond the error."""
    known = _KNOWN.get(type(error))
    reason = hint or known or " ".join(str(error).split())
    cause = Cause.CLOCK if isinstance(error, UNTIMELY) else Cause.KAFKA
    if known is NO_RIGHT:
        cause = Cause.TOPIC_UNUSABLE
    message = f"topic {partition.topic} partition {partition.partition}: {reason}"
    return Trouble(subject_of(partition), cause, message, operator=cause is not Cause.KAFKA)


def error_of(code: int) -> Exception:
    """The error of a code, one that aiokafka does not know by its number."""
    kind = for_code(code)
    error: Exception = kind() if kind.errno == code else kind(f"error code {code}")
    return error
