"""A relay whose clock is wrong, on real parts: what Kafka 3.9 and 4.1 take on topics with CreateTime,
and that LogAppendTime makes the clock of no consequence. REAL=1."""

import time
from pathlib import Path

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from tests.support.daemon import Daemon
from tests.support.kafkabroker import KafkaBroker, on_both
from tests.support.movedclock import MovedClock
from tests.support.testbed import Testbed

DAY_S = 86_400.0
STREAM = "configmaps"
KEEPS = {"cleanup.policy": "compact,delete", "retention.ms": str(7 * 86_400_000)}
KEEPS |= {"min.compaction.lag.ms": "604800000", "delete.retention.ms": "604800000"}
BY_RELAY = {"message.timestamp.type": "CreateTime"}
BY_BROKER = {"message.timestamp.type": "LogAppendTime"}


class Relay:
    """A relay of one namespace with a clock of its own, and a topic that was made beforehand."""

    def __init__(
        self, testbed: Testbed, directory: Path, settings: dict[str, str], *, ahead_s: float
    ) -> None:
        self.topic = testbed.topic(STREAM)
        broker = testbed.broker
        assert isinstance(broker, KafkaBroker), "real parts"
        self._broker, self.version = broker, broker.version
        broker.create_topic(self.topic, partitions=3, config={**KEEPS, **settings})
        namespace = testbed.config_maps(4).split("/")[4]
        clock = MovedClock(directory, ahead_s=ahead_s)
        self.daemon = Daemon(
            testbed.config({"resource": STREAM, "namespaces": [namespace]}),
            directory,
            environment=clock.environment,
        )

    def stream(self) -> dict[str, object]:
        return next(iter(self.daemon.api_streams().values()), {})

    @property
    def name(self) -> str:
        return next(iter(self.daemon.api_streams()), "")

    def alter(self, settings: dict[str, str]) -> None:
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(
            ConfigResource.Type.TOPIC, self.topic, incremental_configs=entries
        )
        for changed in self._broker.admin.incremental_alter_configs([resource]).values():
            changed.result(10.0)


@on_both
def test_20_days_behind_nothing_is_written_until_brokers_give_the_time(
    testbed: Testbed, tmp_path: Path
) -> None:
    relay = Relay(testbed, tmp_path, BY_RELAY, ahead_s=-20 * DAY_S)
    with relay.daemon as daemon, testbed.reader(relay.topic) as reader:
        daemon.wait(
            "the stream waits for the clock",
            lambda: "this machine's clock is 20 d" in str(relay.stream().get("waitsFor")),
        )
        assert daemon.readyz()[0] == 200, "it waits for an operator"
        assert reader.read() == 0
        relay.alter(BY_BROKER)
        daemon.wait("the state is published", lambda: relay.stream().get("complete"))
        reader.read_until("the stream is proven", lambda: reader.proven(relay.name))
        assert reader.timestamp_types == {TIMESTAMP_LOG_APPEND_TIME}
        assert reader.times_ms is not None
        assert reader.times_ms[0] / 1000 > time.time() - DAY_S
        daemon.wait(
            "kafka's clock is known",
            lambda: (
                abs(daemon.metric("watchrelay_clock_offset_seconds", source="kafka") + 20 * DAY_S)
                < 30
            ),
        )
        assert daemon.stop() == 0


@on_both
def test_a_day_ahead_kafka_4_refuses_create_times_and_the_relay_names_the_clock(
    testbed: Testbed, tmp_path: Path
) -> None:
    relay = Relay(testbed, tmp_path, BY_RELAY, ahead_s=DAY_S)
    with relay.daemon as daemon, testbed.reader(relay.topic) as reader:

        def refused() -> bool:
            return "INVALID_TIMESTAMP" in str(daemon.readyz()[1].get("problems"))

        daemon.wait(
            "the records are taken or refused",
            lambda: refused() or relay.stream().get("complete"),
        )
        assert refused() == (relay.version == "4.1")
        if refused():
            problems = str(daemon.readyz()[1]["problems"])
            assert "1 d 0 h ahead" in problems
            assert "--add-config message.timestamp.type=LogAppendTime" in problems
            assert reader.read() == 0
            relay.alter(BY_BROKER)
            daemon.wait("the state is published", lambda: relay.stream().get("complete"))
        else:
            reader.read()
            assert reader.timestamp_types == {TIMESTAMP_CREATE_TIME}
        assert daemon.stop() == 0
