"""Replicas that write within transactions, by seed in virtual time: a stream, or the parts of one,
and rules of transactions that are broken, to see that it is found.

`python -m tests.simulation.transacting SEED` plays one run and tells what was broken.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from aiokafka import TopicPartition

from tests.simulation import parts, replicas
from tests.simulation.partition_log import Log, Stored
from tests.simulation.planted_replicas import NeverDoubts
from tests.simulation.process import Reader
from tests.simulation.replica_runner import Runner
from tests.simulation.replicas import Faults, ReplicaWorld, Rules
from watchrelay.kafka.partition import Appended, Effect, Partition
from watchrelay.kafka.sink import KafkaSink
from watchrelay.kafka.stream_transactions import StreamTransactions
from watchrelay.kafka.transactions import Transactions
from watchrelay.model.progress import StreamProgress
from watchrelay.replicas.sharing import SharedTenure, Sharing


class Careless(Sharing):
    """Ends no claim that is being made."""

    def tenure(
        self, stream: str, progress: StreamProgress, end: Callable[[], None]
    ) -> SharedTenure:
        def end_claimed() -> None:
            if made.phase == "superseded":
                end()

        made = super().tenure(stream, progress, end_claimed)
        return made


RULES = Rules(delivery="transactional")
CARELESS = Rules(delivery="transactional", sharing=Careless, doubt=NeverDoubts)
"""What transactions guarantee, they guarantee alone."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of run."""

    faults: Faults
    rules: Rules = RULES
    split: bool = False

    def run(self, seed: int) -> ReplicaWorld:
        """Play one seed."""
        world = parts.PartWorld if self.split else ReplicaWorld
        return replicas.run(seed, self.faults, self.rules, world)


KINDS = {
    "moves": Kind(replicas.MOVES),
    "suspensions": Kind(replicas.SUSPENSIONS),
    "all": Kind(replicas.MIXED),
    "all, careless": Kind(replicas.MIXED, CARELESS),
    "resizes": Kind(parts.RESIZES, split=True),
    "resizes and all": Kind(parts.ALL, split=True),
    "resizes and all, careless": Kind(parts.ALL, CARELESS, split=True),
}


# ---- rules that are broken, to see that it is found ----------------------------------------------

Look = Callable[[], Awaitable[bool]]


class Looking(Transactions):
    """Sees in its looks at the claims what a test wants."""

    def look(self, real: Look, number: int) -> Look:
        """What is asked as the `number`th of a take."""
        return real

    async def _take_ids(self) -> bool:
        real, looks = self._is_ours, 0

        async def is_ours() -> bool:
            nonlocal looks
            looks += 1
            return await self.look(real, looks)()

        self._is_ours = is_ours
        try:
            return await super()._take_ids()
        finally:
            self._is_ours = real


async def _always() -> bool:
    return True


async def _never() -> bool:
    return False


class LooksOnce(Looking):
    """Does not look again once the id is taken."""

    def look(self, real: Look, number: int) -> Look:
        return real if self.taken.is_set() or number == 1 else _always


class LooksAtTheStart(Looking):
    """Takes the id back without a look."""

    def look(self, real: Look, number: int) -> Look:
        return _always if self.taken.is_set() else real


class GivesUp(Looking):
    """Is lost when it is fenced."""

    def look(self, real: Look, number: int) -> Look:
        return _never if self.taken.is_set() else real


class TakesItsOwn(Transactions):
    """Does not take the ids of former writers."""

    def __init__(self, *arguments: Any, former_ids: object, **more: Any) -> None:
        super().__init__(*arguments, former_ids=(), **more)


class AcknowledgesAppends(Transactions):
    """Gives receipts before the commit."""

    def passes(self, partition: Partition, effect: Effect) -> bool:
        passes = super().passes(partition, effect)
        if isinstance(effect, Appended):
            self._listener.acked(partition, effect)
        return passes


class OwnIds(Runner):
    """Each process has an id of its own, which the claims hand on."""

    def _transactions(self) -> StreamTransactions | None:
        made = super()._transactions()
        assert made is not None
        return replace(made, id=f"{made.id}.{self.replica.number}")


class UncommittedReader(Reader):
    """Reads what is not committed, and what was aborted."""

    def _stable(self, partition: int) -> int:
        return self._of(partition).end

    def _log(self, partition: int, start: int, stop: int) -> list[Stored]:
        return [each for each in self._of(partition).uncommitted if start <= each.offset < stop]

    def _of(self, partition: int) -> Log:
        return self._world.broker.log(TopicPartition(self._topic, partition))


class ReadsUncommitted(Runner):
    """Reads back, and looks for stale records, among uncommitted ones."""

    reader_class = UncommittedReader


@dataclass(frozen=True, slots=True)
class Plant:
    """`sign`: what is reported of a run in which the rule is broken. `right`: the run without."""

    about: str
    right: Kind
    sign: str
    transactions: type[Transactions] | None = None
    runner: type[Runner] | None = None

    @property
    def kind(self) -> Kind:
        """The run in which the rule is broken."""
        rules = self.right.rules
        if self.transactions is not None:
            sink = type("PlantedSink", (KafkaSink,), {"transactions_class": self.transactions})
            rules = replace(rules, sink=sink)
        if self.runner is not None:
            rules = replace(rules, runner=self.runner)
        return replace(self.right, rules=rules)

    def shown_by(self, seed: int) -> bool:
        """Whether the seed finds it."""
        return any(self.sign in line for line in self.kind.run(seed).broken)


_ALONE, _SPLIT = KINDS["all, careless"], KINDS["resizes and all, careless"]
_OWN_IDS = Kind(replicas.MIXED, replace(CARELESS, runner=OwnIds))
PLANTS = {
    "former ids": Plant("the id of a former claim is not taken", _OWN_IDS, ", behind", TakesItsOwn),
    "ids of parts": Plant("the ids of a former layout are not taken", _SPLIT, ", behind", TakesItsOwn),
    "second look": Plant("no look once the id is taken", _ALONE, ", behind", LooksOnce),
    "later looks": Plant("the id is taken back without a look", _ALONE, ", behind", LooksAtTheStart),
    "fenced": Plant("who is fenced gives up", KINDS["all"], "its claim is the newest", GivesUp),
    "read-back": Plant("uncommitted records are read back", KINDS["all"], "lived: p", runner=ReadsUncommitted),
    "acknowledged": Plant("a record is acknowledged before its commit", KINDS["all"], "skips from sequence", AcknowledgesAppends),
}  # fmt: skip


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    for name, each in KINDS.items():
        world = each.run(int(sys.argv[1]))
        print(name, world.broken, world.broker.transactions.timeouts)
