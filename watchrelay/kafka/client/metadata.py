"""What any broker can answer: topic ids, and the rights of the client's user on topics.

aiokafka 0.14 requests metadata up to version 5; ids and rights come with version 10 (Kafka 2.8),
which is defined here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from typing import Any, Final

from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaError,
    NoError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest_v4, MetadataRequest_v5
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

NO_ID: Final = b""
"""The id of a topic on brokers that have no ids (before Kafka 2.8)."""
ANSWER_S: Final = 3.0
"""Seconds without an answer after which another broker is asked instead."""


class _Uuid(AbstractType[bytes]):
    """16 bytes as they are."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: Any) -> bytes:
        return bytes(data.read(16))


class _MetadataResponse(Response):
    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString("utf-8")),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("topic_authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _MetadataRequest(RequestStruct):
    API_KEY = 3
    API_VERSION = 10
    RESPONSE_TYPE = _MetadataResponse
    FLEXIBLE_VERSION = True
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic_id", _Uuid), ("topic", CompactString("utf-8")), ("tags", TaggedFields)
            ),
        ),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicsRequest(Request[MetadataRequest_v4 | MetadataRequest_v5 | _MetadataRequest]):
    """Asks about topics, in the newest way that the broker knows, and never makes one by asking."""

    API_KEY = 3

    def __init__(self, topics: Iterable[str], *, rights: bool = False) -> None:
        self._topics = list(topics)
        self._rights = rights

    def build(self, request_struct_class: Any) -> Any:
        if request_struct_class is _MetadataRequest:
            return _MetadataRequest(
                [(bytes(16), topic, {}) for topic in self._topics], False, False, self._rights, {}
            )
        return request_struct_class(self._topics, False)


async def topic_ids(client: Any, topics: Iterable[str]) -> dict[str, bytes | None]:
    """By topic its id, None for one that the brokers do not know; without those that they do not
    answer about. `client` is an AIOKafkaClient.

    Raises: KafkaError, OSError when no broker answers.
    """
    return ids_in(await ask_any(client, TopicsRequest(topics)))


def ids_in(answer: Any) -> dict[str, bytes | None]:
    """The same from the answer to a TopicsRequest. Raises: KafkaError."""
    if not answer.brokers:
        raise KafkaError("the broker asked knows no broker: it has only just started")
    with_ids = answer.API_VERSION >= _MetadataResponse.API_VERSION
    found: dict[str, bytes | None] = {}
    for topic in answer.topics:
        error = for_code(topic[0])
        if error is UnknownTopicOrPartitionError:
            found[topic[1]] = None
        elif error is NoError:
            found[topic[1]] = topic[2] if with_ids and any(topic[2]) else NO_ID
    return found


def topics_in(answer: Any) -> list[tuple[int, str, list[Any]]]:
    """Error code, name and partitions of each topic: (error, number, leader, replicas, ...)."""
    if answer.API_VERSION < _MetadataResponse.API_VERSION:
        return [(topic[0], topic[1], topic[3] or []) for topic in answer.topics]
    return [
        (topic[0], topic[1], [(*each[:3], *each[4:]) for each in topic[4] or []])
        for topic in answer.topics
    ]


_CODES: Final = {"READ": 3, "WRITE": 4, "CREATE": 5, "DESCRIBE_CONFIGS": 10}
_NO_RIGHTS_GIVEN: Final = -(2**31)


async def topic_rights(client: Any, topics: Iterable[str]) -> dict[str, frozenset[str]]:
    """Which of READ, WRITE, CREATE and DESCRIBE_CONFIGS the client's user has, by topic, which need
    not exist; without those that brokers do not answer about: to a user who may not see the topic,
    or before Kafka 2.8. `client` is an AIOKafkaClient.

    Rights on the cluster, which may include CREATE, are shown only to users who may describe the
    cluster (KIP-430).
    Raises: KafkaError, OSError when no broker answers.
    """
    answer = await ask_any(client, TopicsRequest(topics, rights=True))
    if answer.API_VERSION < _MetadataResponse.API_VERSION:
        return {}
    masks = {topic[1]: topic[5] for topic in answer.topics}
    return {
        topic: frozenset(right for right, code in _CODES.items() if mask & 1 << code)
        for topic, mask in masks.items()
        if mask != _NO_RIGHTS_GIVEN
    }


async def ask_any(client: Any, request: Any) -> Any:
    """The answer to a request that any broker can answer: of the first one that does so within
    `ANSWER_S`; the last one asked has the client's request timeout. The one that answered the
    request before is asked last, so that of two answers in a row the second is of another broker,
    where there is one. `client` is an AIOKafkaClient.

    Raises: KafkaError, OSError when no broker answers.
    """
    nodes = [broker.nodeId for broker in client.cluster.brokers()]
    random.shuffle(nodes)
    nodes.sort(key=lambda node: node != getattr(client, "answered", None))
    failure: Exception = KafkaError("no broker is known")
    while nodes:
        node = nodes.pop()
        try:
            async with asyncio.timeout(ANSWER_S if nodes else None):
                answer = await client.send(node, request)
        except IncompatibleBrokerVersion:
            raise  # that is an answer: the others have no other
        except NotImplementedError as error:
            # the same: aiokafka 0.14 lets it out where node and client know no version in common
            raise KafkaError(f"topics cannot be asked about: {error!r}") from error
        except (KafkaError, OSError) as error:
            failure = error
        except KeyError as error:
            # aiokafka 0.14 lets it out where the connection to the node went meanwhile
            failure = KafkaError(f"no connection to broker {node}: {error!r}")
        else:
            client.answered = node
            return answer
    raise failure
