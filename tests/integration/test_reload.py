"""The program, and a config that is edited under churn: streams that come, change and go, alone.

What needs real parts runs with REAL=1 and says so when skipped.
"""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.churn import GROUP, Churn, widget_definition
from tests.support.daemon import Daemon, command
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.listed import await_equal
from tests.support.mount import Mount
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed
from tests.support.topicreader import TopicReader

WIDGETS = f"widgets.{GROUP}"
_PATHS = {
    "configmaps": "/api/v1/configmaps",
    "namespaces": "/api/v1/namespaces",
    WIDGETS: f"/apis/{GROUP}/v1/widgets",
}
_TIERS = "tier in (web)"
_ODD = f"/api/v1/configmaps?labelSelector={_TIERS.replace(' ', '%20')}"


class Edited:
    """A relay whose config is mounted as a ConfigMap is."""

    def __init__(self, testbed: Testbed, *resources: Any, **more: Any) -> None:
        self._trial, self._more = testbed, more
        self.relay: Daemon = testbed.relay(*resources, **more)
        self._observe = self.relay.config["observe"]
        self.mount = Mount(self.relay.file, self.relay.file.read_text())

    def edit(self, *resources: Any, **more: Any) -> None:
        """Other resources, by the swap of a link."""
        config = {
            **self._trial.config(*resources, **{**self._more, **more}),
            "observe": self._observe,
        }
        self.mount.swap(yaml.safe_dump(config, sort_keys=False))

    def await_live(self, *streams: str) -> dict[str, int]:
        """Returns once these streams, and no others, are live; their epochs."""

        def live() -> bool:
            rows = self.relay.api_streams()
            return set(rows) == set(streams) and all(
                row["complete"] and row["state"] == "watching" for row in rows.values()
            )

        self.relay.wait(f"{', '.join(streams)} are live", live)
        return {name: row["epoch"] for name, row in self.relay.api_streams().items()}


@pytest.fixture
def testbed(cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path) -> Testbed:
    cluster.request(
        "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_definition()
    )
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics(*_PATHS)
    return testbed


def _assert_edits(
    testbed: Testbed, cluster: Any, edited: Edited, reader: TopicReader, churn: Churn
) -> None:
    """Namespaces are removed, widgets added, configmaps are not affected; then a wrong edit; then
    configmaps are narrowed."""
    relay = edited.relay
    epochs = edited.await_live("configmaps", "namespaces")
    churn.reach(150)
    watches = relay.metric("watchrelay_watch_starts_total", stream="configmaps")
    edited.edit("configmaps", WIDGETS)
    after = edited.await_live("configmaps", WIDGETS)
    assert after["configmaps"] == epochs["configmaps"], "what did not change was claimed again"
    assert relay.metric("watchrelay_watch_starts_total", stream="configmaps") == watches, (
        "what did not change was watched again"
    )
    assert relay.metric("watchrelay_stream_owned", stream="namespaces") == 0
    reader.read()
    silent = len(reader.of("namespaces"))
    assert silent
    churn.reach(300)
    edited.edit("configmaps", WIDGETS, WIDGETS)
    relay.wait("the mistake is shown", lambda: "reload" in relay.readyz()[1].get("problems", {}))
    assert relay.metric("watchrelay_config_last_reload_successful") == 0
    assert relay.readyz()[0] == 200
    edited.edit(
        {"resource": "configmaps", "labelSelector": _TIERS}, WIDGETS, kafka={"format": "debezium"}
    )
    relay.wait(
        "the stream claims again",
        lambda: relay.stream("configmaps").get("epoch") not in {None, epochs["configmaps"]},
    )
    narrowed = edited.await_live("configmaps", WIDGETS)
    assert narrowed[WIDGETS] == after[WIDGETS]
    assert "kafka.format" in relay.readyz()[1]["problems"]["restart"]
    assert relay.metric("watchrelay_config_last_reload_successful") == 1
    assert churn.running, "the churn ended before the edits"
    churn.reach(churn.operations() + 150)
    churn.finish()
    await_equal(cluster, reader, {"configmaps": _ODD, WIDGETS: _PATHS[WIDGETS]})
    reader.read()
    assert len(reader.of("namespaces")) == silent, "a stream that left is not silent"
    gone = [
        record
        for record in reader.of("configmaps", "deleted")
        if record.headers["ce_wrreason"] == "resume"
    ]
    assert gone, "what left the selection was not deleted"
    assert relay.metric("watchrelay_missed_changes_total") == 0


def _edit_under_churn(testbed: Testbed, cluster: Any) -> None:
    edited = Edited(testbed, "configmaps", "namespaces")
    kinds = ("configmaps", "widgets")
    with contextlib.ExitStack() as stack:
        churn = stack.enter_context(
            Churn(cluster, testbed.namespaces(6), operations=600, kinds=kinds, per_s=80)
        )
        stack.enter_context(edited.relay)
        edited.relay.await_ready()
        reader = stack.enter_context(testbed.reader(*testbed.topics(*_PATHS)))
        _assert_edits(testbed, cluster, edited, reader, churn)
        edited.edit({"resource": "configmaps", "labelSelector": _TIERS}, WIDGETS)
        edited.relay.wait(
            "the restart is not needed any more", lambda: "problems" not in edited.relay.readyz()[1]
        )
        verified = command(
            "verify", "-c", edited.relay.file, "--cluster", "configmaps", WIDGETS, timeout_s=90.0
        )
        assert verified.code == 0, verified.stdout + verified.stderr
        assert edited.relay.stop() == 0
        reader.read()
    assert reader.problems == []
    assert all(reader.proven(stream) for stream in ("configmaps", WIDGETS))


def test_streams_come_change_and_go_under_churn_and_the_others_do_not_notice(
    testbed: Testbed, cluster: EmbeddedCluster
) -> None:
    _edit_under_churn(testbed, cluster)


@pytest.mark.real
def test_streams_come_change_and_go_under_churn_of_a_real_cluster(
    real_cluster: ControlPlane, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    real_cluster.apply(
        f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{WIDGETS}", widget_definition()
    )
    real_cluster.wait_for(
        "widgets are served", lambda: real_cluster.request("GET", _PATHS[WIDGETS])
    )
    _edit_under_churn(Testbed(real_cluster, kafka_broker, tmp_path), real_cluster)
