"""A topic that is followed: how long its reader waits for a silent broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from tests.support.positioned import Positioned
from tests.support.virtualtime import run, virtual
from watchrelay.core import clock
from watchrelay.core.errors import SinkUnavailable, TopicLost
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.leader_epochs import LeaderEpochs
from watchrelay.kafka.client.metadata import topic_ids
from watchrelay.kafka.reading import Reading
from watchrelay.kafka.topic_follower import TopicFollower
from watchrelay.observe.status import Troubles

HOUR_MS = 3_600_000
CONTROL = TopicPartition("control", 0)
Follower = TypeVar("Follower", bound=TopicFollower)


def made(
    kind: type[Follower],
    *,
    take: Callable[[Any], object] = lambda _: None,
    started_over: Callable[[], object] = lambda: None,
) -> Follower:
    """A follower of the control topic."""
    handler: Any = SimpleNamespace(take=take, moved=lambda _: None, started_over=started_over)
    return kind(
        KafkaConnection(bootstrap_servers=("nowhere:1",)),
        "control",
        handler,
        name="control",
        committed=False,
        batch_bytes_max=1000,
        problems=Troubles(),
    )


def reading_of(tail: TopicFollower, consumer: Any) -> Reading:
    """A reading of the control topic from its start."""
    reading = Reading(
        consumer, lost=lambda place, why: tail._lose(place.topic, why), silent_after_s=None
    )
    reading.assign({CONTROL: tail.parts[0]})
    return reading


async def follow(tail: TopicFollower, consumer: Any) -> None:
    """Until the consumer ends it."""
    await tail._follow(reading_of(tail, consumer), tail._connection.rotation.proven)


class Away:
    """A client that can be asked nothing."""

    def __getattr__(self, name: str) -> Any:
        raise KafkaError(name)


class Consumer(Positioned):
    """Answers with nothing; `stamps` are the wall clock at its newest answers, as aiokafka keeps
    it. It ends the reading with the last."""

    def __init__(self, stamps: list[int], connection: KafkaConnection) -> None:
        super().__init__()
        self._stamps, self._connection = stamps, connection
        self._client = Away()

    async def getmany(self, *_: object, **__: object) -> dict[TopicPartition, list[object]]:
        await asyncio.sleep(0)
        return {}

    def last_poll_timestamp(self, _: TopicPartition) -> int:
        stamp = self._stamps.pop(0)
        if not self._stamps:
            self._connection.rotation.proven += 1
        return stamp


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, HOUR_MS])
async def test_a_wall_clock_that_is_set_while_a_topic_is_followed_costs_no_consumer(
    jump_ms: int,
) -> None:
    tail = made(TopicFollower)
    stamps = [clock.wall_ms() + jump_ms + number for number in range(5)]
    await follow(tail, Consumer(stamps, tail._connection))
    assert tail.parts[0].next == 0


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


class Written(Positioned):
    """A consumer that reads a record in each second, `count` of them."""

    def __init__(self, client: Asked, count: int, connection: KafkaConnection) -> None:
        super().__init__()
        self._client, self._count, self._connection = client, count, connection
        self.leader_epochs = LeaderEpochs()

    async def getmany(self, *_: object, **__: object) -> dict[TopicPartition, list[Any]]:
        await asyncio.sleep(1.0)
        at = self.positions[CONTROL]
        self.positions[CONTROL] += 1
        if at + 1 == self._count:
            self._connection.rotation.proven += 1
        return {CONTROL: [SimpleNamespace(offset=at)]}


def taken(client: Asked, *, count: int) -> list[float]:
    """When each record was taken."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        taken_s: list[float] = []
        tail = made(TopicFollower, take=lambda _: taken_s.append(loop.time()))
        tail._incarnations.expect("control")
        await follow(tail, Written(client, count, tail._connection))
        return taken_s

    return run(main())


def test_a_broker_that_does_not_answer_whether_the_topic_exists_delays_no_record() -> None:
    client = Asked()
    taken_s = taken(client, count=30)
    assert taken_s == pytest.approx([taken_s[0] + second for second in range(30)])
    assert client.asked == 2


