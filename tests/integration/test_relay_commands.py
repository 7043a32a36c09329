"""Real parts: what topics `run` and `topics` create and refuse, and what `validate --connect` says of
them."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import ConfigResource

from tests.support.daemon import command, relay_config
from tests.support.process import free_port
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed

pytestmark = pytest.mark.real

_PATHS = {"configmaps": "/api/v1/configmaps", "namespaces": "/api/v1/namespaces"}


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
    testbed: Testbed, kafka_broker: KafkaBroker
) -> None:
    dangers: dict[str, tuple[dict[str, str], int, str]] = {
        "configmaps": ({"cleanup.policy": "compact"}, 3, "min.compaction.lag.ms is 0"),
        "secrets": ({"retention.ms": "60000"}, 3, "retention.ms is 60000"),
        "services": ({"min.insync.replicas": "2"}, 3, "min.insync.replicas is 2"),
        "pods": ({}, 2, "it has 2 partitions"),
    }
    for resource, (config, partitions, _) in dangers.items():
        kafka_broker.create_topic(testbed.topic(resource), partitions=partitions, config=config)
    with testbed.relay(*dangers, "namespaces") as relay:
        relay.await_ready()
        relay.wait("the other stream is whole", lambda: relay.stream("namespaces")["complete"])
        rows, (_, body) = relay.api_streams(), relay.readyz()
        for resource, (_, _, why) in dangers.items():
            topic = testbed.topic(resource)
            assert (rows[resource]["state"], rows[resource]["objects"]) == ("waiting", 0)
            for text in (rows[resource]["waitsFor"], body["streams"][resource]["reason"]):
                assert why in text
                assert topic in text
            assert [line for line in relay.logged(topic) if line["level"] == "error"]
        checked = command("topics", "-c", relay.file)
        assert checked.code != 0
        assert "min.compaction.lag.ms is 0" in checked.stdout + checked.stderr
        assert relay.stop() == 0
