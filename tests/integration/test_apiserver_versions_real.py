"""A real API server that is restored from a backup, or serves other versions."""

import http.client
from pathlib import Path

import pytest

from tests.support.churn import GROUP, widget_definition
from tests.support.daemon import Daemon, assert_verified
from tests.support.listed import await_equal, difference, expected_table, list_text
from tests.support.process import wait_until
from tests.support.realparts import ApiError, ControlPlane, KafkaBroker
from tests.support.testbed import Testbed
from tests.support.topicreader import TopicReader

pytestmark = pytest.mark.real

_PATHS = {
    "configmaps": "/api/v1/configmaps",
    "secrets": "/api/v1/secrets",
    "services": "/api/v1/services",
}
_DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.{GROUP}"
_WIDGETS = f"widgets.{GROUP}"
_SOON_S = 90.0


def assert_widgets_end_right(relay: Daemon, reader: TopicReader) -> None:
    """By `verify`, a clean exit, and a second reader."""
    assert_verified(relay)
    assert relay.stop() == 0
    reader.read()
    assert reader.problems == []
    assert reader.proven(_WIDGETS)


@pytest.mark.long
def test_an_api_server_restored_from_a_backup_is_believed_without_a_restart_of_the_relay(
    kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    with ControlPlane() as cluster:
        testbed = Testbed(cluster, kafka_broker, tmp_path)
        (namespace,) = testbed.namespaces(1)
        configs = f"/api/v1/namespaces/{namespace}/configmaps"
        testbed.make(
            configs,
            [
                {"metadata": {"name": name}, "data": {"v": "0"}}
                for name in ("deleted", "changed", "kept")
            ],
        )
        with testbed.relay("configmaps") as relay:
            relay.await_ready()
            cluster.back_up()
            cluster.request("DELETE", f"{configs}/deleted")
            for number in range(50):
                cluster.request("PATCH", f"{configs}/changed", {"data": {"v": str(number + 1)}})
            testbed.make(configs, [{"metadata": {"name": "later"}, "data": {"v": "0"}}])
            newest = int(cluster.request("GET", configs)["metadata"]["resourceVersion"])
            relay.wait(
                "all that is published",
                lambda: int(relay.stream("configmaps").get("frontier") or 0) >= newest,
            )
            cluster.restore()
            assert int(cluster.request("GET", configs)["metadata"]["resourceVersion"]) < newest
            testbed.make(configs, [{"metadata": {"name": "after"}, "data": {"v": "0"}}])
            with testbed.reader(testbed.topic("configmaps")) as reader:

                def equal() -> bool:
                    reader.read()
                    return not difference(
                        expected_table(list_text(cluster, _PATHS["configmaps"])),
                        reader.table("configmaps"),
                    )

                wait_until("the topic is what the restored server lists", equal, deadline_s=180.0)
                reader.read_until("it is proven", lambda: reader.proven("configmaps"))
                back = ("frontier goes back", "behind a frontier of", "resourceVersion")
                assert [
                    problem
                    for problem in reader.problems
                    if not any(words in problem for words in back)
                ] == []
                assert any(line["message"] for line in relay.logged("restored")), (
                    "the log does not name it"
                )
            assert_verified(relay)
            assert relay.stop() == 0


@pytest.mark.parametrize(
    ("entry", "runs"),
    [
        pytest.param(_WIDGETS, True, id="running"),
        pytest.param(f"*.{GROUP}", False, id="stopped", marks=pytest.mark.long),
    ],
)
def test_a_resource_that_is_deleted_and_comes_back_in_another_version_only_is_followed_there(
    testbed: Testbed, real_cluster: ControlPlane, entry: str, *, runs: bool
) -> None:
    """While the relay runs, or while it is stopped."""

    def serve(version: str) -> str:
        definition = widget_definition()
        definition["spec"]["versions"][0]["name"] = version
        real_cluster.apply(_DEFINITION, definition)
        real_cluster.wait_for(
            "widgets are served",
            lambda: real_cluster.request("GET", f"/apis/{GROUP}/{version}/widgets"),
        )
        return f"/apis/{GROUP}/{version}"

    def gone() -> bool:
        try:
            real_cluster.request("GET", _DEFINITION)
        except ApiError as error:
            return error.status == http.client.NOT_FOUND
        return False

    (namespace,) = testbed.namespaces(1)
    before = serve("v1")
    try:
        body = {"kind": "Widget", "spec": {"size": 1}}
        for name in ("lost", "again"):
            testbed.make(
                f"{before}/namespaces/{namespace}/widgets",
                [{**body, "apiVersion": f"{GROUP}/v1", "metadata": {"name": name}}],
            )
        with (
            testbed.reader(testbed.topic("widgets", GROUP)) as reader,
            testbed.relay(entry) as relay,
        ):
            relay.await_ready()
            await_equal(real_cluster, reader, {_WIDGETS: f"{before}/widgets"})
            if not runs:
                assert relay.stop() == 0
            real_cluster.request("DELETE", _DEFINITION)
            real_cluster.wait_for("widgets are gone", gone)
            if not runs:
                relay.start()
                relay.await_ready()
            reader.read_until(
                "the deletes are published",
                lambda: len(reader.of(_WIDGETS, "deleted")) == 2,
                deadline_s=_SOON_S,
            )
            relay.wait(
                "the row says what it waits for",
                lambda: relay.stream(_WIDGETS).get("waitsFor"),
                deadline_s=_SOON_S,
            )
            after = serve("v2")
            testbed.make(
                f"{after}/namespaces/{namespace}/widgets",
                [{**body, "apiVersion": f"{GROUP}/v2", "metadata": {"name": "again"}}],
            )
            relay.wait(
                "it is followed again",
                lambda: not relay.stream(_WIDGETS).get("waitsFor"),
                deadline_s=_SOON_S,
            )
            await_equal(real_cluster, reader, {_WIDGETS: f"{after}/widgets"}, deadline_s=_SOON_S)
            assert_widgets_end_right(relay, reader)
    finally:
        if not gone():
            real_cluster.request("DELETE", _DEFINITION)
            real_cluster.wait_for("widgets are gone", gone)


def test_T77_a_version_that_is_served_no_longer_is_left_for_another_and_no_object_is_deleted(
    testbed: Testbed, real_cluster: ControlPlane
) -> None:
    def serve(*versions: str) -> None:
        definition = widget_definition()
        (shape,) = definition["spec"]["versions"]
        definition["spec"]["versions"] = [
            {**shape, "name": version, "served": version in versions, "storage": version == "v1"}
            for version in ("v1", "v2")
        ]
        real_cluster.apply(_DEFINITION, definition)

    def answers(version: str) -> int:
        try:
            real_cluster.request("GET", f"/apis/{GROUP}/{version}/widgets")
        except ApiError as error:
            return error.status
        return http.client.OK

    (namespace,) = testbed.namespaces(1)
    objects = f"/apis/{GROUP}/v1/namespaces/{namespace}/widgets"
    body = {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "spec": {"size": 1}}
    serve("v1", "v2")
    try:
        wait_until(
            "both versions are served", lambda: answers("v1") == answers("v2") == http.client.OK
        )
        testbed.make(
            objects, [{**body, "metadata": {"name": name}} for name in ("one", "two", "three")]
        )
        with (
            testbed.reader(testbed.topic("widgets", GROUP)) as reader,
            testbed.relay(_WIDGETS) as relay,
        ):
            relay.await_ready()
            await_equal(real_cluster, reader, {_WIDGETS: f"/apis/{GROUP}/v2/widgets"})
            serve("v1")
            wait_until(
                "only v1 is served",
                lambda: (answers("v2"), answers("v1")) == (http.client.NOT_FOUND, http.client.OK),
            )
            await_equal(
                real_cluster, reader, {_WIDGETS: f"/apis/{GROUP}/v1/widgets"}, deadline_s=_SOON_S
            )
            assert reader.of(_WIDGETS, "deleted") == [], "none of them is gone"
            types = [
                record.type
                for record in reader.about(_WIDGETS, f"{namespace}/one")
                if record.type != "read"
            ]
            assert types == ["added", "modified"], "another apiVersion, and a snapshot beside it"
            real_cluster.request("DELETE", f"{objects}/two")
            await_equal(real_cluster, reader, {_WIDGETS: f"/apis/{GROUP}/v1/widgets"})
            assert [
                record.key.decode().rpartition("/")[2] for record in reader.of(_WIDGETS, "deleted")
            ] == ["two"]
            assert_widgets_end_right(relay, reader)
    finally:
        real_cluster.request("DELETE", _DEFINITION)
        wait_until("widgets are gone", lambda: answers("v1") == http.client.NOT_FOUND)
