"""A cluster that is rebuilt under the same name, between two lives of a relay or during one: with
other objects, at a version below, at or above the one that the relay has come to. By seed, in
virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tests.simulation.judged import Judged, settled
from tests.simulation.process import Life, Shape
from tests.simulation.world import Kinds, World
from tests.support.finds import errors_named_in
from tests.support.relays import run_virtually, until
from watchrelay.model.frames import Page
from watchrelay.publish.recovery import RecoveredState
from watchrelay.watch.history import History, HistoryCheck
from watchrelay.watch.loop import Watcher

NAMES = "abcdefgh"
NOTICED_S = 200.0
"""One look without an answer, another one a minute later, and a bookmark between them."""

Place = Literal["below", "at", "above"]
PLACES: tuple[Place, ...] = ("below", "at", "above")
Shows = Literal["first", "nothing", "gone"]
"""How the new cluster differs in what a small list shows: by its first object, by having none, or by
a history that was compacted."""


@dataclass(slots=True)
class Rebuilding:
    """What a seed plays, and what came of it: broken promises, none for a good run."""

    place: Place
    shows: Shows
    during: bool
    broken: list[str]


class AnyHistory(HistoryCheck):
    """Sees no difference."""

    def judge(self, page: Page, cursor: str) -> History:
        """None."""
        return "same"


class TrustingLife(Life):
    """W2: a version is taken for one of the history from which the state was made."""

    def _watcher(self, found: RecoveredState) -> Watcher:
        watcher = super()._watcher(found)
        watcher._history = AnyHistory(watcher._outlet)
        return watcher


class Play(Judged):
    """One seed: a life, another cluster, and a second life or more of the first."""

    def __init__(self, seed: int, life: Callable[..., Life]) -> None:
        rng = random.Random(f"rebuilt {seed}")
        shape = Shape(
            partitions=rng.choice([1, 2, 3]),
            snapshot_interval_s=60.0,
            form=rng.choice(["cloudevents", "structured", "debezium"]),
            bookmarks=rng.random() < 0.8,
            page_size=rng.choice([500, 2]),
            server_version=rng.choice([None, (1, 33), (1, 34)]),
        )
        super().__init__(World(seed, Kinds(life=life), calm=shape), rng, NAMES)
        self.place = PLACES[seed % len(PLACES)]
        self.shows: Shows = rng.choice(["first", "first", "nothing", "gone"])
        self.during = seed % 2 == 1
        self.world.weather.api_delay_s = rng.choice([0.0, 0.05])

    def rebuild(self) -> None:
        """Another cluster, which shows itself by a small list, or by its version."""
        server, rng = self.world.server, self.rng
        reached = server.version
        target = {"below": reached - 5, "at": reached, "above": reached + rng.randint(1, 50)}
        server.rebuild(reached - rng.randint(20, 60))
        if self.shows != "nothing":
            for name in sorted({NAMES[0], *rng.sample(NAMES, 3)}):
                server.put(name, rng.randrange(9))
        while server.version < target[self.place]:
            if server.version > reached and self.shows != "nothing" and rng.random() < 0.2:
                server.put(rng.choice(NAMES[1:]), rng.randrange(9))
            else:
                server.touch()
        if self.shows == "gone":
            server.forget()

    async def play(self) -> None:
        """All of it."""
        server, rng = self.world.server, self.rng
        for number, name in enumerate(NAMES[:6]):
            server.put(name, number)
        for _ in range(100):
            server.touch()
        async with asyncio.TaskGroup() as tasks:
            life = self.world.begin(tasks)
            await settled(life)
            self.churn()
            await asyncio.sleep(rng.choice([0.0, 5.0, 70.0]))
            if self.during:
                server.down = True
                self.rebuild()
                await asyncio.sleep(
                    rng.choice([10.0, 40.0])
                )  # longer than the pause after a watch that broke
                server.down = False
            else:
                life.kill() if rng.random() < 0.5 else life.stop()
                await until(lambda: life.over)
                self.rebuild()
                life = self.world.begin(tasks)
                await settled(life)
            if rng.random() < 0.5:
                await asyncio.sleep(rng.choice([0.0, 30.0]))
                self.late_churn()
            await asyncio.sleep(NOTICED_S)
            self.judge(f"{self.place}, {self.shows}, {'during' if self.during else 'between'}")
            if self.shows != "nothing":
                self.churn()
                await asyncio.sleep(NOTICED_S)
                self.judge("later")
            life.kill()

    def late_churn(self) -> None:
        """Changes in the new cluster, none of what a look goes by."""
        if self.shows == "nothing":
            self.world.server.touch()
            return
        for name in self.rng.sample(NAMES[1:], 3):
            self.world.server.put(name, self.rng.randrange(9))


def play(seed: int, life: Callable[..., Life] = Life) -> Rebuilding:
    """Play one seed."""

    async def body() -> Play:
        game = Play(seed, life)
        with errors_named_in(game.broken):
            await game.play()
        return game

    game = run_virtually(body())
    return Rebuilding(game.place, game.shows, game.during, game.broken)
