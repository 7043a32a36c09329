"""Topics of a test's own on an embedded Kafka, a writer of pods on them, and the appender that puts
logs of `tests.support.stream_log` on any Kafka, offset by offset."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from typing import Any, Self

from aiokafka import AIOKafkaProducer

from tests.support.stream_log import NODES, Log, Writer, stream
from tests.vectors.document import claim, description
from watchrelay.consumer import Change, TopicReader
from watchrelay.demo.kafka import EmbeddedKafka
from watchrelay.kafka.client.patches import patch_client

NAMES = [f"shop/{letter}" for letter in "abcdefgh"]


class LogAppender:
    """Appends what logs gained since the last time. Use: `async with LogAppender(bootstrap) as
    appender`."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = AIOKafkaProducer(bootstrap_servers=bootstrap, linger_ms=1)
        patch_client(self._producer.client)
        self._appended: dict[tuple[str, int], int] = {}

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._producer.stop()

    async def append(self, topic: str, logs: Sequence[Log]) -> None:
        """Append the new records of each log to its partition; offsets on the broker are those of
        the log."""
        for partition, log in enumerate(logs):
            for offset in range(self._appended.get((topic, partition), 0), log.end):
                record = log.records[offset]
                sent = await self._producer.send(
                    topic, record.value, record.key, partition, headers=list(record.headers)
                )
                if offset == log.end - 1:
                    assert (await sent).offset == offset, "the topic had other records before"
            self._appended[topic, partition] = log.end

    async def send(
        self,
        topic: str,
        key: str | None,
        value: dict[str, object] | bytes | None,
        partition: int = 0,
    ) -> int:
        """One record without headers; its offset."""
        data = json.dumps(value).encode() if isinstance(value, dict) else value
        return int(
            (
                await self._producer.send_and_wait(
                    topic, data, None if key is None else key.encode(), partition
                )
            ).offset
        )


class PodTopics:
    """Topics of a test's own, and a writer of pods on two partitions, claimed at control offset 1
    under epoch 2."""

    def __init__(self, kafka: EmbeddedKafka, appender: LogAppender) -> None:
        self.kafka, self.appender = kafka, appender
        name = uuid.uuid4().hex[:8]
        self.topic, self.control = f"k8s.{name}.core.pods", f"k8s.{name}.control"
        kafka.create_topic(self.topic, 2)
        kafka.create_topic(self.control, 1)
        self.logs = [Log(), Log()]
        self.writer = Writer(stream(partitions=2), self.logs, epoch=2)

    async def append(self) -> None:
        await self.appender.append(self.topic, self.logs)

    async def describe(self, *, index: bool = True) -> None:
        await self.appender.send(self.control, "stream/pods", description(2, topic=self.topic))
        await self.appender.send(self.control, "claim/pods", claim("w1"))
        if index:
            await self.appender.send(self.control, "snapshot/pods", self.writer.index())

    async def begin(self) -> None:
        """A first snapshot, a delete, a second snapshot, a change, a heartbeat."""
        self.writer.first(*NAMES)
        self.writer.delete("shop/h")
        self.writer.snapshot()
        self.writer.put("shop/a", 2)
        self.writer.beat()
        await self.append()
        await self.describe()

    async def begin_with_nodes(self, *names: str) -> None:
        """A second stream, of nodes, beside that of pods: of each a first snapshot and a heartbeat,
        and a change of a pod."""
        self.writer = Writer(stream(partitions=2, prefix=b"pods/"), self.logs, epoch=2)
        nodes = Writer(stream(NODES, partitions=2, prefix=b"nodes/"), self.logs, epoch=5)
        self.writer.first(*NAMES)
        nodes.first(*names)
        self.writer.put("shop/a", 2)
        self.writer.beat()
        nodes.beat()
        await self.append()
        await self.describe()
        await self.appender.send(self.control, "stream/nodes", description(2, topic=self.topic))
        await self.appender.send(self.control, "claim/nodes", claim("w1"))

    def held(self) -> dict[str, bytes]:
        return {
            key.decode(): entry.value for held in self.writer.held for key, entry in held.items()
        }

    def reader(self, **more: Any) -> TopicReader:
        return TopicReader(self.kafka.bootstrap, **({"control_topic": self.control} | more))

    def ended(self, **more: Any) -> TopicReader:
        return self.reader(until_end=True, **more)


async def take(reader: TopicReader, count: int) -> list[Change]:
    async with asyncio.timeout(60.0):
        return [await anext(reader) for _ in range(count)]


def state(reader: TopicReader, stream: str = "pods") -> dict[str, bytes]:
    """The JSON of what the reader holds, by key."""
    objects = reader.objects(stream)
    return {key: objects.value(key) or b"" for key in objects}


async def everything(reader: TopicReader) -> list[Change]:
    return [change async for change in reader]
