"""A real API server behind a bad path, or that refuses requests."""

import http.client
import json
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon
from tests.support.faultproxy import FaultProxy
from tests.support.listed import await_equal
from tests.support.looks import is_look
from tests.support.process import wait_until
from tests.support.realparts import ApiError, ControlPlane, KafkaBroker
from tests.support.testbed import Testbed

pytestmark = pytest.mark.real

_PATHS = {
    "configmaps": "/api/v1/configmaps",
    "secrets": "/api/v1/secrets",
    "services": "/api/v1/services",
}
_SOON_S = 90.0
_REJECTED = "apiserver_flowcontrol_rejected_requests_total{"
_BEGAN_ENDED = ("requestReceivedTimestamp", "stageTimestamp")


@pytest.fixture
def path(real_cluster: ControlPlane) -> Iterator[FaultProxy]:
    with FaultProxy(real_cluster.port) as proxy:
        yield proxy


def through(path: FaultProxy, testbed: Testbed, cluster: ControlPlane) -> Path:
    """A kubeconfig that leads through the proxy."""
    return cluster.write_kubeconfig(
        f"{testbed.name}-through", server=f"https://127.0.0.1:{path.port}"
    )


def cut_once(path: FaultProxy, after: int, relay: Daemon) -> None:
    """Connections are cut after so many bytes, until the relay has opened another."""
    before = path.connections
    path.cut_after(after)
    relay.wait("it connects again", lambda: path.connections > before, deadline_s=_SOON_S)
    path.heal()


@pytest.mark.long
def test_watches_that_went_silent_for_good_are_left_within_75_seconds_and_nothing_is_lost(
    testbed: Testbed, real_cluster: ControlPlane, path: FaultProxy
) -> None:
    (namespace,) = testbed.namespaces(1)
    configs = f"/api/v1/namespaces/{namespace}/configmaps"
    testbed.make(configs, [{"metadata": {"name": name}} for name in ("gone", "changed")])
    with (
        testbed.reader(testbed.topic("configmaps")) as reader,
        testbed.relay("configmaps", kubeconfig=through(path, testbed, real_cluster)) as relay,
    ):
        relay.await_ready()
        wanted = {"configmaps": _PATHS["configmaps"]}
        await_equal(real_cluster, reader, wanted)
        relay.wait(
            "a bookmark was received",
            lambda: relay.stream("configmaps").get("lastBookmark"),
            deadline_s=_SOON_S,
        )
        watches = relay.metric("watchrelay_watch_starts_total", resource="configmaps")
        assert path.freeze_open() > 0
        real_cluster.request("DELETE", f"{configs}/gone")
        real_cluster.request("PATCH", f"{configs}/changed", {"data": {"v": "1"}})
        testbed.make(configs, [{"metadata": {"name": "fresh"}}])
        relay.wait(
            "another watch",
            lambda: relay.metric("watchrelay_watch_starts_total", resource="configmaps") > watches,
            deadline_s=80.0,
        )
        await_equal(real_cluster, reader, wanted)
        assert (
            relay.metric("watchrelay_list_total", resource="configmaps", result="success") == 1
        ), "history was there: no list"
        assert relay.metric("watchrelay_missed_changes_total") == 0
        assert relay.stop() == 0
        reader.read()
    reader.assert_right("configmaps")
    assert [record.type for record in reader.about("configmaps", f"{namespace}/gone")] == [
        "added",
        "deleted",
    ]


@pytest.mark.parametrize("fault", ["cut", "delayed", "throttled", "held", "refused"])
def test_a_bad_path_to_the_api_server_costs_time_and_no_change(
    testbed: Testbed, real_cluster: ControlPlane, path: FaultProxy, fault: str
) -> None:
    wanted = {"configmaps": _PATHS["configmaps"]}
    relay = testbed.relay("configmaps", kubeconfig=through(path, testbed, real_cluster))
    with testbed.under_churn(
        relay, [testbed.topic("configmaps")], namespaces=4, operations=400, per_s=60
    ) as (churn, reader):
        churn.reach(churn.operations() + 40)
        match fault:
            case "cut":
                for after in (1000, 5000, 20_000):
                    cut_once(path, after, relay)
            case "delayed":
                path.delay(0.5)
            case "throttled":
                path.throttle(4000)
            case "held":
                path.hold()
            case _:
                path.refuse()
                relay.wait(
                    "it is reported",
                    lambda: relay.stream("configmaps").get("lastError"),
                    deadline_s=_SOON_S,
                )
                assert str(path.port) in json.dumps(relay.stream("configmaps")["lastError"])
        churn.reach(churn.operations() + 120)
        assert relay.livez() == http.client.OK
        path.heal()
        relay.wait(
            "the trouble is over",
            lambda: relay.stream("configmaps").get("lastError") is None,
            deadline_s=_SOON_S,
        )
        churn.reach(churn.operations() + 40)
        churn.finish()
        await_equal(real_cluster, reader, wanted, deadline_s=_SOON_S)
        assert relay.metric("watchrelay_missed_changes_total") == 0
        assert relay.stop() == 0
        reader.read()
    reader.assert_right("configmaps")


