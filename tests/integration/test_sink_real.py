"""Real Apache Kafka 3.9 and 4.1, also killed under load: what the embedded one
cannot show."""

import asyncio
import itertools
import os
import random

import pytest

from tests.support.kafkabroker import Version, versions
from tests.support.realparts import KafkaBroker
from tests.support.sinkparts import batch, fresh_topic, keys_on, one, running_sink, until
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core.errors import RecordTooLarge, TopicRefused
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.record_batch import Packer
from watchrelay.kafka.control_topic import ControlTopic
from watchrelay.kafka.partition import TopicLimits
from watchrelay.kafka.producer import ProducerSettings
from watchrelay.kafka.topics import Topics, TopicSpec

pytestmark = pytest.mark.real


def plain(broker: KafkaBroker) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=(broker.bootstrap,))


# ---- topics --------------------------------------------------------------------------------------


async def test_a_topic_is_created_as_the_contract_says_and_then_found_good(
    kafka_broker: KafkaBroker,
) -> None:
    name = fresh_topic()
    assert await Topics(plain(kafka_broker)).check_topic(one(name)) is None
    facts = await Topics(plain(kafka_broker)).ensure_topic(one(name))
    assert (
        facts.partitions,
        facts.max_message_bytes,
        facts.created,
        facts.checked,
        facts.findings,
    ) == (2, 4 << 20, True, True, ())
    again = await Topics(plain(kafka_broker), create=False).ensure_topic(one(name))
    assert (again.created, again.checked, again.findings) == (False, True, ())


async def test_control_and_signal_topics_are_created(kafka_broker: KafkaBroker) -> None:
    topics = Topics(plain(kafka_broker))
    for kind in ("control", "signal"):
        spec = TopicSpec(name=fresh_topic(), kind=kind, replication_factor=1, min_insync_replicas=1)
        facts = await topics.ensure_topic(spec)
        assert (facts.partitions, facts.findings) == (1, ())


@pytest.mark.parametrize(
    ("configs", "why"),
    [
        ({"cleanup.policy": "compact"}, "min.compaction.lag.ms is 0"),
        (
            {
                "cleanup.policy": "compact",
                "min.compaction.lag.ms": "9000000",
                "delete.retention.ms": "1000",
            },
            "delete.retention.ms is 1000",
        ),
        ({"retention.ms": "7199999"}, "retention.ms is 7199999"),
        ({"retention.ms": "9000000", "min.insync.replicas": "2"}, "min.insync.replicas is 2"),
    ],
)
async def test_a_dangerous_topic_is_refused_until_the_command_named_was_run(
    kafka_broker: KafkaBroker, configs: dict[str, str], why: str
) -> None:
    name = fresh_topic()
    await asyncio.to_thread(kafka_broker.create_topic, name, partitions=2, config=configs)
    with pytest.raises(TopicRefused, match=why) as caught:
        await Topics(plain(kafka_broker)).ensure_topic(one(name))
    command = str(caught.value).partition("mend it with: ")[2]
    assert command.startswith(
        f"kafka-configs.sh --bootstrap-server {kafka_broker.bootstrap} --alter --entity-type "
        f"topics --entity-name {name}"
    )


async def test_fewer_partitions_and_too_many_replicas_are_refused_and_more_partitions_are_warned_of(
    kafka_broker: KafkaBroker,
) -> None:
    name, topics = fresh_topic(), Topics(plain(kafka_broker))
    await asyncio.to_thread(
        kafka_broker.create_topic, name, partitions=2, config={"max.message.bytes": "1000"}
    )
    with pytest.raises(TopicRefused, match="it has 2 partitions, the stream is pinned to 3"):
        await topics.ensure_topic(one(name, partitions=3))
    facts = await topics.ensure_topic(one(name, partitions=1))
    assert [each.text for each in facts.findings] == [
        "it has 2 partitions, the pinned 1 is used",
        "max.message.bytes is 1000: large objects will be published in part",
    ]
    with pytest.raises(TopicRefused, match="replicationFactor is 3, the cluster has 1 broker"):
        await topics.ensure_topic(one(fresh_topic(), replication_factor=3))
    with pytest.raises(TopicRefused, match="createTopics is false"):
        await Topics(plain(kafka_broker), create=False).ensure_topic(one(fresh_topic()))


