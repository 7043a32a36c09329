"""`TopicReader` against an embedded Kafka: bootstrap, repair, resumption, and what stands on topics
that should not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition

from tests.support.relays import until
from tests.support.stage import NAMES, Stage, everything, state, take
from tests.support.story import NODES, Log, Writer, resend, stream
from tests.vectors.telling import claim, description
from watchrelay.consumer import (
    Change,
    KafkaUnavailable,
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
    told: Stage,
) -> None:
    await told.begin()
    async with told.reader() as reader:
        assert not reader.proven
        await reader.ready()
        assert state(reader) == told.held()
        assert reader.streams == ["pods"]
        assert [(lane.partition, lane.epoch, lane.proven) for lane in reader.lanes()] == [
            (0, 2, True),
            (1, 2, True),
        ]
        begins = [begin for _, begin in filter(None, told.writer.last_snapshot)]
        assert {
            lane.partition: lane.start
            for lanes in reader._lanes.values()
            for lane in lanes.by_stream.values()
        } == dict(enumerate(begins))
        assert not reader.problems


async def test_live_changes_come_typed_with_what_was_there_before(told: Stage) -> None:
    await told.begin()
    async with told.reader(streams=["pods"]) as reader:
        await reader.ready()
        await take(reader, len(told.held()))
        before = told.held()
        told.writer.put("shop/a", 3)
        told.writer.delete("shop/b")
        told.writer.put("shop/new")
        told.writer.snapshot()
        await told.tell()
        changes = {change.key: change for change in await take(reader, 3)}
        assert brief(list(changes.values())) == [
            ("added", "shop/new", True),
            ("deleted", "shop/b", True),
            ("modified", "shop/a", True),
        ]
        a, b, new = changes["shop/a"], changes["shop/b"], changes["shop/new"]
        assert (a.old_value, a.value) == (before["shop/a"], told.held()["shop/a"])
        assert (b.old_value, b.value, b.uid) == (before["shop/b"], None, "u-b")
        assert (new.old_value, new.reason, new.stream, new.topic) == (
            None,
            "watch",
            "pods",
            told.topic,
        )
        assert new.position.epoch == 2


async def test_without_a_control_topic_the_newest_heartbeats_say_where_to_start(
    told: Stage,
) -> None:
    await told.begin()
    zombie = Writer(stream(partitions=2), told.logs, epoch=1, before=told.writer)
    zombie.beat()
    await told.tell()
    async with told.ended(control_topic="", topics=[told.topic]) as reader:
        await reader.ready()
        assert state(reader) == told.held()
        begins = [begin for _, begin in filter(None, told.writer.last_snapshot)]
        assert all(change.offset > begins[change.partition] for change in await everything(reader))


async def test_without_a_control_topic_a_stream_that_fell_silent_on_a_shared_topic_is_found_by_its_name(
    told: Stage,
) -> None:
    told.writer = Writer(stream(partitions=2, prefix=b"pods/"), told.logs, epoch=2)
    told.writer.first(*NAMES)
    told.writer.beat()
    nodes = Writer(stream(NODES, partitions=2, prefix=b"nodes/"), told.logs, epoch=5)
    nodes.first("n1", "n2")
    for number in range(1_500):
        nodes.put("n1", number + 2)
        nodes.put("n2", number + 2)
    nodes.snapshot()
    nodes.beat()
    await told.tell()
    for streams in (["pods"], ["pods", "nodes"]):
        async with told.ended(control_topic="", topics=[told.topic], streams=streams) as reader:
            await reader.ready()
            assert state(reader) == told.held()
            assert reader.streams == sorted(streams)
    async with told.ended(
        control_topic="", topics=[told.topic], streams=["pods", "jobs"]
    ) as reader:
        with pytest.raises(NothingPublished, match="jobs"):
            await reader.ready()


async def test_a_control_topic_that_is_not_there_is_one_counted_problem_and_topics_do(
    told: Stage,
) -> None:
    await told.begin()
    async with told.ended(control_topic="k8s.nowhere.control", topics=[told.topic]) as reader:
        await reader.ready()
        assert state(reader) == told.held()
        assert [(problem.kind, problem.count) for problem in reader.problems] == [("control", 1)]
    async with told.ended(control_topic="k8s.nowhere.control") as reader:
        with pytest.raises(
            NothingPublished, match=r"k8s\.nowhere\.control is not there, or may not be seen"
        ):
            await reader.ready()


async def test_a_former_writers_index_is_not_believed(told: Stage) -> None:
    await told.begin()
    origin = told.writer.origin()
    new = Writer(stream(partitions=2), told.logs, epoch=4, before=told.writer)
    new.claim()
    new.delete("shop/b")
    told.writer.snapshot()
    new.beat()
    await told.tell()
    await told.teller.say(told.control, "claim/pods", claim("w2", origin))
    await told.teller.say(told.control, "snapshot/pods", told.writer.index())
    async with told.ended() as reader:
        await reader.ready()
        assert reader.objects("pods").keys() == set(NAMES) - {"shop/b", "shop/h"}


class Losing(TopicReader):
    """A reader that does not get to see some records the first time."""

    def __init__(self, lost: set[tuple[int, int]], *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._lost = lost

    def _take(
        self, place: TopicPartition, lanes: PartitionReplicas, messages: Sequence[Any]
    ) -> None:
        seen = [
            message for message in messages if (place.partition, message.offset) not in self._lost
        ]
        self._lost -= {(place.partition, message.offset) for message in messages}
        super()._take(place, lanes, seen)


async def test_a_loss_is_noticed_at_the_next_heartbeat_and_repaired_by_reading_again(
    told: Stage,
) -> None:
    await told.begin()
    told.writer.put("shop/a", 3)
    (partition,) = [number for number, held in enumerate(told.writer.held) if b"shop/a" in held]
    lost = (partition, told.logs[partition].end - 1)
    told.writer.put("shop/b", 3)
    told.writer.beat()
    await told.tell()
    async with Losing({lost}, told.kafka.bootstrap, control_topic=told.control) as reader:
        async with asyncio.timeout(20.0):
            await reader.ready()
        assert state(reader) == told.held()
        assert [
            (problem.kind, problem.partition, problem.count) for problem in reader.problems
        ] == [("digest", partition, 1)]
        changes = await take(reader, len(told.held()))
        assert {(change.verb, change.reason, change.proven) for change in changes} == {
            ("added", "initial", True)
        }
        assert {change.key: change.value for change in changes} == told.held()


async def test_what_never_reached_the_log_is_not_shown_as_proven_until_a_snapshot_mends_it(
    told: Stage,
) -> None:
    await told.begin()
    told.writer.put("shop/a", 3, lose=True)
    told.writer.beat()
    await told.tell()
    async with told.reader() as reader, asyncio.TaskGroup() as tasks:
        ready = tasks.create_task(reader.ready())
        await until(
            lambda: any("also after reading again" in problem.detail for problem in reader.problems)
        )
        assert not reader.proven
        assert not ready.done()
        told.writer.snapshot()
        told.writer.beat()
        await told.tell()
        await ready
        assert state(reader) == told.held()


async def test_saved_positions_go_on_where_they_stood_and_tell_the_deletes_of_the_meantime(
    told: Stage,
) -> None:
    await told.begin()
    async with told.reader() as reader:
        await reader.ready()
        assert reader.positions() == [], "nothing was handed out yet"
        await take(reader, len(told.held()))
        saved = reader.positions()
        assert [(place["partition"], place["offset"]) for place in saved] == [
            (0, told.logs[0].end),
            (1, told.logs[1].end),
        ]
    before = told.held()
    told.writer.delete("shop/b")
    told.writer.put("shop/c", 5)
    told.writer.snapshot()
    told.writer.beat()
    await told.tell()
    await told.teller.say(told.control, "snapshot/pods", told.writer.index())
    async with told.ended(resume=saved) as reader:
        assert reader.positions() == saved
        await reader.ready()
        changes = await everything(reader)
        assert brief(changes) == [("deleted", "shop/b", True), ("modified", "shop/c", True)]
        assert all(change.old_value == before[change.key] for change in changes)
        assert state(reader) == told.held()
        again = reader.positions()
    async with told.ended(resume=again) as reader:
        assert await everything(reader) == []
        assert reader.positions() == again, "no marker came since, and the place is still that"


async def test_a_sweep_of_the_meantime_is_told_too(told: Stage) -> None:
    await told.begin()
    async with told.ended() as reader:
        await everything(reader)
        saved = reader.positions()
    told.writer.delete("shop/b", lose=True)
    new = Writer(stream(partitions=2), told.logs, epoch=4, before=told.writer)
    new.claim()
    new.snapshot()
    new.beat()
    await told.tell()
    await told.teller.say(told.control, "claim/pods", claim("w2"))
    async with told.ended(resume=saved) as reader:
        assert [(change.verb, change.key) for change in await everything(reader)] == [
            ("deleted", "shop/b")
        ]


async def test_positions_that_the_log_no_longer_leads_to_are_refused(told: Stage) -> None:
    await told.begin()
    async with told.ended() as reader:
        await everything(reader)
        saved = reader.positions()
    wrong = [{**saved[0], "digest": "0" * 16}, saved[1]]
    async with told.ended(resume=wrong) as reader:
        with pytest.raises(PositionsLost, match=r"stream pods: .* start without them"):
            await everything(reader)
    beyond = [{**saved[0], "offset": saved[0]["offset"] + 1000}, saved[1]]
    async with told.ended(resume=beyond) as reader:
        with pytest.raises(PositionsLost, match="was the topic recreated"):
            await everything(reader)


async def test_a_stream_that_moves_to_another_topic_takes_its_state_with_it(told: Stage) -> None:
    await told.begin()
    async with told.reader() as reader:
        await reader.ready()
        await take(reader, len(told.held()))
        saved = reader.positions()
        told.kafka.create_topic(f"{told.topic}.new", 2)
        moved, former = [Log(), Log()], told.held()
        new = Writer(stream(partitions=2), moved, epoch=4)
        new.first("shop/a", "shop/z")
        new.beat()
        await told.teller.tell(f"{told.topic}.new", moved)
        await told.teller.say(told.control, "claim/pods", claim("w2"))
        await told.teller.say(
            told.control, "stream/pods", description(2, topic=f"{told.topic}.new")
        )
        changes = await take(reader, len(former) + 2)
        gone = {
            change.key for change in changes if (change.verb, change.reason) == ("deleted", "moved")
        }
        assert gone == set(former)
        await reader.ready()
        assert reader.objects("pods").keys() == {"shop/a", "shop/z"}
        assert {lane.topic for lane in reader.lanes()} == {f"{told.topic}.new"}
    async with told.ended(resume=saved) as reader:
        with pytest.raises(PositionsLost, match=r"is on topic .*\.new now"):
            await everything(reader)


async def test_saved_positions_of_streams_that_are_wanted_no_longer_are_passed_over(
    told: Stage,
) -> None:
    await told.begin()
    async with told.ended() as reader:
        await everything(reader)
        saved = reader.positions()
    other = [{**place, "stream": "nodes"} for place in saved]
    async with told.ended(streams=["pods"], resume=[*saved, *other]) as reader:
        assert await everything(reader) == []
        assert {place["stream"] for place in reader.positions()} == {"pods"}


async def test_foreign_records_are_counted_and_disturb_nothing(told: Stage) -> None:
    await told.begin()
    for _ in range(3):
        await told.teller.say(told.topic, "other", b"{}", 1)
    await told.teller.say(told.topic, None, b"no key", 1)
    log = Log()
    other = Writer(stream(partitions=1), [log], epoch=9)
    record = other.put("shop/a")
    renamed = [
        (name, value.replace(b".v1", b".v2") if name == "ce_type" else value)
        for name, value in record.headers
    ]
    await told.teller._producer.send_and_wait(
        told.topic, record.value, record.key, 1, headers=renamed
    )
    async with told.ended() as reader:
        await reader.ready()
        assert state(reader) == told.held()
        found = {problem.detail: (problem.kind, problem.count) for problem in reader.problems}
    assert found == {
        "not a record of watchrelay: it has no ce_type and ce_wrstream headers": ("foreign", 4),
        "ce_type dev.watchrelay.object.modified.v2 is not of this contract version": ("foreign", 1),
    } or found.keys() == {
        "not a record of watchrelay: it has no ce_type and ce_wrstream headers",
        "ce_type dev.watchrelay.object.added.v2 is not of this contract version",
    }


async def test_a_value_that_is_not_what_its_hash_says_is_never_proven(told: Stage) -> None:
    await told.begin()
    record = told.writer.put("shop/a", 3)
    (partition,) = [number for number, held in enumerate(told.writer.held) if b"shop/a" in held]
    log = told.logs[partition]
    log.records[log.end - 1] = WireRecord(
        record.key, b'{"apiVersion":"v1","kind":"Pod"}', record.headers
    )
    told.writer.beat()
    await told.tell()
    async with told.ended() as reader:
        with pytest.raises(NothingPublished, match=f"not proven: pods/{partition}"):
            await reader.ready()
        assert {problem.kind for problem in reader.problems} == {"hash", "digest"}


async def test_several_streams_share_a_topic_and_one_may_be_wanted_alone(told: Stage) -> None:
    told.writer = Writer(stream(partitions=2, prefix=b"pods/"), told.logs, epoch=2)
    nodes = Writer(stream(NODES, partitions=2, prefix=b"nodes/"), told.logs, epoch=5)
    told.writer.first(*NAMES)
    nodes.first("n1", "n2", "n3")
    told.writer.put("shop/a", 2)
    told.writer.beat()
    nodes.beat()
    await told.tell()
    await told.describe()
    await told.teller.say(told.control, "stream/nodes", description(2, topic=told.topic))
    await told.teller.say(told.control, "claim/nodes", claim("w1"))
    async with told.ended() as reader:
        await reader.ready()
        assert reader.streams == ["nodes", "pods"]
        assert set(reader.objects("nodes")) == {"nodes//n1", "nodes//n2", "nodes//n3"}
        assert state(reader) == told.held()
    async with told.ended(streams=["nodes"]) as reader:
        await reader.ready()
        assert reader.streams == ["nodes"]
        assert {change.stream for change in await everything(reader)} == {"nodes"}


async def test_partitions_beyond_the_pinned_ones_hold_up_nobody(
    told: Stage, kafka: EmbeddedKafka
) -> None:
    wide = f"{told.topic}.wide"
    kafka.create_topic(wide, 5)
    told.topic = wide
    await told.begin()
    async with told.ended() as reader:
        await reader.ready()
        assert len(reader.lanes()) == 2
    async with told.ended(control_topic="", topics=[wide]) as reader:
        await reader.ready()
        assert state(reader) == told.held()


async def test_a_log_cut_by_retention_is_read_from_what_is_left(told: Stage) -> None:
    """The origin of the index is out of reach: reading begins at the earliest record, and the next
    end proves it."""
    told.writer.first(*NAMES)
    told.writer.put("shop/a", 2)
    for log in told.logs:
        rest = Log()
        resend(rest, *[record for offset, record in sorted(log.records.items()) if offset > 3])
        log.records, log.end = rest.records, rest.end
    told.writer.beat()
    told.writer.snapshot()
    await told.tell()
    await told.describe(index=False)
    async with told.ended() as reader:
        await reader.ready()
        assert state(reader) == told.held()
        assert {problem.kind for problem in reader.problems} == {"digest"}


async def test_a_stream_that_is_described_later_is_followed_from_then_on(
    told: Stage, kafka: EmbeddedKafka
) -> None:
    await told.begin()
    async with told.reader() as reader:
        await reader.ready()
        topic = f"{told.topic}.nodes"
        kafka.create_topic(topic, 1)
        log = Log()
        nodes = Writer(stream(NODES), [log], epoch=2)
        nodes.first("n1")
        nodes.beat()
        await told.teller.tell(topic, [log])
        await told.teller.say(told.control, "stream/nodes", description(1, topic=topic))
        await told.teller.say(told.control, "claim/nodes", claim("w1"))
        async with asyncio.timeout(20.0):
            async for change in reader:
                if change.stream == "nodes":
                    break
            await reader.ready()
        assert reader.streams == ["nodes", "pods"]


async def test_it_says_what_it_waits_for_and_goes_on_when_it_comes(told: Stage) -> None:
    said: list[str] = []
    async with told.reader(waiting=said.append) as reader, asyncio.TaskGroup() as tasks:
        ready = tasks.create_task(reader.ready())
        await until(lambda: bool(said))
        assert said[0] == f"no stream has been published yet: {told.control} describes none"
        assert not ready.done()
        await told.begin()
        await ready
        assert state(reader) == told.held()


async def test_ready_and_the_iteration_may_run_side_by_side(told: Stage) -> None:
    await told.begin()
    async with told.reader() as reader, asyncio.TaskGroup() as tasks:
        taken = tasks.create_task(take(reader, len(told.held())))
        await reader.ready()
        assert {change.key for change in await taken} == told.held().keys()


async def test_a_broker_that_is_not_there_is_said_in_one_line() -> None:
    with pytest.raises(KafkaUnavailable, match=r"kafka at 127\.0\.0\.1:1 is not usable"):
        async with TopicReader("127.0.0.1:1", control_topic="k8s.x.control"):
            pass


def test_without_a_topic_there_is_nothing_to_read() -> None:
    with pytest.raises(ValueError, match="name the control topic"):
        TopicReader("k:9092")
