"""A coroutine: its result, in virtual time: an idle loop jumps to its next timer.

Real sockets between client and server of the same process work, for loopback delivers before the
loop would sleep. Threads and other processes do not: what is handed to an executor runs at once, in
the loop's own thread.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_GRACE_S = 0.001  # real seconds that a packet on its way through the loopback may take
_SMALL_S = 0.6  # a jump so short that a packet may as well arrive after it
_STUCK_S = 2.0


class _JumpingSelector(selectors.DefaultSelector):
    """Looks for ready sockets; with none, moves the clock instead of sleeping."""

    now_s = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        """Ready file objects; none after a jump of `timeout`. Raises: RuntimeError when nothing can
        ever happen."""
        ready = super().select(0)
        if not ready and (timeout is None or timeout > _SMALL_S):
            ready = super().select(_GRACE_S)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            if ready := super().select(_STUCK_S):
                return ready
            raise RuntimeError("everything is blocked: no timer is set and no socket is ready")
        self.now_s += max(timeout, 0.0)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is its selector's."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds."""
        return self._jumping.now_s

    def busy_until(self, at_s: float) -> None:
        """As a callback that takes until then: what was due meanwhile is late."""
        self._jumping.now_s = max(self._jumping.now_s, at_s)

    def run_in_executor(  # type: ignore[override]  # no type variables for arguments: tests hand in anything
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Run `func` now: a thread would not be seen by virtual time."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # handed to the task that awaits, as an executor does
            future.set_exception(error)
        return future


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` to its end on a virtual loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def virtual(test: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, None]:
    """`test`, which may open sockets within its process, as one that runs in virtual time."""

    @wraps(test)
    def plain(*arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        run(test(*arguments, **named))

    return plain
