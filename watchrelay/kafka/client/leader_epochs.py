"""Under which leader epoch records were appended, and where an epoch ended: brokers that lost
records after an unclean election, and took others in their place, show it by nothing else."""

from __future__ import annotations

from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import IncompatibleBrokerVersion, NotLeaderForPartitionError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int16, Int32, Int64, Schema, String

from watchrelay.kafka.client.error_codes import error_of

UNKNOWN: Final = -1
_KEPT = 100


class LeaderEpochs:
    """Of the batches that were unpacked, where the leader epoch changed, by partition."""

    def __init__(self) -> None:
        self._starts: dict[TopicPartition, list[tuple[int, int]]] = {}

    def note(self, place: TopicPartition, offset: int, epoch: int) -> None:
        """The batch that begins at `offset` was appended under `epoch`."""
        starts = self._starts.setdefault(place, [])
        if not starts or starts[-1][1] != epoch:
            starts.append((offset, epoch))
            del starts[:-_KEPT]

    def at(self, place: TopicPartition, offset: int) -> int:
        """The epoch of the batch with this offset, of those noted last; `UNKNOWN` for none."""
        starts = self._starts.get(place, ())
        return next((epoch for start, epoch in reversed(starts) if start <= offset), UNKNOWN)


class _EndResponse(Response):
    API_KEY = 23
    API_VERSION = 2
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader_epoch", Int32),
                        ("end_offset", Int64),
                    ),
                ),
            ),
        ),
    )


class _EndRequest(RequestStruct):
    API_KEY = 23
    API_VERSION = 2
    RESPONSE_TYPE = _EndResponse
    SCHEMA = Schema(
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("partition", Int32),
                        ("current_leader_epoch", Int32),
                        ("leader_epoch", Int32),
                    ),
                ),
            ),
        ),
    )


class EpochEndRequest(Request[_EndRequest]):
    """Where a leader epoch of one partition ended. Source: KIP-320."""

    API_KEY = 23

    def __init__(self, place: TopicPartition, epoch: int) -> None:
        self._place, self._epoch = place, epoch

    def build(self, request_struct_class: Any) -> Any:
        asked = (self._place.partition, -1, self._epoch)
        return request_struct_class([(self._place.topic, [asked])])


async def end_of_epoch(client: Any, place: TopicPartition, epoch: int) -> int | None:
    """The offset after the last record of `epoch` and those before it, as the leader knows it; None
    where it knows nothing of them, or brokers cannot be asked (before Kafka 2.1). `client` is an
    AIOKafkaClient. Raises: KafkaError, OSError."""
    leader = client.cluster.leader_for_partition(place)
    if leader is None or leader < 0:
        raise NotLeaderForPartitionError(f"{place.topic} has no leader")
    try:
        answer = await client.send(leader, EpochEndRequest(place, epoch))
    except (IncompatibleBrokerVersion, NotImplementedError):
        return None  # the broker does not know the request, or no version of it that aiokafka does
    ((_, ((code, _, _, end),)),) = answer.topics
    if code:
        raise error_of(code, f"{place.topic}: the end of leader epoch {epoch} was asked for")
    return int(end) if end >= 0 else None
