"""Room: integration tests.  In: a real API server behind a bad path, or set back, or of other versions.  Out: right topics."""

import http.client
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.churn import GROUP, widget_definition
from tests.support.daemon import Daemon, command
from tests.support.faultproxy import FaultProxy
from tests.support.listed import await_equal, difference, expected_table, list_text
from tests.support.process import wait_until
from tests.support.realparts import ApiError, ControlPlane, KafkaBroker
from tests.support.trial import Trial

pytestmark = [pytest.mark.real, pytest.mark.timeout(300), pytest.mark.parametrize("kafka_broker", ["4.1"], indirect=True)]

_PATHS = {"configmaps": "/api/v1/configmaps", "secrets": "/api/v1/secrets", "services": "/api/v1/services"}
_DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.{GROUP}"
_WIDGETS = f"widgets.{GROUP}"
_SOON_S = 90.0


@pytest.fixture
def path(real_cluster: ControlPlane) -> Iterator[FaultProxy]:
    with FaultProxy(real_cluster.port) as proxy:
        yield proxy


def through(path: FaultProxy, trial: Trial, cluster: ControlPlane) -> Path:
    """A kubeconfig that leads through the proxy."""
    return cluster.write_kubeconfig(f"{trial.name}-through", server=f"https://127.0.0.1:{path.port}")


def cut_once(path: FaultProxy, after: int, relay: Daemon) -> None:
    """Connections are cut after so many bytes, until the relay has opened another."""
    before = path.connections
    path.cut_after(after)
    relay.wait("it connects again", lambda: path.connections > before, deadline_s=_SOON_S)
    path.heal()


def test_watches_that_went_silent_for_good_are_left_within_75_seconds_and_nothing_is_lost(
    trial: Trial, real_cluster: ControlPlane, path: FaultProxy
) -> None:
    (namespace,) = trial.namespaces(1)
    configs = f"/api/v1/namespaces/{namespace}/configmaps"
    trial.make(configs, [{"metadata": {"name": name}} for name in ("gone", "changed")])
    with (
        trial.reader(trial.topic("configmaps")) as reader,
        trial.relay("configmaps", kubeconfig=through(path, trial, real_cluster)) as relay,
    ):
        relay.await_ready()
        wanted = {"configmaps": _PATHS["configmaps"]}
        await_equal(real_cluster, reader, wanted)
        relay.wait("a bookmark was heard", lambda: relay.stream("configmaps").get("lastBookmark"), deadline_s=_SOON_S)
        watches = relay.metric("watchrelay_watch_starts_total", resource="configmaps")
        assert path.freeze_open() > 0
        real_cluster.request("DELETE", f"{configs}/gone")
        real_cluster.request("PATCH", f"{configs}/changed", {"data": {"v": "1"}})
        trial.make(configs, [{"metadata": {"name": "fresh"}}])
        relay.wait("another watch", lambda: relay.metric("watchrelay_watch_starts_total", resource="configmaps") > watches, deadline_s=80.0)
        await_equal(real_cluster, reader, wanted)
        assert relay.metric("watchrelay_list_total", resource="configmaps", result="success") == 1, "history was there: no list"
        assert relay.metric("watchrelay_missed_changes_total") == 0
        assert relay.stop() == 0
        reader.read()
    reader.assert_right("configmaps")
    assert [said.type for said in reader.about("configmaps", f"{namespace}/gone")] == ["added", "deleted"]


@pytest.mark.parametrize("fault", ["cut", "delayed", "throttled", "held", "refused"])
def test_a_bad_path_to_the_api_server_costs_time_and_no_change(
    trial: Trial, real_cluster: ControlPlane, path: FaultProxy, fault: str
) -> None:
    wanted = {"configmaps": _PATHS["configmaps"]}
    relay = trial.relay("configmaps", kubeconfig=through(path, trial, real_cluster))
    with trial.under_churn(relay, [trial.topic("configmaps")], namespaces=4, operations=400, per_s=60) as (churn, reader):
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
                relay.wait("it is told", lambda: relay.stream("configmaps").get("lastError"), deadline_s=_SOON_S)
                assert str(path.port) in json.dumps(relay.stream("configmaps")["lastError"])
        churn.reach(churn.operations() + 120)
        assert relay.livez() == http.client.OK
        path.heal()
        relay.wait("the trouble is over", lambda: relay.stream("configmaps").get("lastError") is None, deadline_s=_SOON_S)
        churn.reach(churn.operations() + 40)
        churn.finish()
        await_equal(real_cluster, reader, wanted, deadline_s=_SOON_S)
        assert relay.metric("watchrelay_missed_changes_total") == 0
        assert relay.stop() == 0
        reader.read()
    reader.assert_right("configmaps")


