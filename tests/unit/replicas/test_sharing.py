"""One replica in a scripted group: what it may claim, what it reports, and how it leaves."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from tests.support.relays import until, virtual
from tests.support.sharingreplica import KnownCopy, Replica, running
from watchrelay.contract.control import control_key, control_value
from watchrelay.contract.wire import Batch, WireRecord
from watchrelay.replicas.fitness import UNFIT_AFTER_S
from watchrelay.replicas.ownership import retirement_holder
from watchrelay.replicas.rights import REGATHER_S
from watchrelay.replicas.sharing import AWAIT_ASSIGNMENT_S


async def assigned(replica: Replica, copy: KnownCopy, stream: str = "pods") -> bool:
    """Returns once the stream is assigned: whether a live writer hands it over."""
    await replica.tenure(stream).assigned(copy, lambda: None)
    return replica.tenure(stream).awaits_release


@virtual
async def test_a_stream_is_claimed_once_it_is_assigned_and_no_other() -> None:
    async with running() as replica, asyncio.TaskGroup() as tasks:
        waits = {
            stream: tasks.create_task(assigned(replica, KnownCopy(), stream))
            for stream in ("pods", "jobs")
        }
        await asyncio.sleep(100.0)
        assert not any(wait.done() for wait in waits.values())
        replica.group.give({"pods": ""})
        await asyncio.sleep(0)
        assert not waits["pods"].result()
        assert not waits["jobs"].done()
        waits["jobs"].cancel()


@virtual
async def test_from_a_live_writer_a_stream_is_claimed_after_the_next_answer_of_the_api_server() -> (
    None
):
    async with running() as replica:
        replica.api_answers = False
        replica.group.give({"pods": "other"}, "other")
        await asyncio.sleep(20.0)
        assert not replica.sharing.may_claim("pods"), "it cannot watch: the writer goes on"
        replica.api_answers = True
        assert await assigned(replica, KnownCopy())
        replica.api_answers = False
        replica.group.give({"pods": "other", "jobs": ""}, "other")
        assert replica.sharing.may_claim("pods"), "it is assigned since before the answer"
        assert replica.sharing.may_claim("jobs"), "nobody writes it"


@virtual
async def test_a_lost_stream_is_claimed_again_under_a_newer_assignment_only() -> None:
    async with running() as replica:
        replica.group.give({"pods": ""}, "other")
        await replica.write()
        await replica.claimed_by("other")
        assert replica.ended == ["pods"]
        assert not replica.tenure().lose(), "a member of the group has it"
        assert replica.group.rejoins
        replica.tenure().ended()
        assert not replica.sharing.may_claim("pods")
        rejoins = replica.group.rejoins
        replica.group.give({"pods": ""}, "other", joining=False)
        assert not replica.sharing.may_claim("pods"), "it joined before the loss"
        assert replica.group.rejoins > rejoins
        replica.group.give({"pods": ""}, "other")
        assert replica.sharing.may_claim("pods")


@virtual
async def test_with_the_membership_every_right_to_claim_is_lost_and_claims_on_their_way_end() -> (
    None
):
    async with running() as replica:
        replica.group.give({"pods": "", "jobs": ""})
        replica.tenure().begin()
        await replica.write("jobs")
        replica.group.lose()
        assert replica.ended == ["pods"], "what is written is written on"
        assert not replica.sharing.may_claim("pods")
        replica.group.give({"pods": ""})
        assert replica.sharing.may_claim("pods")


@virtual
async def test_a_forgotten_replica_claims_only_once_the_others_had_time_to_join_again() -> None:
    async with running() as replica:
        replica.group.give({"pods": ""}, "other")
        epoch = await replica.write()
        replica.group.forgotten = True
        replica.group.lose()
        replica.group.forgotten = False
        replica.group.give({"pods": "", "jobs": ""})
        began_s = asyncio.get_running_loop().time()
        assert not await assigned(replica, KnownCopy(), "jobs")
        assert asyncio.get_running_loop().time() - began_s == pytest.approx(REGATHER_S, abs=0.1)
        assert not replica.topic.control.superseded("pods", epoch), "it writes on"


@virtual
async def test_what_is_taken_away_is_written_until_a_newer_claim_is_read() -> None:
    async with running() as replica:
        replica.group.give({"pods": ""}, "other")
        epoch = await replica.write()
        replica.group.give({}, "other")
        await asyncio.sleep(1000.0)
        assert not replica.ended
        assert replica.group.reported().writing == {"pods": epoch}
        await replica.claimed_by("other")
        await until(lambda: replica.ended == ["pods"])
        assert replica.tenure().may_finish()


@virtual
async def test_an_owner_that_reads_the_claim_before_its_assignment_finishes_once_that_comes() -> (
    None
):
    async with running() as replica, asyncio.TaskGroup() as tasks:
        replica.group.give({"pods": ""}, "other")
        await replica.write()
        await replica.claimed_by("other")
        assert replica.ended == ["pods"]
        assert replica.tenure().may_finish(), "a member claims what it was assigned"
        finishing = tasks.create_task(replica.tenure().handed_over())
        await asyncio.sleep(AWAIT_ASSIGNMENT_S / 2)
        assert not finishing.done()
        replica.group.give({}, "other")
        assert await finishing
        assert replica.tenure().may_finish()


@virtual
async def test_an_assignment_that_does_not_come_is_awaited_for_a_moment_only() -> None:
    loop = asyncio.get_running_loop()
    async with running() as replica:
        replica.group.give({"pods": ""}, "other")
        await replica.write()
        await replica.claimed_by("other")
        assert replica.tenure().may_finish()
        began_s = loop.time()
        assert not await replica.tenure().handed_over()
        assert loop.time() - began_s <= AWAIT_ASSIGNMENT_S + 0.01
        assert not replica.tenure().may_finish()


@virtual
async def test_in_doubt_no_assignment_is_awaited() -> None:
    async with running() as replica:
        replica.group.give({"pods": ""}, "other")
        await replica.write()
        replica.group.doubtful = True
        replica.sink.away = True
        await replica.claimed_by("other")
        assert not replica.tenure().may_finish()
        assert not await replica.tenure().handed_over()


# ---- warm copies ---------------------------------------------------------------------------------


@virtual
async def test_a_copy_is_wanted_while_the_stream_is_assigned_warm_or_to_be_written() -> None:
    async with running() as replica, asyncio.TaskGroup() as tasks:
        copy = KnownCopy(may_be_claimed=False)
        waiting = tasks.create_task(assigned(replica, copy))
        for own, warm, wanted in (
            ({}, ("jobs",), False),
            ({}, ("pods",), True),
            ({}, (), False),
            ({"pods": "other"}, (), True),
        ):
            replica.group.give(own, "other", warm=warm)
            await asyncio.sleep(0.01)
            assert copy.wanted[-1] is wanted
        waiting.cancel()


@virtual
async def test_from_a_live_writer_a_stream_is_claimed_once_it_is_warm_else_at_once() -> None:
    async with running() as replica, asyncio.TaskGroup() as tasks:
        copy = KnownCopy(may_be_claimed=False)
        waiting = tasks.create_task(assigned(replica, copy))
        replica.group.give({"pods": "other"}, "other")
        await asyncio.sleep(100.0)
        assert not waiting.done(), "the writer goes on"
        copy.may_be_claimed = True
        replica.tenure().warmed(True)
        assert await waiting
        copy.may_be_claimed = False
        replica.group.give({"pods": ""}, "other")
        assert not await assigned(replica, copy), "nobody writes it"


@virtual
async def test_a_stream_that_was_handed_over_once_is_claimed_again_without_a_copy() -> None:
    async with running() as replica:
        replica.group.give({"pods": "other"}, "other")
        assert await assigned(replica, KnownCopy())
        await replica.write()
        replica.tenure().ended()  # its topic was lost: what could be read is gone
        async with asyncio.timeout(1.0):
            again = await assigned(replica, KnownCopy(may_be_claimed=False))
        assert not again


@virtual
async def test_warm_streams_are_reported_until_their_copies_are_dropped() -> None:
    async with running() as replica:
        replica.tenure().warmed(True)
        replica.tenure("jobs").warmed(True)
        assert replica.group.reported().warm == ("jobs", "pods")
        replica.tenure("jobs").warmed(False)
        assert replica.group.reported().warm == ("pods",)


@virtual
async def test_a_stream_lost_to_a_relay_outside_the_group_is_offered_again_later_and_later() -> (
    None
):
    loop = asyncio.get_running_loop()
    async with running() as replica:
        waits = []
        for _ in range(8):
            replica.group.give({"pods": ""})
            await replica.write()
            await replica.claimed_by("outsider")
            assert not replica.tenure().may_finish(), "no replica was assigned it"
            assert replica.tenure().lose()
            replica.tenure().ended()
            lost_s = loop.time()
            assert "pods" not in replica.group.reported().plans
            await replica.group.rejoined()
            waits.append(loop.time() - lost_s)
            assert "pods" in replica.group.reported().plans
    assert 0.8 <= waits[0] <= 1.2
    assert waits == sorted(waits)
    assert 50.0 <= waits[-1] <= 67.0


@virtual
async def test_a_retired_stream_is_not_offered_until_the_config_changes() -> None:
    async with running() as replica:
        replica.group.give({"pods": ""})
        await replica.write()
        await replica.claimed_by(retirement_holder())
        replica.tenure().lose()
        replica.tenure().ended()
        await asyncio.sleep(10_000.0)
        assert set(replica.group.reported().plans) == {"jobs"}
        replica.plan("pods", "jobs", plan="of another version of the resource")
        assert set(replica.group.reported().plans) == {"jobs"}, "the config is the same"
        replica.plan("pods", "jobs", config_hash="d")
        assert set(replica.group.reported().plans) == {"jobs", "pods"}


@virtual
async def test_a_stream_that_is_retired_is_taken_over_by_no_replica() -> None:
    async with running() as replica:
        await replica.described()
        replica.group.give({}, "other")
        await replica.claimed_by(retirement_holder())
        await asyncio.sleep(0.1)
        replica.group.give({"pods": ""}, "other", joining=False)
        assert not replica.sharing.may_claim("pods"), "it joined before"
        assert set(replica.group.reported().plans) == {"jobs"}
        replica.plan("pods", "jobs", revision=2)
        assert set(replica.group.reported().plans) == {"jobs"}
        replica.plan("jobs")
        replica.plan("pods", "jobs")
        assert set(replica.group.reported().plans) == {"jobs", "pods"}


@virtual
async def test_a_stream_that_is_retired_while_it_is_handed_over_is_not_offered_by_its_writer() -> (
    None
):
    async with running() as replica:
        replica.group.give({"pods": ""}, "other")
        await replica.write()
        replica.group.give({}, "other")
        await replica.claimed_by(retirement_holder())
        await until(lambda: replica.ended == ["pods"])
        replica.tenure().ended()
        assert set(replica.group.reported().plans) == {"jobs"}


@virtual
async def test_streams_of_others_are_shown_with_their_owners_and_objects() -> None:
    async with running() as replica:
        status = replica.statuses.open("pods")
        status.progress.state = "standby"
        await replica.described()
        await replica.claimed_by("other")
        index = WireRecord(control_key("snapshot", "pods"), control_value({"count": 7}), [])
        await replica.topic.deliver(Batch("control", 0, [index], "pods"))
        await until(lambda: status.objects == 7)
        assert (status.owner, status.role) == ("other", "standby")
        status.warm = True
        assert status.role == "warm"


@virtual
async def test_that_a_part_is_not_owned_is_no_news_while_another_layout_is_written() -> None:
    halves, quarters = ["pods%0/2", "pods%1/2"], [f"pods%{place}/4" for place in range(4)]
    async with running() as replica:
        for each in (*halves, *quarters):
            replica.statuses.open(each).progress.state = "standby"

        def shown(expected: set[str]) -> bool:
            (family,) = replica.metrics.gauge("stream_owned").collect()
            return {sample.labels["stream"] for sample in family.samples} == expected

        await replica.described(partitions=4)
        await until(partial(shown, {*halves, *quarters}))
        for part, partitions, expected in (
            ("pods%0/2", (0, 1), {*halves, *quarters[2:]}),
            ("pods%1/2", (2, 3), {*halves}),
            ("pods%0/4", (0,), {*halves, *quarters[:2]}),  # nobody writes partition 1
            ("pods%1/4", (1,), {halves[1], *quarters[:2]}),
            ("pods%3/4", (3,), {halves[1], *quarters}),
            ("pods%2/4", (2,), {*quarters}),
        ):
            await replica.claimed_by("other", part, *partitions)
            await until(partial(shown, expected))


# ---- what is reported ----------------------------------------------------------------------------


@virtual
async def test_a_replica_that_the_api_server_does_not_answer_becomes_unfit_and_fit_again() -> None:
    async with running() as replica:
        assert replica.group.reported().fit
        assert replica.group.reported().api_failed_ms > 0, "nothing is known at the start"
        replica.api_answers = False
        rejoins = replica.group.rejoins
        await asyncio.sleep(UNFIT_AFTER_S - 12.0)
        assert replica.group.reported().fit
        await asyncio.sleep(15.0)
        assert not replica.group.reported().fit
        assert replica.group.rejoins == rejoins + 1
        replica.api_answers = True
        await asyncio.sleep(5.0)
        assert replica.group.reported().fit
        assert replica.group.rejoins == rejoins + 2
        ago_s = asyncio.get_running_loop().time() - replica.group.reported().api_failed_ms / 1000
        assert 5.0 <= ago_s <= 7.5


@virtual
async def test_a_changed_plan_joins_again_and_an_edit_is_newer() -> None:
    async with running() as replica:
        first = replica.group.reported()
        rejoins = replica.group.rejoins
        replica.plan("pods", "jobs")
        assert replica.group.rejoins == rejoins
        await asyncio.sleep(1.0)
        replica.plan("pods")
        second = replica.group.reported()
        assert replica.group.rejoins == rejoins + 1
        assert second.config_order == first.config_order, "discovery has changed, not the config"
        assert second.counter > first.counter
        assert set(second.plans) == {"pods"}
        replica.plan("pods", config_hash="d")
        third = replica.group.reported()
        assert replica.group.rejoins == rejoins + 2
        assert third.config_order > second.config_order
        replica.plan("pods", config_hash="d", revision=2)
        assert replica.group.reported().config_order == (2, third.config_order[1]), (
            "older than a config that was edited with the revision"
        )


@virtual
async def test_a_stream_is_assigned_since_the_first_generation_that_has_it() -> None:
    async with running() as replica:
        replica.group.give({"pods": ""})
        replica.group.give({"pods": "", "jobs": ""})
        assert replica.group.reported().assigned == {"pods": 0, "jobs": 1}
        replica.group.give({"jobs": ""})
        assert replica.group.reported().assigned == {"jobs": 1}


# ---- the end -------------------------------------------------------------------------------------


@virtual
async def test_a_replica_that_leaves_waits_for_what_others_take_and_for_nothing_else() -> None:
    async with running() as replica, asyncio.TaskGroup() as tasks:
        replica.group.give({"pods": "", "jobs": ""}, "other")
        await replica.write()
        await replica.write("jobs")
        leaving = tasks.create_task(replica.sharing.hand_over(within_s=15.0))
        replica.group.give({"pods": "", "jobs": ""}, "other", joining=False)
        await asyncio.sleep(0.1)
        assert not leaving.done(), "that assignment is from before"
        assert replica.group.reported().leaving
        assert not replica.sharing.may_claim("pods")
        replica.group.give({"jobs": ""}, "other")
        await asyncio.sleep(0.1)
        assert not leaving.done()
        replica.tenure().ended()
        await asyncio.sleep(0.1)
        assert leaving.done(), "nobody else can run jobs"


@virtual
async def test_a_replica_that_cannot_reach_the_group_waits_for_nobody() -> None:
    loop = asyncio.get_running_loop()
    async with running() as replica:
        replica.group.give({"pods": ""}, "other")
        await replica.write()
        replica.group.silent = True
        began_s = loop.time()
        await replica.sharing.hand_over(within_s=15.0)
        assert loop.time() - began_s < 3.0


@virtual
async def test_a_replica_whose_streams_nobody_takes_drains_them_itself_in_time() -> None:
    loop = asyncio.get_running_loop()
    async with running() as replica:
        replica.group.give({"pods": ""})
        await replica.write()
        began_s = loop.time()
        await replica.sharing.hand_over(within_s=15.0)
        assert loop.time() - began_s == 15.0
        await replica.sharing.leave()
        assert replica.group.left == 1
