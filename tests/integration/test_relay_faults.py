"""Real parts that forget and freeze: topics that end right, deletes included."""

import signal

import pytest

from tests.support.churn import deployment
from tests.support.faultproxy import FaultProxy
from tests.support.listed import await_equal
from tests.support.realparts import ControlPlane
from tests.support.testbed import Testbed

pytestmark = pytest.mark.real

_PATHS = {
    "configmaps": "/api/v1/configmaps",
    "pods": "/api/v1/pods",
    "deployments.apps": "/apis/apps/v1/deployments",
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
    with testbed.under_churn(
        relay,
        testbed.topics(*_PATHS),
        namespaces=4,
        operations=500,
        kinds=("configmaps", "deployments"),
    ) as (churn, reader):
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
