"""The differences of a list, and the removal of all objects, come in pieces: what other tasks find
between two of them, and what a stop there leaves on the log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Literal, cast

import pytest

from tests.simulation.process import PLAIN, Config, Life, Shape
from tests.simulation.world import World
from tests.support.relays import Rig, run_virtually, until, virtual
from tests.support.stream_log import PODS
from tests.support.turns import TurnLoop, held_by
from tests.unit.store.frames import WIDGETS, frame, widgets
from watchrelay.contract.records import MarkerRecord
from watchrelay.model.frames import ObjectFrame
from watchrelay.model.watch_output import (
    ListBegun,
    ListDone,
    ListedObjects,
    ResourceRemoved,
    Watched,
)
from watchrelay.store.objects import Store
from watchrelay.store.reflector import Reflector
from watchrelay.store.transform import Transform

MANY = 100_000
INTERVAL_S = 10.0
"""Between two heartbeats."""


def reflector(rig: Rig, store: Store, kind: type[Reflector] = Reflector) -> Reflector:
    metrics = rig.metrics.stream(rig.spec.id, PODS)
    return kind(rig.spec.id, store, rig.relay, metrics=metrics, status=rig.status)


async def listed(outlet: Reflector, frames: Iterable[ObjectFrame]) -> None:
    await outlet.take(ListBegun())
    left = iter(frames)
    while page := list(islice(left, 500)):
        await outlet.take(ListedObjects(page))
        await asyncio.sleep(0)


def objects(version: int, count: int) -> Iterator[ObjectFrame]:
    for number in range(count):
        yield frame(f"w{number}", version, body=version)


@pytest.mark.full
def test_no_turn_of_the_loop_is_long_however_many_objects_a_list_changes_or_are_removed() -> None:
    async def play(_: TurnLoop) -> None:
        store = widgets()
        rig = Rig(partitions=3, store=cast("Any", store))
        outlet = reflector(rig, store)
        async with rig.running():
            for version in (2, 3):
                await listed(outlet, objects(version, MANY))
                await outlet.take(ListDone(str(version)))
                await until(lambda: rig.relay._queues.empty and rig.status.complete, steps=50_000)
            await outlet.take(ResourceRemoved())
            await until(lambda: rig.relay._queues.empty, steps=50_000)
        logged = [len(rig.sink.log(rig.spec.topic, partition)) for partition in range(3)]
        assert sum(logged) > 3 * MANY, "added, modified and deleted"

    assert not (wrong := held_by(play)), wrong


class Slow(Reflector):
    """Two heartbeats, and a snapshot if one may begin, come between two pieces."""

    async def _turn(self) -> None:
        await super()._turn()
        await asyncio.sleep(2 * INTERVAL_S)


async def followed(store: Store, rig: Rig) -> Reflector:
    """A stream of six objects that is whole at version 4, and lists at a later version."""
    outlet = reflector(rig, store, Slow)
    await listed(outlet, objects(2, 6))
    await outlet.take(ListDone("3"))
    await outlet.take(Watched(cursor="4"))
    await until(lambda: rig.status.complete and bool(rig.status.last_snapshot))
    await asyncio.sleep(2 * INTERVAL_S)
    return outlet


def shown(rig: Rig, since: int) -> list[tuple[str, str]]:
    """Of the one partition: each object's verb and version, each marker's kind and frontier."""
    return [
        (each.kind, each.frontier) if isinstance(each, MarkerRecord) else (each.verb, each.version)
        for each in rig.records(0)[since:]
    ]


@virtual
async def test_between_two_pieces_no_snapshot_begins_and_markers_keep_the_frontier() -> None:
    store = Store(Transform.compile(WIDGETS), partitions=1, piece=2)
    rig = Rig(partitions=1, store=cast("Any", store), heartbeat_interval_s=INTERVAL_S)
    async with rig.running():
        outlet = await followed(store, rig)
        await listed(outlet, [*objects(2, 1), frame("w1", 7), frame("new", 8)])
        since = len(rig.records(0))
        rig.relay.request_snapshot("between")
        assert await outlet.take(ListDone("9"))
        await until(lambda: bool(rig.control.indexes[rig.spec.id].get("requests")))
    log = shown(rig, since)
    begin = next(at for at, (kind, _) in enumerate(log) if kind == "begin")
    within, objects_within = log[:begin], [each for each in log[:begin] if each[1] != "4"]
    assert ("heartbeat", "4") in within
    assert [each for each in objects_within if each[0] != "heartbeat"] == [
        *[("deleted", "9")] * 4,
        ("modified", "7"),
        ("added", "8"),
    ]
    assert log[begin] == ("begin", "9")
    assert all(replica.proven for replica in rig.replicas())


@virtual
async def test_a_stop_within_the_removal_of_all_objects_leaves_no_frontier_to_watch_from() -> None:
    store = Store(Transform.compile(WIDGETS), partitions=1, piece=2)
    rig = Rig(partitions=1, store=cast("Any", store), heartbeat_interval_s=INTERVAL_S)
    async with rig.running():
        outlet = await followed(store, rig)
        since = len(rig.records(0))
        async with asyncio.TaskGroup() as tasks:
            removing = tasks.create_task(outlet.take(ResourceRemoved()), name="removing")
            await until(lambda: len(store) == 4)
            removing.cancel()
        assert await rig.relay.drain(60.0)
    assert [each for each in shown(rig, since) if each[0] != "heartbeat"] == [("deleted", "4")] * 2
    assert shown(rig, since)[-1] == ("heartbeat", "0")
    assert len(rig.rebuilt()) == len(store) == 4


# ---- whole processes -----------------------------------------------------------------------------

NARROW = Config("narrow", selector="tier=front")
Cause = Literal["expired", "narrowed", "restored"]


class Interrupted(World):
    """A process ends in its `left`-th turn between two pieces."""

    left = 0
    kills = False

    async def between_pieces(self, life: Life) -> None:
        self.left -= 1
        if self.left == 0:
            if self.kills:
                life.kill()
            else:
                life.stop()
            await asyncio.sleep(0.5)


async def interrupted(pieces: int, cause: Cause, *, kills: bool) -> bool:
    """A process lists after the `cause`, and ends within the differences; the next one makes up for
    it. Whether there were so many pieces."""
    world = Interrupted(1, calm=Shape(partitions=2, piece_keys=1))
    server, names = world.server, "abcdef"
    for number, name in enumerate(names):
        server.put(name, number, tier="front" if name in "ab" else "back")

    async def lives(config: Config = PLAIN) -> bool:
        """Whether it ended by itself before it had caught up."""
        world.config = config
        async with asyncio.TaskGroup() as tasks:
            life = world.begin(tasks)
            await until(
                lambda: (
                    life.over
                    or (life.status.complete and int(life.status.frontier or 0) >= server.version)
                )
            )
            over = life.over
            life.stop()
        return over

    await lives()
    backup, version = dict(server.objects), server.version
    server.delete("a")
    server.put("b", 7)
    server.put("c", 8)
    server.put("g", 9)
    if cause == "restored":
        await lives()
        server.objects, server.version, server.history = backup, version + 1, []
    elif cause == "expired":
        server.forget()
    config = NARROW if cause == "narrowed" else PLAIN
    world.left, world.kills = pieces, kills
    was_interrupted = await lives(config)
    world.left = 0
    assert not await lives(config)
    by_version = ("was published before", "is published again", "lacks what was received before")
    assert [
        line
        for line in world.judge()
        if cause != "restored" or not any(sign in line for sign in by_version)
    ] == []
    return was_interrupted


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("cause", ["expired", "narrowed", "restored"])
def test_the_next_writer_makes_up_for_a_list_within_whose_differences_a_process_ended(
    cause: Cause, *, kills: bool
) -> None:
    pieces = 1
    while run_virtually(interrupted(pieces, cause, kills=kills)):
        pieces += 1
    assert pieces > 6
