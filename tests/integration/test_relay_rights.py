"""Service accounts with few rights, resources that come and go: one stream waits, the others go
on."""

import http.client
import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.churn import GROUP, widget, widget_definition
from tests.support.controlplane import assert_only_listed_and_watched
from tests.support.daemon import Daemon, command
from tests.support.listed import await_equal, redacted_data
from tests.support.realparts import ApiError, ControlPlane, KafkaBroker
from tests.support.testbed import Testbed
from tests.support.topicreader import TopicReader

pytestmark = pytest.mark.real

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_HEALED_S = 75.0


@pytest.fixture
def audited(real_parts: None) -> Iterator[ControlPlane]:
    with ControlPlane(audit=True) as cluster:
        yield cluster


def _rule(group: str, *resources: str) -> dict[str, list[str]]:
    return {"apiGroups": [group], "resources": list(resources), "verbs": ["list", "watch"]}


def _define(cluster: ControlPlane, plural: str, kind: str) -> None:
    cluster.apply(f"{_DEFINITIONS}/{plural}.{GROUP}", widget_definition(plural, kind))
    cluster.wait_for(
        f"{plural} are served", lambda: cluster.request("GET", f"/apis/{GROUP}/v1/{plural}")
    )


def _undefine(cluster: ControlPlane, plural: str) -> None:
    cluster.request("DELETE", f"{_DEFINITIONS}/{plural}.{GROUP}")

    def gone() -> bool:
        try:
            cluster.request("GET", f"{_DEFINITIONS}/{plural}.{GROUP}")
        except ApiError as error:
            return error.status == http.client.NOT_FOUND
        return False

    cluster.wait_for(f"{plural} are gone", gone)


def _waits(relay: Daemon, stream: str) -> bool:
    row = relay.stream(stream)
    return row.get("state") == "waiting" and bool(row.get("waitsFor"))


def test_a_missing_right_and_a_missing_resource_hold_up_one_stream_each_until_they_are_there(
    testbed: Testbed, real_cluster: ControlPlane
) -> None:
    (namespace,) = testbed.namespaces(1)
    token = real_cluster.service_account_token(namespace, "relay")
    rules = [_rule("", "configmaps"), _rule(GROUP, "gadgets")]
    real_cluster.grant(namespace, "relay", rules)
    kubeconfig = real_cluster.write_kubeconfig(f"{testbed.name}-relay", token=token)
    gadgets = f"gadgets.{GROUP}"
    relay = testbed.relay(
        "configmaps", "secrets", gadgets, "nosuch.example.org", kubeconfig=kubeconfig
    )
    topics = [
        testbed.topic("configmaps"),
        testbed.topic("secrets"),
        testbed.topic("gadgets", GROUP),
    ]
    with relay, testbed.reader(topics[0]) as reader:
        relay.await_ready()
        for stream in ("secrets", gadgets, "nosuch.example.org"):
            relay.wait(f"{stream} is shown as waiting", partial(_waits, relay, stream))
        _, body = relay.readyz()
        refusal = str(body["streams"]["secrets"]["reason"])
        for word in ("secrets", "list"):
            assert word in refusal, "the missing rule is not named"
        assert f"{namespace}:relay" in refusal or "forbidden" in refusal or "403" in refusal
        assert GROUP in str(body["streams"][gadgets])
        assert "example.org" in str(body["streams"]["nosuch.example.org"])
        assert relay.stream("secrets")["lastError"]["message"]
        assert relay.stream("secrets")["nextAttempt"]
        assert [
            line for line in relay.logged("secrets") if line["level"] in {"warning", "error"}
        ], "the log does not name it"
        await_equal(real_cluster, reader, {"configmaps": "/api/v1/configmaps"})
        testbed.make(
            f"/api/v1/namespaces/{namespace}/configmaps",
            [{"metadata": {"name": "while-others-wait"}}],
        )
        await_equal(real_cluster, reader, {"configmaps": "/api/v1/configmaps"})

        real_cluster.grant(namespace, "relay", [*rules, _rule("", "secrets")])
        _define(real_cluster, "gadgets", "Gadget")
        gadget = {**widget("g", random.Random(1)), "kind": "Gadget"}
        testbed.make(f"/apis/{GROUP}/v1/namespaces/{namespace}/gadgets", [gadget])
        relay.wait(
            "both heal",
            lambda: all(relay.stream(at).get("state") == "watching" for at in ("secrets", gadgets)),
            deadline_s=_HEALED_S,
        )
        assert _waits(relay, "nosuch.example.org")
        with testbed.reader(*topics[1:]) as healed:
            wanted: dict[str, Any] = {
                "secrets": ("/api/v1/secrets", redacted_data),
                gadgets: f"/apis/{GROUP}/v1/gadgets",
            }
            await_equal(real_cluster, healed, wanted)
            assert healed.table(gadgets)
            _undefine(real_cluster, "gadgets")
            _assert_emptied(relay, healed, gadgets)
            _define(real_cluster, "gadgets", "Gadget")
            testbed.make(f"/apis/{GROUP}/v1/namespaces/{namespace}/gadgets", [gadget])
            healed.read_until(
                "the resource that came back is followed",
                lambda: healed.table(gadgets),
                deadline_s=_HEALED_S,
            )
            await_equal(real_cluster, healed, wanted)
            _undefine(real_cluster, "gadgets")
            assert relay.stop() == 0
            healed.read()
            healed.assert_right("secrets", gadgets)
        reader.read()
    reader.assert_right("configmaps")


