"""aiokafka's consumer, patched, and what is asked of one beyond its public methods."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.conn import collect_hosts
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from watchrelay.kafka.client.fetched import Limits
from watchrelay.kafka.client.leader_epochs import end_of_epoch
from watchrelay.kafka.client.metadata import TopicsRequest, ask_any, ids_in, topic_ids, topics_in
from watchrelay.kafka.client.patches import connection_failure as connection_failure
from watchrelay.kafka.client.patches import end_in_own_task, patch_consumer

STATE_TOPICS: Final[Limits] = {}
"""The limits of a consumer that reads no other topics."""
_TOPIC_S: Final = 15.0


def make_consumer(
    arguments: Mapping[str, Any], limits: Limits = STATE_TOPICS, **more: object
) -> Any:
    """A consumer that is not started: without a group, without commits; it creates no topics.

    Args:
        arguments: keyword arguments of AIOKafkaConsumer; those above cannot be overridden.
        limits: of topics that are no state topics.
        more: keyword arguments too; they win.
    """
    fixed = {"group_id": None, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    consumer = AIOKafkaConsumer(**{**arguments, **more, **fixed})
    patch_consumer(consumer, limits)
    return consumer


async def stop_consumer(consumer: Any, *, within_s: float) -> None:
    """Release all that the consumer holds; each of the two steps may take `within_s`.

    Defect: where `stop()` of aiokafka 0.14 ends with a stray CancelledError, as each time while the
    broker is down, the connections and the metadata task live on. So the client is closed again.
    """
    for step in (consumer.stop, consumer._client.close):
        await end_in_own_task(step, within_s=within_s, what="consumer")


def is_host_and_port(server: object) -> bool:
    """Whether `server` names bootstrap servers as `host:port`, several with commas between."""
    try:
        return isinstance(server, str) and all(
            host and 0 < port < 65536 for host, port, _ in collect_hosts(server)
        )
    except ValueError:
        return False


async def wait_for_topic(consumer: Any, topic: str) -> list[int]:
    """The partitions of `topic`, once the brokers know it.

    Raises: KafkaError when they do not within `_TOPIC_S`, or READ is not granted; TimeoutError.

    Defect: an answer that aiokafka 0.14 cannot use ends its metadata task, which is then awaited.
    """
    client, now_s = consumer._client, asyncio.get_running_loop().time
    until_s = now_s() + _TOPIC_S
    async with asyncio.timeout(2 * _TOPIC_S):
        client.add_topic(topic)
        while (partitions := client.cluster.partitions_for_topic(topic)) is None:
            if topic in client.cluster.unauthorized_topics:
                raise TopicAuthorizationFailedError(topic)
            if now_s() > until_s:
                raise UnknownTopicOrPartitionError
            await client.force_metadata_update()
    return sorted(partitions)


async def partitions_and_ids(
    consumer: Any, topics: Collection[str]
) -> tuple[dict[str, frozenset[int]], dict[str, bytes | None]]:
    """The partitions of those of `topics` that exist and are visible, by topic; and the ids of
    `topics`, as `metadata.topic_ids`.

    The brokers are asked each time: the client's own metadata is up to five minutes old.

    Raises: KafkaConnectionError when no broker answers.
    """
    try:
        answer = await ask_any(consumer._client, TopicsRequest(topics))
        ids = ids_in(answer)
    except (KafkaError, OSError) as error:
        raise KafkaConnectionError("no broker answers") from error
    return {
        topic: frozenset(partition[1] for partition in partitions)
        for code, topic, partitions in topics_in(answer)
        if not code and partitions
    }, ids


async def ids_of_topics(consumer: Any, topics: Collection[str]) -> dict[str, bytes | None]:
    """As `metadata.topic_ids`."""
    return await topic_ids(consumer._client, topics)


async def end_of_leader_epoch(consumer: Any, place: TopicPartition, epoch: int) -> int | None:
    """As `leader_epochs.end_of_epoch`."""
    return await end_of_epoch(consumer._client, place, epoch)


def may_have_more(consumer: Any) -> bool:
    """Whether what `getmany` gave last may be only a part of what has arrived."""
    used: bool = consumer.share.was_used
    return used


def position_if_known(consumer: Any, place: TopicPartition) -> int | None:
    """The offset of the next record of `place`, which is assigned; None while the client resets it.

    `consumer.position()` would wait for the reset, and forever if the topic was deleted.
    """
    state = consumer._subscription.subscription.assignment.state_value(place)
    return int(state.position) if state.has_valid_position else None
