"""Real Apache Kafka 3.9 and 4.1: what the embedded one cannot show."""

import asyncio
import os
import random

import pytest

from tests.support.realparts import KafkaBroker
from tests.support.sinkparts import batch, fresh_topic, one, running_sink, until
from watchrelay.contract.wire import Batch, Receipt, WireRecord
from watchrelay.core.errors import RecordTooLarge, TopicRefused
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.record_batch import Packer
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
        running.sink.set_limit(name, 4 << 20)  # as where the configs may not be read
        for by_whom in ("kafka refused it", "compressed it is over segment.bytes, 1048576"):
            with pytest.raises(RecordTooLarge, match=by_whom) as caught:
                await running.sink.deliver(batch)
            assert caught.value.setting == "segment.bytes"
            assert "max.message.bytes" not in str(caught.value)
            running.sink.set_limit(name, facts.max_message_bytes, facts.bounded_by)


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
        running.sink.set_limit(name, size)
        assert await running.sink.deliver(Batch(name, 0, [record])) == Receipt([0])
        assert not any(running.errors(name).values())
        running.sink.set_limit(name, size - 1)
        with pytest.raises(RecordTooLarge):
            await running.sink.deliver(Batch(name, 0, [record]))


# ---- trouble -------------------------------------------------------------------------------------


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
