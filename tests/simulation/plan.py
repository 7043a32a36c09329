"""The course of one run: who lives for how long, what is written meanwhile, what is forgotten.

Input: a seed. Output: a plan.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.simulation.process import Shape
from watchrelay.model.streams import Format

NAMES = "abcdefgh"
FORMS: tuple[Format, ...] = ("cloudevents",) * 6 + ("structured", "debezium")
NIGHTS = 0.1


@dataclass(slots=True)
class Plan:
    """The course of a run, by seed. Units: seconds, and probabilities per second or per life.

    A `night` is a run of writers that die in turn while repairs are pending, on a slow network,
    then an outage longer than the lag. A `dawn` is one of writers that are killed in the middle of
    many records, and of others that find no API server meanwhile, so that the log is ahead of what
    they can follow. A `dusk` is one of former writers that go on, snapshots included, when their
    successors are dead.
    """

    shape: Shape
    names: str
    lives: int
    lasts_s: float
    churn_s: float
    forgets: float
    cleaned: bool
    lag_s: float
    outage: float
    reconfigures: float
    zombies: float
    asks: float
    nasty: float
    night: bool = False

    @classmethod
    def drawn(cls, rng: random.Random) -> Plan:
        """By seed."""
        interval_s = rng.choice([0.0, 1.0, 3.0, 20.0])
        shape = Shape(
            partitions=rng.choice([1, 2, 2, 3]),
            snapshot_interval_s=interval_s,
            form=rng.choice(FORMS),
            page_size=rng.choice([500, 2]),
            batch_bytes=rng.choice([512 * 1024, 1500]),
            relist_interval_s=rng.choice([0.0, 0.0, 7.0]),
            server_version=rng.choice([None, (1, 33), (1, 34)]),
        )
        plan = cls(
            shape=shape,
            names=NAMES[: rng.randint(2, len(NAMES))],
            lives=rng.choice([0, 1, 2, 2, 3, 3, 4, 5]),
            lasts_s=rng.choice([0.5, 2.0, 6.0]),
            churn_s=rng.choice([0.1, 0.5, 2.0]),
            forgets=rng.choice([0.0, 0.05, 0.2]),
            cleaned=rng.random() < 0.5,
            lag_s=2 * (interval_s or 20.0),
            outage=rng.choice([0.0, 0.3, 0.6]),
            reconfigures=rng.choice([0.0, 0.0, 0.5]),
            zombies=rng.choice([0.0, 0.3, 0.6]),
            asks=rng.choice([0.0, 0.3]),
            nasty=rng.choice([0.0, 0.5]),
        )
        if rng.random() < NIGHTS:
            plan.names, plan.lives, plan.lasts_s, plan.churn_s = NAMES[:3], 5, 3.0, 0.5
            plan.nasty, plan.outage, plan.forgets, plan.cleaned, plan.night = (
                0.8,
                0.5,
                0.0,
                True,
                True,
            )
            shape.snapshot_interval_s, plan.lag_s = 1.0, 2.0
        return plan

    def dawn(self) -> None:
        """Make it one: few names, written often; a frontier is then behind what the log says of
        them."""
        self.names, self.lives, self.lasts_s, self.churn_s = NAMES[:3], 6, 1.5, 0.1
        self.forgets = self.outage = self.reconfigures = self.zombies = self.nasty = 0.0
        self.shape.snapshot_interval_s, self.lag_s = 1.0, 20.0

    def relists(self) -> None:
        """Make it one of lists that find what was written while they were made."""
        self.names, self.lives, self.lasts_s, self.churn_s = NAMES[:4], 5, 8.0, 0.1
        self.forgets = self.outage = self.reconfigures = self.zombies = self.nasty = 0.0
        self.shape.relist_interval_s, self.lag_s = 2.0, 20.0

    def dusk(self) -> None:
        """Make it one: an outage lasts long enough for a snapshot of those that are left."""
        self.names, self.lives, self.lasts_s, self.churn_s = NAMES[:4], 5, 1.5, 0.5
        self.forgets = self.reconfigures = self.nasty = 0.0
        self.zombies, self.outage = 0.5, 0.8
        self.shape.snapshot_interval_s, self.lag_s = 1.0, 3.0
