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

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from watchrelay.consumer.changes import Change, LaneState, Problem, Saved
    from watchrelay.consumer.errors import (
        ConsumerError,
        KafkaUnavailable,
        NothingPublished,
        ObjectUnreadable,
        PositionsLost,
    )
    from watchrelay.consumer.objects import Objects
    from watchrelay.consumer.replica import (
        Changed,
        Held,
        Ignored,
        Noted,
        ReadAgain,
        Replaced,
        Replica,
        Unproven,
    )
    from watchrelay.consumer.topic import TopicReader
    from watchrelay.contract.records import MarkerRecord, ObjectRecord, decode
    from watchrelay.contract.wire import Position
    from watchrelay.core.errors import RecordRefused

_HOMES = {
    "watchrelay.contract.records": ("MarkerRecord", "ObjectRecord", "decode"),
    "watchrelay.consumer.changes": ("Change", "LaneState", "Problem", "Saved"),
    "watchrelay.consumer.errors": (
        "ConsumerError",
        "KafkaUnavailable",
        "NothingPublished",
        "ObjectUnreadable",
        "PositionsLost",
    ),
    "watchrelay.consumer.objects": ("Objects",),
    "watchrelay.consumer.replica": (
        "Changed",
        "Held",
        "Ignored",
        "Noted",
        "ReadAgain",
        "Replaced",
        "Replica",
        "Unproven",
    ),
    "watchrelay.consumer.topic": ("TopicReader",),
    "watchrelay.core.errors": ("RecordRefused",),
    "watchrelay.contract.wire": ("Position",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Change",
    "Changed",
    "ConsumerError",
    "Held",
    "Ignored",
    "KafkaUnavailable",
    "LaneState",
    "MarkerRecord",
    "Noted",
    "NothingPublished",
    "ObjectRecord",
    "ObjectUnreadable",
    "Objects",
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


def __getattr__(name: str) -> Any:
    """Loaded when first asked for, so that `Replica` alone needs no Kafka client. Source: PEP
    562."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
