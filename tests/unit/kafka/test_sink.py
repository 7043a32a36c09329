"""What the sink packs of several streams, what is packed again, and what each is answered. In
virtual time."""

import asyncio
import random
from functools import partial

import pytest

from tests.support.producefake import batch_head
from tests.support.producestage import (
    INVALID_TIMESTAMP,
    OUT_OF_ORDER,
    TOO_LARGE,
    UNKNOWN_PRODUCER,
    Stage,
    staged,
)
from tests.support.relays import until, virtual
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core.errors import RecordTooLarge
from watchrelay.kafka.sink import MESSAGE_BYTES_DEFAULT


@virtual
async def test_a_limit_that_is_lowered_while_a_batch_is_on_its_way_names_the_record_and_skips_none() -> (
    None
):
    records = [WireRecord(b"a", value, []) for value in (b"1", b"2", bytes(range(256)) * 4, b"4")]
    async with staged() as (stage, tasks):

        async def delivered() -> RecordTooLarge:
            with pytest.raises(RecordTooLarge) as caught:
                await stage.sink.deliver(Batch("t", 0, records, "pods"))
            return caught.value

        delivery = tasks.create_task(delivered(), name="too large")
        await asyncio.sleep(0.1)
        stage.sink.set_limit("t", 200)  # another stream of the topic read it
        stage.answer(TOO_LARGE, -1)
        async with asyncio.timeout(1.0):
            error = await delivery
        assert (error.index, error.acked) == (2, ())


# ---- one batch of several streams ----------------------------------------------------------------


def several(*values: bytes, stream: str) -> Batch:
    return Batch("t", 0, [WireRecord(b"a", value, []) for value in values], stream)


def deliver(stage: Stage, tasks: asyncio.TaskGroup, batch: Batch) -> asyncio.Task[Receipt]:
    return tasks.create_task(stage.sink.deliver(batch), name="delivery")


@virtual
async def test_what_streams_deliver_to_a_partition_while_a_batch_is_on_its_way_is_one_batch() -> (
    None
):
    async with staged() as (stage, tasks):
        first = deliver(stage, tasks, several(b"1", stream="first"))
        await asyncio.sleep(0.1)
        later = [
            deliver(stage, tasks, several(b"1", b"2", stream=stream)) for stream in ("x", "y", "z")
        ]
        await asyncio.sleep(0.1)
        stage.answer(offset=7)
        await asyncio.sleep(0.1)
        assert await first == Receipt([7])
        ((_, data),) = stage.sent()[-1][1]
        assert (len(stage.sent()), batch_head(data)[3]) == (2, 6)
        stage.answer(offset=20)
        assert [(await each).offsets for each in later] == [[20, 21], [22, 23], [24, 25]]


@virtual
async def test_a_record_that_is_too_large_holds_up_its_own_stream_alone() -> None:
    noise = random.Random(0).randbytes(500)
    async with staged() as (stage, _):
        stage.sink.set_limit("t", 300)
        answers = list[Receipt | Exception]()
        stage.sink.send(several(b"1", stream="before"), answers.append)
        stage.sink.send(several(b"1", noise, stream="large"), answers.append)
        stage.sink.send(several(b"1", stream="behind"), answers.append)
        await asyncio.sleep(0.1)
        stage.answer(offset=3)
        error, *others = answers
        assert isinstance(error, RecordTooLarge)
        assert (error.index, error.acked) == (1, ())
        assert others == [Receipt([3]), Receipt([4])]


@virtual
async def test_where_kafka_finds_a_record_too_large_each_stream_gets_the_offsets_of_its_own() -> (
    None
):
    async with staged() as (stage, _):
        answers = list[Receipt | Exception]()
        stage.sink.send(several(b"1", b"2", stream="x"), answers.append)
        stage.sink.send(several(b"3", b"4", stream="y"), answers.append)
        stage.sink.send(several(b"5", stream="z"), answers.append)
        await asyncio.sleep(0.1)
        # five records; the halves are two, and three: of these one, and two
        for code, offset in ((TOO_LARGE, -1), (0, 0), (TOO_LARGE, -1), (TOO_LARGE, -1)):
            stage.answer(code, offset)
            await asyncio.sleep(0.1)
        stage.answer(0, 2)
        await asyncio.sleep(0.1)
        first, error, last = answers
        assert (first, last) == (Receipt([0, 1]), Receipt([2]))
        assert isinstance(error, RecordTooLarge)
        assert (error.index, error.acked) == (0, ())


