"""What the sink does with the clock: what it learns of it from brokers, what it does not write by
it, and what it says where brokers refuse its time. In virtual time."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.producefake import first_timestamp_ms
from tests.support.producestage import INVALID_TIMESTAMP, Stage, staged
from tests.support.relays import until, virtual
from tests.unit.kafka.transactionstage import staged as transacting
from watchrelay.core.clock_offset import EVERY_S
from watchrelay.core.trouble import Cause
from watchrelay.kafka.record_times import RecordTimes
from watchrelay.kafka.topic_config import kept_by_own_time
from watchrelay.kafka.topic_settings import FoundTopic

DAY_S, DAY_MS = 86_400.0, 86_400_000
TRUE_MS = 1_790_000_000_000


class Clock:
    """A clock that is ahead by `ahead_s`."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.ahead_s = ahead_s
        self.times = RecordTimes(servers="broker:9092", now_s=self.now_s, wall_ms=self.wall_ms)

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def true_ms(self) -> int:
        return TRUE_MS + round(self.now_s() * 1000)

    def wall_ms(self) -> int:
        return self.true_ms() + round(self.ahead_s * 1000)

    @property
    def known_s(self) -> float | None:
        return self.times.offset.known_s(self.now_s(), self.wall_ms())

    def answered_by_api_server(self) -> None:
        """As often as it takes to be believed."""
        now_s = self.now_s()
        for back in (2, 1, 0):
            at_s = now_s - back * EVERY_S
            self.times.offset.kubernetes.note(
                self.true_ms() - back * EVERY_S * 1000,
                within_ms=1000,
                asked_s=at_s,
                answered_s=at_s,
            )


async def deliver_and_answer(
    stage: Stage, tasks: asyncio.TaskGroup, offset: int, *, appended_ms: int, code: int = 0
) -> None:
    delivery = stage.deliver(tasks, 0)
    await asyncio.sleep(0.1)
    stage.answer(code, offset, appended_ms=appended_ms)
    await delivery
    await asyncio.sleep(EVERY_S)


@virtual
async def test_the_time_that_brokers_give_to_records_tells_the_offset() -> None:
    clock = Clock(-20 * DAY_S)
    async with staged(times=clock.times) as (stage, tasks):
        for offset in range(3):
            await deliver_and_answer(stage, tasks, offset, appended_ms=clock.true_ms())
        assert clock.known_s == pytest.approx(-20 * DAY_S, abs=2.0)
        shown = stage.statuses.streams
        assert not shown, "on a topic with LogAppendTime the clock stops nothing"


@virtual
async def test_brokers_that_give_no_time_tell_nothing() -> None:
    clock = Clock(-20 * DAY_S)
    async with staged(times=clock.times) as (stage, tasks):
        for offset in range(3):
            await deliver_and_answer(stage, tasks, offset, appended_ms=-1)
        assert clock.times.offset.suspected_s(clock.now_s(), clock.wall_ms()) is None


@virtual
async def test_the_answer_to_a_batch_that_was_sent_before_is_not_counted() -> None:
    """The broker may answer with the time of the first attempt, or, on a topic with CreateTime,
    with our own."""
    clock = Clock(-20 * DAY_S)
    async with staged(times=clock.times) as (stage, tasks):
        for offset in range(4):
            delivery = stage.deliver(tasks, 0)
            await asyncio.sleep(0.1)
            stage.links[0][-1].lose()
            await until(lambda: not stage.links[0][-1].ended and len(stage.sent()) == 1)
            stage.answer(offset=offset, appended_ms=clock.wall_ms())
            async with asyncio.timeout(10.0):
                await delivery
            await asyncio.sleep(EVERY_S)
        assert clock.times.offset.suspected_s(clock.now_s(), clock.wall_ms()) is None


@virtual
async def test_nothing_is_written_while_the_clock_would_have_it_removed_and_all_of_it_after() -> (
    None
):
    clock = Clock()
    async with staged(times=clock.times) as (stage, tasks):
        status = stage.statuses.open("pods", "t")
        clock.times.learn("t", 7 * DAY_MS)
        clock.answered_by_api_server()
        await deliver_and_answer(stage, tasks, 0, appended_ms=-1)
        sent = len(stage.sent())
        clock.ahead_s = -20 * DAY_S
        waiting = [stage.deliver(tasks, partition) for partition in (0, 2)]
        await asyncio.sleep(60.0)
        assert len(stage.sent()) == sent
        assert status.wait is not None
        assert status.wait.cause is Cause.CLOCK
        assert "20 d 0 h behind" in status.waits_for
        assert "kafka-configs.sh --bootstrap-server broker:9092" in status.waits_for
        assert not stage.statuses.problems, "it is not Kafka that is silent"
        clock.ahead_s = 0.0
        await until(lambda: len(stage.sent()) == sent + 1)
        number = 1
        for _, data in stage.sent()[-1][1]:
            assert abs(first_timestamp_ms(data) - clock.true_ms()) < 5_000
        stage.answer(offset=number)
        for each in waiting:
            await each
        assert status.wait is None


