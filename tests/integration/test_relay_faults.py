"""Parts that die, freeze and forget under churn: topics that end right, deletes included."""

import http.client
import signal

import pytest

from tests.support.churn import deployment
from tests.support.daemon import Daemon
from tests.support.faultproxy import FaultProxy
from tests.support.listed import await_equal
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed, UnderChurn

pytestmark = pytest.mark.real

_PATHS = {
    "configmaps": "/api/v1/configmaps",
    "pods": "/api/v1/pods",
    "deployments.apps": "/apis/apps/v1/deployments",
}


def _under_churn(
    testbed: Testbed, relay: Daemon, *, namespaces: int, operations: int
) -> UnderChurn:
    kinds = ("configmaps", "deployments")
    return testbed.under_churn(
        relay, testbed.topics(*_PATHS), namespaces=namespaces, operations=operations, kinds=kinds
    )


def test_an_api_server_killed_again_and_again_under_churn_costs_nothing(
    testbed: Testbed, real_cluster: ControlPlane
) -> None:
    relay = testbed.relay(*_PATHS)
    with _under_churn(testbed, relay, namespaces=8, operations=1000) as (churn, reader):
        for operations in (200, 500):
            churn.reach(operations)
            real_cluster.kill_apiserver()
            assert relay.livez() == http.client.OK
            real_cluster.restart_apiserver()
            real_cluster.compact()
        churn.finish()
        await_equal(real_cluster, reader, _PATHS)
        assert relay.readyz()[0] == http.client.OK, "an outage later on takes readiness back"
        assert relay.stop() == 0
        reader.read()
    reader.assert_right(*_PATHS)
    for topic, stream in zip(testbed.topics(*_PATHS), _PATHS, strict=True):
        assert reader.plain[topic] == reader.table(stream)
    assert {partition.epoch for stream in _PATHS for partition in reader.partitions_of(stream)} == {
        reader.epoch(stream) for stream in _PATHS
    }


def test_what_changed_while_history_was_lost_is_announced_by_the_relist(
    testbed: Testbed, real_cluster: ControlPlane
) -> None:
    (namespace,) = testbed.namespaces(1)
    path, deployments = (
        f"/api/v1/namespaces/{namespace}/configmaps",
        f"/apis/apps/v1/namespaces/{namespace}/deployments",
    )
    testbed.make(
        path,
        [
            {"metadata": {"name": name}, "data": {"v": "0"}}
            for name in ("gone", "changed", "replaced", "kept")
        ],
    )
    testbed.make(deployments, [deployment("shop", 3)])
    with FaultProxy(real_cluster.port) as proxy:
        through = real_cluster.write_kubeconfig(
            f"{testbed.name}-through", server=f"https://127.0.0.1:{proxy.port}"
        )
        with (
            testbed.relay(*_PATHS, kubeconfig=through) as relay,
            testbed.reader(*testbed.topics(*_PATHS)) as reader,
        ):
            relay.await_ready()
            await_equal(real_cluster, reader, _PATHS)
            proxy.refuse()
            real_cluster.request("DELETE", f"{path}/gone")
            real_cluster.request("PATCH", f"{path}/changed", {"data": {"v": "1"}})
            real_cluster.request("DELETE", f"{path}/replaced")
            testbed.make(
                path,
                [
                    {"metadata": {"name": name}, "data": {"v": "2"}}
                    for name in ("replaced", "fresh")
                ],
            )
            real_cluster.request("PATCH", f"{deployments}/shop/scale", {"spec": {"replicas": 1}})
            pods = f"/api/v1/namespaces/{namespace}/pods"
            real_cluster.wait_for(
                "one pod is left", lambda: len(real_cluster.request("GET", pods)["items"]) == 1
            )
            real_cluster.compact()
            real_cluster.restart_apiserver()
            relay.wait(
                "the outage is reported", lambda: relay.stream("configmaps").get("lastError")
            )
            proxy.heal()
            await_equal(real_cluster, reader, _PATHS)
            relay.wait(
                "the outage is over", lambda: relay.stream("configmaps").get("lastError") is None
            )
            assert relay.metric("watchrelay_missed_changes_total", resource="configmaps") == 4
            assert (
                relay.metric("watchrelay_watch_ends_total", resource="configmaps", reason="gone")
                >= 1
            )
            assert relay.stop() == 0
            reader.read()
    reader.assert_right(*_PATHS)

    def records(name: str) -> list[tuple[str, str]]:
        return [
            (record.type, record.headers["ce_wrreason"])
            for record in reader.about("configmaps", f"{namespace}/{name}")
        ]

    first = ("added", "snapshot")
    assert records("gone") == [first, ("deleted", "relist")]
    assert records("changed") == [first, ("modified", "relist")]
    assert records("replaced") == [first, ("deleted", "relist"), ("added", "relist")]
    assert records("fresh") == [("added", "relist")]
    assert records("kept") == [first]
    assert len(reader.of("pods", "deleted")) >= 2


