"""The program with `ignoreChanges` and `publishWhen`: which changes reach the topic, across kills,
lists and edits."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.support.controlplane import ApiError
from tests.support.daemon import Daemon, assert_verified
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.process import wait_until
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed
from tests.support.topicreader import TopicReader

NODES = 200
BEAT = "status.conditions[*].lastHeartbeatTime"


@pytest.fixture
def testbed(cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path) -> Testbed:
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics("configmaps")
    return testbed


def _put(testbed: Testbed, path: str, name: str, **data: str) -> None:
    body = {"metadata": {"name": name, "namespace": path.split("/")[4]}, "data": data}
    testbed.cluster.request("PUT", f"{path}/{name}", body)


def _beat(testbed: Testbed, path: str, names: list[str], beat: int) -> None:
    for name in names:
        _put(testbed, path, name, n="0", beat=str(beat))


def _ignored(relay: Daemon) -> float:
    return relay.metric("watchrelay_events_filtered_total", reason="ignored")


def _lists(relay: Daemon) -> float:
    return relay.metric("watchrelay_list_total", result="success")


def _wait_for_more(relay: Daemon, counted: Callable[[Daemon], float], more: int) -> None:
    seen = counted(relay)
    relay.wait(f"{more} more by {counted.__name__}", lambda: counted(relay) >= seen + more)


def _published(reader: TopicReader, stream: str, since: int) -> list[tuple[str, str, str]]:
    return [
        (record.type, record.key.decode().partition("/")[2], record.headers["ce_wrreason"])
        for record in reader.records[since:]
        if record.is_object and record.stream == stream
    ]


def _until_proven(reader: TopicReader, stream: str, relay: Daemon) -> int:
    """The number of records, once heartbeats of this life have proven all before."""
    reader.read()
    before = len(reader.records)
    reader.read_until(
        "heartbeats follow",
        lambda: any(
            record.type == "heartbeat" and record.stream == stream
            for record in reader.records[before:]
        ),
    )
    assert relay.alive
    return len(reader.records)


def test_changes_that_do_not_count_are_left_out_across_a_kill_lists_and_an_edit(
    testbed: Testbed,
) -> None:
    (namespace,) = testbed.namespaces(1)
    path, names = f"/api/v1/namespaces/{namespace}/configmaps", [f"c{each}" for each in range(8)]
    testbed.make(path, [{"metadata": {"name": name}, "data": {"n": "0"}} for name in names])
    entry = {"resource": "configmaps", "ignoreChanges": ["data.beat"], "relistInterval": "1s"}
    relay = testbed.relay(entry)
    with testbed.reader(testbed.topic("configmaps")) as reader, relay:
        relay.await_ready()
        since = _until_proven(reader, "configmaps", relay)
        _beat(testbed, path, names, 1)
        relay.wait("all are counted", lambda: _ignored(relay) == 8)
        assert relay.stream("configmaps")["changesThatCount"] == "all but data.beat"
        lists = relay.metric("watchrelay_list_total", result="success")
        relay.wait(
            "lists are made",
            lambda: relay.metric("watchrelay_list_total", result="success") >= lists + 2,
        )
        assert relay.metric("watchrelay_missed_changes_total") == 0
        assert_verified(relay)
        relay.kill()
        _beat(testbed, path, names, 2)
        _put(testbed, path, "c3", n="changed")
        relay.start().await_ready()
        reader.read_until(
            "what counts is published", lambda: _published(reader, "configmaps", since)
        )
        _until_proven(reader, "configmaps", relay)
        assert _published(reader, "configmaps", since) == [("modified", "c3", "watch")]
        assert_verified(relay)
        since = len(reader.records)
        relay.stop()
    edited = testbed.relay({"resource": "configmaps"}, name="edited")
    with testbed.reader(testbed.topic("configmaps")) as reader, edited:
        edited.await_ready()
        reader.read_until(
            "the rest is published in full",
            lambda: (
                {
                    name
                    for _, name, reason in _published(reader, "configmaps", since)
                    if reason == "resume"
                }
                == set(names) - {"c3"}
            ),
        )
        edited.stop()
    reader.assert_right("configmaps")


# ---- a real API server ---------------------------------------------------------------------------


class _Heartbeats:
    """Kubelets: every node's status again and again, with a new time each; `ready` now and then
    changes, which counts."""

    def __init__(self, cluster: ControlPlane, names: list[str]) -> None:
        self._cluster, self._names = cluster, names
        self._stop = threading.Event()
        self.rounds = 0
        self._thread = threading.Thread(target=self._run, name="kubelets")
        self.failed: Exception | None = None

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self.rounds += 1
                for name in self._names:
                    self.beat(
                        name, f"2026-01-01T{self.rounds // 60 % 24:02}:{self.rounds % 60:02}:00Z"
                    )
                    if self._stop.is_set():
                        return
        except (OSError, HTTPException, ApiError) as error:
            self.failed = error

    def beat(self, name: str, at: str, ready: str = "True") -> None:
        """One heartbeat."""
        condition = {"type": "Ready", "status": ready, "lastHeartbeatTime": at, "reason": "Kubelet"}
        body = {"status": {"conditions": [condition]}}
        self._cluster.request("PATCH", f"/api/v1/nodes/{name}/status", body)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """They beat meanwhile."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()
            assert self.failed is None


