"""What is lost between two lives of a relay, by seed in virtual time: the end of a partition, a topic
that is recreated, markers, records of the control topic, and the cluster itself, which is rebuilt
under its name."""

from __future__ import annotations

from collections.abc import Callable

from aiokafka import TopicPartition

from tests.simulation.foreign import NAMES, Outcome, Play
from tests.simulation.partition_log import Log, Stored
from tests.simulation.process import CONTROL, TOPIC, Life
from tests.support.finds import errors_named_in
from tests.support.relays import run_virtually
from watchrelay.contract.records import MarkerRecord


class Losses(Play):
    """One seed: a life, losses, a second life."""

    def __init__(self, seed: int, life: Callable[..., Life] = Life) -> None:
        super().__init__(seed, life, None)
        self.described = True
        self.kinds = self.rng.sample(
            ["tail", "recreated", "markers", "control tail", "control records", "rebuilt"],
            self.rng.choice([1, 1, 2, 3]),
        )

    def forge(self, *, live: bool) -> None:
        """Lose what the seed says, in place of forging."""
        if live:
            return
        for kind in self.kinds:
            match kind:
                case "tail":
                    log = self._log(TOPIC, self.rng.randrange(self.partitions))
                    _truncate(log, self._count(log))
                case "recreated":
                    for partition in range(self.partitions):
                        _truncate(self._log(TOPIC, partition), 1 << 30)
                case "markers":
                    for partition in range(self.partitions):
                        self._thin(self._log(TOPIC, partition), _is_marker)
                case "control tail":
                    log = self._log(CONTROL, 0)
                    _truncate(log, self._count(log))
                case "control records":
                    self._thin(self._log(CONTROL, 0), lambda _: True)
                case _:
                    self._rebuild()
        self.described = any(each.key == b"stream/pods" for each in self._log(CONTROL, 0).records)

    def only_a_list_tells(self) -> bool:
        """A cluster whose versions are past those of the log looks like the former one."""
        return "rebuilt" in self.kinds

    def judge(self, when: str) -> None:
        """The reader that lived before the losses is not asked: it restarts from its end."""
        self.lived = type(self.lived)("late", self.world.origins())
        super().judge(when)
        if not self.described and any(life.spoiled for life in self.world.lives):
            self.broken.append(f"{when}: an epoch on the log was claimed without its description")

    def judge_table(self) -> None:
        """A table may keep what a lost record would have removed."""

    def _log(self, topic: str, partition: int) -> Log:
        return self.world.broker.log(TopicPartition(topic, partition))

    def _count(self, log: Log) -> int:
        return self.rng.choice([1, 2, 3, 10, len(log.records)])

    def _thin(self, log: Log, may_go: Callable[[Stored], bool]) -> None:
        """Some records are gone; their offsets stay."""
        share = self.rng.choice([0.2, 0.6, 1.0])
        log.records = [
            each for each in log.records if not may_go(each) or self.rng.random() >= share
        ]

    def _rebuild(self) -> None:
        """The same name, other objects, at lower or higher versions."""
        server = self.world.server
        server.version = self.rng.choice([1, server.version + 1000])
        server.history.clear()
        server.objects.clear()
        server.horizon = server.version
        server.uids += 1000
        for number, name in enumerate(self.rng.sample(NAMES, 5)):
            server.put(name, number)


def _is_marker(each: Stored) -> bool:
    return isinstance(each.decoded, MarkerRecord)


def _truncate(log: Log, count: int) -> None:
    """An unclean election: the newest records never were."""
    left = log.records[: max(0, len(log.records) - count)]
    log.records, log.end = left, left[-1].offset + 1 if left else 0
    log.uncommitted = [each for each in log.uncommitted if each.offset < log.end]
    heeded = [each.decoded for each in left if each.decoded is not None and each.heeded]
    log._epoch, log._last = (heeded[-1].epoch, heeded[-1].sequence) if heeded else (0, 0)


class Forgetful(Life):
    """Planted: the epochs on the log are not looked at, only those of the control topic."""

    async def _highest_epoch(self) -> int:
        return 0


def play(seed: int, life: Callable[..., Life] = Life) -> Outcome:
    """Play one seed."""

    async def body() -> Losses:
        game = Losses(seed, life)
        with errors_named_in(game.broken):
            await game.play()
        return game

    game = run_virtually(body())
    return Outcome(game.broken, [], [*game.kinds, *game.world.decisions()])
