"""One replica in a scripted group: what it decides as the leader, and what is shown of the group."""

from __future__ import annotations

import asyncio
import zlib

import msgspec
import pytest
from msgspec.structs import replace

from tests.support.relays import until, virtual
from tests.support.sharingreplica import (
    BALANCE_AFTER_S,
    Replica,
    running,
)
from watchrelay.replicas.assignor import (
    API_STEADY_MS,
    OLD_PLAN_MS,
    MemberMetadata,
    decode_assignment,
    decode_metadata,
    encode,
)
from watchrelay.replicas.fitness import API_CHECK_AGAIN_S, API_CHECK_S, UNFIT_AFTER_S


@virtual
async def test_the_leader_assigns_as_many_standbys_as_the_config_asks_for() -> None:
    async with running() as replica:
        plans = {"pods": "p"}
        members = {
            name: encode(
                MemberMetadata(name, plans=plans, writing={"pods": 1} if name == "a" else {})
            )
            for name in "abc"
        }
        given = replica.group.assign(members)
        decoded = [decode_assignment(given[name]) for name in "abc"]
        assert [each and len(each.warm) for each in decoded] == [0, 1, 0]


# ---- lost to others ------------------------------------------------------------------------------


@virtual
async def test_an_assignment_that_cannot_be_read_assigns_nothing_and_ends_nothing() -> None:
    async with running() as replica:
        replica.group.give({"pods": "", "jobs": ""})
        await replica.write()
        replica.sharing.assigned(7, b"odd")
        assert not replica.sharing.may_claim("jobs")
        assert not replica.ended
        assert "another program" in replica.statuses.problems["assignment"].message
        replica.group.give({"pods": "", "jobs": ""})
        assert not replica.statuses.problems


# ---- the leader ----------------------------------------------------------------------------------


@virtual
async def test_the_leader_ignores_odd_members_and_balances_after_a_quiet_time() -> None:
    async with running() as replica:
        plans = {f"s{number}": "p" for number in range(4)}
        members = {
            "m1": encode(MemberMetadata("a", plans=plans, writing=dict.fromkeys(plans, 1))),
            "m2": encode(MemberMetadata("b", plans=plans)),
            "odd": b"odd",
            "too many": encode(
                MemberMetadata("d", plans=dict.fromkeys(map(str, range(10_001)), "p"))
            ),
            "no part": encode(MemberMetadata("c", plans={"s0%2/2": "p"})),
        }

        def assigned() -> list[int]:
            given = replica.group.assign(members)
            assert set(given) == {"m1", "m2"}
            decoded = [decode_assignment(given[each]) for each in ("m1", "m2")]
            return [len(each.own) for each in decoded if each is not None]

        replica.group.leads = True
        assert assigned() == [4, 0], "nothing moves for balance yet"
        rejoins = replica.group.rejoins
        await asyncio.sleep(BALANCE_AFTER_S - 2.0)
        assert replica.group.rejoins == rejoins
        await asyncio.sleep(4.0)
        assert replica.group.rejoins > rejoins
        assert assigned() == [2, 2]


def of_two(replica: Replica, busy: MemberMetadata, idle: MemberMetadata) -> list[int]:
    """The leader decides for these; how many streams each of them is given."""
    given = replica.group.assign({"m1": encode(busy), "m2": encode(idle)})
    decoded = [decode_assignment(given[each]) for each in ("m1", "m2")]
    return [len(each.own) for each in decoded if each is not None]


@virtual
async def test_where_nothing_can_be_moved_it_is_tried_less_and_less_often() -> None:
    async with running() as replica:
        plans = {f"s{number}": "p" for number in range(4)}
        waiting = MemberMetadata("a", plans=plans, assigned=dict.fromkeys(plans, 1))
        waiting = msgspec.structs.replace(waiting, beginning=tuple(plans))
        replica.group.leads = True
        loop, waits = asyncio.get_running_loop(), []
        for _ in range(5):
            assert of_two(replica, waiting, MemberMetadata("b", plans=plans)) == [4, 0]
            began_s = loop.time()
            await replica.group.rejoined()
            waits.append(round((loop.time() - began_s) / BALANCE_AFTER_S))
        assert waits == [1, 2, 4, 8, 16]


