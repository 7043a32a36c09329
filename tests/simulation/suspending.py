"""An event loop in virtual time, of which a process can be suspended, as SIGSTOP does: none of its
callbacks runs, while time, network and brokers go on.

What a context variable names belongs to a process: its tasks and timers, and all that they start.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any, TypeVarTuple, Unpack

from tests.support.relays import NoSocketLoop

_Arguments = TypeVarTuple("_Arguments")

_ELSEWHERE = ("_land", "lands")
"""What is on its way lands, whatever becomes of its sender."""
_ELSEWHERE_MODULES = ("tests.support.groupfake", "tests.support.transactionfake")


class _Due:
    """A callback of a process, and the handle that may cancel it, also after it was missed."""

    __slots__ = ("arguments", "callback", "handle", "process")

    def __init__(
        self, process: Suspendable, callback: Callable[..., object], arguments: tuple[Any, ...]
    ) -> None:
        self.process, self.callback, self.arguments = process, callback, arguments
        self.handle: asyncio.Handle | None = None

    def run(self) -> None:
        if self.process.suspended:
            self.process.missed.append((self, contextvars.copy_context()))
        elif self.handle is None or not self.handle.cancelled():
            self.callback(*self.arguments)


class Suspendable:
    """A process. Use: `own()` in its first task."""

    def __init__(self) -> None:
        self.suspended = False
        self.missed: list[tuple[_Due, contextvars.Context]] = []

    def own(self) -> None:
        """The present task, and what it starts, is of this process."""
        _PROCESS.set(self)

    def resume(self) -> None:
        """Run on: what was due meanwhile runs now, in order."""
        self.suspended = False
        missed, self.missed = self.missed, []
        for due, context in missed:
            context.run(asyncio.get_running_loop().call_soon, due.run)


_PROCESS: contextvars.ContextVar[Suspendable | None] = contextvars.ContextVar(
    "process", default=None
)


class SuspendingLoop(NoSocketLoop):
    """Asks, before each callback, whether its process runs."""

    def call_soon(
        self,
        callback: Callable[[Unpack[_Arguments]], object],
        *args: *_Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        due = _due(callback, args, context)
        if due is None:
            return super().call_soon(callback, *args, context=context)
        due.handle = handle = super().call_soon(due.run, context=context)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Arguments]], object],
        *args: *_Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        due = _due(callback, args, context)
        if due is None:
            return super().call_at(when, callback, *args, context=context)
        due.handle = handle = super().call_at(when, due.run, context=context)
        return handle


def _due(
    callback: Any, arguments: tuple[Any, ...], context: contextvars.Context | None
) -> _Due | None:
    """None for what runs in any case."""
    process = _PROCESS.get() if context is None else context.get(_PROCESS)
    if (
        process is None
        or getattr(callback, "__name__", "") in _ELSEWHERE
        or getattr(callback, "__module__", "") in _ELSEWHERE_MODULES
        or getattr(callback, "__func__", None) is _Due.run
    ):
        return None
    return _Due(process, callback, arguments)
