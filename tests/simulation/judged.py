"""A calm world that a play directs: readers that follow it, and what each must hold at a moment."""

from __future__ import annotations

import random

from aiokafka import TopicPartition

from tests.simulation.oracle import wanted
from tests.simulation.partition_log import Stored
from tests.simulation.process import TOPIC, Life
from tests.simulation.readers import Reader, published
from tests.simulation.world import World
from tests.support.relays import until
from watchrelay.contract.control_state import Origin


class Judged:
    """A world, a reader that lives as long as it, and the promises that were `broken`."""

    def __init__(self, world: World, rng: random.Random, names: str) -> None:
        self.world, self.rng, self.names = world, rng, names
        self.lived = Reader("lived", [Origin()] * world.shape.partitions)
        self.broken: list[str] = []

    @property
    def partitions(self) -> int:
        """Of the topic."""
        return self.world.shape.partitions

    def read(self, partition: int, start: int, most: int) -> list[Stored]:
        """Of one partition."""
        return self.world.broker.log(TopicPartition(TOPIC, partition)).read(start, 1 << 60, most)

    def churn(self) -> None:
        """Some changes."""
        for name in self.rng.sample(self.names, 4):
            if self.rng.random() < 0.3:
                self.world.server.delete(name)
            else:
                self.world.server.put(name, self.rng.randrange(9))

    def pull(self, reader: Reader) -> None:
        """Read to the end."""
        for _ in range(20):
            if not sum(reader.pull(each, self.read, 10**6) for each in range(self.partitions)):
                return

    def judge(self, when: str) -> None:
        """Every reader is proven, and holds the server's state."""
        fresh = Reader("fresh", [Origin()] * self.partitions)
        booted = Reader("booted", self.world.origins())
        state = wanted(self.world)
        for reader in (self.lived, fresh, booted):
            self.pull(reader)
            if not reader.proven:
                self.broken.append(f"{when}: {reader.name} is not proven")
            try:
                held = {key: published(value) for key, value in reader.held().items()}
            except Exception as error:  # noqa: BLE001 - a value that is no object
                self.broken.append(f"{when}: {reader.name} holds what is no object: {error!r}")
                continue
            if held != state:
                self.broken.append(f"{when}: {reader.name} holds {held}, the server {state}")


async def settled(life: Life) -> None:
    """It is whole."""
    await until(lambda: life.over or (life.status.complete and bool(life.status.last_snapshot)))
