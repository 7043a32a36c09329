"""The producer, and the sink on it, with a cluster whose answers the test gives, byte by byte: what
is sent again, by which connection, and what is not.

Virtual time: pauses and silences are a matter of seconds.
"""

import asyncio
import time

import pytest

from tests.support.producefake import answer_frame, batch_head, produce_request
from tests.support.producestage import (
    DUPLICATE,
    INVALID_RECORD,
    NOT_LEADER,
    TIMED_OUT,
    UNKNOWN_PRODUCER,
    staged,
)
from tests.support.relays import until, virtual
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.kafka.client.link import IN_FLIGHT_MAX


@virtual
async def test_what_is_delivered_in_one_step_leaves_in_one_request_per_broker() -> None:
    async with staged() as (stage, tasks):
        receipts = [stage.deliver(tasks, partition) for partition in range(4)]
        await asyncio.sleep(0.1)
        stage.answer(offset=3)
        stage.answer(offset=5, node=1)
        for partition in range(4):
            stage.deliver(tasks, partition)
        await asyncio.sleep(0.1)
        assert [[place for place, _ in each] for _, each in stage.sent()][-1] == [0, 2]
        assert [[place for place, _ in each] for _, each in stage.sent(1)][-1] == [1, 3]
        assert [(await each).offsets for each in receipts] == [[3], [5], [3], [5]]


@virtual
async def test_a_request_is_split_at_its_bound_and_at_most_five_wait_for_answers() -> None:
    async with staged() as (stage, tasks):
        warm = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer()
        await warm
        for partition in range(0, 32, 2):
            stage.deliver(tasks, partition, size=600)
        stage.deliver(tasks, 0, stream="other")
        await asyncio.sleep(0.1)
        carried = [[place for place, _ in each] for _, each in stage.sent()[1:]]
        assert carried == [[0, 2], [4, 6], [8, 10], [12, 14], [16, 18]], "a batch of each partition"
        assert len(carried) == IN_FLIGHT_MAX
        stage.answer(at=1)
        await asyncio.sleep(0.1)
        assert [place for place, _ in stage.sent()[-1][1]] == [20, 22]


@virtual
async def test_the_same_bytes_leave_again_after_a_lost_link() -> None:
    async with staged() as (stage, tasks):
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        ((_, first),) = stage.sent()
        stage.links[0][-1].lose()
        await asyncio.sleep(1.0)
        assert len(stage.links[0]) == 2
        ((_, again),) = stage.sent()
        assert again == first
        stage.answer(offset=7)
        assert await delivery == Receipt([7])


@virtual
async def test_while_it_is_held_nothing_is_written_and_then_what_waited() -> None:
    async with staged() as (stage, tasks):
        warm = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer()
        await warm
        doubts = [True]
        stage.sink.hold_while(lambda: doubts[0])
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(60.0)
        assert len(stage.sent()) == 1
        doubts[0] = False
        stage.sink.resume()
        stage.answer(offset=7)
        assert await delivery == Receipt([7])


@virtual
async def test_what_is_withdrawn_while_it_is_held_never_leaves() -> None:
    async with staged() as (stage, tasks):
        warm = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer()
        await warm
        stage.sink.hold_while(lambda: True)
        delivery, kept = stage.deliver(tasks, 0), stage.deliver(tasks, 2)
        await asyncio.sleep(0.1)
        delivery.cancel()
        await asyncio.wait((delivery,))
        stage.sink.hold_while(lambda: False)
        stage.sink.resume()
        assert [place for place, _ in stage.sent()[-1][1]] == [2]
        stage.answer(offset=8)
        assert await kept == Receipt([8])


