"""A CustomResourceDefinition of two versions on a real API server, and an entry that names one of
them: it is served no longer, and again; and the objects move to another storage version."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator

import pytest

from tests.integration.test_apiserver_versions_real import assert_widgets_end_right
from tests.support.churn import GROUP, widget_definition
from tests.support.daemon import command
from tests.support.listed import await_equal
from tests.support.process import wait_until
from tests.support.realparts import ApiError, ControlPlane
from tests.support.testbed import Testbed

pytestmark = pytest.mark.real

_DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.{GROUP}"
_WIDGETS = f"widgets.{GROUP}"
_LIST = {_WIDGETS: f"/apis/{GROUP}/v1/widgets"}
_REASON = f"{_WIDGETS} is served in v2, not as {_WIDGETS}/v1"
_SOON_S, _PAST_GRACE_S = 90.0, 45.0


def answers(cluster: ControlPlane, version: str) -> int:
    try:
        cluster.request("GET", f"/apis/{GROUP}/{version}/widgets")
    except ApiError as error:
        return error.status
    return http.client.OK


def serve(cluster: ControlPlane, *versions: str, stored: str = "v1") -> None:
    """Return once these versions of widgets are served, and no other."""
    definition = widget_definition()
    (shape,) = definition["spec"]["versions"]
    definition["spec"]["versions"] = [
        {**shape, "name": version, "served": version in versions, "storage": version == stored}
        for version in ("v1", "v2")
    ]
    cluster.apply(_DEFINITION, definition)
    wanted = [
        http.client.OK if version in versions else http.client.NOT_FOUND for version in ("v1", "v2")
    ]
    wait_until(
        f"{versions} are served",
        lambda: [answers(cluster, version) for version in ("v1", "v2")] == wanted,
        deadline_s=_SOON_S,
    )


@pytest.fixture
def objects(testbed: Testbed, real_cluster: ControlPlane) -> Iterator[str]:
    """The path of three objects in v1; both versions are served."""
    (namespace,) = testbed.namespaces(1)
    serve(real_cluster, "v1", "v2")
    try:
        path = f"/apis/{GROUP}/v1/namespaces/{namespace}/widgets"
        body = {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "spec": {"size": 1}}
        testbed.make(path, [{**body, "metadata": {"name": name}} for name in ("a", "b", "c")])
        yield path
    finally:
        real_cluster.request("DELETE", _DEFINITION)
        wait_until("widgets are gone", lambda: answers(real_cluster, "v2") == http.client.NOT_FOUND)


def test_a_stream_of_a_version_that_ends_keeps_its_objects_waits_and_continues(
    testbed: Testbed, real_cluster: ControlPlane, objects: str
) -> None:
    with (
        testbed.reader(testbed.topic("widgets", GROUP)) as reader,
        testbed.relay(f"{_WIDGETS}/v1") as relay,
    ):

        def waits() -> bool:
            return relay.stream(_WIDGETS).get("waitsFor") == _REASON

        relay.await_ready()
        await_equal(real_cluster, reader, _LIST)
        serve(real_cluster, "v2")
        relay.wait("it waits for the version", waits, deadline_s=_SOON_S)
        since_s = time.monotonic()
        relay.wait(
            "the grace of a deleted resource is over",
            lambda: time.monotonic() - since_s > _PAST_GRACE_S,
            deadline_s=2 * _SOON_S,
        )
        assert waits()
        assert relay.stop() == 0
        relay.start()
        relay.await_ready(deadline_s=_SOON_S)
        relay.wait("it waits after a restart", waits, deadline_s=_SOON_S)
        assert relay.readyz()[1]["streams"][_WIDGETS]["reason"] == _REASON
        verified = command("verify", "-c", relay.file, "--cluster", timeout_s=90.0)
        assert verified.code == 1, verified.stdout + verified.stderr
        assert "the topic holds 3 objects of it" in verified.stderr
        assert _REASON in verified.stderr
        in_v2 = objects.replace("/v1/", "/v2/")
        real_cluster.request("PATCH", f"{in_v2}/a", {"spec": {"size": 2}})
        real_cluster.request("DELETE", f"{in_v2}/b")
        serve(real_cluster, "v1", "v2")
        await_equal(real_cluster, reader, _LIST, deadline_s=_SOON_S)
        deleted = reader.of(_WIDGETS, "deleted")
        assert [each.key.decode().rpartition("/")[2] for each in deleted] == ["b"]
        assert_widgets_end_right(relay, reader)


def test_objects_that_move_to_another_storage_version_change_only_where_their_content_does(
    testbed: Testbed, real_cluster: ControlPlane, objects: str
) -> None:
    with (
        testbed.reader(testbed.topic("widgets", GROUP)) as reader,
        testbed.relay(f"{_WIDGETS}/v1") as relay,
    ):
        relay.await_ready()
        await_equal(real_cluster, reader, _LIST)
        serve(real_cluster, "v1", "v2", stored="v2")
        in_v2 = objects.replace("/v1/", "/v2/")
        for name in ("a", "b", "c"):  # as a migrator rewrites them
            before = real_cluster.request("GET", f"{in_v2}/{name}")
            after = real_cluster.request("PUT", f"{in_v2}/{name}", before)
            assert after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"], (
                "it was stored again"
            )
        status = {"status": {"storedVersions": ["v2"]}}
        real_cluster.request("PATCH", f"{_DEFINITION}/status", status)
        newest = real_cluster.request("PATCH", f"{objects}/a", {"spec": {"size": 2}})
        version = int(newest["metadata"]["resourceVersion"])
        relay.wait(
            "all of it is published",
            lambda: int(relay.stream(_WIDGETS).get("frontier") or 0) >= version,
            deadline_s=_SOON_S,
        )
        reader.read()
        assert reader.of(_WIDGETS, "deleted") == []
        changed = reader.of(_WIDGETS, "modified")
        assert [each.key.decode().rpartition("/")[2] for each in changed] == ["a"]
        assert_widgets_end_right(relay, reader)
