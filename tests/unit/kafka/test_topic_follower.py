"""A topic that is followed: how long its reader waits for a silent broker."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from tests.support.virtualtime import run
from watchrelay.core import clock
from watchrelay.core.errors import TopicLost
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.topic_follower import TopicFollower
from watchrelay.observe.status import Problems

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
        connection, "control", follower, name="control", committed=False, problems=Problems()
    )
    consumer = Consumer([clock.wall_ms() + jump_ms + number for number in range(5)], connection)
    await tail._follow(consumer, TopicPartition("control", 0), connection.rotation.proven)
    assert tail.next == 0


CONTROL = TopicPartition("control", 0)


class Asked:
    """A client with one broker, which answers the first questions with the topic's ids, None while
    it does not know it, and then nothing."""

    def __init__(self, *ids: bytes | None) -> None:
        self._ids = list(ids)
        self.asked = 0
        self.cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(nodeId=1)])

    async def send(self, _node: int, _request: object) -> Any:
        self.asked += 1
        if not self._ids:
            await asyncio.get_running_loop().create_future()
        found = self._ids.pop(0)
        topic: Any = (0 if found else 3, "control", found or bytes(16), False, [], 0, {})
        return SimpleNamespace(API_VERSION=10, brokers=[1], topics=[topic])


class Written:
    """A consumer that reads a record in each second, `count` of them."""

    def __init__(self, client: Asked, count: int, connection: KafkaConnection) -> None:
        self._client, self._count, self._connection = client, count, connection
        self._next = 0

    async def getmany(self, *_: object, **__: object) -> dict[TopicPartition, list[Any]]:
        await asyncio.sleep(1.0)
        self._next += 1
        if self._next == self._count:
            self._connection.rotation.proven += 1
        return {CONTROL: [SimpleNamespace(offset=self._next - 1)]}

    async def position(self, _: TopicPartition) -> int:
        return self._next

    def last_poll_timestamp(self, _: TopicPartition) -> int:
        return 0


def follow(client: Asked, *, count: int) -> list[float]:
    """When each record was taken."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        taken_s: list[float] = []
        handler: Any = SimpleNamespace(
            take=lambda _: taken_s.append(loop.time()), moved=lambda _: None
        )
        connection = KafkaConnection(bootstrap_servers=("nowhere:1",))
        tail = TopicFollower(
            connection, "control", handler, name="control", committed=False, problems=Problems()
        )
        tail._identity.expect("control")
        consumer = Written(client, count, connection)
        await tail._follow(consumer, CONTROL, connection.rotation.proven)
        return taken_s

    return run(main())


def test_a_broker_that_does_not_answer_whether_the_topic_exists_delays_no_record() -> None:
    client = Asked()
    taken_s = follow(client, count=30)
    assert taken_s == pytest.approx([taken_s[0] + second for second in range(30)])
    assert client.asked == 2


def test_a_topic_that_is_recreated_while_it_is_read_is_lost() -> None:
    with pytest.raises(TopicLost, match="it was deleted and recreated"):
        follow(Asked(b"1" * 16, b"2" * 16), count=40)


class Looking(TopicFollower):
    """Only looks whether its topic is there, by one client after the other."""

    def ask(self, *clients: Asked) -> Looking:
        self._clients = list(clients)
        return self

    async def _life(self) -> None:
        consumer = SimpleNamespace(_client=self._clients.pop(0))
        await self._find(consumer)
        await self._keep_looking(consumer)


@pytest.mark.parametrize(("back", "started_over"), [(b"1" * 16, False), (b"2" * 16, True)])
def test_a_topic_that_brokers_did_not_know_is_read_on_if_it_is_back_under_its_id(
    back: bytes, started_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
        over = list[bool]()
        handler: Any = SimpleNamespace(started_over=lambda: over.append(True))
        connection = KafkaConnection(bootstrap_servers=("nowhere:1",))
        tail = Looking(
            connection, "control", handler, name="control", committed=False, problems=Problems()
        ).ask(Asked(b"1" * 16, *[None] * 4), Asked(back))
        tail.next = 7
        with pytest.raises(TopicLost, match="do not know it"):
            await tail.run()
        assert (over, tail.next) == ([], 7), "its caller makes the topic, if it is gone"
        with pytest.raises((TopicLost, TimeoutError)):
            async with asyncio.timeout(60.0):
                await tail.run()
        assert (bool(over), tail.next) == (started_over, 0 if started_over else 7)

    run(main())
