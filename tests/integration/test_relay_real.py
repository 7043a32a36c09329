"""A real API server under churn and real Kafka: proof that topics end equal to what the server
lists.

The daemon is the program that users run; the topics are read by a reader that shares no code with
it.
"""

import itertools
import json
from collections.abc import Callable

import pytest

from tests.support.churn import GROUP, Churn, widget_definition
from tests.support.listed import (
    await_equal,
    edited,
    joined,
    members,
    redacted_data,
    without,
    without_defaults,
)
from tests.support.realparts import ControlPlane
from tests.support.testbed import Testbed
from tests.support.topicreader import TopicReader, read_control

pytestmark = pytest.mark.real

_KINDS = ("configmaps", "widgets", "deployments")
_PATHS = {
    "configmaps": "/api/v1/configmaps",
    "pods": "/api/v1/pods",
    "deployments.apps": "/apis/apps/v1/deployments",
    "replicasets.apps": "/apis/apps/v1/replicasets",
    f"widgets.{GROUP}": f"/apis/{GROUP}/v1/widgets",
    "namespaces": "/api/v1/namespaces",
}
_SECRET = {"password": "aHVudGVyMg==", "user": "YWRtaW4="}


def _define_widgets(cluster: ControlPlane) -> None:
    cluster.apply(
        f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.{GROUP}",
        widget_definition(),
    )
    cluster.wait_for(
        "widgets are served", lambda: cluster.request("GET", f"/apis/{GROUP}/v1/widgets")
    )


def _assert_control_topic_fits(testbed: Testbed, reader: TopicReader, streams: set[str]) -> None:
    control = read_control(testbed.broker.bootstrap, testbed.control_topic)
    descriptions = {
        key.partition("/")[2]: value for _, key, value in control if key.startswith("stream/")
    }
    assert set(descriptions) == streams
    claimed: dict[str, set[int]] = {stream: set() for stream in streams}
    for offset, key, value in control:
        kind, _, stream = key.partition("/")
        if kind == "claim":
            assert {"holder", "instance", "version", "time", "from"} <= set(value)
            claimed[stream].add(descriptions[stream]["epochBase"] + offset)
        elif kind == "snapshot":
            for place in value["partitions"]:
                marks = {
                    record.raw.offset: record
                    for record in reader.of(stream, "begin", "end")
                    if record.raw.partition == place["partition"]
                }
                begin, end = marks[place["begin"]], marks[place["end"]]
                assert (begin.type, end.type) == ("begin", "end")
                assert begin.headers["ce_wrsnap"] == end.headers["ce_wrsnap"] == value["snapshot"]
                assert (str(place["count"]), place["digest"]) == (
                    end.headers["ce_wrcount"],
                    end.headers["ce_wrdigest"],
                )
            assert value["count"] == sum(place["count"] for place in value["partitions"])
    for stream in streams:
        assert {record.epoch for record in reader.of(stream)} <= claimed[stream]
        assert any(key == f"snapshot/{stream}" for _, key, _ in control), (
            f"{stream} has no snapshot index"
        )


def test_under_churn_the_topics_end_equal_to_what_the_api_server_lists(
    testbed: Testbed, real_cluster: ControlPlane
) -> None:
    _define_widgets(real_cluster)
    namespaces = testbed.namespaces(20)
    topics = dict(zip(_PATHS, testbed.topics(*_PATHS), strict=True))
    relay = testbed.relay(*_PATHS, defaults={"snapshotInterval": "5s"})
    with (
        Churn(real_cluster, namespaces, operations=1200, kinds=_KINDS) as churn,
        testbed.reader(*topics.values()) as reader,
    ):
        churn.reach(100)
        with relay:
            relay.await_ready()
            assert churn.running, "the churn ended before the relay was ready"
            churn.finish()
            await_equal(real_cluster, reader, _PATHS)
            reader.read_until(
                "each partition has a second snapshot",
                lambda: all(
                    partition.ends > 1 for at in _PATHS for partition in reader.partitions_of(at)
                ),
            )
            rows = relay.api_streams()
            acked = sum(
                relay.metric("watchrelay_records_acked_total", kind=kind)
                for kind in ("event", "snapshot", "tombstone")
            )
            assert acked >= 0.5 * sum(record.is_object for record in reader.records)
            assert relay.stop() == 0
        reader.read()
    reader.assert_right(*_PATHS)
    for stream, topic in topics.items():
        assert reader.plain[topic] == reader.table(stream), (
            "a table that knows no markers is another"
        )
        row = rows[stream]
        assert (row["state"], row["objects"], row["epoch"]) == (
            "watching",
            len(reader.table(stream)),
            reader.epoch(stream),
        )
        assert (row["lastError"], row["waitsFor"]) == (None, None)
    assert reader.sources("pods") == {f"/clusters/{testbed.name}/api/v1/pods"}
    assert reader.sources("deployments.apps") == {
        f"/clusters/{testbed.name}/apis/apps/v1/deployments"
    }
    assert reader.of("configmaps", "deleted"), "the churn deleted nothing"
    assert {record.headers["ce_wrreason"] for record in reader.of("pods") if record.is_object} <= {
        "watch",
        "snapshot",
        "relist",
    }
    _assert_control_topic_fits(testbed, reader, set(_PATHS))


def _only_metadata(item: str) -> str:
    lean = without_defaults(item)
    return joined(
        [
            (name, value)
            for name, value in members(lean)
            if name in {"kind", "apiVersion", "metadata"}
        ]
    )


