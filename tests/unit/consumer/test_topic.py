"""`TopicReader` over a consumer whose answers, and the moments at which they come, the test gives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition

from tests.support.positioned import Positioned
from tests.support.relays import virtual
from tests.support.stream_log import NODES, Log, Writer, stream
from tests.vectors.document import description
from watchrelay.consumer import NothingPublished, PositionsLost, TopicReader
from watchrelay.contract.wire import WireRecord

PODS, CONTROL = "k8s.test.core.pods", "k8s.test.control"


class Consumer(Positioned):
    """aiokafka's consumer and its client, on topics of one partition each, which the test fills."""

    def __init__(self, **topics: Log) -> None:
        super().__init__()
        self.topics = topics
        self._client = self
        self.cluster = SimpleNamespace(brokers=lambda: [SimpleNamespace(nodeId=1)])

    async def send(self, *_: object) -> Any:
        topics: Any = [(0, name, b"1" * 16, False, [(0, 0)], 0, {}) for name in self.topics]
        return SimpleNamespace(API_VERSION=10, brokers=[1], topics=topics)

    async def beginning_offsets(self, places: Collection[TopicPartition]) -> Any:
        return {place: self.topics[place.topic].start for place in places}

    async def end_offsets(self, places: Collection[TopicPartition]) -> Any:
        return {place: self.topics[place.topic].end for place in places}

    def pause(self, *_: object) -> None: ...

    async def getmany(self, *places: TopicPartition, **_: object) -> dict[TopicPartition, Any]:
        """A record of each partition at a time."""
        found = {}
        for place in places:
            log = self.topics.get(place.topic, Log())
            offsets = (offset for offset in log.records if offset >= self.positions[place])
            if (offset := min(offsets, default=None)) is not None:
                found[place] = [SimpleNamespace(offset=offset, **log.records[offset]._asdict())]
                self.positions[place] = offset + 1
        if not found:
            await asyncio.sleep(0.1)
        return found

    async def stop(self) -> None: ...

    close = stop


def over(consumer: Consumer, **more: Any) -> TopicReader:
    """A reader that has started, of one stream unless there is a control topic."""
    reader = TopicReader("nowhere:1", **({"topics": [PODS]} | more))
    reader._use(consumer)
    reader._entered = True
    reader._open.set()
    return reader


def of_two(consumer: Consumer, problems: list[str], *topics: str) -> TopicReader:
    """A reader of pods and nodes that has started."""
    return over(
        consumer,
        topics=topics,
        control_topic=CONTROL,
        streams=["pods", "nodes"],
        waiting=problems.append,
    )


def pods(*names: str) -> Writer:
    writer = Writer(stream(), [Log()], epoch=2)
    writer.first(*names)
    writer.beat()
    return writer


def describe(control: Log, name: str, *, topic: str = PODS) -> None:
    value = json.dumps(description(1, base=2, topic=topic)).encode()
    control.append(WireRecord(f"stream/{name}".encode(), value, []))


def retire(control: Log, name: str) -> None:
    control.append(WireRecord(f"stream/{name}".encode(), None, []))


async def positions_of(reader: TopicReader) -> Any:
    """What it saves when all is given."""
    async for _ in reader:
        pass
    return reader.positions()


async def test_an_answer_that_comes_as_the_reader_is_closed_ends_the_iteration() -> None:
    answer, asked = asyncio.get_running_loop().create_future(), asyncio.Event()

    class Waiting(Consumer):
        async def getmany(self, *places: TopicPartition, **_: object) -> Any:
            if found := await super().getmany(*places):
                return found
            asked.set()
            return await answer

    reader = over(Waiting(**{PODS: pods("shop/a").logs[0]}))
    assert (await anext(reader)).key == "shop/a"
    iteration = asyncio.get_running_loop().create_task(anext(reader), name="iteration")
    await asked.wait()
    answer.set_result({})
    await reader.close()
    with pytest.raises(StopAsyncIteration):
        await iteration


async def test_the_program_has_its_turns_while_there_are_records() -> None:
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    writer = pods("shop/a")
    reader = over(Consumer(**{PODS: writer.logs[0]}))
    await reader.ready()
    for number in range(20):
        writer.put("shop/a", number)
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work(), name="work")
        for _ in range(21):
            await anext(reader)
        working.cancel()
    assert turns >= 20


