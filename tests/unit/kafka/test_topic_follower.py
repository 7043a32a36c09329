"""A topic that is followed: how long its reader waits for a silent broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from watchrelay.core import clock
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.topic_follower import TopicFollower

HOUR_MS = 3_600_000


class Away:
    """A client that can be asked nothing."""

    def __getattr__(self, name: str) -> Any:
        raise KafkaError(name)


class Consumer:
    """Answers with nothing; `stamps` are the wall clock at its newest answers, as aiokafka keeps
    it. It ends the reading with the last."""

    def __init__(self, stamps: list[int], connection: KafkaConnection) -> None:
        self._stamps, self._connection = stamps, connection
        self._client = Away()

    async def getmany(self, *_: object, **__: object) -> dict[TopicPartition, list[object]]:
        await asyncio.sleep(0)
        return {}

    async def position(self, _: TopicPartition) -> int:
        return 0

    def last_poll_timestamp(self, _: TopicPartition) -> int:
        stamp = self._stamps.pop(0)
        if not self._stamps:
            self._connection.rotation.proven += 1
        return stamp


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, HOUR_MS])
async def test_a_wall_clock_that_is_set_while_a_topic_is_followed_costs_no_consumer(
    jump_ms: int,
) -> None:
    connection = KafkaConnection(bootstrap_servers=("nowhere:1",))
    follower: Any = SimpleNamespace(take=lambda _: None, moved=lambda _: None)
    tail = TopicFollower(
        connection, "control", follower, name="control", committed=False, problems={}
    )
    consumer = Consumer([clock.wall_ms() + jump_ms + number for number in range(5)], connection)
    await tail._follow(consumer, TopicPartition("control", 0), connection.rotation.proven)
    assert tail.next == 0