def _counted(value: bytes | str) -> Any:
    """What counts of a node that is published or listed."""
    node = json.loads(value)
    for key in ("resourceVersion", "generation", "managedFields"):
        node["metadata"].pop(key, None)
    for condition in node["status"].get("conditions", []):
        condition.pop("lastHeartbeatTime", None)
    return {key: node[key] for key in ("metadata", "spec", "status")}


def _holds(cluster: ControlPlane, reader: TopicReader) -> bool:
    listed = cluster.request("GET", "/api/v1/nodes")["items"]
    wanted = {
        f"/{node['metadata']['name']}".encode(): _counted(json.dumps(node)) for node in listed
    }
    reader.read()
    found = {key: _counted(value) for key, value in reader.table("nodes").items()}
    return found == wanted and bool(reader.proven("nodes"))


def _signalled(reader: TopicReader, stream: str) -> bool:
    return any(b'"signal":"1"' in each for each in reader.table(stream).values())


def test_a_change_of_only_what_is_dropped_is_published_where_the_config_asks_for_it(
    testbed: Testbed,
) -> None:
    path = testbed.config_maps(1)
    testbed.broker.create_topic(testbed.topic("loud"), partitions=3)
    quiet = {"resource": "configmaps", "drop": ["data.noise"]}
    loud = {**quiet, "id": "loud", "topic": testbed.topic("loud"), "suppressUnchanged": False}
    with (
        testbed.relay(quiet, loud) as relay,
        testbed.reader(*testbed.topics("configmaps", "loud")) as reader,
    ):
        relay.await_ready()
        for number in range(3):
            _put(testbed, path, "c0", noise=str(number), signal=str(number // 2))
        for stream, changes in (("configmaps", 2), ("loud", 3)):
            reader.read_until("the last change is there", partial(_signalled, reader, stream))
            assert [each[0] for each in _published(reader, stream, 0)] == [
                "added",
                *["modified"] * changes,
            ]
        assert relay.stop() == 0


@pytest.mark.real
def test_heartbeats_of_200_nodes_are_left_out_and_nothing_else_across_kills_and_lists(
    real_parts: None, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    with ControlPlane() as cluster:
        testbed = Testbed(cluster, kafka_broker, tmp_path)
        names = [f"node-{number:03}" for number in range(NODES)]
        testbed.make("/api/v1/nodes", [{"metadata": {"name": name}} for name in names])
        kubelets = _Heartbeats(cluster, names)
        for name in names:
            kubelets.beat(name, "2025-12-31T00:00:00Z")
        relay = testbed.relay(
            {"resource": "nodes", "ignoreChanges": [BEAT], "relistInterval": "5s"}
        )
        with testbed.reader(testbed.topic("nodes")) as reader, relay:
            relay.await_ready()
            since = _until_proven(reader, "nodes", relay)
            with kubelets.beating():
                for turn in range(3):
                    _wait_for_more(relay, _ignored, 100)
                    if turn == 1:
                        _wait_for_more(relay, _lists, 3)
                    assert relay.metric("watchrelay_missed_changes_total") == 0
                    relay.kill()  # between a change that was left out and the next one
                    changed = {"metadata": {"labels": {"turn": str(turn)}}}
                    cluster.request("PATCH", f"/api/v1/nodes/{names[turn]}", changed)
                    relay.start().await_ready()
                    cluster.request("PATCH", f"/api/v1/nodes/{names[turn + 10]}", changed)
            wait_until(
                "the topic holds what counts of the cluster", lambda: _holds(cluster, reader)
            )
            assert kubelets.rounds >= 1
            assert relay.metric("watchrelay_missed_changes_total") == 0
            assert_verified(relay)
            assert relay.stop() == 0
            reader.read()
        published = [name for _, name, _ in _published(reader, "nodes", since)]
        wanted = [names[place + turn] for turn in range(3) for place in (0, 10)]
        assert sorted(published) == sorted(wanted), "each change that counts, and no heartbeat"
        reader.assert_right("nodes")