@pytest.mark.parametrize("topic", [PODS, CONTROL])
@virtual
async def test_a_reader_that_an_open_transaction_holds_back_says_so_while_it_does(
    topic: str,
) -> None:
    class HeldBack(Consumer):
        is_open = True

        def last_stable_offset(self, place: TopicPartition) -> int:
            return self.positions[place]

        def highwater(self, place: TopicPartition) -> int:
            return self.positions[place] + 5 * (self.is_open and place.topic == topic)

    reported = list[str]()
    control = Log()
    describe(control, "pods")
    consumer = HeldBack(**{PODS: pods("shop/a").logs[0], CONTROL: control})
    reader = over(consumer, topics=(), control_topic=CONTROL, waiting=reported.append)
    await reader.ready()

    async def read_on(seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                async for _ in reader:
                    pass

    await read_on(19.0)
    assert reported == []
    await read_on(60.0)
    assert f"topic {topic} partition 0: an open transaction at offset " in reported[0]
    assert "kafka-transactions.sh --bootstrap-server nowhere:1 abort" in reported[0]
    consumer.is_open = False
    await read_on(20.0)
    reported.clear()
    await read_on(60.0)
    assert reported == []


async def test_saved_positions_of_a_stream_that_left_a_shared_topic_are_lost() -> None:
    log, control = pods("shop/a").logs[0], Log()
    nodes = Writer(stream(NODES, prefix=b"nodes/"), [log], epoch=2)
    nodes.first("n1")
    nodes.beat()
    describe(control, "pods")
    describe(control, "nodes")
    consumer = Consumer(**{PODS: log, CONTROL: control})
    given: Any = {"control_topic": CONTROL, "until_end": True}
    saved = await positions_of(over(consumer, **given))
    describe(control, "nodes", topic="elsewhere")
    with pytest.raises(PositionsLost, match=r"stream nodes: .* is on topic elsewhere now"):
        await over(consumer, **given, resume=saved).ready()


async def test_saved_positions_of_a_stream_that_was_retired_are_lost_at_the_start() -> None:
    control = Log()
    describe(control, "pods")
    consumer = Consumer(**{PODS: pods("shop/a").logs[0], CONTROL: control})
    given: Any = {"control_topic": CONTROL, "streams": ["pods"], "until_end": True}
    saved = await positions_of(over(consumer, **given))
    retire(control, "pods")
    with pytest.raises(PositionsLost, match="so it was retired"):
        await over(consumer, **given, resume=saved).ready()


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_stream_that_is_retired_while_it_is_read_is_not_waited_for(deleted: bool) -> None:
    control, writer, problems = Log(), pods("shop/a"), list[str]()
    describe(control, "pods")
    consumer = Consumer(**{PODS: writer.logs[0], CONTROL: control})
    reader = over(consumer, topics=[], control_topic=CONTROL, waiting=problems.append)
    async with asyncio.timeout(5.0):
        assert (await anext(reader)).verb == "added"
        if deleted:
            del consumer.topics[PODS]
        else:
            writer.delete("shop/a")
        retire(control, "pods")
        assert (await anext(reader)).verb == "deleted"
        await reader.ready()
    assert problems == []


@pytest.mark.parametrize("compacted", [False, True])
async def test_what_a_former_life_was_given_behind_its_positions_and_is_gone_is_deleted(
    compacted: bool,
) -> None:
    control, writer = Log(), pods("shop/a")
    describe(control, "pods")
    consumer = Consumer(**{PODS: writer.logs[0], CONTROL: control})
    given: Any = {"topics": [], "control_topic": CONTROL}
    reader = over(consumer, **given)
    await anext(reader)
    writer.put("shop/job")
    assert (await anext(reader)).key == "shop/job"
    saved = reader.positions()
    await reader.close()
    writer.put("shop/new")
    writer.delete("shop/job")
    writer.beat()
    if compacted:
        writer.logs[0].compact(up_to=writer.logs[0].end)
    reader = over(consumer, **given, resume=saved)
    await reader.ready()
    table = {"shop/a", "shop/job"}
    while table != set(reader.objects("pods")):
        change = await anext(reader)
        if change.verb == "deleted":
            assert (change.old_value is None) == compacted
            assert change.uid
            table.discard(change.key)
        else:
            table.add(change.key)
    assert table == {"shop/a", "shop/new"}


@pytest.mark.parametrize("topics", [[], [PODS]])
async def test_a_named_stream_that_is_not_published_yet_holds_up_no_other(
    topics: list[str],
) -> None:
    control, problems = Log(), list[str]()
    describe(control, "pods")
    consumer = Consumer(**{PODS: pods("shop/a").logs[0], CONTROL: control})
    reader = of_two(consumer, problems, *topics)
    assert (await anext(reader)).key == "shop/a"
    while not problems:
        await reader._read_on()
    assert set(problems) == {"stream nodes has not been published yet"}
    assert not reader.proven
    nodes = Writer(stream(NODES, prefix=b"nodes/"), [consumer.topics[PODS]], epoch=2)
    nodes.first("n1")
    nodes.beat()
    describe(control, "nodes")
    assert (await anext(reader)).stream == "nodes"
    await reader.ready()


async def test_a_named_stream_that_was_retired_holds_up_no_other() -> None:
    control, problems = Log(), list[str]()
    for name in ("pods", "nodes"):
        describe(control, name)
    retire(control, "nodes")
    consumer = Consumer(**{PODS: pods("shop/a").logs[0], CONTROL: control})
    reader = of_two(consumer, problems)
    await reader.ready()
    assert (await anext(reader)).key == "shop/a"
    assert problems == []


async def test_records_of_a_stream_that_moved_away_and_was_retired_are_passed_over() -> None:
    control, log = Log(), pods("shop/a").logs[0]
    nodes = Writer(stream(NODES, prefix=b"nodes/"), [log], epoch=2)
    nodes.first("n1")
    nodes.beat()
    describe(control, "pods", topic="elsewhere")
    retire(control, "pods")
    describe(control, "nodes")
    consumer = Consumer(**{PODS: log, CONTROL: control})
    reader = over(consumer, topics=[], control_topic=CONTROL, until_end=True)
    assert [each.stream async for each in reader] == ["nodes"]
    assert reader.streams == ["nodes"]


@pytest.mark.parametrize("form", ["cloudevents", "structured", "debezium"])
async def test_a_delete_behind_positions_is_returned_once_in_each_format(form: Any) -> None:
    control = Log()
    describe(control, "pods")
    writer = Writer(stream(form=form), [Log()], epoch=2)
    writer.first("shop/a", "shop/b")
    writer.beat()
    consumer = Consumer(**{PODS: writer.logs[0], CONTROL: control})
    given: Any = {"topics": [], "control_topic": CONTROL, "until_end": True}
    saved = await positions_of(over(consumer, **given))
    writer.delete("shop/b")
    writer.beat()
    changes = [each async for each in over(consumer, **given, resume=saved)]
    assert [(each.verb, each.key) for each in changes] == [("deleted", "shop/b")]
    assert changes[0].old_value


async def test_a_delete_behind_positions_that_is_met_as_the_log_is_read_again_is_returned() -> None:
    control, writer = Log(), pods("shop/a")
    describe(control, "pods")
    consumer = Consumer(**{PODS: writer.logs[0], CONTROL: control})
    given: Any = {"topics": [], "control_topic": CONTROL, "until_end": True}
    saved = await positions_of(over(consumer, **given))
    writer.put("shop/job")
    writer.beat()  # counts it, and is the newest where the cleaner has been
    writer.delete("shop/job")
    writer.logs[0].compact(up_to=writer.logs[0].end)
    writer.beat()
    reader = over(consumer, **given, resume=saved)
    assert [(each.verb, each.key) async for each in reader] == [("deleted", "shop/job")]


async def test_all_partitions_that_the_markers_of_an_undescribed_stream_name_are_waited_for() -> (
    None
):
    control, log = Log(), pods("shop/a").logs[0]
    describe(control, "pods")
    nodes = Writer(stream(NODES, partitions=3, prefix=b"nodes/"), [log, Log(), Log()], epoch=2)
    nodes.first("n1")
    nodes.beat()
    consumer = Consumer(**{PODS: log, CONTROL: control})
    problems = list[str]()
    reader = of_two(consumer, problems)
    while not any("nodes (1 of 3 partitions found)" in each for each in problems):
        await reader._read_on()
    assert not reader.proven


@pytest.mark.parametrize("retired", [False, True])
async def test_a_run_to_the_end_wants_every_stream_that_is_named(retired: bool) -> None:
    control = Log()
    describe(control, "pods")
    if retired:
        describe(control, "nodes")
        retire(control, "nodes")
    consumer = Consumer(**{PODS: pods("shop/a").logs[0], CONTROL: control})
    given: Any = {"topics": [], "control_topic": CONTROL, "until_end": True}
    with pytest.raises(NothingPublished, match="stream nodes has not been published yet"):
        await over(consumer, **given, streams=["pods", "nodes"]).ready()