def test_an_api_server_restored_from_a_backup_is_believed_without_a_restart_of_the_relay(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    with ControlPlane() as cluster:
        trial = Trial(cluster, kafka_broker, tmp_path)
        (namespace,) = trial.namespaces(1)
        configs = f"/api/v1/namespaces/{namespace}/configmaps"
        trial.make(configs, [{"metadata": {"name": name}, "data": {"v": "0"}} for name in ("deleted", "changed", "kept")])
        with trial.relay("configmaps") as relay:
            relay.await_ready()
            cluster.back_up()
            cluster.request("DELETE", f"{configs}/deleted")
            for number in range(50):
                cluster.request("PATCH", f"{configs}/changed", {"data": {"v": str(number + 1)}})
            trial.make(configs, [{"metadata": {"name": "later"}, "data": {"v": "0"}}])
            newest = int(cluster.request("GET", configs)["metadata"]["resourceVersion"])
            relay.wait("all that is published", lambda: int(relay.stream("configmaps").get("frontier") or 0) >= newest)
            cluster.restore()
            assert int(cluster.request("GET", configs)["metadata"]["resourceVersion"]) < newest
            trial.make(configs, [{"metadata": {"name": "after"}, "data": {"v": "0"}}])
            with trial.reader(trial.topic("configmaps")) as reader:

                def equal() -> bool:
                    reader.read()
                    return not difference(expected_table(list_text(cluster, _PATHS["configmaps"])), reader.table("configmaps"))

                wait_until("the topic is what the restored server lists", equal, deadline_s=180.0)
                reader.read_until("it is proven", lambda: reader.proven("configmaps"))
                back = ("frontier goes back", "behind a frontier of", "resourceVersion")
                assert [problem for problem in reader.problems if not any(words in problem for words in back)] == []
                assert any(line["message"] for line in relay.said("restored")), "the log does not name it"
            verified = command("verify", "-c", relay.file, "--cluster", timeout_s=90.0)
            assert verified.code == 0, verified.stdout + verified.stderr
            assert relay.stop() == 0


def test_a_resource_that_is_deleted_and_comes_back_in_another_version_only_is_followed_there(
    trial: Trial, real_cluster: ControlPlane
) -> None:
    def serve(version: str) -> str:
        definition = widget_definition()
        definition["spec"]["versions"][0]["name"] = version
        real_cluster.apply(_DEFINITION, definition)
        real_cluster.wait_for("widgets are served", lambda: real_cluster.request("GET", f"/apis/{GROUP}/{version}/widgets"))
        return f"/apis/{GROUP}/{version}"

    def gone() -> bool:
        try:
            real_cluster.request("GET", _DEFINITION)
        except ApiError as error:
            return error.status == http.client.NOT_FOUND
        return False

    (namespace,) = trial.namespaces(1)
    before = serve("v1")
    try:
        body = {"kind": "Widget", "spec": {"size": 1}}
        for name in ("lost", "again"):
            trial.make(f"{before}/namespaces/{namespace}/widgets", [{**body, "apiVersion": f"{GROUP}/v1", "metadata": {"name": name}}])
        with trial.reader(trial.topic("widgets", GROUP)) as reader, trial.relay(_WIDGETS) as relay:
            relay.await_ready()
            await_equal(real_cluster, reader, {_WIDGETS: f"{before}/widgets"})
            real_cluster.request("DELETE", _DEFINITION)
            real_cluster.wait_for("widgets are gone", gone)
            reader.read_until("the deletes are said", lambda: len(reader.of(_WIDGETS, "deleted")) == 2, deadline_s=_SOON_S)
            relay.wait("the row says what it waits for", lambda: relay.stream(_WIDGETS).get("waitsFor"), deadline_s=_SOON_S)
            after = serve("v2")
            trial.make(f"{after}/namespaces/{namespace}/widgets", [{**body, "apiVersion": f"{GROUP}/v2", "metadata": {"name": "again"}}])
            relay.wait("it is followed again", lambda: not relay.stream(_WIDGETS).get("waitsFor"), deadline_s=_SOON_S)
            await_equal(real_cluster, reader, {_WIDGETS: f"{after}/widgets"}, deadline_s=_SOON_S)
            verified = command("verify", "-c", relay.file, "--cluster", timeout_s=90.0)
            assert verified.code == 0, verified.stdout + verified.stderr
            assert relay.stop() == 0
            reader.read()
        assert reader.problems == []
        assert reader.proven(_WIDGETS)
    finally:
        if not gone():
            real_cluster.request("DELETE", _DEFINITION)
            real_cluster.wait_for("widgets are gone", gone)


def _told(relay: Daemon, stream: str, words: str) -> bool:
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
    trial: Trial, real_cluster: ControlPlane, path: FaultProxy, tmp_path: Path
) -> None:
    (namespace,) = trial.namespaces(1)
    account = f"/api/v1/namespaces/{namespace}/serviceaccounts/relay"
    token = tmp_path / "token"
    token.write_text(real_cluster.service_account_token(namespace, "relay"))
    real_cluster.grant(namespace, "relay", [{"apiGroups": [""], "resources": ["configmaps", "services"], "verbs": ["list", "watch"]}])
    kubeconfig = tmp_path / "by-file.kubeconfig"
    config = json.loads(through(path, trial, real_cluster).read_text())
    config["users"][0]["user"] = {"tokenFile": str(token)}
    kubeconfig.write_text(json.dumps(config))
    streams = {stream: _PATHS[stream] for stream in ("configmaps", "services")}
    with (
        trial.reader(*map(trial.topic, streams)) as reader,
        trial.relay(*streams, kubeconfig=kubeconfig) as relay,
    ):
        relay.await_ready()
        await_equal(real_cluster, reader, streams)
        path.refuse()
        real_cluster.request("DELETE", account)
        wait_until("the API server has forgotten that the token was good", partial(_refused, real_cluster, token.read_text()))
        trial.make(f"/api/v1/namespaces/{namespace}/configmaps", [{"metadata": {"name": "meanwhile"}}])
        path.heal()
        for stream in streams:
            relay.wait("401 is told", partial(_told, relay, stream, "401"), deadline_s=_SOON_S)
        assert relay.livez() == http.client.OK
        fresh = real_cluster.service_account_token(namespace, "relay")
        token.write_text(fresh)
        for stream in streams:
            relay.wait("it goes on", partial(_untroubled, relay, stream), deadline_s=_SOON_S)
        await_equal(real_cluster, reader, streams)
        assert relay.metric("watchrelay_list_total", result="success") == len(streams), "history was there: no list"
        assert fresh not in json.dumps(relay.lines()), "a token was logged"
        assert relay.stop() == 0
        reader.read()
    reader.assert_right(*streams)
