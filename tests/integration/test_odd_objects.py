"""Objects that are odd but well-formed, from a server to the readers: they end nothing, and the
topics end right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon, command
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.extent import few
from tests.support.testbed import Testbed
from watchrelay.kube.frame import DEPTH_MAX


@pytest.fixture
def testbed(cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path) -> Testbed:
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics("configmaps", "secrets")
    return testbed


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def odd(name: str, levels: int) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {"n": nested(levels)}}


def verified(relay: Daemon, *expected: str) -> None:
    """`verify` proves every stream, and the topic of config maps holds these names."""
    proof = command("verify", "-c", relay.file)
    assert proof.code == 0, proof.stdout + proof.stderr
    shown = command(
        "tail",
        "-c",
        relay.file,
        "configmaps",
        "--from-beginning",
        "--until-end",
        "--output",
        "json",
    )
    assert shown.code == 0, shown.stderr
    newest = {record["key"].rpartition("/")[2]: record["type"] for record in shown.objects()}
    assert {name for name, verb in newest.items() if verb != "deleted"} == set(expected)


def compared(relay: Daemon, problems: dict[str, str | None]) -> None:
    """`verify --cluster` finds these problems of the config maps, by kind and key, and no
    others."""
    proof = command(
        "verify", "-c", relay.file, "--cluster", "--output", "json", "configmaps", timeout_s=120.0
    )
    found = {
        problem["kind"]: problem["key"]
        for row in proof.objects()
        for problem in row.get("problems", ())
    }
    assert (proof.code != 0, found) == (True, problems), proof.stdout + proof.stderr


@pytest.mark.parametrize("format_", few(["cloudevents", "structured", "debezium"], 1))
def test_an_object_nested_too_deeply_is_left_out_and_everything_else_is_right_and_proven(
    testbed: Testbed, cluster: EmbeddedCluster, format_: str
) -> None:
    (namespace,) = testbed.namespaces(1)
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    testbed.make(
        path,
        [
            odd("deep", DEPTH_MAX + 200),
            odd("becomes", 3),
            odd("plain", DEPTH_MAX - 10),
            odd("goes", 3),
        ],
    )
    entries = [{"resource": "configmaps", "drop": ["data.x"], "redact": ["data.n.b"]}, "secrets"]
    relay = testbed.relay(*entries, kafka={"format": format_})
    with relay:
        relay.await_ready()
        become = cluster.request("GET", f"{path}/becomes")
        cluster.request(
            "PUT", f"{path}/becomes", {**become, "data": {"n": nested(DEPTH_MAX + 200)}}
        )
        cluster.request("DELETE", f"{path}/goes")
        testbed.make(
            f"/api/v1/namespaces/{namespace}/secrets",
            [{"metadata": {"name": f"s{number}"}} for number in range(20)],
        )
        cluster.request("DELETE", f"{path}/becomes")
        relay.wait(
            "both deletes were published", lambda: relay.stream("configmaps").get("objects") == 1
        )
        relay.wait("the other stream goes on", lambda: relay.stream("secrets").get("objects") == 20)
        assert relay.metric("watchrelay_events_filtered_total", reason="quarantined") >= 1
        verified(relay, "plain")
        deep = cluster.request("GET", f"{path}/deep")
        cluster.request("PUT", f"{path}/deep", {**deep, "data": {"n": nested(5)}})
        relay.wait(
            "the source is sane again", lambda: relay.stream("configmaps").get("objects") == 2
        )
        verified(relay, "plain", "deep")
        assert relay.stop() == 0


def test_verify_finds_a_deletion_beside_an_object_that_cannot_be_decoded(
    testbed: Testbed, cluster: EmbeddedCluster
) -> None:
    (namespace,) = testbed.namespaces(1)
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    testbed.make(path, [odd("becomes", 3), odd("goes", 3), odd("stays", 3)])
    relay = testbed.relay({"resource": "configmaps", "drop": ["data.x"]})

    def change() -> None:
        become = odd("becomes", DEPTH_MAX + 200)
        become["metadata"]["namespace"] = namespace
        cluster.registry.replace("configmaps", become)
        cluster.registry.delete("configmaps", namespace, "goes")

    with relay:
        relay.await_ready()
        cluster.unseen("configmaps", change)
        changed = cluster.request("PUT", f"{path}/stays", odd("stays", 4))
        relay.wait(
            "the watch is past it",
            lambda: (
                relay.stream("configmaps")["frontier"] == changed["metadata"]["resourceVersion"]
            ),
        )
        compared(relay, {"unreadable": None, "extra": f"{namespace}/goes"})
