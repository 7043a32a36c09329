"""A relay whose clock is wrong, on the embedded parts: the mock Kafka describes no topic, so that
Kafka's defaults count (CreateTime, 7 days)."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemon import Daemon
from tests.support.embedded import EmbeddedBroker, EmbeddedCluster
from tests.support.movedclock import MovedClock
from tests.support.testbed import Testbed

DAY_S = 86_400.0
KEPT_S = 7 * DAY_S
STREAM = "configmaps"


@pytest.fixture
def testbed(cluster: EmbeddedCluster, broker: EmbeddedBroker, tmp_path: Path) -> Testbed:
    testbed = Testbed(cluster, broker, tmp_path)
    testbed.make_topics(STREAM, signal=False)
    return testbed


class Relay:
    """A relay with a clock of its own, and what is on its topic."""

    def __init__(self, testbed: Testbed, directory: Path, *, ahead_s: float) -> None:
        self.clock = MovedClock(directory, ahead_s=ahead_s)
        self.daemon = Daemon(testbed.config(STREAM), directory, environment=self.clock.environment)
        self.testbed = testbed
        self.path = testbed.config_maps(5)

    def change(self, name: str, value: str) -> None:
        body = {"metadata": {"name": name}, "data": {"n": value}}
        self.testbed.cluster.request("POST", self.path, body)

    @property
    def clock_card(self) -> dict[str, Any]:
        cards = self.daemon.get_json("/api/overview").get("cards", [])
        return next((card for card in cards if card["cause"] == "clock"), {})

    def published(self) -> float:
        """How many changes."""
        return self.daemon.metric("watchrelay_records_acked_total", kind="event")

    def waits(self) -> bool:
        return "this machine's clock is" in (self.daemon.stream(STREAM).get("waitsFor") or "")

    def shows(self, ahead_s: float) -> bool:
        shown_s = self.daemon.metric("watchrelay_clock_offset_seconds", source="kubernetes")
        return bool(self.clock_card) and abs(shown_s - ahead_s) < 5


def oldest_s(testbed: Testbed) -> float:
    """The time of the oldest record on the topic."""
    with testbed.reader(testbed.topic(STREAM)) as reader:
        reader.read()
        assert reader.times_ms is not None, "the topic is empty"
        return reader.times_ms[0] / 1000


def test_a_start_20_days_behind_writes_nothing_until_the_clock_is_right(
    testbed: Testbed, tmp_path: Path
) -> None:
    relay = Relay(testbed, tmp_path, ahead_s=-20 * DAY_S)
    with relay.daemon as daemon, testbed.reader(testbed.topic(STREAM)) as reader:
        daemon.wait("the stream waits for the clock", relay.waits)
        daemon.wait("the clock is shown", lambda: relay.shows(-20 * DAY_S))
        waits_for = daemon.stream(STREAM)["waitsFor"]
        assert "20 d 0 h behind" in waits_for
        assert "--add-config message.timestamp.type=LogAppendTime" in waits_for
        assert relay.clock_card["level"] == "person"
        assert relay.clock_card["streams"] == [STREAM]
        assert reader.read() == 0
        assert daemon.stream(STREAM)["epoch"] is None, "the stream was claimed"
        relay.clock.set(0.0)
        daemon.wait("the state is published", lambda: daemon.stream(STREAM)["complete"])
        daemon.wait("nothing is shown", lambda: not relay.clock_card)
        daemon.stop()
    assert oldest_s(testbed) > time.time() - KEPT_S / 2


def test_a_clock_that_is_set_back_20_days_while_the_relay_runs_holds_the_records(
    testbed: Testbed, tmp_path: Path
) -> None:
    relay = Relay(testbed, tmp_path, ahead_s=0.0)
    with relay.daemon as daemon:
        daemon.await_ready()
        daemon.wait(
            "several answers were received",
            lambda: "watchrelay_clock_offset_seconds{" in daemon.metrics(),
        )
        relay.clock.set(-20 * DAY_S)
        daemon.wait("the stream waits for the clock", relay.waits)
        relay.change("late", "1")
        daemon.wait("the change is queued", lambda: daemon.metric("watchrelay_queue_records") > 0)
        daemon.wait("the clock is shown", lambda: relay.shows(-20 * DAY_S))
        assert relay.published() == 0
        assert "no acknowledgement" not in str(daemon.readyz()[1])
        relay.clock.set(0.0)
        daemon.wait("nothing is shown", lambda: not relay.clock_card and not relay.waits())
        daemon.wait("the change is published", lambda: relay.published() == 1)
        assert daemon.stop() == 0
    with testbed.reader(testbed.topic(STREAM)) as reader:
        reader.read()
        assert any(key.endswith(b"/late") for key in reader.table(STREAM))
    assert oldest_s(testbed) > time.time() - KEPT_S / 2
