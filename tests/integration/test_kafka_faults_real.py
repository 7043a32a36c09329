"""Real brokers behind a path that fails, and brokers that fail: topics that end right, the fault
reported.

The API server is the synthetic one: it changes objects as fast as it is asked to.
`docs/reliability.md` lists what each test showed. All run on Kafka 4.1; `KAFKA=3.9` or
`KAFKA=3.9,4.1` runs all on these.
"""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AclOperation

from tests.support.churn import Churn
from tests.support.daemon import Daemon, command
from tests.support.embedded import EmbeddedCluster
from tests.support.faultproxy import FaultProxy
from tests.support.kafkabroker import versions
from tests.support.kafkarights import RIGHTS, grant, take
from tests.support.listed import await_equal
from tests.support.realparts import KafkaBroker, KafkaCluster
from tests.support.testbed import Testbed
from tests.support.topicreader import TopicReader

if TYPE_CHECKING:
    from tests.support.kafkabroker import Version

pytestmark = pytest.mark.real

_PATHS = {"configmaps": "/api/v1/configmaps"}
_SOON_S = 90.0
"""A fault is reported, and its end noticed, well within this: the sink waits 10 s before it reports
one and 60 s before it rebuilds."""


@pytest.fixture(scope="module", params=versions("4.1"))
def version(real_parts: None, request: pytest.FixtureRequest) -> "Version":
    """Which Kafka."""
    asked: Version = request.param
    return asked


def problem(relay: Daemon) -> str:
    """What /readyz says of Kafka; "" when all is well."""
    return str(relay.readyz()[1].get("problems", {}).get("kafka", ""))


def last_error(relay: Daemon) -> str:
    """The last error on the row of the stream."""
    return json.dumps(relay.stream("configmaps").get("lastError"))


@dataclass
class Scene:
    """A relay under churn with a reader of its topic."""

    testbed: Testbed
    relay: Daemon
    reader: TopicReader
    churn: Churn

    def spent_s(self) -> float:
        """How long all acknowledgements so far were waited for, together, by the relay's own
        metric."""
        return self.relay.metric("watchrelay_produce_duration_seconds_sum")

    def await_slowness(self, since_s: float, *, more_s: float) -> None:
        """Returns once acknowledgements took so much longer than when `spent_s` was `since_s`; the
        relay is live meanwhile."""
        self.relay.wait(
            "acknowledgements take seconds, by the metric",
            lambda: self.spent_s() - since_s > more_s,
            deadline_s=_SOON_S,
        )
        assert self.relay.livez() == 200

    def healed(self) -> None:
        """Every reported problem is over: the churn goes on past the fault, ends, and the topic is
        what the API server lists."""
        self.relay.wait(
            "the trouble is over",
            lambda: not problem(self.relay) and last_error(self.relay) == "null",
            deadline_s=_SOON_S,
        )
        self.churn.reach(self.churn.operations() + 40)
        self.churn.finish()
        await_equal(self.testbed.cluster, self.reader, _PATHS, deadline_s=_SOON_S)
        assert self.relay.livez() == self.relay.readyz()[0] == 200
        assert self.relay.metric("watchrelay_missed_changes_total") == 0
        assert self.relay.metric("watchrelay_list_total", result="success") == 1, (
            "Kafka's trouble cost the API server a list"
        )
        verified = command("verify", "-c", self.relay.file, "--cluster", timeout_s=90.0)
        assert verified.code == 0, verified.stdout + verified.stderr
        assert self.relay.stop() == 0
        self.reader.read()
        self.reader.assert_right(*_PATHS, duplicates=True)


@contextmanager
def on_scene(
    cluster: EmbeddedCluster, broker: Any, directory: Path, **kafka: Any
) -> Iterator[Scene]:
    """What happens in the block happens under churn; behind it everything must end right."""
    testbed = Testbed(cluster, broker, directory)
    relay = testbed.relay(*_PATHS, kafka=kafka)
    with testbed.under_churn(
        relay, testbed.topics(*_PATHS), namespaces=4, operations=400, per_s=60
    ) as (churn, reader):
        churn.reach(churn.operations() + 60)
        scene = Scene(testbed, relay, reader, churn)
        yield scene
        scene.healed()


# ---- the path to the brokers ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def path(version: "Version") -> Iterator[tuple[FaultProxy, KafkaBroker]]:
    """A broker, and the proxy whose address it advertises."""
    with FaultProxy() as proxy, KafkaBroker(version, via=proxy.port) as broker:
        proxy.lead_to(broker.ports["VIA"])
        yield proxy, broker


