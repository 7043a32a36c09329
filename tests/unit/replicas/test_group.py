"""A member of the group, before a coordinator that answers each request as the test wants."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest

from tests.support.groupfake import FakeGroup, Request
from tests.support.groupreplica import (
    AWAY,
    GROUP,
    REFUSED,
    SESSION_S,
    Replica,
    joined,
    next_request,
    passes,
    requests,
)
from tests.support.relays import virtual
from tests.support.sinkparts import until
from watchrelay.core.errors import SinkMisconfigured

# ---- a life --------------------------------------------------------------------------------------


@virtual
async def test_members_join_are_assigned_and_send_a_heartbeat_each_second() -> None:
    group = FakeGroup()
    async with joined(group, "a") as a, joined(group, "b") as b:
        await until(lambda: len(a.assignments) == 2)
        assert (a.assignments[-1], b.assignments[-1]) == ((2, b"all"), (2, b"none"))
        assert (a.member.generation, b.member.generation) == (2, 2)
        assert (a.member.leads, b.member.leads) == (True, False)
        assert not a.member.doubtful
        known = len(requests(group, "heartbeat"))
        await passes(30.0)
        assert 58 <= len(requests(group, "heartbeat")) - known <= 62
        assert len(requests(group, "join")) == 2 + 3, "each asks for its id first; a joins again"
        assert (a.count("group_members"), b.count("group_members")) == (2, 0)
        assert b.count("group_generation") == 2


@virtual
async def test_a_leader_that_is_cut_off_counts_no_members() -> None:
    group = FakeGroup()
    async with joined(group, "a") as a, joined(group, "b") as b:
        await until(lambda: a.count("group_members") == 2)
        a.is_cut = True
        await until(lambda: a.problem != "", deadline_s=60.0)
        assert (a.count("group_members"), b.count("group_members")) == (0, 1)
        a.is_cut = False
        await until(
            lambda: a.count("group_members") + b.count("group_members") == 2, deadline_s=60.0
        )


@virtual
async def test_whose_heartbeat_is_not_answered_looks_for_the_coordinator_by_a_new_connection() -> (
    None
):
    async with joined(FakeGroup(), "a") as a:
        assert len(a.made) == 1
        a.is_cut = True
        await until(lambda: len(a.made) > 1)
        a.is_cut = False
        await passes(SESSION_S)
        assert (a.losses, a.member.doubtful) == (0, False)


@virtual
async def test_heartbeats_are_as_frequent_as_a_short_session_needs() -> None:
    group = FakeGroup(least_session_s=1.0)
    replica = Replica(group, session_s=3.0)
    async with replica.running():
        await passes(10.0)
    assert 19 <= len(requests(group, "heartbeat")) <= 21


@virtual
async def test_who_sends_no_heartbeat_is_out_after_a_session_and_who_leaves_at_once() -> None:
    group = FakeGroup()
    loop = asyncio.get_running_loop()
    async with joined(group, "b") as b:
        async with joined(group, "a"):
            await until(lambda: b.assignments[-1] == (2, b"none"))
        died_s = loop.time()
        await until(lambda: b.assignments[-1] == (3, b"all"))
        assert SESSION_S - 1.0 <= loop.time() - died_s <= SESSION_S + 1.1
        async with joined(group, "a") as a:
            await until(lambda: b.assignments[-1] == (4, b"none"))
        await a.member.leave(within_s=1.0)
        left_s = loop.time()
        await until(lambda: b.assignments[-1] == (5, b"all"))
        assert loop.time() - left_s <= 1.1
        assert (a.member.member_id, a.member.generation, a.member.doubtful) == ("", -1, True)
        await a.member.leave(within_s=1.0)
    assert len(requests(group, "leave")) == 1


@virtual
async def test_a_member_joins_again_when_what_it_reports_has_changed() -> None:
    group = FakeGroup()
    async with joined(group, "a") as a:
        member_id = a.member.member_id
        a.member.rejoin()
        await until(lambda: len(a.assignments) == 2)
        assert (a.reports, a.decisions, a.losses) == (3, 2, 0)
        assert a.member.member_id == member_id


@virtual
async def test_a_request_to_rejoin_during_a_join_is_not_forgotten() -> None:
    group = FakeGroup()
    async with joined(group, "b") as b:
        a = Replica(group, "a")
        async with a.running():
            await until(lambda: group.state == "joining")
            a.member.rejoin()
            await until(lambda: len(a.assignments) == 2)
            assert b.assignments[-1][0] == a.assignments[-1][0] == 3


# ---- answers of the coordinator ------------------------------------------------------------------


@pytest.mark.parametrize("code", AWAY)
@virtual
async def test_a_member_sends_its_heartbeats_to_the_next_coordinator_without_joining(
    code: int,
) -> None:
    group = FakeGroup()
    async with joined(group) as a:
        member_id, joins = a.member.member_id, len(requests(group, "join"))
        group.script["heartbeat"].extend([code] * 3)
        group.script["find"].extend([15, 15])
        await passes(3.0)
        assert not group.script["heartbeat"]
        assert not group.script["find"]
        assert len(requests(group, "find")) == 1 + 2 + 3
        assert len(requests(group, "join")) == joins
        assert set(requests(group, "heartbeat")) == {member_id}
        assert (a.losses, a.problem, len(a.assignments)) == (0, "", 1)


@pytest.mark.parametrize("code", [22, 25, 82])
@virtual
async def test_a_member_that_is_not_known_is_in_doubt_and_joins_again(code: int) -> None:
    group = FakeGroup()
    async with joined(group) as a:
        former = a.member.member_id
        group.script["heartbeat"].append(code)
        _, member_id = await next_request(group, "join")
        assert member_id == (former if code == 22 else "")
        await until(lambda: len(a.assignments) == 2)
        assert a.doubts_at_join[-1]
        assert (a.losses, a.member.doubtful) == (1, False)
        await passes(1.0)
        assert a.count("group_doubts_total") == 1


@virtual
async def test_an_assignment_that_is_read_a_session_late_counts_once_a_heartbeat_is_answered() -> (
    None
):
    group = FakeGroup()
    async with joined(group) as a:
        a.sleeps_s = SESSION_S + 1.0
        group.script["heartbeat"].append(25)
        a.member.rejoin()
        await until(lambda: len(a.assignments) == 2)
        assert (a.losses, a.decisions, a.member.doubtful) == (1, 3, False)
        assert [generation for generation, _ in a.assignments] == [1, 3]


@pytest.mark.parametrize("code", [*AWAY, 22, 27, -1])
@pytest.mark.parametrize("request_", ["join", "sync"])
@virtual
async def test_a_join_that_fails_is_repeated_with_the_same_id(request_: Request, code: int) -> None:
    group = FakeGroup()
    async with joined(group) as a:
        member_id = a.member.member_id
        group.script[request_].append(code)
        a.member.rejoin()
        await until(lambda: len(a.assignments) == 2)
        assert not group.script[request_]
        assert requests(group, "join")[-2:] == [member_id, member_id]
        assert a.losses == (code == 22)
        assert a.problem == ""


@pytest.mark.parametrize("code", [25, 82])
@pytest.mark.parametrize("request_", ["join", "sync"])
@virtual
async def test_a_member_that_is_not_known_when_it_joins_gets_a_new_id(
    request_: Request, code: int
) -> None:
    group = FakeGroup()
    async with joined(group) as a:
        former = a.member.member_id
        group.script[request_].append(code)
        a.member.rejoin()
        await until(lambda: len(a.assignments) == 2, deadline_s=60.0)
        assert a.losses == 1
        assert a.member.member_id not in {former, ""}


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        *(("join", code) for code in REFUSED),
        ("find", 24),
        ("find", 30),
        ("sync", 23),
        ("sync", 30),
        ("heartbeat", 30),
    ],
)
@virtual
async def test_what_only_an_operator_can_mend_is_reported_and_tried_again_in_1_to_30_s(
    request_: Request, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    group = FakeGroup()
    replica = Replica(group)
    loop = asyncio.get_running_loop()
    group.script[request_].extend([code] * 7)
    async with replica.running():
        await until(lambda: replica.problem != "")
        refused_s = loop.time()
        assert REFUSED[code] in replica.problem
        assert GROUP in replica.problem
        await until(lambda: replica.problem == "", deadline_s=100.0)
        assert loop.time() - refused_s == pytest.approx(1 + 2 + 4 + 8 + 16 + 30 + 30, abs=2.0)
        await until(lambda: replica.member.generation >= 1)
    assert caplog.messages.count("cannot use the group") == 1


@virtual
async def test_an_error_that_is_not_known_is_tried_again_each_second_as_a_member() -> None:
    group = FakeGroup()
    async with joined(group) as a:
        group.script["heartbeat"].extend([-1] * 3)
        await passes(5.0)
        assert not group.script["heartbeat"]
        assert (len(a.assignments), a.losses) == (1, 0)


@virtual
async def test_a_coordinator_that_has_lost_the_group_is_joined_again() -> None:
    group = FakeGroup()
    async with joined(group, "a") as a, joined(group, "b") as b:
        await until(lambda: len(a.assignments) == 2)
        group.forget()
        await until(lambda: a.member.generation >= 1 and b.losses == 1 and len(group.members) == 2)
        await until(lambda: {a.assignments[-1], b.assignments[-1]} == {(2, b"all"), (2, b"none")})
        assert (a.losses, b.losses) == (1, 1)


# ---- the way to the coordinator ------------------------------------------------------------------


@virtual
async def test_doubt_begins_a_session_after_the_newest_answer_and_ends_with_the_next() -> None:
    group = FakeGroup()
    loop = asyncio.get_running_loop()
    async with joined(group) as a:
        a.is_cut = True
        group.members[a.member.member_id].session_s = 60.0  # the next coordinator knows it
        group._keep(group.members[a.member.member_id])
        answered_s = a.member.answered_s
        await until(lambda: a.member.doubtful, deadline_s=30.0)
        assert loop.time() - answered_s == pytest.approx(SESSION_S, abs=0.1)
        assert "does not answer" not in a.problem
        await passes(5.0)
        assert "does not answer" in a.problem
        assert "connection closed" in a.problem
        a.is_cut = False
        await until(lambda: not a.member.doubtful)
        assert (len(a.assignments), a.losses, a.problem) == (1, 0, "")
        await passes(1.0)
        assert a.count("group_doubts_total") == 1
        assert a.count("group_doubt_seconds_total") == pytest.approx(5.0, abs=1.0)


@virtual
async def test_a_heartbeat_without_an_answer_is_sent_again_by_another_connection() -> None:
    group = FakeGroup()
    async with joined(group) as a:
        a.is_mute = True
        await passes(1.0)
        finds = len(requests(group, "find"))
        a.is_mute = False
        await until(lambda: len(requests(group, "find")) == finds + 1)
        await passes(1.0)
        assert (len(a.assignments), a.member.doubtful) == (1, False)


@virtual
async def test_brokers_without_a_coordinator_are_shown_with_the_setting_that_is_the_usual_cause() -> (
    None
):
    group = FakeGroup()
    group.script["find"].extend([15] * 1000)
    replica = Replica(group)
    async with replica.running():
        await until(lambda: bool(replica.problem), deadline_s=30.0)
        assert "does not answer" in replica.problem
        assert "offsets.topic.replication.factor" in replica.problem
        group.script["find"].clear()
        await until(lambda: replica.member.generation >= 1)
        assert replica.problem == ""


@virtual
async def test_an_error_of_this_machine_is_no_answer_of_the_coordinator() -> None:
    group = FakeGroup()
    replica = Replica(group)
    replica.is_cut, replica.cut_error = True, OSError(errno.EMFILE, "Too many open files")
    async with replica.running():
        await passes(20.0)
        assert "topicPrefix" not in replica.problem, "24 is the code of an invalid group name"
        replica.is_cut = False
        await until(lambda: replica.member.generation >= 1)


@virtual
async def test_new_secrets_are_used_by_a_new_connection_of_the_same_member() -> None:
    group = FakeGroup()
    async with joined(group) as a:
        before = (a.member.member_id, a.member.generation)
        a.connection.rotation.proven += 1
        await until(lambda: len(a.made) == 2)
        await passes(2.0)
        assert (a.member.member_id, a.member.generation) == before
        assert (len(a.assignments), a.losses, len(a.made)) == (1, 0, 2)


@virtual
async def test_secrets_that_cannot_be_read_are_reported_and_read_again() -> None:
    group = FakeGroup()
    replica = Replica(group)
    replica.make_error = SinkMisconfigured("kafka.security.passwordFile /none cannot be read")
    async with replica.running():
        await until(lambda: "passwordFile" in replica.problem)
        replica.make_error = None
        await until(lambda: bool(replica.assignments))
        assert replica.problem == ""


@virtual
async def test_leaving_does_not_wait_behind_a_join_or_for_a_coordinator_that_is_away() -> None:
    group = FakeGroup()
    loop = asyncio.get_running_loop()
    async with joined(group, "b") as b:
        a = Replica(group, "a")
        async with a.running():
            await until(lambda: bool(a.member.member_id) and group.state == "joining")
        await a.member.leave(within_s=1.0)
        await until(lambda: b.assignments[-1][1] == b"all" and group.state == "stable")
        assert [*group.members] == [b.member.member_id]
    b.is_mute = True
    began_s = loop.time()
    await b.member.leave(within_s=1.0)
    assert loop.time() - began_s == pytest.approx(1.0)


# ---- static members ------------------------------------------------------------------------------


@virtual
async def test_a_static_member_that_is_back_within_a_session_has_its_assignment() -> None:
    group = FakeGroup()
    async with joined(group, "b") as b:
        async with joined(group, "a", instance="pod-0") as a:
            await until(lambda: a.assignments[-1][0] == b.assignments[-1][0])
            await passes(3.0)
            former, generation = a.member.member_id, a.member.generation
        decisions = b.decisions
        async with joined(group, "a", instance="pod-0") as again:
            assert again.assignments[0] == (generation, b"all")
            assert again.member.member_id != former
            await passes(20.0)
            assert b.decisions == decisions + 1, "the leader sees its metadata"
            assert (again.losses, b.losses) == (0, 0)


@virtual
async def test_two_processes_with_one_instance_go_on_as_dynamic_members(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = FakeGroup()
    async with joined(group, "a", instance="pod-0") as a:
        b = Replica(group, "b", instance="pod-0")
        async with b.running():
            await passes(30.0)
            known = len(group.asked)
            await passes(60.0)
            assert not [each for each in group.asked[known:] if each[0] == "join"]
            assert {a.assignments[-1][1], b.assignments[-1][1]} == {b"all", b"none"}
            assert len(group.members) == 2
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert 1 <= len(errors) <= 2
    assert "sharding.instance" in errors[0].message


@virtual
async def test_a_static_member_that_is_lost_again_while_it_joins_gives_its_name_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = FakeGroup()
    async with joined(group, "a", instance="pod-0") as a:
        group.script["heartbeat"].append(25)
        group.script["sync"].append(25)
        await until(lambda: a.losses == 2 and not a.member.doubtful)
    assert any("sharding.instance" in each.message for each in caplog.records)


@virtual
async def test_a_static_member_that_was_frozen_twice_keeps_its_name() -> None:
    group = FakeGroup()
    async with joined(group, "a", instance="pod-0") as a:
        for losses in (1, 2):
            a.is_cut = True
            await passes(SESSION_S + 2.0)
            a.is_cut = False
            await until(lambda: not a.member.doubtful)
            assert a.losses == losses
        assert next(iter(group.members.values())).instance == "pod-0"


# ---- its end -------------------------------------------------------------------------------------


@virtual
async def test_a_member_that_is_cancelled_anywhere_holds_no_connection() -> None:
    for steps in range(0, 60, 3):
        group = FakeGroup()
        replica = Replica(group)
        async with replica.running():
            for _ in range(steps):
                await asyncio.sleep(0)
        assert replica.member._link._coordinator is None
        assert replica.member._link._brokers is None
