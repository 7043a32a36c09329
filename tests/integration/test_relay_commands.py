"""Real parts: how `run` ends, what topics it refuses, and what the other commands say about
them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import ConfigResource

from tests.support.daemon import command, relay_config
from tests.support.listed import await_equal
from tests.support.process import free_port
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed

pytestmark = pytest.mark.real

_PATHS = {"configmaps": "/api/v1/configmaps", "namespaces": "/api/v1/namespaces"}
_SHOWN = {
    "topic",
    "partition",
    "offset",
    "stream",
    "type",
    "key",
    "uid",
    "resourceVersion",
    "epoch",
    "sequence",
    "reason",
    "object",
}


def test_sigterm_under_load_drains_and_exits_with_0(
    testbed: Testbed, real_cluster: ControlPlane
) -> None:
    relay = testbed.relay(*_PATHS)
    with testbed.under_churn(relay, testbed.topics(*_PATHS), namespaces=4, operations=600) as (
        churn,
        reader,
    ):
        churn.reach(200)
        assert relay.stop() == 0
        assert churn.running, "the churn ended before the relay"
        reader.read()
        reader.assert_right(*_PATHS)
        assert {
            partition.last for stream in _PATHS for partition in reader.partitions_of(stream)
        } - {0}
        for stream in _PATHS:
            newest = {record.raw.partition: record.type for record in reader.of(stream)}
            assert set(newest.values()) == {"heartbeat"}, (
                f"the drain does not end in a heartbeat: {newest}"
            )


def test_a_second_relay_takes_the_streams_and_the_first_exits_with_75(
    testbed: Testbed, real_cluster: ControlPlane
) -> None:
    first, second = testbed.relay(*_PATHS, name="first"), testbed.relay(*_PATHS, name="second")
    with testbed.under_churn(first, testbed.topics(*_PATHS), namespaces=4, operations=800) as (
        churn,
        reader,
    ):
        churn.reach(100)
        with second:
            assert first.exit_code() == 75
            assert first.logged("claim"), "the log does not say why"
            second.await_ready()
            churn.finish()
            await_equal(real_cluster, reader, _PATHS)
            assert second.stop() == 0
            reader.read()
    assert reader.problems == []
    assert all(reader.proven(stream) for stream in _PATHS)
    assert all(len({record.epoch for record in reader.of(stream)}) == 2 for stream in _PATHS)


def test_tail_shows_every_record_as_json(testbed: Testbed, real_cluster: ControlPlane) -> None:
    (namespace,) = testbed.namespaces(1)
    testbed.make(
        f"/api/v1/namespaces/{namespace}/configmaps",
        [{"metadata": {"name": "seen"}, "data": {"a": "<b>"}}],
    )
    relay = testbed.relay(*_PATHS)
    with relay, testbed.reader(*testbed.topics(*_PATHS)) as reader:
        relay.await_ready()
        real_cluster.request("DELETE", f"/api/v1/namespaces/{namespace}/configmaps/seen")
        reader.read_until("the delete is on the topic", lambda: reader.of("configmaps", "deleted"))
        assert relay.stop() == 0
        reader.read()
    shown = command(
        "tail", "-c", relay.file, "--output", "json", "--markers", "--from-beginning", "--until-end"
    )
    assert shown.code == 0, shown.stderr
    lines = shown.objects()
    assert {(line["topic"], line["partition"], line["offset"]) for line in lines} == {
        (record.raw.topic, record.raw.partition, record.raw.offset) for record in reader.records
    }
    objects = {
        (record.raw.topic, record.raw.partition, record.raw.offset): record
        for record in reader.records
        if record.is_object
    }
    for line in lines:
        record = objects.get((line["topic"], line["partition"], line["offset"]))
        if record is None:
            continue
        assert set(line) >= _SHOWN
        facts = (
            line["stream"],
            line["type"],
            line["key"],
            line["resourceVersion"],
            line["epoch"],
            line["sequence"],
            line["reason"],
        )
        headers = record.headers
        wanted = (
            record.stream,
            record.type,
            record.key.decode(),
            headers["ce_wrrv"],
            record.epoch,
            record.sequence,
            headers["ce_wrreason"],
        )
        assert facts == wanted
        assert line["uid"] == headers["ce_wruid"]
        assert line["object"] == (
            None if record.raw.value is None else json.loads(record.raw.value)
        )
    only = command(
        "tail",
        "namespaces",
        "-c",
        relay.file,
        "--output",
        "json",
        "--from-beginning",
        "--until-end",
    )
    assert {line["stream"] for line in only.objects()} == {"namespaces"}
    people = command("tail", "configmaps", "-c", relay.file, "--from-beginning", "--until-end")
    assert people.code == 0
    assert f"{namespace}/seen" in people.stdout


def test_topics_creates_what_run_would(testbed: Testbed, kafka_broker: KafkaBroker) -> None:
    relay = testbed.relay(*_PATHS)
    made = command("topics", "--create", "-c", relay.file)
    assert made.code == 0, made.stdout + made.stderr
    for topic in testbed.topics(*_PATHS):
        assert topic in made.stdout
        assert len(kafka_broker.admin.list_topics(topic).topics[topic].partitions) == 3
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        settings = kafka_broker.admin.describe_configs([resource])[resource].result(10.0)
        assert {*settings["cleanup.policy"].value.split(",")} == {"compact", "delete"}
        assert int(settings["max.message.bytes"].value) == 4 * 1024 * 1024
        for name in ("min.compaction.lag.ms", "delete.retention.ms", "retention.ms"):
            assert int(settings[name].value) >= 2 * 3_600_000, name
    again = command("topics", "-c", relay.file)
    assert again.code == 0, again.stdout + again.stderr
    with relay:
        relay.await_ready()
        assert relay.stop() == 0


def _written(testbed: Testbed, name: str, config: dict[str, Any]) -> Path:
    path = testbed.directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def test_validate_connect_tells_what_is_away_from_what_a_person_must_change(
    testbed: Testbed, real_cluster: ControlPlane, kafka_broker: KafkaBroker
) -> None:
    (namespace,) = testbed.namespaces(1)
    token = real_cluster.service_account_token(namespace, "nobody")
    nobody = real_cluster.write_kubeconfig(f"{testbed.name}-nobody", token=token)
    dead = f"127.0.0.1:{free_port()}"
    away = real_cluster.write_kubeconfig(f"{testbed.name}-away", server=f"https://{dead}")
    too_many = {"replicationFactor": 3, "minInsyncReplicas": 1}
    cases: dict[str, tuple[dict[str, Any], int, str]] = {
        "right": (testbed.config(*_PATHS), 0, ""),
        "not-served-yet": (testbed.config("configmaps", "nosuch.example.org"), 0, "nosuch"),
        "T86-namespace-not-there": (
            testbed.config({"resource": "configmaps", "namespaces": ["nowhere"]}),
            0,
            "no matching objects in namespace nowhere",
        ),
        "kafka-away": (
            relay_config(
                testbed.name, bootstrap=dead, kubeconfig=real_cluster.kubeconfig, resources=["pods"]
            ),
            69,
            dead,
        ),
        "server-away": (testbed.config("pods", kubeconfig=away), 69, dead),
        "no-right": (testbed.config("pods", kubeconfig=nobody), 78, "pods"),
        "too-few-brokers": (testbed.config("pods", kafka=too_many), 78, "replication"),
        "unknown-key": ({**testbed.config("pods"), "resorces": []}, 78, "resorces"),
    }
    for name, (config, code, word) in cases.items():
        outcome = command("validate", "--connect", "-c", _written(testbed, name, config))
        output = outcome.stdout + outcome.stderr
        assert outcome.code == code, f"{name}: {output}"
        assert word in output, f"{name}: {output}"
        assert "Traceback" not in output


def test_a_dangerous_topic_is_refused_and_the_other_streams_go_on(
    testbed: Testbed, real_cluster: ControlPlane, kafka_broker: KafkaBroker
) -> None:
    dangers = {
        "configmaps": (
            {"cleanup.policy": "compact", "min.compaction.lag.ms": "0"},
            3,
            "min.compaction.lag.ms",
        ),
        "secrets": ({"cleanup.policy": "delete", "retention.ms": "60000"}, 3, "retention.ms"),
        "services": ({"min.insync.replicas": "2"}, 3, "min.insync.replicas"),
        "pods": ({}, 2, "partition"),
    }
    for resource, (config, partitions, _) in dangers.items():
        kafka_broker.create_topic(testbed.topic(resource), partitions=partitions, config=config)
    relay = testbed.relay(*dangers, "namespaces")
    with relay, testbed.reader(testbed.topic("namespaces")) as reader:
        relay.await_ready()
        await_equal(real_cluster, reader, {"namespaces": _PATHS["namespaces"]})
        rows, (_, body) = relay.api_streams(), relay.readyz()
        for resource, (_, _, setting) in dangers.items():
            assert (rows[resource]["state"], rows[resource]["objects"]) == ("waiting", 0), rows[
                resource
            ]
            for text in (rows[resource]["waitsFor"], body["streams"][resource]["reason"]):
                assert setting in text
                assert testbed.topic(resource) in text
            assert [
                line for line in relay.logged(testbed.topic(resource)) if line["level"] == "error"
            ]
        assert rows["namespaces"]["state"] == "watching"
        checked = command("topics", "-c", relay.file)
        assert checked.code != 0
        assert "min.compaction.lag.ms" in checked.stdout + checked.stderr
        assert relay.stop() == 0
        reader.read()
    reader.assert_right("namespaces")


def test_more_copies_than_brokers_are_refused_by_name_and_the_process_stays(
    testbed: Testbed,
) -> None:
    relay = testbed.relay("configmaps", kafka={"replicationFactor": 3, "minInsyncReplicas": 2})
    with relay:
        relay.wait("the reason is given", lambda: "replication" in str(relay.readyz()[1]).lower())
        assert relay.livez() == 200
        assert relay.stop() == 0
