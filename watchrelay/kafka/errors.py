"""What brokers refuse a batch with, sorted by what follows, and in an operator's words.

Room: sink. In: errors of aiokafka's producer. Out: whether a batch is too large, or its topic
perhaps gone; one line for people.
"""

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
"""What a deleted topic looks like, and others too: then brokers are asked whether it is there."""
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


def explain(error: Exception, partition: TopicPartition, said: str) -> str:
    """One line for an operator: what, where, cure. Shape: `said` is the client's newest log line,
    "" when it said nothing."""
    known = _KNOWN.get(type(error))
    reason = known or " ".join(str(error).split())
    where = f"topic {partition.topic} partition {partition.partition}"
    return f"{where}: {reason}" + (f" (kafka client: {said})" if said and not known else "")
