"""The requests of a member, and their answers, over real sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka.errors import KafkaError

from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.kafka.client.brokers import Brokers
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.coordinator import Coordinator, Joined
from watchrelay.replicas.group import check_group

FIND_COORDINATOR, JOIN, HEARTBEAT = 10, 11, 12


@asynccontextmanager
async def coordinator(kafka: EmbeddedKafka) -> AsyncIterator[Coordinator]:
    brokers = Brokers(KafkaConnection(bootstrap_servers=(kafka.bootstrap,)))
    try:
        connection = await brokers.coordinator("relays")
        try:
            yield connection
        finally:
            connection.close()
    finally:
        brokers.close()


async def join(connection: Coordinator, member_id: str = "") -> Joined:
    return await connection.join(
        member_id,
        b"what it reports",
        instance="",
        protocol_type="watchrelay",
        protocol="watchrelay-1",
        session_ms=6000,
        rebalance_ms=1000,
    )


async def test_a_member_joins_is_assigned_and_leaves() -> None:
    with EmbeddedKafka.start() as kafka:
        async with coordinator(kafka) as connection:
            joined = await join(connection)
            if joined.code == 79:
                joined = await join(connection, joined.member_id)
            assert joined.code == 0
            assert joined.leader_id == joined.member_id != ""
            assert dict(joined.members) == {joined.member_id: b"what it reports"}
            given = {joined.member_id: b"its assignment"}
            code, assignment = await connection.sync(
                joined.member_id, joined.generation, given, instance=""
            )
            assert (code, assignment) == (0, b"its assignment")
            assert await connection.heartbeat(joined.member_id, joined.generation) == 0
            assert await connection.heartbeat("nobody", joined.generation) == 25
            assert await connection.leave(joined.member_id) == 0
            assert await connection.heartbeat(joined.member_id, joined.generation) == 25


async def test_error_codes_come_as_they_are() -> None:
    with EmbeddedKafka.start() as kafka:
        async with coordinator(kafka) as connection:
            kafka.push_request_errors(JOIN, [23])
            assert (await join(connection)).code == 23
            kafka.push_request_errors(HEARTBEAT, [16])
            assert await connection.heartbeat("somebody", 1) == 16
        kafka.push_request_errors(FIND_COORDINATOR, [30])
        with pytest.raises(KafkaError) as found:
            async with coordinator(kafka):
                pass
        assert getattr(found.value, "errno", None) == 30


async def test_brokers_that_describe_no_groups_are_usable_for_one() -> None:
    with EmbeddedKafka.start() as kafka:
        connection = KafkaConnection(bootstrap_servers=(kafka.bootstrap,))
        assert await check_group(connection, "relays", session_s=10.0) is None


async def test_a_coordinator_that_is_down_is_an_error_of_the_connection() -> None:
    with EmbeddedKafka.start() as kafka:
        async with coordinator(kafka) as connection:
            assert await connection.heartbeat("nobody", 1) != 0
            kafka.broker_down()
            with pytest.raises((KafkaError, OSError)):
                await connection.heartbeat("nobody", 1)
            with pytest.raises((KafkaError, OSError)):
                async with coordinator(kafka):
                    pass
