"""The latest end of the process, whatever its threads and its event loop do."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

from watchrelay.core.exit_codes import OK


class Deadline:
    """Ends the process with `code` at the earliest moment that `within` was given. A thread keeps
    it: the event loop may be held by a file, a lookup or a task that never ends.

    Args:
        last_words: called first; it must not block."""

    def __init__(self, last_words: Callable[[], None]) -> None:
        self.code = OK
        self._last_words = last_words

    def within(self, seconds: float) -> None:
        """The process ends within `seconds` from now; where no thread can be started for that, by
        itself alone."""
        timer = threading.Timer(seconds, self._end)
        timer.daemon = True
        with contextlib.suppress(RuntimeError):
            timer.start()

    def _end(self) -> None:
        try:
            self._last_words()
        finally:
            os._exit(self.code)
