"""Signals, received by a thread of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence


@contextlib.contextmanager
def received_by(
    handler: Callable[[int], None], numbers: Sequence[signal.Signals]
) -> Iterator[None]:
    """Inside the block, which the main thread runs, `handler` is called with the number of each of
    these signals, in another thread: the main thread may be held by anything, and Linux gives a
    signal that follows another one at once to any thread, which does not wake the main one."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def receive() -> None:
        with os.fdopen(reading, "rb", buffering=0) as received:
            while some := received.read(64):
                for number in some:
                    if number in numbers:
                        handler(number)

    threading.Thread(target=receive, name="signals", daemon=True).start()
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    descriptor = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield
    finally:
        try:
            signal.set_wakeup_fd(descriptor)
        except (OSError, ValueError):  # who had set it before has ended meanwhile
            signal.set_wakeup_fd(-1)
        for number, former in before.items():
            signal.signal(number, former)
        os.close(writing)