def test_a_frozen_api_server_and_a_frozen_relay_are_caught_up_with(
    testbed: Testbed, real_cluster: ControlPlane
) -> None:
    relay = testbed.relay(*_PATHS)
    with _under_churn(testbed, relay, namespaces=4, operations=500) as (churn, reader):
        churn.reach(100)
        relay.send(signal.SIGSTOP)
        churn.reach(300)
        relay.send(signal.SIGCONT)
        real_cluster.pause()
        heartbeats = len(reader.of("configmaps", "heartbeat"))
        reader.read_until(
            "heartbeats go on", lambda: len(reader.of("configmaps", "heartbeat")) > heartbeats + 6
        )
        real_cluster.resume()
        churn.finish()
        await_equal(real_cluster, reader, _PATHS)
        assert relay.stop() == 0
        reader.read()
    reader.assert_right(*_PATHS)


def test_a_broker_killed_and_frozen_under_churn_loses_and_reorders_nothing(
    testbed: Testbed, real_cluster: ControlPlane, kafka_broker: KafkaBroker
) -> None:
    relay = testbed.relay(*_PATHS)
    with _under_churn(testbed, relay, namespaces=8, operations=1000) as (churn, reader):
        churn.reach(200)
        kafka_broker.kill()
        assert relay.livez() == http.client.OK
        kafka_broker.restart()
        heartbeats = len(reader.of("pods", "heartbeat"))
        reader.read_until(
            "records come again", lambda: len(reader.of("pods", "heartbeat")) > heartbeats
        )
        churn.reach(600)
        kafka_broker.pause()
        churn.reach(800)
        assert relay.livez() == http.client.OK
        kafka_broker.resume()
        churn.finish()
        await_equal(real_cluster, reader, _PATHS)
        assert relay.readyz()[0] == http.client.OK
        assert relay.stop() == 0
        reader.read()
    reader.assert_right(*_PATHS, duplicates=True)
    for topic, stream in zip(testbed.topics(*_PATHS), _PATHS, strict=True):
        assert reader.plain[topic] == reader.table(stream)


def test_a_relay_started_while_both_sides_are_away_says_so_and_begins_when_they_are_back(
    testbed: Testbed, real_cluster: ControlPlane, kafka_broker: KafkaBroker
) -> None:
    relay = testbed.relay("configmaps")
    real_cluster.kill_apiserver()
    kafka_broker.kill()
    try:
        with relay:
            relay.wait(
                "it is alive and not ready",
                lambda: relay.livez() == 200 and relay.readyz()[0] == 503,
            )
            relay.wait(
                "/readyz names the API server",
                lambda: str(real_cluster.port) in str(relay.readyz()[1]),
            )
            real_cluster.restart_apiserver()
            relay.wait(
                "/readyz names Kafka", lambda: kafka_broker.bootstrap in str(relay.readyz()[1])
            )
            kafka_broker.restart()
            relay.await_ready(deadline_s=60.0)
            with testbed.reader(testbed.topic("configmaps")) as reader:
                await_equal(real_cluster, reader, {"configmaps": _PATHS["configmaps"]})
                assert relay.stop() == 0
                reader.assert_right("configmaps")
    finally:
        real_cluster.restart_apiserver()
        kafka_broker.restart()


def test_a_killed_relay_comes_back_with_a_new_epoch_and_a_right_topic(
    testbed: Testbed, real_cluster: ControlPlane
) -> None:
    (namespace,) = testbed.namespaces(1)
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    testbed.make(path, [{"metadata": {"name": f"c{number}"}} for number in range(10)])
    relay = testbed.relay(*_PATHS)
    with testbed.reader(*testbed.topics(*_PATHS)) as reader, relay:
        relay.await_ready()
        await_equal(real_cluster, reader, _PATHS)
        epoch = reader.epoch("configmaps")
        relay.kill()
        for number in range(0, 10, 2):
            real_cluster.request("DELETE", f"{path}/c{number}")
        relay.start().await_ready()
        await_equal(real_cluster, reader, _PATHS)
        assert reader.epoch("configmaps") > epoch
        assert relay.stop() == 0
        reader.read()
    reader.assert_right(*_PATHS)
