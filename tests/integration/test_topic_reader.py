"""`TopicReader` against an embedded Kafka: bootstrap, repair, resumption, and what is on topics
that should not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition

from tests.support.pod_topics import NAMES, PodTopics, everything, state, take
from tests.support.relays import until
from tests.support.stream_log import NODES, Log, Writer, resend, stream
from tests.vectors.document import claim, description
from watchrelay.consumer import (
    Change,
    NothingPublished,
    PositionsLost,
    TopicReader,
)
from watchrelay.consumer.partitions import PartitionReplicas
from watchrelay.contract.wire import WireRecord
from watchrelay.demo.kafka import EmbeddedKafka


def brief(changes: Sequence[Change]) -> list[tuple[str, str, bool]]:
    return sorted((change.verb, change.key, change.proven) for change in changes)


async def test_it_starts_at_the_newest_snapshot_and_is_ready_when_all_is_proven(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    async with pod_topics.reader() as reader:
        assert not reader.proven
        await reader.ready()
        assert state(reader) == pod_topics.held()
        assert reader.streams == ["pods"]
        assert [
            (partition.partition, partition.epoch, partition.proven)
            for partition in reader.partitions()
        ] == [
            (0, 2, True),
            (1, 2, True),
        ]
        begins = [begin for _, begin in filter(None, pod_topics.writer.last_snapshot)]
        assert {
            partition.partition: partition.start
            for replicas in reader._replicas.values()
            for partition in replicas.by_stream.values()
        } == dict(enumerate(begins))
        assert not reader.problems


async def test_live_changes_come_typed_with_what_was_there_before(pod_topics: PodTopics) -> None:
    await pod_topics.begin()
    async with pod_topics.reader(streams=["pods"]) as reader:
        await reader.ready()
        await take(reader, len(pod_topics.held()))
        before = pod_topics.held()
        pod_topics.writer.put("shop/a", 3)
        pod_topics.writer.delete("shop/b")
        pod_topics.writer.put("shop/new")
        pod_topics.writer.snapshot()
        await pod_topics.append()
        changes = {change.key: change for change in await take(reader, 3)}
        assert brief(list(changes.values())) == [
            ("added", "shop/new", True),
            ("deleted", "shop/b", True),
            ("modified", "shop/a", True),
        ]
        a, b, new = changes["shop/a"], changes["shop/b"], changes["shop/new"]
        assert (a.old_value, a.value) == (before["shop/a"], pod_topics.held()["shop/a"])
        assert (b.old_value, b.value, b.uid) == (before["shop/b"], None, "u-b")
        assert (new.old_value, new.reason, new.stream, new.topic) == (
            None,
            "watch",
            "pods",
            pod_topics.topic,
        )
        assert new.position.epoch == 2


async def test_without_a_control_topic_the_newest_heartbeats_say_where_to_start(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    zombie = Writer(stream(partitions=2), pod_topics.logs, epoch=1, before=pod_topics.writer)
    zombie.beat()
    await pod_topics.append()
    async with pod_topics.ended(control_topic="", topics=[pod_topics.topic]) as reader:
        await reader.ready()
        assert state(reader) == pod_topics.held()
        begins = [begin for _, begin in filter(None, pod_topics.writer.last_snapshot)]
        assert all(change.offset > begins[change.partition] for change in await everything(reader))


async def test_without_a_control_topic_a_stream_that_fell_silent_on_a_shared_topic_is_found_by_its_name(
    pod_topics: PodTopics,
) -> None:
    pod_topics.writer = Writer(stream(partitions=2, prefix=b"pods/"), pod_topics.logs, epoch=2)
    pod_topics.writer.first(*NAMES)
    pod_topics.writer.beat()
    nodes = Writer(stream(NODES, partitions=2, prefix=b"nodes/"), pod_topics.logs, epoch=5)
    nodes.first("n1", "n2")
    for number in range(1_500):
        nodes.put("n1", number + 2)
        nodes.put("n2", number + 2)
    nodes.snapshot()
    nodes.beat()
    await pod_topics.append()
    for streams in (["pods"], ["pods", "nodes"]):
        async with pod_topics.ended(
            control_topic="", topics=[pod_topics.topic], streams=streams
        ) as reader:
            await reader.ready()
            assert state(reader) == pod_topics.held()
            assert reader.streams == sorted(streams)
    async with pod_topics.ended(
        control_topic="", topics=[pod_topics.topic], streams=["pods", "jobs"]
    ) as reader:
        with pytest.raises(NothingPublished, match="jobs"):
            await reader.ready()


async def test_a_control_topic_that_is_not_there_is_one_counted_problem_and_topics_do(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    async with pod_topics.ended(
        control_topic="k8s.nowhere.control", topics=[pod_topics.topic]
    ) as reader:
        await reader.ready()
        assert state(reader) == pod_topics.held()
        assert [(problem.kind, problem.count) for problem in reader.problems] == [("control", 1)]
    async with pod_topics.ended(control_topic="k8s.nowhere.control") as reader:
        with pytest.raises(
            NothingPublished, match=r"k8s\.nowhere\.control is not there, or may not be seen"
        ):
            await reader.ready()


async def test_a_former_writers_index_is_not_believed(pod_topics: PodTopics) -> None:
    await pod_topics.begin()
    origin = pod_topics.writer.origin()
    new = Writer(stream(partitions=2), pod_topics.logs, epoch=4, before=pod_topics.writer)
    new.claim()
    new.delete("shop/b")
    pod_topics.writer.snapshot()
    new.beat()
    await pod_topics.append()
    await pod_topics.appender.send(pod_topics.control, "claim/pods", claim("w2", origin))
    await pod_topics.appender.send(pod_topics.control, "snapshot/pods", pod_topics.writer.index())
    async with pod_topics.ended() as reader:
        await reader.ready()
        assert reader.objects("pods").keys() == set(NAMES) - {"shop/b", "shop/h"}


class Losing(TopicReader):
    """A reader that does not get to see some records the first time."""

    def __init__(self, lost: set[tuple[int, int]], *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._hidden = lost

    def _take(
        self, place: TopicPartition, replicas: PartitionReplicas, messages: Sequence[Any]
    ) -> None:
        seen = [
            message for message in messages if (place.partition, message.offset) not in self._hidden
        ]
        self._hidden -= {(place.partition, message.offset) for message in messages}
        super()._take(place, replicas, seen)


async def test_a_loss_is_noticed_at_the_next_heartbeat_and_repaired_by_reading_again(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    pod_topics.writer.put("shop/a", 3)
    (partition,) = [
        number for number, held in enumerate(pod_topics.writer.held) if b"shop/a" in held
    ]
    lost = (partition, pod_topics.logs[partition].end - 1)
    pod_topics.writer.put("shop/b", 3)
    pod_topics.writer.beat()
    await pod_topics.append()
    async with Losing(
        {lost}, pod_topics.kafka.bootstrap, control_topic=pod_topics.control
    ) as reader:
        async with asyncio.timeout(60.0):
            await reader.ready()
        assert state(reader) == pod_topics.held()
        assert [
            (problem.kind, problem.partition, problem.count) for problem in reader.problems
        ] == [("digest", partition, 1)]
        changes = await take(reader, len(pod_topics.held()))
        assert {(change.verb, change.reason, change.proven) for change in changes} == {
            ("added", "initial", True)
        }
        assert {change.key: change.value for change in changes} == pod_topics.held()


async def test_what_never_reached_the_log_is_not_shown_as_proven_until_a_snapshot_mends_it(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    pod_topics.writer.put("shop/a", 3, lose=True)
    pod_topics.writer.beat()
    await pod_topics.append()
    async with pod_topics.reader() as reader, asyncio.TaskGroup() as tasks:
        ready = tasks.create_task(reader.ready())
        await until(
            lambda: any("also after reading again" in problem.detail for problem in reader.problems)
        )
        assert not reader.proven
        assert not ready.done()
        pod_topics.writer.snapshot()
        pod_topics.writer.beat()
        await pod_topics.append()
        await ready
        assert state(reader) == pod_topics.held()


async def test_saved_positions_go_on_where_they_stood_and_tell_the_deletes_of_the_meantime(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    async with pod_topics.reader() as reader:
        await reader.ready()
        assert reader.positions() == [], "nothing was handed out yet"
        await take(reader, len(pod_topics.held()))
        saved = reader.positions()
        assert [(place["partition"], place["offset"]) for place in saved] == [
            (0, pod_topics.logs[0].end),
            (1, pod_topics.logs[1].end),
        ]
    before = pod_topics.held()
    pod_topics.writer.delete("shop/b")
    pod_topics.writer.put("shop/c", 5)
    pod_topics.writer.snapshot()
    pod_topics.writer.beat()
    await pod_topics.append()
    await pod_topics.appender.send(pod_topics.control, "snapshot/pods", pod_topics.writer.index())
    async with pod_topics.ended(resume=saved) as reader:
        assert reader.positions() == saved
        await reader.ready()
        changes = await everything(reader)
        assert brief(changes) == [("deleted", "shop/b", True), ("modified", "shop/c", True)]
        assert all(change.old_value == before[change.key] for change in changes)
        assert state(reader) == pod_topics.held()
        again = reader.positions()
    async with pod_topics.ended(resume=again) as reader:
        assert await everything(reader) == []
        assert reader.positions() == again, "no marker came since, and the place is still that"


async def test_a_sweep_of_the_meantime_is_a_change_too(pod_topics: PodTopics) -> None:
    await pod_topics.begin()
    async with pod_topics.ended() as reader:
        await everything(reader)
        saved = reader.positions()
    pod_topics.writer.delete("shop/b", lose=True)
    new = Writer(stream(partitions=2), pod_topics.logs, epoch=4, before=pod_topics.writer)
    new.claim()
    new.snapshot()
    new.beat()
    await pod_topics.append()
    await pod_topics.appender.send(pod_topics.control, "claim/pods", claim("w2"))
    async with pod_topics.ended(resume=saved) as reader:
        assert [(change.verb, change.key) for change in await everything(reader)] == [
            ("deleted", "shop/b")
        ]


async def test_positions_that_the_log_no_longer_leads_to_are_refused(pod_topics: PodTopics) -> None:
    await pod_topics.begin()
    async with pod_topics.ended() as reader:
        await everything(reader)
        saved = reader.positions()
    wrong = [{**saved[0], "digest": "0" * 16}, saved[1]]
    async with pod_topics.ended(resume=wrong) as reader:
        with pytest.raises(PositionsLost, match=r"stream pods: .* start without them"):
            await everything(reader)
    beyond = [{**saved[0], "offset": saved[0]["offset"] + 1000}, saved[1]]
    async with pod_topics.ended(resume=beyond) as reader:
        with pytest.raises(PositionsLost, match="was the topic recreated"):
            await everything(reader)


async def test_what_of_a_first_snapshot_is_there_is_no_complete_state(
    pod_topics: PodTopics,
) -> None:
    writer = pod_topics.writer
    writer.claim()
    writer.version = 0  # as its markers have it until the snapshot is queued
    writer.begin()
    writer.put("shop/a", verb="added", reason="snapshot")
    writer.version = 0
    writer.beat()
    await pod_topics.append()
    await pod_topics.describe(index=False)
    async with pod_topics.ended() as reader:
        with pytest.raises(NothingPublished, match="not proven: pods/0, pods/1"):
            await reader.ready()
    writer.version = 100
    writer.put("shop/b", verb="added", reason="snapshot")
    writer.end()
    await pod_topics.append()
    async with pod_topics.ended() as reader:
        await reader.ready()
        assert state(reader) == pod_topics.held()


async def test_saved_positions_of_streams_that_are_wanted_no_longer_are_passed_over(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    async with pod_topics.ended() as reader:
        await everything(reader)
        saved = reader.positions()
    other = [{**place, "stream": "nodes"} for place in saved]
    async with pod_topics.ended(streams=["pods"], resume=[*saved, *other]) as reader:
        assert await everything(reader) == []
        assert {place["stream"] for place in reader.positions()} == {"pods"}


async def test_foreign_records_are_counted_and_disturb_nothing(pod_topics: PodTopics) -> None:
    await pod_topics.begin()
    for _ in range(3):
        await pod_topics.appender.send(pod_topics.topic, "other", b"{}", 1)
    await pod_topics.appender.send(pod_topics.topic, None, b"no key", 1)
    log = Log()
    other = Writer(stream(partitions=1), [log], epoch=9)
    record = other.put("shop/a")
    renamed = [
        (name, value.replace(b".v1", b".v2") if name == "ce_type" else value)
        for name, value in record.headers
    ]
    await pod_topics.appender._producer.send_and_wait(
        pod_topics.topic, record.value, record.key, 1, headers=renamed
    )
    async with pod_topics.ended() as reader:
        await reader.ready()
        assert state(reader) == pod_topics.held()
        found = {problem.detail: (problem.kind, problem.count) for problem in reader.problems}
    assert found == {
        "not a record of watchrelay: it has no ce_type and ce_wrstream headers": ("foreign", 4),
        "ce_type dev.watchrelay.object.modified.v2 is not of this contract version": ("foreign", 1),
    } or found.keys() == {
        "not a record of watchrelay: it has no ce_type and ce_wrstream headers",
        "ce_type dev.watchrelay.object.added.v2 is not of this contract version",
    }


async def test_a_value_that_is_not_what_its_hash_says_is_never_proven(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    record = pod_topics.writer.put("shop/a", 3)
    (partition,) = [
        number for number, held in enumerate(pod_topics.writer.held) if b"shop/a" in held
    ]
    log = pod_topics.logs[partition]
    log.records[log.end - 1] = WireRecord(
        record.key, b'{"apiVersion":"v1","kind":"Pod"}', record.headers
    )
    pod_topics.writer.beat()
    await pod_topics.append()
    async with pod_topics.ended() as reader:
        with pytest.raises(NothingPublished, match=f"not proven: pods/{partition}"):
            await reader.ready()
        assert {problem.kind for problem in reader.problems} == {"hash", "digest"}


async def test_several_streams_share_a_topic_and_one_may_be_wanted_alone(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin_with_nodes("n1", "n2", "n3")
    async with pod_topics.ended() as reader:
        await reader.ready()
        assert reader.streams == ["nodes", "pods"]
        assert set(reader.objects("nodes")) == {"nodes//n1", "nodes//n2", "nodes//n3"}
        assert state(reader) == pod_topics.held()
    async with pod_topics.ended(streams=["nodes"]) as reader:
        await reader.ready()
        assert reader.streams == ["nodes"]
        assert {change.stream for change in await everything(reader)} == {"nodes"}


async def test_partitions_beyond_the_pinned_ones_hold_up_nobody(
    pod_topics: PodTopics, kafka: EmbeddedKafka
) -> None:
    wide = f"{pod_topics.topic}.wide"
    kafka.create_topic(wide, 5)
    pod_topics.topic = wide
    await pod_topics.begin()
    async with pod_topics.ended() as reader:
        await reader.ready()
        assert len(reader.partitions()) == 2
    async with pod_topics.ended(control_topic="", topics=[wide]) as reader:
        await reader.ready()
        assert state(reader) == pod_topics.held()


async def test_a_log_cut_by_retention_is_read_from_what_is_left(pod_topics: PodTopics) -> None:
    """The origin of the index is out of reach: reading begins at the earliest record, and the next
    end proves it."""
    pod_topics.writer.first(*NAMES)
    pod_topics.writer.put("shop/a", 2)
    for log in pod_topics.logs:
        rest = Log()
        resend(rest, *[record for offset, record in sorted(log.records.items()) if offset > 3])
        log.records, log.end = rest.records, rest.end
    pod_topics.writer.beat()
    pod_topics.writer.snapshot()
    await pod_topics.append()
    await pod_topics.describe(index=False)
    async with pod_topics.ended() as reader:
        await reader.ready()
        assert state(reader) == pod_topics.held()
        assert {problem.kind for problem in reader.problems} == {"digest"}


async def test_a_stream_that_is_described_later_is_followed_from_then_on(
    pod_topics: PodTopics, kafka: EmbeddedKafka
) -> None:
    await pod_topics.begin()
    async with pod_topics.reader() as reader:
        await reader.ready()
        topic = f"{pod_topics.topic}.nodes"
        kafka.create_topic(topic, 1)
        log = Log()
        nodes = Writer(stream(NODES), [log], epoch=2)
        nodes.first("n1")
        nodes.beat()
        await pod_topics.appender.append(topic, [log])
        await pod_topics.appender.send(
            pod_topics.control, "stream/nodes", description(1, topic=topic)
        )
        await pod_topics.appender.send(pod_topics.control, "claim/nodes", claim("w1"))
        async with asyncio.timeout(60.0):
            async for change in reader:
                if change.stream == "nodes":
                    break
            await reader.ready()
        assert reader.streams == ["nodes", "pods"]


async def test_it_says_what_it_waits_for_and_goes_on_when_it_comes(pod_topics: PodTopics) -> None:
    problems: list[str] = []
    async with pod_topics.reader(waiting=problems.append) as reader, asyncio.TaskGroup() as tasks:
        ready = tasks.create_task(reader.ready())
        await until(lambda: bool(problems))
        assert (
            problems[0] == f"no stream has been published yet: {pod_topics.control} describes none"
        )
        assert not ready.done()
        await pod_topics.begin()
        await ready
        assert state(reader) == pod_topics.held()


async def test_ready_and_the_iteration_may_run_side_by_side(pod_topics: PodTopics) -> None:
    await pod_topics.begin()
    async with pod_topics.reader() as reader, asyncio.TaskGroup() as tasks:
        taken = tasks.create_task(take(reader, len(pod_topics.held())))
        await reader.ready()
        assert {change.key for change in await taken} == pod_topics.held().keys()


def test_without_a_topic_there_is_nothing_to_read() -> None:
    with pytest.raises(ValueError, match="name the control topic"):
        TopicReader("k:9092")
