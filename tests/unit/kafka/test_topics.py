"""What follows from the brokers' answer to the creation of a topic."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.topics import Topics, TopicSpec

ALREADY_EXISTS = 36


class Admin:
    """Creates a topic for the first that asks."""

    def __init__(self) -> None:
        self.made = False

    async def create_topics(self, new: list[Any], timeout_ms: int) -> SimpleNamespace:
        code, self.made = ALREADY_EXISTS if self.made else 0, True
        return SimpleNamespace(topic_errors=[(new[0].name, code, None)])


async def test_a_topic_that_two_streams_share_is_created_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="watchrelay")
    topics, admin = Topics(KafkaConnection(bootstrap_servers=("k:1",))), Admin()
    made = [await topics._make(admin, TopicSpec(name="t")) for _ in range(2)]
    assert made == [True, False]
    assert caplog.messages == ["topic created"]