@virtual
async def test_a_reset_ends_the_connections_and_the_same_bytes_leave_once_nothing_is_held() -> None:
    async with staged() as (stage, tasks):
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        ((_, first),) = stage.sent()
        stage.sink.hold_while(lambda: True)
        stage.sink.reset()
        assert stage.links[0][0].is_closing()
        await asyncio.sleep(10.0)
        assert not stage.links[0][-1].written
        stage.sink.hold_while(lambda: False)
        stage.sink.resume()
        ((_, again),) = stage.sent()
        assert again == first
        stage.answer(offset=9)
        assert await delivery == Receipt([9])


@virtual
async def test_an_answer_that_names_a_partition_twice_is_none_and_the_batch_is_sent_again() -> None:
    async with staged() as (stage, tasks):
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        number, ((_, data),) = stage.sent()[-1]
        stage.links[0][-1].receive(answer_frame(number, [("t", 0, 0, 5), ("t", 0, 0, 6)]))
        assert stage.links[0][-1].is_closing()
        await asyncio.sleep(1.0)
        assert not delivery.done(), "neither of the two is believed"
        assert stage.sent()[-1][1] == [(0, data)]
        stage.answer(offset=5)
        assert await delivery == Receipt([5])


@virtual
async def test_a_partition_without_a_leader_holds_up_none_that_is_met_later() -> None:
    async with staged() as (stage, tasks):
        stage.down = {0}
        stuck = stage.deliver(tasks, 0)
        await asyncio.sleep(30.0)
        other = stage.deliver(tasks, 1)
        await asyncio.sleep(0.1)
        stage.answer(offset=3, node=1)
        assert await other == Receipt([3])
        assert not stuck.done()
        stage.down = set()
        await asyncio.sleep(1.5)
        stage.answer(offset=4)
        assert await stuck == Receipt([4])


@virtual
async def test_only_the_topics_of_partitions_that_wait_are_asked_about() -> None:
    async with staged() as (stage, tasks):
        first = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer(offset=1)
        await first
        del stage.asked[:]
        record = WireRecord(b"a", b"1", [])
        for topic in ("u", "v"):
            tasks.create_task(
                stage.sink.deliver(Batch(topic, 1, [record], "pods")), name="delivery"
            )
        await asyncio.sleep(0.1)
        assert stage.asked == [["u", "v"]]


@virtual
async def test_a_broker_that_is_named_and_not_there_is_waited_for() -> None:
    async with staged() as (stage, tasks):
        stage.vanished = {0}
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(5.0)
        assert "not usable" in stage.statuses.problems["kafka"].message
        assert stage.rebuilds("watchdog") == 0, "the others answer"
        stage.vanished = set()
        await asyncio.sleep(1.5)
        stage.answer(offset=1)
        assert await delivery == Receipt([1])
        assert "kafka" not in stage.statuses.problems


@virtual
async def test_a_topic_that_is_lost_while_a_batch_is_looked_for_ends_nothing_else() -> None:
    async with staged() as (stage, tasks):
        stage.sink.open("t", "pods", lambda _why: None, made=False)
        stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer_s = 5.0
        stage.answer(DUPLICATE, -1)
        await asyncio.sleep(1.0)
        stage.sink.close("t", "pods")
        await asyncio.sleep(20.0)
        stage.answer_s = 0.0
        other = stage.deliver(tasks, 1)
        await asyncio.sleep(0.1)
        stage.answer(offset=8, node=1)
        assert await other == Receipt([8])


@virtual
async def test_an_acknowledgement_tells_where_the_log_starts_and_a_refusal_tells_nothing() -> None:
    async with staged() as (stage, tasks):
        assert stage.sink.log_start("t", 0) == 0
        for code, offset, start, known in ((0, 1, 0, 0), (0, 2, 2, 2), (TIMED_OUT, -1, -1, 2)):
            delivery = stage.deliver(tasks, 0)
            await asyncio.sleep(0.1)
            number, _ = stage.sent()[-1]
            answer = answer_frame(number, [("t", 0, code, offset)], log_start=start)
            stage.links[0][-1].receive(answer)
            await asyncio.sleep(0)
            assert stage.sink.log_start("t", 0) == known
        delivery.cancel()


