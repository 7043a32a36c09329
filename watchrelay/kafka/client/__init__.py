"""The one door to aiokafka: clients that are patched, what they are asked, batches, and errors.

Comes in: connection settings, packed batches. Goes out: started clients, acknowledgements, errors
in an operator's words. Must not know who uses it: no topic, no stream, no metric.
"""

from aiokafka import TopicPartition
from aiokafka.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    IncompatibleBrokerVersion,
    InvalidReplicationFactorError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    MessageSizeTooLargeError,
    NoError,
    NotControllerError,
    NotLeaderForPartitionError,
    RecordListTooLargeError,
    RequestTimedOutError,
    SaslAuthenticationFailed,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedSaslMechanismError,
    UnsupportedVersionError,
    for_code,
)

__all__ = [
    "AuthenticationFailedError",
    "ClusterAuthorizationFailedError",
    "IncompatibleBrokerVersion",
    "InvalidReplicationFactorError",
    "KafkaConnectionError",
    "KafkaError",
    "KafkaTimeoutError",
    "LeaderNotAvailableError",
    "MessageSizeTooLargeError",
    "NoError",
    "NotControllerError",
    "NotLeaderForPartitionError",
    "RecordListTooLargeError",
    "RequestTimedOutError",
    "SaslAuthenticationFailed",
    "TopicAlreadyExistsError",
    "TopicAuthorizationFailedError",
    "TopicPartition",
    "UnknownTopicOrPartitionError",
    "UnsupportedSaslMechanismError",
    "UnsupportedVersionError",
    "for_code",
]
