"""The Kafka section of the settings as a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from watchrelay.kafka.client.connection import KafkaConnection

if TYPE_CHECKING:
    from watchrelay.config import Settings


def kafka_connection(settings: Settings, *, client_id: str = "watchrelay") -> KafkaConnection:
    """Where Kafka is and who we are to it; files are read at each connection."""
    security = settings.kafka.security
    return KafkaConnection(
        bootstrap_servers=tuple(settings.kafka.bootstrap_servers),
        protocol=security.protocol,
        mechanism=security.mechanism,
        username=security.username,
        password=security.password.get_secret_value() if security.password else None,
        username_file=security.username_file,
        password_file=security.password_file,
        ca_file=security.ca_file,
        cert_file=security.cert_file,
        key_file=security.key_file,
        key_password_file=security.key_password_file,
        check_hostname=security.check_hostname,
        token_file=security.token_file,
        token_command=tuple(security.token_command),
        aws_region=security.aws_region,
        client_id=client_id,
    )