def _shows_error(relay: Daemon, stream: str, words: str) -> bool:
    return words in json.dumps(relay.stream(stream).get("lastError"))


def _untroubled(relay: Daemon, stream: str) -> bool:
    return relay.stream(stream).get("lastError") is None


def _refused(cluster: ControlPlane, token: str) -> bool:
    try:
        cluster.request("GET", "/api/v1/services", token=token)
    except ApiError as error:
        return error.status == http.client.UNAUTHORIZED
    return False


def test_a_token_that_is_no_longer_good_holds_up_every_stream_and_its_file_alone_mends_them(
    testbed: Testbed, real_cluster: ControlPlane, path: FaultProxy, tmp_path: Path
) -> None:
    (namespace,) = testbed.namespaces(1)
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/relay"
    token = tmp_path / "token"
    token.write_text(real_cluster.service_account_token(namespace, "relay"))
    real_cluster.grant(
        namespace,
        "relay",
        [{"apiGroups": [""], "resources": ["configmaps", "services"], "verbs": ["list", "watch"]}],
    )
    kubeconfig = tmp_path / "by-file.kubeconfig"
    config = json.loads(through(path, testbed, real_cluster).read_text())
    config["users"][0]["user"] = {"tokenFile": str(token)}
    kubeconfig.write_text(json.dumps(config))
    streams = {stream: _PATHS[stream] for stream in ("configmaps", "services")}
    with (
        testbed.reader(*map(testbed.topic, streams)) as reader,
        testbed.relay(*streams, kubeconfig=kubeconfig) as relay,
    ):
        relay.await_ready()
        await_equal(real_cluster, reader, streams)
        path.refuse()
        real_cluster.request("DELETE", account)
        wait_until(
            "the API server has forgotten that the token was good",
            partial(_refused, real_cluster, token.read_text()),
        )
        testbed.make(
            f"/api/v1/namespaces/{namespace}/configmaps", [{"metadata": {"name": "meanwhile"}}]
        )
        path.heal()
        for stream in streams:
            relay.wait(
                "401 is reported", partial(_shows_error, relay, stream, "401"), deadline_s=_SOON_S
            )
        assert relay.livez() == http.client.OK
        fresh = real_cluster.service_account_token(namespace, "relay")
        token.write_text(fresh)
        for stream in streams:
            relay.wait("it goes on", partial(_untroubled, relay, stream), deadline_s=_SOON_S)
        await_equal(real_cluster, reader, streams)
        assert relay.metric("watchrelay_list_total", result="success") == len(streams), (
            "history was there: no list"
        )
        assert fresh not in json.dumps(relay.lines()), "a token was logged"
        assert relay.stop() == 0
        reader.read()
    reader.assert_right(*streams)


