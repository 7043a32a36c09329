"""Work with a second task beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

Result = TypeVar("Result")


async def beside(
    background: Coroutine[object, object, None],
    work: Coroutine[object, object, Result],
    *,
    name: str,
) -> Result:
    """The result of `work`; `background` runs meanwhile, as the task `name`. Raises: what either
    raises, as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(background, name=name)
            try:
                return await work
            finally:
                running.cancel()
    except ExceptionGroup as failed:  # the group's wrapping: callers wait for the error itself
        raise failed.exceptions[0] from failed
