"""Ctrl-C and SIGTERM: an exit code, and never a traceback.

No handler here raises: an exception at an arbitrary place, such as in the middle of an import, is
printed by the interpreter where no code catches it. Handlers are always set by the program itself:
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
    """From now on both signals end the process silently, unless the parent has turned them off.
    SIGHUP does not end the daemon: it reads its config anyway."""
    _handle(lambda number, _: os._exit(exit_code(argv, number)), SIGNALS)
    if next(iter(argv), "") == "run":
        _handle(lambda _number, _frame: None, (signal.SIGHUP,))


def ignore_late_signals(code: int) -> None:
    """From now on a signal ends the process with `code`: the work is done."""
    _handle(lambda _number, _frame: os._exit(code), SIGNALS)


def write_at_once(message: bytes) -> None:
    """Write to stderr what fits without waiting for its reader."""
    import select

    waiting = select.poll()
    waiting.register(2, select.POLLOUT)
    with contextlib.suppress(OSError):
        if waiting.poll(0):  # a pipe then takes `PIPE_BUF` bytes
            os.write(2, message)


def run_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` in an event loop of its own, as `asyncio.run` does, which would wait for threads
    in a lookup or a file afterwards."""
    import asyncio  # here, so that --help does not import it
    from concurrent.futures import ThreadPoolExecutor

    class Unawaited(ThreadPoolExecutor):
        def shutdown(self, *_: object, **__: object) -> None:
            super().shutdown(wait=False, cancel_futures=True)

    with asyncio.Runner() as runner:
        runner.get_loop().set_default_executor(Unawaited(thread_name_prefix="asyncio"))
        return runner.run(work)


def run_until_signalled(
    work: Coroutine[Any, Any, Result], *, cancelling: Callable[[], None] = lambda: None
) -> Result:
    """Run `work` in an event loop of its own until it is done, or the first signal cancels it;
    a second one ends the process at once. `cancelling` is called with the first one, in a thread.

    Raises: StoppedBySignal: a signal came first. Else, what `work` raises."""
    import asyncio

    received: list[int] = []
    try:
        return run_loop(_cancellable(work, received, cancelling))
    except (Exception, asyncio.CancelledError):
        if received:  # errors during the clean-up do not matter
            raise StoppedBySignal(received[0]) from None
        raise


async def _cancellable(
    work: Coroutine[Any, Any, Result], received: list[int], cancelling: Callable[[], None]
) -> Result:
    import asyncio

    from watchrelay.core.programs import kill_programs

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "runs as a task"

    def cancel(number: int) -> None:
        if received:
            kill_programs()
            os._exit(128 + number)
        received.append(number)
        loop.call_soon_threadsafe(task.cancel)
        cancelling()

    with handled_by(cancel):
        return await work


@contextlib.contextmanager
def handled_by(
    handler: Callable[[int], None], numbers: Sequence[signal.Signals] = SIGNALS
) -> Iterator[None]:
    """Inside the block, `handler` gets these signals in a thread, unless the parent has turned them
    off."""
    from watchrelay.core.signals import received_by

    with received_by(handler, _not_ignored(numbers)):
        yield


def _handle(
    handler: Callable[[int, FrameType | None], None], numbers: Sequence[signal.Signals]
) -> None:
    for number in _not_ignored(numbers):
        signal.signal(number, handler)


def _not_ignored(numbers: Sequence[signal.Signals]) -> list[signal.Signals]:
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
