"""A relay that is killed again and again before Kafka is there: how little the API server
notices."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.extent import full
from tests.support.testbed import Testbed

_PATHS = {"configmaps": "/api/v1/configmaps", "namespaces": "/api/v1/namespaces"}
_CRASHES = 5 if full() else 2


@pytest.fixture
def testbed(cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path) -> Testbed:
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics(*_PATHS)
    testbed.config_maps(20)
    return testbed


def _asked(cluster: EmbeddedCluster) -> Counter[str]:
    """Lists and watches of the streams so far."""

    def kinds() -> Counter[str]:
        seen = [
            each
            for each in cluster.server.log
            if each.resource in _PATHS
            and "relay" in each.user_agent
            and each.query.get("limit") != "1"
        ]
        return Counter(
            "list" if each.verb == "list" or "sendInitialEvents" in each.query else each.verb
            for each in seen
        )

    return cluster.do(kinds)


def test_a_relay_that_dies_before_kafka_is_there_has_asked_for_no_object(
    testbed: Testbed, cluster: EmbeddedCluster, broker: EmbeddedBroker
) -> None:
    """Lists whose objects nobody could take would be made again at each start."""
    broker.kafka.broker_down()
    relay = testbed.relay(*_PATHS)
    with relay:
        for _ in range(_CRASHES):
            relay.wait(
                "it waits for Kafka", lambda: "kafka" in relay.readyz()[1].get("problems", {})
            )
            relay.wait("the resources are known", lambda: relay.stream("configmaps").get("topic"))
            relay.kill()
            relay.start()
        assert _asked(cluster) == Counter()
        broker.kafka.broker_up()
        relay.await_ready()
        assert _asked(cluster)["list"] == len(_PATHS)
        assert relay.stop() == 0
