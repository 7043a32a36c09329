"""Record formats end to end on the embedded parts."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, Outcome, command
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.extent import few
from tests.support.testbed import Testbed
from tests.support.topic_contents import RESOURCES, fill, replicas, seen
from watchrelay.consumer.reader import TailRecord
from watchrelay.contract.records import MarkerRecord, ObjectRecord


@pytest.fixture
def testbed(cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path) -> Testbed:
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics(*RESOURCES)
    return testbed


@pytest.mark.parametrize("format_", few(["structured", "debezium"], 1))
def test_a_format_end_to_end(testbed: Testbed, cluster: EmbeddedCluster, format_: str) -> None:
    keys = fill(testbed, 6)
    namespace = keys[0].partition("/")[0]
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    relay = testbed.relay(*RESOURCES, kafka={"format": format_})
    with relay:
        relay.await_ready()
        cluster.request("DELETE", f"{path}/{keys[1].removeprefix(f'{namespace}/')}")
        testbed.make(path, [{"metadata": {"name": "new"}, "data": {"a": "<b>"}}])
        relay.wait("the changes are published", lambda: relay.stream("configmaps")["objects"] == 6)
        assert command("snapshot", "configmaps", "-c", relay.file).code == 0
        assert relay.stop() == 0
    records = seen(testbed)
    state = {
        key: held
        for (stream, _), replica in replicas(records).items()
        if stream == "configmaps"
        for key, held in replica.held.items()
    }
    listed = cluster.request("GET", path)["items"]
    assert all(replica.proven for replica in replicas(records).values())
    assert {key.decode(): json.loads(held.value)["data"] for key, held in state.items()} == {
        f"{namespace}/{item['metadata']['name']}": item["data"] for item in listed
    }
    gone = [
        one.record
        for one in records
        if isinstance(one.record, ObjectRecord) and one.record.verb == "deleted"
    ]
    assert [(record.key.decode(), record.enveloped) for record in gone] == [
        (keys[1], True),
        (keys[1], False),
    ]
    assert gone[1].sequence == gone[0].sequence + 1
    shown = command(
        "tail",
        "configmaps",
        "-c",
        relay.file,
        "--output",
        "json",
        "--markers",
        "--from-beginning",
        "--until-end",
    )
    assert shown.code == 0, shown
    _assert_shown(shown, records)
    people = command("tail", "configmaps", "-c", relay.file, "--from-beginning", "--until-end")
    attached = f"reading {testbed.topic('configmaps')}: stream configmaps, from 0@0 1@0 2@0\n"
    assert (people.code, people.stderr) == (0, attached)
    left = Daemon(
        testbed.config("namespaces", kafka={"format": format_}), testbed.directory, name="left"
    )
    assert command("retire", "configmaps", "--yes", "-c", left.file).code == 0
    emptied = replicas(seen_raw(testbed, "configmaps"))
    assert all(replica.proven and not replica.held for replica in emptied.values())


def seen_raw(testbed: Testbed, resource: str) -> list[TailRecord]:
    """Everything on a topic that the control topic no longer describes."""
    from confluent_kafka import Consumer, TopicPartition

    from watchrelay.contract.records import decode

    topic = testbed.topic(resource)
    consumer = Consumer(
        {
            "bootstrap.servers": testbed.broker.bootstrap,
            "group.id": "raw",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    found: list[TailRecord] = []
    try:
        for partition in range(3):
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10.0)
            consumer.assign([TopicPartition(topic, partition, 0)])
            offset = -1
            while offset < end - 1:
                message = consumer.poll(10.0)
                assert message is not None
                offset = message.offset() or 0
                headers: Any = message.headers() or []
                found.append(
                    TailRecord(
                        topic, partition, offset, decode(message.key(), message.value(), headers)
                    )
                )
    finally:
        consumer.close()
    return found


def _assert_shown(shown: Outcome, records: list[TailRecord]) -> None:
    lines = {(line["topic"], line["partition"], line["offset"]): line for line in shown.objects()}
    wanted = {
        (one.topic, one.partition, one.offset): one.record
        for one in records
        if one.record and one.record.stream == "configmaps"
    }
    assert lines.keys() == wanted.keys()
    for place, record in wanted.items():
        if isinstance(record, MarkerRecord):
            continue
        assert record is not None
        assert lines[place]["type"] == record.verb
        assert lines[place]["object"] == (
            None if record.value is None else json.loads(record.value)
        )


def holds(relay: Daemon, objects: int) -> bool:
    return bool(relay.stream("configmaps")["objects"] == objects)


def test_a_changed_format_is_read_by_those_that_were_there_before(
    testbed: Testbed, cluster: EmbeddedCluster
) -> None:
    keys = fill(testbed, 6)
    for number, format_ in enumerate(("cloudevents", "structured", "debezium")):
        namespace, _, name = keys[number].partition("/")
        with testbed.relay(
            "configmaps", name=f"relay-{number}", kafka={"format": format_}
        ) as relay:
            relay.await_ready()
            cluster.request("DELETE", f"/api/v1/namespaces/{namespace}/configmaps/{name}")
            relay.wait("the delete is published", functools.partial(holds, relay, 5 - number))
            assert relay.stop() == 0
    held = replicas(seen(testbed, "configmaps"))
    assert all(replica.proven for replica in held.values())
    assert {key.decode() for replica in held.values() for key in replica.held} == {*keys[3:]}