@virtual
async def test_a_broker_that_throttles_is_not_taken_for_silent() -> None:
    async with staged() as (stage, tasks):
        first = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        frame = bytearray(answer_frame(stage.sent()[-1][0], [("t", 0, 0, 1)]))
        frame[-4:] = (30_000).to_bytes(4, "big")
        stage.links[0][-1].receive(bytes(frame))
        await first
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(29.0)
        assert not stage.links[0][0].is_closing()
        assert len(stage.links[0]) == 1
        stage.answer(offset=2)
        assert await delivery == Receipt([2])


@virtual
async def test_a_stream_that_starts_again_writes_under_an_identity_without_sequences() -> None:
    async with staged() as (stage, tasks):
        heads = []
        for _ in range(2):
            stage.sink.open("t", "pods", lambda _why: None, made=False)
            delivery = stage.deliver(tasks, 0)
            await asyncio.sleep(1.0)
            ((_, data),) = stage.sent()[-1][1]
            heads.append(batch_head(data))
            stage.answer(offset=len(heads))
            await delivery
            stage.sink.close("t", "pods")
        (first, _, *sequences), (second, _, *again) = heads
        assert sequences == again, "the broker would take it for a repetition"
        assert first != second
        assert stage.rebuilds("identity") == 0, "nothing can be in the log twice"


@virtual
async def test_a_broker_that_is_silent_is_left_after_the_request_timeout() -> None:
    async with staged() as (stage, tasks):
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(4.9)
        assert not stage.links[0][0].is_closing()
        await asyncio.sleep(2.5)
        assert stage.links[0][0].is_closing()
        assert stage.rebuilds("watchdog") == 1
        stage.answer(offset=1)
        assert await delivery == Receipt([1])


@virtual
async def test_a_broker_whose_answers_take_long_is_not_taken_for_silent() -> None:
    async with staged() as (stage, tasks):
        deliveries = []
        for partition in (0, 2):
            deliveries.append(stage.deliver(tasks, partition))
            await asyncio.sleep(0.1)
        for at in range(2):
            await asyncio.sleep(4.0)
            assert not stage.links[0][0].is_closing()
            stage.answer(offset=at, at=at)
        assert [(await each).offsets for each in deliveries] == [[0], [1]]


@pytest.mark.parametrize(
    "frame",
    [
        b"\0\0\0\0",
        b"\0\0\0\x04what",
        b"\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff",
        answer_frame(99, [("t", 0, 0, 0)]),
        answer_frame(1, []),
        answer_frame(1, [("t", 0, 0, 0), ("t", 2, 0, 0)]),
    ],
)
@virtual
async def test_an_answer_that_is_none_ends_the_link_and_nothing_is_lost(frame: bytes) -> None:
    async with staged() as (stage, tasks):
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.links[0][-1].receive(frame)
        assert stage.links[0][-1].is_closing()
        await asyncio.sleep(1.0)
        stage.answer(offset=2)
        assert await delivery == Receipt([2])


@virtual
async def test_an_answer_in_pieces_is_put_together() -> None:
    async with staged() as (stage, tasks):
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        frame = answer_frame(stage.sent()[0][0], [("t", 0, 0, 9)])
        for byte in frame:
            stage.links[0][-1].receive(bytes([byte]))
        assert await delivery == Receipt([9])


@virtual
async def test_a_broker_that_is_away_holds_up_no_partition_of_another() -> None:
    async with staged() as (stage, tasks):
        one, other = stage.deliver(tasks, 0), stage.deliver(tasks, 1)
        await asyncio.sleep(0.1)
        stage.links[0][-1].lose()
        stage.answer(offset=1, node=1)
        assert await other == Receipt([1])
        more = stage.deliver(tasks, 1)
        await asyncio.sleep(0.01)
        stage.answer(offset=2, node=1)
        assert await more == Receipt([2])
        assert not one.done()