@pytest.fixture
def on_path(
    path: tuple[FaultProxy, KafkaBroker], cluster: EmbeddedCluster, tmp_path: Path
) -> AbstractContextManager[Scene]:
    """A scene whose relay comes to its broker by that proxy."""
    proxy, broker = path
    return on_scene(cluster, broker, tmp_path, bootstrapServers=[f"127.0.0.1:{proxy.port}"])


@contextmanager
def healing(proxy: FaultProxy) -> Iterator[None]:
    """What is done to the path in the block is over behind it, however it ends."""
    try:
        yield
    finally:
        proxy.heal()


def test_a_path_that_refuses_is_named_and_waited_for(
    path: tuple[FaultProxy, KafkaBroker], on_path: AbstractContextManager[Scene]
) -> None:
    proxy, _ = path
    with on_path as scene, healing(proxy):
        proxy.refuse()
        scene.relay.wait(
            "/readyz says so",
            lambda: "no acknowledgement" in problem(scene.relay),
            deadline_s=_SOON_S,
        )
        assert "Connect call failed" in problem(scene.relay)
        assert str(proxy.port) in problem(scene.relay)
        scene.relay.wait(
            "the row says so",
            lambda: "acknowledgement" in last_error(scene.relay),
            deadline_s=_SOON_S,
        )
        assert scene.relay.livez() == 200


def test_a_black_hole_is_reported_and_producing_goes_on_without_a_loss(
    path: tuple[FaultProxy, KafkaBroker], on_path: AbstractContextManager[Scene]
) -> None:
    proxy, _ = path
    with on_path as scene, healing(proxy):
        proxy.hold()
        scene.relay.wait(
            "/readyz says so",
            lambda: "no acknowledgement" in problem(scene.relay),
            deadline_s=_SOON_S,
        )
        scene.relay.wait(
            "the producer is thrown away",
            lambda: scene.relay.metric("watchrelay_producer_rebuilds_total") > 0,
            deadline_s=_SOON_S,
        )
        assert scene.relay.metric("watchrelay_produce_errors_total", error="no_acknowledgement") > 0
        assert scene.relay.livez() == 200


def test_connections_that_went_silent_for_good_are_left_for_new_ones(
    path: tuple[FaultProxy, KafkaBroker], on_path: AbstractContextManager[Scene]
) -> None:
    proxy, _ = path
    with on_path as scene:
        assert proxy.freeze_open() > 0
        scene.relay.wait(
            "it is reported",
            lambda: "acknowledgement" in problem(scene.relay) + last_error(scene.relay),
            deadline_s=_SOON_S,
        )


def connected_since(proxy: FaultProxy, count: int) -> bool:
    """More connections were made than `count`."""
    return proxy.connections > count


def test_a_path_that_cuts_in_mid_stream_loses_and_reorders_nothing(
    path: tuple[FaultProxy, KafkaBroker], on_path: AbstractContextManager[Scene]
) -> None:
    proxy, _ = path
    with on_path as scene:
        cuts = 0
        for after in (40, 300, 1000, 3000):
            before = proxy.connections
            proxy.cut_after(after)
            scene.relay.wait(
                "it connects again", partial(connected_since, proxy, before + 1), deadline_s=_SOON_S
            )
            cuts += proxy.connections - before
            proxy.heal()
            scene.churn.reach(scene.churn.operations() + 40)
        assert cuts >= 8


@pytest.mark.parametrize("slow", ["delayed", "throttled"])
def test_a_slow_path_delays_and_no_more(
    path: tuple[FaultProxy, KafkaBroker], on_path: AbstractContextManager[Scene], slow: str
) -> None:
    proxy, _ = path
    with on_path as scene:
        count, spent_s = (
            scene.relay.metric("watchrelay_produce_duration_seconds_count"),
            scene.spent_s(),
        )
        with healing(proxy):
            if slow == "delayed":
                proxy.delay(1.0)
            else:
                proxy.throttle(8000)
            scene.await_slowness(spent_s, more_s=6.0)
            assert scene.relay.metric("watchrelay_produce_duration_seconds_count") > count
        assert scene.relay.metric("watchrelay_producer_rebuilds_total") == 0, "slow is not broken"


def test_a_producer_that_is_throttled_by_quota_goes_on_slowly_and_catches_up(
    path: tuple[FaultProxy, KafkaBroker], on_path: AbstractContextManager[Scene]
) -> None:
    _, broker = path
    with on_path as scene:
        spent_s = scene.spent_s()
        broker.limit_producers(1000)
        try:
            scene.await_slowness(spent_s, more_s=5.0)
        finally:
            broker.limit_producers(None)


# ---- the brokers ---------------------------------------------------------------------------------


