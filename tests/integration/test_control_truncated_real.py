"""A control topic that lost its newest records in an unclean leader election of real brokers, and
has grown over them before a reader comes back."""

import asyncio
import threading
from collections.abc import Awaitable, Iterator

import pytest
from confluent_kafka.admin import NewTopic

from tests.support.process import wait_until
from tests.support.rawbatches import batch, send
from tests.support.realparts import KafkaBroker, KafkaCluster
from watchrelay.admin.snapshot_request import ReadOnlySink, running
from watchrelay.contract.control import control_value
from watchrelay.core.errors import TopicLost
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.control_topic import ControlTopic

pytestmark = pytest.mark.real

TOPIC = "k8s.unclean.control"


@pytest.fixture
def brokers(real_parts: None) -> Iterator[KafkaCluster]:
    with KafkaCluster(3, properties={"unclean.leader.election.enable": "true"}) as brokers:
        yield brokers


def written(bootstrap: str, first: int, count: int, instance: str) -> None:
    """Records of a stream's claims: written outside of the event loop, which is blocked meanwhile."""
    claim = control_value({"instance": instance, "from": None})
    batches = [batch([(b"claim/s%d" % (first + number), claim, [])]) for number in range(count)]
    thread = threading.Thread(target=send, args=(bootstrap, TOPIC, *batches))
    thread.start()
    thread.join()


def leads(brokers: KafkaCluster, node: KafkaBroker) -> bool:
    known = brokers.admin.list_topics(TOPIC, timeout=10.0).topics[TOPIC].partitions
    return 0 in known and known[0].leader == brokers.nodes.index(node) + 1


async def within(what: Awaitable[object]) -> None:
    async with asyncio.timeout(600.0):
        await what


@pytest.mark.timeout(900)
def test_a_control_topic_that_has_grown_over_what_it_lost_is_read_again(
    brokers: KafkaCluster,
) -> None:
    first, second, third = brokers.nodes
    config = {"cleanup.policy": "compact", "min.insync.replicas": "1"}
    (made,) = brokers.admin.create_topics(
        [NewTopic(TOPIC, num_partitions=1, replica_assignment=[[1, 2]], config=config)]
    ).values()
    made.result()
    wait_until("it has a leader", lambda: leads(brokers, first), deadline_s=60.0)
    written(brokers.bootstrap, 0, 10, "kept")
    second.kill()
    written(brokers.bootstrap, 10, 10, "lost")

    async def main() -> None:
        connection = KafkaConnection(bootstrap_servers=tuple(brokers.bootstrap.split(",")))
        control = ControlTopic(connection, TOPIC, ReadOnlySink())
        async with running(within(control.run()), name="first reading"):
            await within(control.read_up_to(19))
            first.kill()
            second.restart()
            there = f"{second.bootstrap},{third.bootstrap}"
            wait_until("the other broker leads", lambda: leads(brokers, second), deadline_s=120.0)
            written(there, 10, 30, "instead")
            await within(asyncio.Event().wait())  # until the reading ends

    with pytest.raises(TopicLost, match="from offset 10 on were replaced by others"):
        asyncio.run(main())
