"""The one door to aiokafka: clients that are patched, what they are asked, batches, and errors.

Comes in: connection settings, packed batches. Goes out: started clients, acknowledgements, errors
in an operator's words. Must not know who uses it: no topic, no stream, no metric.
"""

from typing import Final

from aiokafka import TopicPartition
from aiokafka.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    IncompatibleBrokerVersion,
    InvalidReplicationFactorError,
    InvalidTimestampError,
    InvalidTopicError,
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

PRIVATE: Final = {
    "AIOKafkaConsumer._client": "patched before the start, and asked for metadata",
    "AIOKafkaConsumer._subscription": "a position without waiting for a reset",
    "AIOKafkaClient._metadata_update": "requests create no topic, and come with pauses",
    "AIOKafkaClient._get_conn": "why a connection failed, and none that is dropped open",
    "AIOKafkaClient._conns": "connections that a client leaves open at its end",
    "Fetcher._proc_fetch_request": "where fetched batches are parsed",
    **dict.fromkeys(
        (
            "PartitionRecords._aborted_producers",
            "PartitionRecords._check_crcs",
            "PartitionRecords._consume_aborted_up_to",
            "PartitionRecords._consumer_record",
            "PartitionRecords._isolation_level",
            "PartitionRecords._records",
            "PartitionRecords._records_iterator",
            "PartitionRecords._tp",
            "PartitionRecords._unpack_records",
            "FetchResult._partition_records",
            "FetchResult._topic_partition",
            "FetchResult._update_position",
        ),
        "subclassed: records are handed on in pieces",
    ),
}
"""The private members of aiokafka that this package uses, on clients of each kind (`_client` of the
admin client too) and in subclasses, and what for; `patches.py` names the defects. A test fails when
an upgrade of aiokafka has changed one."""

__all__ = [
    "PRIVATE",
    "AuthenticationFailedError",
    "ClusterAuthorizationFailedError",
    "IncompatibleBrokerVersion",
    "InvalidReplicationFactorError",
    "InvalidTimestampError",
    "InvalidTopicError",
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
