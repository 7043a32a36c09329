"""Records of another writer on a state topic, between two lives of the relay or during one: readers
end proven, with the server's state, and so does a table that ignores headers."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.support.extent import few
from tests.unit.daemon.conftest import Relay, World, running, until
from watchrelay.config import Settings
from watchrelay.consumer import TopicReader
from watchrelay.contract.partitioning import partition_of
from watchrelay.contract.records import content_hash

TOPIC, CONTROL = "k8s.test.core.pods", "k8s.test.control"
PARTITIONS = 3
KEPT, OLD = b"default/kept", b"default/old"
FAR = b"900000000000"
Headers = dict[str, bytes]


@dataclass(frozen=True)
class Record:
    """One record, as a client of Kafka writes it."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int

    @property
    def epoch(self) -> int:
        return int(self.headers["ce_wrepoch"])

    @property
    def sequence(self) -> int:
        return int(self.headers["ce_sequence"])

    def at(self, epoch: int, sequence: int) -> Record:
        """The same under another position."""
        return self.having(
            ce_wrepoch=b"%d" % epoch,
            ce_sequence=b"%020d" % sequence,
            ce_id=b"pods.%d.%d.%d" % (epoch, self.partition, sequence),
        )

    def having(self, **headers: bytes) -> Record:
        return replace(self, headers=self.headers | headers)

    def lacking(self, *names: str) -> Record:
        return replace(
            self, headers={name: each for name, each in self.headers.items() if name not in names}
        )

    def of(self, key: bytes, value: bytes, **headers: bytes) -> Record:
        """Of another key and value, with the hash that they have."""
        hashed = b"%016x" % content_hash(key, value)
        return replace(self, key=key, value=value).having(ce_wrhash=hashed, **headers)

    def deleted(self) -> Record:
        gone = self.lacking("content-type", "ce_wrhash")
        return replace(gone, value=None).having(ce_type=b"dev.watchrelay.object.deleted.v1")

    def changed(self, text: str) -> bytes:
        """Its value, with another content."""
        assert self.value is not None
        return json.dumps({**json.loads(self.value), "forged": text}).encode()