@contextmanager
def turned_away(cluster: ControlPlane, namespace: str, user: str, token: str) -> Iterator[None]:
    """In the block each request of `user` is answered with 429: priority and fairness has no queue
    and one seat for it, and on that sits a list that its client does not read.
    """
    many = f"/api/v1/namespaces/{namespace}/configmaps"
    for number in range(12):  # more than the buffers of a connection hold
        cluster.request(
            "POST", many, {"metadata": {"name": f"large-{number}"}, "data": {"text": "x" * 900_000}}
        )
    level, schema = (
        f"/apis/flowcontrol.apiserver.k8s.io/v1/{plural}"
        for plural in ("prioritylevelconfigurations", "flowschemas")
    )
    limited = {
        "nominalConcurrencyShares": 0,
        "lendablePercent": 0,
        "borrowingLimitPercent": 0,
        "limitResponse": {"type": "Reject"},
    }
    cluster.request(
        "POST",
        level,
        {"metadata": {"name": namespace}, "spec": {"type": "Limited", "limited": limited}},
    )
    everything = {
        "verbs": ["*"],
        "apiGroups": ["*"],
        "resources": ["*"],
        "clusterScope": True,
        "namespaces": ["*"],
    }
    rule = {"subjects": [{"kind": "User", "user": {"name": user}}], "resourceRules": [everything]}
    spec = {
        "priorityLevelConfiguration": {"name": namespace},
        "matchingPrecedence": 2,
        "rules": [rule],
    }
    cluster.request("POST", schema, {"metadata": {"name": namespace}, "spec": spec})
    context = ssl.create_default_context(cafile=str(cluster.ca))
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", cluster.port))
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as sitting:
            asked = (
                f"GET {many} HTTP/1.1\r\nHost: kube\r\nAuthorization: Bearer "
                f"{token}\r\nAccept: application/json\r\n\r\n"
            )
            try:
                wait_until(
                    "the schema counts",
                    lambda: f'flow_schema="{namespace}"' in str(_probed(cluster, many, token)),
                )
                sitting.sendall(asked.encode())
                wait_until(
                    "the account is turned away",
                    lambda: _probed(cluster, many, token)[0] == http.client.TOO_MANY_REQUESTS,
                )
                yield
            finally:
                cluster.request("DELETE", f"{schema}/{namespace}")
                cluster.request("DELETE", f"{level}/{namespace}")


def _probed(cluster: ControlPlane, path: str, token: str) -> tuple[int, str]:
    """The status of a request, and the server's metrics behind it."""
    status = http.client.OK
    try:
        cluster.request("GET", f"{path}?limit=1", token=token)
    except ApiError as error:
        status = error.status
    return status, str(cluster.request("GET", "/metrics"))


def turned_away_so_far(cluster: ControlPlane, schema: str) -> float:
    """Requests of a flow schema that the server answered with 429, by its own count."""
    counted = [
        line
        for line in str(cluster.request("GET", "/metrics")).splitlines()
        if line.startswith(_REJECTED) and f'"{schema}"' in line
    ]
    return sum(float(line.rpartition(" ")[2]) for line in counted)


def test_429_for_every_request_is_met_by_one_probe_at_a_time_and_nothing_is_listed_again(
    testbed: Testbed, real_cluster: ControlPlane, path: FaultProxy
) -> None:
    *namespaces, other = testbed.namespaces(9)
    streams = by_namespace(namespaces)
    token = real_cluster.service_account_token(other, "relay")
    real_cluster.grant(
        other,
        "relay",
        [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}],
    )
    kubeconfig = real_cluster.write_kubeconfig(
        testbed.name, token=token, server=f"https://127.0.0.1:{path.port}"
    )
    with (
        testbed.reader(testbed.topic("configmaps")) as reader,
        testbed.relay(
            {"resource": "configmaps", "namespaces": namespaces}, kubeconfig=kubeconfig
        ) as relay,
    ):
        relay.await_ready()
        testbed.make(streams[f"configmaps@{namespaces[0]}"], [{"metadata": {"name": "gone"}}])
        await_equal(real_cluster, reader, streams)
        with turned_away(real_cluster, other, f"system:serviceaccount:{other}:relay", token):
            before, cut_s = turned_away_so_far(real_cluster, other), time.monotonic()
            path.refuse()
            path.heal()
            real_cluster.request("DELETE", f"{streams[f'configmaps@{namespaces[0]}']}/gone")
            for collection in streams.values():
                testbed.make(collection, [{"metadata": {"name": "meanwhile"}}])
            relay.wait(
                "two were turned away",
                lambda: turned_away_so_far(real_cluster, other) >= before + 2,
                deadline_s=_SOON_S,
            )
            # One probe a closure: the first 0.8 s after the cut at the earliest, the second 1.6 s
            # behind it.
            assert time.monotonic() - cut_s >= 0.8 + 1.6
            assert turned_away_so_far(real_cluster, other) == before + 2, (
                "eight streams, but more than one probe at a time"
            )
            rows = relay.api_streams()
            assert {row["state"] for row in rows.values()} == {"backoff"}
            assert any("429" in json.dumps(row["lastError"]) for row in rows.values())
            assert relay.metric("watchrelay_endpoint_gate_closed") == 1
            assert relay.livez() == http.client.OK
        await_equal(real_cluster, reader, streams, deadline_s=_SOON_S)
        looks = relay.metric("watchrelay_kube_requests_total", code="200", verb="list")
        assert looks <= len(streams), "one object each at most, of those that could not connect"
        assert relay.metric("watchrelay_list_total", result="success") == len(streams), (
            "history was there: no list"
        )
        assert relay.metric("watchrelay_missed_changes_total") == 0
        assert relay.stop() == 0
        reader.read()
    reader.assert_right(*streams)


