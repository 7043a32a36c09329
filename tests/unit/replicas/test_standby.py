"""A standby: when it is warm, what makes it start again, and what a takeover gets of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.support.memorycontrol import DESCRIBED, MemoryControl
from tests.support.relays import until, virtual
from tests.support.stream_log import PODS, stream
from watchrelay.contract.control import control_key, control_value
from watchrelay.contract.wire import Batch, WireRecord
from watchrelay.core.errors import SinkUnavailable
from watchrelay.daemon.recovery import LogFold
from watchrelay.kafka.log_follower import FollowedLog
from watchrelay.kafka.range_reader import OffsetRange
from watchrelay.model.streams import StreamSpec
from watchrelay.replicas.standby import FollowedCopy, Standby
from watchrelay.store.objects import Store
from watchrelay.store.transform import Transform

SPEC = stream()


class Reader:
    """Reads nothing, as long as the test says; `failures` come first. `stable`: nobody reads
    beyond this offset, as a transaction is open there."""

    stable = 10

    def __init__(self) -> None:
        self.spans_read: list[Sequence[OffsetRange]] = []
        self.failures: list[Exception] = []
        self.takes_s = 1.0

    async def spans(
        self, spans: Sequence[OffsetRange], take: Callable[[int, list[Any]], None]
    ) -> set[int]:
        self.spans_read.append(spans)
        await asyncio.sleep(self.takes_s)
        await until(lambda: all(each.stop <= self.stable for each in spans))
        if self.failures:
            raise self.failures.pop(0)
        return set()

    def understood(self, record: Any) -> None:
        return None

    def owns(self, key: bytes) -> bool:
        return True


class Follower:
    """Follows as the test says."""

    def __init__(self) -> None:
        self.logs: list[FollowedLog] = []
        self.hurries = 0

    def follow(self, log: FollowedLog) -> None:
        self.logs.append(log)

    def unfollow(self, log: FollowedLog) -> None:
        if log in self.logs:
            self.logs.remove(log)

    def hurry(self) -> None:
        self.hurries += 1

    async def run(self) -> None:
        """The test does it."""


class Scene:
    """A standby with everything around it; its topic ends at offset 10, or at `end`."""

    end = 10

    def __init__(self) -> None:
        self.topic, self.reader, self.follower = MemoryControl(), Reader(), Follower()
        self.spec: StreamSpec = SPEC
        self.warm: list[bool] = []
        self.standby = Standby(
            SPEC,
            self.new_copy,
            control=self.topic.control,
            sink=self,
            follower=self.follower,
            warmed=self.warm.append,
            dropped=lambda: None,
            rng=random.Random(1),
        )

    def new_copy(self) -> FollowedCopy[LogFold]:
        store = Store(Transform.compile(PODS), partitions=self.spec.partitions)
        fold, control = LogFold(self.spec, store), self.topic.control
        return FollowedCopy(self.spec, fold, self.reader, control, lambda records: None)

    @property
    def copy(self) -> FollowedCopy[LogFold]:
        assert self.standby.copy is not None
        return self.standby.copy

    async def end_offset(self, topic: str, partition: int, *, committed: bool = False) -> int:
        await asyncio.sleep(0)
        return min(self.end, self.reader.stable) if committed else self.end

    async def described(self, topic: str = SPEC.topic) -> None:
        value = {**DESCRIBED, "topic": topic, "epochBase": 1}
        record = WireRecord(control_key("stream", SPEC.id), control_value(value), [])
        await self.topic.deliver(Batch("control", 0, [record], SPEC.id))

    async def rest(self, stops: dict[int, int], spec: StreamSpec = SPEC) -> LogFold | None:
        store = self.standby.store
        if store is None:
            store = Store(Transform.compile(PODS), partitions=1)
        return await self.standby.read_rest(spec, store, stops)

    def follow_to(self, offset: int) -> None:
        self.copy.next = {0: offset}
        self.copy.behind(0)

    async def warmed(self) -> None:
        await self.described()
        self.standby.want(True)
        await until(lambda: self.standby.is_warm)


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(made.standby.run())
        yield made
        task.cancel()


@virtual
async def test_it_reads_to_the_end_once_it_is_wanted_and_is_followed_from_there() -> None:
    async with scene() as made:
        await made.described()
        await asyncio.sleep(10.0)
        assert not made.reader.spans_read
        made.standby.want(True)
        await asyncio.sleep(0.5)
        assert not made.standby.may_be_claimed, "it is being read"
        await until(lambda: made.standby.is_warm)
        assert made.reader.spans_read == [[OffsetRange(0, None, 10)]]
        assert made.follower.logs == [made.copy]
        assert made.copy.next == {0: 10}
        assert made.warm == [True]


@virtual
async def test_it_may_be_claimed_before_an_open_transaction_ends() -> None:
    async with scene() as made:
        made.end = 12  # the claim aborts what a former writer has left open, and waits for the copy
        await made.warmed()
        assert made.standby.may_be_claimed
        assert made.copy.next == {0: 10}


@virtual
async def test_of_a_stream_that_nobody_wrote_there_is_nothing_to_read_before_the_claim() -> None:
    async with scene() as made:
        made.standby.want(True)
        claimable = []
        for topic in ("", "another topic", SPEC.topic):
            if topic:
                await made.described(topic)
            await asyncio.sleep(0.1)
            claimable.append(made.standby.may_be_claimed)
        assert claimable == [True, True, False]
        await until(lambda: made.standby.is_warm)


@virtual
async def test_what_is_not_wanted_any_more_is_dropped_also_while_it_is_read() -> None:
    async with scene() as made:
        await made.warmed()
        made.standby.want(False)
        await until(lambda: not made.standby.is_warm)
        assert not made.follower.logs
        assert made.warm == [True, False]
        made.standby.want(True)
        await until(lambda: len(made.reader.spans_read) == 2)
        made.standby.want(False)
        await asyncio.sleep(10.0)
        assert made.warm == [True, False]


@virtual
async def test_a_log_that_is_lost_or_cannot_be_read_is_read_again_later_and_later() -> None:
    loop = asyncio.get_running_loop()
    async with scene() as made:
        await made.warmed()
        made.follower.unfollow(made.copy)
        made.copy.lost("the topic was recreated")
        await until(lambda: not made.standby.is_warm)
        made.reader.failures = [SinkUnavailable("away"), ValueError("odd")]
        began_s = loop.time()
        await until(lambda: made.standby.is_warm, steps=10_000)
        assert len(made.reader.spans_read) == 4
        assert loop.time() - began_s > 4.0, "pauses between"
        assert made.warm == [True, False, True]


@virtual
async def test_however_often_it_failed_a_planned_move_waits_for_it_for_seconds_only() -> None:
    loop = asyncio.get_running_loop()
    async with scene() as made:
        made.reader.failures = [ValueError("odd") for _ in range(10)]
        await made.described()
        made.standby.want(True)
        await until(lambda: not made.reader.failures, steps=100_000)
        failed_s = loop.time()
        await until(lambda: made.standby.may_be_claimed, steps=100_000)
        assert loop.time() - failed_s < 20.0


@virtual
async def test_a_takeover_gets_what_was_read_up_to_the_claim() -> None:
    async with scene() as made, asyncio.TaskGroup() as tasks:
        await made.warmed()
        reading = tasks.create_task(made.rest({0: 15}))
        await asyncio.sleep(0.1)
        assert made.copy.urgent
        assert made.follower.hurries == 1
        store = made.standby.store
        made.follow_to(14)
        await asyncio.sleep(0.1)
        assert not reading.done(), "the claim was not read"
        made.follow_to(15)
        fold = await reading
        assert fold is not None
        assert fold.store is store
        assert not made.follower.logs, "what comes behind the claim is not of the copy"


@virtual
async def test_a_takeover_waits_for_the_rest_as_long_as_some_of_it_comes() -> None:
    async with scene() as made, asyncio.TaskGroup() as tasks:
        await made.warmed()
        reading = tasks.create_task(made.rest({0: 15}))
        for offset in range(11, 16):
            await asyncio.sleep(2.0)
            made.follow_to(offset)
        assert await reading is not None


@virtual
async def test_what_is_being_read_goes_on_through_the_claim() -> None:
    async with scene() as made, asyncio.TaskGroup() as tasks:
        await made.described()
        made.reader.takes_s = 20.0
        made.standby.want(True)
        await until(lambda: bool(made.reader.spans_read))
        assert not made.standby.is_warm
        reading = tasks.create_task(made.rest({0: 15}))
        await until(lambda: made.standby.is_warm)
        made.follow_to(15)
        assert await reading is not None
        assert made.reader.spans_read == [[OffsetRange(0, None, 10)]], "it was read once"


@virtual
async def test_what_was_read_beyond_the_claim_is_not_taken_over() -> None:
    async with scene() as made:
        await made.warmed()
        assert await made.rest({0: 9}) is None


@virtual
async def test_a_takeover_reads_back_where_the_rest_does_not_come_or_the_log_is_lost() -> None:
    loop = asyncio.get_running_loop()
    async with scene() as made:
        assert await made.rest({0: 15}) is None, "not warm"
    async with scene() as made:
        await made.warmed()
        assert await made.rest({0: 15, 1: 15}, stream(partitions=2)) is None
    async with scene() as made:
        await made.warmed()
        began_s = loop.time()
        assert await made.rest({0: 15}) is None
        assert loop.time() - began_s < 5.0
    async with scene() as made:
        await made.warmed()
        made.copy.lost("gone")
        assert await made.rest({0: 15}) is None
