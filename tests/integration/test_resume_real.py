"""A real API server and real Kafka, both versions: what a restart asks for and what it appends."""

from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.listed import await_equal
from tests.support.process import wait_until
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed
from tests.support.wirerules import ParsedRecord

pytestmark = pytest.mark.real

_OURS = "watchrelay/"


def _markers_only(records: list[ParsedRecord]) -> bool:
    return {record.type for record in records} == {"claim", "heartbeat"}


def test_a_restart_with_nothing_changed_lists_nothing_by_the_servers_own_audit(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    with ControlPlane(audit=True) as cluster:
        testbed = Testbed(cluster, kafka_broker, tmp_path)
        (namespace,) = testbed.namespaces(1)
        testbed.make(
            f"/api/v1/namespaces/{namespace}/configmaps",
            [{"metadata": {"name": f"c{number}"}} for number in range(50)],
        )
        only = {"configmaps": f"/api/v1/namespaces/{namespace}/configmaps"}
        relay = testbed.relay(
            {"resource": "configmaps", "namespaces": [namespace], "id": "configmaps"}
        )
        stream = f"configmaps@{namespace}"
        with testbed.reader(testbed.topic("configmaps")) as reader, relay:
            relay.await_ready()
            await_equal(cluster, reader, {stream: only["configmaps"]})
            reader.read_until("the frontier is on the log", lambda: reader.of(stream, "heartbeat"))
            relay.kill()
            reader.read()
            before, asked = len(reader.records), len(_asked(cluster))
            _restarted(relay, stream)
            reader.read_until(
                "heartbeats follow",
                lambda: (
                    len([1 for record in reader.records[before:] if record.type == "heartbeat"])
                    >= 6
                ),
            )
            assert relay.stop() == 0
            reader.read()
        assert _markers_only(reader.records[before:])
        since = _asked(cluster)[asked:]
        assert {verb for verb, _ in since} == {"watch"}, since
        assert not [uri for _, uri in since if "sendInitialEvents" in uri]
        reader.assert_right(stream)


@pytest.mark.parametrize("history", ["that reaches back", "that was compacted away"])
def test_what_was_deleted_while_the_relay_was_down_is_announced_with_a_watch_history(
    kafka_broker: KafkaBroker, tmp_path: Path, history: str
) -> None:
    with ControlPlane(audit=True) as cluster:
        testbed = Testbed(cluster, kafka_broker, tmp_path)
        (namespace,) = testbed.namespaces(1)
        path = f"/api/v1/namespaces/{namespace}/configmaps"
        testbed.make(
            path,
            [
                {"metadata": {"name": name}, "data": {"v": "0"}}
                for name in ("gone", "changed", "replaced", "kept")
            ],
        )
        stream, relay = (
            f"configmaps@{namespace}",
            testbed.relay(
                {"resource": "configmaps", "namespaces": [namespace], "id": "configmaps"}
            ),
        )
        with testbed.reader(testbed.topic("configmaps")) as reader, relay:
            relay.await_ready()
            await_equal(cluster, reader, {stream: path})
            reader.read_until("the frontier is on the log", lambda: reader.of(stream, "heartbeat"))
            relay.kill()
            reader.read()
            before, asked = len(reader.records), len(_asked(cluster))
            cluster.request("DELETE", f"{path}/gone")
            cluster.request("PATCH", f"{path}/changed", {"data": {"v": "1"}})
            cluster.request("DELETE", f"{path}/replaced")
            testbed.make(
                path, [{"metadata": {"name": "replaced"}}, {"metadata": {"name": "fresh"}}]
            )
            if history == "that was compacted away":
                cluster.compact()
                cluster.restart_apiserver()
            _restarted(relay, stream)
            await_equal(cluster, reader, {stream: path})
            assert relay.stop() == 0
            reader.read()
        reader.assert_right(stream)
        published = sorted(
            (one.type, one.key.decode().partition("/")[2], one.headers["ce_wrreason"])
            for one in reader.records[before:]
            if one.is_object
        )
        lists = [
            uri
            for verb, uri in _asked(cluster)[asked:]
            if verb == "list" or "sendInitialEvents" in uri
        ]
    reason = "watch" if history == "that reaches back" else "resume"
    expected = [
        ("added", "fresh"),
        ("added", "replaced"),
        ("deleted", "gone"),
        ("deleted", "replaced"),
        ("modified", "changed"),
    ]
    assert published == [(*each, reason) for each in expected]
    assert bool(lists) == (reason == "resume"), lists


def _restarted(relay: Daemon, stream: str) -> None:
    relay.start().await_ready()
    wait_until("it is watched", lambda: relay.stream(stream).get("state") == "watching")


def _asked(cluster: ControlPlane) -> list[tuple[str, str]]:
    """Verb and URI of every request of ours for configmaps, by the audit log."""
    return [
        (entry["verb"], entry["requestURI"])
        for entry in cluster.audit_entries()
        if entry.get("userAgent", "").startswith(_OURS)
        and entry.get("objectRef", {}).get("resource") == "configmaps"
    ]
