"""Background tasks whose early end is an error, and waiting for events."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from watchrelay.core.errors import Died, first_cause
from watchrelay.core.text import short

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


async def must_run(
    work: Coroutine[object, object, None], *, name: str, stopping: asyncio.Event
) -> None:
    """Run `work` until `stopping`. Raises: Died when it returned or was cancelled earlier,
    which a TaskGroup would neither log nor fail for."""
    try:
        await work
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise Died(f"task {name!r} was cancelled while the process was running") from None
        raise
    if not stopping.is_set():
        raise Died(f"task {name!r} ended while the process was running")


async def end_all(tasks: Iterable[asyncio.Task[None]], *, again_s: float = 10.0) -> None:
    """Cancel `tasks` until all have ended, again after `again_s`: libraries swallow
    cancellations (`kafka.client.patches` names two that did)."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=again_s)


async def first_of(*events: asyncio.Event, timeout_s: float | None = None) -> None:
    """Return when one of the events is set, or after `timeout_s`."""
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(event.wait(), name="wait") for event in events]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()


async def unless(
    stopping: asyncio.Event, work: Coroutine[object, object, Result], *, name: str
) -> Result | None:
    """The result of `work`; None when `stopping` was set before, and `work` was cancelled.
    Raises: what `work` raises, as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            working = group.create_task(work, name=name)
            stopped = group.create_task(stopping.wait(), name="wait")
            await asyncio.wait((working, stopped), return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            stopped.cancel()
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed  # there is one: waiting for an event does not fail
    return None if working.cancelled() else working.result()


class UnexpectedErrors:
    """Tells new errors that no code expected from those whose traceback was logged before."""

    def __init__(self) -> None:
        self._met: set[str] = set()

    def explain(self, error: Exception) -> tuple[str, BaseException | None]:
        """One line for people about `error`, or the cause in a group; and what to log the
        traceback of: None after the first error of its type from that line of code."""
        cause = first_cause(error) if isinstance(error, ExceptionGroup) else error
        *_, frame = traceback.extract_tb(cause.__traceback__) or [None]
        place = (
            f"{type(cause).__name__} {frame.filename}:{frame.lineno}"
            if frame is not None
            else type(cause).__name__
        )
        known = place in self._met
        self._met.add(place)
        return (
            f"internal error: {type(cause).__name__}: {short(str(cause))}",
            None if known else cause,
        )


def log_loop_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs what the event loop complains of as an error, but for broken connections: these are
    reported to their reader, and again to a future that may not be awaited (seen in `make
    soak`)."""
    broken, future = context.get("exception"), context.get("future")
    if (
        isinstance(broken, ConnectionError)
        and future is not None
        and not isinstance(future, asyncio.Task)
    ):
        _log.debug("connection closed with no waiter", extra={"error": str(broken)})
    else:
        loop.default_exception_handler(context)