def by_namespace(namespaces: list[str]) -> dict[str, str]:
    """The streams of config maps in these namespaces, and what each must equal."""
    return {f"configmaps@{name}": f"/api/v1/namespaces/{name}/configmaps" for name in namespaces}


def lists(cluster: ControlPlane, since: int) -> list[tuple[float, float, int]]:
    """When each list of config maps came and ended, and with which code, by the audit log behind
    its first entries. Units: seconds."""
    made = [
        entry
        for entry in cluster.audit_entries()[since:]
        if entry["verb"] == "list"
        and not is_look(entry["requestURI"])
        and entry["objectRef"]["resource"] == "configmaps"
        and entry["userAgent"].startswith("watchrelay/")
    ]
    return sorted(
        (*map(partial(_moment_s, entry), _BEGAN_ENDED), entry["responseStatus"]["code"])
        for entry in made
    )


def _moment_s(entry: dict[str, Any], which: str) -> float:
    return datetime.fromisoformat(entry[which]).timestamp()


def asked_for(requests: list[tuple[float, float, int]]) -> list[float]:
    """When lists began, without those that the HTTP client sends once more by itself, and only
    once: as the server closes the connection of a list whose time is up."""
    began, closed = list[float](), list[float]()
    for began_s, ended_s, _ in sorted(requests):
        again = next((each for each in closed if 0.0 <= began_s - each < 0.1), None)
        if again is None:
            began.append(began_s)
            closed.append(ended_s)
        else:
            closed.remove(again)
    return began


def test_504_for_every_list_is_met_by_less_than_a_request_a_second_and_caught_up_with(
    real_parts: None, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    # Without its etcd the server keeps watches open, and holds each list until its time is up.
    with ControlPlane(audit=True, apiserver_flags=["--request-timeout=2s"]) as cluster:
        testbed = Testbed(cluster, kafka_broker, tmp_path)
        namespaces = testbed.namespaces(8)
        streams = by_namespace(namespaces)
        entry = {
            "resource": "configmaps",
            "namespaces": namespaces,
            "initialList": "paged",
            "relistInterval": "4s",
        }
        with testbed.reader(testbed.topic("configmaps")) as reader, testbed.relay(entry) as relay:
            relay.await_ready()
            testbed.make(streams[f"configmaps@{namespaces[0]}"], [{"metadata": {"name": "gone"}}])
            await_equal(cluster, reader, streams)
            since = len(cluster.audit_entries())
            cluster.kill("etcd")

            def failed() -> list[tuple[float, float, int]]:
                return [
                    each for each in lists(cluster, since) if each[2] >= http.client.BAD_REQUEST
                ]

            relay.wait(
                "the circuit opens",
                lambda: relay.metric("watchrelay_endpoint_gate_closed") == 1,
                deadline_s=_SOON_S,
            )
            opened_s = time.time()

            def afterwards_s() -> list[float]:
                return [began_s - opened_s for began_s, _, _ in failed() if began_s > opened_s]

            relay.wait(
                "probes fail", lambda: max(afterwards_s(), default=0.0) > 8.0, deadline_s=_SOON_S
            )
            after_s = [each - opened_s for each in asked_for(failed()) if each > opened_s]
            assert len(after_s) <= afterwards_s()[-1], (
                f"eight streams, but one probe at a time: {after_s}"
            )
            relay.wait(
                "the row says so",
                lambda: "504" in json.dumps(relay.api_streams()),
                deadline_s=_SOON_S,
            )
            assert relay.metric("watchrelay_endpoint_gate_closed") == 1
            relay.wait(
                "they stay away",
                lambda: "backoff" in {row["state"] for row in relay.api_streams().values()},
                deadline_s=_SOON_S,
            )
            assert relay.livez() == http.client.OK
            cluster.relaunch("etcd")
            cluster.wait_for(
                "it takes writes",
                partial(
                    cluster.request, "DELETE", f"{streams[f'configmaps@{namespaces[0]}']}/gone"
                ),
            )
            for collection in streams.values():
                testbed.make(collection, [{"metadata": {"name": "afterwards"}}])
            await_equal(cluster, reader, streams, deadline_s=_SOON_S)
            assert relay.stop() == 0
            reader.read()
        reader.assert_right(*streams)
