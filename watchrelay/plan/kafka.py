"""What the settings mean for Kafka: the connection, topics, the group and transactional ids."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from watchrelay.config.streams import control_topic, signal_topic
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.topic_config import TopicSpec
from watchrelay.model.streams import StreamSpec

if TYPE_CHECKING:
    from watchrelay.config import Settings


def kafka_connection(settings: Settings, *, client_id: str = "watchrelay") -> KafkaConnection:
    """Where Kafka is and who we are to it; files are read at each connection."""
    security = dict(settings.kafka.security)  # its keys are those of a connection
    if security["password"] is not None:
        security["password"] = security["password"].get_secret_value()
    servers = tuple(settings.kafka.bootstrap_servers)
    return KafkaConnection(bootstrap_servers=servers, client_id=client_id, **security)


def replicas_group(settings: Settings) -> str:
    """The group by which replicas share the streams."""
    return f"{settings.kafka.topic_prefix}.{settings.cluster}.relays"


def transactional_id(settings: Settings, stream: str) -> str:
    """The id under which the brokers know the writer of `stream`; "" without transactions."""
    if settings.kafka.delivery != "transactional":
        return ""
    return f"{settings.kafka.topic_prefix}.{settings.cluster}.{stream}"


def topic_spec(stream: StreamSpec, settings: Settings) -> TopicSpec:
    """The state topic as this stream needs it."""
    return TopicSpec(
        name=stream.topic,
        partitions=stream.partitions,
        replication_factor=settings.kafka.replication_factor,
        min_insync_replicas=settings.kafka.min_insync_replicas,
        snapshot_interval_s=stream.snapshot_interval_s,
        keeps_all=stream.snapshot_interval_s == 0,
        pinned=stream.partitions_from == "topic",
    )


def control_spec(settings: Settings) -> TopicSpec:
    kafka = settings.kafka
    return TopicSpec(
        name=control_topic(settings),
        kind="control",
        replication_factor=kafka.replication_factor,
        min_insync_replicas=kafka.min_insync_replicas,
    )


def signal_spec(settings: Settings) -> TopicSpec:
    return replace(control_spec(settings), name=signal_topic(settings), kind="signal")
