"""`watchrelay snapshot` against a daemon on the embedded parts, and requests on the signal topic."""

import asyncio
import json
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, command
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.process import free_port, wait_until
from tests.support.rawbatches import Raw, batch, send
from tests.support.testbed import Testbed
from tests.support.topic_contents import RESOURCES, fill, index_of, replicas, seen
from tests.support.topicreader import read_control
from watchrelay.admin.snapshot_request import end_when_silent
from watchrelay.core.errors import NotRelayed
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.signal_records import SnapshotRequest, signal_value


@pytest.fixture
def testbed(cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path) -> Testbed:
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics(*RESOURCES)
    return testbed


def test_snapshot_asks_a_running_relay_and_says_what_it_holds(testbed: Testbed) -> None:
    keys = fill(testbed, 5)
    with testbed.relay(*RESOURCES) as relay:
        relay.await_ready()
        before = index_of(testbed, "configmaps")["snapshot"]
        one = command("snapshot", "configmaps", "-c", relay.file)
        assert (one.code, one.stderr) == (0, ""), one
        index = index_of(testbed, "configmaps")
        assert index["snapshot"] != before
        assert len(index["requests"]) == 1
        begins = " ".join(f"{part['partition']}@{part['begin']}" for part in index["partitions"])
        expected = (
            f"configmaps: snapshot {index['snapshot']}: {len(keys)} objects at "
            f"resourceVersion {index['rv']}, begins at {begins}"
        )
        assert one.stdout.splitlines() == [expected]
        both = command("snapshot", "-c", relay.file)
        assert both.code == 0, both
        assert sorted(line.partition(":")[0] for line in both.stdout.splitlines()) == sorted(
            RESOURCES
        )
        assert relay.metric("watchrelay_signals_total", result="taken") == 2
        assert relay.stop() == 0
    assert all(replica.proven for replica in replicas(seen(testbed)).values())