@virtual
async def test_a_broker_whose_certificate_is_refused_keeps_no_other_from_being_connected() -> None:
    async with staged() as (stage, tasks):
        stage.untrusted, stage.answer_s = {1}, 0.1
        stage.deliver(tasks, 1)
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(2.0)
        stage.answer(offset=1)
        assert await delivery == Receipt([1])
        await asyncio.sleep(28.0)
        assert stage.reached < 10, "it is tried with longer pauses"
        assert "certificate has expired" in stage.sink.trouble


@virtual
async def test_a_broker_that_nobody_needs_any_more_is_no_trouble() -> None:
    async with staged() as (stage, tasks):
        first = stage.deliver(tasks, 0)
        await until(lambda: bool(stage.links) and len(stage.sent()) == 1)
        stage.answer()
        await first
        stage.slow_and_closed = {1}
        moved = stage.deliver(tasks, 1)
        await asyncio.sleep(0.01)  # its connection is being opened
        stage.leaders[1] = 0
        await until(lambda: len(stage.sent()) == 2)
        stage.answer()
        await moved
        await asyncio.sleep(2.0)
        assert stage.sink.trouble == ""


@virtual
async def test_an_identity_that_is_not_accepted_is_replaced_for_its_partition_alone() -> None:
    async with staged() as (stage, tasks):
        for partition in (0, 2):
            stage.deliver(tasks, partition)
        await asyncio.sleep(0.1)
        number, _ = stage.sent()[-1]
        stage.links[0][-1].receive(
            answer_frame(number, [("t", 0, UNKNOWN_PRODUCER, -1), ("t", 2, 0, 4)])
        )
        await asyncio.sleep(1.0)
        ((_, data),) = stage.sent()[-1][1]
        assert batch_head(data)[:3] == (2, 0, 0)
        stage.answer(offset=5)
        stage.deliver(tasks, 2)
        await asyncio.sleep(0.1)
        ((_, data),) = stage.sent()[-1][1]
        assert batch_head(data)[:3] == (1, 0, 1)
        assert stage.rebuilds("identity") == 1