def _without_note(item: str) -> str:
    lean = without_defaults(item)
    return edited(
        edited(
            lean,
            "metadata",
            lambda metadata: edited(metadata, "annotations", lambda at: without(at, "note")),
        ),
        "data",
        _no_text,
    )


def _no_text(data: str) -> str:
    return without(data, "text")


def _as_it_is(item: str) -> str:
    return item


def test_each_way_to_choose_and_shape_objects_holds_under_churn(
    testbed: Testbed, real_cluster: ControlPlane
) -> None:
    first, second, third = testbed.namespaces(3)
    every = "/api/v1/configmaps"
    cases: dict[str, tuple[dict[str, object], str, Callable[[str], str]]] = {
        "dropped": ({"drop": ["data.text", "metadata.annotations.note"]}, every, _without_note),
        "redacted": ({"redact": ["data.*"]}, every, redacted_data),
        "kept": ({"keepManagedFields": True, "keepLastApplied": True}, every, _as_it_is),
        "metadata": ({"metadataOnly": True, "suppressUnchanged": False}, every, _only_metadata),
        "labels": (
            {"labelSelector": "tier in (web),!gone"},
            f"{every}?labelSelector=tier%20in%20(web),!gone",
            without_defaults,
        ),
        "fields": (
            {"fieldSelector": "metadata.name!=c1"},
            f"{every}?fieldSelector=metadata.name!%3Dc1",
            without_defaults,
        ),
        "single": ({"name": "c2"}, f"{every}?fieldSelector=metadata.name%3Dc2", without_defaults),
        "excluding": (
            {"excludeNamespaces": [first, "kube-system"]},
            f"{every}?fieldSelector=metadata.namespace!%3D{first},metadata.namespace!%3Dkube-system",
            without_defaults,
        ),
        "paged": (
            {"initialList": "paged", "pageSize": 7, "bookmarks": False},
            every,
            without_defaults,
        ),
        "unbounded": (
            {"initialList": "paged", "pageSize": 0, "listSemantic": "any"},
            every,
            without_defaults,
        ),
        "streamed": ({"initialList": "streaming"}, every, without_defaults),
    }
    entries = [
        {"resource": "configmaps", "id": name, "topic": f"{testbed.name}.{name}", **keys}
        for name, (keys, _, _) in cases.items()
    ]
    local = {
        "resource": "cm",
        "id": "local",
        "topic": f"{testbed.name}.local",
        "namespaces": [first, second],
    }
    wide = {
        "resource": "ConfigMap",
        "id": "wide",
        "topic": f"{testbed.name}.wide",
        "namespaces": [first, second],
        "scope": "cluster",
    }
    relay = testbed.relay(*entries, local, wide)
    names = [*cases, "local", "wide"]
    with (
        Churn(real_cluster, [first, second, third], operations=400) as churn,
        testbed.reader(*(f"{testbed.name}.{name}" for name in names)) as reader,
        relay,
    ):
        relay.await_ready()
        churn.finish()
        wanted: dict[str, str | tuple[str, Callable[[str], str]]] = {
            name: (path, edit) for name, (_, path, edit) in cases.items()
        }
        wanted |= {
            f"local@{namespace}": f"/api/v1/namespaces/{namespace}/configmaps"
            for namespace in (first, second)
        }
        await_equal(real_cluster, reader, wanted)
        both = dict(
            itertools.chain.from_iterable(
                reader.table(f"local@{namespace}").items() for namespace in (first, second)
            )
        )
        reader.read_until(
            "the wide stream holds both namespaces", lambda: reader.table("wide") == both
        )
        assert relay.stop() == 0
        reader.read()
    reader.assert_right(*wanted, "wide")
    assert both
    assert reader.table("single")
    assert all("c2" in key.decode() for key in reader.table("single"))


def test_the_payload_of_secrets_stays_home_unless_the_config_says_so(
    testbed: Testbed, real_cluster: ControlPlane
) -> None:
    (namespace,) = testbed.namespaces(1)
    applied = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps({"data": _SECRET})}
    body = {
        "metadata": {"name": "login", "annotations": {**applied, "note": "stays"}},
        "type": "Opaque",
        "data": _SECRET,
    }
    path = f"/api/v1/namespaces/{namespace}/secrets"
    testbed.make(path, [body])
    relay = testbed.relay(
        {"resource": "secrets", "namespaces": [namespace], "keepLastApplied": True},
        {
            "resource": "secrets",
            "id": "open",
            "namespaces": [namespace],
            "topic": f"{testbed.name}.open",
            "includeSecretData": True,
        },
    )
    with relay, testbed.reader(testbed.topic("secrets"), f"{testbed.name}.open") as reader:
        relay.await_ready()
        wanted: dict[str, str | tuple[str, Callable[[str], str]]] = {
            f"secrets@{namespace}": (path, redacted_data),
            f"open@{namespace}": path,
        }
        await_equal(real_cluster, reader, wanted)
        real_cluster.request("PATCH", f"{path}/login", {"data": {"password": "bmV3"}})
        await_equal(real_cluster, reader, wanted)
        changes = reader.about(f"secrets@{namespace}", f"{namespace}/login")
        assert [record.type for record in changes] == ["added", "modified"], (
            "a change of the payload is visible, its content is not"
        )
        assert relay.stop() == 0
        everything = b"".join(
            record.raw.value or b"" for record in reader.of(f"secrets@{namespace}")
        )
        for payload in (*_SECRET.values(), "bmV3"):
            assert payload.encode() not in everything
        assert b'"password":"<redacted>"' in everything
        assert not [line for line in relay.lines() if _SECRET["password"] in json.dumps(line)]
    reader.assert_right(f"secrets@{namespace}", f"open@{namespace}")
