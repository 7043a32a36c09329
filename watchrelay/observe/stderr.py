"""stderr that never holds its writer: what its reader does not take in time is dropped and
counted."""

from __future__ import annotations

import io
import os
import select
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, TextIO

QUEUE_BYTES_MAX: Final = 1 << 20
"""Lines that wait for a reader. A burst of the longest tracebacks fits."""
FLUSH_S: Final = 0.5
"""How long a flush waits for a reader."""


class DroppingStream(io.TextIOBase):
    """Writes whole lines to the descriptor of `target` in a thread. Its descriptor may be shared
    with a terminal or another process, so it stays as it is: a blocking one.

    `on_resume` is called with the number of lines that were dropped once lines are read again, by
    any thread; it may not block."""

    def __init__(self, target: TextIO) -> None:
        super().__init__()
        self.dropped = 0
        self.on_resume: Callable[[int], object] = lambda _: None
        self._descriptor, self._encoding = target.fileno(), target.encoding
        self._on_drop: Callable[[int], object] = lambda _: None
        self._lines: deque[bytes] = deque()
        self._bytes, self._begun, self._reported = 0, "", 0
        self._changed = threading.Condition()
        threading.Thread(target=self._write_lines, name="stderr", daemon=True).start()

    def count_drops(self, on_drop: Callable[[int], object]) -> None:
        """Call `on_drop` now with the number of lines that were dropped so far, and with 1 for each
        later one, by any thread; it may not block."""
        with self._changed:
            self._on_drop = on_drop
            on_drop(self.dropped)

    def write(self, text: str) -> int:
        with self._changed:
            whole, newline, rest = text.rpartition("\n")
            if not newline:
                self._begun += text
                return len(text)
            line = (self._begun + whole + newline).encode(self._encoding, "backslashreplace")
            self._begun = rest
            if self._lines and self._bytes + len(line) > QUEUE_BYTES_MAX:
                self._drop()
            else:
                self._lines.append(line)
                self._bytes += len(line)
                self._changed.notify_all()
        return len(text)

    def _drop(self) -> None:
        self.dropped += 1
        self._on_drop(1)

    def flush(self) -> None:
        """Wait until everything is written, for at most `FLUSH_S`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines, FLUSH_S)

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute of the base
        return self._encoding

    def _write_lines(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                line = self._lines[0]
            written = self._write(line)
            with self._changed:
                self._lines.popleft()
                self._bytes -= len(line)
                if not written:
                    self._drop()
                self._changed.notify_all()
                news = self.dropped - self._reported if self._bytes <= QUEUE_BYTES_MAX // 2 else 0
                self._reported += news if written else 0
            if written and news:
                self.on_resume(news)

    def _write(self, line: bytes) -> bool:
        """False where it cannot be written: its reader is gone, or the disk is full."""
        writable = select.poll()
        writable.register(self._descriptor, select.POLLOUT)
        try:
            while line:
                try:
                    line = line[os.write(self._descriptor, line) :]
                except BlockingIOError:  # another process has made the descriptor non-blocking
                    writable.poll()
        except OSError:
            return False
        return True
