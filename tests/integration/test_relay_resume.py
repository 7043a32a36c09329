"""The embedded parts: what a restart appends, and what it asks of the API server.

The claims here are about the log: a restart adds what really changed, and nothing else.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.churn import Churn
from tests.support.daemon import Daemon
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.extent import few, full
from tests.support.listed import await_equal
from tests.support.pace import random_instant
from tests.support.process import wait_until
from tests.support.testbed import Testbed
from tests.support.topicreader import TopicReader, read_control
from tests.support.wirerules import ParsedRecord

KILLS = 10 if full() else 3
_PATHS = {"configmaps": "/api/v1/configmaps"}


@pytest.fixture
def testbed(cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path) -> Testbed:
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics(*_PATHS, signal=False)
    return testbed


@pytest.fixture
def path(testbed: Testbed) -> str:
    return testbed.config_maps(20)


def _objects(records: list[ParsedRecord]) -> list[tuple[str, str, str]]:
    return [
        (record.type, record.key.decode().partition("/")[2], record.headers["ce_wrreason"])
        for record in records
        if record.is_object
    ]


def _lists(cluster: EmbeddedCluster) -> int:
    """Lists of whole states, streaming ones too, since the server's log was cleared."""
    return cluster.do(
        lambda: sum(
            (seen.verb == "list" and seen.query.get("limit") != "1")
            or "sendInitialEvents" in seen.query
            for seen in cluster.server.log
        )
    )


def _first_life(
    testbed: Testbed, cluster: EmbeddedCluster, reader: TopicReader, relay: Daemon
) -> int:
    if not relay.alive:
        relay.start()
    relay.await_ready()
    await_equal(cluster, reader, _PATHS)
    assert relay.stop() == 0
    reader.read()
    return len(reader.records)


def test_a_restart_with_nothing_changed_appends_markers_only_and_lists_nothing(
    testbed: Testbed, cluster: EmbeddedCluster, path: str
) -> None:
    relay = testbed.relay(*_PATHS)
    with testbed.reader(testbed.topic("configmaps")) as reader, relay:
        for _ in range(2):
            before = _first_life(testbed, cluster, reader, relay)
            cluster.do(cluster.server.log.clear)
            relay.start().await_ready()
            wait_until(
                "the stream is watched",
                lambda: relay.stream("configmaps").get("state") == "watching",
            )
            row = relay.stream("configmaps")
            assert relay.stop() == 0
            reader.read()
            assert {record.type for record in reader.records[before:]} == {"claim", "heartbeat"}
            assert _lists(cluster) == 0
            assert (row["objects"], row["complete"], row["lastError"]) == (20, True, None)
            assert row["lastSnapshot"] is not None
            relay.start().await_ready()
            cluster.request("POST", path, {"metadata": {"name": f"more{before}"}})
            await_equal(cluster, reader, _PATHS)
            cluster.request("DELETE", f"{path}/more{before}")
            await_equal(cluster, reader, _PATHS)
            assert relay.stop() == 0
    reader.assert_right("configmaps")


@pytest.mark.parametrize(
    ("history", "end"),
    few(
        [
            ("kept", "killed"),
            ("compacted", "stopped"),
            ("kept", "stopped"),
            ("compacted", "killed"),
        ],
        2,
    ),
)
def test_what_changed_while_the_relay_was_down_is_published_and_nothing_else(
    testbed: Testbed, cluster: EmbeddedCluster, path: str, history: str, end: str
) -> None:
    relay = testbed.relay(*_PATHS)
    with testbed.reader(testbed.topic("configmaps")) as reader, relay:
        relay.await_ready()
        await_equal(cluster, reader, _PATHS)
        reader.read_until("heartbeats follow", lambda: reader.of("configmaps", "heartbeat"))
        if end == "killed":
            relay.kill()
        else:
            assert relay.stop() == 0
        reader.read()
        before = len(reader.records)
        cluster.request("DELETE", f"{path}/c1")
        cluster.request("DELETE", f"{path}/c2")
        cluster.request("POST", path, {"metadata": {"name": "c2"}, "data": {"again": "1"}})
        cluster.request("PUT", f"{path}/c3", {"metadata": {"name": "c3"}, "data": {"changed": "1"}})
        cluster.request("POST", path, {"metadata": {"name": "new"}})
        if history == "compacted":
            cluster.forget()
        relay.start().await_ready()
        await_equal(cluster, reader, _PATHS)
        assert relay.stop() == 0
        reader.read()
        published = _objects(reader.records[before:])
    reason = "watch" if history == "kept" else "resume"
    assert sorted(published) == [
        ("added", "c2", reason),
        ("added", "new", reason),
        ("deleted", "c1", reason),
        ("deleted", "c2", reason),
        ("modified", "c3", reason),
    ]
    reader.assert_right("configmaps")


