"""The program with a short relistInterval: what a watch silently missed is found, published and
counted, and nothing else is."""

from pathlib import Path

import pytest

from tests.support.daemon import command
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.extent import few
from tests.support.listed import await_equal
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed
from watchrelay.demo.storage import Storage

_PATHS = {"configmaps": "/api/v1/configmaps"}


@pytest.fixture
def testbed(cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path) -> Testbed:
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics(*_PATHS)
    return testbed


def _delete_silently(storage: Storage, name: str) -> None:
    """What a watch cache has done that lost an event. Source: k/k#123072."""
    collection = storage.collection("configmaps")
    (key,) = [key for key in collection.objects if key[1] == name]
    del collection.objects[key]
    collection.states.clear()
    storage.version += 1


@pytest.mark.parametrize("how", few(["paged", "streaming"], 1))
def test_a_delete_that_the_watch_never_showed_is_found_published_and_counted(
    testbed: Testbed, cluster: EmbeddedCluster, how: str
) -> None:
    (namespace,) = testbed.namespaces(1)
    testbed.make(
        f"/api/v1/namespaces/{namespace}/configmaps",
        [{"metadata": {"name": name}} for name in ("stays", "goes")],
    )
    relay = testbed.relay({"resource": "configmaps", "relistInterval": "2s", "initialList": how})
    with relay, testbed.reader(testbed.topic("configmaps")) as reader:
        relay.await_ready()
        await_equal(cluster, reader, _PATHS)
        cluster.do(lambda: _delete_silently(cluster.registry.storage, "goes"))
        gone = f"{namespace}/goes".encode()
        reader.read_until(
            "the delete is published",
            lambda: gone not in reader.table("configmaps") and reader.proven("configmaps"),
        )
        cluster.request(
            "POST", f"/api/v1/namespaces/{namespace}/configmaps", {"metadata": {"name": "later"}}
        )
        relay.wait("it is counted", lambda: relay.metric("watchrelay_missed_changes_total") == 1)
        missed = "list found changes missed by the watch"
        relay.wait("it is logged", lambda: [each["missed"] for each in relay.logged(missed)] == [1])
        lists = relay.metric("watchrelay_list_total", result="success")
        relay.wait(
            "two more lists are made",
            lambda: relay.metric("watchrelay_list_total", result="success") >= lists + 2,
        )
        assert relay.metric("watchrelay_missed_changes_total") == 1
        assert relay.stop() == 0
        reader.read()
    # If a bookmark confirmed a version, what the server had left out up to there can only be
    # published behind it.
    assert all("goes" in problem and "behind a frontier" in problem for problem in reader.problems)
    assert reader.proven("configmaps")
    published = [
        (record.type, record.headers["ce_wrreason"])
        for record in reader.about("configmaps", f"{namespace}/goes")
    ]
    assert published == [("added", "snapshot"), ("deleted", "relist")]


def _nothing_is_counted(
    testbed: Testbed, cluster: ControlPlane | EmbeddedCluster, how: str
) -> None:
    relay = testbed.relay({"resource": "configmaps", "relistInterval": "1s", "initialList": how})
    with testbed.under_churn(
        relay, testbed.topics(*_PATHS), namespaces=4, operations=1000, per_s=150
    ) as (churn, reader):
        relay.wait(
            "lists were made under churn",
            lambda: relay.metric("watchrelay_list_total", result="success") >= 6,
        )
        verified = command("verify", "-c", relay.file, "--cluster", timeout_s=100.0)
        assert churn.running, "the churn ended before the lists and the verification"
        assert verified.code == 0, verified.stdout + verified.stderr
        churn.finish()
        await_equal(cluster, reader, _PATHS)
        assert relay.metric("watchrelay_missed_changes_total") == 0
        assert relay.stop() == 0
        reader.read()
    reader.assert_right("configmaps")
    assert reader.plain[testbed.topic("configmaps")] == reader.table("configmaps")


@pytest.mark.real
@pytest.mark.parametrize("how", ["paged", "streaming"])
def test_under_churn_of_a_real_cluster_lists_find_nothing_that_the_watch_missed(
    real_cluster: ControlPlane, kafka_broker: KafkaBroker, tmp_path: Path, how: str
) -> None:
    _nothing_is_counted(Testbed(real_cluster, kafka_broker, tmp_path), real_cluster, how)
