"""Room: unit tests.  In: streams at the turnstile, in virtual time.  Out: seats of lists, waits at
the gate."""

import asyncio
import contextlib
import logging

import pytest

from tests.support import virtualtime
from watchrelay.core.errors import Forbidden, Misconfigured, Throttled, Unreachable
from watchrelay.observe.metrics import Metrics
from watchrelay.watch.admission import Turnstile


def quiet(_: float) -> None:
    """Nobody looks."""


def test_three_lists_at_once_and_of_large_ones_one() -> None:
    async def scene() -> None:
        turnstile, now, most = Turnstile(), {"all": 0, "large": 0}, {"all": 0, "large": 0}

        async def make_list(*, large: bool) -> None:
            with turnstile.membership() as passage:
                await passage.sit(large=large)
                kinds = ("all", "large") if large else ("all",)
                for kind in kinds:
                    now[kind] += 1
                    most[kind] = max(most[kind], now[kind])
                await asyncio.sleep(1)
                for kind in kinds:
                    now[kind] -= 1

        async with asyncio.TaskGroup() as tasks:
            for index in range(12):
                tasks.create_task(make_list(large=index % 2 == 0), name=f"list {index}")
        assert most == {"all": 3, "large": 1}

    virtualtime.run(scene())


def test_a_stream_that_is_cancelled_while_it_waits_takes_no_seat_with_it() -> None:
    async def scene() -> None:
        turnstile = Turnstile(lists=1)
        with (
            turnstile.membership() as first,
            turnstile.membership() as second,
            turnstile.membership() as third,
        ):
            await first.sit(large=False)
            for large in (False, True):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1):
                        await second.sit(large=large)
            first.stand()
            async with asyncio.timeout(1):
                await third.sit(large=True)
            assert third.seated

    virtualtime.run(scene())


def test_who_neither_probes_nor_closes_waits_until_it_is_open_and_no_longer_than_told() -> None:
    async def scene() -> None:
        loop, turnstile = asyncio.get_running_loop(), Turnstile()
        began_s = loop.time()
        with turnstile.membership() as passage:
            await turnstile.opened(within_s=60)
            assert loop.time() == began_s
            await passage.enter(quiet)
            passage.failed(Throttled("busy", retry_after_s=20))
            await turnstile.opened(within_s=5)
            assert loop.time() == began_s + 5
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(turnstile.opened(within_s=60))
                await passage.enter(quiet)
                assert loop.time() == began_s + 20
                assert not waiting.done(), "the probe is out, not answered"
                passage.answered()
            assert loop.time() == began_s + 20

    virtualtime.run(scene())


def test_whoever_waits_at_the_gate_is_told_until_when_and_passes_when_it_opens() -> None:
    async def scene() -> None:
        loop, turnstile, told = asyncio.get_running_loop(), Turnstile(), list[float]()
        with turnstile.membership() as first, turnstile.membership() as second:
            await first.enter(quiet)
            first.failed(Throttled("busy", retry_after_s=20))
            began_s = loop.time()
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(second.enter(told.append), name="second")
                await waiting
            assert loop.time() - began_s >= 20
            assert told == [began_s + 20]
            second.failed(Forbidden("no right"))
            assert turnstile.gate.closed_until_s is None

    virtualtime.run(scene())


def test_a_probe_without_a_credential_opens_nothing_and_the_next_stream_probes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    metrics = Metrics()

    def closed() -> float | None:
        return metrics.registry.get_sample_value("watchrelay_endpoint_gate_closed")

    async def scene() -> None:
        loop, turnstile = asyncio.get_running_loop(), Turnstile(metrics=metrics)
        with turnstile.membership() as first, turnstile.membership() as second:
            await first.enter(quiet)
            first.failed(Unreachable("connection refused"))
            await first.enter(quiet)
            asked_s = loop.time()
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(second.enter(quiet), name="second")
                await asyncio.sleep(0)
                first.failed(Misconfigured("the plugin failed with exit code 255"))
                assert (turnstile.gate.closed_until_s or 0) >= asked_s + 1
                assert (closed(), caplog.messages) == (
                    1,
                    ["api server in trouble, all streams stay away"],
                )
                async with asyncio.timeout(5):
                    await waiting
            assert loop.time() >= asked_s + 1
            second.failed(Misconfigured("no other credential", status=401))
            assert turnstile.gate.closed_until_s is None
            assert (closed(), caplog.messages[1:]) == (0, ["api server answers again"])

    virtualtime.run(scene())


def test_a_request_without_a_credential_closes_no_gate() -> None:
    async def scene() -> None:
        turnstile = Turnstile()
        with turnstile.membership() as first, turnstile.membership() as second:
            await first.enter(quiet)
            first.failed(Misconfigured("the plugin failed with exit code 255"))
            assert turnstile.gate.closed_until_s is None
            async with asyncio.timeout(0.5):
                await second.enter(quiet)

    virtualtime.run(scene())


def test_streams_that_start_together_start_spread_and_a_lone_one_at_once() -> None:
    turnstile = Turnstile()
    with contextlib.ExitStack() as stack:

        async def join() -> list[float]:
            return [stack.enter_context(turnstile.membership()).first_wait_s for _ in range(50)]

        async def scene() -> None:
            with stack:
                waits = await join()
                assert waits[0] == 0
                assert 0.2 < max(waits) <= 1

        virtualtime.run(scene())
