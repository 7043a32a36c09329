"""One replica in a scripted group: when it holds back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.relays import virtual
from tests.support.sharingreplica import Replica, running
from watchrelay.replicas.doubt import SURE_S


@asynccontextmanager
async def writing_both() -> AsyncIterator[Replica]:
    """A replica that writes pods and jobs."""
    async with running() as replica:
        replica.group.give({"pods": "", "jobs": ""})
        await replica.write()
        await replica.write("jobs")
        yield replica


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
        await asyncio.sleep(SURE_S + 0.6)
        assert replica.sink.resumes == 2, "it looks again"
        assert not replica.sink.held()
        assert not replica.ended


@virtual
async def test_what_was_claimed_meanwhile_ends_without_a_drain_before_anything_leaves() -> None:
    async with writing_both() as replica:
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
        assert not replica.tenure().may_finish()
        assert replica.sink.held(), "its writer has not ended"
        replica.tenure().ended()
        await asyncio.sleep(0.1)
        assert not replica.sink.held()
        assert replica.ended == ["pods"]


@virtual
async def test_what_is_not_claimed_when_a_doubt_begins_is_claimed_by_a_newer_assignment_only() -> (
    None
):
    async with running() as replica:
        replica.group.give({"pods": "", "jobs": ""})
        await replica.write()
        replica.tenure("jobs").begin()
        rejoins = replica.group.rejoins
        replica.group.doubtful = True
        assert replica.sink.held()
        assert replica.ended == ["jobs"]
        assert replica.group.rejoins == rejoins + 1
        await asyncio.sleep(0.1)
        assert replica.sink.held(), "that claim may be on its way yet"
        replica.tenure("jobs").ended()
        await asyncio.sleep(0.1)
        assert not replica.sink.held()
        assert not replica.sharing.may_claim("jobs")
        assert replica.sharing.may_claim("pods"), "it is written"
        replica.answer()
        replica.group.give({"pods": "", "jobs": ""})
        assert replica.sharing.may_claim("jobs")


@virtual
async def test_what_is_claimed_after_the_look_ends_without_a_drain_too() -> None:
    async with running() as replica:
        replica.group.give({"pods": ""}, "other")
        await replica.write()
        replica.group.doubtful = True
        assert replica.sink.held()
        await asyncio.sleep(0.1)
        assert not replica.sink.held(), "nobody has claimed"
        await replica.claimed_by("other")
        assert replica.ended == ["pods"]
        assert not replica.tenure().may_finish()
        assert not await replica.tenure().handed_over()


@virtual
async def test_where_the_claims_cannot_be_read_the_connections_are_reset_though_nothing_is_sent() -> (
    None
):
    async with running() as replica:
        replica.group.give({"pods": ""})
        await replica.write()
        replica.sink.away = True
        replica.group.doubtful = True
        await asyncio.sleep(3.0)
        assert replica.sink.resets == 1
        assert replica.sink.held()
        replica.answer()
        await asyncio.sleep(2.5)
        assert not replica.sink.held()


@virtual
async def test_where_a_stream_is_being_moved_an_answered_heartbeat_alone_ends_no_doubt() -> None:
    async with writing_both() as replica:
        replica.group.give({"jobs": ""}, "other")
        replica.topic.deaf = True
        await replica.claimed_by("other")
        replica.group.doubtful = True
        assert replica.sink.held()
        replica.answer()
        await asyncio.sleep(60.0)
        assert replica.sink.held(), "the claim of the successor was not read yet"
        replica.topic.read_all()
        await asyncio.sleep(3.0)
        assert replica.ended == ["pods"]
        replica.tenure().ended()
        await asyncio.sleep(0.1)
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
        replica.answer()
        await asyncio.sleep(60.0)
        assert replica.sink.held()
        replica.sink.away = False
        await asyncio.sleep(3.0)
        assert not replica.sink.held()


@virtual
async def test_one_that_was_suspended_while_a_stream_was_moved_reads_the_claims_before_it_writes() -> (
    None
):
    async with writing_both() as replica:
        replica.topic.deaf = True
        await replica.claimed_by(
            "other"
        )  # its session has not ended, and it has a heartbeat answered
        replica.suspended_s = 0.4
        assert not replica.sink.held(), "its successor still waits for the release"
        replica.suspended_s = 1.6
        assert replica.sink.held()
        await asyncio.sleep(1.0)
        assert replica.sink.held(), "the claim was not read yet"
        replica.topic.read_all()
        await asyncio.sleep(0.1)
        assert replica.ended == ["pods"]
        assert not replica.tenure().may_finish()
        replica.tenure().ended()
        await asyncio.sleep(0.1)
        assert not replica.sink.held()
        assert replica.sharing.may_claim("jobs"), "the assignment holds"


@virtual
async def test_one_that_was_suspended_is_sure_by_a_heartbeat_that_was_sent_since_and_no_other() -> (
    None
):
    async with writing_both() as replica:
        replica.answer()
        replica.sink.away = True
        replica.suspended_s = 1.6
        assert replica.sink.held()
        await asyncio.sleep(60.0)
        assert replica.sink.held(), "its session has not ended, but that may be of before"
        replica.answer()
        await asyncio.sleep(3.0)
        assert not replica.sink.held()


@virtual
async def test_one_that_sends_nothing_notices_too_that_it_was_suspended() -> None:
    async with running() as replica:
        replica.group.give({"pods": ""})
        await replica.write()
        replica.suspended_s = 3.0
        await asyncio.sleep(0.6)
        assert replica.sink.resumes == 1
        await asyncio.sleep(10.0)
        assert replica.sink.resumes == 1, "once"


@virtual
async def test_one_that_is_suspended_again_behind_what_it_has_read_reads_the_claims_again() -> None:
    async with writing_both() as replica:
        await replica.claimed_by("other", stream="jobs")
        replica.suspended_s = 1.6
        assert replica.sink.held()
        await asyncio.sleep(0.1)
        assert replica.ended == ["jobs"]
        assert replica.sink.held(), "its writer has not ended"
        replica.topic.deaf = True
        await replica.claimed_by("other")
        replica.suspended_s = 3.2
        replica.tenure("jobs").ended()
        await asyncio.sleep(1.0)
        assert replica.sink.held(), (
            "the claims were read before it was suspended for the second time"
        )
        replica.topic.read_all()
        await asyncio.sleep(0.1)
        assert replica.ended == ["jobs", "pods"]
        replica.tenure().ended()
        await asyncio.sleep(0.1)
        assert not replica.sink.held()


@virtual
async def test_one_that_is_suspended_again_for_longer_than_a_session_ends_the_claim_in_flight() -> (
    None
):
    async with running() as replica:
        replica.group.give({"pods": "", "jobs": ""})
        await replica.write()
        replica.tenure("jobs").begin()
        rejoins = replica.group.rejoins
        replica.topic.deaf = True
        await replica.claimed_by("other")
        replica.suspended_s = 1.6
        assert replica.sink.held()
        await asyncio.sleep(0.1)
        assert not replica.ended, "its session has not ended: the assignment holds"
        replica.suspended_s = 9.0
        replica.group.doubtful = True
        assert replica.sink.held()
        assert replica.ended == ["jobs"]
        assert replica.group.rejoins == rejoins + 1
        replica.tenure("jobs").ended()
        await asyncio.sleep(3.0)
        assert replica.sink.held(), "the claims were not read yet"
        replica.answer()
        replica.topic.read_all()
        await asyncio.sleep(3.0)
        assert replica.ended == ["jobs", "pods"]
        assert replica.sink.held(), "its writer has not ended"
        replica.tenure().ended()
        await asyncio.sleep(0.1)
        assert not replica.sink.held()
        assert not replica.sharing.may_claim("jobs")


@virtual
async def test_a_new_generation_ends_no_doubt_though_it_is_suspended_again_in_that() -> None:
    async with running() as replica:
        replica.group.give({"pods": ""})
        await replica.write()
        replica.sink.away = True
        replica.suspended_s = 9.0
        replica.group.doubtful = True
        assert replica.sink.held()
        replica.group.give({"pods": "other"}, "other")
        replica.answer()
        replica.suspended_s = 18.0
        assert replica.sink.held()
        await asyncio.sleep(60.0)
        assert replica.sink.held(), "the other may have claimed it, and waits for nobody"
        replica.sink.away = False
        await asyncio.sleep(3.0)
        assert not replica.sink.held()


@virtual
async def test_a_replica_that_writes_nothing_is_in_no_doubt() -> None:
    async with running() as replica:
        replica.group.doubtful = True
        assert not replica.sink.held()
