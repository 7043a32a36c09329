"""Whole processes in virtual time, one after another on one log: what each appends; the directed
cases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import TopicPartition

from tests.simulation.partition_log import Log, Raw
from tests.simulation.process import CONTROL, PLAIN, STREAM, TOPIC, Config, Life, Shape
from tests.simulation.world import World
from tests.support.relays import until, virtual
from watchrelay.consumer.replica import Replica
from watchrelay.contract.records import Decoded, MarkerRecord, ObjectRecord
from watchrelay.core.timestamps import parse_timestamp

PARTITIONS = 2
NAMES = "abcdef"
NARROW = Config("narrow", selector="tier=front")
REST = Config("rest", selector="tier=back")
_BY_VERSION = ("was published before", "is published again", "lacks what was received before")


@asynccontextmanager
async def running(world: World, config: Config = PLAIN) -> AsyncIterator[Life]:
    """A process that runs inside the block and is killed at its end."""
    world.config = config
    async with asyncio.TaskGroup() as tasks:
        life = world.begin(tasks)
        yield life
        life.kill()


async def settled(life: Life) -> None:
    """Whole, caught up, heartbeats behind."""
    server = life.world.server
    await until(lambda: life.status.complete and int(life.status.frontier or 0) >= server.version)
    await asyncio.sleep(5)


def log(world: World, partition: int) -> Log:
    return world.broker.log(TopicPartition(TOPIC, partition))


def records(world: World, partition: int, since: int = 0) -> list[Decoded]:
    return [
        each.decoded
        for each in log(world, partition).read(since, 1 << 60)
        if each.decoded is not None
    ]


def ends(world: World) -> list[int]:
    return [log(world, partition).end for partition in range(PARTITIONS)]


def appended(world: World, since: list[int]) -> list[ObjectRecord]:
    """Object records behind these places."""
    return [
        each
        for partition, at in enumerate(since)
        for each in records(world, partition, at)
        if isinstance(each, ObjectRecord)
    ]


def check(world: World, *, restored: bool = False) -> None:
    """Every promise holds. `restored`: the server went back, and gives versions out once more."""
    assert [
        line
        for line in world.judge()
        if not (restored and any(sign in line for sign in _BY_VERSION))
    ] == []


def filled(seed: int = 1, *, bookmarks: bool = True) -> World:
    world = World(seed, calm=Shape(partitions=PARTITIONS, bookmarks=bookmarks))
    for number, name in enumerate(NAMES):
        world.server.put(name, number, tier="front" if name in "ab" else "back")
    return world


@virtual
async def test_a_second_life_appends_no_object_and_counts_on_from_the_same_snapshot() -> None:
    world = filled()
    async with running(world) as first:
        await settled(first)
    at = ends(world)
    ended = first.metrics.gauge("snapshot_last_success_timestamp_seconds").labels(STREAM)
    ended.set(0)  # another process has other metrics
    async with running(world) as second:
        await settled(second)
        assert second.decision == "WatchFrom"
        assert second.status.last_snapshot is not None
        samples = {
            each.name: each.value
            for family in second.metrics.registry.collect()
            for each in family.samples
        }
        assert samples[
            "watchrelay_snapshot_last_success_timestamp_seconds"
        ] * 1000 == parse_timestamp(second.status.last_snapshot.encode())
    assert appended(world, at) == []
    beats = [
        each
        for each in records(world, 0, at[0])
        if isinstance(each, MarkerRecord) and each.kind == "heartbeat"
    ]
    assert beats[-1].last_snapshot == f"{first.epoch}-1"
    check(world)


@virtual
async def test_f5_no_snapshot_begins_before_the_frontier_has_passed_what_is_on_the_log() -> None:
    world = filled()
    async with running(world) as first:
        await settled(first)
        old = str(world.server.version)
        for name in NAMES[:3]:
            world.server.delete(name)
        await until(lambda: len(first.store) == 3)
        await asyncio.sleep(0.1)
    newest = world.server.version
    async with running(world) as second:
        await until(lambda: second.decision == "WatchFrom")
        second.relay.request_snapshot("asked")
        await until(lambda: bool((second.control.index("pods") or {}).get("requests")))
    begins = [
        each
        for partition in range(PARTITIONS)
        for each in records(world, partition)
        if isinstance(each, MarkerRecord)
    ]
    frontiers = [
        int(each.frontier)
        for each in begins
        if each.kind == "begin" and each.snapshot == f"{second.epoch}-1"
    ]
    assert min(frontiers) >= newest > int(old)
    check(world)


@virtual
async def test_f4_configs_that_came_and_went_are_noticed_however_short_they_lived() -> None:
    world = filled()
    async with running(world) as first:
        await settled(first)
    for wait_s in (0.02, 0.5, 0.8):
        async with running(world, NARROW) as narrow:
            await until(lambda: bool(narrow.decision))
            await asyncio.sleep(wait_s)
        async with running(world) as again:
            await settled(again)
            assert again.decision == "ListAndDiff"
        check(world)
    async with running(world, NARROW) as narrow:
        await settled(narrow)
    check(world)


@virtual
async def test_no_marker_is_between_the_claim_and_the_difference_of_another_config() -> None:
    world = filled()
    async with running(world) as first:
        await settled(first)
    at = ends(world)
    async with running(world, REST) as other:
        await settled(other)
    for partition in range(PARTITIONS):
        kinds = [
            each.kind if isinstance(each, MarkerRecord) else each.verb
            for each in records(world, partition, at[partition])
        ]
        deletes = kinds.count("deleted")
        assert kinds[: deletes + 1] == ["claim", *["deleted"] * deletes]
    last = records(world, 0)[-1]
    assert isinstance(last, MarkerRecord)
    assert last.config == "rest"
    assert "snapshot" in {each.reason for each in appended(world, at)}, (
        "a snapshot follows a change of config"
    )


@virtual
async def test_a_log_that_lost_a_record_is_not_accepted_and_published_again_within_a_snapshot() -> (
    None
):
    world = filled()
    async with running(world) as first:
        await settled(first)
    kept = set(NAMES)
    for partition in range(PARTITIONS):
        stored = log(world, partition).records
        lost = next(at for at, record in enumerate(stored) if record.value is not None)
        kept.discard(stored.pop(lost).key.decode().removeprefix("n/"))
    world.lost.add("reading")
    world.server.delete(min(kept))
    world.server.put(max(kept), 77)
    at = ends(world)
    async with running(world) as second:
        await settled(second)
        assert second.decision == "FirstSnapshot"
    published = appended(world, at)
    assert {each.verb for each in published if each.reason == "snapshot"} <= {"read", "added"}
    assert ("deleted", "resume") in {(each.verb, each.reason) for each in published}
    check(world)
    begins = [
        each
        for each in records(world, 0, at[0])
        if isinstance(each, MarkerRecord) and each.kind == "begin"
    ]
    assert [(each.frontier, each.count) for each in begins] == [("0", 0)], (
        "what is not believed is not claimed again"
    )


@virtual
async def test_a_log_of_markers_alone_does_not_pass_for_an_empty_stream_however_often_it_is_read() -> (
    None
):
    world = filled()
    async with running(world) as first:
        await settled(first)
    for partition in range(PARTITIONS):
        stored = log(world, partition).records
        stored[:] = [record for record in stored if record.value is None]
    claims = world.broker.log(TopicPartition(CONTROL, 0)).records
    claims[:] = [record for record in claims if record.key == b"stream/pods"]
    world.lost.add("reading")
    for _ in range(3):
        async with running(world) as cut_short:
            await until(lambda: bool(cut_short.decision))
            await asyncio.sleep(world.rng.random() * 0.5)
    async with running(world) as last:
        await settled(last)
    check(world, restored=True)


@virtual
async def test_a_server_restored_from_a_backup_is_believed_and_the_frontier_goes_back() -> None:
    world = filled()
    async with running(world) as first:
        await settled(first)
        backup = dict(world.server.objects)
        for _ in range(3):
            world.server.put("a", world.server.version)
        world.server.delete("b")
        await settled(first)
    frontier = world.server.version
    world.server.objects, world.server.version, world.server.history = backup, frontier - 4, []
    # as a probe would have found: the watch from our frontier is not served
    world.server.horizon = frontier + 1
    async with running(world) as second:
        await asyncio.sleep(3)
        world.server.horizon = 0
        world.server.put("a", 1234)
        await settled(second)
    assert int(second.status.frontier or 0) < frontier
    check(world, restored=True)


@virtual
async def test_a_server_restored_to_between_the_newest_object_and_the_frontier_lowers_it() -> None:
    world = filled()
    async with running(world) as first:
        await settled(first)
        newest = world.server.version
        world.server.version += 10  # changes of other resources
        await settled(first)
    world.server.version = newest + 4
    at = ends(world)
    async with running(world, NARROW) as second:
        await settled(second)
        assert second.decision == "ListAndDiff"
    beats = {
        each.frontier
        for partition in range(PARTITIONS)
        for each in records(world, partition, at[partition])
        if isinstance(each, MarkerRecord) and each.kind == "heartbeat"
    }
    assert beats == {str(newest + 4)}
    check(world, restored=True)


@virtual
async def test_a_dead_object_that_a_former_writer_shows_again_is_buried_while_we_live() -> None:
    world = filled()
    async with running(world) as first:
        await settled(first)
        world.server.delete("a")
        await settled(first)
        for partition in range(PARTITIONS):
            copies: list[Raw] = [
                (each.key, each.value, each.headers)
                for each in log(world, partition).records
                if each.key == b"n/a" and each.value
            ]
            if copies:
                log(world, partition).append(asyncio.get_running_loop().time(), copies)
        await asyncio.sleep(5)
    check(world)
    healed = [each for each in appended(world, [0] * PARTITIONS) if each.reason == "healed"]
    assert [(each.key, each.verb, each.uid) for each in healed] == [(b"n/a", "deleted", "")]
    assert int(healed[0].version) > 0


@virtual
async def test_a_claim_that_compaction_took_for_a_newer_one_stops_its_writer() -> None:
    world = filled()
    async with asyncio.TaskGroup() as tasks:
        first = world.begin(tasks)
        await first.control.caught_up()
        first.control.blind = True
        claims = world.broker.log(TopicPartition(CONTROL, 0))
        await until(lambda: any(each.key == b"claim/pods" for each in claims.records))
        second = world.begin(tasks)
        await settled(second)
        claims.clean(asyncio.get_running_loop().time(), lag_s=0, retention_s=60)
        first.control.blind = False
        await until(lambda: first.over)
        second.kill()
    assert first.fenced
    assert not first.claimed
    check(world)


@virtual
async def test_what_is_stale_before_a_begin_is_healed_before_its_end() -> None:
    world = filled()
    async with running(world) as life:
        await settled(life)
        world.server.delete("a")
        await settled(life)
        partition = next(
            each
            for each in range(PARTITIONS)
            if any(one.key == b"n/a" for one in log(world, each).records)
        )
        stale: list[Raw] = [
            (one.key, one.value, one.headers)
            for one in log(world, partition).records
            if one.key == b"n/a" and one.value
        ]
        life.relay.request_snapshot("asked")
        log(world, partition).append(asyncio.get_running_loop().time(), stale)
        await until(lambda: bool((life.control.index("pods") or {}).get("requests")))
    published = [
        each.reason if isinstance(each, ObjectRecord) else each.kind
        for each in records(world, partition)
    ]
    assert "healed" in published[: len(published) - published[::-1].index("end")]
    check(world)


@virtual
async def test_a_stale_record_of_a_key_of_another_partition_is_repaired_where_it_is() -> None:
    world = filled()
    async with running(world) as life:
        await settled(life)
        home = next(
            each
            for each in range(PARTITIONS)
            if any(one.key == b"n/a" for one in log(world, each).records)
        )
        unacknowledged_ranges = (home + 1) % PARTITIONS
        former = next(one for one in log(world, home).records if one.key == b"n/a" and one.value)
        headers = tuple(
            (name, b"0" if name == "ce_wrepoch" else value) for name, value in former.headers
        )
        log(world, unacknowledged_ranges).append(
            asyncio.get_running_loop().time(), [(former.key, former.value, headers)]
        )
        await until(
            lambda: any(
                isinstance(each, ObjectRecord) and each.reason == "healed"
                for each in records(world, unacknowledged_ranges)
            )
        )
        await settled(life)
    healed = [
        each
        for each in records(world, unacknowledged_ranges)
        if isinstance(each, ObjectRecord) and each.reason == "healed"
    ]
    assert [(each.key, each.verb) for each in healed] == [(b"n/a", "deleted")]
    reader = Replica()
    for each in records(world, unacknowledged_ranges):
        reader.apply(each)
    assert reader.proven
