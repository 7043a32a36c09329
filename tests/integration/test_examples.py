"""The examples, run as the README says: against a relay on embedded parts, and the Java reader with
real Kafka."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.churn import Churn
from tests.support.daemon import Outcome, clean_environment
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.kafkabroker import KafkaBroker
from tests.support.parts import kafka_jars
from tests.support.pod_topics import LogAppender
from tests.support.stream_log import NODES, Log, Writer, resend, stream
from tests.support.testbed import Testbed
from tests.vectors.document import claim, description
from tests.vectors.generate import DIRECTORY
from watchrelay.consumer import TopicReader

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SOURCE = EXAMPLES / "java" / "Reader.java"


def java_command(*arguments: str | Path, version: str = "4.1") -> list[str]:
    """How to run it, on the jars of that Kafka."""
    argv = [
        "java",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xmx512m",
        "-cp",
        f"{kafka_jars(version)}/*",
        str(SOURCE),
    ]
    return [*argv, *map(str, arguments)]


def java_reader(*arguments: str | Path, version: str = "4.1") -> Outcome:
    """Runs it to its end, on the jars of that Kafka."""
    done = subprocess.run(
        java_command(*arguments, version=version),
        capture_output=True,
        text=True,
        timeout=100.0,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def example(name: str, *arguments: str | Path) -> Outcome:
    environment = clean_environment({"PYTHONPATH": str(EXAMPLES.parent)})
    argv = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=60.0, check=False, env=environment
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_the_python_reader_and_the_plain_table_hold_what_the_cluster_holds(
    cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    testbed = Testbed(cluster, broker, tmp_path)
    topic, control, positions = (
        testbed.topic("configmaps"),
        testbed.control_topic,
        tmp_path / "positions.json",
    )
    testbed.make_topics("configmaps")
    relay = testbed.relay("configmaps", defaults={"snapshotInterval": "5s"})
    namespaces = testbed.namespaces(3)
    with (
        Churn(cluster, namespaces, operations=600, kinds=("configmaps",), per_s=1000) as churn,
        relay,
    ):
        relay.await_ready()
        churn.reach(300)
        first = example(
            "python_reader.py",
            broker.bootstrap,
            control,
            "configmaps",
            "--once",
            "--positions",
            positions,
        )
        assert first.code == 0, first.stderr
        assert all(partition["proven"] for partition in first.objects())
        churn.finish()
        assert relay.stop() == 0
    listed = {
        f"{item['metadata']['namespace']}/{item['metadata']['name']}": item["metadata"]["uid"]
        for item in cluster.request("GET", "/api/v1/configmaps")["items"]
    }
    plain = example("plain_table.py", broker.bootstrap, topic)
    assert plain.code == 0, plain.stderr
    assert {key: row["metadata"]["uid"] for key, row in json.loads(plain.stdout).items()} == listed
    then = example(
        "python_reader.py",
        broker.bootstrap,
        control,
        "configmaps",
        "--once",
        "--positions",
        positions,
    )
    assert then.code == 0, then.stderr
    assert sum(partition["count"] for partition in then.objects()) == len(listed)
    assert {line.split()[0] for line in then.stderr.splitlines()} <= {
        "added",
        "modified",
        "deleted",
    }
    again = example(
        "python_reader.py",
        broker.bootstrap,
        control,
        "configmaps",
        "--once",
        "--positions",
        positions,
    )
    assert (again.code, again.stderr) == (0, ""), "positions at the end have nothing behind them"


def test_examples_say_in_one_line_what_is_wrong() -> None:
    away = example("python_reader.py", "127.0.0.1:1", "k8s.x.control")
    assert away.code == 1
    assert "kafka at 127.0.0.1:1 is not usable" in away.stderr
    assert "Traceback" not in away.stderr
    assert example("plain_table.py").code == 2


def closed(*argv: str | Path) -> Outcome:
    """Run with a stdout that nobody reads any more."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = clean_environment({"PYTHONPATH": str(EXAMPLES.parent)})
    with os.fdopen(writer, "wb") as out:
        done = subprocess.run(
            [*map(str, argv)],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100.0,
            check=False,
            env=environment,
        )
    return Outcome(done.returncode, "", done.stderr)


