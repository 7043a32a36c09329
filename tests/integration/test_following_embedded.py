"""An embedded Kafka whose topics are followed, also while it is away."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.sinkparts import QUICK, running_sink, until
from tests.unit.kafka.test_log_follower import Followed
from watchrelay.contract.wire import Batch, WireRecord
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.log_follower import LogFollower


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka.start() as broker:
        for topic in "tu":
            broker.create_topic(topic, 1)
        yield broker


def of(topic: str, stream: str, count: int) -> Batch:
    headers = [("ce_wrstream", stream.encode())]
    return Batch(topic, 0, [WireRecord(b"k", b"v", headers) for _ in range(count)])


async def test_logs_are_followed_through_an_outage_and_each_record_is_taken_once(
    kafka: EmbeddedKafka,
) -> None:
    follower = LogFollower(KafkaConnection(bootstrap_servers=(kafka.bootstrap,)))
    async with running_sink(kafka.bootstrap, QUICK) as running, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(follower.run())
        for topic in "tu":
            await running.sink.deliver(of(topic, "pods", 5))
        first, second = Followed("pods", start=2), Followed("pods", topic="u")
        follower.follow(first)
        follower.follow(second)
        await until(lambda: first.offsets == [2, 3, 4] and second.offsets == [*range(5)])
        kafka.broker_down()
        kafka.broker_up()
        second.urgent = True
        follower.hurry()
        await running.sink.deliver(of("u", "pods", 700))
        await until(lambda: second.next == {0: 705})
        assert second.offsets == [*range(705)]
        assert first.why == second.why == ""
        follower.unfollow(first)
        follower.unfollow(second)
        task.cancel()
