"""Many logs that one consumer follows: each gets its own records, in order and once, and what is
wrong with one is not the others' concern."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import TopicAuthorizationFailedError

from tests.support.positioned import Positioned
from tests.support.virtualtime import virtual
from tests.unit.kafka.test_topic_follower import Asked
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.log_follower import LogFollower
from watchrelay.kafka.reading import Reading
from watchrelay.model.reach import KeyRange

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)


def record(offset: int, stream: str) -> Any:
    return SimpleNamespace(
        key=b"x", offset=offset, headers=(("ce_id", b"1"), ("ce_wrstream", stream.encode()))
    )


class Consumer(Positioned):
    """Has what the test gives it; `answers` are what `getmany` returns or raises."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[dict[TopicPartition, list[Any]] | Exception] = []
        self.end = 0
        self.looked_s: list[float] = []
        self.share = SimpleNamespace(was_used=False)

    def highwater(self, place: TopicPartition) -> int:
        return self.end

    async def getmany(self, **_: object) -> dict[TopicPartition, list[Any]]:
        self.looked_s.append(asyncio.get_running_loop().time())
        if not self.answers:
            return {}
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        for place, records in answer.items():
            self.positions[place] = records[-1].offset + 1
        return answer


class Followed:
    """A log of one partition that notes what it gets; it fails at the offset `odd`."""

    def __init__(self, stream: str, topic: str = "t", start: int = 0, odd: int = -1) -> None:
        self.stream, self.topic, self.next = stream, topic, {0: start}
        self.keys = KeyRange(b"none/")
        self.urgent, self.odd = False, odd
        self.offsets: list[int] = []
        self.why = ""
        self.lags: list[int] = []

    def take(self, partition: int, records: Sequence[Any]) -> None:
        self.offsets += [each.offset for each in records]
        if self.odd in self.offsets:
            raise ValueError("odd")

    def behind(self, records: int) -> None:
        self.lags.append(records)

    def lost(self, why: str) -> None:
        self.why = why


class Following(LogFollower):
    """Over a consumer that the test answers for."""

    def __init__(self, *logs: Followed, consumer: Any = None) -> None:
        super().__init__(KafkaConnection(bootstrap_servers=("nowhere:1",)))
        self.consumer = consumer or Consumer()
        for log in logs:
            self.follow(log)
        self.reading = Reading(
            self.consumer, lost=lambda place, why: self._lose(place.topic, why), silent_after_s=None
        )
        self.assign()

    def assign(self) -> None:
        self.reading.assign(self._cursors())

    async def read(self, *answers: Any) -> None:
        """Get these answers in one look."""
        self.consumer.answers = list(answers)
        self._changed.clear()
        await self._look(self.reading)


async def test_each_log_of_a_topic_gets_its_own_records_from_its_own_offset_on() -> None:
    pods, jobs = Followed("pods", start=2), Followed("jobs", start=5)
    follower = Following(pods, jobs)
    assert follower.consumer.positions[T0] == 2
    streams = ["pods", "jobs", "pods", "pods", "jobs", "jobs"]
    await follower.read({T0: [record(2 + at, stream) for at, stream in enumerate(streams)]})
    assert pods.offsets == [2, 4, 5]
    assert jobs.offsets == [6, 7]
    assert pods.next == jobs.next == {0: 8}


async def test_a_record_that_names_no_stream_goes_to_every_log_of_its_topic_in_order() -> None:
    """As at a read-back: it may hide a record of any of them."""
    pods, jobs = Followed("pods", start=1), Followed("jobs")
    follower = Following(pods, jobs)
    plain, null = record(0, ""), record(2, "")
    plain.headers, null.headers = (), (("ce_wrstream", None),)
    await follower.read({T0: [plain, record(1, "pods"), null, record(3, "jobs")]})
    assert (pods.offsets, jobs.offsets) == ([1, 2], [0, 2, 3])


async def test_of_two_headers_that_name_a_stream_the_last_counts_as_for_readers() -> None:
    pods, jobs = Followed("pods"), Followed("jobs")
    follower = Following(pods, jobs)
    both = record(0, "pods")
    both.headers += (("ce_wrstream", b"jobs"),)
    await follower.read({T0: [both]})
    assert (pods.offsets, jobs.offsets) == ([], [0])


async def test_a_log_that_is_added_gets_nothing_until_the_consumer_reads_from_its_offset() -> None:
    pods = Followed("pods", start=5)
    follower = Following(pods)
    jobs = Followed("jobs", start=3)
    follower.follow(jobs)
    await follower.read({T0: [record(5, "pods"), record(6, "jobs")]})
    assert (jobs.offsets, jobs.next) == ([], {0: 3}), "3 and 4 are missing"
    follower.assign()
    assert follower.consumer.positions[T0] == 3
    await follower.read({T0: [record(4, "jobs"), record(5, "pods"), record(6, "jobs")]})
    assert jobs.offsets == [4, 6]
    assert pods.offsets == [5], "once"


async def test_a_log_that_is_not_followed_any_more_gets_nothing() -> None:
    pods, jobs = Followed("pods"), Followed("jobs")
    follower = Following(pods, jobs)
    follower.unfollow(pods)
    await follower.read({T0: [record(0, "pods"), record(1, "jobs")]})
    assert (pods.offsets, jobs.offsets) == ([], [1])


