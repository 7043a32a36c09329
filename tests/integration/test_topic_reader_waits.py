"""`TopicReader`, `tail` and `verify` where something is missing: it is named, looked for again, and
read once it exists; and how reading ends."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.errors import NoError, UnknownTopicOrPartitionError

from tests.support.faultproxy import FaultProxy
from tests.support.pod_topics import NAMES, LogAppender, PodTopics, everything, state, take
from tests.support.relays import until
from tests.support.stream_log import NODES, Log, Writer, stream
from tests.vectors.document import claim, description
from watchrelay.consumer import NothingPublished, PositionsLost, TopicReader
from watchrelay.consumer.audit_run import open_auditor
from watchrelay.consumer.connecting import PROOF_AWAITED, Waiting
from watchrelay.consumer.reader import LOOK_AGAIN_S, TailReader
from watchrelay.consumer.topic import LOOK_ANYWAY_S, SILENT_AFTER_S
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.kafka.client.connection import KafkaConnection


async def describe_nodes(pod_topics: PodTopics, partitions: int = 1) -> str:
    """Nodes are described on a topic that is not there."""
    topic = f"{pod_topics.topic}.nodes"
    await pod_topics.appender.send(
        pod_topics.control, "stream/nodes", description(partitions, topic=topic)
    )
    await pod_topics.appender.send(pod_topics.control, "claim/nodes", claim("w1"))
    return topic


async def tell_nodes(pod_topics: PodTopics, topic: str) -> None:
    pod_topics.kafka.create_topic(topic, 1)
    log = Log()
    nodes = Writer(stream(NODES), [log], epoch=2)
    nodes.first("n1")
    nodes.beat()
    await pod_topics.appender.append(topic, [log])


async def test_a_topic_that_comes_later_is_waited_for_by_name_and_taken_in(
    pod_topics: PodTopics,
) -> None:
    topic, problems = await describe_nodes(pod_topics), list[str]()
    async with (
        pod_topics.reader(waiting=problems.append) as reader,
        asyncio.timeout(60.0),
        asyncio.TaskGroup() as tasks,
    ):
        ready = tasks.create_task(reader.ready())
        await until(lambda: len(problems) > 1)
        assert (
            f"topic {topic} of stream nodes is described on {pod_topics.control} and not there"
            in problems[0]
        )
        await tell_nodes(pod_topics, topic)
        await ready
        assert set(reader.objects("nodes")) == {"/n1"}


async def test_the_other_streams_are_read_while_one_topic_is_missing(pod_topics: PodTopics) -> None:
    await pod_topics.begin()
    topic, problems = await describe_nodes(pod_topics), list[str]()
    async with pod_topics.reader(waiting=problems.append) as reader, asyncio.timeout(60.0):
        changes = await take(reader, len(pod_topics.held()))
        assert {change.stream for change in changes} == {"pods"}
        assert not reader.proven
        assert topic in problems[0]
        await tell_nodes(pod_topics, topic)
        await reader.ready()
        assert reader.streams == ["nodes", "pods"]
    assert not reader.problems


async def test_a_topic_that_one_answer_does_not_show_is_read_on(pod_topics: PodTopics) -> None:
    await pod_topics.begin()
    problems = list[str]()
    async with pod_topics.reader(waiting=problems.append) as reader:
        await take(reader, len(pod_topics.held()))
        async with asyncio.timeout(60.0), asyncio.TaskGroup() as tasks:
            pod_topics.kafka.set_topic_error(pod_topics.topic, UnknownTopicOrPartitionError.errno)
            change = tasks.create_task(anext(reader))
            await describe_nodes(pod_topics)  # so that it looks at once, and again each second
            await until(lambda: any(f"{pod_topics.topic} of" in each for each in problems))
            assert not reader.proven
            pod_topics.kafka.set_topic_error(pod_topics.topic, NoError.errno)
            pod_topics.writer.put("shop/a", 3)
            pod_topics.writer.beat()
            await pod_topics.append()
            assert (await change).key == "shop/a"
    assert not reader.problems


async def test_brokers_that_were_replaced_behind_the_bootstrap_address_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, ahead_s = asyncio.get_running_loop(), [0.0]
    cures = list[Callable[[], None]]()
    now_s = loop.time
    monkeypatch.setattr(loop, "time", lambda: now_s() + ahead_s[0])

    def waiting(problem: str) -> None:
        if cures and "no broker answers" in problem:
            cures.pop()()
            ahead_s[0] += SILENT_AFTER_S

    def port(kafka: EmbeddedKafka) -> int:
        return int(kafka.bootstrap.rpartition(":")[2])

    with (
        EmbeddedKafka.start() as former,
        EmbeddedKafka.start() as other,
        FaultProxy(port(former)) as bootstrap,
    ):

        def interrupt(cure: Callable[[], None]) -> None:
            cures.append(cure)
            former.broker_down()
            ahead_s[0] += LOOK_ANYWAY_S

        async with (
            LogAppender(former.bootstrap) as first,
            LogAppender(other.bootstrap) as second,
            asyncio.timeout(2 * (LOOK_ANYWAY_S + SILENT_AFTER_S) + 20.0),
        ):
            here, there = PodTopics(former, first), PodTopics(other, second)
            await here.begin()
            there.topic, there.control = here.topic, here.control
            other.create_topic(here.topic, 2)
            other.create_topic(here.control, 1)
            await there.begin()
            async with (
                TopicReader(
                    f"127.0.0.1:{bootstrap.port}", control_topic=here.control, waiting=waiting
                ) as reader,
                asyncio.TaskGroup() as tasks,
            ):
                await take(reader, len(here.held()))
                change = tasks.create_task(anext(reader))
                interrupt(former.broker_up)
                await until(lambda: not cures)
                here.writer.put("shop/a", 3)
                here.writer.beat()
                await here.append()
                assert (await change).key == "shop/a"
                assert not reader.problems, "read on where it was"
                change = tasks.create_task(anext(reader))
                interrupt(lambda: bootstrap.lead_to(port(other)))
                await change
                await reader.ready()
                assert state(reader) == there.held()


async def test_with_an_end_a_missing_topic_is_reported_in_place_of_the_proof(
    pod_topics: PodTopics,
) -> None:
    topic = await describe_nodes(pod_topics)
    async with pod_topics.ended() as reader:
        with pytest.raises(
            NothingPublished,
            match=f"topic {topic} of stream nodes is described on .* and not there",
        ):
            await reader.ready()
    await pod_topics.begin()
    async with pod_topics.ended() as reader:
        with pytest.raises(NothingPublished, match=f"not proven: topic {topic} of stream nodes"):
            await reader.ready()


async def test_too_few_partitions_are_reported_at_once_by_every_reader(
    pod_topics: PodTopics,
) -> None:
    topic, problems = await describe_nodes(pod_topics, partitions=3), list[str]()
    await tell_nodes(pod_topics, topic)
    words = (
        f"topic {topic} of stream nodes has 1 partition, the description on {pod_topics.control} "
        "says 3: kafka-topics.sh .*--partitions 3"
    )
    async with asyncio.timeout(60.0):
        async with pod_topics.ended() as reader:
            with pytest.raises(NothingPublished, match=words):
                await reader.ready()
        async with pod_topics.reader(waiting=problems.append) as reader:
            assert (await take(reader, 1))[0].stream == "nodes", "what is there is read"
            assert not reader.proven
        assert "has 1 partition" in problems[0]
        connection = KafkaConnection(bootstrap_servers=(pod_topics.kafka.bootstrap,))
        async with open_auditor(connection, control_topic=pod_topics.control) as auditor:
            await auditor.read_to_end()
        assert re.match(words, auditor.missing["nodes"]), "what is there is read"
        problems.clear()
        tail = TailReader(
            connection,
            control_topic=pod_topics.control,
            from_beginning=True,
            until_end=True,
            waiting=problems.append,
        )
        assert {one.topic async for batch in tail.batches() for one in batch} == {topic}
        assert "has 1 partition" in problems[0]


async def test_a_tail_without_any_topic_says_which_one_is_missing(pod_topics: PodTopics) -> None:
    topic = await describe_nodes(pod_topics)
    tail = TailReader(
        KafkaConnection(bootstrap_servers=(pod_topics.kafka.bootstrap,)),
        control_topic=pod_topics.control,
        until_end=True,
    )
    with pytest.raises(NothingPublished, match=topic):
        [batch async for batch in tail.batches()]


async def test_a_state_that_no_marker_proves_is_reported_while_ready_waits(
    pod_topics: PodTopics,
) -> None:
    problems: list[str] = []
    pod_topics.writer.first(*NAMES)
    pod_topics.writer.put("shop/a", 2, lose=True)
    pod_topics.writer.put("shop/a", 3)
    await pod_topics.append()
    await pod_topics.describe()
    async with (
        pod_topics.reader(waiting=problems.append) as reader,
        asyncio.timeout(60.0),
        asyncio.TaskGroup() as tasks,
    ):
        ready = tasks.create_task(reader.ready())
        await until(lambda: bool(problems))
        assert problems[0].startswith("read to the end, and not proven yet: pods/")
        pod_topics.writer.snapshot()
        await pod_topics.append()
        await ready


async def test_a_described_stream_without_any_record_is_named_with_its_cure_and_is_not_complete(
    pod_topics: PodTopics,
) -> None:
    """The log is the same where the records were removed and a relay publishes them again."""
    await pod_topics.begin()
    topic, problems = await describe_nodes(pod_topics), list[str]()
    pod_topics.kafka.create_topic(topic, 1)
    cure = "no record of nodes is there: start the relay, or, if none is to write it, "
    cure += "watchrelay retire nodes"
    async with pod_topics.reader(streams=["pods"]) as reader, asyncio.timeout(60.0):
        await reader.ready()
    async with pod_topics.ended() as reader:
        with pytest.raises(NothingPublished, match=f"not proven: nodes/0; {cure}$"):
            await reader.ready()
    async with (
        pod_topics.reader(waiting=problems.append) as reader,
        asyncio.timeout(60.0),
        asyncio.TaskGroup() as tasks,
    ):
        ready = tasks.create_task(reader.ready())
        await until(lambda: any(cure in each for each in problems))
        assert not ready.done()
        for key in ("stream/nodes", "claim/nodes"):
            await pod_topics.appender.send(pod_topics.control, key, None)
        await ready
    connection = KafkaConnection(bootstrap_servers=(pod_topics.kafka.bootstrap,))
    await describe_nodes(pod_topics)
    async with open_auditor(connection, control_topic=pod_topics.control) as auditor:
        await auditor.read_to_end()
        rows = auditor.rows()
    assert [row[0].problems[0].detail for row in rows if row[0].problems] == [
        f"what the log holds is not proven: {cure}"
    ]


async def test_a_stream_that_nobody_says_anything_of_is_named(pod_topics: PodTopics) -> None:
    await pod_topics.begin()
    async with pod_topics.ended(
        control_topic="", topics=[pod_topics.topic], streams=["nodes"]
    ) as reader:
        with pytest.raises(NothingPublished, match=r"nodes \(0 of 2 partitions found\)"):
            await reader.ready()
    async with pod_topics.ended(topics=["k8s.other"]) as reader:
        with pytest.raises(
            NothingPublished, match=r"of the wanted streams none is on topic k8s\.other"
        ):
            await reader.ready()


async def test_a_saved_place_in_a_partition_that_is_not_is_lost(pod_topics: PodTopics) -> None:
    await pod_topics.begin()
    async with pod_topics.ended() as reader:
        await everything(reader)
        saved = reader.positions()
    far = {**saved[0], "partition": 99}
    for where in ({}, {"control_topic": "", "topics": [pod_topics.topic]}):
        async with pod_topics.ended(resume=[*saved, far], **where) as reader:
            with pytest.raises(
                PositionsLost, match=r"/99, offset .*: the (stream|topic) has 2 partitions now"
            ):
                await everything(reader)


async def test_closing_ends_what_goes_on_in_other_tasks(pod_topics: PodTopics) -> None:
    await pod_topics.begin()
    async with pod_topics.reader() as reader, asyncio.timeout(60.0), asyncio.TaskGroup() as tasks:
        await reader.ready()
        iteration = tasks.create_task(everything(reader), name="iteration")
        await until(lambda: not reader._pending)
        await reader.close()
        assert len(await iteration) == len(pod_topics.held())
        assert await everything(reader) == []
        assert state(reader) == pod_topics.held()
    with pytest.raises(RuntimeError, match="entered once"):
        async with reader:
            pass


async def test_ready_of_a_reader_that_is_closed_meanwhile_does_not_return(
    pod_topics: PodTopics,
) -> None:
    waiting: list[str] = []
    async with (
        pod_topics.reader(streams=["nodes"], waiting=waiting.append) as reader,
        asyncio.timeout(60.0),
        asyncio.TaskGroup() as tasks,
    ):

        async def ready() -> None:
            with pytest.raises(RuntimeError, match="the reader is closed, and was not ready"):
                await reader.ready()

        tasks.create_task(ready(), name="ready")
        await until(lambda: bool(waiting))
        await reader.close()


async def test_a_reader_is_entered_before_it_reads() -> None:
    reader = TopicReader("k:9092", control_topic="k8s.t.control")
    for reading in (reader.ready(), everything(reader)):
        with pytest.raises(RuntimeError, match="enter the reader before reading"):
            await reading


@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_closing_or_cancelling_a_start_leaves_nothing_behind(how: str) -> None:
    before = asyncio.all_tasks()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        reader = TopicReader("{}:{}".format(*silent.getsockname()), control_topic="k8s.t.control")
        expected = RuntimeError if how == "close" else asyncio.CancelledError

        async def start() -> None:
            with pytest.raises(expected):
                await reader.__aenter__()

        async with asyncio.timeout(60.0), asyncio.TaskGroup() as tasks:
            starting = tasks.create_task(start(), name="start")
            await until(lambda: reader._scope is not None)
            if how == "close":
                await reader.close()
            else:
                starting.cancel()
        assert not reader._open.is_set()
    assert asyncio.all_tasks() == before


async def test_a_ready_that_is_cancelled_again_and_again_harms_nothing(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    async with pod_topics.reader() as reader, asyncio.timeout(60.0), asyncio.TaskGroup() as tasks:
        for turns in range(0, 400, 3):
            ready = tasks.create_task(reader.ready(), name="ready")
            for _ in range(turns):
                await asyncio.sleep(0)
            ready.cancel()
            await asyncio.wait([ready])
        await reader.ready()
        assert state(reader) == pod_topics.held()
        assert len(await take(reader, len(pod_topics.held()))) == len(pod_topics.held())
    assert not reader.problems


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"control_topic": "k8s.tset.control"}, "topic k8s.tset.control is not there"),
        ({"streams": ["pdos"]}, "stream pdos has not been published yet; published: pods"),
    ],
)
async def test_by_default_a_reader_warns_once_of_what_it_waits_for(
    pod_topics: PodTopics, caplog: pytest.LogCaptureFixture, wrong: dict[str, Any], words: str
) -> None:
    await pod_topics.begin()
    arguments: dict[str, Any] = {"control_topic": pod_topics.control, **wrong}

    def warned() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name == "watchrelay.consumer"]

    async with (
        TopicReader(pod_topics.kafka.bootstrap, **arguments) as reader,
        asyncio.TaskGroup() as tasks,
    ):
        ready = tasks.create_task(reader.ready(), name="ready")
        await until(lambda: bool(warned()))
        await asyncio.wait([ready], timeout=3 * LOOK_AGAIN_S)  # more looks, one a second
        assert not ready.done()
        ready.cancel()
    assert len(warned()) == 1
    assert words in warned()[0]


async def test_a_reader_with_a_callback_for_what_is_missing_does_not_warn(
    pod_topics: PodTopics, caplog: pytest.LogCaptureFixture
) -> None:
    await pod_topics.begin()
    missing = list[str]()
    async with (
        pod_topics.reader(streams=["pdos"], waiting=missing.append) as reader,
        asyncio.TaskGroup() as tasks,
    ):
        ready = tasks.create_task(reader.ready(), name="ready")
        await until(lambda: len(missing) > 2)
        ready.cancel()
    assert not [each for each in caplog.records if each.name == "watchrelay.consumer"]


def test_a_proof_is_awaited_for_three_heartbeats_before_that_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warnings = Waiting(None)
    for _ in range(PROOF_AWAITED - 1):
        warnings.unproven("not proven yet")
    assert not caplog.records
    for _ in range(PROOF_AWAITED):
        warnings.unproven("not proven yet")
    assert [each.getMessage() for each in caplog.records] == ["waiting: not proven yet"]
    warnings.forget()
    warnings.missing("a")
    warnings.missing("a")
    warnings.missing("b")
    assert [each.getMessage() for each in caplog.records][1:] == ["waiting: a", "waiting: b"]
