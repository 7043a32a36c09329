"""Errors of the producer: which mean a size, which a missing topic, and a line for operators."""

from __future__ import annotations

from typing import Final

from watchrelay.kafka.client import (
    ClusterAuthorizationFailedError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NotLeaderForPartitionError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    TopicPartition,
    UnknownTopicOrPartitionError,
)

SIZES: Final = (MessageSizeTooLargeError, RecordListTooLargeError)
GONE: Final = (UnknownTopicOrPartitionError, NotLeaderForPartitionError, LeaderNotAvailableError)
"""Errors after which the brokers are asked whether the topic still exists."""
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


def explain(error: Exception, partition: TopicPartition) -> str:
    """One line for an operator: what, where, cure."""
    known = _KNOWN.get(type(error))
    reason = known or " ".join(str(error).split())
    where = f"topic {partition.topic} partition {partition.partition}"
    return f"{where}: {reason}"
