"""Ctrl-C and SIGTERM: an exit code, and never a traceback.

Room: below all others. In: the command line, signals. Out: the process ends at once where nothing
needs an end; what runs in an event loop is cancelled, and cleans up first.
No handler here raises: an exception out of nowhere, such as in the middle of an import, is printed
by the interpreter where nobody can catch it. Each handler is set by the program itself, for the
first process of a container is ended by no signal that it does not handle. What comes before
`heed()` is the interpreter's own start: there Python answers Ctrl-C with a traceback of its own.
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


class ToldToStop(KeyboardInterrupt):
    """A command was told to stop, and has cleaned up. Shape: `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def exit_code(argv: Sequence[str], number: int) -> int:
    """How the command line `argv` ends when it is told to stop.

    Shape: 0 for what goes on until then, 128 and the signal's number for what had something to
    bring to an end.
    """
    command = next(iter(argv), "")
    endless = command in ("run", "demo") or (command == "tail" and "--until-end" not in argv)
    return 0 if endless else 128 + number


def heed(argv: Sequence[str]) -> None:
    """From now on both signals end the process in silence. One that the parent has turned off
    (`nohup`, `&`) stays so."""
    _on_signals(lambda number, _: os._exit(exit_code(argv, number)))


def settle(code: int) -> None:
    """The work is done, and its code is `code` whatever comes while the interpreter ends."""
    _on_signals(lambda _number, _frame: os._exit(code))


def finish(work: Coroutine[Any, Any, Result]) -> Result:
    """What `work` returns, in an event loop of its own. A second signal does not wait for its
    cleaning up.

    Raises: ToldToStop when a signal came first; whatever `work` raises.
    """
    import asyncio  # here, so that --help needs none of it

    told: list[int] = []
    try:
        return asyncio.run(_cancellable(work, told))
    except (Exception, asyncio.CancelledError):
        if told:  # what fails while it is cancelled is no news
            raise ToldToStop(told[0]) from None
        raise


async def _cancellable(work: Coroutine[Any, Any, Result], told: list[int]) -> Result:
    import asyncio

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "runs as a task"

    def tell(number: int, _frame: FrameType | None) -> None:
        if told:
            os._exit(128 + number)
        told.append(number)
        loop.call_soon_threadsafe(task.cancel)

    with _handled_by(tell):
        return await work


@contextlib.contextmanager
def _handled_by(handler: Handler) -> Iterator[None]:
    before = _on_signals(handler)
    try:
        yield
    finally:
        for number, former in before:
            signal.signal(number, former)


def _on_signals(handler: Handler) -> list[tuple[int, Any]]:
    numbers = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    return [(number, signal.signal(number, handler)) for number in numbers]
