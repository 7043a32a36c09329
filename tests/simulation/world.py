"""One run: a server, a broker, processes that come and go, readers that look on, all by one seed;
and what must be true at its end.

Input: a seed, and optionally parts in which a rule is broken. Output: a verdict: what was broken,
and the trace of the run.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from aiokafka import TopicPartition

from tests.simulation.apiserver import FRONT, TIERS, Server
from tests.simulation.broker import Broker
from tests.simulation.freshness import Freshness
from tests.simulation.history import History
from tests.simulation.oracle import judge, watch_over
from tests.simulation.partition_log import Loss, Stored, proves
from tests.simulation.plan import Plan
from tests.simulation.process import (
    CALM,
    CONTROL,
    HEARTBEAT_S,
    PLAIN,
    STREAM,
    TOPIC,
    Config,
    Life,
    Shape,
)
from tests.simulation.readers import Lossy, Reader, Table
from tests.simulation.weather import Weather
from tests.support.finds import errors_named_in
from tests.support.relays import run_virtually
from watchrelay.contract.control_state import ControlState, Origin
from watchrelay.contract.records import ObjectRecord

CONFIGS = (PLAIN, Config("narrow", selector=FRONT), Config("quiet", noise=False))
READ_EVERY_S = 0.4
SETTLE_S = 1200.0
GENERATIONS_MAX = 6
NARROWS = 0.5
DAWNS, DARK, DUSKS = 0.08, 0.5, 0.06
"""So many runs are dawns, and so many of their processes find no API server; so many runs are
dusks."""
GAPS, GAP_AT_WRITE = 0.15, 0.05
"""So many runs have changes that no watch can show, and so many of their writes are such."""
CALMS = 0.2
"""In so many runs not all that is published counts, at first."""
PIECES, PIECES_INTERRUPTED = 0.15, 4
"""In so many runs the differences of a list come in small pieces, and so many processes at most end
between two of them."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """What a run is made of; a test hands in classes that break one rule.

    `narrow`: some runs have queues that overflow; drawn apart from all else, so that a seed
    is the same run without.
    """

    life: Callable[..., Life] = Life
    reader: Callable[[str, list[Origin]], Reader] = Reader
    lossy: Callable[..., Lossy] = Lossy
    table: Callable[..., Table] = Table
    view: Callable[[], ControlState] = ControlState
    narrow: bool = False


@dataclass(slots=True)
class Verdict:
    """What came of a seed.

    `broken` is empty for a run in which every promise held; `digest` is that of the whole
    trace; `alarms` are those of the reader that loses records, or is wrong otherwise; `conflated`
    counts records that say more than one change.
    """

    seed: int
    broken: list[str]
    digest: str
    lives: int
    records: int
    virtual_s: float
    decisions: list[str]
    lost: frozenset[Loss]
    alarms: int
    conflated: int
    trace: list[str] = field(default_factory=list)


class World:
    """Everything of one run. `lost` is what nothing gives back before the next snapshot."""

    def __init__(self, seed: int, kinds: Kinds | None = None, *, calm: Shape | None = None) -> None:
        """`calm`: a world of that shape in which nothing goes wrong by itself and nobody
        lives yet, for directed cases."""
        self.seed, self.rng, self.kinds = seed, random.Random(seed), kinds or Kinds(narrow=True)
        self.plan = Plan.drawn(self.rng)
        self.weather = Weather() if calm else Weather.drawn(self.rng)
        self.shape = calm or self.plan.shape
        apart = random.Random(f"queues of {seed}")
        self._darkness = random.Random(f"light of {seed}")
        self._gaps, self._dark = random.Random(f"holes of {seed}"), 0.0
        self._gap_at_write = GAP_AT_WRITE if self._gaps.random() < GAPS and not calm else 0.0
        drawn = 1.0 if calm else self._darkness.random()
        if drawn < DAWNS:
            self._dark = DARK
            self.plan.dawn()
            self.weather.delay_s, self.weather.api_delay_s, self.weather.lost = 0.02, 0.05, 0.0
        elif drawn < DAWNS + DUSKS:
            self.plan.dusk()
        self._pieces, self._piece_ends = random.Random(f"pieces of {seed}"), PIECES_INTERRUPTED
        if self._pieces.random() < PIECES and not calm:
            self.shape.piece_keys = self._pieces.choice([1, 1, 2, 4])
            self.plan.relists()
            self.weather.api_delay_s, self.weather.delay_s, self.weather.lost = 1.0, 0.02, 0.0
            self._gap_at_write = 0.0
        if self.kinds.narrow and not calm and apart.random() < NARROWS:
            self.shape.narrow(apart)
        if self.plan.night and not calm:
            self.weather.delay_s, self.weather.late, self.weather.lost = 1.0, 0.1, 0.0
        self.server = Server()
        self.broker = Broker(self.rng, self.weather, on_batch=self._landed)
        self.broker.control_topics.add(CONTROL)
        self.lives: list[Life] = []
        self.running: list[Life] = []
        partitions = self.shape.partitions
        self.histories = [History(partition) for partition in range(partitions)]
        self.freshness = [
            Freshness(partition, partitions, self.server, self._life_of)
            for partition in range(partitions)
        ]
        self.trace: list[object] = []
        self._positions: set[tuple[int, int, int]] = set()
        self.lost: set[Loss] = set()
        self.stale = 0
        self.grown: set[int] = set()
        self.resting = False
        self.ended_s = 0.0
        self.broken: list[str] = []
        counts = not calm and random.Random(f"ignored fields by {seed}").random() < CALMS
        self.config = CALM if counts else PLAIN
        self.configs = (*CONFIGS, CALM, CALM) if counts else CONFIGS
        none = [Origin()] * self.shape.partitions
        self.lived = self.kinds.reader("lived", none)
        self.lossy = self.kinds.lossy(
            "lossy", none, self.lived, lambda: self.rng.random() < 0.03 and not self.resting
        )
        self.late: list[Reader] = []
        self.tables = [
            self.kinds.table("table", self.shape.partitions),
            self.kinds.table("table by id", self.shape.partitions, by_id=True),
        ]

    # ---- the trace -------------------------------------------------------------------------------

    def note(self, *event: object) -> None:
        """Put into the trace."""
        self.trace.append((round(asyncio.get_running_loop().time(), 6), *event))

    def _landed(self, place: TopicPartition, records: list[Stored]) -> None:
        self.trace.append(records)
        if place.topic == TOPIC:
            for each in records:
                self._once(each)
                self.histories[place.partition].take(each)
                self.freshness[place.partition].take(each)
                if not each.heeded and isinstance(each.decoded, ObjectRecord):
                    self.stale += 1

    def _life_of(self, epoch: int) -> Life | None:
        return next((life for life in reversed(self.lives) if life.epoch == epoch), None)

    def _once(self, record: Stored) -> None:
        """Within one life no record is in the log twice."""
        if record.decoded is not None:
            position = (record.partition, record.decoded.epoch, record.decoded.sequence)
            if position in self._positions:
                self.broken.append(
                    f"p{record.partition}@{record.offset} is there twice: {position}"
                )
            self._positions.add(position)

    # ---- the course ------------------------------------------------------------------------------

    async def play(self) -> None:
        """All of it."""
        for name in self.plan.names:
            if self.rng.random() < 0.7:
                self._write(name)
        async with asyncio.TaskGroup() as tasks:
            around = [
                tasks.create_task(each, name="around") for each in (self._read(), self._clean())
            ]
            churn = tasks.create_task(self._churn(), name="churn")
            for _ in range(self.plan.lives):
                await self._life(tasks)
            await self._settle(tasks, churn)
            for task in around:
                task.cancel()

    def _write(self, name: str) -> None:
        rng, server = self.rng, self.server
        match rng.randrange(8):
            case 0 | 1 | 2:
                server.delete(name)
            case 3:
                server.touch()
            case 4:
                held = server.objects.get(name)
                if held is not None:
                    server.put(name, held.body, noise=rng.randrange(3))
            case _:
                server.put(
                    name,
                    rng.randrange(4),
                    noise=rng.randrange(3),
                    tier=rng.choice(TIERS) if rng.random() < 0.2 else "",
                )

    async def _churn(self) -> None:
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / self.plan.churn_s))
            for _ in range(self.rng.choice([1, 1, 1, 4])):
                self._write(self.rng.choice(self.plan.names))
            if self.rng.random() < self.plan.forgets:
                self.server.forget()
            if self._gaps.random() < self._gap_at_write:
                self.server.fail_before_now()

    async def _read(self) -> None:
        while True:
            await asyncio.sleep(self.rng.random() * 2 * READ_EVERY_S)
            self.pull(self.rng.choice([1, 5, 100]))
            watch_over(self)
            if self.rng.random() < 0.05 and len(self.late) < 2:
                self.late.append(self.kinds.reader(f"late {len(self.late)}", self.origins()))

    def pull(self, most: int) -> int:
        """Every reader reads on in some partitions."""
        taken = 0
        whole: list[Reader | Table] = [self.lived, *self.tables]
        for reader in whole:  # never slower than what compaction leaves alone
            for partition in range(self.shape.partitions):
                taken += reader.pull(partition, self._stored, 10**6)
        for other in (self.lossy, *self.late):
            for partition in range(self.shape.partitions):
                if most > 1000 or self.rng.random() < 0.7:
                    taken += other.pull(partition, self._stored, most)
        return taken

    def _stored(self, partition: int, start: int, most: int) -> list[Stored]:
        return self.broker.log(TopicPartition(TOPIC, partition)).read(start, 1 << 60, most)

    def origins(self) -> list[Origin]:
        """Where a reader starts that asks the control topic."""
        view = self.kinds.view()
        for each in self.broker.log(TopicPartition(CONTROL, 0)).records:
            view.read(each.offset, each.key, each.value)
        return view.origins(STREAM) or [Origin()] * self.shape.partitions

    async def _clean(self) -> None:
        while self.plan.cleaned:
            await asyncio.sleep(self.rng.random() * self.plan.lag_s / 2)
            self.clean()

    def clean(self) -> None:
        """The cleaner comes by, as eager as the topic's settings let it be."""
        now_s = asyncio.get_running_loop().time()
        logs = {
            place.partition: log for place, log in self.broker.logs.items() if place.topic == TOPIC
        }
        frontier = min((log.frontier for log in logs.values()), default=0)
        for place, log in self.broker.logs.items():
            lag_s = 0.0 if place.topic == CONTROL else self.plan.lag_s
            lost, buried = log.clean(now_s, lag_s=lag_s, retention_s=self.plan.lag_s)
            if place.topic != TOPIC:
                continue
            if lost:
                self.note("lost", place.partition, *sorted(lost))
                self.lost |= lost
            for record in buried:
                # no writer can know of it any more, and a watch from the frontier shows what was
                # before
                if int(record.version) > frontier:
                    self.histories[place.partition].forget(record.key)

    def doubted(self) -> None:
        """A writer does not believe the log."""
        for history in self.histories:
            history.doubted()

    def differs_in_full(self) -> None:
        """A writer publishes a difference by all that is published, not by what counts."""
        for history in self.histories:
            history.differs_in_full()

    def unprovable(self, epoch: int) -> str:
        """Why a log may be doubted by the writer of `epoch`, "" where it may not.

        What proves it is not there, or was thinned; or the writer before it doubted it too, and
        never ended the snapshot that mends it.
        """
        if self.lost:
            return "compaction"
        former = max(
            (life for life in self.lives if life.decision and life.epoch < epoch),
            key=lambda life: life.epoch,
            default=None,
        )
        if former is not None and former.doubted and former.status.last_snapshot is None:
            return "doubted before"
        for partition in range(self.shape.partitions):
            records = self.broker.log(TopicPartition(TOPIC, partition)).records
            if any(isinstance(each.decoded, ObjectRecord) for each in records) and not any(
                map(proves, records)
            ):
                return "no marker"
        return ""

    def _begin(self, tasks: asyncio.TaskGroup) -> Life:
        if self.rng.random() < self.plan.reconfigures:
            self.config = self.rng.choice(self.configs)
        return self.begin(tasks)

    def begin(self, tasks: asyncio.TaskGroup) -> Life:
        """A process starts, with the config that is in force."""
        life = self.kinds.life(self, self.config, number=len(self.lives))
        self.lives.append(life)
        self.running.append(life)
        life.begin(tasks)
        return life

    async def _steps(self) -> None:
        """Some turns of the loop, so that a kill may fall between any two of them."""
        for _ in range(self.rng.choice([0, 0, self.rng.randrange(60)])):
            await asyncio.sleep(0)

    async def between_pieces(self, life: Life) -> None:
        """A process has pushed some of a list's differences."""
        rng = self._pieces
        if self.resting:
            return
        self.note("between pieces", life.number)
        if rng.random() < 0.8:
            return
        life.relay.request_snapshot(f"between-{life.number}")
        await asyncio.sleep(rng.random() * 3 * HEARTBEAT_S)
        if rng.random() < 0.5 and self._piece_ends:
            self._piece_ends -= 1
            if rng.random() < 0.3:
                life.stop()
            else:
                life.kill()

    async def _life(self, tasks: asyncio.TaskGroup) -> None:
        """One process, until it is killed, stopped, or left alone with a newer one."""
        rng, plan = self.rng, self.plan
        self.server.away = self._darkness.random() < self._dark
        life = self._begin(tasks)
        left_s = rng.expovariate(1 / plan.lasts_s)
        nasty = rng.random() < plan.nasty
        stale = self.stale
        while left_s > 0 and not life.over:
            step_s = min(left_s, 0.03 if nasty else 0.5)
            await asyncio.sleep(step_s)
            left_s -= step_s
            if rng.random() < plan.asks * step_s:
                life.relay.request_snapshot(f"asked-{life.number}")
            if nasty and (
                self.stale > stale or (life.claimed and not life.decision and rng.random() < 0.3)
            ):
                await asyncio.sleep(rng.random() * 2 * self.weather.delay_s * (self.stale > stale))
                break  # the moments in which something is pending
        await self._steps()
        self.server.away = False
        if rng.random() < plan.zombies and life.claimed:
            life.control.blind = True
            self.note("blind", life.number)
        elif rng.random() < 0.2 and life.claimed:
            life.stop()
            await asyncio.sleep(rng.random() * 2)
            life.kill()
        elif rng.random() < 0.9:
            life.kill()
        if rng.random() < plan.outage:
            lags = 1 + rng.random() if plan.night else rng.random() * rng.choice([1, 3, 6])
            await asyncio.sleep(lags * plan.lag_s)
        for other in self.running:
            if other.control.blind and rng.random() < 0.3:
                other.control.blind = False

    # ---- the end ---------------------------------------------------------------------------------

    async def _settle(self, tasks: asyncio.TaskGroup, churn: asyncio.Task[None]) -> None:
        """The weather clears, one process is left, and catches up."""
        rng = self.rng
        if rng.random() < 0.5:
            churn.cancel()  # what is wrong now is not mended by the next write
        if rng.random() < 0.2:
            self.weather.clear()
        for life in self.running:
            if not life.claimed:
                life.kill()
        life = await self._last(tasks, rng.random() * 3)
        self.weather.clear()
        self.broker.calm()
        for other in self.running:
            other.control.blind = False
            await asyncio.sleep(rng.random())
        churn.cancel()
        life = await self._last(tasks, 0.0)
        for other in self.lives:
            if other is not life:
                other.kill()
        self.broker.calm()
        self.resting = True
        while not await self._caught_up(life):  # late claims of the dead may stop one more
            life = await self._last(tasks, 0.0)
        self.pull(10**6)
        if self.lost:
            await self._snapshot(life)
        if self.plan.cleaned and rng.random() < 0.5:
            await asyncio.sleep(self.plan.lag_s + 1)
            self.clean()
        life.stop()
        await self._until(lambda: life.over)
        if not life.drained:
            self.broken.append("the last writer did not drain")

    async def _last(self, tasks: asyncio.TaskGroup, lasts_s: float) -> Life:
        """A process that lives: late claims of the dead may stop one or two."""
        for _ in range(GENERATIONS_MAX):
            life = (
                self.running[-1]
                if self.running and not self.running[-1].over
                else self._begin(tasks)
            )
            await asyncio.sleep(lasts_s)
            await self._until(partial(_decided, life))
            if not life.over:
                return life
        raise AssertionError("one writer after the other is fenced")

    async def _caught_up(self, life: Life) -> bool:
        """Everything that the server holds was taken, and the frontier says so. False: the writer
        was stopped before."""
        await self._until(
            lambda: (
                life.over
                or (life.status.complete and int(life.status.frontier or 0) >= self.server.version)
            )
        )
        await asyncio.sleep(8 * HEARTBEAT_S)
        return not life.over

    async def _snapshot(self, life: Life) -> None:
        """What compaction forgot is mended by the next snapshot, and not before."""
        before = life.status.last_snapshot
        life.relay.request_snapshot("mend")
        await self._until(lambda: life.status.last_snapshot != before)
        await asyncio.sleep(3 * HEARTBEAT_S)

    async def _until(self, true: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + SETTLE_S
        while not true():
            if loop.time() > ends_s:
                raise AssertionError("the run does not come to rest")
            await asyncio.sleep(0.5)

    def judge(self) -> list[str]:
        """Every promise that was broken."""
        return judge(self)

    async def play_and_judge(self) -> None:
        """The run; one that does not come to its end, or raises, is broken."""
        with errors_named_in(self.broken):
            await self.play()
            self.judge()
        self.ended_s = asyncio.get_running_loop().time()

    def decisions(self) -> list[str]:
        """How the processes went on."""
        return [life.decision for life in self.lives]

    def verdict(self, *, tracing: bool) -> Verdict:
        """The result of the run."""
        lines = self.trace_lines() if tracing else []
        return Verdict(
            self.seed,
            self.broken,
            hashlib.sha256("\n".join(lines).encode()).hexdigest() if tracing else "",
            len(self.decisions()),
            sum(log.end for log in self.broker.logs.values()),
            self.ended_s,
            self.decisions(),
            frozenset(self.lost),
            len(self.lossy.alarms),
            sum(history.conflated for history in self.histories),
            lines,
        )

    def trace_lines(self) -> list[str]:
        """The trace as lines."""
        lines: list[str] = []
        for each in self.trace:
            if isinstance(each, list):
                lines += (
                    (
                        f"{one.at_s:.6f} p{one.partition}@{one.offset} {one.key!r} {one.value!r} "
                        f"{one.headers}"
                    )
                    for one in each
                )
            else:
                lines.append(repr(each))
        return lines


def run(seed: int, kinds: Kinds | None = None, *, tracing: bool = False) -> Verdict:
    """Play one seed."""

    async def main() -> World:
        world = World(seed, kinds)
        await world.play_and_judge()
        return world

    return run_virtually(main()).verdict(tracing=tracing)


def _decided(life: Life) -> bool:
    """The process knows how it goes on, or is no more."""
    return life.over or bool(life.decision)
