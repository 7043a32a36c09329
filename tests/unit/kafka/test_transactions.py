"""A stream's transactions, with a coordinator and leaders whose answers the test gives: what is sent
again, when the id is taken, and when a receipt is given. Virtual time."""

import asyncio

import pytest

from tests.support.relays import until, virtual
from tests.unit.kafka.transactionstage import (
    AWAY,
    FORMER,
    ID,
    NOT_LEADER,
    TOO_LARGE,
    staged,
)
from watchrelay.contract.wire import Batch, WireRecord
from watchrelay.core.errors import Fenced, RecordTooLarge
from watchrelay.kafka.transactions import ANSWERS, Answer

AGAIN = sorted(code for code, answer in ANSWERS.items() if answer is not Answer.DONE)
OVER = [47, 48, 49, 59, 90, 120]


@virtual
async def test_the_claim_is_read_before_and_behind_the_ids_are_taken() -> None:
    async with staged(begun=False) as stage:
        await stage.begin(FORMER)
        assert stage.seen == ["look", f"take {FORMER}", f"take {ID}", "look"]


@virtual
async def test_what_is_delivered_at_a_time_is_one_transaction_acknowledged_at_its_commit() -> None:
    async with staged() as stage:
        stage.script["commit"] += [51] * 20
        first = stage.deliver(0, 1)
        await until(lambda: "commit by 1" in stage.seen)
        assert not any(each.done() for each in first)
        second = stage.deliver(2)
        receipts = [await each for each in first + second]
        assert [each.offsets for each in receipts] == [[0, 1], [2, 3], [4, 5]]
        writes = ["write 0: 0 by 1", "write 1: 0 by 1"]
        commits = ["commit by 1"] * 21
        assert stage.seen == [
            *("add 0,1 by 1", *writes, *commits),
            *("add 2 by 1", "write 2: 0 by 1", "commit by 1"),
        ]
        assert stage.ended("committed") == 2


@virtual
async def test_what_other_streams_and_the_control_topic_get_is_in_no_transaction() -> None:
    async with staged() as stage:
        record = WireRecord(b"a", b"b", [])
        for batch in (Batch("t", 0, [record], "secrets"), Batch("control", 0, [record], "pods")):
            assert (await stage.sink.deliver(batch)).offsets
        assert stage.seen == ["write 0: 0 by 0", "write 0: 0 by 0"]


@virtual
async def test_a_transaction_that_is_being_ended_is_waited_for_in_milliseconds() -> None:
    async with staged() as stage:
        stage.script["add"] += [51] * 5
        began_s = asyncio.get_running_loop().time()
        (delivery,) = stage.deliver(0)
        await delivery
        assert asyncio.get_running_loop().time() - began_s < 0.025


@pytest.mark.parametrize("code", AGAIN)
@pytest.mark.parametrize("request_", ["take", "add", "commit"])
@virtual
async def test_after_these_codes_the_same_is_asked_again(request_: str, code: int) -> None:
    async with staged(begun=False) as stage:
        stage.script[request_] += [code, code]
        await stage.begin()
        (delivery,) = stage.deliver(0)
        assert (await delivery).offsets == [0, 1]
        assert sum(each.startswith(request_) for each in stage.seen) == 3
        assert stage.epoch == 1, "the id was taken once"
        assert not stage.statuses.problems


@pytest.mark.parametrize("code", OVER)
@pytest.mark.parametrize("request_", ["add", "write0", "commit"])
@virtual
async def test_after_these_codes_the_id_is_taken_and_all_is_written_again(
    request_: str, code: int
) -> None:
    async with staged() as stage:
        stage.script[request_].append(code)
        deliveries = stage.deliver(0, 1)
        for each in deliveries:
            await each
        assert stage.looks == 2
        assert stage.seen[-4:] == [
            "add 0,1 by 2",
            "write 0: 0 by 2",
            "write 1: 0 by 2",
            "commit by 2",
        ]
        assert (stage.ended("aborted"), stage.ended("committed")) == (1, 1)


@virtual
async def test_a_coordinator_that_is_known_is_asked_while_no_other_broker_is() -> None:
    async with staged() as stage:
        await stage.deliver(0)[0]
        stage.seen.clear()
        own = stage.sink._transactions["t", "pods"]
        own._access.close()
        async with own._access._reaching, asyncio.timeout(60.0):  # no broker answers
            assert (await own._ask(lambda known: known.commit((7, 1)), ID))[0] is Answer.DONE
        assert stage.seen == ["commit by 1"]


@pytest.mark.parametrize(("answers", "others"), [(3, 0), (6, 3)])
@virtual
async def test_a_broker_that_names_a_former_coordinator_again_and_again_is_left_for_another(
    answers: int, others: int
) -> None:
    async with staged() as stage:
        stage.script["add"] += [16] * answers
        (delivery,) = stage.deliver(0)
        assert (await delivery).offsets == [0, 1]
        assert stage.others_asked == others


