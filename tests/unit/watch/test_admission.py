"""List slots, and waits for the circuit breaker, in virtual time."""

import asyncio
import contextlib
import logging

import pytest

from tests.support import virtualtime
from tests.support.virtualtime import virtual
from watchrelay.core.errors import Forbidden, KubeError, Misconfigured, Throttled, Unreachable
from watchrelay.observe.metrics import Metrics
from watchrelay.watch.admission import Admission, StreamAdmission

UNAVAILABLE = "API server unavailable; requests of all streams are paused"
AVAILABLE = "API server available again"


def quiet(_: float) -> None:
    pass


async def fails(stream: StreamAdmission, error: KubeError) -> None:
    """A request of the stream is admitted, and fails."""
    await stream.enter(quiet)
    stream.failed(error)


async def is_answered(stream: StreamAdmission) -> None:
    """A request of the stream is admitted, and answered."""
    await stream.enter(quiet)
    stream.answered()


@virtual
async def test_three_lists_at_once_and_of_large_ones_one() -> None:
    admission, now, most = Admission(), {"all": 0, "large": 0}, {"all": 0, "large": 0}

    async def make_list(*, large: bool) -> None:
        with admission.register() as stream:
            await stream.acquire_list_slot(large=large)
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


@virtual
async def test_a_stream_that_is_cancelled_while_it_waits_takes_no_list_slot() -> None:
    admission = Admission(list_slots=1)
    with (
        admission.register() as first,
        admission.register() as second,
        admission.register() as third,
    ):
        await first.acquire_list_slot(large=False)
        for large in (False, True):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await second.acquire_list_slot(large=large)
        first.release_list_slot()
        async with asyncio.timeout(1):
            await third.acquire_list_slot(large=True)


@virtual
async def test_requests_outside_of_the_circuit_wait_until_it_is_closed_and_no_longer_than_given() -> (
    None
):
    loop, admission = asyncio.get_running_loop(), Admission()
    began_s = loop.time()
    with admission.register() as stream:
        await admission.wait_while_open(within_s=60)
        assert loop.time() == began_s
        await stream.enter(quiet)
        stream.failed(Throttled("busy", retry_after_s=20))
        await admission.wait_while_open(within_s=5)
        assert loop.time() == began_s + 5
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(admission.wait_while_open(within_s=60))
            await stream.enter(quiet)
            assert loop.time() == began_s + 20
            assert not waiting.done(), "the probe is out, not answered"
            stream.answered()
        assert loop.time() == began_s + 20


@virtual
async def test_a_waiting_stream_learns_until_when_and_passes_when_the_circuit_closes() -> None:
    loop, admission, waits = asyncio.get_running_loop(), Admission(), list[float]()
    with admission.register() as first, admission.register() as second:
        await first.enter(quiet)
        first.failed(Throttled("busy", retry_after_s=20))
        began_s = loop.time()
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(second.enter(waits.append), name="second")
            await waiting
        assert loop.time() - began_s >= 20
        assert waits == [began_s + 20]
        second.failed(Forbidden("no right"))
        assert admission.breaker.open_until_s is None


@virtual
async def test_a_probe_without_a_credential_closes_nothing_and_the_next_stream_probes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    metrics = Metrics()

    def closed() -> float | None:
        return metrics.registry.get_sample_value("watchrelay_endpoint_gate_closed")

    loop, admission = asyncio.get_running_loop(), Admission(metrics=metrics)
    with admission.register() as first, admission.register() as second:
        await first.enter(quiet)
        first.failed(Unreachable("connection refused"))
        await first.enter(quiet)
        asked_s = loop.time()
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(second.enter(quiet), name="second")
            await asyncio.sleep(0)
            first.failed(Misconfigured("the plugin failed with exit code 255"))
            assert (admission.breaker.open_until_s or 0) >= asked_s + 1
            assert (closed(), caplog.messages) == (
                1,
                [UNAVAILABLE],
            )
            async with asyncio.timeout(5):
                await waiting
        assert loop.time() >= asked_s + 1
        second.failed(Misconfigured("no other credential", status=401))
        assert admission.breaker.open_until_s is None
        assert (closed(), caplog.messages[1:]) == (0, [AVAILABLE])


def test_a_failure_after_a_watch_broke_and_the_server_was_healthy_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def scene() -> None:
        with Admission().register() as stream:
            stream.watch_broke(Unreachable("connection reset"))
            await is_answered(stream)
            await asyncio.sleep(200)
            await fails(stream, Unreachable("connection refused"))
            await is_answered(stream)

    virtualtime.run(scene())
    assert caplog.messages == [UNAVAILABLE, AVAILABLE]


def test_an_outage_is_one_warning_however_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scene() -> None:
        with Admission().register() as stream:
            for _ in range(3):
                await fails(stream, Unreachable("connection refused"))
            for _ in range(9):
                await fails(stream, Throttled("storage is (re)initializing"))
            await is_answered(stream)

    virtualtime.run(scene())
    assert caplog.messages == [UNAVAILABLE, AVAILABLE]


@virtual
async def test_a_server_that_comes_and_goes_is_a_warning_in_two_minutes_each_with_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with Admission().register() as stream:
        while loop.time() < began_s + 600:
            await fails(stream, Unreachable("connection refused"))
            await is_answered(stream)
        assert 8 <= len(caplog.messages) <= 10
        assert caplog.messages == [UNAVAILABLE, AVAILABLE] * (len(caplog.messages) // 2)
        caplog.clear()
        while loop.time() < began_s + 1200:  # it is gone for good
            await fails(stream, Unreachable("connection refused"))
        assert caplog.messages == [UNAVAILABLE]


def test_a_probe_whose_stream_alone_fails_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scene() -> None:
        admission = Admission()
        with admission.register() as failing, admission.register() as other:
            await fails(failing, Throttled("the aggregated API is down"))
            await is_answered(other)
            caplog.clear()
            await asyncio.sleep(200)
            other.watch_broke(Unreachable("connection reset"))
            await fails(failing, Throttled("the aggregated API is down"))
            assert admission.breaker.open_until_s is not None
            await is_answered(other)

    virtualtime.run(scene())
    assert caplog.messages == []


@virtual
async def test_a_request_without_a_credential_does_not_open_the_circuit() -> None:
    admission = Admission()
    with admission.register() as first, admission.register() as second:
        await first.enter(quiet)
        first.failed(Misconfigured("the plugin failed with exit code 255"))
        assert admission.breaker.open_until_s is None
        async with asyncio.timeout(0.5):
            await second.enter(quiet)


def test_streams_that_start_together_start_spread_and_a_lone_one_at_once() -> None:
    admission = Admission()
    with contextlib.ExitStack() as stack:

        async def join() -> list[float]:
            return [stack.enter_context(admission.register()).first_wait_s for _ in range(50)]

        async def scene() -> None:
            with stack:
                waits = await join()
                assert waits[0] == 0
                assert 0.2 < max(waits) <= 1

        virtualtime.run(scene())


@pytest.mark.parametrize("end", [None, Forbidden("no right"), Throttled("busy")])
@virtual
async def test_a_stream_waits_at_its_start_for_none_whose_first_request_has_ended(
    end: KubeError | None,
) -> None:
    admission = Admission()
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stream = stack.enter_context(admission.register())
            await (is_answered(stream) if end is None else fails(stream, end))
        assert stack.enter_context(admission.register()).first_wait_s == 0
