"""How aiokafka's clients are ended: all is released, and the owner receives its cancellation; and
that aiokafka still has the defects."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import KafkaConnectionError
from aiokafka.producer.sender import Sender

from watchrelay.kafka.client.consumer import stop_consumer
from watchrelay.kafka.client.patches import end_in_own_task, patch_client


class Client:
    closed = False

    async def close(self) -> None:
        self.closed = True


class Consumer:
    """As aiokafka's: `stop()` ends the fetches, then the client."""

    def __init__(self, fetches_end: Callable[[], Awaitable[None]]) -> None:
        self._client = Client()
        self._fetches_end = fetches_end

    async def stop(self) -> None:
        await self._fetches_end()
        await self._client.close()


async def in_a_retry_pause() -> None:
    """A fetch that sleeps after an error, cancelled and awaited without more care."""
    async with asyncio.TaskGroup() as group:
        fetch = group.create_task(asyncio.sleep(3600.0))
        await asyncio.sleep(0)
        fetch.cancel()
        await fetch


async def with_an_error() -> None:
    raise KafkaConnectionError("gone")


async def never() -> None:
    await asyncio.sleep(3600.0)


@pytest.mark.parametrize(
    ("fetches_end", "within_s"), [(in_a_retry_pause, 60.0), (with_an_error, 60.0), (never, 0.0)]
)
def test_a_consumer_that_ends_badly_is_still_closed_and_its_owner_goes_on(
    fetches_end: Callable[[], Awaitable[None]], within_s: float
) -> None:
    async def main() -> bool:
        consumer = Consumer(fetches_end)
        await stop_consumer(consumer, within_s=within_s)
        return consumer._client.closed

    assert asyncio.run(main())


async def until_cancelled() -> None:
    """A loop of aiokafka's, which ends well when it is cancelled."""
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(3600.0)


async def cancel_and_await(task: asyncio.Task[None]) -> None:
    """As aiokafka ends its tasks: a cancellation of the caller goes to the task that is awaited,
    and ends there."""
    task.cancel()
    await task


def always_delivered(ends: Callable[[asyncio.Task[None]], Coroutine[Any, Any, None]]) -> bool:
    """Whether the owner receives its cancellation in whichever turn of the loop it comes while it
    ends something."""

    async def delivered(turns: int) -> bool:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(until_cancelled())
            await asyncio.sleep(0)
            owner = group.create_task(ends(task))
            for _ in range(turns):
                await asyncio.sleep(0)
            requested = owner.cancel()
            await asyncio.wait([owner])
            task.cancel()
            return owner.cancelled() or not requested

    return all(asyncio.run(delivered(turns)) for turns in range(8))


def test_a_cancellation_that_comes_while_a_step_of_an_end_swallows_it_is_delivered() -> None:
    assert not always_delivered(cancel_and_await), "the defect"
    assert always_delivered(
        lambda task: end_in_own_task(lambda: cancel_and_await(task), within_s=60.0, what="producer")
    )


def test_a_cancellation_that_comes_while_a_client_closes_is_delivered() -> None:
    async def close(task: asyncio.Task[None], *, patched: bool) -> None:
        client = AIOKafkaClient()
        if patched:
            patch_client(client)
        client._sync_task = task
        await client.close()

    assert not always_delivered(lambda task: close(task, patched=False)), "the defect"
    assert always_delivered(lambda task: close(task, patched=True))


def test_the_owners_own_cancellation_is_kept() -> None:
    async def main() -> bool:
        async with asyncio.TaskGroup() as group:
            owner = group.create_task(stop_consumer(Consumer(never), within_s=3600.0))
            await asyncio.sleep(0)
            owner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await owner
        return owner.cancelled()

    assert asyncio.run(main())


async def test_aiokafka_ends_its_fetcher_with_a_cancellation_that_nobody_asked_for() -> None:
    loop = asyncio.get_running_loop()
    fetcher: Any = Fetcher.__new__(Fetcher)
    fetcher._fetch_waiters = set()
    fetcher._fetch_task = loop.create_task(until_cancelled(), name="fetch")
    fetcher._pending_tasks = {loop.create_task(never(), name="retry pause")}
    await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await fetcher.close()


def test_aiokafka_loses_a_cancellation_while_it_ends_its_sender() -> None:
    async def close(task: asyncio.Task[None]) -> None:
        sender: Any = Sender.__new__(Sender)
        sender._sender_task = task
        await sender.close()

    assert not always_delivered(close)
