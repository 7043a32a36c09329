"""A real API server and real Kafka, both versions: what a restart asks for and what it appends."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemon import Daemon
from tests.support.listed import await_equal, difference, expected_table, list_text
from tests.support.looks import is_look
from tests.support.process import wait_until
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed

pytestmark = pytest.mark.real

_OURS = "watchrelay/"


@pytest.fixture(scope="module")
def audited(real_parts: None) -> Iterator[ControlPlane]:
    with ControlPlane(audit=True) as cluster:
        yield cluster


@pytest.mark.parametrize("history", ["that reaches back", "that was compacted away"])
def test_what_was_deleted_while_the_relay_was_down_is_announced_with_a_watch_history(
    audited: ControlPlane, kafka_broker: KafkaBroker, tmp_path: Path, history: str
) -> None:
    testbed = Testbed(audited, kafka_broker, tmp_path)
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
        testbed.relay({"resource": "configmaps", "namespaces": [namespace], "id": "configmaps"}),
    )
    with testbed.reader(testbed.topic("configmaps")) as reader, relay:
        relay.await_ready()
        await_equal(audited, reader, {stream: path})
        reader.read_until("the frontier is on the log", lambda: reader.of(stream, "heartbeat"))
        relay.kill()
        reader.read()
        before, asked = len(reader.records), len(_asked(audited))
        audited.request("DELETE", f"{path}/gone")
        audited.request("PATCH", f"{path}/changed", {"data": {"v": "1"}})
        audited.request("DELETE", f"{path}/replaced")
        testbed.make(path, [{"metadata": {"name": "replaced"}}, {"metadata": {"name": "fresh"}}])
        if history == "that was compacted away":
            audited.compact()
            audited.restart_apiserver()
        _restarted(relay, stream)
        await_equal(audited, reader, {stream: path})
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
        for verb, uri in _asked(audited)[asked:]
        if (verb == "list" and not is_look(uri)) or "sendInitialEvents" in uri
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


@pytest.mark.parametrize("passed", [False, True], ids=["below", "above"])
def test_a_cluster_rebuilt_between_two_lives_is_listed(
    audited: ControlPlane, kafka_broker: KafkaBroker, tmp_path: Path, *, passed: bool
) -> None:
    """Another etcd under the same name; where its versions have passed the relay's, its watch is
    accepted and shows nothing."""
    testbed = Testbed(audited, kafka_broker, tmp_path)
    (namespace,) = testbed.namespaces(1)
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    testbed.make(path, [{"metadata": {"name": name}} for name in ("changed", "former", "gone")])
    spare, stream = f"/api/v1/namespaces/{namespace}", f"configmaps@{namespace}"
    for number in range(100):
        audited.request("PATCH", spare, {"metadata": {"labels": {"at": str(number)}}})
    testbed.make(path, [{"metadata": {"name": "last"}}])
    relay = testbed.relay({"resource": "configmaps", "namespaces": [namespace], "id": "configmaps"})
    with testbed.reader(testbed.topic("configmaps")) as reader, relay:
        relay.await_ready()
        await_equal(audited, reader, {stream: path})
        reader.read_until("the frontier is on the log", lambda: reader.of(stream, "heartbeat"))
        assert relay.stop() == 0
        reached = int(audited.request("GET", path)["metadata"]["resourceVersion"])
        audited.rebuild()
        audited.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        testbed.make(path, [{"metadata": {"name": name}} for name in ("changed", "new")])
        version = int(audited.request("GET", path)["metadata"]["resourceVersion"])
        assert version < reached
        while passed and version < reached + 20:
            audited.request("PATCH", spare, {"metadata": {"labels": {"at": str(version)}}})
            version += 1
        asked = len(_asked(audited))
        _restarted(relay, stream)
        wanted = expected_table(list_text(audited, path))

        def equal() -> bool:
            reader.read()
            return not difference(wanted, reader.table(stream))

        wait_until("the topic is what the new cluster lists", equal)
        assert relay.stop() == 0
        since = _asked(audited)[asked:]
    assert since[0][0] == "watch", "it was accepted"
    assert [uri for _, uri in since if is_look(uri)]
    assert relay.logged("restored")


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
