"""A sink and what watches its clock, by seed in virtual time: the clock is wrong, is set while the
process runs, and drifts; answers of the API server lie, one at a time; brokers give the time of
records, or do not.

The oracle knows the true time. On a topic with CreateTime no record has a time that retention
removes, whatever the clock shows; and records flow wherever the clock is right, whatever one answer
says.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.producefake import answer_frame, first_timestamp_ms, produce_request
from tests.support.producestage import Stage, staged
from tests.support.relays import run_virtually
from watchrelay.contract.wire import Receipt
from watchrelay.core.clock_offset import AGREE_MIN, EVERY_S, ClockOffset
from watchrelay.daemon.clock_watch import DOUBT_S, ClockWatch
from watchrelay.kafka.record_times import RecordTimes

DAY_S = 86_400.0
EPOCH_MS = 1_790_000_000_000
TOPIC = "t"
KEEPS_S = (3_600.0, DAY_S, 7 * DAY_S, 60 * DAY_S)
OFFSETS_S = (0.0, 2.0, -200.0, -20 * DAY_S, -400 * DAY_S, DAY_S, 20 * DAY_S)
LASTS_S = 900.0
_RECORD_EVERY_S = 1.0
_BROKER_EVERY_S = 0.2
_FLOW_WITHIN_S = 10.0
"""A record is acknowledged after so long, if its clock was right meanwhile."""
_INFORMED_S = (AGREE_MIN + 2) * EVERY_S + 5.0
"""After so long a process has asked and was answered often enough, lies included."""

MakeTimes = Callable[..., RecordTimes]


@dataclass
class World:
    """What is true. `ahead_s`: of the process's wall clock; `ppm`: how fast its oscillator is."""

    rng: random.Random
    ahead_s: float = 0.0
    ppm: float = 0.0
    keeps_s: float = 7 * DAY_S
    by_broker: bool = False
    lie_every: int = 0
    """One of so many answers is a lie; 0: none."""
    broken: list[str] = field(default_factory=list)
    right_since_s: float = 0.0
    began_s: float = 0.0
    answers: int = 0
    written: int = 0
    lies: int = 0
    jumps: int = 0

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time() - self.began_s

    @property
    def true_ms(self) -> float:
        return EPOCH_MS + self.now_s * 1000

    def monotonic_s(self) -> float:
        return 77.0 + self.now_s * (1 + self.ppm * 1e-6)

    def wall_ms(self) -> int:
        return round(self.true_ms + (self.ahead_s + self.now_s * self.ppm * 1e-6) * 1000)

    @property
    def is_right(self) -> bool:
        """The clock is no reason to wait, with some room for what answers leave open."""
        return self.by_broker or abs(self.ahead_s) < max(300.0, self.keeps_s / 2) - 10.0

    def set(self, ahead_s: float) -> None:
        was_right, self.ahead_s = self.is_right, ahead_s
        if not was_right:
            self.right_since_s = self.now_s

    def answer(self, offset: ClockOffset) -> None:
        """The API server answers with a date."""
        self.answers += 1
        took_s = self.rng.choice((0.0, 0.02, 0.5, 3.0))
        date_ms = self.true_ms - took_s * 1000 * self.rng.random()
        if self.lie_every and self.answers % self.lie_every == 0:
            self.lies += 1
            date_ms += self.rng.choice((-500, -20, -1, 1, 20, 500)) * DAY_S * 1000
        now_s = self.monotonic_s()
        offset.kubernetes.note(
            date_ms // 1000 * 1000, within_ms=1000, asked_s=now_s - took_s, answered_s=now_s
        )