async def test_offsets_that_go_back_lose_the_logs_of_that_topic_alone() -> None:
    pods, jobs = Followed("pods", start=10), Followed("jobs", topic="u")
    follower = Following(pods, jobs)
    await follower.read({T0: [record(0, "pods")], U0: [record(0, "jobs")]})
    assert pods.why == "offset 0 comes after 10 were read"
    assert pods.offsets == []
    assert (jobs.offsets, jobs.why) == ([0], "")


async def test_a_position_that_goes_back_does_too_though_nothing_is_there() -> None:
    pods = Followed("pods", start=10)
    follower = Following(pods)
    follower.consumer.positions[T0] = 0
    await follower.read()
    assert pods.why


async def test_what_a_log_does_not_take_loses_that_log_alone() -> None:
    pods, jobs = Followed("pods", odd=0), Followed("jobs")
    follower = Following(pods, jobs)
    await follower.read({T0: [record(0, "pods"), record(1, "jobs")]})
    assert pods.why == "ValueError: odd"
    assert (jobs.offsets, jobs.why) == ([1], "")


async def test_a_topic_that_may_not_be_read_loses_its_logs_alone() -> None:
    pods, jobs = Followed("pods"), Followed("jobs", topic="u")
    follower = Following(pods, jobs)
    await follower.read(TopicAuthorizationFailedError("t"))
    assert pods.why
    assert not jobs.why


async def test_holes_are_skipped_and_the_remaining_records_counted() -> None:
    pods = Followed("pods", start=3)
    follower = Following(pods)
    follower.consumer.positions[T0], follower.consumer.end = 9, 12
    await follower.read()
    assert pods.next == {0: 9}
    assert pods.lags == [3]


async def test_a_log_that_is_urgent_learns_after_each_fetch_how_far_it_was_read() -> None:
    pods, jobs = Followed("pods"), Followed("jobs", topic="u")
    follower = Following(pods, jobs)
    pods.urgent, follower.consumer.end = True, 1000
    await follower.read(
        {T0: [record(at, "pods") for at in range(500)]},
        {T0: [record(at, "pods") for at in range(500, 1000)]},
    )
    assert pods.lags == [500, 0, 0]


class Pieces(Consumer):
    """Hands on what has arrived in pieces of fewer records than a fetch asks for."""

    async def getmany(self, **named: object) -> dict[TopicPartition, list[Any]]:
        answer = await super().getmany(**named)
        self.share.was_used = bool(self.answers)
        return answer


async def test_a_look_takes_all_that_has_arrived_in_however_many_pieces() -> None:
    pods = Followed("pods")
    await Following(pods, consumer=Pieces()).read(*({T0: [record(at, "pods")]} for at in range(20)))
    assert pods.offsets == list(range(20))


class AskedConsumer(Consumer):
    """The client of this one is asked whether the topics exist."""

    def __init__(self, client: Asked) -> None:
        super().__init__()
        self._client = client


@virtual
async def test_a_broker_that_does_not_answer_whether_topics_exist_delays_no_look() -> None:
    consumer = AskedConsumer(Asked())
    follower = Following(Followed("pods"), consumer=consumer)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(follower._follow(follower.reading, 0))
        await asyncio.sleep(20.5)
        task.cancel()
    assert consumer.looked_s == pytest.approx(
        [consumer.looked_s[0] + second for second in range(21)]
    )
    assert consumer._client.asked == 2


@virtual
async def test_topics_are_checked_at_once_when_a_log_is_added_but_not_when_one_leaves() -> None:
    consumer = AskedConsumer(Asked(b"1" * 16, b"2" * 16, b"2" * 16))
    pods, jobs = Followed("pods", topic="control"), Followed("jobs", topic="control")
    follower = Following(pods, jobs, consumer=consumer)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(follower._follow(follower.reading, 0))
        await asyncio.sleep(2.5)
        follower.unfollow(jobs)
        await asyncio.sleep(2.5)
        assert consumer._client.asked == 1
        follower.follow(Followed("nodes"))
        await asyncio.sleep(2.5)
        assert consumer._client.asked == 3, "a second broker confirms it"
        assert pods.why == "it was deleted and recreated"
        task.cancel()


@virtual
async def test_each_consumer_soon_asks_whether_the_topics_are_those_that_were_read() -> None:
    consumer = AskedConsumer(Asked(b"1" * 16, b"2" * 16, b"2" * 16))
    pods = Followed("pods", topic="control")
    follower = Following(pods, consumer=consumer)
    for why in ("", "it was deleted and recreated"):
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(follower._follow(follower.reading, 0))
            await asyncio.sleep(2.5)
            task.cancel()
        assert pods.why == why


@virtual
async def test_a_topic_that_brokers_do_not_know_is_followed_on_until_it_is_back_under_another_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
    consumer = AskedConsumer(Asked(*[b"1" * 16, *[None] * 4] * 2, b"2" * 16, b"2" * 16))
    pods = Followed("pods", topic="control")
    follower = Following(pods, consumer=consumer)
    reasons = []
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(follower._follow(follower.reading, 0))
        for _ in range(2):
            await asyncio.sleep(35.0)
            reasons.append(pods.why)
        task.cancel()
    assert reasons == ["", "it was deleted and recreated"]
