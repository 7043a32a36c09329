"""For tests of the sink: a running sink, batches to deliver, and the records of a topic."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.support.kafkarights import PREFIX
from tests.support.troubles import problem_of
from watchrelay.contract.wire import Batch, WireRecord
from watchrelay.kafka.client.connection import KafkaConnection
from watchrelay.kafka.client.consumer import stop_consumer
from watchrelay.kafka.client.link import Link
from watchrelay.kafka.client.patches import patch_client
from watchrelay.kafka.producer import ProducerSettings
from watchrelay.kafka.sink import KafkaSink
from watchrelay.kafka.topics import TopicSpec
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

QUICK = ProducerSettings(request_timeout_s=1.0, stalled_after_s=0.4)
"""Patience cut to what a test can wait for."""


async def until(claim: Callable[[], bool], *, deadline_s: float = 60.0) -> None:
    """Returns once `claim` holds; TimeoutError when it does not in time."""
    async with asyncio.timeout(deadline_s):
        while not claim():  # noqa: ASYNC110  # a claim about anything has no event to wait for
            await asyncio.sleep(0.01)


def batch(topic: str, partition: int, *names: str, padding: int = 0) -> Batch:
    """A batch of records whose keys are `names`."""
    records = [
        WireRecord(
            name.encode(), f"value of {name}".encode() + b"." * padding, [("ce_id", name.encode())]
        )
        for name in names
    ]
    return Batch(topic, partition, records)


class Running:
    """A sink at work, and its status registry and metrics."""

    def __init__(self, connection: KafkaConnection, settings: ProducerSettings) -> None:
        self.connection = connection
        self.metrics = Metrics()
        self.statuses = StatusRegistry()
        self.sink = KafkaSink(
            connection, metrics=self.metrics, statuses=self.statuses, settings=settings
        )

    @property
    def problem(self) -> str:
        """What the status registry says of Kafka, "" when all is well."""
        return problem_of(self.statuses, "kafka")

    def rebuilds(self, reason: str) -> float:
        """How often the producer replaced connections or ids for this reason."""
        return (
            self.metrics.registry.get_sample_value(
                "watchrelay_producer_rebuilds_total", {"reason": reason}
            )
            or 0.0
        )

    def errors(self, topic: str) -> dict[str, float]:
        """Failed batches by error."""
        return {
            sample.labels["error"]: sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "watchrelay_produce_errors_total" and sample.labels["topic"] == topic
        }


@asynccontextmanager
async def running_sink(
    connection: KafkaConnection | str, settings: ProducerSettings = QUICK
) -> AsyncIterator[Running]:
    """A sink with its task; stopped at the end. One that fails ends the block at once with its
    error: batches would wait for it without end."""
    if isinstance(connection, str):
        connection = KafkaConnection(bootstrap_servers=tuple(connection.split(",")))
    running = Running(connection, settings)
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(running.sink.run(), name="sink")
            try:
                yield running
            finally:
                task.cancel()
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


async def keys_on(bootstrap: str, topic: str, partitions: int) -> list[list[bytes]]:
    """The keys of each partition in log order, up to the end as it is now."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None
    )
    patch_client(consumer._client)
    try:
        await consumer.start()
        every = [TopicPartition(topic, partition) for partition in range(partitions)]
        consumer.assign(every)
        ends = await consumer.end_offsets(every)
        found: list[list[bytes]] = [[] for _ in every]
        async with asyncio.timeout(60.0):
            while any([await consumer.position(each) < ends[each] for each in every]):
                for each, records in (await consumer.getmany(*every, timeout_ms=100)).items():
                    found[each.partition] += [record.key for record in records]
        return found
    finally:
        await stop_consumer(consumer, within_s=5.0)


def fresh_topic() -> str:
    return f"{PREFIX}{uuid.uuid4().hex}"


def one(
    name: str, *, partitions: int = 2, interval_s: float = 3600.0, replication_factor: int = 1
) -> TopicSpec:
    return TopicSpec(
        name=name,
        partitions=partitions,
        replication_factor=replication_factor,
        min_insync_replicas=1,
        snapshot_interval_s=interval_s,
    )


def idle_link(take: Callable[[Any], bytes] = lambda _: b"") -> Link:
    """A link to a broker, not opened yet, whose answers go nowhere."""
    return Link(
        client_id="t",
        timeout_s=1.0,
        request_bytes=1000,
        take=take,
        answered=lambda *_: None,
        lost=lambda *_: None,
    )
