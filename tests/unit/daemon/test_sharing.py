"""One replica in a scripted group: what it may claim, what it reports, and when it holds back."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from tests.support.memorycontrol import DESCRIBED, MemoryControl
from tests.support.relays import until, virtual
from watchrelay.contract.control import claim_value, control_key, control_value
from watchrelay.contract.wire import Batch, WireRecord
from watchrelay.core.errors import SinkUnavailable
from watchrelay.daemon.assignor import (
    MemberAssignment,
    MemberMetadata,
    decode_assignment,
    decode_metadata,
    encode,
)
from watchrelay.daemon.ownership import retirement_holder
from watchrelay.daemon.sharing import AWAIT_ASSIGNMENT_S, SURE_S, UNFIT_AFTER_S, Sharing
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

BALANCE_AFTER_S = 60.0


class ScriptedGroup:
    """A group that does what the test says."""

    def __init__(
        self,
        *,
        metadata: Callable[[], bytes],
        assign: Callable[[Mapping[str, bytes]], Mapping[str, bytes]],
        assigned: Callable[[int, bytes], None],
        lost: Callable[[], None],
    ) -> None:
        self.generation, self.leads, self.doubtful, self.silent = -1, False, False, False
        self.rejoins = self.left = 0
        self._metadata, self.assign, self._assigned, self.lose = metadata, assign, assigned, lost

    def rejoin(self) -> None:
        self.rejoins += 1

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def leave(self, *, within_s: float) -> None:
        self.left += 1

    def reported(self) -> MemberMetadata:
        """What the replica reports as it joins."""
        metadata = decode_metadata(self._metadata())
        assert metadata is not None
        return metadata

    def give(
        self, own: dict[str, str], *others: str, joining: bool = True, warm: tuple[str, ...] = ()
    ) -> None:
        """The next generation. `others`: holders of the other members; `joining` False: the replica
        joined before what happened last."""
        if joining:
            self._metadata()
        self.generation += 1
        owners: dict[str, tuple[str, ...]] = {"h": tuple(own), **dict.fromkeys(others, ())}
        self._assigned(self.generation, encode(MemberAssignment(own, warm, owners)))

    def lead(self, *others: MemberMetadata) -> None:
        """The next generation, as this replica decides it for itself and these members."""
        self.leads = True
        members = {each.holder: encode(each) for each in others}
        given = self.assign({"h": self._metadata(), **members})
        self.generation += 1
        self._assigned(self.generation, given["h"])


class HeldSink:
    """Knows the end of the control topic, unless it is away."""

    def __init__(self, control: MemoryControl) -> None:
        self._control = control
        self.away = False
        self.resets = self.resumes = 0
        self.held: Callable[[], bool] = lambda: False

    def hold_while(self, held: Callable[[], bool]) -> None:
        self.held = held

    def resume(self) -> None:
        self.resumes += 1

    def reset(self) -> None:
        self.resets += 1

    async def end_offset(self, topic: str, partition: int) -> int:
        await asyncio.sleep(0.01)
        if self.away:
            raise SinkUnavailable("no broker answers")
        return len(self._control.records)


class KnownCopy:
    """A copy that is as the test sets it."""

    def __init__(self, *, may_be_claimed: bool = True) -> None:
        self.may_be_claimed = may_be_claimed
        self.wanted: list[bool] = []

    def want(self, wanted: bool) -> None:
        if self.wanted[-1:] != [wanted]:
            self.wanted.append(wanted)


class Replica:
    """`Sharing` with everything around it."""

    def __init__(self) -> None:
        self.topic, self.statuses, self.metrics = MemoryControl(), StatusRegistry(), Metrics()
        self.sink = HeldSink(self.topic)
        self.groups: list[ScriptedGroup] = []
        self.api_answers = True
        self.ended: list[str] = []
        loop = asyncio.get_running_loop()
        self.sharing = Sharing(
            "h",
            make_group=self._make_group,
            control=self.topic.control,
            sink=self.sink,
            metrics=self.metrics,
            statuses=self.statuses,
            api_answers=self._answers,
            balance_after_s=BALANCE_AFTER_S,
            standbys=1,
            rng=random.Random(1),
            now_s=loop.time,
            boot_s=loop.time,
        )
        self.group = self.groups[0]
        self.plan("pods", "jobs")

    def _make_group(
        self,
        *,
        metadata: Callable[[], bytes],
        assign: Callable[[Mapping[str, bytes]], Mapping[str, bytes]],
        assigned: Callable[[int, bytes], None],
        lost: Callable[[], None],
    ) -> ScriptedGroup:
        group = ScriptedGroup(metadata=metadata, assign=assign, assigned=assigned, lost=lost)
        self.groups.append(group)
        return group

    async def _answers(self) -> bool:
        await asyncio.sleep(0.1)
        return self.api_answers

    def plan(self, *streams: str, revision: int = 1) -> None:
        plans = dict.fromkeys(streams, "plan")
        self.sharing.plan(plans, revision=revision, config_hash="c")

    async def write(self, stream: str = "pods") -> int:
        """Claim and write a stream."""
        self.sharing.claiming(stream, lambda: self.ended.append(stream))
        epoch = await self.topic.claim(stream)
        self.sharing.claimed(stream, epoch)
        return epoch

    async def claimed_by(self, holder: str, stream: str = "pods") -> None:
        """Another relay claims a stream."""
        instance = f"instance {len(self.topic.records)}"
        value = claim_value(holder, instance, "1", 0, None)
        record = WireRecord(control_key("claim", stream), control_value(value), [])
        await self.topic.deliver(Batch("control", 0, [record], stream))

    async def described(self, stream: str = "pods") -> None:
        value = {**DESCRIBED, "epochBase": 1}
        record = WireRecord(control_key("stream", stream), control_value(value), [])
        await self.topic.deliver(Batch("control", 0, [record], stream))


@asynccontextmanager
async def running() -> AsyncIterator[Replica]:
    replica = Replica()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(replica.sharing.run(), name="sharing")
        await asyncio.sleep(0.2)
        yield replica
        task.cancel()


# ---- what may be claimed -------------------------------------------------------------------------


@virtual
async def test_a_stream_is_claimed_once_it_is_assigned_and_no_other() -> None:
    async with running() as replica, asyncio.TaskGroup() as tasks:
        waits = {
            stream: tasks.create_task(replica.sharing.assigned(stream, KnownCopy()))
            for stream in ("pods", "jobs")
        }
        await asyncio.sleep(100.0)
        assert not any(wait.done() for wait in waits.values())
        replica.group.give({"pods": ""})
        await asyncio.sleep(0)
        assert waits["pods"].result() == ""
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
        assert await replica.sharing.assigned("pods", KnownCopy()) == "other"
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
        assert not replica.sharing.lost("pods"), "a member of the group has it"
        assert replica.group.rejoins
        replica.sharing.ended("pods")
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
        replica.sharing.claiming("pods", lambda: replica.ended.append("pods"))
        await replica.write("jobs")
        replica.group.lose()
        assert replica.ended == ["pods"], "what is written is written on"
        assert not replica.sharing.may_claim("pods")
        replica.group.give({"pods": ""})
        assert replica.sharing.may_claim("pods")


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
        assert replica.sharing.may_finish("pods")


@virtual
async def test_an_owner_that_reads_the_claim_before_its_assignment_finishes_once_that_comes() -> (
    None
):
    async with running() as replica, asyncio.TaskGroup() as tasks:
        replica.group.give({"pods": ""}, "other")
        await replica.write()
        await replica.claimed_by("other")
        assert replica.ended == ["pods"]
        assert replica.sharing.may_finish("pods"), "a member claims what it was assigned"
        finishing = tasks.create_task(replica.sharing.handed_over("pods"))
        await asyncio.sleep(AWAIT_ASSIGNMENT_S / 2)
        assert not finishing.done()
        replica.group.give({}, "other")
        assert await finishing
        assert replica.sharing.may_finish("pods")


@virtual
async def test_an_assignment_that_does_not_come_is_awaited_for_a_moment_only() -> None:
    loop = asyncio.get_running_loop()
    async with running() as replica:
        replica.group.give({"pods": ""}, "other")
        await replica.write()
        await replica.claimed_by("other")
        assert replica.sharing.may_finish("pods")
        began_s = loop.time()
        assert not await replica.sharing.handed_over("pods")
        assert loop.time() - began_s <= AWAIT_ASSIGNMENT_S + 0.01
        assert not replica.sharing.may_finish("pods")


@virtual
async def test_in_doubt_no_assignment_is_awaited() -> None:
    async with running() as replica:
        replica.group.give({"pods": ""}, "other")
        await replica.write()
        replica.group.doubtful = True
        replica.sink.away = True
        await replica.claimed_by("other")
        assert not replica.sharing.may_finish("pods")
        assert not await replica.sharing.handed_over("pods")


# ---- warm copies ---------------------------------------------------------------------------------


@virtual
async def test_a_copy_is_wanted_while_the_stream_is_assigned_warm_or_to_be_written() -> None:
    async with running() as replica, asyncio.TaskGroup() as tasks:
        copy = KnownCopy(may_be_claimed=False)
        waiting = tasks.create_task(replica.sharing.assigned("pods", copy))
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
        waiting = tasks.create_task(replica.sharing.assigned("pods", copy))
        replica.group.give({"pods": "other"}, "other")
        await asyncio.sleep(100.0)
        assert not waiting.done(), "the writer goes on"
        copy.may_be_claimed = True
        replica.sharing.warmed("pods", True)
        assert await waiting == "other"
        copy.may_be_claimed = False
        replica.group.give({"pods": ""}, "other")
        assert await replica.sharing.assigned("pods", copy) == "", "nobody writes it"


@virtual
async def test_warm_streams_are_reported_until_their_copies_are_dropped() -> None:
    async with running() as replica:
        replica.sharing.warmed("pods", True)
        replica.sharing.warmed("jobs", True)
        assert replica.group.reported().warm == ("jobs", "pods")
        replica.sharing.warmed("jobs", False)
        assert replica.group.reported().warm == ("pods",)


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
            assert not replica.sharing.may_finish("pods"), "no replica was assigned it"
            assert replica.sharing.lost("pods")
            replica.sharing.ended("pods")
            lost_s = loop.time()
            assert "pods" not in replica.group.reported().plans
            rejoins = replica.group.rejoins
            await until(lambda before=rejoins: replica.group.rejoins > before, steps=10_000)  # type: ignore[misc]
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
        replica.sharing.lost("pods")
        replica.sharing.ended("pods")
        await asyncio.sleep(10_000.0)
        assert set(replica.group.reported().plans) == {"jobs"}
        replica.plan("jobs")
        replica.plan("pods", "jobs")
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
async def test_streams_of_others_are_shown_with_their_owners_and_objects() -> None:
    async with running() as replica:
        status = replica.statuses.open("pods")
        status.state = "standby"
        await replica.described()
        await replica.claimed_by("other")
        index = WireRecord(control_key("snapshot", "pods"), control_value({"count": 7}), [])
        await replica.topic.deliver(Batch("control", 0, [index], "pods"))
        await until(lambda: status.objects == 7)
        assert (status.owner, status.role) == ("other", "standby")
        status.warm = True
        assert status.role == "warm"


# ---- what is reported ----------------------------------------------------------------------------


@virtual
async def test_a_replica_that_the_api_server_does_not_answer_becomes_unfit_and_fit_again() -> None:
    async with running() as replica:
        assert replica.group.reported().fit
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


@virtual
async def test_a_changed_plan_joins_again_and_is_newer() -> None:
    async with running() as replica:
        first = replica.group.reported()
        rejoins = replica.group.rejoins
        replica.plan("pods", "jobs")
        assert replica.group.rejoins == rejoins
        replica.plan("pods", revision=2)
        second = replica.group.reported()
        assert replica.group.rejoins == rejoins + 1
        assert second.config_order > first.config_order
        assert second.counter > first.counter
        assert set(second.plans) == {"pods"}


@virtual
async def test_a_stream_is_assigned_since_the_first_generation_that_has_it() -> None:
    async with running() as replica:
        replica.group.give({"pods": ""})
        replica.group.give({"pods": "", "jobs": ""})
        assert replica.group.reported().assigned == {"pods": 0, "jobs": 1}
        replica.group.give({"jobs": ""})
        assert replica.group.reported().assigned == {"jobs": 1}


@virtual
async def test_an_assignment_that_cannot_be_read_assigns_nothing_and_ends_nothing() -> None:
    async with running() as replica:
        replica.group.give({"pods": "", "jobs": ""})
        await replica.write()
        replica.group._assigned(7, b"odd")
        assert not replica.sharing.may_claim("jobs")
        assert not replica.ended
        assert "another program" in replica.statuses.problems["assignment"]
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
        assert not replica.sharing.lost("pods"), "its holder is known all the same"


@virtual
async def test_beside_a_leader_of_another_release_the_group_is_shown_as_far_as_it_is_known() -> (
    None
):
    async with running() as replica:
        older = zlib.compress(b'[{"pods":""},[],{"h":["pods"],"other":[]}]')
        replica.group._assigned(3, older)
        shown = replica.statuses.group
        assert shown is not None
        assert (shown.generation, shown.leader, shown.members) == (3, "", ())
        assert replica.sharing.may_claim("pods")
        newer = b'[{"jobs":""},[],{},["other",false,[["other",[1,2],"c",true,false,0,"new"]],7],8]'
        replica.group._assigned(4, zlib.compress(newer))
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
        replica.statuses.open("pods").acked(lag_s=None, rest=False)
        assert taken_over(replica) == {"handover": 0, "failover": 0}, "nobody wrote it before"
        await replica.claimed_by("other")
        replica.sharing.lost("pods")
        replica.sharing.ended("pods")
        for own, kind in (({"pods": "other"}, "handover"), ({"pods": ""}, "failover")):
            replica.group.give({}, "other")
            replica.group.give(own, "other")
            await asyncio.sleep(3.0)
            await replica.write()
            await asyncio.sleep(1.0)
            for _ in range(2):
                replica.statuses.open("pods").acked(lag_s=None, rest=False)
            assert taken_over(replica)[kind] == 4.0
            await replica.claimed_by("other")
            replica.sharing.lost("pods")
            replica.sharing.ended("pods")


# ---- doubt ---------------------------------------------------------------------------------------


@virtual
async def test_in_doubt_nothing_leaves_until_the_control_topic_was_read_to_its_end() -> None:
    async with running() as replica:
        replica.group.give({"pods": ""})
        await replica.write()
        assert not replica.sink.held()
        replica.group.doubtful = True
        assert replica.sink.held()
        await asyncio.sleep(0.1)
        assert not replica.sink.held(), "nobody has claimed"
        assert replica.sink.resumes == 1
        await asyncio.sleep(SURE_S)
        assert replica.sink.held(), "it asks again"
        await asyncio.sleep(0.1)
        assert replica.sink.resumes == 2
        assert not replica.ended


@virtual
async def test_what_was_claimed_meanwhile_ends_without_a_drain_before_anything_leaves() -> None:
    async with running() as replica:
        replica.group.give({"pods": "", "jobs": ""})
        await replica.write()
        await replica.write("jobs")
        replica.topic.deaf = True
        await replica.claimed_by("other")
        replica.group.doubtful = True
        assert replica.sink.held()
        replica.group.give({"jobs": ""}, "other")
        await asyncio.sleep(1.0)
        assert replica.sink.held(), "the claim was not read yet"
        replica.topic.read_all()
        await asyncio.sleep(0.1)
        assert replica.ended == ["pods"]
        assert not replica.sharing.may_finish("pods")
        assert replica.sink.held(), "its writer has not ended"
        replica.sharing.ended("pods")
        await asyncio.sleep(0.1)
        assert not replica.sink.held()
        assert replica.ended == ["pods"]


@virtual
async def test_where_the_claims_cannot_be_read_the_connections_are_reset() -> None:
    async with running() as replica:
        replica.group.give({"pods": ""})
        await replica.write()
        replica.sink.away = True
        replica.group.doubtful = True
        assert replica.sink.held()
        await asyncio.sleep(2.5)
        assert replica.sink.resets == 1
        assert replica.sink.held()
        replica.group.doubtful = False  # a heartbeat of the same generation is answered
        await asyncio.sleep(2.5)
        assert not replica.sink.held()


@virtual
async def test_a_new_generation_alone_ends_no_doubt() -> None:
    async with running() as replica:
        replica.group.give({"pods": ""})
        await replica.write()
        replica.sink.away = True
        replica.group.doubtful = True
        assert replica.sink.held()
        replica.group.give({"pods": ""})
        replica.group.doubtful = False
        await asyncio.sleep(60.0)
        assert replica.sink.held()
        replica.sink.away = False
        await asyncio.sleep(3.0)
        assert not replica.sink.held()


@virtual
async def test_a_replica_that_writes_nothing_is_in_no_doubt() -> None:
    async with running() as replica:
        replica.group.doubtful = True
        assert not replica.sink.held()


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
        replica.sharing.ended("pods")
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
