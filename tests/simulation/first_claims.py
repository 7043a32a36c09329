"""Relays that start a stream for the first time at the same moment: each has seen that the topic holds
nothing of it, and is suspended before its claim, while another one writes. By seed, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from tests.simulation.judged import Judged, settled
from tests.simulation.oracle import wanted
from tests.simulation.process import Life, Reader, Shape
from tests.simulation.readers import Table, published
from tests.simulation.world import Kinds, World
from tests.support.finds import errors_named_in
from tests.support.relays import run_virtually
from watchrelay.publish.ports import GapReader
from watchrelay.publish.writer import StreamWriter

NAMES = [f"pod-{number}" for number in range(60)]


class Suspended(Life):
    """Is suspended between its look at the topic and its claim."""

    async def _highest_epoch(self) -> int:
        highest = await super()._highest_epoch()
        await asyncio.sleep(self.rng.choice([0.0, 0.1, 1.0, 5.0]))
        return highest


class Alone(Reader):
    """Nothing is of other processes."""

    def unacknowledged_ranges(self, partition: int, start: int, stop: int) -> list[tuple[int, int]]:
        return []


class Unread(Suspended):
    """Planted: what other processes have written since the look at the topic is not read."""

    def make_reader(self) -> Reader:
        return Alone(self.spec, self.world, self.sink)

    def make_relay(self, gap_reader: GapReader | None) -> StreamWriter:
        return super().make_relay(super().make_reader())


class Play(Judged):
    """One seed: two or three lives from the first moment on, of which the last one to claim stays."""

    def __init__(self, seed: int, life: Callable[..., Life]) -> None:
        rng = random.Random(f"first claims {seed}")
        shape = Shape(partitions=rng.choice([1, 2, 3]), snapshot_interval_s=60.0)
        super().__init__(World(seed, Kinds(life=life), calm=shape), rng, "")
        self.world.weather.api_delay_s = 1.0  # objects go between a claim and the list after it
        self.table = Table("table", shape.partitions)

    async def play(self) -> None:
        """All of it."""
        for name in NAMES:
            self.world.server.put(name, 0)
        async with asyncio.TaskGroup() as tasks:
            lives = [self.world.begin(tasks) for _ in range(self.rng.choice([2, 3]))]
            for name in NAMES[:50]:
                await asyncio.sleep(self.rng.random() * 0.4)
                self.world.server.delete(name)
            for each in lives:
                await settled(each)
            await asyncio.sleep(30.0)
            self.judge("once all have claimed")
            self.judge_table()
            if (left := sum(not each.over for each in lives)) != 1:
                self.broken.append(f"{left} lives are left")
            for each in lives:
                each.kill()

    def judge_table(self) -> None:
        """A table that ignores headers has the server's objects."""
        for partition in range(self.partitions):
            self.table.pull(partition, self.read, 10**6)
        rows = {key: published(value) for key, value in self.table.rows.items()}
        if rows != (state := wanted(self.world)):
            self.broken.append(f"the table holds {rows}, the server {state}")


def play(seed: int, life: Callable[..., Life] = Suspended) -> Play:
    """Play one seed."""

    async def body() -> Play:
        game = Play(seed, life)
        with errors_named_in(game.broken):
            await game.play()
        return game

    return run_virtually(body())
