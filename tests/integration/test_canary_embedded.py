"""Canaries in Secrets and in credentials, against the program as it runs: no file, page, topic or
command of it shows one.

Input: the embedded parts, a daemon at debug level. Output: everything that it
and its commands print.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.canary import CANARIES, b64, leaked
from tests.support.daemon import Daemon, command
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.extent import few
from tests.support.testbed import Testbed
from tests.support.topicreader import TopicReader, read_control
from watchrelay.model.paths import LAST_APPLIED

TOKEN = "canary-of-a-bearer-token"


@pytest.fixture
def testbed(cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path) -> Testbed:
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics("secrets")
    return testbed


def secret(name: str, revision: int) -> dict[str, Any]:
    applied = json.dumps({"data": {"password": b64(CANARIES["applied"])}})
    metadata = {"name": name, "annotations": {LAST_APPLIED: applied, "revision": str(revision)}}
    return {
        "metadata": metadata,
        "data": {"password": b64(CANARIES["data"])},
        "stringData": {"token": CANARIES["stringData"]},
    }


def kubeconfig_with_token(cluster: EmbeddedCluster, tmp_path: Path) -> Path:
    config = json.loads(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": TOKEN}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


def live(testbed: Testbed, cluster: EmbeddedCluster, relay: Daemon) -> dict[str, str]:
    """List, watch, a relist after lost history, errors, a snapshot on request; a restart that
    resumes. What the admin server showed meanwhile."""
    (namespace,) = testbed.namespaces(1)
    path = f"/api/v1/namespaces/{namespace}/secrets"
    testbed.make(path, [secret(f"s{number}", 0) for number in range(20)])
    shown: dict[str, str] = {}

    def look() -> None:
        for page in ("/", "/readyz", "/metrics", "/api/streams", "/nothing-here"):
            shown[page] = shown.get(page, "") + relay._get(page)[1]

    def change(revision: int) -> None:
        for number in range(20):
            held = cluster.request("GET", f"{path}/s{number}")
            held["metadata"]["annotations"]["revision"] = str(revision)
            held["data"] = secret(f"s{number}", revision)["data"]
            cluster.request("PUT", f"{path}/s{number}", held)

    with relay:
        relay.await_ready()
        change(1)
        relay.wait(
            "the watch brought it",
            lambda: relay.metric("watchrelay_records_acked_total", kind="event") >= 20,
        )
        look()
        cluster.do(
            lambda: cluster.server.behaviour.forbidden.update(
                {("list", "secrets"), ("watch", "secrets")}
            )
        )
        cluster.kill()
        cluster.restart()
        cluster.forget()
        relay.wait("the stream is held up", lambda: relay.stream("secrets").get("lastError"))
        look()
        assert relay.stop() == 0
    cluster.do(cluster.server.behaviour.forbidden.clear)
    change(2)
    with relay:
        relay.await_ready()
        asked = command("snapshot", "-c", relay.file, "secrets")
        shown["snapshot"] = asked.stdout + asked.stderr
        assert asked.code == 0, shown["snapshot"]
        look()
        assert relay.stop() == 0
    return shown


def topics_of(testbed: Testbed, *, objects: int) -> bytes:
    """All bytes of the topics, once each of so many objects was published three times: by the list,
    by the watch, and by what came after."""
    with TopicReader(testbed.broker.bootstrap, testbed.topic("secrets")) as reader:
        reader.read_until(
            "all was published",
            lambda: len(reader.of("secrets", "added", "modified", "read")) >= 3 * objects,
        )
        raw = [record.raw for record in reader.records]
    text = b"".join(
        (each.key or b"") + (each.value or b"") + repr(each.headers).encode() for each in raw
    )
    return text + repr(read_control(testbed.broker.bootstrap, testbed.control_topic)).encode()


@pytest.mark.parametrize("named", few([True, False], 1))
def test_canaries_stay_home_in_all_that_the_program_writes_shows_and_prints(
    testbed: Testbed, cluster: EmbeddedCluster, named: bool
) -> None:
    """Likewise at debug level; and the same look finds them on the topic, and only there, once the
    config names them."""
    entry = {"resource": "secrets", "ignoreChanges": ["metadata.labels"]} | (
        {"includeSecretData": True, "keepLastApplied": True} if named else {}
    )
    kubeconfig = kubeconfig_with_token(cluster, testbed.directory)
    relay = testbed.relay(entry, kubeconfig=kubeconfig, observe={"logLevel": "debug"})
    shown = live(testbed, cluster, relay)
    shown["log"] = "\n".join(json.dumps(line, ensure_ascii=False) for line in relay.lines())
    for name, arguments in {
        "tail": ("tail", "--from-beginning", "--until-end", "--output", "text"),
        "verify": ("verify", "--cluster", "--output", "json"),
        "validate": ("validate", "--connect"),
    }.items():
        done = command(
            *arguments, "-c", relay.file, environment={"WATCHRELAY_OBSERVE__LOG_LEVEL": "debug"}
        )
        assert done.code == 0, done.stdout + done.stderr
        shown[name] = done.stdout + done.stderr
    assert "debug" in {line["level"] for line in relay.lines()}
    assert {name: found for name, text in shown.items() if (found := leaked(text.encode()))} == {}
    assert {name for name, text in shown.items() if TOKEN in text or b64(TOKEN) in text} == set()
    on_topic = topics_of(testbed, objects=20)
    assert leaked(on_topic) == ({"data", "stringData", "applied"} if named else set())
    assert TOKEN.encode() not in on_topic