def test_requests_in_each_partition_of_the_signal_topic_are_answered_those_of_before_too(
    cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics(*RESOURCES, signal=False)
    broker.create_topic(testbed.signal_topic, partitions=3)
    fill(testbed, 5)

    def ask(name: str, partition: int) -> None:
        value = signal_value(SnapshotRequest(name, ("configmaps",)))
        testbed.write(testbed.signal_topic, testbed.name, value, partition=partition)

    def answered(*names: str) -> bool:
        return set(names) <= set(index_of(testbed, "configmaps").get("requests", ()))

    with testbed.relay(*RESOURCES) as relay:
        relay.await_ready()
        assert relay.stop() == 0
        for partition in range(3):
            ask(f"before-{partition}", partition)
        relay.start().await_ready()
        wait_until(
            "what was asked before is answered",
            lambda: answered("before-0", "before-1", "before-2"),
        )
        for partition in range(3):
            ask(f"live-{partition}", partition)
            wait_until("it is answered", partial(answered, f"live-{partition}"))
        assert relay.metric("watchrelay_signals_total", result="taken") == 6
        assert not relay.logged("partitions, the pinned")
        assert relay.stop() == 0


def test_a_snapshot_of_what_nobody_published_is_1_with_one_line(testbed: Testbed) -> None:
    with testbed.relay(*RESOURCES) as relay:
        missing = command("snapshot", "-c", relay.file)
        relay.await_ready()
        unknown = command("snapshot", "configmaps", "pods", "-c", relay.file)
        assert relay.stop() == 0
    assert unknown.code == 1
    assert unknown.stdout == ""
    topic = testbed.control_topic
    assert (
        unknown.stderr
        == f"watchrelay: stream pods is not published: {topic} describes configmaps, namespaces\n"
    )
    assert missing.code in {0, 1, 69}


def test_snapshot_without_kafka_is_69_and_without_a_control_topic_1(testbed: Testbed) -> None:
    away = Daemon(
        testbed.config(*RESOURCES, kafka={"bootstrapServers": [f"127.0.0.1:{free_port()}"]}),
        testbed.directory,
        name="away",
    )
    other = Daemon(
        {**testbed.config(*RESOURCES), "cluster": "another"}, testbed.directory, name="other"
    )
    for daemon, code, words in (
        (away, 69, "check"),
        (other, 1, "k8s.another.control does not exist"),
    ):
        done = command("snapshot", "-c", daemon.file)
        assert done.code == code, done
        assert done.stderr.count("\n") == 1, done.stderr
        if code == 1:
            assert words in done.stderr


@pytest.fixture
def black_hole() -> Iterator[str]:
    """The address of a broker that takes every connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_the_timeout_is_for_the_whole_of_snapshot_also_where_a_broker_takes_connections_and_says_nothing(
    testbed: Testbed, black_hole: str
) -> None:
    hole = Daemon(
        testbed.config("configmaps", kafka={"bootstrapServers": [black_hole]}),
        testbed.directory,
        name="hole",
    )
    done = command("snapshot", "-c", hole.file, "--timeout", "1s")
    assert (done.code, done.stdout) == (69, "")
    assert done.stderr.startswith(
        f"watchrelay: kafka at {black_hole} accepted no request within 1 s (most likely "
        "the broker is frozen"
    )
    assert done.stderr.count("\n") == 1


def test_a_request_made_while_the_relay_is_down_is_answered_once_when_it_is_back(
    testbed: Testbed,
) -> None:
    fill(testbed, 3)
    # for the command, three intervals without a heartbeat, which would end it with 69, are far away
    patient = ("--set", "heartbeatInterval=1m")
    relay = testbed.relay(*RESOURCES)
    with relay:
        relay.await_ready()
        assert relay.stop() == 0
        late = command("snapshot", "configmaps", "-c", relay.file, "--timeout", "6s", *patient)
        assert late.code == 1, late
        assert "no snapshot of configmaps within 6 s: is a relay running" in late.stderr
        relay.start().await_ready()
        wait_until(
            "the request is answered",
            lambda: index_of(testbed, "configmaps").get("requests"),
            deadline_s=60.0,
        )
        answer = index_of(testbed, "configmaps")
        assert answer["requests"][0] in late.stderr
        assert relay.stop() == 0
        relay.start().await_ready()
        again = command("snapshot", "namespaces", "-c", relay.file)
        assert again.code == 0, again
        assert answer["requests"][0] not in json.dumps(relay.logged("snapshot started")[-1])
        assert relay.stop() == 0
    ids = [
        request
        for _, key, value in read_control(testbed.broker.bootstrap, testbed.control_topic)
        if key == "snapshot/configmaps" and value
        for request in value["requests"]
    ]
    assert ids == answer["requests"], "a request was answered twice"


def test_snapshot_without_a_relay_ends_after_three_missed_heartbeats_with_69(
    testbed: Testbed,
) -> None:
    fill(testbed, 3)
    relay = testbed.relay(*RESOURCES)
    with relay:
        relay.await_ready()
        relay.kill()
        alone = command("snapshot", "configmaps", "-c", relay.file, "--timeout", "50s")
        assert (alone.code, alone.stdout) == (69, "")
        topic = testbed.topic("configmaps")
        assert alone.stderr.startswith(
            "watchrelay: no relay writes configmaps: no heartbeat came in 4 s (topic "
            f"{topic}): start the relay. Request "
        )
        assert alone.stderr.endswith(" stays valid: a relay that starts within the hour answers\n")
        relay.start().await_ready()
        wait_until(
            "the request is answered",
            lambda: index_of(testbed, "configmaps").get("requests"),
            deadline_s=60.0,
        )
        assert index_of(testbed, "configmaps")["requests"][0] in alone.stderr
        assert relay.stop() == 0


async def test_a_heartbeat_on_any_partition_shows_that_a_relay_writes_the_stream(
    testbed: Testbed,
) -> None:
    topic, silent_s, now_s = testbed.topic("configmaps"), 3.0, asyncio.get_running_loop().time
    headers = [(b"ce_wrstream", b"configmaps"), (b"ce_wrepoch", b"1")]
    marker: Raw = (b"\0watchrelay", None, headers)
    connection = KafkaConnection(bootstrap_servers=(testbed.broker.bootstrap,))

    async def end() -> None:
        topics = {"configmaps": topic}
        with pytest.raises(NotRelayed, match="no relay writes configmaps"):
            await end_when_silent(connection, topics, ["configmaps"], within_s=silent_s)

    async with asyncio.TaskGroup() as tasks:
        silence, until_s = tasks.create_task(end(), name="silence"), now_s() + 2 * silent_s
        while now_s() < until_s:
            await asyncio.to_thread(
                send, testbed.broker.bootstrap, topic, batch([marker]), partition=1
            )
            await asyncio.wait((silence,), timeout=0.3)
            assert not silence.done(), "partition 0 alone is silent"


def test_a_signal_that_does_not_parse_is_logged_and_counted_and_nothing_is_lost(
    testbed: Testbed,
) -> None:
    fill(testbed, 3)
    with testbed.relay(*RESOURCES) as relay:
        relay.await_ready()
        request = SnapshotRequest("mine", ("configmaps", "nosuch"))
        testbed.write(
            testbed.signal_topic,
            testbed.name,
            b"\xff",
            b'{"id":"x","type":"stop-snapshot","data":{}}',
            signal_value(request),
            signal_value(request),
        )
        wait_until(
            "the request behind them is answered",
            lambda: index_of(testbed, "configmaps").get("requests") == ["mine"],
            deadline_s=60.0,
        )
        ignored = relay.logged("signal ignored")
        assert [line["offset"] for line in ignored] == [0, 1]
        assert "not a signal" in ignored[0]["error"]
        assert "only execute-snapshot is known" in ignored[1]["error"]
        assert {line["level"] for line in ignored} == {"warning"}
        assert len(relay.logged("signal names an unknown stream", "nosuch")) == 1
        results = {
            result: relay.metric("watchrelay_signals_total", result=result)
            for result in ("taken", "refused", "repeated")
        }
        assert results == {"taken": 1, "refused": 2, "repeated": 1}
        assert relay.stop() == 0


def test_a_relay_without_a_signal_topic_runs_and_reports_that_requests_are_not_read(
    testbed: Testbed,
) -> None:
    config = {**testbed.config("configmaps"), "cluster": f"{testbed.name}-x"}
    testbed.broker.create_topic(f"k8s.{testbed.name}-x.control")
    testbed.broker.create_topic(f"k8s.{testbed.name}-x.core.configmaps", partitions=3)
    with Daemon(config, testbed.directory, name="deaf") as relay:
        relay.await_ready()
        relay.wait(
            "it is logged",
            lambda: relay.logged("signal topic is not usable", f"k8s.{testbed.name}-x.signal"),
        )
        assert "signal" in relay.readyz()[1]["problems"]
        assert relay.stop() == 0