def test_a_topic_that_is_recreated_while_it_is_read_is_lost() -> None:
    with pytest.raises(TopicLost, match="it was deleted and recreated"):
        taken(Asked(b"1" * 16, b"2" * 16, b"2" * 16), count=40)


def test_a_topic_that_one_broker_takes_for_another_is_read_on() -> None:
    ids = (b"1" * 16, b"2" * 16, b"1" * 16, b"2" * 16, b"1" * 16)
    assert len(taken(Asked(*ids), count=60)) == 60


class Stuck(Positioned):
    """Brokers answer about the first partition alone."""

    def __init__(self) -> None:
        super().__init__()
        self._client, self.leader_epochs = Away(), LeaderEpochs()

    async def getmany(self, *_: object, **__: object) -> dict[TopicPartition, list[Any]]:
        await asyncio.sleep(1.0)
        self.positions[CONTROL] += 1
        return {CONTROL: [SimpleNamespace(offset=self.positions[CONTROL] - 1)]}

    def last_poll_timestamp(self, place: TopicPartition) -> int:
        return super().last_poll_timestamp(place) if place == CONTROL else 0


@virtual
async def test_one_of_several_partitions_that_gets_no_answers_is_named() -> None:
    tail, began_s = made(TopicFollower), asyncio.get_running_loop().time()
    reading = reading_of(tail, Stuck())
    reading.assign({TopicPartition("control", each): tail.parts[each] for each in (0, 1)})
    with pytest.raises(SinkUnavailable, match="no broker has answered about partition 1"):
        async with asyncio.timeout(200.0):
            await tail._read(reading, 0)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(20.0, abs=2.0)


class Surprised(Asked):
    """Its second answer, and its third once that may be given, is that the topic is another."""

    def __init__(self) -> None:
        super().__init__(b"1" * 16, b"2" * 16, b"2" * 16)
        self.may_answer = asyncio.Event()

    async def send(self, node: int, request: object) -> Any:
        if self.asked == 2:
            await self.may_answer.wait()
        return await super().send(node, request)


class Backlog(Written):
    """From the time at which brokers may answer that the topic is another it never waits."""

    def __init__(self, client: Surprised, connection: KafkaConnection) -> None:
        super().__init__(client, 1000, connection)
        self._may_answer = client.may_answer

    async def getmany(self, *places: object, **named: object) -> dict[TopicPartition, list[Any]]:
        at = self.positions[CONTROL]
        if at < 22:
            return await super().getmany(*places, **named)
        self._may_answer.set()
        await asyncio.sleep(0)
        self.positions[CONTROL] += 1
        return {CONTROL: [SimpleNamespace(offset=at)]}


class Followed(TopicFollower):
    """Follows by a consumer that is given."""

    consumer: Any

    async def _life(self) -> bool:
        await follow(self, self.consumer)
        return False


@virtual
async def test_no_record_of_a_former_topic_is_taken_once_reading_starts_over() -> None:
    happened = list[str]()
    tail = made(
        Followed,
        take=lambda record: happened.append(f"record {record.offset}"),
        started_over=lambda: happened.append("over"),
    )
    tail.consumer = Backlog(Surprised(), tail._connection)
    with pytest.raises(TopicLost, match="recreated"):
        await tail.run()
    assert (happened[-1], happened.count("over")) == ("over", 1)
    assert not tail.parts


class Looking(TopicFollower):
    """Only looks whether its topic is there, by one client after the other."""

    clients: list[Asked]

    async def _life(self) -> bool:
        ask = partial(topic_ids, self.clients.pop(0))
        await self._incarnations.look_until_sure(ask)
        await self._incarnations.keep_looking(ask)
        return False


