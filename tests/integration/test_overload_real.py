"""A real broker that freezes under churn, queues of a few records: topics that end right.

The API server is the synthetic one: it changes objects as fast as it is asked to.
"""

import http.client
from pathlib import Path
from typing import Any

import pytest

from tests.support.churn import GROUP, widget_definition
from tests.support.daemon import Daemon, command
from tests.support.embedded import EmbeddedCluster
from tests.support.listed import await_equal
from tests.support.realparts import KafkaBroker
from tests.support.testbed import Testbed, UnderChurn
from tests.support.topicreader import TopicReader

pytestmark = pytest.mark.real

_WIDGETS = f"widgets.{GROUP}"
_PATHS = {"configmaps": "/api/v1/configmaps", _WIDGETS: f"/apis/{GROUP}/v1/widgets"}


@pytest.fixture
def testbed(cluster: EmbeddedCluster, kafka_broker: KafkaBroker, tmp_path: Path) -> Testbed:
    cluster.request(
        "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widget_definition()
    )
    return Testbed(cluster, kafka_broker, tmp_path)


def _under_churn(
    testbed: Testbed, relay: Daemon, *, namespaces: int, operations: int, per_s: int
) -> UnderChurn:
    kinds = ("configmaps", "widgets")
    return testbed.under_churn(
        relay,
        testbed.topics(*_PATHS),
        namespaces=namespaces,
        operations=operations,
        kinds=kinds,
        per_s=per_s,
    )


def _overloaded(relay: Daemon, stream: str) -> bool:
    """Every partition of the stream, by what is left in its queues: the keys wait instead."""
    return bool(relay.stream(stream).get("dirtyKeys", 0) >= 20)


def _await_overload(relay: Daemon) -> None:
    relay.wait(
        "keys wait instead of records", lambda: all(_overloaded(relay, stream) for stream in _PATHS)
    )


def _ended_right(relay: Daemon, reader: TopicReader, *streams: str) -> None:
    relay.wait(
        "no key waits", lambda: all(relay.stream(stream)["dirtyKeys"] == 0 for stream in streams)
    )
    assert relay.stop() == 0
    reader.read()
    reader.assert_right(*streams, duplicates=True)
    outcome = command("verify", "-c", relay.file)
    assert outcome.code == 0, outcome.stdout


def _conflated(reader: TopicReader, stream: str) -> list[Any]:
    return [
        record
        for record in reader.of(stream, "added", "modified", "deleted")
        if record.headers["ce_wrreason"] == "conflated"
    ]


def test_a_frozen_broker_under_churn_costs_states_in_between_and_nothing_else(
    testbed: Testbed, cluster: EmbeddedCluster, kafka_broker: KafkaBroker
) -> None:
    relay = testbed.relay(*_PATHS, queueBytes="16KiB")
    with _under_churn(testbed, relay, namespaces=8, operations=2000, per_s=400) as (churn, reader):
        churn.reach(200)
        with kafka_broker.frozen():
            _await_overload(relay)
            relay.wait(
                "states are skipped",
                lambda: (
                    relay.metric("watchrelay_events_conflated_total", resource="configmaps") > 50
                ),
            )
            assert relay.livez() == http.client.OK
            assert relay.readyz()[0] == http.client.OK
            assert relay.metric("watchrelay_queue_bytes", stream="configmaps") < 256 * 1024
        churn.finish()
        await_equal(cluster, reader, _PATHS)
        assert relay.metric("watchrelay_backpressure_seconds_total") == 0
        assert relay.metric("watchrelay_list_total", result="success") == len(_PATHS), (
            "the watch was read all the time"
        )
        _ended_right(relay, reader, *_PATHS)
    for topic, stream in zip(testbed.topics(*_PATHS), _PATHS, strict=True):
        assert _conflated(reader, stream)
        assert reader.plain[topic] == reader.table(stream)


def test_a_relay_killed_while_it_skips_states_leaves_nothing_out_that_its_successor_does_not_say(
    testbed: Testbed, cluster: EmbeddedCluster, kafka_broker: KafkaBroker
) -> None:
    relay = testbed.relay(*_PATHS, queueBytes="16KiB")
    with _under_churn(testbed, relay, namespaces=8, operations=2000, per_s=400) as (churn, reader):
        churn.reach(200)
        with kafka_broker.frozen():
            _await_overload(relay)
            relay.kill()
        relay.start()
        relay.await_ready()
        churn.finish()
        await_equal(cluster, reader, _PATHS)
        _ended_right(relay, reader, *_PATHS)


def test_a_freeze_longer_than_the_watchdogs_patience_ends_with_another_producer_and_nothing_lost(
    testbed: Testbed, cluster: EmbeddedCluster, kafka_broker: KafkaBroker
) -> None:
    relay = testbed.relay(*_PATHS, queueBytes="64KiB")
    with _under_churn(testbed, relay, namespaces=4, operations=1000, per_s=50) as (churn, reader):
        churn.reach(100)
        with kafka_broker.frozen():
            relay.wait(
                "the producer is thrown away",
                lambda: relay.metric("watchrelay_producer_rebuilds_total") > 0,
                deadline_s=90.0,
            )
            relay.wait("the row says why", lambda: relay.stream("configmaps").get("lastError"))
        relay.wait(
            "the outage is over", lambda: relay.stream("configmaps").get("lastError") is None
        )
        churn.finish()
        await_equal(cluster, reader, _PATHS)
        _ended_right(relay, reader, *_PATHS)


def test_where_overload_blocks_the_watch_is_not_read_and_no_state_in_between_is_skipped(
    testbed: Testbed, cluster: EmbeddedCluster, kafka_broker: KafkaBroker
) -> None:
    relay = testbed.relay(*_PATHS, queueBytes="16KiB", overload="block")
    with _under_churn(testbed, relay, namespaces=8, operations=600, per_s=200) as (churn, reader):
        churn.reach(100)
        with kafka_broker.frozen():
            churn.reach(churn.operations() + 200)
            assert relay.metric("watchrelay_queue_bytes", stream="configmaps") < 256 * 1024
        churn.finish()
        await_equal(cluster, reader, _PATHS)
        assert relay.metric("watchrelay_backpressure_seconds_total") > 0
        assert relay.metric("watchrelay_events_conflated_total") == 0
        _ended_right(relay, reader, *_PATHS)
    assert not any(_conflated(reader, stream) for stream in _PATHS)