class Log:
    """What the topic holds, and what is written behind it: the highest position of a partition
    counts on."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = list(records)

    def newest(self, key: bytes, partition: int | None = None) -> Record:
        return [
            each
            for each in self.records
            if each.key is not None
            and each.key.startswith(key)
            and partition in (None, each.partition)
        ][-1]

    def follows(self, record: Record) -> Record:
        """The record, behind all others of its partition, under the next sequence."""
        last = max(
            (each.epoch, each.sequence)
            for each in self.records
            if each.partition == record.partition and "ce_wrepoch" in each.headers
        )
        return record.at(last[0], last[1] + 1)


async def read(world: World, topic: str = TOPIC, partitions: int = PARTITIONS) -> list[Record]:
    """All records, partition by partition."""
    found = []
    async with AIOKafkaConsumer(
        bootstrap_servers=world.kafka.bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        for place in (TopicPartition(topic, each) for each in range(partitions)):
            consumer.assign([place])
            end = (await consumer.end_offsets([place]))[place]
            for _ in range(end):
                each = await consumer.getone()
                found.append(Record(each.key, each.value, dict(each.headers), place.partition))
    return found


async def write(world: World, *records: Record) -> None:
    async with AIOKafkaProducer(bootstrap_servers=world.kafka.bootstrap) as producer:
        for each in records:
            await producer.send_and_wait(
                TOPIC,
                key=each.key,
                value=each.value,
                headers=list(each.headers.items()),
                partition=each.partition,
            )


def pod(name: str, text: str = "") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [], "nodeName": text},
    }


def settings_of(world: World, **more: Any) -> Settings:
    entry = {"resource": "pods", "snapshotInterval": "5s", **more.pop("entry", {})}
    return world.settings(entry, heartbeatInterval="1s", kafka={"partitions": PARTITIONS}, **more)


@pytest.fixture
def prepared(world: World) -> World:
    world.kafka.create_topic(TOPIC, PARTITIONS)
    world.behaviour.bookmark_interval_s = 1.0
    for name in ("old", "kept", "other", "more"):
        world.cluster.registry.create("pods", pod(name))
    return world


async def whole(relay: Relay) -> None:
    await until(
        "the state is whole",
        lambda: (
            relay.row("pods")
            and relay.row("pods").complete
            and relay.row("pods").state == "watching"
        ),
    )


async def first_life(world: World, settings: Settings) -> Log:
    """What a relay wrote that has ended well."""
    async with running(settings) as relay:
        await whole(relay)
        relay.daemon.stop()
        assert await relay.ended() == 0
    return Log(await read(world))


def expected(world: World) -> dict[str, Any]:
    held = world.cluster.registry.storage.collection("pods").objects
    found = {}
    for namespace, name in held:
        obj = json.loads(held[namespace, name].body())
        found[f"{namespace}/{name}"] = (obj["metadata"]["uid"], obj["spec"], obj.get("forged"))
    return found


def holds(world: World, reader: TopicReader) -> bool:
    if not reader.proven:
        return False
    try:
        objects = {key: reader.get(key) for key in reader.objects("pods")}
        shown = {
            key: (each["metadata"]["uid"], each["spec"], each.get("forged"))
            for key, each in objects.items()
        }
    except Exception:  # noqa: BLE001 - not an object: not the server's state
        return False
    return shown == expected(world)


async def assert_right(world: World, live: TopicReader) -> None:
    """A reader that was there and one that comes now hold what the server holds."""

    async def follow(reader: TopicReader) -> None:
        async for _ in reader:
            pass

    async with (
        TopicReader(world.kafka.bootstrap, control_topic=CONTROL, streams=["pods"]) as new,
        asyncio.TaskGroup() as tasks,
    ):
        following = [tasks.create_task(follow(reader)) for reader in (live, new)]
        for who, reader in (("the reader that was there", live), ("the new reader", new)):
            try:
                await until(f"{who} holds the server's state", partial(holds, world, reader))
            except AssertionError as error:
                state = [
                    (each.partition, each.proven, each.objects) for each in reader.partitions()
                ]
                raise AssertionError(f"{error}: {state} {list(reader.objects('pods'))}") from error
        for task in following:
            task.cancel()


async def assert_table_right(world: World, partitions: int = PARTITIONS) -> None:
    """A table that ignores headers holds the keys of the server, each in its partition."""
    tables = [dict[bytes, bytes]() for _ in range(partitions)]
    for each in await read(world, partitions=partitions):
        if each.key is None:
            continue
        if each.value is None:
            tables[each.partition].pop(each.key, None)
        else:
            tables[each.partition][each.key] = each.value
    found = {key: place for place, table in enumerate(tables) for key in table}
    keys = {key.encode() for key in expected(world)}
    assert found == {key: partition_of(key, partitions) for key in keys}


def change(world: World) -> None:
    """One object of each kind of change, each of a key that may have been forged."""
    registry = world.cluster.registry
    registry.replace("pods", pod("kept", "changed"))
    registry.delete("pods", "default", "old")
    registry.create("pods", pod("fresh"))


Forge = Callable[[Log], list[Record]]


def tail(key: bytes, make: Callable[[Record], Record]) -> Forge:
    """`make` of the newest record of `key`, under the next sequence of its partition."""
    return lambda log: [log.follows(make(log.newest(key)))]


def with_version(record: Record, version: bytes) -> Record:
    """The object at this version, wherever a record says so."""
    value = json.loads(record.value or b"")
    value["metadata"]["resourceVersion"] = version.decode()
    return record.of(record.key or b"", json.dumps(value).encode(), ce_wrrv=version)


def elsewhere(record: Record) -> Record:
    """The object in a partition where it does not belong."""
    return replace(record, partition=(record.partition + 1) % PARTITIONS)


def adopted(log: Log) -> list[Record]:
    """A value that is not what its header says, and the heartbeat of a writer that believes the
    header."""
    object_record = log.newest(KEPT)
    heartbeat = log.newest(b"%wr/heartbeat", object_record.partition)
    forged = log.follows(replace(object_record, value=object_record.changed("adopted")))
    return [forged, heartbeat.at(forged.epoch, forged.sequence + 1)]


def staged(log: Log) -> Record:
    """A marker that readers ignore, as another cluster would write it."""
    end = log.newest(b"%wr/end")
    source = end.headers["ce_source"].replace(b"/test/", b"/staging/")
    assert source != end.headers["ce_source"]
    return end.having(ce_source=source)


BETWEEN: dict[str, Forge] = {
    "version ahead": tail(KEPT, lambda each: with_version(each, FAR)),
    "hash believed by a former release": adopted,
    "object in all partitions": lambda log: [
        log.follows(replace(log.newest(KEPT), partition=each)) for each in range(PARTITIONS)
    ],
    "heartbeat of nothing": lambda log: [
        log.follows(log.newest(b"%wr/heartbeat", each)).having(
            ce_wrcount=b"0", ce_wrdigest=b"0" * 16
        )
        for each in range(PARTITIONS)
    ],
    "version ahead of one to be deleted": tail(OLD, lambda each: with_version(each, FAR)),
    "delete with a version ahead": tail(KEPT, lambda each: each.deleted().having(ce_wrrv=FAR)),
    "value of something else": tail(KEPT, lambda each: replace(each, value=each.changed("x"))),
    "value that is no JSON": tail(KEPT, lambda each: each.of(KEPT, b"\xff\xfe")),
    "object of another uid": tail(KEPT, lambda each: each.having(ce_wruid=b"another")),
    "key without a slash": tail(KEPT, lambda each: each.of(b"kept", each.value or b"")),
    "key of a marker": tail(
        KEPT, lambda each: each.of(b"%%wr/heartbeat/pods/%d" % each.partition, each.value or b"")
    ),
    "object in another partition": lambda log: [log.follows(elsewhere(log.newest(KEPT)))],
    "header missing": tail(KEPT, lambda each: each.lacking("ce_wrreason")),
    "no headers": lambda log: [
        Record(KEPT, b"{}", {}, log.newest(KEPT).partition),
        Record(OLD, None, {}, log.newest(OLD).partition),
    ],
    "sequence beyond 2^64": lambda log: [
        log.newest(KEPT).at(log.follows(log.newest(KEPT)).epoch, 10**20 - 1)
    ],
    "delete that names another stream": lambda log: [
        log.newest(KEPT).deleted().having(ce_wrstream=b"ghost")
    ],
    "object that names another stream": lambda log: [
        log.newest(KEPT).of(KEPT, log.newest(KEPT).changed("x"), ce_wrstream=b"ghost")
    ],
    "stale marker of another cluster": lambda log: [staged(log)],
    "former epoch": lambda log: [
        log.newest(KEPT).of(KEPT, log.newest(KEPT).changed("x")).at(0, 5)
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", few(BETWEEN, 4))
async def test_a_record_between_two_lives_leaves_readers_with_the_servers_state(
    prepared: World, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    world, settings = prepared, settings_of(prepared)
    log = await first_life(world, settings)
    async with TopicReader(world.kafka.bootstrap, control_topic=CONTROL, streams=["pods"]) as live:
        await live.ready()
        await write(world, *BETWEEN[name](log))
        with caplog.at_level(logging.WARNING, "watchrelay"):
            async with running(settings) as relay:
                await whole(relay)
                await assert_right(world, live)
                change(world)
                await assert_right(world, live)
                relay.daemon.stop()
                assert await relay.ended() == 0
    await assert_table_right(world)
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


LIVE: dict[str, Forge] = {
    "key in two partitions": lambda log: [
        replace(log.newest(KEPT), value=b"{}", partition=each).at(0, 7)
        for each in range(PARTITIONS)
    ],
    "delete that names another stream": lambda log: [log.newest(KEPT).deleted().having(ce_wrstream=b"ghost")],
    "stale marker of another cluster": lambda log: [staged(log), log.newest(OLD).deleted().having(ce_wrstream=b"ghost")],
    "no headers": lambda log: [
        Record(KEPT, b"{}", {}, log.newest(KEPT).partition),
        Record(OLD, None, {}, log.newest(OLD).partition),
    ],
    "hash missing": lambda log: [
        replace(log.newest(KEPT), value=b"{}").lacking("ce_wrhash"),
        log.newest(OLD).of(b"default/never", b"{}").lacking("ce_wrreason"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", few(LIVE, 2))
async def test_a_record_that_readers_ignore_is_followed_by_the_true_one_while_the_relay_runs(
    prepared: World, name: str
) -> None:
    world, settings = prepared, settings_of(prepared, entry={"snapshotInterval": "1h"})
    async with running(settings) as relay:
        await whole(relay)
        epoch = relay.row("pods").epoch
        await write(world, *LIVE[name](Log(await read(world))))

        async def right() -> bool:
            try:
                await assert_table_right(world)
            except AssertionError:
                return False
            return True

        async with asyncio.timeout(60):
            while not await right():
                pass
        assert relay.row("pods").epoch == epoch, "it cost no claim"


@pytest.mark.parametrize("between", [False, True], ids=["while the relay runs", "between lives"])
async def test_a_record_under_a_key_of_another_stream_is_repaired_by_that_stream_alone(
    world: World, between: bool
) -> None:
    world.kafka.create_topic(TOPIC, 1)
    world.cluster.registry.create("pods", pod("kept"))
    metadata = {"name": "config", "namespace": "default"}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    world.cluster.registry.create("configmaps", config)
    entries = [{"resource": each, "topic": TOPIC} for each in ("pods", "configmaps")]
    settings = world.settings(*entries, heartbeatInterval="1s", kafka={"partitions": 1})
    held = b"configmaps/default/config"

    async def both() -> Log:
        streams = ("pods", "configmaps")
        await until(
            "both are whole",
            lambda: all(relay.row(each) and relay.row(each).complete for each in streams),
        )
        return Log(await read(world, partitions=1))

    async def forge(log: Log) -> None:
        forged = log.newest(b"pods/default/kept")
        forged = forged.of(held, forged.value or b"")
        await write(world, log.follows(forged) if between else forged)

    async with running(settings) as relay:
        log = await both()
        if not between:
            await forge(log)
            await assert_owned(world, held)
        relay.daemon.stop()
        assert await relay.ended() == 0
    if between:
        log = Log(await read(world, partitions=1))
        await forge(Log([each for each in log.records if stream_of(each) == b"pods"]))
        async with running(settings) as relay:
            await assert_owned(world, held)
            await both()


def stream_of(record: Record) -> bytes:
    return record.headers["ce_wrstream"]


async def assert_owned(world: World, key: bytes) -> None:
    """The newest record of the key is its stream's, and the other stream has written none."""
    async with asyncio.timeout(60):
        while True:
            records = [each for each in await read(world, partitions=1) if each.key == key]
            if stream_of(records[-1]) == b"configmaps" and len(records) > 2:
                break
    assert records[-1].value is not None
    assert [stream_of(each) for each in records] == [b"configmaps", b"pods", b"configmaps"]