async def test_examples_go_on_past_foreign_records_and_say_what_is_missing(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    topic, control, whole = "k8s.e.core.nodes", "k8s.e.control", "k8s.e.whole.control"
    for name in (topic, control, whole):
        broker.kafka.create_topic(name)
    log = Log()
    nodes = Writer(stream(NODES), [log], epoch=2)
    nodes.first("n1", "n2")
    nodes.beat()
    async with LogAppender(broker.bootstrap) as appender:
        await appender.append(topic, [log])
        for key, value in (("other", b"<xml/>"), (None, b"{}"), ("deep", b"[" * 100_000)):
            await appender.send(topic, key, value)
        await appender.send(control, "stream/nodes", description(3, topic=topic))
        await appender.send(control, "claim/nodes", claim("w1"))
        await appender.send(whole, "stream/nodes", description(1, topic=topic))
        await appender.send(whole, "claim/nodes", claim("w1"))
    plain = await asyncio.to_thread(example, "plain_table.py", broker.bootstrap, topic)
    assert (plain.code, plain.stderr) == (
        0,
        "3 records without a key, or without JSON, were passed over\n",
    )
    assert json.loads(plain.stdout).keys() == {"/n1", "/n2"}
    missing = await asyncio.to_thread(example, "plain_table.py", broker.bootstrap, "k8s.e.none")
    assert (missing.code, missing.stderr) == (
        1,
        "topic k8s.e.none is not there, or may not be seen: check the name, or grant READ on it\n",
    )
    few = await asyncio.to_thread(example, "python_reader.py", broker.bootstrap, control, "--once")
    nowhere = tmp_path / "none" / "positions.json"
    unsaved = await asyncio.to_thread(
        example, "python_reader.py", broker.bootstrap, whole, "--once", "--positions", nowhere
    )
    assert (unsaved.code, unsaved.stderr.splitlines()[-1].split(";")[0]) == (
        1,
        f"{nowhere} cannot be written: No such file or directory",
    )
    assert few.code == 1
    assert few.stderr.startswith(
        f"read to the end, and not proven: topic {topic} of stream nodes has 1 partition, the "
        "description on"
    )
    assert len(few.stderr.splitlines()) == 1
    cut = await asyncio.to_thread(
        closed, sys.executable, EXAMPLES / "plain_table.py", broker.bootstrap, topic
    )
    assert (cut.code, cut.stderr.splitlines()[1:]) == (1, ["nobody reads the output any more"])


@pytest.mark.parametrize("text", ["", "{", "[7]", '[{"stream": "pods"}]', "7", '"pods"'])
def test_an_odd_file_of_positions_is_named_with_the_cure(text: str, tmp_path: Path) -> None:
    positions = tmp_path / "positions.json"
    positions.write_text(text)
    odd = example("python_reader.py", "127.0.0.1:1", "k8s.x.control", "--positions", positions)
    assert odd.code == 1
    assert len(odd.stderr.splitlines()) == 1, odd.stderr
    assert odd.stderr.startswith(str(positions))
    assert "forget what was built before" in odd.stderr


@pytest.mark.real
async def test_the_java_reader_says_what_is_missing_and_goes_on_past_foreign_records(
    kafka_broker: KafkaBroker,
) -> None:
    topic = "k8s.javafew.core.pods"
    kafka_broker.create_topic(topic)
    logs = [Log(), Log()]
    pods = Writer(stream(partitions=2), logs, epoch=2)
    pods.first("shop/a", "shop/b", "shop/c")
    pods.beat()
    async with LogAppender(kafka_broker.bootstrap) as appender:
        await appender.append(topic, logs[:1])
        await appender.send(topic, "other", b"<xml/>")
        await appender._producer.send_and_wait(
            topic, b"{}", b"odd", 0, headers=[("ce_type", None), ("ce_wrstream", None)]
        )
    absent = await asyncio.to_thread(
        java_reader, "live", kafka_broker.bootstrap, topic, "k8s.javafew.none"
    )
    assert absent.code == 1
    assert (
        "topic k8s.javafew.none is not there, or may not be seen: check the name, or grant "
        "READ on it"
    ) in absent.stderr
    assert "Exception" not in absent.stderr
    few = await asyncio.to_thread(closed, *java_command("live", kafka_broker.bootstrap, topic))
    printed = [
        line
        for line in few.stderr.splitlines()
        if "SLF4J" not in line and "log4j" not in line.lower()
    ]
    add = f"kafka-topics.sh --alter --topic {topic} --partitions 2"
    few_partitions = (
        f"topic {topic} has 1 partition, the markers of stream pods say 2: add them ({add})"
    )
    assert few.code == 1
    assert printed == [
        few_partitions,
        "2 records are not of this contract version",
        "nobody reads the output any more",
    ]


@pytest.mark.real
@pytest.mark.parametrize("version", ["3.9", "4.1"])
def test_the_java_reader_passes_every_vector(real_parts: None, version: str) -> None:
    passed = java_reader("vectors", DIRECTORY, version=version)
    count = len(list(DIRECTORY.glob("*.json")))
    assert passed.code == 0, passed.stdout
    assert f"{count} of {count} vectors pass" in passed.stdout


@pytest.mark.real
def test_the_java_reader_notices_a_vector_that_expects_something_else(
    real_parts: None, tmp_path: Path
) -> None:
    for field in ("verdicts", "state", "origins", "table"):
        vector = json.loads((DIRECTORY / "bootstrap-by-index.json").read_text())
        vector["expect"][field] = vector["expect"][field][:-1]
        (tmp_path / f"{field}.json").write_text(json.dumps(vector))
    failed = java_reader("vectors", tmp_path)
    assert failed.code == 1
    assert "0 of 4 vectors pass" in failed.stdout


@pytest.mark.real
async def test_the_java_and_the_python_reader_agree_live(kafka_broker: KafkaBroker) -> None:
    pods_topic, nodes_topic, control = (
        "k8s.java.core.pods",
        "k8s.java.core.nodes",
        "k8s.java.control",
    )
    kafka_broker.create_topic(pods_topic, partitions=3)
    kafka_broker.create_topic(nodes_topic)
    kafka_broker.create_topic(control)
    logs, one = [Log(), Log(), Log()], [Log()]
    old = Writer(stream(partitions=3), logs, epoch=2)
    nodes = Writer(stream(NODES, form="structured"), one, epoch=2)
    old.first(*(f"shop/pod-{number}" for number in range(50)))
    nodes.first("n1", "n2")
    old.delete("shop/pod-7")
    old.snapshot()
    for number in range(10, 20):
        old.put(f"shop/pod-{number}", 2)
    late = old.put("shop/pod-20", 3)
    new = Writer(stream(partitions=3), logs, epoch=4, before=old)
    new.claim()
    # the snapshot's end sweeps it, the heartbeat before alarms both
    new.delete("shop/pod-21", lose=True)
    new.beat()
    old.put("shop/pod-22", 9)
    resend(logs[0], late)
    new.snapshot()
    nodes.delete("n1")
    for writer in (new, nodes):
        writer.beat()
    async with LogAppender(kafka_broker.bootstrap) as appender:
        await appender.append(pods_topic, logs)
        await appender.append(nodes_topic, one)
        await appender.send(control, "stream/pods", description(3, topic=pods_topic))
        await appender.send(control, "claim/pods", claim("w2"))
        await appender.send(control, "stream/nodes", description(1, topic=nodes_topic))
        await appender.send(control, "claim/nodes", claim("w1"))
    java = java_reader("live", kafka_broker.bootstrap, pods_topic, nodes_topic)
    assert java.code == 0, java.stdout + java.stderr
    python = example("python_reader.py", kafka_broker.bootstrap, control, "--once")
    assert python.code == 0, python.stderr
    assert java.objects() == python.objects()
    assert sum(
        partition["count"] for partition in java.objects() if partition["stream"] == "pods"
    ) == sum(map(len, new.held))
    async with TopicReader(
        kafka_broker.bootstrap, control_topic="", topics=[pods_topic, nodes_topic], until_end=True
    ) as reader:
        await reader.ready()
        found = {
            (partition.stream, partition.partition): (
                partition.digest,
                partition.objects,
                partition.epoch,
            )
            for partition in reader.partitions()
        }
    assert found == {
        (partition["stream"], partition["partition"]): (
            partition["digest"],
            partition["count"],
            partition["epoch"],
        )
        for partition in java.objects()
    }
