"""Room: test support.  In: a file.  Out: how often other processes read it, as the kernel tells."""

import ctypes
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

_OPEN, _CLOSE_WRITE, _CLOSE_NOWRITE = 0x20, 0x08, 0x10
_EVENT = struct.Struct("iIII")


class Reads:
    """Counts from entering on; a context manager. Shape: an open is asked for, too, for equal
    events in a row are told as one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._descriptor = -1
        self._count = 0

    def __enter__(self) -> Self:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        mask = _OPEN | _CLOSE_WRITE | _CLOSE_NOWRITE
        if (
            self._descriptor < 0
            or libc.inotify_add_watch(self._descriptor, os.fsencode(self._file), mask) < 0
        ):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(self._file))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    def count(self) -> int:
        """How often it was opened for reading, and closed again."""
        try:
            while told := os.read(self._descriptor, 65536):
                at = 0
                while at < len(told):
                    _, mask, _, name_bytes = _EVENT.unpack_from(told, at)
                    self._count += bool(mask & _CLOSE_NOWRITE)
                    at += _EVENT.size + name_bytes
        except BlockingIOError:
            pass
        return self._count