@virtual
async def test_an_id_that_cannot_be_taken_is_asked_for_again() -> None:
    async with staged(begun=False) as stage:
        stage.script["take"] += [90, 47, AWAY]
        await stage.begin()
        assert stage.seen == ["look", *[f"take {ID}"] * 4, "look"]


@virtual
async def test_a_commit_without_an_answer_is_asked_for_again_and_then_unknown() -> None:
    async with staged() as stage:
        stage.script["commit"] += [AWAY, 0, AWAY, 47]
        for _ in range(2):
            (delivery,) = stage.deliver(0)
            await delivery
        commits = [each for each in stage.seen if each.startswith("commit")]
        assert commits == [*["commit by 1"] * 4, "commit by 2"]
        assert (stage.ended("unknown"), stage.ended("committed")) == (1, 2)


@virtual
async def test_a_batch_that_is_refused_is_handed_back_and_the_others_are_committed() -> None:
    async with staged() as stage:
        stage.script["write0"] += [TOO_LARGE] * 3
        refused, taken = stage.deliver(0, 1)
        assert (await taken).offsets
        with pytest.raises(RecordTooLarge):
            await refused
        assert "write 1: 0 by 1" in stage.seen
        assert stage.ended("aborted") == 0


@virtual
async def test_a_lost_link_sends_the_same_again_within_the_transaction() -> None:
    async with staged() as stage:
        stage.script["write0"] += [NOT_LEADER, NOT_LEADER]
        (delivery,) = stage.deliver(0)
        assert (await delivery).offsets == [4, 5]
        assert stage.seen.count("write 0: 0 by 1") == 3
        assert stage.ended("committed") == 1


@virtual
async def test_a_partition_without_a_leader_is_in_no_transaction_and_the_others_go_on() -> None:
    async with staged() as stage:
        stage.leaderless = {0}
        (stuck,) = stage.deliver(0)
        async with asyncio.timeout(1.0):
            for _ in range(4):
                (led,) = stage.deliver(1)
                await led
        await asyncio.sleep(30.0)
        assert not stuck.done()
        assert "kafka" in stage.statuses.problems
        stage.leaderless = set()
        assert (await stuck).offsets
        assert (stage.ended("committed"), stage.ended("aborted")) == (5, 0)


@virtual
async def test_a_partition_whose_leader_is_lost_within_a_transaction_is_in_no_later_one() -> None:
    async with staged() as stage:
        (delivery,) = stage.deliver(0)
        await delivery
        stage.leaderless = {0}
        stage.script["write0"].append(NOT_LEADER)
        stuck, led = stage.deliver(0, 1)
        async with asyncio.timeout(15.5):
            await led
        assert stage.seen[-3:] == ["add 1 by 2", "write 1: 0 by 2", "commit by 2"]
        assert not stuck.done()
        stage.leaderless = set()
        assert (await stuck).offsets
        assert (stage.ended("committed"), stage.ended("aborted")) == (3, 1)


@virtual
async def test_a_partition_whose_leader_is_silent_holds_up_the_others_for_one_transaction() -> None:
    async with staged(request_timeout_s=15.0) as stage:
        (delivery,) = stage.deliver(9)
        await delivery
        stage.away = {1}
        stage.script["write9"] += [AWAY] * 2
        stuck, led = stage.deliver(9, 1)
        async with asyncio.timeout(15.5):
            await led
        assert not stuck.done()
        stage.away = set()
        stage.script["write9"].clear()
        assert (await stuck).offsets
        assert stage.ended("aborted") == 1


@virtual
async def test_after_a_transaction_that_took_too_long_half_of_it_is_next_and_then_the_others() -> (
    None
):
    async with staged(request_timeout_s=15.0) as stage:
        stage.at_once = 2
        deliveries = stage.deliver(0, 1, 2, 3)
        await asyncio.sleep(1.0)
        async with asyncio.timeout(40.0):
            await asyncio.wait(deliveries[:2])
            for each in deliveries + stage.deliver(0, 1):
                assert (await each).offsets
        assert [each[4:-5] for each in stage.seen if each.startswith("add")] == [
            "0,1,2,3", "0,1", "2,3,0,1", "2,3", "0,1",
        ]  # fmt: skip
        assert (stage.ended("aborted"), stage.ended("committed")) == (2, 3)


@virtual
async def test_fenced_and_superseded_ends_the_stream() -> None:
    async with staged() as stage:
        stage.script["commit"].append(90)
        stage.is_ours = False
        (delivery,) = stage.deliver(0)
        with pytest.raises(Fenced):
            await delivery
        assert stage.epoch == 1, "the id was not taken again"
        (later,) = stage.deliver(1)
        with pytest.raises(Fenced):
            await later


