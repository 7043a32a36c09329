"""How a writer takes its stream over: the claim, the wait for a release, the claim markers."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.fakesink import FakeControl, FakeSink
from tests.support.relays import Rig, until, virtual
from watchrelay.core.errors import Fenced


@virtual
async def test_a_claim_puts_a_marker_on_every_partition_and_waits_for_the_acknowledgements() -> (
    None
):
    rig = Rig(partitions=3)
    rig.sink.up.clear()
    async with asyncio.TaskGroup() as tasks:
        claim = tasks.create_task(rig.relay.claim(rig.highest_epoch))
        await asyncio.sleep(100)
        assert not claim.done()
        rig.sink.up.set()
    assert [(marker.epoch, marker.sequence) for marker in rig.markers("claim")] == [(1, 1)] * 3
    assert rig.status.epoch == 1


@virtual
async def test_the_markers_of_a_claim_wait_for_the_release_of_a_live_writer() -> None:
    rig = Rig(partitions=1)
    former = rig.control.claimed_elsewhere("pods")
    async with asyncio.TaskGroup() as tasks:
        claim = tasks.create_task(rig.relay.claim(rig.highest_epoch, awaits_release=True))
        await asyncio.sleep(0.5)
        assert rig.control.claims, "the control claim waits for nothing"
        assert not rig.markers("claim")
        rig.control.releases["pods"] = former
        await asyncio.sleep(0.02)
        assert claim.done()
    assert [marker.epoch for marker in rig.markers("claim")] == [former + 1]


@virtual
async def test_a_writer_that_releases_nothing_is_waited_for_one_second_at_most() -> None:
    rig, loop = Rig(partitions=1), asyncio.get_running_loop()
    rig.control.claimed_elsewhere("pods")
    began_s = loop.time()
    await rig.relay.claim(rig.highest_epoch, awaits_release=True)
    assert 1.0 <= loop.time() - began_s < 1.1


@virtual
async def test_a_claim_that_is_overtaken_while_it_waits_for_a_release_writes_no_marker() -> None:
    rig = Rig(partitions=1)
    rig.control.claimed_elsewhere("pods")
    asyncio.get_running_loop().call_later(0.5, rig.control.claimed_elsewhere, "pods")
    with pytest.raises(Fenced):
        await rig.relay.claim(rig.highest_epoch, awaits_release=True)
    assert not rig.markers("claim")


class Transactions:
    """Those of a stream whose claim is the newest, or is not."""

    id = "k8s.c.pods"

    def __init__(self, *, ours: bool) -> None:
        self.ours, self.begun = ours, list[int]()

    async def begin(self, epoch: int) -> None:
        self.begun.append(epoch)
        await asyncio.sleep(1.0)
        if not self.ours:
            raise Fenced("a newer claim was read")


@pytest.mark.parametrize("ours", [True, False])
@virtual
async def test_transactions_begin_between_the_control_claim_and_the_markers(*, ours: bool) -> None:
    transactions = Transactions(ours=ours)
    rig = Rig(partitions=1, transactions=transactions)
    claim = asyncio.get_running_loop().create_task(rig.relay.claim(rig.highest_epoch))
    await asyncio.sleep(0.5)
    assert transactions.begun == [1]
    assert (rig.control.claims, rig.markers("claim")) == ([("pods", None)], [])
    await asyncio.wait([claim])
    assert isinstance(claim.exception(), Fenced) == (not ours)
    assert len(rig.markers("claim")) == ours


@virtual
async def test_without_a_live_writer_nothing_is_waited_for() -> None:
    rig, loop = Rig(partitions=1), asyncio.get_running_loop()
    rig.control.claimed_elsewhere("pods")
    began_s = loop.time()
    await rig.relay.claim(rig.highest_epoch)
    assert loop.time() == began_s


@virtual
async def test_being_fenced_during_the_claim_is_reported_as_such() -> None:
    rig = Rig()
    rig.sink.fenced = True
    with pytest.raises(Fenced):
        await rig.relay.claim(rig.highest_epoch)


@virtual
async def test_a_new_claim_starts_from_the_snapshot_of_the_newest_writer_only() -> None:
    control, sink = FakeControl(), FakeSink()
    first = Rig(control=control, sink=sink)
    async with first.running():
        first.sync()
        await until(lambda: bool(control.indexes))
    second = Rig(control=control, sink=sink)
    async with second.running():
        pass
    third = Rig(control=control, sink=sink)
    async with third.running():
        pass
    assert [origin for _, origin in control.claims] == [
        None,
        *[{"snapshot": "1-1", "begin": [1, 1]}] * 2,
    ]
