"""Real Kafka with what should not be there, or without what should: one clear message, nothing
lost.

The API server is the synthetic one: what is wrong here is on Kafka's side.
"""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions

from tests.support.daemon import Daemon, command
from tests.support.embedded import EmbeddedCluster
from tests.support.kafkabroker import KafkaBroker
from tests.support.listed import await_equal, expected_table, list_text
from tests.support.livereader import fresh_tables
from tests.support.process import wait_until
from tests.support.testbed import Testbed
from tests.support.topic_contents import index_of
from tests.support.topicreader import TopicReader

pytestmark = pytest.mark.real

_PATHS = {"configmaps": "/api/v1/configmaps"}
_OBJECTS = 30


@pytest.fixture
def testbed(cluster: EmbeddedCluster, kafka_broker: KafkaBroker, tmp_path: Path) -> Testbed:
    return Testbed(cluster, kafka_broker, tmp_path)


@pytest.fixture
def path(testbed: Testbed) -> str:
    """The path of the config maps that are followed."""
    return testbed.config_maps(_OBJECTS)


def warnings(relay: Daemon, since: int) -> list[str]:
    """What it warned of in this life, without what every new topic of one copy is warned of."""
    return [
        line["message"]
        for line in relay.lines(since=since)
        if line["level"] in {"warning", "error"}
    ]


def published(
    testbed: Testbed, cluster: EmbeddedCluster, reader: TopicReader, relay: Daemon
) -> None:
    """A first life: everything is on the topic, a heartbeat behind it; then it is stopped."""
    if not relay.alive:
        relay.start()
    relay.await_ready()
    await_equal(cluster, reader, _PATHS)
    wait_until("its snapshot is in the index", lambda: index_of(testbed, "configmaps"))
    before = len(reader.of("configmaps", "heartbeat"))
    reader.read_until(
        "heartbeats follow", lambda: len(reader.of("configmaps", "heartbeat")) > before + 3
    )
    assert relay.stop() == 0
    reader.read()


def again(relay: Daemon) -> int:
    """The next life, until it watches; where in its log that begins."""
    since = relay.log_bytes
    relay.start().await_ready()
    relay.wait(
        "it watches, and all is published",
        lambda: (row := relay.stream("configmaps")).get("state") == "watching" and row["complete"],
    )
    return since


def assert_held(testbed: Testbed, cluster: EmbeddedCluster, *, complains: bool = False) -> None:
    """A reader that starts now holds what the API server lists."""
    wanted = {"configmaps": expected_table(list_text(cluster, _PATHS["configmaps"]))}

    def equal() -> bool:
        tables, problems = asyncio.run(
            fresh_tables(testbed.broker.bootstrap, testbed.control_topic)
        )
        return tables == wanted and bool(problems) == complains

    wait_until("a fresh reader holds what the server lists", equal, deadline_s=30.0)


def lose(testbed: Testbed, kafka_broker: KafkaBroker, before: dict[int, int]) -> None:
    """What retention does: everything of these partitions before these offsets is gone."""
    places = [
        TopicPartition(testbed.topic("configmaps"), partition, offset)
        for partition, offset in before.items()
    ]
    for done in kafka_broker.admin.delete_records(places).values():
        done.result(20.0)


def test_foreign_records_are_reported_once_and_skipped_live_and_by_a_restart(
    testbed: Testbed, cluster: EmbeddedCluster, path: str
) -> None:
    topic, relay = testbed.topic("configmaps"), testbed.relay(*_PATHS)
    newer = {
        "ce_type": b"dev.watchrelay.object.added.v2",
        "ce_wrstream": b"configmaps",
        "ce_wrepoch": b"9",
        "ce_sequence": b"1",
    }
    message = "skipping records that do not follow the record contract"
    with testbed.reader(topic) as reader, relay:
        published(testbed, cluster, reader, relay)
        for partition in range(3):
            testbed.write(topic, "orders-17", b"{}", partition=partition)
        testbed.write(topic, "shop/other", b'{"kind":"ConfigMap"}', headers=newer, partition=0)
        claim = newer | {"ce_type": b"dev.watchrelay.claim.v1", "ce_wrepoch": b"high"}
        testbed.write(topic, "%wr/claim/configmaps/0", None, headers=claim, partition=0)
        since = again(relay)
        assert warnings(relay, since) == [message]
        testbed.write(topic, "orders-18", b"{}", partition=0)
        cluster.request("DELETE", f"{path}/c1")
        relay.wait(
            "the delete is published",
            lambda: relay.stream("configmaps")["objects"] == _objects(cluster),
        )
        assert warnings(relay, since) == [message]
        assert_held(testbed, cluster, complains=True)
        verified = command("verify", "-c", relay.file)
        assert verified.code == 1
        assert "foreign" in verified.stdout
        assert relay.stop() == 0
        assert [
            line["then"] for line in relay.lines(since=since) if line["message"] == "log read back"
        ] == ["WatchFrom"]


def _objects(cluster: EmbeddedCluster) -> int:
    return len(expected_table(list_text(cluster, _PATHS["configmaps"])))