def test_when_all_brokers_are_replaced_behind_their_bootstrap_address_the_relay_finds_the_new_ones(
    version: "Version", cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with FaultProxy() as door, KafkaBroker(version) as broker:
        door.lead_to(broker.ports["PLAINTEXT"])
        testbed = Testbed(cluster, broker, tmp_path)
        relay = testbed.relay(*_PATHS, kafka={"bootstrapServers": [f"127.0.0.1:{door.port}"]})
        with Churn(cluster, testbed.namespaces(4), operations=400, per_s=60) as churn, relay:
            relay.await_ready()
            churn.reach(churn.operations() + 60)
            broker.move()
            door.refuse()
            door.heal()
            door.lead_to(broker.ports["PLAINTEXT"])
            relay.wait("it is reported", lambda: problem(relay), deadline_s=_SOON_S)
            relay.wait(
                "it finds them",
                lambda: not problem(relay) and last_error(relay) == "null",
                deadline_s=_SOON_S,
            )
            assert relay.metric("watchrelay_producer_rebuilds_total", reason="watchdog") >= 1
            asked = command("snapshot", "-c", relay.file, "configmaps", timeout_s=90.0)
            assert asked.code == 0, asked.stdout + asked.stderr
            with testbed.reader(testbed.topic("configmaps")) as reader:
                Scene(testbed, relay, reader, churn).healed()


@pytest.fixture(scope="module")
def brokers(version: "Version") -> Iterator[KafkaCluster]:
    with KafkaCluster(3, version=version) as brokers:
        yield brokers


@pytest.mark.parametrize("end", ["killed", "frozen"])
def test_a_leader_that_ends_is_followed_by_the_next_and_nothing_is_lost(
    brokers: KafkaCluster, cluster: EmbeddedCluster, tmp_path: Path, end: str
) -> None:
    copies = {
        "bootstrapServers": brokers.bootstrap.split(","),
        "replicationFactor": 3,
        "minInsyncReplicas": 2,
    }
    with on_scene(cluster, brokers, tmp_path, **copies) as scene:
        node = brokers.leader(scene.testbed.topic("configmaps"), 0)
        node.kill() if end == "killed" else node.pause()
        try:
            number = len(scene.reader.records)
            scene.reader.read_until(
                "records come again",
                lambda: len(scene.reader.records) > number + 60,
                deadline_s=_SOON_S,
            )
            assert scene.relay.livez() == 200
        finally:
            node.restart() if end == "killed" else node.resume()


def test_one_partition_without_a_leader_is_named_and_the_others_go_on(
    brokers: KafkaCluster, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    # One copy of each partition, on three brokers: the death of one leaves a third of them without
    # a leader.
    with on_scene(
        cluster,
        brokers,
        tmp_path,
        bootstrapServers=brokers.bootstrap.split(","),
        replicationFactor=1,
    ) as scene:
        topic = scene.testbed.topic("configmaps")
        node = brokers.leader(topic, 0)
        node.kill()
        try:
            scene.relay.wait(
                "the topic is named",
                lambda: topic in problem(scene.relay) + last_error(scene.relay),
                deadline_s=_SOON_S,
            )
            metric = "watchrelay_produce_duration_seconds_count"
            count = scene.relay.metric(metric, topic=topic)
            scene.relay.wait(
                "the others go on",
                lambda: scene.relay.metric(metric, topic=topic) > count + 10,
                deadline_s=_SOON_S,
            )
        finally:
            node.restart()


def test_a_right_that_is_taken_away_is_named_and_when_it_is_given_back_everything_is_published(
    version: "Version", cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with KafkaBroker(version, secured=True) as broker:
        grant(broker, *RIGHTS)
        (tmp_path / "password").write_text(broker.password)
        security = {
            "protocol": "SASL_PLAINTEXT",
            "mechanism": "PLAIN",
            "username": broker.user,
            "passwordFile": str(tmp_path / "password"),
        }
        with on_scene(
            cluster,
            broker,
            tmp_path,
            bootstrapServers=[broker.listeners["PLAIN"]],
            security=security,
        ) as scene:
            take(broker, AclOperation.WRITE)
            try:
                scene.relay.wait(
                    "the right is named",
                    lambda: "grant WRITE" in problem(scene.relay),
                    deadline_s=_SOON_S,
                )
                assert scene.testbed.topic("configmaps") in problem(scene.relay)
                assert (
                    scene.relay.metric(
                        "watchrelay_produce_errors_total", error="TopicAuthorizationFailedError"
                    )
                    > 0
                )
                assert scene.relay.livez() == 200
            finally:
                grant(broker, AclOperation.WRITE)