@virtual
async def test_loads_that_snapshots_show_later_are_evened_out() -> None:
    async with running() as replica:
        plans = dict.fromkeys(("pods", "jobs", "nodes"), "p")
        busy = MemberMetadata("a", plans=plans, writing={"pods": 1, "jobs": 1})
        idle = MemberMetadata("b", plans=plans, writing={"nodes": 1})
        for stream in plans:
            await replica.described(stream)
            await replica.topic.claim(stream)
            await replica.counted(0, stream)
        replica.group.leads = True
        assert of_two(replica, busy, idle) == [2, 1]
        await asyncio.sleep(10 * BALANCE_AFTER_S)
        rejoins = replica.group.rejoins
        await replica.counted(100_000, "pods")
        await replica.counted(100_000, "jobs")
        await until(lambda: replica.group.rejoins > rejoins, steps=100_000)
        assert of_two(replica, busy, idle) == [1, 2]


@virtual
async def test_an_older_config_keeps_its_streams_for_five_minutes_without_another_join() -> None:
    async with running() as replica:
        old = MemberMetadata("a", plans={"pods": "old"}, writing={"pods": 1}, config_order=(0, 0))
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        new = MemberMetadata("b", (0, now_ms), plans={"pods": "new"}, config_hash="new")
        replica.group.leads = True
        assert of_two(replica, old, new) == [1, 0]
        rejoins = replica.group.rejoins
        await asyncio.sleep(OLD_PLAN_MS / 1000 - 20.0)
        assert replica.group.rejoins == rejoins
        await asyncio.sleep(40.0)
        assert replica.group.rejoins > rejoins
        assert of_two(replica, old, new) == [0, 1]


HOURS = pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 3600.0])
FIELDS_BEFORE_AGES = 12


def other_member(other: Replica, fields: int = 99) -> MemberMetadata:
    """A second replica, as the leader reads so many fields of what it reports."""
    reported = msgspec.to_builtins(replace(other.group.reported(), holder="other"))
    read = decode_metadata(zlib.compress(msgspec.json.encode(reported[:fields])))
    assert read is not None
    return read


def owner(leader: Replica, other: MemberMetadata) -> str:
    """Who is assigned pods, by the leader h."""
    leader.group.lead(other)
    return "h" if leader.sharing.may_claim("pods") else "other"


@HOURS
@virtual
async def test_streams_of_an_unfit_replica_move_in_time_whatever_clock_the_fit_one_has(
    ahead_s: float,
) -> None:
    async with running() as leader, running(wall_ahead_s=ahead_s) as other:
        leader.group.give({"pods": ""})
        await leader.write()
        leader.api_answers = False
        await asyncio.sleep(UNFIT_AFTER_S)
        other.api_answers = False
        await asyncio.sleep(API_CHECK_S + 1.0)
        other.api_answers = True
        assert (leader.group.reported().fit, other.group.reported().fit) == (False, True)
        assert owner(leader, other_member(other)) == "h", "a check of the fit one has just failed"
        await asyncio.sleep(API_STEADY_MS / 1000 + API_CHECK_AGAIN_S)
        assert owner(leader, other_member(other)) == "other"


@HOURS
@virtual
async def test_the_newer_of_two_configs_is_known_by_their_ages_whatever_the_clocks(
    ahead_s: float,
) -> None:
    async with running() as leader, running(wall_ahead_s=ahead_s) as other:
        leader.group.give({"pods": ""})
        await leader.write()
        await asyncio.sleep(60.0)
        other.plan("pods", config_hash="newer", plan="newer")
        await asyncio.sleep(OLD_PLAN_MS / 1000 - 20.0)
        assert owner(leader, other_member(other)) == "h"
        await asyncio.sleep(40.0)
        assert owner(leader, other_member(other)) == "other"


@virtual
async def test_beside_a_release_that_knows_no_ages_the_wall_times_count() -> None:
    async with running() as leader, running(wall_ahead_s=5.0) as other:
        wall_ms = int(asyncio.get_running_loop().time() * 1000) + 5000
        leader.group.give({"pods": ""})
        await leader.write()
        leader.api_answers = False
        await asyncio.sleep(UNFIT_AFTER_S + API_CHECK_S)
        old = other_member(other, FIELDS_BEFORE_AGES)
        assert old.ages_ms is None
        assert old.config_order[1] == pytest.approx(wall_ms, abs=201), "as such a leader reads it"
        assert old.api_failed_ms == pytest.approx(wall_ms, abs=201)
        assert owner(leader, old) == "other"
        leader.group.give({"pods": ""})
        now_ms = wall_ms + int((UNFIT_AFTER_S + API_CHECK_S) * 1000)
        assert owner(leader, replace(old, api_failed_ms=now_ms - API_STEADY_MS)) == "h"


