"""A relay on real parts under load, a real Prometheus: proof that panels have data and alerts
work."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import charttools
from tests.support.charttools import program, run
from tests.support.churn import Churn
from tests.support.daemon import Daemon, command
from tests.support.dashboards import Query, queries
from tests.support.prometheus import Prometheus
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed
from tools.dashboards.panels import MAY_BE_EMPTY

pytestmark = pytest.mark.real

_STREAM = "configmaps"
_EMPTY_BY_LUCK = {"Claims"}
"""There is one only where there was an owner before."""
_NEEDS_ANOTHER_FAULT = {
    "Producers rebuilt",
    "Not owned by one",
    "Trimmed records",
    "Transactions",
    "Time of a transaction",
}
"""A broker that dies and comes back need not cost the producer, whose series begin when one is; two
owners are seen in the alerts' cases; no object here is too large; nothing writes transactions."""


@pytest.fixture
def own_broker(real_parts: None) -> Iterator[KafkaBroker]:
    if obstacle := charttools.unavailable():
        pytest.fail(obstacle, pytrace=False)
    with KafkaBroker("4.1") as broker:
        yield broker


def _alerts(prometheus: Prometheus, state: str) -> set[str]:
    return {rule["name"] for rule in prometheus.rules() if rule["state"] == state}


def _empty(prometheus: Prometheus, asked: list[Query]) -> list[str]:
    return [
        f"{query.where}: {query.expression}"
        for query in asked
        if not prometheus.query_range(query.expression)
    ]


def _fail_kafka(prometheus: Prometheus, broker: KafkaBroker, relay: Daemon) -> None:
    broker.kill()
    prometheus.wait("batches fail", "sum(increase(watchrelay_produce_errors_total[1m])) > 0")
    broker.restart()
    relay.wait(
        "records are acknowledged again", lambda: relay.metric("watchrelay_queue_records") == 0
    )


def test_every_expression_has_data_and_the_alerts_follow_what_happens(
    real_cluster: ControlPlane, own_broker: KafkaBroker, tmp_path: Path
) -> None:
    testbed = Testbed(real_cluster, own_broker, tmp_path)
    relay = testbed.relay(
        "configmaps", "deployments.apps", "nosuch.example.org", defaults={"snapshotInterval": "5s"}
    )
    several = {'=~"$cluster"': '=~".*"', '=~"$stream"': '=~".*"'}
    asked = queries(
        {
            "$namespace": "ns",
            **several,
            "$cluster": testbed.name,
            "$stream": _STREAM,
            "$topic": ".*",
        }
    )
    assert len(asked) > 60
    with (
        relay,
        Prometheus(tmp_path, {"ns": f"127.0.0.1:{relay.port}"}) as prometheus,
    ):
        relay.await_ready()
        prometheus.wait("the relay is scraped", "watchrelay_events_received_total")
        with Churn(
            real_cluster, testbed.namespaces(3), operations=400, kinds=("configmaps", "deployments")
        ) as churn:
            churn.finish()
        prometheus.wait(
            "the load was scraped",
            f'sum(increase(watchrelay_events_received_total{{stream="{_STREAM}"}}[1m])) > 10',
        )
        prometheus.wait(
            "a second snapshot was scraped",
            f'changes(watchrelay_snapshot_last_success_timestamp_seconds{{stream="{_STREAM}"}}[1m]) '
            "> 0",
        )
        needed = [query for query in asked if query.panel not in MAY_BE_EMPTY | _EMPTY_BY_LUCK]
        assert _empty(prometheus, needed) == []
        for query in asked:
            prometheus.query_range(query.expression)  # those that may be empty are asked too
        assert {
            rule["name"]: rule.get("lastError")
            for rule in prometheus.rules()
            if rule["health"] != "ok"
        } == {}
        assert _alerts(prometheus, "firing") == set()
        prometheus.wait(
            "the stream that waits is seen",
            'ALERTS{alertname="WatchRelayStreamWaiting",stream="nosuch.example.org"}',
        )
        assert _alerts(prometheus, "pending") == {"WatchRelayStreamWaiting"}
        _fail_kafka(prometheus, own_broker, relay)
        assert command("snapshot", "-c", relay.file, _STREAM).code == 0
        for query in asked:
            if query.panel in MAY_BE_EMPTY - _NEEDS_ANOTHER_FAULT:
                prometheus.wait(f"{query.where} has data after the faults", query.expression)
        prometheus.wait(
            "the errors were seen as an alert to come",
            'max_over_time(ALERTS{alertname="WatchRelayProduceErrors"}[5m])',
        )
        linted = run(program("promtool"), "check", "metrics", stdin=relay.metrics())
        assert linted.returncode == 0, linted.stdout + linted.stderr
        assert relay.stop() == 0