@pytest.mark.parametrize(("back", "started_over"), [(b"1" * 16, False), (b"2" * 16, True)])
@virtual
async def test_a_topic_that_brokers_did_not_know_is_read_on_if_it_is_back_under_its_id(
    back: bytes, started_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
    over = list[bool]()
    tail = made(Looking, started_over=lambda: over.append(True))
    tail.clients = [Asked(b"1" * 16, *[None] * 4), Asked(back, back)]
    tail.parts[0].next = 7
    with pytest.raises(TopicLost, match="do not know it"):
        await tail.run()
    assert (over, tail.parts[0].next) == ([], 7), "its caller makes the topic, if it is gone"
    with pytest.raises((TopicLost, TimeoutError)):
        async with asyncio.timeout(60.0):
            await tail.run()
    assert (bool(over), tail.parts[0].next) == (started_over, 0 if started_over else 7)


class Led(Positioned):
    """A consumer of a topic whose leader changed: it hands on one answer at a time, of records by
    offset and leader epoch. `ends`: where the newest leader says that each epoch ended, as Kafka
    does: that of an epoch of which it has nothing is the end of the one before."""

    def __init__(
        self, answers: list[dict[int, int]], ends: dict[int, int], connection: KafkaConnection
    ) -> None:
        super().__init__()
        self._answers, self._ends, self._connection = answers, ends, connection
        self.leader_epochs = LeaderEpochs()
        self.asked = list[int]()
        self._client = SimpleNamespace(
            cluster=SimpleNamespace(leader_for_partition=lambda _: 2), send=self._send
        )

    async def _send(self, node: int, request: Any) -> Any:
        ((topic, ((partition, _, epoch),)),) = request.prepare({23: (2, 4)}).topics
        self.asked.append(epoch)
        assert (node, topic, partition) == (2, "control", 0)
        end = max((end for each, end in self._ends.items() if each <= epoch), default=-1)
        return SimpleNamespace(topics=[("control", [(0, 0, epoch, end)])])

    async def getmany(self, *_: object, **__: object) -> dict[TopicPartition, list[Any]]:
        await asyncio.sleep(0)
        answer = self._answers.pop(0)
        if not self._answers:
            self._connection.rotation.proven += 1
        for offset, epoch in answer.items():
            self.leader_epochs.note(CONTROL, offset, epoch)
            self.positions[CONTROL] = offset + 1
        return {CONTROL: [SimpleNamespace(offset=offset) for offset in answer]}


LED = [
    # answers: offsets and leader epochs; where the epochs ended; the epochs asked about; what is lost
    ([{0: 3, 1: 3}, {2: 3}], {3: 9}, [], ""),
    ([{0: 3, 1: 3}, {2: 4}], {3: 2, 4: 9}, [3], ""),
    ([{0: 3, 1: 4, 2: 5}], {3: 1, 4: 2, 5: 9}, [3, 4], ""),
    ([{0: 3, 7: 3}, {9: 4}], {3: 9}, [3], ""),  # of compaction
    ([{0: 3, 1: 3}, {2: 4}], {3: 1, 4: 9}, [3], "from offset 1 on were replaced by others, and 2"),
    ([{0: 3, 1: 4, 2: 4}, {3: 6}], {3: 1, 6: 9}, [3, 4], "from offset 1 on were replaced"),
    ([{0: -1, 1: -1}, {2: 4}], {4: 9}, [], ""),  # brokers that note no epochs
    ([{0: 3, 1: 3}, {2: 4}], {}, [3], ""),  # the leader knows nothing of the epoch
]


@pytest.mark.parametrize(("answers", "ends", "asked", "lost"), LED)
async def test_records_that_others_replaced_after_an_election_show_by_the_end_of_their_epoch(
    answers: list[dict[int, int]], ends: dict[int, int], asked: list[int], lost: str
) -> None:
    offsets = list[int]()
    tail = made(TopicFollower, take=lambda record: offsets.append(record.offset))
    last = max(answers[-1])
    consumer = Led([dict(each) for each in answers], ends, tail._connection)
    reading = tail._read(reading_of(tail, consumer), tail._connection.rotation.proven)
    if lost:
        with pytest.raises(TopicLost, match=lost):
            await reading
        assert last not in offsets
    else:
        await reading
        assert offsets[-1] == last
    assert consumer.asked == asked