async def test_a_topic_of_two_streams_is_made_for_the_slower_one(kafka_broker: KafkaBroker) -> None:
    name, topics = fresh_topic(), Topics(plain(kafka_broker))
    topics.expect(name, lambda: [one(name, interval_s=60), one(name, interval_s=86400)])
    await topics.ensure_topic(one(name, interval_s=60))
    assert (await topics.ensure_topic(one(name, interval_s=86400))).findings == ()


# ---- sizes ---------------------------------------------------------------------------------------


async def test_kafka_s_own_limit_finds_the_record_when_ours_was_out_of_date(
    kafka_broker: KafkaBroker,
) -> None:
    name = fresh_topic()
    await asyncio.to_thread(kafka_broker.create_topic, name, config={"max.message.bytes": "2000"})
    records = [WireRecord(f"n{index}".encode(), os.urandom(100), []) for index in range(9)]
    records.insert(5, WireRecord(b"big", os.urandom(5000), []))
    async with running_sink(plain(kafka_broker)) as running:
        running.sink.limit(name, 4 << 20)
        with pytest.raises(RecordTooLarge, match="record big") as caught:
            await running.sink.deliver(Batch(name, 0, records))
        assert caught.value.index == 5
        assert caught.value.acked == tuple(range(len(caught.value.acked)))
        rest = [record for record in records[len(caught.value.acked) :] if record.key != b"big"]
        await running.sink.deliver(Batch(name, 0, rest))
        # With the limit known, nothing needs to be tried.
        running.sink.limit(name, 2000)
        with pytest.raises(RecordTooLarge) as early:
            await running.sink.deliver(Batch(name, 0, records))
        assert early.value.acked == ()
    assert (await keys_on(kafka_broker.bootstrap, name, 1))[0] == [
        f"n{index}".encode() for index in range(9)
    ]


async def test_a_record_that_no_segment_can_hold_is_refused_in_the_name_of_that_setting(
    kafka_broker: KafkaBroker,
) -> None:
    name, topics = fresh_topic(), Topics(plain(kafka_broker))
    configs = {"max.message.bytes": str(4 << 20), "segment.bytes": str(1 << 20)}
    await asyncio.to_thread(kafka_broker.create_topic, name, config=configs)
    facts = await topics.ensure_topic(one(name, partitions=1))
    assert (facts.max_message_bytes, facts.bounded_by) == (1 << 20, "segment.bytes")
    batch = Batch(name, 0, [WireRecord(b"big", os.urandom(1_100_000), [])])
    async with running_sink(plain(kafka_broker)) as running:
        running.sink.limit(name, 4 << 20)  # as where the configs may not be read
        for by_whom in ("kafka refused it", "compressed it is over segment.bytes, 1048576"):
            with pytest.raises(RecordTooLarge, match=by_whom) as caught:
                await running.sink.deliver(batch)
            assert caught.value.setting == "segment.bytes"
            assert "max.message.bytes" not in str(caught.value)
            running.sink.limit(name, facts.max_message_bytes, facts.bounded_by)


async def test_a_batch_of_exactly_the_limit_passes_and_one_byte_more_does_not(
    kafka_broker: KafkaBroker,
) -> None:
    name = fresh_topic()
    record = WireRecord(b"k", random.Random(1).randbytes(3000), [])
    async with running_sink(plain(kafka_broker)) as running:
        packed = Packer().pack([record], most=1, limits=TopicLimits(1 << 20, 1 << 20), now_ms=0)
        assert not isinstance(packed, int)
        size = packed.size
        await asyncio.to_thread(
            kafka_broker.create_topic, name, config={"max.message.bytes": str(size)}
        )
        running.sink.limit(name, size)
        assert await running.sink.deliver(Batch(name, 0, [record])) == Receipt([0])
        assert not any(running.errors(name).values())
        running.sink.limit(name, size - 1)
        with pytest.raises(RecordTooLarge):
            await running.sink.deliver(Batch(name, 0, [record]))


