"""Real Kafka that cannot be used as it is configured: the message has the cause and the cure."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.support.kafkabroker import KafkaBroker, versions
from tests.support.process import free_port
from tests.support.sinkparts import fresh_topic, one, running_sink, until
from watchrelay.core.errors import SinkMisconfigured, SinkUnavailable
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.log_scan import descriptions
from watchrelay.kafka.producer import ProducerSettings
from watchrelay.kafka.topics import Topics
from watchrelay.replicas.group import check_group

pytestmark = pytest.mark.real

Ask = Callable[[KafkaConnection], Awaitable[object]]


async def check_topic(connection: KafkaConnection) -> object:
    """As `validate`."""
    return await Topics(connection).check_topic(one(fresh_topic()))


async def read_control(connection: KafkaConnection) -> object:
    """As whatever reads a topic with a consumer: `tail`, `retire`, the control topic."""
    return await descriptions(connection, "any")


async def check(connection: KafkaConnection) -> object:
    """As `validate` of replicas."""
    return await check_group(connection, "any", session_s=30.0)


async def write(connection: KafkaConnection) -> object:
    """As the relay: what it shows, where it goes on trying."""
    hasty = ProducerSettings(request_timeout_s=5.0, stalled_after_s=1.0)
    async with running_sink(connection, hasty) as running:
        await until(lambda: bool(running.problem))
        raise SinkUnavailable(running.problem)


ways = pytest.mark.parametrize("ask", [check_topic, read_control, check, write])


@pytest.fixture(scope="module", params=versions("4.1"))
def secured(real_parts: None, request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    with KafkaBroker(request.param, secured=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def elsewhere(real_parts: None) -> Iterator[KafkaBroker]:
    """A broker that advertises to clients a port on which nothing listens."""
    with KafkaBroker("4.1", via=free_port()) as broker:
        broker.create_topic("any")
        yield broker


@ways
async def test_a_client_without_a_user_at_a_listener_of_sasl_is_pointed_to_the_protocol(
    secured: KafkaBroker, ask: Ask
) -> None:
    where = secured.listeners["PLAIN"]
    with pytest.raises(SinkUnavailable) as caught:
        async with asyncio.timeout(60.0):
            await ask(KafkaConnection(bootstrap_servers=(where,)))
    message = str(caught.value)
    assert f"kafka at {where} is not usable: " in message
    assert "does this port speak TLS, or want a user? check kafka.security.protocol" in message


@asynccontextmanager
async def all_held(where: str) -> AsyncIterator[None]:
    """All connections that the broker takes are held, until it closes a further one. The first
    alone may be closed because the client that waited for its start has not gone yet."""
    host, port = where.split(":")
    async with AsyncExitStack() as stack:
        kept, closed = 0, False
        while not (kept and closed):
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            closed = True
            try:
                async with asyncio.timeout(1.0):
                    await reader.read(1)
            except ConnectionResetError:
                pass
            except TimeoutError:
                kept, closed = kept + 1, False
        yield


@pytest.mark.parametrize("ask", [check_topic, write])
async def test_a_broker_at_its_limit_of_connections_is_pointed_to_that_limit(
    real_parts: None, ask: Ask
) -> None:
    with KafkaBroker("4.1", properties={"max.connections.per.ip": "2"}) as broker:
        async with all_held(broker.bootstrap):
            with pytest.raises(SinkUnavailable, match=r"max\.connections\.per\.ip"):
                await ask(KafkaConnection(bootstrap_servers=(broker.bootstrap,)))


@pytest.mark.parametrize("ask", [check_topic, read_control, check])
async def test_an_advertised_address_that_cannot_be_reached_is_named_as_such(
    elsewhere: KafkaBroker, ask: Ask
) -> None:
    bootstrap, advertised = f"127.0.0.1:{elsewhere.ports['VIA']}", elsewhere.via
    with pytest.raises(SinkUnavailable) as caught:
        async with asyncio.timeout(60.0):
            await ask(KafkaConnection(bootstrap_servers=(bootstrap,)))
    message = str(caught.value)
    assert message.startswith(
        f"broker 127.0.0.1:{advertised}, advertised by kafka at {bootstrap}, is not usable: "
    )
    assert "correct advertised.listeners of the brokers" in message


async def test_a_session_that_the_brokers_would_refuse_is_found_by_the_check_which_joins_nothing(
    kafka_broker: KafkaBroker,
) -> None:
    connection = KafkaConnection(bootstrap_servers=(kafka_broker.bootstrap,))
    group = fresh_topic()
    for session_s in (1.0, 3600.0):
        with pytest.raises(SinkMisconfigured, match=r"group\.min\.session\.timeout\.ms"):
            await check_group(connection, group, session_s=session_s)

    async def loaded() -> int | None:
        while True:
            with contextlib.suppress(SinkUnavailable):
                return await check_group(connection, group, session_s=6.0)

    async with asyncio.timeout(60.0):
        assert await loaded() == 0


async def test_a_cluster_too_small_for_the_topic_of_groups_is_pointed_to_its_replication_factor(
    real_parts: None,
) -> None:
    with KafkaBroker("4.1", properties={"offsets.topic.replication.factor": "3"}) as broker:
        connection = KafkaConnection(bootstrap_servers=(broker.bootstrap,))
        with pytest.raises(SinkUnavailable, match=r"offsets\.topic\.replication\.factor"):
            await check_group(connection, fresh_topic(), session_s=6.0)