def test_a_narrower_and_a_wider_config_publish_the_difference(
    testbed: Testbed, cluster: EmbeddedCluster, path: str
) -> None:
    topic = testbed.topic("configmaps")

    def relay(**keys: Any) -> Daemon:
        return testbed.relay({"resource": "configmaps", **keys}, name=f"relay{random.random()}")

    with testbed.reader(topic) as reader:
        with relay() as first:
            before = _first_life(testbed, cluster, reader, first)
        with relay(labelSelector="odd=1") as narrow:
            narrow.await_ready()
            await_equal(cluster, reader, {"configmaps": "/api/v1/configmaps?labelSelector=odd%3D1"})
            assert narrow.stop() == 0
        reader.read()
        assert sorted(_objects(reader.records[before:]))[:1] == [("deleted", "c0", "resume")]
        published = [one for one in _objects(reader.records[before:]) if one[2] != "snapshot"]
        assert {(type_, reason) for type_, _, reason in published} == {("deleted", "resume")}
        assert len(published) == 10
        before = len(reader.records)
        with relay() as wide:
            wide.await_ready()
            await_equal(cluster, reader, _PATHS)
            assert wide.stop() == 0
        reader.read()
        published = [one for one in _objects(reader.records[before:]) if one[2] != "snapshot"]
        assert {(type_, reason) for type_, _, reason in published} == {("added", "resume")}
        assert len(published) == 10
        with relay(drop=["metadata.labels"]) as lean:
            before = len(reader.records)
            lean.await_ready()
            reader.read_until(
                "all are published again", lambda: len(_objects(reader.records[before:])) >= 20
            )
            assert lean.stop() == 0
        reader.read()
        published = [one for one in _objects(reader.records[before:]) if one[2] != "snapshot"]
        assert {(type_, reason) for type_, _, reason in published} == {("modified", "resume")}
        assert all(b"odd" not in value for value in reader.table("configmaps").values())
    assert reader.problems == []
    assert reader.proven("configmaps")


def test_a_stream_that_moves_to_another_topic_and_back_names_no_offsets_of_the_former_one(
    testbed: Testbed, cluster: EmbeddedCluster, path: str
) -> None:
    here, there = testbed.topic("configmaps"), f"{testbed.topic('configmaps')}.other"
    testbed.broker.create_topic(there, partitions=3)
    for number, topic in enumerate((here, there, here)):
        with (
            testbed.reader(topic) as reader,
            testbed.relay(
                {"resource": "configmaps", "topic": topic}, name=f"relay{number}"
            ) as relay,
        ):
            relay.await_ready()
            await_equal(cluster, reader, _PATHS)
            assert relay.stop() == 0
            reader.read()
            reader.assert_right("configmaps")
        testbed.cluster.request("DELETE", f"{path}/c{number}")
    claims = [
        value
        for _, key, value in read_control(testbed.broker.bootstrap, testbed.control_topic)
        if key == "claim/configmaps"
    ]
    assert [claim["from"] for claim in claims] == [None, None, None]


def test_a_relay_killed_again_and_again_under_churn_leaves_a_right_topic(
    testbed: Testbed, cluster: EmbeddedCluster
) -> None:
    relay = testbed.relay(*_PATHS, defaults={"snapshotInterval": "5s"})
    rng = random.Random(7)
    with (
        Churn(
            cluster, testbed.namespaces(4), operations=150 * KILLS, kinds=("configmaps",), per_s=120
        ) as churn,
        testbed.reader(testbed.topic("configmaps")) as reader,
        relay,
    ):
        relay.await_ready()
        for _ in range(KILLS):
            random_instant(rng.uniform(0.05, 1.5))
            relay.kill()
            relay.start()
        relay.await_ready()
        churn.finish()
        await_equal(cluster, reader, _PATHS)
        assert relay.stop() == 0
        reader.read()
    reader.assert_right("configmaps", duplicates=True)
    assert reader.plain[testbed.topic("configmaps")] == reader.table("configmaps")
    claims = [
        value
        for _, key, value in read_control(testbed.broker.bootstrap, testbed.control_topic)
        if key.startswith("claim/")
    ]
    assert claims[-1]["from"] is not None, "no claim names a snapshot"
