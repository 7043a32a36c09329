"""Work for an event loop: its result, from a loop that turns on a thread of its own.

For servers that a test talks to from outside while it may still reach into them.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

CALL_TIMEOUT_S = 20.0


class LoopThread:
    """An event loop on a thread. Use: `start` first, `stop` last. Raises: TimeoutError when a call
    takes over 20 s."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    def start(self) -> None:
        """The loop turns from here on."""
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns, run on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    def call(self, change: Callable[[], T]) -> T:
        """What `change` returns, called on the loop's thread, where its servers' state may be
        touched."""

        async def step() -> T:
            return change()

        return self.run(step())

    def stop(self) -> None:
        """The loop turns no more; what still runs on it is cancelled first."""
        self.run(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others)
