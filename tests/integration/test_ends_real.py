"""A relay that is killed again and again, or stopped while Kafka is frozen: what its starts
cost the API server, how it ends, and that nothing is lost either way."""

import http.client
import signal
import time
from collections import Counter
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

import pytest

from tests.support.daemon import Daemon, assert_verified
from tests.support.listed import await_equal
from tests.support.looks import is_look
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed

pytestmark = pytest.mark.real

_PATHS = {
    "configmaps": "/api/v1/configmaps",
    "namespaces": "/api/v1/namespaces",
    "services": "/api/v1/services",
}
_KILLS = 10
_DISCOVERY = 3
"""Requests: /api, /apis, /version."""
_DRAIN_S = 4.0


def asked(cluster: ControlPlane) -> Counter[str]:
    """What relays have asked so far, by the audit log: lists (streaming ones, too), watches, and
    the rest, which is discovery."""
    kinds = Counter[str]()
    for entry in cluster.audit_entries():
        if not entry.get("userAgent", "").startswith("watchrelay/"):
            continue
        if entry["verb"] == "watch" and "sendInitialEvents" not in entry["requestURI"]:
            kinds["watch"] += entry["stage"] == "ResponseStarted"
        elif entry["verb"] == "watch":
            kinds["list"] += entry["stage"] == "ResponseStarted"
        elif is_look(entry["requestURI"]):
            kinds["look"] += 1
        else:
            kinds["list" if entry["verb"] == "list" else "discovery"] += 1
    return kinds


def test_ten_kills_in_a_row_cost_the_api_server_a_watch_a_stream_each_and_no_list(
    real_parts: None, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    with ControlPlane(audit=True) as cluster:
        testbed = Testbed(cluster, kafka_broker, tmp_path)
        path = testbed.config_maps(20)
        relay = testbed.relay(*_PATHS)

        def states() -> set[str]:
            return {row["state"] for row in relay.api_streams().values()}

        moments: tuple[Callable[[], object], ...] = (
            lambda: relay.livez() == http.client.OK,
            lambda: relay.stream("services").get("topic"),
            lambda: "watching" in states(),
            lambda: states() == {"watching"},
            lambda: relay.readyz()[0] == http.client.OK,
        )
        with testbed.reader(*testbed.topics(*_PATHS)) as reader, relay:
            relay.await_ready()
            await_equal(cluster, reader, _PATHS)
            first = asked(cluster)
            assert first["list"] == len(_PATHS)
            relay.kill()
            for life, come in enumerate(islice(cycle(moments), _KILLS)):
                cluster.request("DELETE", f"{path}/c{life}")
                cluster.request("POST", path, {"metadata": {"name": f"new-{life}"}})
                relay.start().wait("its time has come", come)
                relay.kill()
            loop = asked(cluster) - first
            assert loop["list"] == 0, "the history is there"
            assert loop["look"] <= loop["watch"], loop
            assert 2 * len(_PATHS) <= loop["watch"] <= _KILLS * len(_PATHS), loop
            assert loop["discovery"] <= _KILLS * _DISCOVERY, loop
            relay.start().await_ready()
            await_equal(cluster, reader, _PATHS)
            assert (asked(cluster) - first)["list"] == 0
            assert_verified(relay)
            assert relay.stop() == 0
            reader.read()
        reader.assert_right(*_PATHS, duplicates=True)


def test_with_kafka_frozen_the_drain_keeps_its_deadline_a_second_signal_ends_it_at_once_and_nothing_is_lost(
    testbed: Testbed, real_cluster: ControlPlane, kafka_broker: KafkaBroker
) -> None:
    path = testbed.config_maps(3)
    patient = testbed.relay(*_PATHS, name="patient", shutdown={"drainTimeout": "5m"})
    hasty = testbed.relay(*_PATHS, name="hasty", shutdown={"drainTimeout": f"{_DRAIN_S:g}s"})

    def frozen_with_a_change(relay: Daemon, name: str) -> None:
        kafka_broker.pause()
        held = relay.stream("configmaps")["objects"]
        real_cluster.request("POST", path, {"metadata": {"name": name}})
        relay.wait(
            "the change is seen", lambda: relay.stream("configmaps").get("objects") == held + 1
        )

    try:
        with testbed.reader(*testbed.topics(*_PATHS)) as reader:
            with patient:
                patient.await_ready()
                await_equal(real_cluster, reader, _PATHS)
                frozen_with_a_change(patient, "in-the-first-drain")
                patient.send(signal.SIGTERM)
                patient.wait("it drains", lambda: patient.logged("draining"))
                assert patient.alive, "it waits for Kafka"
                patient.send(signal.SIGTERM)
                assert patient.exit_code() == 1, "the second signal does not wait for Kafka"
                kafka_broker.resume()
                real_cluster.request("DELETE", f"{path}/c0")
            with hasty:
                hasty.await_ready()
                await_equal(real_cluster, reader, _PATHS)
                frozen_with_a_change(hasty, "in-the-second-drain")
                signalled_s = time.monotonic()
                assert hasty.stop() == 1
                assert _DRAIN_S <= time.monotonic() - signalled_s < 2 * _DRAIN_S
                assert hasty.logged("drain deadline passed")
                kafka_broker.resume()

                real_cluster.request("DELETE", f"{path}/c1")
                hasty.start().await_ready()
                await_equal(real_cluster, reader, _PATHS)
                assert_verified(hasty)
                assert hasty.stop() == 0
            reader.read()
    finally:
        kafka_broker.resume()
    reader.assert_right(*_PATHS, duplicates=True)
