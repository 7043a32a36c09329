"""The embedded parts, wherever tests run: the main claims about the daemon, real parts or not.

What needs a real API server or a real Kafka is in the other files named test_relay_*: they run
with REAL=1 and say so when skipped.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.churn import GROUP, Churn, widget_definition
from tests.support.daemon import PROGRAM, Daemon, clean_environment, command
from tests.support.demos import end_well
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.listed import await_equal, redacted_data
from tests.support.process import wait_until
from tests.support.testbed import Testbed, UnderChurn
from tests.support.topicreader import TopicReader, read_control
from watchrelay.cli.records import HEADING

_PATHS = {
    "configmaps": "/api/v1/configmaps",
    "namespaces": "/api/v1/namespaces",
    f"widgets.{GROUP}": f"/apis/{GROUP}/v1/widgets",
}


@pytest.fixture
def testbed(cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path) -> Testbed:
    cluster.request(
        "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_definition()
    )
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics(*_PATHS, signal=False)
    return testbed


def _under_churn(testbed: Testbed, relay: Daemon) -> UnderChurn:
    return testbed.under_churn(
        relay,
        testbed.topics(*_PATHS),
        namespaces=4,
        operations=1000,
        kinds=("configmaps", "widgets"),
        per_s=1000,
    )


def test_under_churn_the_topics_end_equal_to_what_the_api_server_lists(
    testbed: Testbed, cluster: EmbeddedCluster
) -> None:
    relay = testbed.relay(*_PATHS, defaults={"snapshotInterval": "5s"})
    with (
        Churn(
            cluster,
            testbed.namespaces(20),
            operations=1000,
            kinds=("configmaps", "widgets"),
            per_s=1000,
        ) as churn,
        testbed.reader(*testbed.topics(*_PATHS)) as reader,
    ):
        churn.reach(100)
        with relay:
            relay.await_ready()
            assert churn.running, "the churn ended before the relay was ready"
            churn.finish()
            await_equal(cluster, reader, _PATHS)
            reader.read_until(
                "a second snapshot is complete",
                lambda: all(
                    partition.ends > 1 for at in _PATHS for partition in reader.partitions_of(at)
                ),
            )
            assert relay.livez() == 200
            assert relay.metric("watchrelay_missed_changes_total") == 0
            assert relay.stop() == 0
            reader.read()
    reader.assert_right(*_PATHS)
    for topic, stream in zip(testbed.topics(*_PATHS), _PATHS, strict=True):
        assert reader.plain[topic] == reader.table(stream), (
            "a table that knows no markers is another"
        )
    assert reader.of("configmaps", "deleted"), "the churn deleted nothing"
    control = read_control(testbed.broker.bootstrap, testbed.control_topic)
    assert {key for _, key, _ in control} == {
        f"{kind}/{stream}" for kind in ("claim", "stream", "snapshot") for stream in _PATHS
    }


def _modified(reader: TopicReader, changes: int) -> bool:
    return len(reader.of("configmaps", "modified")) == changes


def test_writes_are_a_flush_interval_apart(testbed: Testbed, cluster: EmbeddedCluster) -> None:
    path = testbed.config_maps(1)
    relay = testbed.relay("configmaps", kafka={"flushInterval": "100ms"})
    with testbed.reader(testbed.topic("configmaps")) as reader, relay:
        relay.await_ready()
        began_s = time.monotonic()
        for number in range(10):
            changed = {"metadata": {"name": "c0"}, "data": {"n": f"changed {number}"}}
            cluster.request("PUT", f"{path}/c0", changed)
            reader.read_until(
                "the change is read",
                partial(_modified, reader, number + 1),
            )
        assert time.monotonic() - began_s >= 0.9


def test_a_restart_makes_a_new_epoch_and_a_right_topic(
    testbed: Testbed, cluster: EmbeddedCluster
) -> None:
    path = testbed.config_maps(10)
    relay = testbed.relay(*_PATHS)
    with testbed.reader(*testbed.topics(*_PATHS)) as reader, relay:
        relay.await_ready()
        await_equal(cluster, reader, _PATHS)
        before = {stream: reader.epoch(stream) for stream in _PATHS}
        assert relay.stop() == 0
        for number in range(0, 10, 2):
            cluster.request("DELETE", f"{path}/c{number}")
        relay.start().await_ready()
        await_equal(cluster, reader, _PATHS)
        assert all(reader.epoch(stream) > epoch for stream, epoch in before.items())
        relay.kill()
        cluster.request("DELETE", f"{path}/c1")
        relay.start().await_ready()
        await_equal(cluster, reader, _PATHS)
        assert relay.stop() == 0
        reader.read()
    reader.assert_right(*_PATHS)
    assert len({record.epoch for record in reader.of("configmaps")}) == 3


def test_an_api_server_that_goes_away_and_forgets_costs_nothing(
    testbed: Testbed, cluster: EmbeddedCluster
) -> None:
    relay = testbed.relay(*_PATHS)
    with _under_churn(testbed, relay) as (churn, reader):
        for operations in (200, 600):
            churn.reach(operations)
            cluster.kill()
            relay.wait(
                "the outage is reported", lambda: relay.stream("configmaps").get("lastError")
            )
            cluster.forget()
            cluster.restart()
        churn.finish()
        await_equal(cluster, reader, _PATHS)
        assert relay.stop() == 0
        reader.read()
    reader.assert_right(*_PATHS)
    for topic, stream in zip(testbed.topics(*_PATHS), _PATHS, strict=True):
        assert reader.plain[topic] == reader.table(stream)


def test_a_broker_that_goes_away_under_churn_costs_nothing(
    testbed: Testbed, cluster: EmbeddedCluster, broker: EmbeddedBroker
) -> None:
    relay = testbed.relay(*_PATHS)
    with _under_churn(testbed, relay) as (churn, reader):
        churn.reach(200)
        broker.kafka.broker_down()
        churn.reach(600)
        broker.kafka.broker_up()
        churn.finish()
        await_equal(cluster, reader, _PATHS)
        assert relay.stop() == 0
        reader.read()
    reader.assert_right(*_PATHS, duplicates=True)


def test_sigterm_under_load_drains_and_exits_with_0(
    testbed: Testbed, cluster: EmbeddedCluster
) -> None:
    relay = testbed.relay(*_PATHS)
    with _under_churn(testbed, relay) as (churn, reader):
        churn.reach(200)
        assert relay.stop() == 0
        assert churn.running, "the churn ended before the relay"
        reader.read()
    reader.assert_right(*_PATHS)
    newest = {(record.stream, record.raw.partition): record.type for record in reader.records}
    assert set(newest.values()) == {"heartbeat"}, "the drain does not end in a heartbeat"


def _one_change_is_seen(testbed: Testbed, relay: Daemon) -> None:
    testbed.namespaces(1)
    relay.wait("the change is seen", lambda: relay.stream("namespaces").get("objects") == 5)


def test_what_cannot_be_drained_in_time_ends_with_1_and_is_logged(
    testbed: Testbed, cluster: EmbeddedCluster, broker: EmbeddedBroker
) -> None:
    relay = testbed.relay(*_PATHS, shutdown={"drainTimeout": "1s"})
    with relay:
        relay.await_ready()
        broker.kafka.broker_down()
        _one_change_is_seen(testbed, relay)
        assert relay.stop() == 1
        assert relay.logged("drain deadline passed")


@pytest.mark.parametrize("trouble", ["away", "silent"])
def test_a_second_signal_ends_the_drain_at_once(
    testbed: Testbed, cluster: EmbeddedCluster, broker: EmbeddedBroker, trouble: str
) -> None:
    relay = testbed.relay(*_PATHS, shutdown={"drainTimeout": "5m"})
    with relay:
        relay.await_ready()
        if trouble == "away":
            broker.kafka.broker_down()
        else:
            broker.kafka.set_rtt(60_000)
        _one_change_is_seen(testbed, relay)
        relay.send(signal.SIGTERM)
        relay.wait("it drains", lambda: relay.logged("draining"))
        assert relay.alive
        relay.send(signal.SIGTERM)
        assert relay.exit_code(deadline_s=10.0) == 1


def test_a_relay_that_reached_neither_side_ends_with_0(
    testbed: Testbed, cluster: EmbeddedCluster, broker: EmbeddedBroker
) -> None:
    cluster.kill()
    broker.kafka.broker_down()
    relay = testbed.relay(*_PATHS)
    with relay:
        relay.wait("it says what is away", lambda: str(cluster.port) in str(relay.readyz()[1]))
        assert (relay.livez(), relay.readyz()[0]) == (200, 503)
        assert relay.stop() == 0
    cluster.restart()


def test_a_second_relay_takes_the_streams_and_the_first_exits_with_75(
    testbed: Testbed, cluster: EmbeddedCluster
) -> None:
    first, second = testbed.relay(*_PATHS, name="first"), testbed.relay(*_PATHS, name="second")
    with testbed.reader(*testbed.topics(*_PATHS)) as reader, first:
        first.await_ready()
        with second:
            assert first.exit_code() == 75
            second.await_ready()
            testbed.namespaces(2)
            await_equal(cluster, reader, _PATHS)
            assert second.stop() == 0
            reader.read()
    assert reader.problems == []
    assert all(reader.proven(stream) for stream in _PATHS)


def test_a_missing_right_and_a_missing_resource_hold_up_one_stream_each(
    testbed: Testbed, cluster: EmbeddedCluster
) -> None:
    cluster.do(
        lambda: cluster.server.behaviour.forbidden.update(
            {("list", "configmaps"), ("watch", "configmaps")}
        )
    )
    relay = testbed.relay(*_PATHS, "nosuch.example.org")
    with relay, testbed.reader(*testbed.topics(*_PATHS)[1:]) as reader:
        relay.await_ready()
        relay.wait("configmaps wait", lambda: relay.stream("configmaps").get("waitsFor"))
        _, body = relay.readyz()
        for word in ("configmaps", "403", "list"):
            assert word in body["streams"]["configmaps"]["reason"], body
        assert "example.org" in body["streams"]["nosuch.example.org"]["reason"]
        assert [
            line for line in relay.logged("configmaps") if line["level"] in {"warning", "error"}
        ]
        testbed.namespaces(1)
        await_equal(
            cluster,
            reader,
            {stream: path for stream, path in _PATHS.items() if stream != "configmaps"},
        )
        assert relay.stop() == 0
        reader.read()
        reader.assert_right("namespaces")


def test_the_payload_of_secrets_stays_home(
    testbed: Testbed, cluster: EmbeddedCluster, broker: EmbeddedBroker
) -> None:
    (namespace,) = testbed.namespaces(1)
    path = f"/api/v1/namespaces/{namespace}/secrets"
    broker.create_topic(testbed.topic("secrets"), partitions=3)
    testbed.make(path, [{"metadata": {"name": "login"}, "data": {"password": "aHVudGVyMg=="}}])
    relay = testbed.relay("secrets")
    with relay, testbed.reader(testbed.topic("secrets")) as reader:
        relay.await_ready()
        await_equal(cluster, reader, {"secrets": ("/api/v1/secrets", redacted_data)})
        assert relay.stop() == 0
    assert b"aHVudGVyMg" not in b"".join(record.raw.value or b"" for record in reader.records)


def test_tail_and_validate_speak_of_the_same_topics(
    testbed: Testbed, cluster: EmbeddedCluster
) -> None:
    (namespace,) = testbed.namespaces(1)
    testbed.make(
        f"/api/v1/namespaces/{namespace}/configmaps",
        [{"metadata": {"name": "seen"}, "data": {"a": "<b>"}}],
    )
    relay = testbed.relay(*_PATHS)
    with relay, testbed.reader(*testbed.topics(*_PATHS)) as reader:
        relay.await_ready()
        assert relay.stop() == 0
        reader.read()
    everything = ("tail", "-c", relay.file, "--from-beginning", "--until-end", "--output")
    shown = command(*everything, "json", "--markers")
    assert shown.code == 0, shown.stderr
    places = [(line["topic"], line["partition"], line["offset"]) for line in shown.objects()]
    assert sorted(places) == sorted(
        (record.raw.topic, record.raw.partition, record.raw.offset) for record in reader.records
    )
    objects = [record for record in reader.records if record.is_object]
    assert len(command(*everything, "text").stdout.splitlines()) == len(objects)
    documents = [*yaml.safe_load_all(command(*everything, "yaml").stdout)]
    assert sorted(each["metadata"]["uid"] for each in documents) == sorted(
        record.headers["ce_wruid"] for record in objects
    )
    assert f"configmaps/{namespace}/seen" in command(*everything, "name").stdout.splitlines()
    assert (
        command(*everything, "name", "--key", f"{namespace}/s*", "--type", "added").stdout
        == f"configmaps/{namespace}/seen\n"
    )
    connected = command("validate", "--connect", "-c", relay.file)
    assert connected.code == 0, connected.stdout + connected.stderr
    cluster.kill()
    away = command("validate", "--connect", "-c", relay.file)
    assert away.code == 69, away.stdout + away.stderr
    assert str(cluster.port) in away.stdout + away.stderr
    cluster.restart()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"resorces": []}, ("resorces", "resources")),
        ({"cluster": 7}, ("cluster",)),
        ({"heartbeatInterval": "5"}, ("heartbeatInterval", "5s")),
    ],
)
def test_a_wrong_config_ends_run_with_78_and_says_where(
    testbed: Testbed, change: dict[str, Any], words: tuple[str, ...]
) -> None:
    config = {**testbed.config("pods"), **change}
    relay = Daemon(config, testbed.directory)
    done = command("run", "-c", relay.file)
    assert done.code == 78
    assert "Traceback" not in done.stderr
    assert str(relay.file) in done.stderr
    for word in words:
        assert word in done.stderr


def test_a_missing_config_file_ends_run_with_78(tmp_path: Path) -> None:
    done = command("run", "-c", tmp_path / "none.yaml")
    assert done.code == 78
    assert "none.yaml" in done.stderr


def test_the_demo_shows_events_and_ends_with_0_on_ctrl_c_whatever_is_exported_for_a_real_relay(
    tmp_path: Path,
) -> None:
    out, err, temporary = tmp_path / "out", tmp_path / "err", tmp_path / "a #b: 'c'"
    temporary.mkdir()
    exported = {
        "WATCHRELAY_CLUSTER": "prod",
        "WATCHRELAY_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "WATCHRELAY_KUBERNETES__KUBECONFIG": "/absent",
        "WATCHRELAY_RESOURCES__0__RESOURCE": "nodes",
        "WATCHRELAY_OBSERVE__LOG_LEVEL": "debug",
    }
    with out.open("wb") as stdout, err.open("wb") as stderr:
        environment = clean_environment({"COLUMNS": "200", "TMPDIR": str(temporary)} | exported)
        demo = subprocess.Popen([PROGRAM, "demo"], stdout=stdout, stderr=stderr, env=environment)
    try:
        end_well(demo, out.read_text, err.read_text)
    finally:
        demo.kill()
        demo.wait(10.0)
    assert "Traceback" not in err.read_text()
    not_heeded = ", ".join(sorted(exported.keys() - {"WATCHRELAY_OBSERVE__LOG_LEVEL"}))
    shown = err.read_text()
    assert f"demo: ignored, the demo has its own values: {not_heeded}\n" in shown
    _, _, after_the_state = shown.partition("demo: ready: ")
    assert re.search(r"^demo: status page http://", after_the_state, re.MULTILINE)
    assert HEADING in after_the_state
    first = out.read_text().splitlines()[0]
    for column in ("stream", "type", "object"):
        assert first[HEADING.index(column) - 1 :][:1] == " ", "the heading is not over its columns"


@pytest.mark.full
def test_the_demo_shows_a_missing_right_and_an_outage_of_kafka_and_how_both_heal(
    tmp_path: Path,
) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        environment = clean_environment({"COLUMNS": "200"})
        demo = subprocess.Popen(
            [PROGRAM, "demo", "--trouble"], stdout=stdout, stderr=stderr, env=environment
        )
    try:
        wait_until(
            "both troubles are over",
            lambda: "demo: no trouble any longer" in err.read_text() or demo.poll() is not None,
            deadline_s=200.0,
        )
        end_well(demo, out.read_text, err.read_text)
    finally:
        demo.kill()
        demo.wait(10.0)
    messages = [line for line in err.read_text().splitlines() if line.startswith("demo: ")]
    heads = ["trouble 1 of 2", "the right is granted", "healed", "trouble 2 of 2", "Kafka is back"]
    places = [next(at for at, line in enumerate(messages) if head in line) for head in heads]
    assert places == sorted(places)
    assert sum("healed after" in line for line in messages) == 2
    assert re.search(r" secrets +(added|read) ", out.read_text()), "its state came with the right"
    assert "Traceback" not in err.read_text()


def _terminals() -> bool:
    """Whether make can be run on a terminal of its own, and find out that it is in its
    foreground."""
    try:
        for end in os.openpty():
            os.close(end)
    except OSError:
        return False
    return bool(shutil.which("make") and shutil.which("ps"))


@pytest.mark.skipif(
    not _terminals(),
    reason="needs a pseudo-terminal, make, and ps, which tells make demo of its foreground",
)
def test_make_demo_on_a_terminal_ends_with_0_on_ctrl_c(tmp_path: Path) -> None:
    on_terminal = (
        "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    )
    out, root = tmp_path / "out", Path(__file__).parents[2]
    with out.open("wb") as stdout:
        argv = [sys.executable, "-c", on_terminal, "make", "-C", str(root), "demo"]
        demo = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=stdout, stderr=stdout, env=clean_environment()
        )
    assert demo.stdin is not None
    try:
        shown = partial(out.read_text, errors="replace")
        wait_until(
            "decoded changes are shown",
            lambda: len(re.findall(r"modified\b", shown())) >= 3 or demo.poll() is not None,
        )
        demo.stdin.write(b"\x03")
        demo.stdin.flush()
        assert demo.wait(30.0) == 0, shown()[-2000:]
    finally:
        demo.stdin.close()  # the terminal hangs up, which ends whatever is still there
        demo.kill()
        demo.wait(10.0)
    assert "drained; goodbye" in shown()
