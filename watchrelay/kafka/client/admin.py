"""aiokafka's admin client, patched, and what is asked of one beyond its public methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.protocol.metadata import MetadataRequest

from watchrelay.kafka.client.metadata import topic_rights
from watchrelay.kafka.client.patches import connection_failure as connection_failure
from watchrelay.kafka.client.patches import patch_client


def make_admin(arguments: Mapping[str, Any], **more: object) -> Any:
    """An AIOKafkaAdminClient that is not started."""
    admin = AIOKafkaAdminClient(**{**arguments, **more})
    patch_client(admin._client)
    return admin


async def topic_metadata(admin: Any, topic: str) -> Any:
    """The metadata response about `topic`, which is not created by asking, as it would be by
    `describe_topics`. Raises: KafkaError."""
    client = admin._client
    request = MetadataRequest([topic], allow_auto_topic_creation=False)
    return await client.send(client.get_random_node(), request)


async def topic_configs(admin: Any, topic: str) -> Any:
    """The DescribeConfigs answer for `topic`: (error code, message, type, name, entries).

    Raises: KafkaError.
    """
    answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    return answers[0].resources[0]


async def rights_on_topics(admin: Any, topics: Iterable[str]) -> dict[str, frozenset[str]]:
    """As `metadata.topic_rights`."""
    return await topic_rights(admin._client, topics)
