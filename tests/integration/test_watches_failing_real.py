"""A real API server whose watches fail from their version each time, or bring no bookmarks."""

from pathlib import Path

import pytest

from tests.support.churn import GROUP, widget_definition
from tests.support.conversion import conversion_webhook
from tests.support.daemon import assert_verified
from tests.support.listed import await_equal
from tests.support.realparts import ControlPlane, KafkaBroker
from tests.support.testbed import Testbed
from watchrelay.core.timestamps import parse_timestamp

pytestmark = pytest.mark.real

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WIDGETS = f"widgets.{GROUP}"
_QUIET_S = 200.0


@pytest.mark.long
@pytest.mark.parametrize("restarted", [False, True])
def test_a_state_that_a_webhook_refuses_stops_no_stream_once_it_is_history(
    real_parts: None, kafka_broker: KafkaBroker, tmp_path: Path, *, restarted: bool
) -> None:
    """Without the server's cache, watches convert the whole history since their version."""
    with (
        ControlPlane(apiserver_flags=["--watch-cache=false"]) as cluster,
        conversion_webhook(tmp_path) as conversion,
    ):
        testbed = Testbed(cluster, kafka_broker, tmp_path)
        definition = widget_definition()
        (shape,) = definition["spec"]["versions"]
        definition["spec"]["versions"] = [
            {**shape, "name": version, "storage": version == "v1"} for version in ("v1", "v2")
        ]
        definition["spec"]["conversion"] = conversion
        cluster.request("POST", _DEFINITIONS, definition)
        served = f"/apis/{GROUP}/v2/widgets"
        cluster.wait_for("widgets are served", lambda: cluster.request("GET", served))
        (namespace,) = testbed.namespaces(1)
        objects = f"/apis/{GROUP}/v1/namespaces/{namespace}/widgets"
        body = {"apiVersion": f"{GROUP}/v1", "kind": "Widget"}
        testbed.make(objects, [{**body, "metadata": {"name": name}} for name in ("kept", "lost")])
        topic = testbed.topic("widgets", GROUP)
        with (
            testbed.relay(f"widgets.{GROUP}/v2") as relay,
            testbed.reader(topic) as reader,
        ):
            relay.await_ready()
            await_equal(cluster, reader, {_WIDGETS: served})
            if restarted:
                assert relay.stop() == 0
            refused = {**body, "metadata": {"name": "bad"}, "spec": {"refused": True}}
            cluster.request("POST", objects, refused)
            cluster.request("PATCH", f"{objects}/bad", {"spec": {"refused": False}})
            cluster.request("DELETE", f"{objects}/lost")
            if restarted:
                relay.start()
            relay.wait("the watch fails", lambda: relay.logged("stream error", "500"))
            await_equal(cluster, reader, {_WIDGETS: served}, deadline_s=240.0)
            assert relay.logged("stream changed state", "failing")
            assert [each.key.decode() for each in reader.of(_WIDGETS, "deleted")] == [
                f"{namespace}/lost"
            ]
            cluster.request("POST", objects, {**body, "metadata": {"name": "later"}})
            await_equal(cluster, reader, {_WIDGETS: served})
            assert_verified(relay)
            assert relay.stop() == 0


@pytest.mark.long
def test_quiet_events_are_shown_to_be_whole_once_a_minute_and_are_no_error(
    real_parts: None, kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    with ControlPlane() as cluster:
        testbed = Testbed(cluster, kafka_broker, tmp_path)
        (namespace,) = testbed.namespaces(1)
        event = {
            "metadata": {"name": "one"},
            "involvedObject": {"kind": "Pod", "namespace": namespace, "name": "a"},
            "reason": "Made",
        }
        cluster.request("POST", f"/api/v1/namespaces/{namespace}/events", event)
        with (
            testbed.relay("events") as relay,
            testbed.reader(testbed.topic("events")) as reader,
        ):
            relay.await_ready()

            def moments(header: str) -> list[int]:
                beats = [each for each in reader.records if each.type == "heartbeat"]
                return [parse_timestamp(each.headers[header].encode()) for each in beats]

            def long_enough() -> bool:
                at_ms = moments("ce_time")
                return bool(at_ms) and at_ms[-1] - at_ms[0] >= _QUIET_S * 1000

            reader.read_until("heartbeats", long_enough, deadline_s=_QUIET_S + 60)
            ages_s = [
                (at_ms - seen_ms) / 1000
                for at_ms, seen_ms in zip(moments("ce_time"), moments("ce_wrseen"), strict=True)
            ]
            print("oldest", max(ages_s), "of", len(ages_s))
            assert max(ages_s) <= 75.0
            ends = {
                reason: relay.metric("watchrelay_watch_ends_total", reason=reason)
                for reason in ("silent", "error")
            }
            assert ends["error"] == 0
            assert ends["silent"] >= 2
            assert len(relay.logged("no bookmarks come")) == 1
            assert_verified(relay)
            assert relay.stop() == 0