class Run:
    """One seed."""

    def __init__(self, seed: int, make_times: MakeTimes) -> None:
        rng = random.Random(f"clocks {seed}")
        self.world = world = World(rng)
        world.keeps_s, world.by_broker = rng.choice(KEEPS_S), rng.random() < 0.3
        world.ppm = rng.choice((0.0, 20.0, -100.0))
        world.ahead_s = rng.choice(OFFSETS_S)
        # a lie among the first answers would be believed by half of two: three of four are true
        world.lie_every = rng.choice((0, 4, 5, 9))
        self.times = make_times(now_s=world.monotonic_s, wall_ms=world.wall_ms)

    async def play(self) -> World:
        world = self.world
        world.began_s = asyncio.get_running_loop().time()
        async with staged(times=self.times) as (stage, tasks):
            watch = ClockWatch(
                self.times, metrics=stage.metrics, statuses=stage.statuses, ask=self._ask
            )
            self.times.learn(TOPIC, 0 if world.by_broker else round(world.keeps_s * 1000))
            world.answer(self.times.offset)  # discovery was answered
            others = [
                tasks.create_task(each, name="clocks")
                for each in (watch.run(), self._server(), self._broker(stage), self._jumps())
            ]
            await self._stream(stage, watch, tasks)
            for each in others:
                each.cancel()
        return world

    async def _ask(self) -> None:
        self.world.answer(self.times.offset)

    async def _server(self) -> None:
        """Other requests are answered, too."""
        while True:
            await asyncio.sleep(self.world.rng.choice((0.5, 5.0, 30.0)))
            self.world.answer(self.times.offset)

    async def _jumps(self) -> None:
        """The clock is set, some time after several answers were received."""
        world = self.world
        while True:
            await asyncio.sleep(world.rng.uniform(90.0, 300.0))
            world.jumps += 1
            world.set(world.rng.choice(OFFSETS_S))

    async def _broker(self, stage: Stage) -> None:
        """Answer each request; a few connections break instead."""
        world, seen, offset = self.world, dict[int, int](), 0
        while True:
            await asyncio.sleep(_BROKER_EVERY_S)
            for link in [each for links in stage.links.values() for each in links]:
                if link.ended:
                    continue
                for request in link.written[seen.get(id(link), 0) :]:
                    seen[id(link)] = seen.get(id(link), 0) + 1
                    number, batches = produce_request(request)
                    for _, _, data in batches:
                        self._landed(data)
                    if world.rng.random() < 0.02:
                        link.lose()
                        break
                    offset += 1
                    appended_ms = int(world.true_ms) if world.by_broker else -1
                    answers = [(TOPIC, partition, 0, offset) for _, partition, _ in batches]
                    link.receive(answer_frame(number, answers, appended_ms=appended_ms))

    def _landed(self, data: bytes) -> None:
        world = self.world
        world.written += 1
        age_s = (world.true_ms - first_timestamp_ms(data)) / 1000
        if not world.by_broker and age_s > world.keeps_s:
            world.broken.append(
                f"at {world.now_s:.1f} s a record is written whose time is {age_s / DAY_S:.1f} d "
                f"ago, and the topic keeps {world.keeps_s / DAY_S:.1f} d"
            )

    async def _stream(self, stage: Stage, watch: ClockWatch, tasks: asyncio.TaskGroup) -> None:
        """Start where the clock allows it, then deliver a record each second."""
        world = self.world
        while watch.wrong_for(TOPIC) and world.now_s < LASTS_S:
            if world.is_right and world.now_s - world.right_since_s > DOUBT_S + _INFORMED_S:
                world.broken.append(f"at {world.now_s:.1f} s the start still waits")
                return
            await asyncio.sleep(_RECORD_EVERY_S)
        while world.now_s < LASTS_S:
            await self._flows(stage.deliver(tasks, 0))
            await asyncio.sleep(_RECORD_EVERY_S)

    async def _flows(self, delivery: asyncio.Task[Receipt]) -> None:
        world, began_s = self.world, self.world.now_s
        while not delivery.done():
            await asyncio.sleep(0.5)
            flows_since_s = max(began_s, world.right_since_s)
            if world.is_right and world.now_s - flows_since_s > _FLOW_WITHIN_S:
                world.broken.append(
                    f"at {world.now_s:.1f} s nothing is written, though the clock is off by "
                    f"{world.ahead_s:.0f} s alone"
                )
                delivery.cancel()
                await asyncio.wait([delivery])
                return
            if world.now_s > LASTS_S:
                delivery.cancel()
                await asyncio.wait([delivery])
                return


def play(seed: int, make_times: MakeTimes = RecordTimes) -> World:
    """What happened in the run of `seed`; `broken` is empty where all was right."""
    return run_virtually(Run(seed, make_times).play())
