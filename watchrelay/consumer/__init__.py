"""Reads the topics of watchrelay; knows nothing of the daemon.

`TopicReader` follows topics on Kafka: from the newest snapshot, then live, verified at every
heartbeat. `Replica` is the same without Kafka: records of one stream and one partition in, state
and outcomes out; `decode` makes its records.

    from watchrelay.consumer import TopicReader

    async with TopicReader(
        "kafka:9092", control_topic="k8s.prod.control", streams=["pods"]
    ) as reader:
        await reader.ready()  # the whole state is here, and proven
        print(len(reader.objects("pods")), "pods")
        async for change in reader:  # each object of it once, as added; then what changes
            print(change.verb, change.key)

The records are defined by the record contract; readers in other languages are tested with
`tests/vectors`.
"""

from __future__ import annotations

from watchrelay.consumer.changes import Change, PartitionState, Problem, Saved
from watchrelay.consumer.errors import (
    ConsumerError,
    KafkaUnavailable,
    NothingPublished,
    ObjectUnreadable,
    PositionsLost,
)
from watchrelay.consumer.partitions import Objects
from watchrelay.consumer.replica import Noted, ReadAgain, Replaced, Replica, Unproven
from watchrelay.consumer.topic import TopicReader
from watchrelay.contract.records import MarkerRecord, ObjectRecord, decode
from watchrelay.contract.state import Changed, Held, Ignored
from watchrelay.contract.wire import Position
from watchrelay.core.errors import RecordRefused

__all__ = [
    "Change",
    "Changed",
    "ConsumerError",
    "Held",
    "Ignored",
    "KafkaUnavailable",
    "MarkerRecord",
    "Noted",
    "NothingPublished",
    "ObjectRecord",
    "ObjectUnreadable",
    "Objects",
    "PartitionState",
    "Position",
    "PositionsLost",
    "Problem",
    "ReadAgain",
    "RecordRefused",
    "Replaced",
    "Replica",
    "Saved",
    "TopicReader",
    "Unproven",
    "decode",
]
