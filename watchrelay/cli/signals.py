"""Ctrl-C and SIGTERM: an exit code, and never a traceback.

No handler here raises: an exception at an arbitrary place, such as in the middle of an import, is
printed by the interpreter where nobody can catch it. Handlers are always set by the program itself:
the first process of a container is ended by no signal that it does not handle. Before
`install_signal_handlers()` runs, Python's own start answers Ctrl-C with a traceback.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import FrameType
from typing import Any, Final, TypeVar

Result = TypeVar("Result")
Handler = Callable[[int, FrameType | None], None]

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StoppedBySignal(KeyboardInterrupt):
    """A command was stopped by the signal `number`, and has cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def exit_code(argv: Sequence[str], number: int) -> int:
    """The exit code when the signal `number` stops `argv`: 0 for what runs until then, else 128
    + it."""
    command = next(iter(argv), "")
    endless = command in ("run", "demo") or (command == "tail" and "--until-end" not in argv)
    return 0 if endless else 128 + number


def install_signal_handlers(argv: Sequence[str]) -> None:
    """From now on both signals end the process silently, unless the parent has turned them off."""
    _handle(lambda number, _: os._exit(exit_code(argv, number)))


def ignore_late_signals(code: int) -> None:
    """From now on a signal ends the process with `code`: the work is done."""
    _handle(lambda _number, _frame: os._exit(code))


def run_until_signalled(work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` in an event loop of its own until it is done, or the first signal cancels it;
    a second one ends the process at once.

    Raises: StoppedBySignal: a signal came first. Else, what `work` raises."""
    import asyncio  # here, so that --help does not import it

    received: list[int] = []
    try:
        return asyncio.run(_cancellable(work, received))
    except (Exception, asyncio.CancelledError):
        if received:  # errors during the clean-up do not matter
            raise StoppedBySignal(received[0]) from None
        raise


async def _cancellable(work: Coroutine[Any, Any, Result], received: list[int]) -> Result:
    import asyncio

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "runs as a task"

    def cancel(number: int, _frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        loop.call_soon_threadsafe(task.cancel)

    with handled_by(cancel):
        return await work


@contextlib.contextmanager
def handled_by(handler: Handler, numbers: Sequence[signal.Signals] = SIGNALS) -> Iterator[None]:
    """Inside the block, `handler` gets these signals, unless the parent has turned them off."""
    before = _handle(handler, numbers)
    try:
        yield
    finally:
        for number, former in before:
            signal.signal(number, former)


def _handle(
    handler: Handler, numbers: Sequence[signal.Signals] = SIGNALS
) -> list[tuple[signal.Signals, Any]]:
    taken = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    return [(number, signal.signal(number, handler)) for number in taken]
