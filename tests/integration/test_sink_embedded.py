"""An embedded Kafka that misbehaves to order: nothing lost, nothing out of order, and the trouble
reported.

The embedded broker checks no sequences, so that a batch whose acknowledgement was lost is there
twice; on real brokers it does not (`test_producer_real`).
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from tests.support.extent import few
from tests.support.sinkparts import batch, keys_on, running_sink, until
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core.errors import RecordTooLarge
from watchrelay.demo.kafka import INIT_PRODUCER_ID, NO_LEADER, PRODUCE, EmbeddedKafka
from watchrelay.kafka.producer import ProducerSettings

MESSAGE_TOO_LARGE, NOT_LEADER, NOT_AUTHORIZED, OUT_OF_ORDER, NOT_ENOUGH_REPLICAS, INVALID_RECORD = (
    10,
    6,
    29,
    45,
    19,
    87,
)
NETWORK_EXCEPTION, THROTTLING_QUOTA_EXCEEDED, TRANSACTION_ABORTABLE = 13, 89, 120
INVALID_PRODUCER_EPOCH, PRODUCER_FENCED, COORDINATOR_LOAD_IN_PROGRESS = 47, 90, 14


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka.start() as broker:
        broker.create_topic("t", 3)
        broker.create_topic("control", 1)
        yield broker


async def test_a_receipt_has_the_offset_of_each_record(kafka: EmbeddedKafka) -> None:
    async with running_sink(kafka.bootstrap) as running:
        assert await running.sink.deliver(batch("t", 1, "a", "b")) == Receipt([0, 1])
        assert await running.sink.deliver(batch("t", 1, "c")) == Receipt([2])
    assert await keys_on(kafka.bootstrap, "t", 3) == [[], [b"a", b"b", b"c"], []]


async def test_a_batch_over_the_bound_leaves_in_several_and_stays_in_order(
    kafka: EmbeddedKafka,
) -> None:
    names = [f"n{index}" for index in range(200)]
    async with running_sink(kafka.bootstrap, ProducerSettings(batch_bytes=4096)) as running:
        assert await running.sink.deliver(batch("t", 0, *names, padding=500)) == Receipt(
            list(range(200))
        )
    assert (await keys_on(kafka.bootstrap, "t", 1))[0] == [name.encode() for name in names]


@pytest.mark.parametrize("code", [NOT_AUTHORIZED, OUT_OF_ORDER, INVALID_RECORD])
async def test_after_any_error_the_same_records_are_sent_again(
    kafka: EmbeddedKafka, code: int
) -> None:
    async with running_sink(kafka.bootstrap) as running:
        await running.sink.deliver(batch("t", 0, "before"))
        kafka.push_request_errors(PRODUCE, [code])
        async with asyncio.TaskGroup() as deliveries:
            for partition in range(3):
                deliveries.create_task(
                    running.sink.deliver(batch("t", partition, "a", "b")), name="delivery"
                )
        await running.sink.deliver(batch("t", 0, "after"))
        assert running.rebuilds("identity") == (3 if code == OUT_OF_ORDER else 0)
        assert not running.problem
    found = await keys_on(kafka.bootstrap, "t", 3)
    assert found == [[b"before", b"a", b"b", b"after"], [b"a", b"b"], [b"a", b"b"]]


@pytest.mark.parametrize(
    "code", [NETWORK_EXCEPTION, INVALID_RECORD, THROTTLING_QUOTA_EXCEEDED, TRANSACTION_ABORTABLE]
)
async def test_codes_that_are_seldom_or_unknown_cost_no_record(
    kafka: EmbeddedKafka, code: int
) -> None:
    async with running_sink(kafka.bootstrap) as running:
        kafka.push_request_errors(PRODUCE, [code, code])
        assert await running.sink.deliver(batch("t", 0, "a", "b")) == Receipt([0, 1])
    assert (await keys_on(kafka.bootstrap, "t", 1))[0] == [b"a", b"b"]


@pytest.mark.parametrize("code", [INVALID_PRODUCER_EPOCH, PRODUCER_FENCED])
async def test_a_fenced_producer_id_is_replaced(kafka: EmbeddedKafka, code: int) -> None:
    async with running_sink(kafka.bootstrap) as running:
        await running.sink.deliver(batch("t", 0, "before"))
        kafka.push_request_errors(PRODUCE, [code])
        for index in range(3):
            assert await running.sink.deliver(batch("t", index % 2, f"n{index}"))
        assert running.rebuilds("identity") == 1
        assert not running.problem
    assert await keys_on(kafka.bootstrap, "t", 2) == [[b"before", b"n0", b"n2"], [b"n1"]]


async def test_an_error_that_stays_is_shown_with_its_cure_and_retried_until_it_is_mended(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="watchrelay")
    async with running_sink(kafka.bootstrap) as running:
        kafka.push_request_errors(PRODUCE, [NOT_AUTHORIZED] * 6)
        async with asyncio.TaskGroup() as deliveries:
            deliveries.create_task(running.sink.deliver(batch("t", 2, "a")), name="delivery")
            await until(lambda: "grant WRITE" in running.problem)
            assert "topic t partition 2" in running.problem
            await until(lambda: running.errors("t").get("TopicAuthorizationFailedError", 0) >= 2)
            kafka.clear_request_errors(PRODUCE)
        assert not running.problem
    logged = [
        record.getMessage()
        for record in caplog.records
        if record.name == "watchrelay.kafka.troubles"
    ]
    assert logged == ["kafka does not accept records", "kafka accepts records again"]


async def test_kafka_accepts_records_again_is_logged_when_all_topics_do(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="watchrelay")
    kafka.create_topic("u", 1)
    async with running_sink(kafka.bootstrap) as running, asyncio.TaskGroup() as deliveries:
        for topic in ("t", "u"):
            kafka.set_leader(topic, 0, NO_LEADER)
            deliveries.create_task(running.sink.deliver(batch(topic, 0, "a")), name="delivery")
        await until(lambda: "(and " in running.problem)
        kafka.set_leader("t", 0, 1)
        await until(lambda: "topic accepts records again" in caplog.messages)
        assert "kafka accepts records again" not in caplog.messages
        kafka.set_leader("u", 0, 1)
        await until(lambda: "kafka accepts records again" in caplog.messages)


async def test_a_stream_whose_batch_is_not_acknowledged_says_so_on_its_row_until_it_is(
    kafka: EmbeddedKafka,
) -> None:
    settings = ProducerSettings(
        request_timeout_s=1.0,
        stalled_after_s=0.3,
    )
    async with running_sink(kafka.bootstrap, settings) as running:
        waits, idle = running.statuses.open("pods", "t"), running.statuses.open("nodes", "t")
        await running.sink.deliver(batch("t", 0, "before")._replace(stream="pods"))
        assert running.errors("t")["no_acknowledgement"] == 0, "a series from the start"
        assert running.errors("t")["RequestTimedOutError"] == 0
        kafka.set_rtt(60_000)
        async with asyncio.TaskGroup() as deliveries:
            deliveries.create_task(
                running.sink.deliver(batch("t", 0, "a")._replace(stream="pods")), name="delivery"
            )
            await until(lambda: "records" in waits.troubles)
            error = waits.as_json()["lastError"]
            assert isinstance(error, dict)
            assert "no acknowledgement" in error["message"]
            assert idle.as_json()["lastError"] is None
            assert (waits.last_error, waits.waits_for, waits.complete) == (None, "", False), (
                "readiness is not affected"
            )
            await until(lambda: running.errors("t")["no_acknowledgement"] >= 2)
            kafka.set_rtt(0)
            kafka.broker_down()
            kafka.broker_up()
        assert waits.as_json()["lastError"] is None


async def test_one_bad_partition_does_not_hold_up_the_others(kafka: EmbeddedKafka) -> None:
    async with running_sink(kafka.bootstrap) as running, asyncio.TaskGroup() as deliveries:
        kafka.set_leader("t", 0, NO_LEADER)
        stuck = deliveries.create_task(
            running.sink.deliver(batch("t", 0, "stuck")), name="delivery"
        )
        for index in range(20):
            await running.sink.deliver(batch("t", 1, f"n{index}"))
        assert not stuck.done()
        kafka.set_leader("t", 0, 1)
    assert stuck.result() == Receipt([0])


async def test_a_topic_met_later_does_not_make_the_producer_forget_those_it_found_at_its_start(
    kafka: EmbeddedKafka,
) -> None:
    # Brokers that have only just started give no producer id yet; the client asks about all topics
    # then, and tries again.
    kafka.push_request_errors(INIT_PRODUCER_ID, [COORDINATOR_LOAD_IN_PROGRESS])
    settings = ProducerSettings(request_timeout_s=2.0)
    async with running_sink(kafka.bootstrap, settings) as running:
        kafka.set_rtt(300)  # longer than the pause between two metadata requests
        await running.sink.deliver(batch("control", 0, "before"))
        kafka.create_topic("made-later", 1)
        async with asyncio.TaskGroup() as deliveries:

            async def deliver(topic: str, partition: int) -> asyncio.Task[Receipt]:
                task = deliveries.create_task(
                    running.sink.deliver(batch(topic, partition, "a")), name="delivery"
                )
                for _ in range(20):  # turns of the loop, in which what it asks for leaves
                    await asyncio.sleep(0)
                return task

            # The client asks about the new topic; while it does, a batch is on its way, and all of
            # topic t waits behind that.
            tasks = [
                await deliver(topic, at)
                for topic, at in (("made-later", 0), ("control", 0), ("t", 0), ("t", 1), ("t", 2))
            ]
        assert [task.result().offsets for task in tasks] == [[0], [1], [0], [0], [0]]
        assert not any(running.errors("t").values())


async def test_what_is_on_its_way_when_another_partition_gets_an_error_is_not_sent_twice() -> None:
    settings = ProducerSettings(request_timeout_s=5.0)
    with EmbeddedKafka.start(2) as kafka:
        kafka.create_topic("t", 2)
        kafka.set_leader("t", 0, 1)
        kafka.set_leader("t", 1, 2)
        async with (
            running_sink(kafka.bootstrap, settings) as running,
            asyncio.TaskGroup() as deliveries,
        ):
            for partition in (0, 1):
                await running.sink.deliver(batch("t", partition, "before"))
            kafka.set_rtt(700, broker=2)
            slow = deliveries.create_task(
                running.sink.deliver(batch("t", 1, "slow")), name="delivery"
            )
            await running.sink.deliver(batch("t", 0, "meanwhile"))
            kafka.push_request_errors(PRODUCE, [INVALID_RECORD])
            assert await running.sink.deliver(batch("t", 0, "refused")) == Receipt([2])
        assert slow.result() == Receipt([1])
        assert await keys_on(kafka.bootstrap, "t", 2) == [
            [b"before", b"meanwhile", b"refused"],
            [b"before", b"slow"],
        ]


async def test_the_trouble_of_a_delivery_that_was_stopped_is_over(kafka: EmbeddedKafka) -> None:
    async with running_sink(kafka.bootstrap) as running, asyncio.TaskGroup() as deliveries:
        kafka.set_leader("t", 0, NO_LEADER)
        stuck = deliveries.create_task(
            running.sink.deliver(batch("t", 0, "stuck")), name="delivery"
        )
        await until(lambda: "has no leader" in running.problem)
        stuck.cancel()
        await until(lambda: not running.problem)


async def test_a_partition_long_without_leader_is_not_wedged_when_it_has_one_again(
    kafka: EmbeddedKafka,
) -> None:
    async with running_sink(kafka.bootstrap) as running:
        await running.sink.deliver(batch("t", 0, "before"))
        kafka.set_leader("t", 0, NO_LEADER)
        async with asyncio.TaskGroup() as deliveries:
            for partition in range(3):
                deliveries.create_task(
                    running.sink.deliver(batch("t", partition, "a", "b")), name="delivery"
                )
            await until(lambda: running.errors("t").get("LeaderNotAvailableError", 0) >= 1)
            await until(lambda: "has no leader" in running.problem)
            kafka.set_leader("t", 0, 1)
        await running.sink.deliver(batch("t", 0, "after"))
        await until(lambda: not running.problem)
    assert await keys_on(kafka.bootstrap, "t", 3) == [
        [b"before", b"a", b"b", b"after"],
        [b"a", b"b"],
        [b"a", b"b"],
    ]


async def test_the_watchdog_gives_up_on_silence_and_delivery_goes_on_when_the_broker_is_back(
    kafka: EmbeddedKafka,
) -> None:
    settings = ProducerSettings(
        request_timeout_s=1.0,
        stalled_after_s=0.3,
    )
    async with running_sink(kafka.bootstrap, settings) as running:
        await running.sink.deliver(batch("t", 0, "before"))
        kafka.broker_down()
        async with asyncio.TaskGroup() as deliveries:
            for partition in range(3):
                deliveries.create_task(
                    running.sink.deliver(batch("t", partition, "a", "b")), name="delivery"
                )
            await until(lambda: "no acknowledgement" in running.problem)
            await until(lambda: running.rebuilds("watchdog") >= 1)
            assert (
                "Connect call failed" in running.problem or "no acknowledgement" in running.problem
            )
            kafka.broker_up()
        await running.sink.deliver(batch("t", 0, "after"))
        await until(lambda: not running.problem)
    found = await keys_on(kafka.bootstrap, "t", 3)
    assert [list(dict.fromkeys(keys)) for keys in found] == [
        [b"before", b"a", b"b", b"after"],
        [b"a", b"b"],
        [b"a", b"b"],
    ]


async def test_stopping_is_quick_while_brokers_are_down_and_data_is_outstanding(
    kafka: EmbeddedKafka,
) -> None:
    async with asyncio.timeout(20.0):
        async with running_sink(kafka.bootstrap) as running:
            await running.sink.deliver(batch("t", 0, "before"))
            kafka.broker_down()
            delivery = asyncio.get_running_loop().create_task(
                running.sink.deliver(batch("t", 0, "a")), name="delivery"
            )
            await until(lambda: "no acknowledgement" in running.problem)
            delivery.cancel()
            await asyncio.wait([delivery])
        assert delivery.cancelled()


async def test_errors_that_pass_by_themselves_are_not_shown(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    patient = ProducerSettings(request_timeout_s=1.0, stalled_after_s=30.0)
    async with running_sink(kafka.bootstrap, patient) as running:
        kafka.push_request_errors(PRODUCE, [NOT_ENOUGH_REPLICAS, NOT_LEADER])
        assert await running.sink.deliver(batch("t", 0, "a")) == Receipt([0])
        assert "kafka does not accept records" not in caplog.messages


async def test_partitions_delivered_in_one_step_leave_in_one_request(kafka: EmbeddedKafka) -> None:
    async with running_sink(kafka.bootstrap) as running:
        await running.sink.deliver(batch("t", 0, "known"))
        # One error is one request's: were there three requests, two partitions would be
        # acknowledged at once.
        kafka.push_request_errors(PRODUCE, [INVALID_RECORD])
        async with asyncio.TaskGroup() as deliveries:
            for partition in range(3):
                deliveries.create_task(
                    running.sink.deliver(batch("t", partition, "a")), name="delivery"
                )
        assert {error: count for error, count in running.errors("t").items() if count} == {
            "UnknownError": 3
        }


def _got_past(delivered: Sequence[int], least: int) -> bool:
    return max(delivered) > least


@pytest.mark.parametrize("seed", few([1, 2], 1))
async def test_whatever_brokers_do_each_partition_keeps_its_order_and_loses_nothing(
    seed: int,
) -> None:
    chance = random.Random(seed)
    settings = ProducerSettings(
        request_timeout_s=0.5,
        stalled_after_s=0.3,
    )
    with EmbeddedKafka.start(3) as kafka:
        kafka.create_topic("t", 4, replication_factor=3)
        async with running_sink(kafka.bootstrap, settings) as running:
            delivered = [0] * 4
            reached, calm = 0, False

            async def write(partition: int) -> None:
                for index in itertools.count():
                    if index > reached + 50 and not calm:
                        await asyncio.sleep(0.02)  # until the next fault the load is a light one
                    await running.sink.deliver(
                        batch("t", partition, *[f"{index}-{place}" for place in range(3)])
                    )
                    delivered[partition] = index + 1
                    if calm and index > 50:
                        return

            async with asyncio.TaskGroup() as writers:
                for partition in range(4):
                    writers.create_task(write(partition), name="writer")
                for _ in range(6):
                    broker, partition = chance.randint(1, 3), chance.randrange(4)
                    reached = max(delivered)
                    await until(partial(_got_past, delivered, reached + 5))
                    match chance.choice(["down", "error", "leader", "leaderless"]):
                        case "down":
                            kafka.broker_down(broker)
                            await asyncio.sleep(chance.random())
                            kafka.broker_up(broker)
                        case "error":
                            kafka.push_request_errors(
                                PRODUCE,
                                chance.choices([NOT_AUTHORIZED, OUT_OF_ORDER, NOT_LEADER, 0], k=5),
                            )
                        case "leader":
                            kafka.set_leader("t", partition, broker)
                        case _:
                            kafka.set_leader("t", partition, NO_LEADER)
                            await asyncio.sleep(chance.random())
                            kafka.set_leader("t", partition, broker)
                    await until(partial(_got_past, delivered, max(delivered) + 5))
                kafka.clear_request_errors(PRODUCE)
                calm = True
            await until(lambda: not running.problem)
        for partition, keys in enumerate(await keys_on(kafka.bootstrap, "t", 4)):
            wanted = [
                f"{index}-{place}".encode()
                for index in range(delivered[partition])
                for place in range(3)
            ]
            # What was in flight may stand there twice; a reader drops what it had, so each key
            # counts at its first offset.
            assert list(dict.fromkeys(keys)) == wanted


# ---- sizes ---------------------------------------------------------------------------------------


async def test_a_record_over_the_limit_is_refused_before_anything_is_sent(
    kafka: EmbeddedKafka,
) -> None:
    noise = bytes(range(256)) * 16
    records = [
        WireRecord(b"ok", b"1", []),
        WireRecord(b"shop/big", noise, []),
        WireRecord(b"later", b"1", []),
    ]
    async with running_sink(kafka.bootstrap) as running:
        running.sink.set_limit("t", 200)
        with pytest.raises(
            RecordTooLarge, match=r"record shop/big is too large for topic t: .* 200"
        ) as caught:
            await running.sink.deliver(Batch("t", 0, records))
        assert (caught.value.index, caught.value.acked) == (1, ())
        assert await running.sink.deliver(batch("t", 0, "ok", "later")) == Receipt([0, 1])


async def test_what_compresses_below_the_limit_passes(kafka: EmbeddedKafka) -> None:
    async with running_sink(kafka.bootstrap) as running:
        running.sink.set_limit("t", 1000)
        assert await running.sink.deliver(batch("t", 0, "a", padding=100_000)) == Receipt([0])


async def test_a_batch_that_kafka_finds_too_large_is_halved_until_the_record_is_found(
    kafka: EmbeddedKafka,
) -> None:
    async with running_sink(kafka.bootstrap) as running:
        # Refused: a-d, then the half a-b goes through, then c-d is refused, then c alone.
        kafka.push_request_errors(
            PRODUCE, [MESSAGE_TOO_LARGE, 0, MESSAGE_TOO_LARGE, MESSAGE_TOO_LARGE]
        )
        with pytest.raises(RecordTooLarge, match="record c is too large") as caught:
            await running.sink.deliver(batch("t", 0, "a", "b", "c", "d"))
        assert (caught.value.index, caught.value.acked) == (2, (0, 1))
        assert await running.sink.deliver(batch("t", 0, "c", "d")) == Receipt([2, 3])
    assert (await keys_on(kafka.bootstrap, "t", 1))[0] == [b"a", b"b", b"c", b"d"]


# ---- starting ------------------------------------------------------------------------------------


async def test_a_cluster_that_is_away_at_start_is_waited_for_and_named() -> None:
    async with running_sink("127.0.0.1:1") as running:
        await until(lambda: "kafka at 127.0.0.1:1 is not usable" in running.problem)
        assert "Connect call failed" in running.problem


async def test_a_producer_that_gets_no_id_is_tried_again(kafka: EmbeddedKafka) -> None:
    kafka.push_request_errors(INIT_PRODUCER_ID, [31])
    async with running_sink(kafka.bootstrap) as running:
        assert await running.sink.deliver(batch("t", 0, "a")) == Receipt([0])


class Everything(logging.Handler):
    """What reaches the root logger, as a daemon's log does."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.name, record.levelno))


async def test_nothing_of_the_client_reaches_the_log_above_debug(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="watchrelay")
    everything = Everything()
    logging.getLogger().addHandler(everything)
    try:
        async with running_sink(kafka.bootstrap) as running:
            kafka.push_request_errors(PRODUCE, [NOT_LEADER])
            await running.sink.deliver(batch("t", 0, "a"))
    finally:
        logging.getLogger().removeHandler(everything)
    assert not [name for name, _ in everything.seen if name.startswith("aiokafka")]
