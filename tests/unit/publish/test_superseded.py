"""How a writer ends when a newer claim is read: at once, or behind what is queued."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.fakesink import FakeSink, Faults
from tests.support.relays import KEYS, Rig, until, virtual
from watchrelay.contract.records import MarkerRecord
from watchrelay.contract.wire import Batch, Receipt
from watchrelay.core.errors import Fenced


async def superseded(rig: Rig, *, then_say: bool) -> None:
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        rig.control.claimed_elsewhere("pods")
        if then_say:
            rig.say(rig.store.put(KEYS[0], b"1"))
        await asyncio.sleep(1000)


@virtual
async def test_a_newer_claim_stops_the_writer_within_a_heartbeat() -> None:
    rig = Rig(heartbeat_interval_s=5.0)
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(ExceptionGroup) as caught:
        await superseded(rig, then_say=False)
    assert caught.group_contains(Fenced, match="stream pods: a newer writer owns the stream")
    assert asyncio.get_running_loop().time() - began_s <= 5.2


@virtual
async def test_a_writer_that_may_finish_sends_what_is_queued_behind_a_newer_claim() -> None:
    rig = Rig(heartbeat_interval_s=1000.0, may_finish=lambda: True)
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        rig.say(rig.store.put(KEYS[0], b"1"))
        rig.control.claimed_elsewhere("pods")
        assert await rig.relay.drain(1.0)
    assert rig.rebuilt() == rig.store.values()
    for partition in range(2):
        last = rig.records(partition)[-1]
        assert isinstance(last, MarkerRecord)
        assert (last.kind, last.frontier) == ("heartbeat", str(rig.store.version))


@virtual
async def test_a_writer_that_finishes_does_not_end_its_open_snapshot() -> None:
    slow = FakeSink(Faults(delay_s=0.1), random.Random(1))
    rig = Rig(partitions=1, sink=slow, may_finish=lambda: True)
    for number in range(3000):
        rig.store.put(b"shop/n%d" % number, b"x" * 4000)
    async with rig.running():
        rig.sync()
        await asyncio.sleep(0.5)
        assert rig.markers("begin")
        rig.control.claimed_elsewhere("pods")
        assert await rig.relay.drain(1.0)
    assert not rig.markers("end")
    assert not rig.control.indexes


@virtual
async def test_a_writer_stops_as_soon_as_it_may_not_finish_any_more() -> None:
    may = [True]
    rig = Rig(heartbeat_interval_s=1000.0, may_finish=lambda: may[0])

    async def finish() -> None:
        async with rig.running():
            rig.sync()
            await until(lambda: rig.status.complete)
            rig.control.claimed_elsewhere("pods")
            may[0] = False
            rig.say(rig.store.put(KEYS[0], b"1"))
            await rig.relay.drain(1.0)

    with pytest.raises(ExceptionGroup) as caught:
        await finish()
    assert caught.group_contains(Fenced)
    assert all(
        not isinstance(record, MarkerRecord) or record.kind != "heartbeat"
        for record in (rig.records(partition)[-1] for partition in range(2))
    )


@virtual
async def test_nothing_is_sent_once_a_newer_claim_was_read() -> None:
    rig = Rig(heartbeat_interval_s=1000.0)
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(ExceptionGroup) as caught:
        await superseded(rig, then_say=True)
    assert caught.group_contains(Fenced)
    assert asyncio.get_running_loop().time() - began_s <= 0.2
    assert KEYS[0] not in rig.rebuilt()


class HoldingSink(FakeSink):
    """Keeps its answers back while it is `holding`, to give one in each millisecond."""

    holding = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.held: list[tuple[Batch, Callable[[Receipt | Exception], None]]] = []

    def send(self, batch: Batch, done: Callable[[Receipt | Exception], None]) -> asyncio.Task[Any]:
        if not self.holding:
            return super().send(batch, done)
        self.held.append((batch, done))
        return asyncio.get_running_loop().create_task(asyncio.sleep(0))

    async def answer(self) -> None:
        """Acknowledge what is held."""
        for batch, done in self.held:
            log = self.log(batch.topic, batch.partition)
            done(Receipt(list(range(len(log), len(log) + len(batch.records)))))
            await asyncio.sleep(0.001)


async def superseded_by_many_answers(sink: HoldingSink, superseded: asyncio.Event) -> None:
    rig = Rig(partitions=8, sink=sink, heartbeat_interval_s=1000.0)
    async with rig.running():
        rig.sync()
        await until(lambda: rig.status.complete)
        sink.holding = True
        for key in KEYS:
            rig.say(rig.store.put(key, b"2"))
        await until(lambda: len(sink.held) == 8)
        for key in KEYS:
            rig.say(rig.store.put(key, b"3"))
        rig.control.claimed_elsewhere(rig.spec.id)
        superseded.set()
        await asyncio.sleep(1)


@virtual
async def test_answers_that_come_while_the_stream_is_ending_raise_nothing_where_they_come_from() -> (
    None
):
    sink, superseded = HoldingSink(), asyncio.Event()

    async def answer() -> None:
        await superseded.wait()
        await sink.answer()

    answers = asyncio.get_running_loop().create_task(answer())
    with pytest.raises(ExceptionGroup) as caught:
        await superseded_by_many_answers(sink, superseded)
    assert caught.group_contains(Fenced)
    await answers
