"""When the API server is asked for the time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from tests.support.virtualtime import virtual
from tests.unit.kafka.test_sink_clock import Clock
from watchrelay.core.clock_offset import SHOWN_FROM_S, ClockOffset
from watchrelay.daemon.clock_watch import ClockWatch
from watchrelay.observe.metrics import Metrics
from watchrelay.observe.status import StatusRegistry

PAUSE_S = 3600.0
DAY_S = 86_400.0


class PausedMachine(Clock):
    """Its monotonic clock has stood still for `paused_s`; its wall clock was set right again."""

    paused_s = 0.0
    asked = 0

    def true_ms(self) -> int:
        return super().true_ms() + round(self.paused_s * 1000)

    async def ask(self) -> None:
        self.asked += 1
        now_s = self.now_s()
        self.times.offset.kubernetes.note(
            self.true_ms(), within_ms=1000, asked_s=now_s, answered_s=now_s
        )


@virtual
async def test_a_clock_that_seems_wrong_after_a_pause_of_the_machine_is_right_within_a_minute() -> (
    None
):
    machine, statuses = PausedMachine(), StatusRegistry()
    watch = ClockWatch(machine.times, metrics=Metrics(), statuses=statuses, ask=machine.ask)
    machine.answered_by_api_server()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watch.run())
        await asyncio.sleep(60.0)
        assert not machine.asked, "the clock is right"
        machine.paused_s = PAUSE_S
        await asyncio.sleep(3.0)
        assert (machine.known_s or 0.0) > SHOWN_FROM_S
        assert "clock" in statuses.problems
        await asyncio.sleep(57.0)
        assert "clock" not in statuses.problems
        asked = machine.asked
        await asyncio.sleep(600.0)
        assert machine.asked == asked
        task.cancel()


class CountedOffset(ClockOffset):
    """Counts how often it is computed."""

    computed = 0

    def known_s(self, now_s: float, wall_ms: int) -> float | None:
        self.computed += 1
        return super().known_s(now_s, wall_ms)


@virtual
async def test_the_offset_is_computed_once_however_many_topics_there_are() -> None:
    machine, offset = PausedMachine(-4 * DAY_S), CountedOffset()
    machine.times.offset = offset
    watch = ClockWatch(machine.times, metrics=Metrics(), statuses=StatusRegistry(), ask=machine.ask)
    machine.answered_by_api_server()
    for number in range(100):
        keeps_d = 7 if number == 50 else 30
        watch.learn(f"t{number}", round(keeps_d * DAY_S * 1000), assumed=False)
    offset.computed = 0
    assert not watch.fit, "topic t50 is written by that clock"
    assert offset.computed == 1
    machine.times.forget("t50")
    assert watch.fit


@virtual
async def test_a_topic_that_is_forgotten_while_it_is_looked_at_stays_forgotten() -> None:
    machine = PausedMachine(-20 * DAY_S)
    keeps_ms = round(7 * DAY_S * 1000)

    async def kept(topics: Sequence[str]) -> Mapping[str, int]:
        machine.times.forget("gone")
        return dict.fromkeys(topics, keeps_ms)

    watch = ClockWatch(
        machine.times, metrics=Metrics(), statuses=StatusRegistry(), ask=machine.ask, kept=kept
    )
    machine.answered_by_api_server()
    for topic in ("gone", "there"):
        watch.learn(topic, keeps_ms, assumed=False)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watch.run())
        await asyncio.sleep(60.0)
        task.cancel()
    assert machine.times.topics == ["there"]
