"""A relay with `delivery: transactional` on real Kafka."""

from pathlib import Path

import pytest

from tests.support.churn import Churn
from tests.support.daemon import command
from tests.support.embedded import EmbeddedCluster
from tests.support.kafkabroker import on_both
from tests.support.realparts import KafkaBroker
from tests.support.testbed import Testbed

pytestmark = [pytest.mark.real, pytest.mark.timeout(180), on_both]


@pytest.fixture
def testbed(cluster: EmbeddedCluster, kafka_broker: KafkaBroker, tmp_path: Path) -> Testbed:
    return Testbed(cluster, kafka_broker, tmp_path)


def test_smoke(testbed: Testbed) -> None:
    (namespace,) = testbed.namespaces(1)
    with testbed.relay(
        {"resource": "configmaps", "namespaces": [namespace]}, kafka={"delivery": "transactional"}
    ) as relay:
        relay.await_ready()
        with Churn(testbed.cluster, [namespace], operations=300, kinds=("configmaps",), per_s=100) as churn:
            churn.finish()
        verified = command("verify", "-c", relay.file, "--cluster", timeout_s=60.0)
        assert verified.code == 0, verified.stdout + verified.stderr
        print(relay.metrics() if hasattr(relay, "metrics") else "")
        for line in relay.lines(): print(line)
