"""Where an open transaction holds back a consumer of committed records."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.positioned import Positioned
from tests.support.virtualtime import run, virtual
from watchrelay.core.errors import TransactionOpen
from watchrelay.kafka.client import TopicPartition
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.cursor import Cursor
from watchrelay.kafka.open_transactions import HELD_BACK_AFTER_S, OpenTransactions
from watchrelay.kafka.reading import Reading
from watchrelay.kafka.topic_follower import TopicFollower
from watchrelay.observe.status import Troubles

PLACE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
CURE = "kafka-transactions.sh --bootstrap-server b:1 abort --topic t --partition 0 --start-offset 7"


class Consumer(Positioned):
    """By partition, what a broker last answered: position, last stable offset, end."""

    def __init__(self, **offsets: tuple[int, int | None, int | None]) -> None:
        super().__init__()
        self.offsets = {TopicPartition("t", int(name[1:])): each for name, each in offsets.items()}

    def _state(self, place: TopicPartition) -> Any:
        return SimpleNamespace(has_valid_position=True, position=self.offsets[place][0])

    def at(self, *places: TopicPartition) -> dict[TopicPartition, Cursor]:
        return {place: Cursor(self.offsets[place][0]) for place in places}

    def last_stable_offset(self, place: TopicPartition) -> int | None:
        return self.offsets[place][1]

    def highwater(self, place: TopicPartition) -> int | None:
        return self.offsets[place][2]

    async def getmany(self, *_: object, **__: object) -> dict[TopicPartition, list[Any]]:
        await asyncio.sleep(0.5)
        return {}


@virtual
async def test_one_that_stays_open_is_named_by_partition_and_offset_with_the_command_that_aborts_it() -> (
    None
):
    consumer, transactions = Consumer(p0=(7, 7, 9), p1=(9, 9, 9)), OpenTransactions("b:1")
    assert transactions.held_back(consumer, consumer.at(PLACE, OTHER)) == {}
    assert transactions.any_open
    await asyncio.sleep(HELD_BACK_AFTER_S)
    held = transactions.held_back(consumer, consumer.at(PLACE, OTHER))
    assert list(held) == [PLACE]
    assert "topic t partition 0: an open transaction at offset 7" in str(held[PLACE])
    assert held[PLACE].cure == CURE
    consumer.offsets[PLACE] = (9, 9, 9)
    assert transactions.held_back(consumer, consumer.at(PLACE, OTHER)) == {}
    assert not transactions.any_open


@pytest.mark.parametrize(
    "offsets",
    [(6, 7, 9), (7, 7, 7), (7, -1, 9), (7, None, None)],
    ids=["records to read", "none after it", "an old broker", "no answer yet"],
)
@virtual
async def test_nothing_is_named_where(offsets: tuple[int, int | None, int | None]) -> None:
    consumer, transactions = Consumer(p0=offsets), OpenTransactions("b:1")
    for _ in range(3):
        assert transactions.held_back(consumer, consumer.at(PLACE)) == {}
        await asyncio.sleep(HELD_BACK_AFTER_S)


@virtual
async def test_those_that_end_one_after_the_other_are_not_named() -> None:
    consumer, transactions = Consumer(p0=(0, 0, 2)), OpenTransactions("b:1")
    for offset in range(100):
        consumer.offsets[PLACE] = (offset, offset, offset + 2)
        assert transactions.held_back(consumer, consumer.at(PLACE)) == {}
        await asyncio.sleep(1.0)


def test_a_reading_that_is_held_back_ends_with_the_transaction_and_not_as_a_silent_broker() -> None:
    async def body() -> None:
        reading = Reading(Consumer(p0=(7, 7, 9)), "b:1", committed=True, silent_after_s=60.0)
        reading.assign({PLACE: Cursor(0, 9)})
        await reading.read_to_end(lambda *_: None)

    with pytest.raises(TransactionOpen, match="an open transaction at offset 7"):
        run(body())


@virtual
async def test_a_followed_topic_shows_the_transaction_until_it_has_ended() -> None:
    connection, problems = KafkaConnection(bootstrap_servers=("b:1",)), Troubles()
    handler: Any = SimpleNamespace(take=lambda _: None, moved=lambda _: None)
    follower = TopicFollower(
        connection,
        "t",
        handler,
        name="signal",
        committed=True,
        batch_bytes_max=1000,
        problems=problems,
    )
    consumer = Consumer(p0=(7, 7, 9))
    async with asyncio.TaskGroup() as tasks:
        reading = Reading(consumer, "b:1", committed=True, silent_after_s=None)
        reading.assign({PLACE: follower.parts[0]})
        task = tasks.create_task(follower._read(reading, connection.rotation.proven), name="read")
        await asyncio.sleep(HELD_BACK_AFTER_S + 2.0)
        shown = problems["signal"]
        assert shown.cure == CURE
        assert shown.message.startswith("signal topic t: topic t partition 0: an open")
        consumer.offsets[PLACE] = (9, 9, 9)
        await asyncio.sleep(2.0)
        assert dict(problems) == {}
        task.cancel()
