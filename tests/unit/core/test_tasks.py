"""Tasks that may not end in silence, and waits that leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging

import pytest

from tests.support.virtualtime import run
from watchrelay.core.errors import Died, first_cause
from watchrelay.core.tasks import end_all, first_of, log_loop_exception, must_run, unless


async def forever() -> None:
    await asyncio.Event().wait()


async def at_once() -> None:
    return None


def others() -> set[asyncio.Task[object]]:
    return asyncio.all_tasks() - {task for task in [asyncio.current_task()] if task}


async def test_work_that_returns_while_the_process_runs_is_an_error() -> None:
    with pytest.raises(Died, match=r"task 'sink' ended while the process was running"):
        await must_run(at_once(), name="sink", stopping=asyncio.Event())


async def test_work_that_is_cancelled_while_the_process_runs_ends_the_whole_group() -> None:
    async def lose_one_of_two() -> None:
        async with asyncio.TaskGroup() as group:
            lost = group.create_task(must_run(forever(), name="watch", stopping=asyncio.Event()))
            group.create_task(forever())
            await asyncio.sleep(0)
            lost.cancel()

    with pytest.raises(ExceptionGroup) as caught:
        await lose_one_of_two()
    assert [str(error) for error in caught.value.exceptions] == [
        "task 'watch' was cancelled while the process was running"
    ]


async def test_while_stopping_work_may_return_or_be_cancelled() -> None:
    stopping = asyncio.Event()
    stopping.set()
    await must_run(at_once(), name="sink", stopping=stopping)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(must_run(forever(), name="watch", stopping=stopping))
        await asyncio.sleep(0)
        task.cancel()
    assert task.cancelled()


async def test_what_work_raises_is_raised() -> None:
    async def fails() -> None:
        raise ValueError("this")

    with pytest.raises(ValueError, match="this"):
        await must_run(fails(), name="sink", stopping=asyncio.Event())


async def test_what_is_reported_of_a_group_is_the_error_and_not_the_tasks_that_it_cancelled() -> (
    None
):
    async def fails_beside_a_task() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(must_run(forever(), name="config", stopping=asyncio.Event()))
            await asyncio.sleep(0)
            raise ValueError("this")

    with pytest.raises(ExceptionGroup) as caught:
        await fails_beside_a_task()
    assert isinstance(caught.value.exceptions[0], Died), (
        "asyncio names the cancelled task first: else there is nothing to choose"
    )
    assert str(first_cause(ExceptionGroup("outer", [caught.value]))) == "this"
    assert str(first_cause(ExceptionGroup("alone", [Died("a task ended")]))) == "a task ended"


def test_a_task_that_swallows_its_cancellation_is_cancelled_again() -> None:
    async def main() -> tuple[float, list[bool]]:
        async def deaf(times: int) -> None:
            for _ in range(times):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(3600.0)
            await asyncio.sleep(3600.0)

        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(deaf(times), name=f"deaf {times}") for times in range(3)]
            await asyncio.sleep(0)
            began_s = loop.time()
            await end_all(tasks, again_s=10.0)
            return loop.time() - began_s, [task.cancelled() for task in tasks]

    assert run(main()) == (20.0, [True, True, True])


async def test_the_first_of_several_events_ends_the_wait_and_no_task_is_left() -> None:
    one, two = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().call_soon(two.set)
    await first_of(one, two)
    assert others() == set()
    await first_of(one, timeout_s=0.001)
    assert others() == set()


async def test_a_wait_that_is_cancelled_leaves_no_task() -> None:
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(first_of(asyncio.Event()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(others()) == 2
        waiting.cancel()
    assert others() == set()


async def test_work_has_its_result_unless_the_end_comes_first() -> None:
    async def seven() -> int:
        return 7

    async def never() -> int:
        await forever()
        return 7

    stopping = asyncio.Event()
    assert await unless(stopping, seven(), name="seven") == 7
    asyncio.get_running_loop().call_soon(stopping.set)
    assert await unless(stopping, never(), name="never") is None
    assert others() == set()


async def test_what_interruptible_work_raises_comes_as_it_is() -> None:
    async def fails() -> None:
        raise KeyError("this")

    with pytest.raises(KeyError, match="this"):
        await unless(asyncio.Event(), fails(), name="fails")
    assert others() == set()


async def test_a_broken_connection_that_nobody_waits_for_is_no_error_and_any_other_forgotten_one_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(log_loop_exception)
    caplog.set_level(logging.DEBUG)
    for forgotten in (ConnectionResetError(104, "Connection reset by peer"), ValueError("a bug")):
        loop.create_future().set_exception(forgotten)
    gc.collect()
    logged = [
        (record.levelname, record.getMessage().splitlines()[0])
        for record in caplog.records
        if record.name != "asyncio.selectors"
    ]
    assert ("DEBUG", "connection closed with no waiter") in logged
    assert [message for level, message in logged if level == "ERROR"] == [
        "Future exception was never retrieved"
    ]