@virtual
async def test_the_group_is_shown_with_what_each_member_reported_and_is_given() -> None:
    async with running() as replica:
        shown = replica.statuses.group
        assert shown is not None
        assert (shown.generation, shown.members) == (None, ())
        plans = {"pods": "plan", "jobs": "plan"}
        other = MemberMetadata("other", (2, 5), plans, config_hash="d", writing={"jobs": 3})
        replica.group.lead(other, MemberMetadata("unfit", fit=False, leaving=True))
        shown = replica.statuses.group
        assert shown is not None
        assert (shown.holder, shown.leader, shown.generation, shown.even) == ("h", "h", 0, True)
        own, second, third = shown.members
        assert (own.holder, own.config_hash, own.streams) == ("h", "c", ("pods",))
        assert second.as_json() == {
            "holder": "other",
            "revision": 2,
            "configAdopted": "1970-01-01T00:00:00.005Z",
            "configHash": "d",
            "fit": True,
            "leaving": False,
            "assigned": 1,
            "streams": ("jobs",),
        }
        assert (third.fit, third.leaving, third.assigned, third.streams) == (False, True, 0, ())


@virtual
async def test_of_a_group_with_a_large_table_are_shown_the_numbers_of_streams() -> None:
    async with running() as replica:
        plans = {f"stream-{number:04}": "p" for number in range(1000)}
        replica.group.lead(MemberMetadata("other", plans=plans))
        shown = replica.statuses.group
        assert shown is not None
        assert [(each.assigned, each.streams) for each in shown.members] == [
            (2, None),
            (1000, None),
        ]
        await replica.write()
        await replica.claimed_by("other")
        assert not replica.tenure().lose(), "its holder is known all the same"


@virtual
async def test_beside_a_leader_of_another_release_the_group_is_shown_as_far_as_it_is_known() -> (
    None
):
    async with running() as replica:
        older = zlib.compress(b'[{"pods":""},[],{"h":["pods"],"other":[]}]')
        replica.sharing.assigned(3, older)
        shown = replica.statuses.group
        assert shown is not None
        assert (shown.generation, shown.leader, shown.members) == (3, "", ())
        assert replica.sharing.may_claim("pods")
        newer = b'[{"jobs":""},[],{},["other",false,[["other",[1,2],"c",true,false,0,"new"]],7],8]'
        replica.sharing.assigned(4, zlib.compress(newer))
        shown = replica.statuses.group
        assert shown is not None
        assert (shown.leader, shown.even) == ("other", False)
        assert [each.holder for each in shown.members] == ["other"]
        assert replica.sharing.may_claim("jobs")


def rebalances(replica: Replica) -> dict[str, float]:
    """How often the leader assigned the streams, by reason."""
    family = replica.metrics.counter("group_rebalances")
    return {
        sample.labels["reason"]: sample.value
        for metric in family.collect()
        for sample in metric.samples
        if sample.name.endswith("_total")
    }


@virtual
async def test_the_leader_counts_why_the_streams_are_assigned_again() -> None:
    async with running() as replica:
        a, b = MemberMetadata("a"), MemberMetadata("b")
        replica.group.lead(a, b)
        replica.group.lead(a, b)
        replica.group.lead(a)
        replica.group.lead(MemberMetadata("a", leaving=True))
        replica.group.lead()
        assert rebalances(replica) == {"joined": 1, "asked": 2, "died": 1, "left": 1}
        replica.group.leads = False
        replica.group.give({}, "a")
        assert sum(rebalances(replica).values()) == 5, "counted by its leader alone"


# ---- takeovers -----------------------------------------------------------------------------------


@virtual
async def test_a_takeover_lasts_from_the_assignment_to_the_first_acknowledgement() -> None:
    def taken_over(replica: Replica) -> dict[str, float]:
        family = replica.metrics.histogram("takeover_duration_seconds")
        return {
            sample.labels["kind"]: sample.value
            for metric in family.collect()
            for sample in metric.samples
            if sample.name.endswith("_sum")
        }

    async with running() as replica:
        replica.group.give({"pods": "", "jobs": ""}, "other")
        await asyncio.sleep(1.0)
        await replica.write()
        replica.statuses.open("pods").progress.acked()
        assert taken_over(replica) == {"handover": 0, "failover": 0}, "nobody wrote it before"
        await replica.claimed_by("other")
        replica.tenure().lose()
        replica.tenure().ended()
        for own, kind in (({"pods": "other"}, "handover"), ({"pods": ""}, "failover")):
            replica.group.give({}, "other")
            replica.group.give(own, "other")
            await asyncio.sleep(3.0)
            await replica.write()
            await asyncio.sleep(1.0)
            for _ in range(2):
                replica.statuses.open("pods").progress.acked()
            assert taken_over(replica)[kind] == 4.0
            await replica.claimed_by("other")
            replica.tenure().lose()
            replica.tenure().ended()
