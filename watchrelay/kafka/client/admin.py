"""aiokafka's admin client, patched, and what is asked of one beyond its public methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as NewTopic
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.protocol.admin import DescribeConfigsRequest

from watchrelay.kafka.client.metadata import TopicsRequest, ask_any, topic_rights
from watchrelay.kafka.client.patches import connection_failure as connection_failure
from watchrelay.kafka.client.patches import patch_client


def make_admin(arguments: Mapping[str, Any], **more: object) -> Any:
    """An AIOKafkaAdminClient that is not started."""
    admin = AIOKafkaAdminClient(**{**arguments, **more})
    patch_client(admin._client)
    return admin


async def topic_metadata(admin: Any, topics: Iterable[str]) -> Any:
    """The metadata response about `topics`, which are not created by asking, as they would be by
    `describe_topics`. Raises: KafkaError, OSError."""
    return await ask_any(admin._client, TopicsRequest(topics))


async def topic_configs(admin: Any, topics: Iterable[str]) -> Any:
    """The DescribeConfigs answer for each of `topics`: (error code, message, type, name, entries).

    Raises: KafkaError, OSError.
    """
    request = DescribeConfigsRequest([(ConfigResourceType.TOPIC, each, None) for each in topics])
    return (await ask_any(admin._client, request)).resources


async def rights_on_topics(admin: Any, topics: Iterable[str]) -> dict[str, frozenset[str]]:
    """As `metadata.topic_rights`."""
    return await topic_rights(admin._client, topics)