# ---- trouble -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions("4.1"))
async def test_a_broker_killed_under_load_loses_nothing_and_keeps_the_order(
    real_parts: None, version: Version
) -> None:
    with KafkaBroker(version) as broker:
        await asyncio.to_thread(broker.create_topic, "t", partitions=3)
        settings = ProducerSettings(request_timeout_s=2.0, stalled_after_s=1.0)
        async with running_sink(plain(broker), settings) as running:
            delivered = [0, 0, 0]
            enough = False

            async def write(partition: int) -> None:
                for index in itertools.count():
                    names = [f"{index}-{place}" for place in range(5)]
                    receipt = await running.sink.deliver(batch("t", partition, *names, padding=200))
                    assert receipt.offsets == list(
                        range(receipt.offsets[0], receipt.offsets[0] + 5)
                    )
                    delivered[partition] = index + 1
                    if enough:
                        return

            async with asyncio.TaskGroup() as writers:
                for partition in range(3):
                    writers.create_task(write(partition), name="writer")
                await until(lambda: min(delivered) > 100)
                await asyncio.to_thread(broker.kill)
                await until(lambda: "no acknowledgement" in running.problem)
                await asyncio.to_thread(broker.restart)
                reached = list(delivered)
                await until(
                    lambda: all(
                        now > then + 50 for now, then in zip(delivered, reached, strict=True)
                    ),
                    deadline_s=60.0,
                )
                await asyncio.to_thread(broker.pause)
                await until(lambda: running.rebuilds("watchdog") >= 1)
                broker.resume()
                reached = list(delivered)
                await until(
                    lambda: all(
                        now > then + 50 for now, then in zip(delivered, reached, strict=True)
                    ),
                    deadline_s=60.0,
                )
                enough = True
            await until(lambda: not running.problem)
        for partition, keys in enumerate(await keys_on(broker.bootstrap, "t", 3)):
            wanted = [
                f"{index}-{place}".encode()
                for index in range(delivered[partition])
                for place in range(5)
            ]
            assert keys == wanted, "in order, and no record twice"


async def test_a_deleted_topic_is_named_and_goes_on_when_it_is_there_again(
    kafka_broker: KafkaBroker,
) -> None:
    name = fresh_topic()
    await asyncio.to_thread(kafka_broker.create_topic, name)
    settings = ProducerSettings(request_timeout_s=1.0, stalled_after_s=5.0)
    async with running_sink(plain(kafka_broker), settings) as running:
        await running.sink.deliver(batch(name, 0, "a"))
        await asyncio.to_thread(lambda: kafka_broker.admin.delete_topics([name])[name].result(10))
        async with asyncio.TaskGroup() as deliveries:
            delivery = deliveries.create_task(
                running.sink.deliver(batch(name, 0, "b")), name="delivery"
            )
            await until(lambda: "was the topic deleted" in running.problem)
            await asyncio.to_thread(kafka_broker.create_topic, name)
        assert delivery.result() == Receipt([0])
        await until(lambda: not running.problem)


async def test_each_relay_that_comes_after_claims_a_higher_epoch(kafka_broker: KafkaBroker) -> None:
    async def none() -> int:
        return 0

    name = fresh_topic()
    await Topics(plain(kafka_broker)).ensure_topic(
        TopicSpec(name=name, kind="control", replication_factor=1, min_insync_replicas=1)
    )
    epochs: list[int] = []

    async def live(holder: str) -> None:
        async with running_sink(plain(kafka_broker)) as running:
            control = ControlTopic(plain(kafka_broker), name, running.sink, holder=holder)
            tail = asyncio.get_running_loop().create_task(control.run(), name="control")
            epochs.append(
                await control.claim(
                    "pods", {"topic": "t", "partitions": 1}, starting_point=None, highest_epoch=none
                )
            )
            await control.write("snapshot", "pods", {"epoch": epochs[-1]})
            await until(lambda: control.index("pods") == {"epoch": epochs[-1]})
            tail.cancel()
            await asyncio.wait([tail])

    for holder in ("first", "second", "third"):
        await live(holder)
    assert epochs == sorted(set(epochs))
