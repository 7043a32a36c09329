"""A cluster that answers under an address and cannot be used: whose fault it is, and the cure."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.support.extent import few
from tests.unit.kafka.client.test_brokers import FakeBroker, described, serving
from watchrelay.core.errors import SinkUnavailable
from watchrelay.kafka.client import KafkaError
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.failures import unreachable
from watchrelay.kafka.log_scan import descriptions
from watchrelay.kafka.topics import Topics, TopicSpec

Ask = Callable[[KafkaConnection], Awaitable[object]]


async def check_topic(connection: KafkaConnection) -> object:
    """As `validate`."""
    return await Topics(connection).check_topic(TopicSpec(name="a", replication_factor=1))


async def read_control(connection: KafkaConnection) -> object:
    """As whatever reads a topic with a consumer."""
    return await descriptions(connection, "a")


async def find_end(connection: KafkaConnection) -> object:
    """As the producer."""
    brokers = Brokers(connection)
    try:
        await brokers.refresh(["a"])
        return await brokers.end_offset("a", 0)
    except (KafkaError, OSError) as error:
        raise unreachable(connection, error) from error
    finally:
        brokers.close()


ways = pytest.mark.parametrize("ask", [check_topic, read_control, find_end])


async def why(ask: Ask, connection: KafkaConnection) -> str:
    with pytest.raises(SinkUnavailable) as caught:
        async with asyncio.timeout(60.0):
            await ask(connection)
    return str(caught.value)


@ways
@pytest.mark.parametrize(
    ("host", "port", "reason"),
    few([("127.0.0.1", 1, "Connect call failed"), ("nowhere.invalid", 9092, "not known")], 1),
)
async def test_an_advertised_address_that_cannot_be_reached_is_not_reported_as_the_bootstrap_address(
    ask: Ask, host: str, port: int, reason: str
) -> None:
    broker = FakeBroker()
    broker.metadata = lambda: described([(1, host, port)], {"a": 1})
    async with serving([broker]) as bootstrap:
        connection = KafkaConnection(bootstrap_servers=bootstrap)
        message = await why(ask, connection)
        assert message.startswith(
            f"broker {host}:{port}, advertised by kafka at {connection.servers}, is not usable: "
        )
        assert reason in message
        assert "correct advertised.listeners of the brokers" in message
        assert "kafka.bootstrapServers" not in message


class WantsUser(FakeBroker):
    """Hangs up on a client that asks for metadata without a user, as a listener of SASL does."""

    def alone(self) -> Any:
        raise ConnectionError


@ways
async def test_a_listener_that_wants_a_user_is_named_as_such(ask: Ask) -> None:
    async with serving([WantsUser()]) as bootstrap:
        message = await why(ask, KafkaConnection(bootstrap_servers=bootstrap))
        assert message.startswith(f"kafka at {bootstrap[0]} is not usable: ")
        assert message.endswith(
            "(does this port speak TLS, or want a user? check kafka.security.protocol; or the "
            "broker is at its limit of connections, max.connections.per.ip)"
        )


@ways
async def test_a_bootstrap_server_that_is_away_is_still_the_bootstrap_server(ask: Ask) -> None:
    message = await why(ask, KafkaConnection(bootstrap_servers=("127.0.0.1:1",)))
    assert message.startswith("kafka at 127.0.0.1:1 is not usable: no broker answers")
    assert "is kafka.bootstrapServers right?" in message
