"""One record, by a client of its own: for commands that run once."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from watchrelay.kafka.client.client_log import quiet_client_log
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.failures import unreachable
from watchrelay.kafka.client.patches import patch_client


async def send_record(
    connection: KafkaConnection,
    topic: str,
    *,
    key: bytes,
    value: bytes,
    request_timeout_s: float,
    within_s: float,
) -> int:
    """Write one record to partition 0 and return its offset.

    Raises: SinkUnavailable; the record may have been written all the same.
    """
    quiet_client_log()
    producer = AIOKafkaProducer(
        **connection.arguments(), acks="all", request_timeout_ms=int(request_timeout_s * 1000)
    )
    patch_client(producer.client)
    try:
        async with asyncio.timeout(within_s):
            try:
                await producer.start()
                sent = await producer.send_and_wait(topic, value, key=key, partition=0)
            finally:
                await producer.stop()
    except (KafkaError, OSError, TimeoutError) as error:
        raise unreachable(connection, error, producer.client.failure) from error
    return int(sent.offset)
