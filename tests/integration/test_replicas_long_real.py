"""Three replicas that share six streams, under churn, and what may happen to them, to Kafka and to
the API server. Each stream has one owner again, and the topics verify."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.churn import Churn
from tests.support.embedded import EmbeddedCluster
from tests.support.faultproxy import FaultProxy
from tests.support.kafkabroker import KafkaBroker, KafkaCluster
from tests.support.pace import last
from tests.support.process import wait_until
from tests.support.replicas import SESSION_S, SETTLE_S, Replicas
from tests.support.testbed import Testbed

pytestmark = [pytest.mark.real, pytest.mark.long]
STREAMS = 6
UNFIT_S = 30.0
MOVED_S = SESSION_S + 2 * SETTLE_S


class Trio:
    """Replicas a, b and c under churn; `entry` is what they have in their config. a reaches both
    sides by proxies."""

    def __init__(self, testbed: Testbed, stack: ExitStack, **of_a: Any) -> None:
        namespaces = testbed.namespaces(STREAMS)
        self.entry = {"resource": "configmaps", "namespaces": namespaces}
        self.replicas = Replicas(testbed, [self.entry], stack, streams=STREAMS)
        self.churn = stack.enter_context(
            Churn(testbed.cluster, namespaces, operations=100, kinds=("configmaps",), per_s=50)
        )
        for name, more in (("a", of_a), ("b", {}), ("c", {})):
            self.replicas.start(name, **more)
        for relay in self.replicas.running.values():
            relay.await_ready()
        self.replicas.await_shared(deadline_s=30.0, even=True)

    def await_moved_from(self, name: str, *, deadline_s: float) -> None:
        """Return once another owns each stream."""
        replicas = self.replicas
        wait_until(
            f"{name} owns nothing, and the others all",
            lambda: (
                sorted(map(len, (owned := replicas.owned()).values())) == [0, 3, 3]
                and not owned[name]
            ),
            deadline_s=deadline_s,
        )

    def verify(self) -> None:
        self.churn.finish()
        self.replicas.verify()


@pytest.fixture(scope="module")
def to_kafka() -> Iterator[FaultProxy]:
    with FaultProxy() as proxy:
        yield proxy


@pytest.fixture(scope="module")
def own_broker(real_parts: None, to_kafka: FaultProxy) -> Iterator[KafkaBroker]:
    with KafkaBroker("4.1", via=to_kafka.port) as broker:
        to_kafka.lead_to(broker.ports["VIA"])
        yield broker


@pytest.fixture
def to_api(cluster: EmbeddedCluster) -> Iterator[FaultProxy]:
    with FaultProxy(cluster.port) as proxy:
        yield proxy


@pytest.fixture
def testbed(cluster: EmbeddedCluster, own_broker: KafkaBroker, tmp_path: Path) -> Testbed:
    return Testbed(cluster, own_broker, tmp_path)


@pytest.fixture
def trio(
    testbed: Testbed, cluster: EmbeddedCluster, to_kafka: FaultProxy, to_api: FaultProxy
) -> Iterator[Trio]:
    with ExitStack() as stack:
        yield Trio(
            testbed,
            stack,
            kubeconfig=cluster.kubeconfig_by(to_api.port),
            kafka={"bootstrapServers": [f"127.0.0.1:{to_kafka.port}"]},
        )


def _nothing_moves(trio: Trio, fault: Callable[[], object]) -> None:
    """`fault` comes and goes: the same replicas go on in the same epochs."""
    replicas = trio.replicas
    owned, epochs = replicas.owned(), replicas.epochs()
    fault()
    operations = trio.churn.operations()
    trio.churn.reach(operations + 50)
    trio.verify()
    assert (replicas.owned(), replicas.epochs()) == (owned, epochs)
    assert not replicas.logged("repairing stale records")


# ---- Kafka ---------------------------------------------------------------------------------------


def test_the_death_of_the_coordinators_broker_moves_nothing(
    real_parts: None, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    with KafkaCluster(3) as kafka, ExitStack() as stack:
        testbed = Testbed(cluster, kafka, tmp_path)
        for topic, partitions in (
            (testbed.control_topic, 1),
            (testbed.signal_topic, 1),
            (testbed.topic("configmaps"), 3),
        ):
            kafka.create_topic(topic, partitions=partitions)
        trio = Trio(testbed, stack)
        group = f"k8s.{testbed.name}.relays"
        groups = "__consumer_offsets"
        known: dict[int, Any] = kafka.admin.list_topics(groups).topics[groups].partitions
        node = kafka.leader(groups, _java_hash(group) % len(known))

        def fault() -> None:
            node.kill()
            last(2 * SESSION_S)  # another broker coordinates meanwhile

        _nothing_moves(trio, fault)


def _java_hash(text: str) -> int:
    """By which Kafka finds the partition of a group."""
    total = 0
    for each in text:
        total = (31 * total + ord(each)) & 0xFFFFFFFF
    return total & 0x7FFFFFFF


@pytest.mark.parametrize("away_s", [SESSION_S + 1, 31.0])
def test_when_all_brokers_were_away_the_same_replicas_go_on(
    trio: Trio, own_broker: KafkaBroker, away_s: float
) -> None:
    def fault() -> None:
        own_broker.kill()
        last(away_s)
        own_broker.restart()

    _nothing_moves(trio, fault)


def test_a_replica_that_is_cut_off_from_kafka_loses_its_streams_and_gets_some_again(
    trio: Trio, to_kafka: FaultProxy
) -> None:
    replicas = trio.replicas
    cut_off = replicas.running.pop("a")
    to_kafka.hold()
    try:
        replicas.await_shared(deadline_s=MOVED_S)
    finally:
        to_kafka.heal()
    replicas.running["a"] = cut_off
    trio.replicas.await_shared(deadline_s=30.0, even=True)
    trio.verify()


# ---- the API server ------------------------------------------------------------------------------


def test_a_replica_that_is_cut_off_from_the_api_server_hands_its_streams_over(
    trio: Trio, to_api: FaultProxy
) -> None:
    mark = trio.replicas.mark()
    to_api.refuse()
    trio.await_moved_from("a", deadline_s=UNFIT_S + MOVED_S)
    to_api.heal()
    handed = [line for line in mark() if line["message"] == "stream handed over"]
    assert len(handed) == 2, handed
    trio.replicas.await_shared(deadline_s=30.0, even=True)
    trio.verify()


def test_while_the_api_server_is_away_nothing_moves(trio: Trio, cluster: EmbeddedCluster) -> None:
    def fault() -> None:
        cluster.kill()
        last(UNFIT_S + SESSION_S)
        cluster.restart()

    _nothing_moves(trio, fault)


# ---- moves ---------------------------------------------------------------------------------------


def test_a_successor_that_dies_in_the_middle_of_a_move_leaves_no_stream_without_an_owner(
    trio: Trio,
) -> None:
    replicas = trio.replicas
    leaving, dying = replicas.running.pop("a"), replicas.running.pop("b")
    since = dying.log_bytes
    leaving.send(signal.SIGTERM)
    wait_until(
        "the successor is assigned streams",
        lambda: any(line["message"] == "streams assigned" for line in dying.lines(since=since)),
        poll_s=0.001,
    )
    dying.kill()
    assert leaving.exit_code(deadline_s=60.0) == 0
    replicas.await_shared(deadline_s=MOVED_S)
    trio.verify()


def test_a_former_owner_that_hangs_in_a_move_is_waited_for_a_moment(trio: Trio) -> None:
    replicas = trio.replicas
    hanging = replicas.running.pop("a")
    mark = replicas.mark()
    hanging.send(signal.SIGTERM)
    wait_until(
        "a successor claims",
        lambda: any(line["message"] == "stream claimed" for line in mark()),
        poll_s=0.001,
    )
    hanging.send(signal.SIGSTOP)
    try:
        replicas.await_shared(deadline_s=MOVED_S)
    finally:
        hanging.send(signal.SIGCONT)
    assert hanging.exit_code(deadline_s=60.0) in {0, 1}
    trio.verify()


def test_a_static_replica_that_restarts_within_its_session_has_its_streams_back(
    testbed: Testbed,
) -> None:
    with ExitStack() as stack:
        trio = Trio(testbed, stack, sharding={"instance": "a", "sessionTimeout": "15s"})
        replicas = trio.replicas
        restarted = replicas.running["a"]
        wait_until(
            "its second join, which a new static member asks for, is over",
            lambda: sum(line["message"] == "joined the group" for line in restarted.lines()) >= 2,
        )
        replicas.await_shared(deadline_s=15.0)
        owned, epochs = replicas.owned(), replicas.epochs()
        restarted.kill()
        restarted.start().await_ready()
        replicas.await_shared(deadline_s=15.0)
        after = replicas.epochs()
        assert replicas.owned() == owned
        assert {stream for stream in after if after[stream] > epochs[stream]} == set(owned["a"])
        trio.verify()


def test_a_relay_outside_the_group_gives_the_streams_up_to_it(trio: Trio, testbed: Testbed) -> None:
    outsider = testbed.relay(trio.entry, name="outsider")
    with outsider:
        assert outsider.exit_code(deadline_s=60.0) == 75
    trio.replicas.await_shared(deadline_s=60.0)
    assert all(relay.alive for relay in trio.replicas.running.values())
    trio.verify()


def test_an_edit_that_one_of_three_has_seen_adds_its_stream_and_moves_no_other(
    trio: Trio, testbed: Testbed
) -> None:
    replicas = trio.replicas
    owned, epochs = replicas.owned(), replicas.epochs()

    def edit(name: str) -> None:
        relay = replicas.running[name]
        config = {**relay.config, "resources": [trio.entry, {"resource": "secrets"}]}
        relay.file.write_text(yaml.safe_dump(config, sort_keys=False))

    edit("b")
    replicas.streams += 1
    after = replicas.await_shared(deadline_s=30.0)
    assert after == {**owned, "b": [*owned["b"], "secrets"]}
    for name in "ac":
        edit(name)
    last(SETTLE_S)  # they adopt the edit, and nothing comes of it
    assert replicas.await_shared(deadline_s=30.0) == after
    assert replicas.epochs().items() >= epochs.items()
    trio.verify()