@pytest.mark.parametrize("left", ["the newest records", "half of the last snapshot", "nothing"])
def test_what_retention_deleted_is_published_again_and_deletes_of_the_meantime_too(
    testbed: Testbed, cluster: EmbeddedCluster, kafka_broker: KafkaBroker, path: str, left: str
) -> None:
    relay = testbed.relay(*_PATHS)
    with testbed.reader(testbed.topic("configmaps")) as reader, relay:
        published(testbed, cluster, reader, relay)
        ends = {
            record.raw.partition: record.raw.offset for record in reader.of("configmaps", "end")
        }
        begins = {
            record.raw.partition: record.raw.offset for record in reader.of("configmaps", "begin")
        }
        last = {record.raw.partition: record.raw.offset for record in reader.records}
        before = {
            "the newest records": {partition: offset - 1 for partition, offset in last.items()},
            "half of the last snapshot": {0: (begins[0] + ends[0]) // 2},
            "nothing": {partition: offset + 1 for partition, offset in last.items()},
        }[left]
        lose(testbed, kafka_broker, before)
        gone = next(
            record.key
            for record in reversed(reader.of("configmaps", "added"))
            if record.raw.partition == 0
        )
        cluster.request("DELETE", f"{path}/{gone.decode().partition('/')[2]}")
        since = again(relay)
        logged = warnings(relay, since)
        if left == "nothing":
            assert logged == []
            assert [
                line["reason"]
                for line in relay.lines(since=since)
                if line["message"] == "log read back"
            ] == ["nothing was published before"]
        else:
            assert logged == ["verification failed; relisting and publishing a snapshot"]
        reader.read()
        assert (
            reader.table("configmaps").keys()
            == expected_table(list_text(cluster, _PATHS["configmaps"])).keys()
        )
        assert reader.proven("configmaps")
        assert_held(testbed, cluster)
        verified = command("verify", "-c", relay.file, "--cluster")
        assert verified.code == 0, verified.stdout + verified.stderr
        assert relay.stop() == 0


def test_what_is_removed_under_a_running_relay_is_published_again_without_a_restart(
    testbed: Testbed, cluster: EmbeddedCluster, kafka_broker: KafkaBroker, path: str
) -> None:
    relay = testbed.relay(*_PATHS)
    with testbed.reader(testbed.topic("configmaps")) as reader, relay:
        published(testbed, cluster, reader, relay)
        since = again(relay)
        reader.read()
        last = {record.raw.partition: record.raw.offset for record in reader.records}
        lose(testbed, kafka_broker, {partition: offset + 1 for partition, offset in last.items()})
        wait_until(
            "what is lost is noticed",
            lambda: "records removed: publishing a snapshot" in warnings(relay, since),
        )
        assert_held(testbed, cluster)
        assert warnings(relay, since) == ["records removed: publishing a snapshot"]
        assert relay.stop() == 0


def test_partitions_added_to_a_topic_are_warned_of_and_not_used(
    testbed: Testbed, cluster: EmbeddedCluster, kafka_broker: KafkaBroker, path: str
) -> None:
    topic, relay = testbed.topic("configmaps"), testbed.relay(*_PATHS)
    with testbed.reader(topic) as reader, relay:
        relay.await_ready()
        kafka_broker.admin.create_partitions([NewPartitions(topic, 5)])[topic].result(20.0)
        cluster.request("DELETE", f"{path}/c1")
        await_equal(cluster, reader, _PATHS)
        assert relay.stop() == 0
        since = again(relay)
        warned = [line for line in relay.lines(since=since) if line["level"] == "warning"]
        assert [(line["topic"], line["warning"]) for line in warned] == [
            (topic, "it has 5 partitions, the pinned 3 are used")
        ]
        cluster.request("DELETE", f"{path}/c2")
        await_equal(cluster, reader, _PATHS)
        assert command("verify", "-c", relay.file, "--cluster").code == 0
        assert relay.stop() == 0
        reader.read()
    reader.assert_right("configmaps")


def test_after_a_control_topic_was_deleted_between_two_lives_epochs_go_on(
    testbed: Testbed, cluster: EmbeddedCluster, kafka_broker: KafkaBroker, path: str
) -> None:
    control, relay = testbed.control_topic, testbed.relay(*_PATHS)
    with testbed.reader(testbed.topic("configmaps")) as reader, relay:
        published(testbed, cluster, reader, relay)
        epoch, before = reader.epoch("configmaps"), len(reader.records)
        kafka_broker.admin.delete_topics([control])[control].result(20.0)
        wait_until(
            "it is gone", lambda: control not in kafka_broker.admin.list_topics(timeout=10.0).topics
        )
        del relay.config["kafka"]["partitions"]  # the topic tells how many there are
        relay.file.write_text(yaml.safe_dump(relay.config))
        cluster.request("DELETE", f"{path}/c1")
        since = again(relay)
        assert warnings(relay, since) == [
            "control topic has no claim of the stream, continuing above the epoch on its own topic"
        ]
        await_equal(cluster, reader, _PATHS)
        assert reader.epoch("configmaps") > epoch
        changed = [
            one.type
            for one in reader.records[before:]
            if one.is_object and one.headers["ce_wrreason"] != "snapshot"
        ]
        assert changed == ["deleted"], "more was published than what changed"
        wait_until("a snapshot is in the new index", lambda: index_of(testbed, "configmaps"))
        assert_held(testbed, cluster)
        assert relay.stop() == 0
        reader.read()
    reader.assert_right("configmaps")


def test_another_cluster_on_the_same_topic_is_refused_and_has_written_nothing(
    testbed: Testbed, cluster: EmbeddedCluster, path: str
) -> None:
    topic = f"{testbed.name}.shared"
    relay = testbed.relay({"resource": "configmaps", "topic": topic})
    other_config: dict[str, Any] = testbed.config({"resource": "configmaps", "topic": topic}) | {
        "cluster": f"{testbed.name}-other"
    }
    with EmbeddedCluster() as elsewhere, testbed.reader(topic) as reader, relay:
        relay.await_ready()
        other_config["kubernetes"] = {"kubeconfig": str(elsewhere.kubeconfig)}
        with Daemon(other_config, testbed.directory, name="other") as other:
            other.wait("it is refused", lambda: other.stream("configmaps").get("waitsFor"))
            assert other.stream("configmaps")["waitsFor"] == (
                f"topic {topic} holds records of cluster {testbed.name}, this is cluster "
                f"{testbed.name}-other: the topics of two clusters must "
                "differ: name another one, or have {cluster} in kafka.topicTemplate; if nothing writes "
                f"as cluster {testbed.name} now, retire its stream (`watchrelay retire --cluster "
                f"{testbed.name} configmaps`)"
            )
            assert warnings(other, 0) == ["topic refused"]
            cluster.request("DELETE", f"{path}/c1")
            await_equal(cluster, reader, _PATHS)
            assert other.stop() == 0
        assert relay.stop() == 0
        reader.read()
    reader.assert_right("configmaps")


def waits_for(daemon: Daemon) -> object:
    return daemon.stream("configmaps").get("waitsFor")


def test_of_two_clusters_that_both_think_the_topic_theirs_the_second_waits_and_says_why(
    testbed: Testbed, kafka_broker: KafkaBroker, cluster: EmbeddedCluster, path: str
) -> None:
    topic = f"{testbed.name}.shared"
    relay = testbed.relay({"resource": "configmaps", "topic": topic})
    once = {"topic": topic, "partitions": 3, "keyFormat": "plain", "epochBase": 1}
    kafka_broker.create_topic(
        f"k8s.{testbed.name}-other.control", config={"cleanup.policy": "compact"}
    )
    testbed.write(
        f"k8s.{testbed.name}-other.control", "stream/configmaps", json.dumps(once).encode()
    )
    other_config = testbed.config({"resource": "configmaps", "topic": topic}) | {
        "cluster": f"{testbed.name}-other"
    }
    with testbed.reader(topic) as reader, relay, EmbeddedCluster() as elsewhere:
        relay.await_ready()
        await_equal(cluster, reader, _PATHS)
        with Daemon(
            {**other_config, "kubernetes": {"kubeconfig": str(elsewhere.kubeconfig)}},
            testbed.directory,
            name="other",
        ) as other:
            other.wait("it waits for an operator", partial(waits_for, other))
            assert (
                f"topic {topic} holds records of cluster {testbed.name}, "
                f"this is cluster {testbed.name}-other"
            ) in other.stream("configmaps")["waitsFor"]
            assert other.stop() == 0
        cluster.request("DELETE", f"{path}/c1")
        await_equal(cluster, reader, _PATHS)
        assert relay.stop() == 0
        reader.read()
        assert not [
            one
            for one in reader.records
            if one.is_object and f"/{testbed.name}-other/" in one.headers["ce_source"]
        ]


def test_another_stream_with_the_same_keys_on_the_same_topic_is_refused_until_the_first_is_retired(
    testbed: Testbed, cluster: EmbeddedCluster, path: str
) -> None:
    topic = f"{testbed.name}.shared"
    relay = testbed.relay({"resource": "configmaps", "topic": topic})
    with testbed.reader(topic) as reader:
        with relay:
            relay.await_ready()
            await_equal(cluster, reader, _PATHS)
            with testbed.relay(
                {"resource": "configmaps", "id": "again", "topic": topic}, name="other"
            ) as other:
                other.wait("it is refused", lambda: other.stream("again").get("waitsFor"))
                assert other.stream("again")["waitsFor"] == (
                    "stream again takes objects that stream configmaps on the same topic "
                    f"{topic} has too: retire that one first "
                    "(`watchrelay retire configmaps`), or name another topic"
                )
                checked = command("validate", "-c", other.file, "--connect")
                assert checked.code == 78
                assert "retire that one first" in checked.stdout + checked.stderr
                cluster.request("DELETE", f"{path}/c1")
                await_equal(cluster, reader, _PATHS)
                assert other.stop() == 0
            assert relay.stop() == 0
        assert command("retire", "configmaps", "--yes", "-c", other.file).code == 0
        with other:
            other.await_ready()
            await_equal(cluster, reader, {"again": _PATHS["configmaps"]})
            assert other.stop() == 0
