"""The contents of a testbed's topics: index records, replicas, and what is left after `retire`."""

import asyncio
import itertools
from contextlib import aclosing
from typing import Any

from tests.support.testbed import Testbed
from tests.support.topicreader import read_control
from tests.support.wirerules import partition_of
from watchrelay.consumer.reader import TailReader, TailRecord
from watchrelay.consumer.replica import Replica
from watchrelay.kafka.client.connection import KafkaConnection

RESOURCES = ("configmaps", "namespaces")


def fill(testbed: Testbed, count: int) -> list[str]:
    """A namespace with so many config maps, each on another of the three partitions than the one
    before it; their keys."""
    (namespace,) = testbed.namespaces(1)
    names: list[str] = []
    numbers = itertools.count()
    while len(names) < count:
        name = f"c{next(numbers)}"
        if partition_of(f"{namespace}/{name}".encode(), 3) == len(names) % 3:
            names.append(name)
    testbed.make(
        f"/api/v1/namespaces/{namespace}/configmaps",
        [{"metadata": {"name": name}, "data": {"a": name}} for name in names],
    )
    return [f"{namespace}/{name}" for name in names]


def index_of(testbed: Testbed, stream: str) -> dict[str, Any]:
    """The newest index record of a stream, {} for none."""
    newest: dict[str, Any] = {}
    for _, key, value in read_control(testbed.broker.bootstrap, testbed.control_topic):
        if key == f"snapshot/{stream}":
            newest = value or {}
    return newest


def connection(testbed: Testbed) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=(testbed.broker.bootstrap,), client_id="test")


def seen(testbed: Testbed, *streams: str) -> list[TailRecord]:
    """Everything on the topics of the streams."""

    async def read() -> list[TailRecord]:
        tail = TailReader(
            connection(testbed),
            control_topic=testbed.control_topic,
            streams=streams,
            from_beginning=True,
            until_end=True,
        )
        async with aclosing(tail.batches()) as batches:
            return [one async for batch in batches for one in batch]

    return asyncio.run(read())


def replicas(records: list[TailRecord]) -> dict[tuple[str, int], Replica]:
    """A reader of each partition that has read everything."""
    held: dict[tuple[str, int], Replica] = {}
    for one in records:
        assert one.record is not None, one.refused
        held.setdefault((one.record.stream, one.partition), Replica()).apply(one.record)
    return held


def assert_retired(testbed: Testbed, keys: list[str]) -> None:
    """Every reader of the topic ends with nothing, and the control topic knows the stream no
    more."""
    control = testbed.control_topic
    left = {key: value for _, key, value in read_control(testbed.broker.bootstrap, control)}
    assert [left[f"{kind}/configmaps"] for kind in ("claim", "stream", "snapshot")] == [None] * 3
    assert left["stream/namespaces"], "the other stream was forgotten too"
    with testbed.reader(testbed.topic("configmaps")) as reader:
        reader.read()
        assert reader.plain[testbed.topic("configmaps")] == {}
        assert reader.table("configmaps") == {}
        assert reader.proven("configmaps")
        assert {str(record.key.decode()) for record in reader.of("configmaps", "deleted")} >= set(
            keys
        )
        newest = {record.raw.partition: record for record in reader.of("configmaps")}
        assert {record.type for record in newest.values()} == {"end"}
        assert {record.headers["ce_wrcount"] for record in newest.values()} == {"0"}
        assert {record.headers["ce_wrrv"] for record in newest.values()} == {"0"}, (
            "a stream that comes back would not list"
        )