def _relayed(reader: TopicReader, key: str) -> bool:
    return any(key in str(each) for each in reader.table("configmaps"))


def _assert_emptied(relay: Daemon, reader: TopicReader, stream: str) -> None:
    reader.read_until("the deletes are announced", lambda: not reader.table(stream))
    assert [record.type for record in reader.of(stream) if record.is_object] == ["added", "deleted"]
    relay.wait(
        "the stream waits for its resource", lambda: _waits(relay, stream), deadline_s=_HEALED_S
    )
    assert relay.readyz()[0] == http.client.OK


def test_an_api_server_that_restarts_refuses_for_a_moment_and_no_stream_asks_for_a_person(
    testbed: Testbed, real_cluster: ControlPlane
) -> None:
    (namespace,) = testbed.namespaces(1)
    paths = {
        "configmaps": "/api/v1/configmaps",
        "nodes": "/api/v1/nodes",
        "services": "/api/v1/services",
    }
    token = real_cluster.service_account_token(namespace, "relay")
    real_cluster.grant(namespace, "relay", [_rule("", *paths)])
    kubeconfig = real_cluster.write_kubeconfig(f"{testbed.name}-relay", token=token)
    relay = testbed.relay(*paths, kubeconfig=kubeconfig)
    with relay, testbed.reader(*testbed.topics(*paths)) as reader:
        relay.await_ready()
        since = relay.log_bytes
        for number in range(3):
            real_cluster.kill_apiserver()
            real_cluster.restart_apiserver()
            name = f"restart-{number}"
            testbed.make(
                f"/api/v1/namespaces/{namespace}/configmaps", [{"metadata": {"name": name}}]
            )
            reader.read_until(
                "its change is relayed", partial(_relayed, reader, f"{namespace}/{name}")
            )
        lines = relay.lines(since=since)
        assert [
            line for line in lines if line.get("state") == "waiting" or line["level"] == "error"
        ] == []
        assert relay.stop() == 0


def test_the_rights_that_rbac_prints_are_all_that_run_needs_and_all_that_it_uses(
    audited: ControlPlane, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    testbed = Testbed(audited, kafka_broker, tmp_path)
    one, two = testbed.namespaces(2)
    _define(audited, "widgets", "Widget")
    resources = [
        "configmaps",
        {"resource": "secrets", "namespaces": [one, two]},
        f"widgets.{GROUP}",
        "nodes",
        {"resource": "deploy", "namespaces": [two]},
    ]
    relay = testbed.relay(*resources, kubeconfig=tmp_path / "relay.kubeconfig")
    printed = command("rbac", "-c", relay.file, "--service-account", f"{one}/relay")
    assert printed.code == 0, printed.stderr
    audited.kubectl("apply", "-f", "-", stdin=printed.stdout)
    token = audited.service_account_token(one, "relay")
    (tmp_path / "relay.kubeconfig").write_bytes(
        audited.write_kubeconfig(f"{testbed.name}-sa", token=token).read_bytes()
    )
    testbed.make(
        f"/api/v1/namespaces/{one}/secrets", [{"metadata": {"name": "s"}, "data": {"a": "YQ=="}}]
    )
    testbed.make(f"/apis/{GROUP}/v1/namespaces/{two}/widgets", [widget("w", random.Random(1))])
    validated = command("validate", "--connect", "-c", relay.file)
    assert validated.code == 0, validated.stdout + validated.stderr
    with (
        relay,
        testbed.reader(
            testbed.topic("configmaps"), testbed.topic("secrets"), testbed.topic("widgets", GROUP)
        ) as reader,
    ):
        relay.await_ready()
        rows = relay.api_streams()
        assert {row["state"] for row in rows.values()} == {"watching"}, rows
        assert set(rows) == {
            "configmaps",
            f"secrets@{one}",
            f"secrets@{two}",
            f"widgets.{GROUP}",
            "nodes",
            f"deployments.apps@{two}",
        }
        wanted: dict[str, Any] = {
            "configmaps": "/api/v1/configmaps",
            f"widgets.{GROUP}": f"/apis/{GROUP}/v1/widgets",
        }
        wanted[f"secrets@{one}"] = (f"/api/v1/namespaces/{one}/secrets", redacted_data)
        await_equal(audited, reader, wanted)
        assert relay.stop() == 0
    assert_only_listed_and_watched(audited, f"system:serviceaccount:{one}:relay")
    granted = json.loads(
        audited.kubectl(
            "get",
            "clusterroles,roles",
            "-A",
            "-l",
            "app.kubernetes.io/name=watchrelay",
            "-o",
            "json",
        )
    )
    assert granted["items"], "the roles do not carry the name of the program"
    verbs = {verb for role in granted["items"] for rule in role["rules"] for verb in rule["verbs"]}
    assert verbs <= {"list", "watch"}
