"""Real parts: `snapshot` and `retire` against a daemon, on brokers that make and check topics."""

import pytest
from confluent_kafka.admin import ConfigResource

from tests.support.daemon import Daemon, command
from tests.support.process import wait_until
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed
from tests.support.topic_contents import RESOURCES, assert_retired, fill, index_of, replicas, seen

pytestmark = [pytest.mark.real]


def test_requests_are_answered_also_those_made_while_the_relay_was_down(
    testbed: Testbed, kafka_broker: KafkaBroker
) -> None:
    fill(testbed, 3)
    relay = testbed.relay(*RESOURCES)
    with relay:
        early = command("snapshot", "-c", relay.file)
        relay.await_ready()
        assert early.code in {0, 1, 69}
        topic = testbed.signal_topic
        relay.wait(
            "the signal topic is made",
            lambda: topic in kafka_broker.admin.list_topics(timeout=10.0).topics,
        )
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        assert (
            kafka_broker.admin.describe_configs([resource])[resource]
            .result(10.0)["cleanup.policy"]
            .value
            == "delete"
        )
        asked = command("snapshot", "configmaps", "-c", relay.file)
        assert asked.code == 0, asked
        assert f"snapshot {index_of(testbed, 'configmaps')['snapshot']}" in asked.stdout
        assert relay.stop() == 0
        late = command("snapshot", "configmaps", "-c", relay.file, "--timeout", "60s")
        # no heartbeat came for three intervals of 1 s; the request stays
        assert late.code == 69, late
        relay.start().await_ready()
        wait_until(
            "it is answered",
            lambda: set(index_of(testbed, "configmaps")["requests"]) & set(late.stderr.split()),
            deadline_s=60.0,
        )
        assert relay.stop() == 0
    assert all(replica.proven for replica in replicas(seen(testbed)).values())


@pytest.mark.parametrize("format_", ["cloudevents", "structured", "debezium"])
def test_a_stream_is_retired_and_every_reader_ends_with_nothing(
    testbed: Testbed, real_cluster: ControlPlane, format_: str
) -> None:
    keys = fill(testbed, 20)
    namespace, _, name = keys[1].partition("/")
    with testbed.relay(*RESOURCES, kafka={"format": format_}) as relay:
        relay.await_ready()
        real_cluster.request("DELETE", f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        relay.wait(
            "the delete is published",
            lambda: relay.metric("watchrelay_records_acked_total", kind="tombstone") >= 1,
        )
        assert relay.stop() == 0
    assert all(replica.proven for replica in replicas(seen(testbed)).values())
    left = Daemon(
        testbed.config("namespaces", kafka={"format": format_}), testbed.directory, name="left"
    )
    done = command("retire", "configmaps", "--yes", "-c", left.file)
    assert done.code == 0, done
    assert_retired(testbed, keys, format_=format_)