@pytest.mark.parametrize("code", [UNKNOWN_PRODUCER, INVALID_RECORD])
@virtual
async def test_records_that_may_be_there_twice_are_counted_and_named(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with staged() as (stage, tasks):
        stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.links[0][-1].lose()
        await asyncio.sleep(1.0)
        stage.answer(code, -1)
        await asyncio.sleep(1.0)
        assert stage.rebuilds("identity") == 1
    (line,) = (each for each in caplog.records if "twice" in each.getMessage())
    assert (line.__dict__["topic"], line.__dict__["partition"]) == ("t", 0)


@virtual
async def test_after_the_cut_no_byte_leaves_and_nobody_is_answered() -> None:
    async with staged() as (stage, tasks):
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        link = stage.links[0][-1]
        stage.sink._producer.cut()
        assert link.is_closing(), "and it refuses what is written to it"
        late = stage.deliver(tasks, 2)
        await asyncio.sleep(60.0)
        assert len(stage.links[0]) == 1
        assert not delivery.done()
        assert not late.done()


@virtual
async def test_nothing_on_its_way_to_a_topic_that_was_lost_is_waited_for() -> None:
    lost = list[str]()
    async with staged() as (stage, tasks):
        stage.sink.open("t", "pods", lost.append, made=False)
        first = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer(offset=5)
        await first
        stage.deliver(tasks, 0)
        await asyncio.sleep(0.01)
        stage.deliver(tasks, 2)
        await asyncio.sleep(0.01)
        former = stage.links[0][-1]
        stage.answer(offset=0, at=-2)  # below the offset that this partition had
        await asyncio.sleep(0.01)
        assert len(lost) == 1
        assert former.is_closing(), "a batch on it would come late into the topic that is made next"
        await asyncio.sleep(30.0)
        assert len(stage.links[0]) == 1, "nothing is sent again"


@pytest.mark.parametrize("looked_at", [True, False])
@pytest.mark.parametrize(("found", "is_another"), [(b"id", False), (b"other", True)])
@virtual
async def test_a_topic_that_brokers_did_not_know_is_another_only_under_another_id(
    found: bytes, is_another: bool, looked_at: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", asyncio.get_running_loop().time)
    lost = list[str]()
    async with staged() as (stage, _):
        stage.sink.open("t", "pods", lost.append, made=False, topic_id=b"id")
        await asyncio.sleep(31.0 if looked_at else 1.0)
        stage.topics_known = False
        await asyncio.sleep(40.0)
        assert len(lost) == 1, "its stream makes it, if it is gone"
        stage.topics_known, stage.topic_id = True, found
        stage.sink.close("t", "pods")
        again = stage.sink.open("t", "pods", lost.append, made=False, topic_id=found)
        assert again is is_another
        await asyncio.sleep(31.0)
        assert len(lost) == 1


@virtual
async def test_a_leader_that_reaches_no_replica_is_looked_up_and_the_same_bytes_go_to_the_next() -> (
    None
):
    async with staged() as (stage, tasks):
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        ((_, first),) = stage.sent()
        stage.leaders[0] = 1
        stage.answer(TIMED_OUT, -1)
        await asyncio.sleep(1.0)
        ((_, again),) = stage.sent(1)
        assert again == first
        stage.answer(offset=7, node=1)
        assert await delivery == Receipt([7])


@virtual
async def test_a_broker_that_names_a_former_leader_again_and_again_is_not_asked_any_more() -> None:
    async with staged() as (stage, tasks):
        stage.former_leaders, stage.leaders[0] = {}, 1
        delivery = stage.deliver(tasks, 0)
        for _ in range(3):
            await asyncio.sleep(1.0)
            stage.answer(NOT_LEADER, -1)
        await asyncio.sleep(1.0)
        stage.answer(offset=7, node=1)
        assert await delivery == Receipt([7])


@virtual
async def test_a_broker_that_names_a_leader_which_is_away_is_not_asked_for_long() -> None:
    async with staged() as (stage, tasks):
        stage.former_leaders, stage.leaders[0], stage.vanished = {}, 1, {0}
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(7.0)
        stage.answer(offset=7, node=1)
        assert await delivery == Receipt([7])


@virtual
async def test_another_broker_is_asked_about_a_topic_that_one_does_not_know() -> None:
    async with staged() as (stage, _):
        stage.sink.open("t", "pods", lambda _why: None, made=False)
        stage.former_leaders = {}
        await asyncio.sleep(100.0)
        assert stage.ids == [None, b"id", b"id", b"id"], "the others know it"


@virtual
async def test_the_leader_of_each_topic_that_moved_is_looked_up() -> None:
    async with staged() as (stage, tasks):
        batches = [Batch(topic, 0, [WireRecord(b"a", b"1", [])], topic) for topic in ("t", "u")]
        deliveries = [
            tasks.create_task(stage.sink.deliver(batch), name="delivery") for batch in batches
        ]
        await asyncio.sleep(0.1)
        stage.leaders[0] = 1
        requests = [produce_request(each) for each in stage.links[0][-1].written]
        for number, carried in requests:
            places = [(topic, partition, NOT_LEADER, -1) for topic, partition, _ in carried]
            stage.links[0][-1].receive(answer_frame(number, places))
        await asyncio.sleep(3.0)
        assert len(stage.links[0][-1].written) == len(requests), "nothing goes to the former leader"
        for each in stage.links[1][-1].written:
            number, carried = produce_request(each)
            places = [(topic, partition, 0, 7) for topic, partition, _ in carried]
            stage.links[1][-1].receive(answer_frame(number, places))
        assert [(await delivery).offsets for delivery in deliveries] == [[7], [7]]