@virtual
async def test_a_stream_that_withdraws_its_batch_takes_that_of_no_other_with_it() -> None:
    async with staged() as (stage, _):
        answers = list[Receipt | Exception]()
        packed = stage.sink.send(several(b"1", stream="x"), answers.append)
        stage.sink.send(several(b"2", stream="y"), answers.append)
        await asyncio.sleep(0.1)
        waiting = stage.sink.send(several(b"3", stream="z"), answers.append)
        stage.sink.withdraw(packed)
        stage.sink.withdraw(waiting)
        stage.answer(offset=4)
        await asyncio.sleep(0.1)
        assert (answers, len(stage.sent())) == ([Receipt([5])], 1)


@pytest.mark.parametrize(("codes", "records"), [([INVALID_TIMESTAMP], 2), ([TOO_LARGE] * 2, 1)])
@virtual
async def test_what_was_withdrawn_is_not_sent_again_after_a_refusal(
    codes: list[int], records: int
) -> None:
    async with staged() as (stage, _):
        answers = list[Receipt | Exception]()
        stage.sink.send(several(b"1", stream="x"), answers.append)
        withdrawn = stage.sink.send(several(b"2", stream="y"), answers.append)
        stage.sink.send(several(b"3", stream="z"), answers.append)
        await asyncio.sleep(0.1)
        stage.sink.withdraw(withdrawn)
        for code in codes:
            stage.answer(code, -1)
            await asyncio.sleep(0.5)
        ((_, data),) = stage.sent()[-1][1]
        assert batch_head(data)[3] == records
        stage.answer(offset=4)
        await asyncio.sleep(0.1)
        assert answers[-records:] == [Receipt([4 + at]) for at in range(records)]


@virtual
async def test_what_others_packed_with_a_batch_that_is_withdrawn_unsent_leaves_without_it() -> None:
    async with staged() as (stage, _):
        answers = list[Receipt | Exception]()
        stage.sink.send(several(b"1", stream="x"), answers.append)
        await asyncio.sleep(0.1)
        stage.answer(offset=4)
        stage.sink.hold_while(lambda: True)
        stage.sink.send(several(b"2", stream="x"), answers.append)
        withdrawn = stage.sink.send(several(b"3", stream="y"), answers.append)
        stage.sink.send(several(b"4", stream="z"), answers.append)
        await asyncio.sleep(0.1)
        stage.sink.withdraw(withdrawn)
        stage.sink.hold_while(lambda: False)
        await asyncio.sleep(0.1)
        stage.sink.resume()
        await asyncio.sleep(0.1)
        ((_, data),) = stage.sent()[-1][1]
        assert batch_head(data)[3] == 2, "records"
        stage.answer(offset=5)
        await asyncio.sleep(0.1)
        assert answers == [Receipt([4]), Receipt([5]), Receipt([6])]


@virtual
async def test_what_was_withdrawn_does_not_leave_in_the_second_batch_of_what_was_packed() -> None:
    noise = [random.Random(each).randbytes(150) for each in range(3)]
    async with staged() as (stage, _):
        stage.sink.set_limit("t", 300)
        answers = list[Receipt | Exception]()
        stage.sink.send(several(noise[0], stream="x"), answers.append)
        withdrawn = stage.sink.send(several(noise[1], stream="y"), answers.append)
        stage.sink.send(several(noise[2], stream="z"), answers.append)
        await asyncio.sleep(0.1)
        stage.sink.withdraw(withdrawn)
        stage.answer(offset=4)
        await asyncio.sleep(0.1)
        stage.answer(offset=5)
        await asyncio.sleep(0.1)
        assert (answers, len(stage.sent())) == ([Receipt([4]), Receipt([5])], 2)
        assert not any(noise[1] in data for _, batches in stage.sent() for _, data in batches)


@virtual
async def test_an_answer_in_the_step_that_cancels_one_delivery_reaches_the_others() -> None:
    async with staged() as (stage, tasks):
        cancelled, other = stage.deliver(tasks, 0), stage.deliver(tasks, 2)
        await asyncio.sleep(0.1)
        ((_, batches),) = stage.sent()
        assert len(batches) == 2, "one request"
        cancelled.cancel()
        stage.answer(offset=7)
        assert await other == Receipt([7])
        again = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer(offset=9)
        assert await again == Receipt([9])


