"""Topics of a test's own on an embedded Kafka, and a writer of pods on them.

Room: test support.  In: an embedded Kafka, a teller.  Out: a `Stage`, and what a reader of it hands
out.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from tests.support.story import Log, Writer, stream
from tests.support.telling import Teller
from tests.vectors.telling import claim, description
from watchrelay.consumer import Change, TopicReader
from watchrelay.demo.kafka import EmbeddedKafka

NAMES = [f"shop/{letter}" for letter in "abcdefgh"]


class Stage:
    """Topics of a test's own, and a writer of pods on two partitions, claimed at control offset 1
    under epoch 2."""

    def __init__(self, kafka: EmbeddedKafka, teller: Teller) -> None:
        self.kafka, self.teller = kafka, teller
        name = uuid.uuid4().hex[:8]
        self.topic, self.control = f"k8s.{name}.core.pods", f"k8s.{name}.control"
        kafka.create_topic(self.topic, 2)
        kafka.create_topic(self.control, 1)
        self.logs = [Log(), Log()]
        self.writer = Writer(stream(partitions=2), self.logs, epoch=2)

    async def tell(self) -> None:
        await self.teller.tell(self.topic, self.logs)

    async def describe(self, *, index: bool = True) -> None:
        await self.teller.say(self.control, "stream/pods", description(2, topic=self.topic))
        await self.teller.say(self.control, "claim/pods", claim("w1"))
        if index:
            await self.teller.say(self.control, "snapshot/pods", self.writer.index())

    async def begin(self) -> None:
        """A first snapshot, a delete, a second snapshot, a change, a heartbeat."""
        self.writer.first(*NAMES)
        self.writer.delete("shop/h")
        self.writer.snapshot()
        self.writer.put("shop/a", 2)
        self.writer.beat()
        await self.tell()
        await self.describe()

    def held(self) -> dict[str, bytes]:
        return {key.decode(): said.value for held in self.writer.held for key, said in held.items()}

    def reader(self, **more: Any) -> TopicReader:
        return TopicReader(self.kafka.bootstrap, **({"control_topic": self.control} | more))

    def ended(self, **more: Any) -> TopicReader:
        return self.reader(until_end=True, **more)


async def take(reader: TopicReader, count: int) -> list[Change]:
    async with asyncio.timeout(20.0):
        return [await anext(reader) for _ in range(count)]


def state(reader: TopicReader, stream: str = "pods") -> dict[str, bytes]:
    """The JSON of what the reader holds, by key."""
    objects = reader.objects(stream)
    return {key: objects.value(key) or b"" for key in objects}


async def everything(reader: TopicReader) -> list[Change]:
    return [change async for change in reader]