@virtual
async def test_within_transactions_nothing_is_written_either_and_all_of_it_after() -> None:
    clock = Clock()
    async with transacting(times=clock.times) as stage:
        status = stage.statuses.open("pods", "t")
        clock.times.learn("t", 7 * DAY_MS)
        clock.answered_by_api_server()
        await stage.deliver(0)[0]
        stage.seen.clear()
        clock.ahead_s = -20 * DAY_S
        waiting = stage.deliver(0, 1)
        await asyncio.sleep(60.0)
        assert stage.seen == [], "no transaction is open meanwhile"
        assert status.wait is not None
        assert status.wait.cause is Cause.CLOCK
        clock.ahead_s = 0.0
        assert [len((await each).offsets) for each in waiting] == [2, 2]
        assert stage.seen[-1] == "commit by 1"
        assert status.wait is None


@virtual
async def test_a_topic_whose_configs_cannot_be_read_is_what_the_answers_of_brokers_say() -> None:
    clock = Clock()
    async with staged(times=clock.times) as (stage, tasks):
        clock.times.learn("t", 7 * DAY_MS, assumed=True)
        for offset in range(3):
            await deliver_and_answer(stage, tasks, offset, appended_ms=clock.true_ms())
        clock.ahead_s = -20 * DAY_S
        await deliver_and_answer(stage, tasks, 3, appended_ms=clock.true_ms())
        clock.times.learn("t", 7 * DAY_MS, assumed=True)
        await deliver_and_answer(stage, tasks, 4, appended_ms=clock.true_ms())
        clock.times.learn("t", 7 * DAY_MS)
        sent = len(stage.sent())
        late = stage.deliver(tasks, 0)
        await asyncio.sleep(60.0)
        assert len(stage.sent()) == sent, "what its configs say counts more"
        late.cancel()


@virtual
async def test_a_clock_that_is_off_by_less_than_half_of_what_the_topic_keeps_stops_nothing() -> (
    None
):
    clock = Clock(-3 * DAY_S)
    async with staged(times=clock.times) as (stage, tasks):
        clock.times.learn("t", 7 * DAY_MS)
        clock.answered_by_api_server()
        await deliver_and_answer(stage, tasks, 0, appended_ms=-1)


@virtual
async def test_a_refusal_of_the_time_names_the_clock_and_the_cure() -> None:
    clock = Clock(DAY_S)
    async with staged(times=clock.times) as (stage, tasks):
        status = stage.statuses.open("pods", "t")
        clock.times.learn("t", 7 * DAY_MS)
        clock.answered_by_api_server()
        began_s, delivery = asyncio.get_running_loop().time(), stage.deliver(tasks, 0)
        refused = 0
        while asyncio.get_running_loop().time() < began_s + 20.0:
            await asyncio.sleep(0.1)
            if len(stage.sent()) > refused:
                refused = len(stage.sent())
                stage.answer(INVALID_TIMESTAMP, -1)
        problem = stage.statuses.problems["kafka"].message
        assert "INVALID_TIMESTAMP" in problem
        assert "the clock is 1 d 0 h ahead" in problem
        assert "--add-config message.timestamp.type=LogAppendTime" in problem
        assert status.wait is not None
        assert status.wait.cause is Cause.CLOCK
        await until(lambda: len(stage.sent()) > refused)
        stage.answer(offset=0)
        async with asyncio.timeout(10.0):
            await delivery


@pytest.mark.parametrize(
    ("configs", "keeps_ms"),
    [
        ({"cleanup.policy": "compact,delete", "retention.ms": "1000"}, 1000),
        ({"cleanup.policy": "compact,delete", "retention.ms": "-1"}, 0),
        ({"cleanup.policy": "compact", "retention.ms": "1000"}, 0),
        ({"cleanup.policy": "compact,delete", "retention.ms": "1000", "message.timestamp.type": "LogAppendTime"}, 0),
        ({"message.timestamp.type": "CreateTime"}, 7 * DAY_MS),
        (None, 7 * DAY_MS),
    ],
)  # fmt: skip
def test_for_how_long_a_topic_keeps_records_by_their_own_time(
    configs: dict[str, str] | None, keeps_ms: int
) -> None:
    topic = FoundTopic(1, 1, configs or {})
    assert kept_by_own_time(topic) == keeps_ms
