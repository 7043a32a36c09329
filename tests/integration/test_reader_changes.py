"""What the iteration of a `TopicReader` gives: the proven state once, then each change of it; each
case against an embedded Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition

import watchrelay.consumer
from tests.support.pod_topics import NAMES, PodTopics, everything, state, take
from tests.support.relays import until
from tests.support.stream_log import Writer, stream
from watchrelay.consumer import Change, ConsumerError, NothingPublished, TopicReader
from watchrelay.consumer.partitions import PartitionReplicas


def brief(changes: Sequence[Change]) -> list[tuple[str, str, str]]:
    assert all(change.proven for change in changes)
    return sorted((change.verb, change.key, change.reason) for change in changes)


def applied(changes: Sequence[Change]) -> dict[str, bytes]:
    """The table that the changes make; fails where one of them does not fit what is there."""
    table: dict[str, bytes] = {}
    for change in changes:
        assert change.old_value == table.get(change.key)
        assert change.verb == (
            "deleted" if change.value is None else "modified" if change.key in table else "added"
        )
        if change.value is None:
            del table[change.key]
        else:
            table[change.key] = change.value
    return table


async def follow(reader: TopicReader, changes: list[Change]) -> None:
    """Keeps what was given before an error."""
    async for change in reader:
        changes.append(change)  # noqa: PERF401  # a comprehension would lose them with the error


class Losing(TopicReader):
    """A reader that does not get to see some records the first time."""

    lost: set[tuple[int, int]]

    def _take(
        self, place: TopicPartition, replicas: PartitionReplicas, messages: Sequence[Any]
    ) -> None:
        seen = [
            message for message in messages if (place.partition, message.offset) not in self.lost
        ]
        self.lost -= {(place.partition, message.offset) for message in messages}
        super()._take(place, replicas, seen)


async def test_after_ready_each_object_of_the_state_comes_once_as_added_and_proven(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    async with pod_topics.reader() as reader:
        await reader.ready()
        first = await take(reader, len(reader.objects("pods")))
        assert {(change.verb, change.reason, change.proven) for change in first} == {
            ("added", "initial", True)
        }
        assert applied(first) == pod_topics.held()
        pod_topics.writer.put("shop/a", 3)
        pod_topics.writer.put("shop/a", 4)
        pod_topics.writer.delete("shop/b")
        await pod_topics.append()
        then = await take(reader, 3)
        assert brief(then) == [
            ("deleted", "shop/b", "watch"),
            ("modified", "shop/a", "watch"),
            ("modified", "shop/a", "watch"),
        ]
        assert applied([*first, *then]) == pod_topics.held()
        assert not reader.problems


async def test_what_was_deleted_since_the_snapshot_is_never_a_change_at_the_beginning(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    for name in NAMES[:6]:
        pod_topics.writer.delete(name)
        pod_topics.writer.beat()
    pod_topics.writer.put("shop/g", 2)
    await pod_topics.append()
    for ready in (True, False):
        async with pod_topics.ended() as reader:
            if ready:
                await reader.ready()
            changes = await everything(reader)
            assert brief(changes) == [("added", "shop/g", "initial")]
            assert changes[0].value == pod_topics.held()["shop/g"]


async def test_what_changes_between_ready_and_the_first_look_is_in_the_state(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    async with pod_topics.reader() as reader, asyncio.timeout(60.0):
        await reader.ready()
        pod_topics.writer.put("shop/a", 3)
        pod_topics.writer.delete("shop/b")
        pod_topics.writer.put("shop/new")
        await pod_topics.append()
        while state(reader) != pod_topics.held():
            await reader._read_on()
        changes = await take(reader, len(pod_topics.held()))
        assert {change.verb for change in changes} == {"added"}
        assert applied(changes) == pod_topics.held()


async def test_two_loops_share_one_sequence_and_a_later_one_goes_on(pod_topics: PodTopics) -> None:
    await pod_topics.begin()
    async with pod_topics.reader() as reader, asyncio.timeout(60.0), asyncio.TaskGroup() as tasks:
        await reader.ready()
        changes = []
        async for change in reader:
            changes.append(change)
            if len(changes) == 3:
                break
        taken = [
            tasks.create_task(everything(reader), name=f"loop {number}") for number in range(2)
        ]
        await until(lambda: not reader._pending)
        await reader.close()
        for task in taken:
            changes += await task
        assert applied(changes) == pod_topics.held()


async def test_who_is_cancelled_while_waiting_for_a_change_loses_none(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    changes: list[Change] = []
    async with pod_topics.reader() as reader, asyncio.timeout(60.0), asyncio.TaskGroup() as tasks:

        async def one() -> None:
            changes.append(await anext(reader))

        for turns in [*range(0, 120, 3), *[400] * 200]:
            if len(changes) == len(pod_topics.held()):
                break
            taking = tasks.create_task(one(), name="one")
            for _ in range(turns):
                await asyncio.sleep(0)
            taking.cancel()
            await asyncio.wait([taking])
        while len(changes) < len(pod_topics.held()):
            await one()
        assert applied(changes) == pod_topics.held()
        assert reader._pending.take() is None


async def test_after_a_loss_the_difference_is_given_and_not_the_whole(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    reader = Losing(pod_topics.kafka.bootstrap, control_topic=pod_topics.control)
    reader.lost = set()
    async with reader, asyncio.timeout(30.0):
        await reader.ready()
        first = await take(reader, len(pod_topics.held()))
        pod_topics.writer.delete("shop/a")
        (partition,) = [
            number for number, held in enumerate(pod_topics.writer.held) if b"shop/c" in held
        ]
        pod_topics.writer.put("shop/c", 7)
        reader.lost.add((partition, pod_topics.logs[partition].end - 1))
        pod_topics.writer.put("shop/c", 8)
        pod_topics.writer.put("shop/new")
        pod_topics.writer.put("shop/b", 9)
        pod_topics.writer.beat()
        await pod_topics.append()
        then = [await anext(reader)]
        while applied([*first, *then]) != pod_topics.held():
            then.append(await anext(reader))
        assert {change.key for change in then} == {"shop/a", "shop/b", "shop/c", "shop/new"}
        assert len(then) == 4
        assert reader.proven


async def test_what_follows_a_loss_is_held_back_until_the_state_is_proven_again(
    pod_topics: PodTopics,
) -> None:
    """The newest record of each object is there: the marker agrees, and nothing has to be read
    again."""
    await pod_topics.begin()
    problems: list[str] = []
    async with (
        pod_topics.reader(waiting=problems.append) as reader,
        asyncio.timeout(60.0),
        asyncio.TaskGroup() as tasks,
    ):
        await reader.ready()
        first = await take(reader, len(pod_topics.held()))
        before = pod_topics.held()["shop/c"]
        pod_topics.writer.put("shop/c", 7, lose=True)
        pod_topics.writer.put("shop/c", 8)
        await pod_topics.append()
        taking = tasks.create_task(take(reader, 1), name="take")
        await until(lambda: bool(problems))
        assert problems[0].startswith("read to the end, and not proven yet: pods/")
        assert not taking.done()
        pod_topics.writer.beat()
        await pod_topics.append()
        (change,) = await taking
        assert (change.verb, change.old_value, change.value) == (
            "modified",
            before,
            pod_topics.held()["shop/c"],
        )
        assert applied([*first, change]) == pod_topics.held()
        assert not reader.problems


async def test_with_an_end_what_is_not_proven_there_is_an_error_and_not_a_silent_end(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    (partition,) = [
        number for number, held in enumerate(pod_topics.writer.held) if b"shop/c" in held
    ]
    pod_topics.writer.put("shop/c", 7, lose=True)
    pod_topics.writer.put("shop/c", 8)
    pod_topics.writer.beat()
    pod_topics.writer.put("shop/c", 9, lose=True)
    pod_topics.writer.beat()
    await pod_topics.append()
    changes: list[Change] = []
    async with pod_topics.ended() as reader:
        with pytest.raises(
            NothingPublished, match=f"read to the end, and not proven: pods/{partition}$"
        ):
            await follow(reader, changes)
    assert applied(changes) == {
        key.decode(): entry.value for key, entry in pod_topics.writer.held[1 - partition].items()
    }


async def test_a_restart_of_the_relay_that_says_all_again_changes_nothing(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    async with pod_topics.reader() as reader:
        await reader.ready()
        first = await take(reader, len(pod_topics.held()))
        new = Writer(stream(partitions=2), pod_topics.logs, epoch=4, before=pod_topics.writer)
        new.claim()
        new.snapshot()
        new.beat()
        new.put("shop/a", 5)
        await pod_topics.append()
        (change,) = await take(reader, 1)
        assert (change.key, change.verb, change.position.epoch) == ("shop/a", "modified", 4)
        assert applied([*first, change]) == {
            key.decode(): entry.value for held in new.held for key, entry in held.items()
        }


async def test_positions_saved_in_the_middle_of_the_state_begin_it_once_more(
    pod_topics: PodTopics,
) -> None:
    """At least once: nothing of a partition counts as given before all of its state was."""
    await pod_topics.begin()
    async with pod_topics.reader() as reader:
        await reader.ready()
        first = await take(reader, 1)
        assert reader.positions() == []
        while len({place["partition"] for place in reader.positions()}) < 1:
            first += await take(reader, 1)
        saved = reader.positions()
    whole = {place["partition"] for place in saved}
    pod_topics.writer.delete("shop/b")
    await pod_topics.append()
    async with pod_topics.ended(resume=saved) as reader:
        changes = await everything(reader)
        assert {change.partition for change in changes if change.verb == "added"} == {0, 1} - whole
        rest = [change for change in changes if change.partition in whole]
        assert applied([*(change for change in first if change.partition in whole), *rest]) == {
            key.decode(): entry.value
            for number in whole
            for key, entry in pod_topics.writer.held[number].items()
        }


async def test_resumed_each_change_of_the_meantime_is_given_and_then_the_live_ones(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin()
    async with pod_topics.ended() as reader:
        first, saved = await everything(reader), reader.positions()
    pod_topics.writer.put("shop/a", 3)
    pod_topics.writer.put("shop/a", 4)
    pod_topics.writer.delete("shop/b")
    pod_topics.writer.beat()
    await pod_topics.append()
    async with pod_topics.reader(resume=saved) as reader:
        await reader.ready()
        then = await take(reader, 3)
        assert brief(then) == [
            ("deleted", "shop/b", "watch"),
            ("modified", "shop/a", "watch"),
            ("modified", "shop/a", "watch"),
        ]
        pod_topics.writer.put("shop/z", 1)
        await pod_topics.append()
        then += await take(reader, 1)
        assert applied([*first, *then]) == pod_topics.held()


async def test_several_streams_are_given_each_once_and_asked_for_by_name(
    pod_topics: PodTopics,
) -> None:
    await pod_topics.begin_with_nodes("n1", "n2")
    async with pod_topics.ended() as reader:
        await reader.ready()
        assert reader.get("nodes//n1", stream="nodes")["metadata"]["name"] == "n1"
        with pytest.raises(ValueError, match="name the stream: this reader has nodes, pods"):
            reader.get("nodes//n1")
        changes = await everything(reader)
        assert {
            key: len([one for one in changes if one.stream == key]) for key in ("pods", "nodes")
        } == {"pods": len(NAMES), "nodes": 2}
        assert applied(changes) == state(reader, "pods") | state(reader, "nodes")


async def test_the_state_is_a_live_view_by_key(pod_topics: PodTopics) -> None:
    await pod_topics.begin()
    async with pod_topics.reader() as reader:
        pods = reader.objects("pods")
        assert (len(pods), list(pods), reader.get("shop/a")) == (0, [], None)
        await reader.ready()
        assert set(pods) == pod_topics.held().keys()
        assert pods["shop/a"]["metadata"]["name"] == "a"
        assert reader.get("shop/a") == pods["shop/a"] == dict(pods.items())["shop/a"]
        assert (pods.value("shop/a"), pods.value("shop/none")) == (
            pod_topics.held()["shop/a"],
            None,
        )
        assert (
            "shop/none" in pods,
            pods.get("shop/none"),
            reader.get("shop/none"),
            reader.get("\udcff"),
        ) == (False, None, None, None)
        with pytest.raises(KeyError):
            pods["shop/none"]
        pod_topics.writer.put("shop/new")
        await pod_topics.append()
        await take(reader, len(pod_topics.held()))
        assert "shop/new" in pods
        assert len(reader.objects("nothing")) == 0


def test_what_a_reader_raises_has_names_of_this_package() -> None:
    errors = {name for name in dir(watchrelay.consumer) if isinstance(each := getattr(watchrelay.consumer, name), type)
              and issubclass(each, Exception) and name != "RecordRefused"}  # fmt: skip
    assert errors == {
        "ConsumerError",
        "KafkaUnavailable",
        "NothingPublished",
        "ObjectUnreadable",
        "PositionsLost",
    }
    assert all(issubclass(getattr(watchrelay.consumer, name), ConsumerError) for name in errors)