@virtual
async def test_an_owner_that_claims_while_the_id_is_taken_is_found_by_the_second_look() -> None:
    async with staged(begun=False) as stage:
        ours = [True, False]

        async def look() -> bool:
            return ours.pop(0)

        stage.look = look  # type: ignore[method-assign]
        with pytest.raises(Fenced):
            await stage.begin()
        assert stage.seen == [f"take {ID}"]


@virtual
async def test_a_missing_right_is_named_with_its_cure() -> None:
    async with staged(begun=False) as stage:
        stage.script["take"] += [53] * 3
        begun = asyncio.get_running_loop().create_task(stage.begin())
        await asyncio.sleep(1.0)
        assert (
            "grant WRITE and DESCRIBE on it or its prefix"
            in stage.statuses.problems["kafka"].message
        )
        await begun
        assert not stage.statuses.problems


@pytest.mark.parametrize(
    ("answer", "reason"),
    [(15, "replication.factor"), (51, "transaction"), (47, "epoch"), (AWAY, "no broker answers")],
)
@virtual
async def test_why_an_id_cannot_be_taken_is_shown_until_it_is(
    answer: int | Exception, reason: str
) -> None:
    async with staged(begun=False) as stage:
        stage.script["take"] += [answer] * 1000
        begun = asyncio.get_running_loop().create_task(stage.begin())
        await asyncio.sleep(15.0)
        problem = stage.statuses.problems["kafka"].message
        assert problem.startswith(f"transactional id {ID} cannot be used: ")
        assert reason in problem
        stage.script["take"].clear()
        await begun
        assert not stage.statuses.problems


@virtual
async def test_a_missing_right_of_a_stream_that_is_closed_is_no_trouble() -> None:
    async with staged() as stage:
        stage.sink.open("t", "pods", lambda _why: None, made=False)
        stage.script["add"] += [53] * 99
        stage.deliver(0)
        await until(lambda: "kafka" in stage.statuses.problems)
        stage.sink.close("t", "pods")
        await asyncio.sleep(10.0)
        assert not stage.statuses.problems


@virtual
async def test_brokers_that_a_closed_stream_did_not_reach_are_no_trouble() -> None:
    async with staged() as stage:
        stage.sink.open("t", "pods", lambda _why: None, made=False)
        stage.is_closed = True
        stage.deliver(0)
        await until(lambda: "kafka" in stage.statuses.problems)
        stage.sink.close("t", "pods")
        await asyncio.sleep(10.0)
        assert not stage.statuses.problems


@virtual
async def test_what_is_withdrawn_is_not_answered_and_the_rest_goes_on() -> None:
    async with staged() as stage:
        stage.script["add"] += [14]
        withdrawn, other = stage.deliver(0, 1)
        await asyncio.sleep(0.005)
        withdrawn.cancel()
        assert (await other).offsets
        (again,) = stage.deliver(0)
        assert (await again).offsets
        assert stage.ended("committed") >= 2


@virtual
async def test_what_is_withdrawn_before_its_link_is_lost_holds_up_no_transaction() -> None:
    async with staged() as stage:
        is_held = True
        stage.sink.hold_while(lambda: is_held)
        withdrawn, other = stage.deliver(0, 1)
        await asyncio.sleep(0.01)
        assert stage.seen == ["add 0,1 by 1"]
        withdrawn.cancel()
        await asyncio.sleep(0)
        is_held = False
        stage.sink.reset()
        async with asyncio.timeout(1.0):
            assert (await other).offsets
        assert (stage.ended("committed"), stage.ended("aborted")) == (1, 0)


@virtual
async def test_a_topic_that_is_lost_ends_its_transaction() -> None:
    async with staged() as stage:
        lost: list[str] = []
        stage.sink.open("t", "pods", lost.append, made=False)
        stage.script["add"] += [3] * 4
        stage.deliver(0)
        await asyncio.sleep(1.0)
        stage.sink.close("t", "pods")
        stage.sink.open("t", "pods", lost.append, made=True)
        stage.script["add"].clear()
        await stage.begin()
        (delivery,) = stage.deliver(0)
        assert (await delivery).offsets
        assert stage.epoch == 2


@virtual
async def test_the_marker_of_a_commit_is_no_gap_between_own_records() -> None:
    async with staged() as stage:
        for _ in range(3):
            (delivery,) = stage.deliver(0)
            await delivery
            stage.end += 1
        assert stage.sink.unacknowledged_ranges("t", 0, 0, 8) == []
        stage.end += 1
        (delivery,) = stage.deliver(0)
        await delivery
        assert stage.sink.unacknowledged_ranges("t", 0, 0, 12) == [(8, 10)], (
            "a marker and another record"
        )


@virtual
async def test_transactions_of_few_records_begin_some_milliseconds_apart() -> None:
    async with staged() as stage:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for _ in range(10):
            (delivery,) = stage.deliver(0)
            await delivery
        assert 0.17 < loop.time() - began_s < 0.25