# ---- secrets that are replaced -------------------------------------------------------------------


@virtual
async def test_a_batch_that_was_refused_is_packed_again_with_a_time_of_then() -> None:
    async with staged() as (stage, tasks):
        first = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer(INVALID_TIMESTAMP, -1)
        second = stage.deliver(tasks, 0, stream="other")
        await until(lambda: len(stage.sent()) == 2)
        stage.answer(offset=7)
        assert [(await each).offsets for each in (first, second)] == [[7], [8]], "one new batch"


@virtual
async def test_what_was_written_is_forgotten_once_nobody_writes_the_topic() -> None:
    async with staged() as (stage, tasks):
        stage.sink.open("t", "pods", lambda _why: None, made=False)
        delivery = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer(offset=0)
        await delivery
        assert stage.sink.unacknowledged_ranges("t", 0, 0, 2) == [(1, 2)]
        stage.sink.set_limit("t", 5000)
        stage.sink.close("t", "pods")
        assert stage.sink.limits("t").message_bytes == MESSAGE_BYTES_DEFAULT
        assert stage.sink.unacknowledged_ranges("t", 0, 0, 2) == [(0, 2)], "it may be recreated"


@virtual
async def test_of_a_topic_that_was_recreated_nothing_was_written_nor_is_what_is_answered_late() -> (
    None
):
    async with staged() as (stage, tasks):
        lost = list[str]()
        stage.sink.open("t", "pods", lost.append, made=False, topic_id=b"1" * 16)
        first = stage.deliver(tasks, 0)
        await asyncio.sleep(0.1)
        stage.answer(offset=0)
        await first
        answers = list[Receipt | Exception]()
        stage.sink.send(several(b"1", b"2", stream="pods"), answers.append)
        await asyncio.sleep(0.1)
        stage.sink.open("t", "nodes", lost.append, made=False, topic_id=b"2" * 16)
        stage.answer(offset=1)
        await asyncio.sleep(0.1)
        assert stage.sink.unacknowledged_ranges("t", 0, 0, 3) == [(0, 3)]
        assert (answers, len(lost)) == ([], 1)


@virtual
@pytest.mark.parametrize("code", [0, OUT_OF_ORDER, UNKNOWN_PRODUCER])
async def test_a_partition_that_lost_records_of_one_stream_is_lost_to_all_that_write_it(
    code: int,
) -> None:
    """An unclean election: the next record of another stream gets an offset that the first one's
    had, with or without a new identity before, and the log may be as long as before soon after."""
    lost = dict[str, str]()
    async with staged() as (stage, tasks):
        for stream in ("pods", "nodes"):
            stage.sink.open("t", stream, partial(lost.__setitem__, stream), made=False)
        for stream, offset in (("nodes", 50), ("pods", 99)):
            delivery = stage.deliver(tasks, 0, stream=stream)
            await asyncio.sleep(0.1)
            stage.answer(offset=offset)
            await delivery
        stage.deliver(tasks, 0, stream="nodes")
        await asyncio.sleep(0.1)
        if code:
            stage.answer(code, -1)
            await until(lambda: len(stage.sent()) == 4)
        assert lost == {}
        stage.answer(offset=60)
        await until(lambda: lost.keys() == {"pods", "nodes"})
        assert "a record got offset 60 after one at 99" in lost["pods"]
        for stream in ("pods", "nodes"):
            assert stage.sink.open("t", stream, partial(lost.__setitem__, stream), made=False)
        again = stage.deliver(tasks, 0, stream="pods")
        await until(lambda: len(stage.links[0]) == 2 and len(stage.sent()) == 1)
        stage.answer(offset=61)
        assert await again == Receipt([61])


@virtual
async def test_records_of_others_between_those_of_this_process_are_no_loss() -> None:
    lost = list[str]()
    async with staged() as (stage, tasks):
        for stream in ("pods", "nodes"):
            stage.sink.open("t", stream, lost.append, made=False)
        for stream, partition, offset in (
            ("pods", 0, 7), ("nodes", 0, 8), ("nodes", 2, 0), ("pods", 0, 20), ("nodes", 0, 21),
        ):  # fmt: skip
            delivery = stage.deliver(tasks, partition, stream=stream)
            await asyncio.sleep(0.1)
            stage.answer(offset=offset)
            assert await delivery == Receipt([offset])
        assert lost == []
