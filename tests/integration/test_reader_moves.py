"""`TopicReader` where streams move to other topics, or have fewer partitions than before."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.pod_topics import PodTopics, everything, state, take
from tests.support.stream_log import NODES, Log, Writer, stream
from tests.vectors.document import claim, description
from watchrelay.consumer import PositionsLost


async def test_a_stream_that_moves_to_another_topic_takes_its_state_with_it(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    async with pod_topics.reader() as reader:
        await reader.ready()
        await take(reader, len(pod_topics.held()))
        saved = reader.positions()
        pod_topics.kafka.create_topic(f"{pod_topics.topic}.new", 2)
        moved, former = [Log(), Log()], pod_topics.held()
        new = Writer(stream(partitions=2), moved, epoch=4)
        new.first("shop/a", "shop/z")
        new.beat()
        await pod_topics.appender.append(f"{pod_topics.topic}.new", moved)
        await pod_topics.appender.send(pod_topics.control, "claim/pods", claim("w2"))
        await pod_topics.appender.send(
            pod_topics.control, "stream/pods", description(2, topic=f"{pod_topics.topic}.new")
        )
        changes = await take(reader, len(former) + 2)
        gone = {
            change.key for change in changes if (change.verb, change.reason) == ("deleted", "moved")
        }
        assert gone == set(former)
        await reader.ready()
        assert reader.objects("pods").keys() == {"shop/a", "shop/z"}
        assert {partition.topic for partition in reader.partitions()} == {f"{pod_topics.topic}.new"}
    async with pod_topics.ended(resume=saved) as reader:
        with pytest.raises(PositionsLost, match=r"is on topic .*\.new now"):
            await everything(reader)


async def test_what_a_stream_left_on_a_shared_topic_is_nothing_to_a_reader_that_begins_later(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin_with_nodes("n1", "n2", "n3")
    new = f"{pod_topics.topic}.new"
    pod_topics.kafka.create_topic(new, 2)
    moved = [Log(), Log()]
    nodes = Writer(stream(NODES, partitions=2), moved, epoch=7)
    nodes.first("n1", "n4")
    nodes.beat()
    await pod_topics.appender.append(new, moved)
    await pod_topics.appender.send(pod_topics.control, "stream/nodes", description(2, topic=new))
    await pod_topics.appender.send(pod_topics.control, "claim/nodes", claim("w2"))
    for streams in ([], ["nodes", "pods"]):
        async with pod_topics.ended(streams=streams) as reader:
            changes = [each for each in await everything(reader) if each.stream == "nodes"]
            assert [(each.verb, each.topic) for each in changes] == [("added", new)] * 2
            assert set(reader.objects("nodes")) == {"/n1", "/n4"}
            assert state(reader) == pod_topics.held()
    async with pod_topics.ended(topics=[pod_topics.topic]) as reader:
        assert {each.stream for each in await everything(reader)} == {"pods"}


async def test_a_stream_with_fewer_partitions_on_the_same_topic_is_read_from_those_alone(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    async with pod_topics.reader() as reader:
        await reader.ready()
        for name in pod_topics.writer.names():
            pod_topics.writer.delete(name)
        pod_topics.writer.snapshot()
        narrow = Writer(stream(partitions=1), pod_topics.logs[:1], epoch=9)
        narrow.first("shop/z")
        narrow.beat()
        await pod_topics.append()
        await pod_topics.appender.send(
            pod_topics.control, "stream/pods", description(1, topic=pod_topics.topic)
        )
        await pod_topics.appender.send(pod_topics.control, "claim/pods", claim("w2"))
        async with asyncio.timeout(60.0):
            async for _ in reader:
                if len(reader.partitions()) == 1:
                    break
        await reader.ready()
        assert set(reader.objects("pods")) == {"shop/z"}
        assert [each.partition for each in reader.partitions()] == [0]
