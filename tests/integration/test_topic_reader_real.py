"""`TopicReader` on a real Kafka: topics that go and are recreated under it, and credentials that
are not good."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import NewPartitions

from tests.support.kafkabroker import KafkaBroker
from tests.support.pod_topics import LogAppender, state
from tests.support.relays import until
from tests.support.stream_log import NODES, Log, Writer, stream
from tests.vectors.document import claim, description
from watchrelay.consumer import Change, TopicReader

pytestmark = pytest.mark.real


async def written(broker: KafkaBroker, name: str, *pods: str, epoch: int) -> Writer:
    """Topics with two partitions, on which pods are published and proven."""
    topic, control = f"k8s.{name}.core.pods", f"k8s.{name}.control"
    broker.create_topic(topic, partitions=2)
    broker.create_topic(control)
    logs = [Log(), Log()]
    writer = Writer(stream(partitions=2), logs, epoch=epoch)
    writer.first(*pods)
    writer.beat()
    async with LogAppender(broker.bootstrap) as appender:
        await appender.append(topic, logs)
        await appender.send(control, "stream/pods", description(2, topic=topic))
        await appender.send(control, "claim/pods", claim(f"w{epoch}"))
    return writer


def delete(broker: KafkaBroker, *topics: str) -> None:
    for deleted in broker.admin.delete_topics(list(topics)).values():
        deleted.result(10)


async def test_topics_recreated_while_they_are_read_are_read_again(
    kafka_broker: KafkaBroker,
) -> None:
    """The new log is shorter than the former one, and its epochs are lower: what was held of the
    former one must not stay."""
    topic, control, problems = "k8s.recreated.core.pods", "k8s.recreated.control", list[str]()
    await written(kafka_broker, "recreated", *(f"shop/{number}" for number in range(20)), epoch=7)
    changes = deque[Change]()

    async def follow(reader: TopicReader) -> None:
        async for change in reader:
            changes.append(change)

    async with (
        asyncio.timeout(60.0),
        TopicReader(
            kafka_broker.bootstrap, control_topic=control, waiting=problems.append
        ) as reader,
    ):
        await reader.ready()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(follow(reader), name="follow")
            await until(lambda: len(changes) == 20)
            delete(kafka_broker, topic, control)
            await until(lambda: bool(problems))
            assert (
                f"topic {topic} of stream pods is described on {control} and not there"
                in problems[0]
            )
            assert not reader.proven
            new = await written(kafka_broker, "recreated", "shop/3", "shop/z", epoch=2)
            held = {key.decode() for each in new.held for key in each}
            await until(lambda: reader.proven and set(reader.objects("pods")) == held)
            await reader.close()
        kinds = {problem.kind for problem in reader.problems}
        assert "recreated" in kinds
        assert kinds <= {"recreated", "control"}
    rows = {change.key: change for change in changes}
    assert {key for key, change in rows.items() if change.verb != "deleted"} == held, (
        "a table made of the changes"
    )


async def test_without_a_control_topic_partitions_that_a_recreated_topic_gained_are_read(
    kafka_broker: KafkaBroker,
) -> None:
    topic = "k8s.gained.core.pods"
    await written(kafka_broker, "gained", "shop/a", epoch=7)

    async def follow(reader: TopicReader) -> None:
        async for _ in reader:
            pass

    async with asyncio.timeout(60.0), TopicReader(kafka_broker.bootstrap, topics=[topic]) as reader:
        await reader.ready()
        delete(kafka_broker, topic)
        kafka_broker.create_topic(topic, partitions=3)
        new = Writer(stream(partitions=3), [Log(), Log(), Log()], epoch=2)
        new.first(*(f"shop/{letter}" for letter in "bcdefgh"))
        new.beat()
        async with LogAppender(kafka_broker.bootstrap) as appender:
            await appender.append(topic, new.logs)
        held = {key.decode() for each in new.held for key in each}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(follow(reader), name="follow")
            await until(lambda: reader.proven and set(reader.objects("pods")) == held)
            await reader.close()
        assert [each.partition for each in reader.partitions()] == [0, 1, 2]


async def test_a_recreated_log_is_not_proven_before_its_end_is_reached(
    kafka_broker: KafkaBroker,
) -> None:
    """The new log is shorter than the reader's position, and longer than what it takes at once:
    its first marker is long past."""
    topic, control = "k8s.past.core.pods", "k8s.past.control"
    kafka_broker.create_topic(control)

    async def publish(appender: LogAppender, epoch: int, changes: int) -> Writer:
        kafka_broker.create_topic(topic, partitions=2)
        writer = Writer(stream(partitions=2), [Log(), Log()], epoch=epoch)
        writer.first("shop/a")
        writer.beat()
        for number in range(changes):
            writer.put("shop/a", number + 2)
        writer.put("shop/b", 1)
        writer.beat()
        await appender.append(topic, writer.logs)
        return writer

    async with (
        asyncio.timeout(60.0),
        LogAppender(kafka_broker.bootstrap) as appender,
        LogAppender(kafka_broker.bootstrap) as second,
    ):
        await publish(appender, 2, 5000)
        await appender.send(control, "stream/pods", description(2, topic=topic))
        await appender.send(control, "claim/pods", claim("w1"))
        async with TopicReader(kafka_broker.bootstrap, control_topic=control) as reader:
            await reader.ready()
            delete(kafka_broker, topic)
            await until(lambda: topic not in kafka_broker.admin.list_topics(timeout=10.0).topics)
            new = await publish(second, 3, 3000)
            held = {key.decode(): record.value for each in new.held for key, record in each.items()}
            while state(reader) != held:
                await reader._step()
                assert not (reader.proven and reader.problems) or state(reader) == held
            await reader.ready()


async def test_a_recreated_log_that_is_longer_already_is_distinguished_from_the_former_one(
    kafka_broker: KafkaBroker,
) -> None:
    """The reader was held up meanwhile: no offset is out of reach, no topic was missing, and every
    epoch is that of a former writer."""
    topic, control = "k8s.longer.core.pods", "k8s.longer.control"
    await written(kafka_broker, "longer", *(f"shop/old{number}" for number in range(10)), epoch=7)
    async with (
        asyncio.timeout(60.0),
        TopicReader(kafka_broker.bootstrap, control_topic=control) as reader,
    ):
        await reader.ready()
        delete(kafka_broker, topic, control)
        await until(
            lambda: not {topic, control} & set(kafka_broker.admin.list_topics(timeout=10.0).topics)
        )
        with ThreadPoolExecutor(1) as elsewhere:
            pods = (f"shop/new{number}" for number in range(60))
            # holds up this loop
            new = elsewhere.submit(
                lambda: asyncio.run(written(kafka_broker, "longer", *pods, epoch=2))
            ).result()
        held = {key.decode() for each in new.held for key in each}
        while set(reader.objects("pods")) != held:
            await reader._step()
        await reader.ready()
        assert (
            {"recreated"}
            <= {problem.kind for problem in reader.problems}
            <= {"recreated", "control"}
        )


async def test_a_stream_that_was_retired_and_whose_topic_was_deleted_is_not_waited_for(
    kafka_broker: KafkaBroker,
) -> None:
    """Its deletes were not read before the topic was gone: they are changes all the same."""
    topic, control = "k8s.over.core.nodes", "k8s.over.control"
    pods = await written(kafka_broker, "over", "shop/a", epoch=2)
    kafka_broker.create_topic(topic)
    nodes = Writer(stream(NODES), [Log()], epoch=2)
    nodes.first("n1")
    nodes.beat()
    async with asyncio.timeout(60.0), LogAppender(kafka_broker.bootstrap) as appender:
        await appender.append(topic, nodes.logs)
        await appender.send(control, "stream/nodes", description(1, topic=topic))
        await appender.send(control, "claim/nodes", claim("w9"))
        async with TopicReader(kafka_broker.bootstrap, control_topic=control) as reader:
            await reader.ready()
            assert {(await anext(reader)).verb for _ in range(2)} == {"added"}
            delete(kafka_broker, topic)
            for key in ("claim/nodes", "snapshot/nodes", "stream/nodes"):
                await appender.send(control, key, None)
            change = await anext(reader)
            assert (change.stream, change.key, change.verb, change.reason) == (
                "nodes",
                "/n1",
                "deleted",
                "gone",
            )
            await reader.ready()
            assert reader.objects("nodes") == {}
            assert set(reader.objects("pods")) == {
                key.decode() for each in pods.held for key in each
            }


async def test_partitions_that_are_added_are_taken_in(kafka_broker: KafkaBroker) -> None:
    topic, control, problems = "k8s.added.core.pods", "k8s.added.control", list[str]()
    writer = await written(kafka_broker, "added", "shop/a", "shop/b", "shop/c", epoch=2)
    async with LogAppender(kafka_broker.bootstrap) as appender:
        await appender.send(control, "stream/pods", description(3, topic=topic))
    async with (
        asyncio.timeout(60.0),
        TopicReader(
            kafka_broker.bootstrap, control_topic=control, waiting=problems.append
        ) as reader,
        asyncio.TaskGroup() as tasks,
    ):
        ready = tasks.create_task(reader.ready(), name="ready")
        await until(lambda: bool(problems))
        assert (
            f"topic {topic} of stream pods has 2 partitions, the description on {control} "
            "says 3: kafka-topics.sh"
        ) in problems[0]
        for added in kafka_broker.admin.create_partitions([NewPartitions(topic, 3)]).values():
            added.result(10)
        await until(lambda: len(reader.partitions()) == 3)
        ready.cancel()
        assert set(reader.objects("pods")) == {key.decode() for each in writer.held for key in each}
