"""The phases of a stream on a replica: what it reports in each, and whether the group decides again
when its writer has ended; and the tenure of a lone relay."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.support.relays import until, virtual
from tests.support.sharingreplica import KnownCopy, Replica, running
from watchrelay.model.progress import StreamProgress
from watchrelay.replicas.ownership import Sole
from watchrelay.replicas.sharing import Phase

OURS, HANDED_OVER, NOT_OURS = {"pods": ""}, {"pods": "other"}, dict[str, str]()


class Case(NamedTuple):
    """The stream is assigned so, and then this happens."""

    assigned: dict[str, str]
    events: tuple[str | dict[str, str], ...]
    phase: Phase
    decides_again: bool
    """Who is to write the stream waits for this replica to hand it over."""


CASES = {
    "another has it": Case(NOT_OURS, (), "standby", False),
    "claimed, nobody hands it over": Case(OURS, ("claim",), "claiming", False),
    "claimed, another hands it over": Case(HANDED_OVER, ("claim",), "claiming", True),
    "taken away before it is claimed": Case(OURS, ("claim", NOT_OURS), "lost", True),
    "another claims it first": Case(OURS, ("claim", "claimed by other", "lose"), "lost", False),
    "written": Case(OURS, ("write",), "writing", False),
    "written, and a member no longer": Case(OURS, ("write", "forgotten"), "writing", False),
    "written, taken away": Case(OURS, ("write", NOT_OURS), "writing", True),
    "written, the successor had begun": Case(OURS, ("write", HANDED_OVER), "writing", True),
    "handed over": Case(OURS, ("write", NOT_OURS, "claimed by other"), "superseded", False),
    "claimed by an outsider": Case(OURS, ("write", "claimed by x", "lose"), "superseded", False),
    "leaves, and is not taken over": Case(OURS, ("write", NOT_OURS, "leave"), "writing", False),
}


async def happens(replica: Replica, event: str | dict[str, str]) -> None:
    tenure = replica.tenure()
    match event:
        case dict():
            replica.group.give(event, "other")
        case "claim":
            tenure.begin()
        case "write":
            await replica.write()
        case "lose":
            tenure.lose()
        case "forgotten":
            replica.group.lose()
        case "leave":
            await replica.sharing.hand_over(within_s=0.0)
        case _:
            await replica.claimed_by(event.removeprefix("claimed by "))


@pytest.mark.parametrize("name", CASES)
@virtual
async def test_each_phase_is_reported_and_ends(name: str) -> None:
    case = CASES[name]
    async with running() as replica:
        tenure = replica.tenure()
        replica.group.give(case.assigned, "other")
        for event in case.events:
            await happens(replica, event)
        await until(lambda: tenure.phase == case.phase)
        over = case.phase in ("lost", "superseded")
        assert tenure.over is over
        assert tenure.ends_by_claim is (case.phase != "standby")
        assert bool(replica.ended) is (
            over and not (case.phase == "lost" and "lose" in case.events)
        )
        reported = replica.group.reported()
        assert ("pods" in reported.writing) is (case.phase == "writing")
        assert ("pods" in reported.beginning) is (case.phase in ("claiming", "lost"))
        rejoins = replica.group.rejoins
        assert tenure.ended() is over
        assert replica.group.rejoins - rejoins == case.decides_again
        assert (tenure.phase, replica.sharing.tenures) == ("standby", {})


@virtual
async def test_a_lone_relay_owns_its_streams_until_another_claims_them() -> None:
    async with running() as replica:
        tenure = Sole(replica.topic.control).tenure("pods", StreamProgress(), lambda: None)
        assert not await tenure.assigned(KnownCopy(), lambda: None)
        tenure.epoch = await replica.topic.claim("pods")
        assert not any((tenure.superseded, tenure.may_finish(), tenure.ends_by_claim))
        await replica.claimed_by("other")
        assert tenure.superseded
        assert tenure.lose()
        assert not tenure.over, "the process ends"
        assert not tenure.ended()


@virtual
async def test_whether_a_writer_must_stop_changes_with_each_claim() -> None:
    async with running() as replica:
        replica.group.give(OURS, "other")
        tenure, epoch = replica.tenure(), await replica.write()
        asked = [tenure.must_stop(epoch)]
        await replica.described()
        asked.append(tenure.must_stop(epoch))
        replica.group.give(NOT_OURS, "other")
        await replica.claimed_by("other")
        asked.append(tenure.must_stop(epoch))
        replica.group.doubtful = True
        asked.append(tenure.must_stop(epoch))
        assert asked == [False, False, False, True], "it may finish, unless it is in doubt"
