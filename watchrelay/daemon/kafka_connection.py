"""The Kafka section of the settings as a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from watchrelay.kafka.client.connection import KafkaConnection

if TYPE_CHECKING:
    from watchrelay.config import Settings


def kafka_connection(settings: Settings, *, client_id: str = "watchrelay") -> KafkaConnection:
    """Where Kafka is and who we are to it; files are read at each connection."""
    security = dict(settings.kafka.security)  # its keys are those of a connection
    if security["password"] is not None:
        security["password"] = security["password"].get_secret_value()
    servers = tuple(settings.kafka.bootstrap_servers)
    return KafkaConnection(bootstrap_servers=servers, client_id=client_id, **security)
