"""Writes a record to a topic, as any client of Kafka may."""

import json
import uuid
from collections.abc import Mapping

from confluent_kafka import Producer

_UNASSIGNED = -1
"""The client chooses the partition by the key."""


def write(
    bootstrap: str,
    topic: str,
    key: str | bytes,
    *values: str | bytes | None,
    headers: Mapping[str, bytes] | None = None,
    partition: int = _UNASSIGNED,
    at_ms: int = 0,
) -> None:
    """Returns once the broker has acknowledged a record of each value. `at_ms` is what the writer's
    clock shows, 0: the right time."""
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for value in values:
        producer.produce(
            topic, value, key=key, partition=partition, headers=dict(headers or {}), timestamp=at_ms
        )
    assert producer.flush(20.0) == 0, f"not acknowledged by {bootstrap}: {topic}"


def ask_snapshot(bootstrap: str, cluster: str, *streams: str) -> None:
    """A request for snapshots, under an id of its own, on the signal topic of the relay of
    `cluster`."""
    request = {
        "id": f"asked-{uuid.uuid4().hex}",
        "type": "execute-snapshot",
        "data": {"streams": list(streams)},
    }
    write(bootstrap, f"k8s.{cluster}.signal", cluster, json.dumps(request))
