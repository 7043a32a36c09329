"""Lives of a relay between which, and during which, another writer puts records into its topic: by
seed, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass

from aiokafka import TopicPartition

from tests.simulation.broker import Broker
from tests.simulation.judged import Judged, settled
from tests.simulation.oracle import wanted
from tests.simulation.process import STREAM, TOPIC, Life, Shape
from tests.simulation.world import Kinds, World
from tests.support.finds import errors_named_in
from tests.support.forging import Forged, Forger
from tests.support.relays import run_virtually, until
from watchrelay.contract.partitioning import partition_of
from watchrelay.model.streams import Format

Directed = Callable[[list[Forged]], list[Forged]]
"""The records of the topic -> what is put behind them."""
NAMES = "abcdefghij"
SNAPSHOT_S, RELIST_S = 60.0, 400.0
FORMS: tuple[Format, ...] = ("cloudevents", "cloudevents", "structured", "debezium")


@dataclass(slots=True)
class Outcome:
    """What came of a seed: broken promises, none for a good run; what was written."""

    broken: list[str]
    forged: list[Forged]
    decisions: list[str]


class Play(Judged):
    """One seed: a life, foreign records, a second life with more of them."""

    def __init__(self, seed: int, life: Callable[..., Life], directed: Directed | None) -> None:
        rng = random.Random(f"foreign {seed}")
        shape = Shape(
            partitions=rng.choice([1, 2, 3]),
            snapshot_interval_s=SNAPSHOT_S,
            relist_interval_s=RELIST_S,
            form="cloudevents" if directed else rng.choice(FORMS),
            bookmarks=rng.random() < 0.8,
        )
        super().__init__(World(seed, Kinds(life=life), calm=shape), rng, NAMES)
        self.forged: list[Forged] = []
        self._directed = directed

    def records(self) -> list[Forged]:
        """The whole topic."""
        return [
            Forged(partition, each.key, each.value, each.headers)
            for partition in range(self.partitions)
            for each in self.read(partition, 0, 1 << 30)
        ]

    def forge(self, *, live: bool) -> None:
        """Write some. `live`: none that takes a sequence to come, which costs an epoch."""
        broker: Broker = self.world.broker
        now_s = asyncio.get_running_loop().time()
        if self._directed is None:
            forged = Forger(self.rng, self.records(), self.partitions).forge()
        else:
            forged = [] if live else self._directed(self.records())
        for each in forged:
            if live and each.position >= self.newest(each.partition):
                continue
            self.forged.append(each)
            key = b"" if each.key is None else each.key
            place = TopicPartition(TOPIC, each.partition)
            broker.log(place).append(now_s, [(key, each.value, each.headers)])

    def only_a_list_tells(self) -> bool:
        """Whether something is wrong by now that a snapshot cannot put right."""
        return any(each.well_formed() for each in self.forged) and not self._directed

    def newest(self, partition: int) -> tuple[int, int]:
        """The highest position of a partition that was written by a relay."""
        found = (each.decoded for each in self.read(partition, 0, 1 << 30) if each.heeded)
        return max(((each.epoch, each.sequence) for each in found if each), default=(0, 0))

    async def play(self) -> None:
        """All of it."""
        for number, name in enumerate(NAMES[:6]):
            self.world.server.put(name, number)
        async with asyncio.TaskGroup() as tasks:
            first = self.world.begin(tasks)
            await settled(first)
            self.churn()
            await asyncio.sleep(self.rng.choice([0.0, 0.2, 5.0]))
            if self.rng.random() < 0.5:
                first.stop()
                await until(lambda: first.over)
            else:
                first.kill()
                await asyncio.sleep(0.1)
            self.pull(self.lived)
            self.forge(live=False)
            listed_only = self.only_a_list_tells()
            self.pull(self.lived)
            if self.rng.random() < 0.5:
                self.churn()
            second = await self._begin_again(tasks)
            await asyncio.sleep(SNAPSHOT_S * 1.2 + 10)
            if not listed_only:
                self.judge("after a snapshot")
            for _ in range(2):
                self.forge(live=True)
                await asyncio.sleep(15)
            self.churn()
            await asyncio.sleep(RELIST_S * 1.2 + SNAPSHOT_S * 1.2)
            self.judge("after a list")
            self.judge_table()
            if second.over:
                self.broken.append("the second life has ended")
            second.kill()

    async def _begin_again(self, tasks: asyncio.TaskGroup) -> Life:
        """A life that is whole. Where its epoch was used before, the next one claims another and
        does not trust the log, as in `daemon/stream_runner.py`."""
        life = self.world.begin(tasks)
        await settled(life)
        if life.spoiled:
            life = self.world.begin(tasks)
            life.foreign = True
            await settled(life)
        return life

    def judge_table(self) -> None:
        """A table that ignores headers has the server's objects, each in its partition, but for keys
        that nothing tells to be of this stream."""
        rows = {}
        for partition in range(self.partitions):
            for each in self.read(partition, 0, 1 << 30):
                rows[partition, each.key] = each.value
        there = {place for place, value in rows.items() if value is not None}
        wished = {(partition_of(key, self.partitions), key) for key in wanted(self.world)}
        unknown = {
            (each.partition, each.key or b"")
            for each in self.forged
            if each.key is None
            or each.key.startswith(b"%wr/")
            or each.held.get("ce_wrstream") != STREAM.encode()
            or not _is_text(each.key)
        } - wished  # another name hides no object for good
        if wrong := (there ^ wished) - unknown:
            self.broken.append(f"the table differs in {sorted(wrong)}")


def _is_text(key: bytes) -> bool:
    return "\ufffd" not in key.decode(errors="replace")


def play(seed: int, life: Callable[..., Life] = Life, directed: Directed | None = None) -> Outcome:
    """Play one seed; `directed` forges the records between the lives, instead of the seed."""

    async def body() -> Play:
        game = Play(seed, life, directed)
        with errors_named_in(game.broken):
            await game.play()
        return game

    game = run_virtually(body())
    return Outcome(game.broken, game.forged, game.world.decisions())
