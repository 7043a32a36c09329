"""What follows from the answers of brokers about a topic, and from none."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.virtualtime import run
from tests.unit.kafka.client.test_brokers import FakeBroker, PerhapsSilent, described, serving
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


def test_one_broker_of_three_that_answers_nothing_delays_the_check_of_a_topic_by_seconds() -> None:
    async def main() -> float:
        silent: list[FakeBroker] = []
        fakes = [PerhapsSilent(silent) for _ in range(3)]
        loop = asyncio.get_running_loop()
        async with serving(fakes) as addresses:
            nodes: Any = [(number, "127.0.0.1", fake.port) for number, fake in enumerate(fakes)]
            for fake in fakes:
                fake.metadata = lambda: described(nodes, {"t": 1})
            began_s = loop.time()
            facts = await Topics(KafkaConnection(bootstrap_servers=addresses)).ensure_topic(
                TopicSpec(name="t", partitions=1, replication_factor=1)
            )
            assert (facts.partitions, len(silent)) == (1, 1)
            return loop.time() - began_s

    # at the start, and it may be asked first for the topic and its configuration
    assert 2.5 < run(main()) < 10.0
