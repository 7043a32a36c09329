"""Files that other programs write: whether one has changed, and its content, with bounds on size
and waiting time."""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path
from typing import Final

Mark = tuple[object, ...]

WRITER_S: Final = 5.0
"""For a named pipe: how long its writer may take to come. Without one, opening it would block."""

SILENCE_S: Final = 30.0
"""For any pipe: how long its writer may pause. A command that renders a chart or queries a vault
(`-c <(...)`) takes seconds."""

_CHUNK_BYTES = 64 << 10


def mark_of(path: str | Path) -> Mark:
    """Where `path` leads now, and the stat of what is there; empty when there is nothing.

    The path is resolved each time: in a mounted ConfigMap or Secret it leads through a link into a
    directory that is replaced as a whole.
    """
    try:
        real = Path(os.path.realpath(path))
        found = real.stat()
    except OSError:
        return ()
    # The first reading of a pipe would change its time: the writer waits for the reader.
    written_ns = found.st_mtime_ns if stat.S_ISREG(found.st_mode) else 0
    return str(real), found.st_dev, found.st_ino, found.st_size, written_ns


def may_exist(path: Path) -> bool:
    """False when there is no such file; where that cannot be determined, reading it reports why."""
    try:
        return path.exists()
    except OSError:
        return True


def is_special(path: Path) -> bool:
    """Whether there is something, and no regular file, like a pipe; where that cannot be
    determined, reading it reports why."""
    try:
        return path.exists() and not path.is_file()
    except OSError:
        return False


def read_bounded(
    path: str | Path, bytes_max: int, *, writer_s: float = WRITER_S, silence_s: float = SILENCE_S
) -> bytes:
    """What `path` holds, and no more than `bytes_max` of it, however endless it is.

    In the thread of an event loop no pipe is waited for: what it holds by now is all.

    Raises: OSError; TimeoutError for a pipe without a writer, or whose writer pauses for too long.
    """
    # Opened so, a pipe without a writer does not hang; nothing else that is opened for reading is
    # any different.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            # Process substitution and `/dev/stdin` lead to a pipe without a name: no writer can
            # come to that later.
            named = Path(os.path.realpath(path)).exists()
            if _in_event_loop():
                writer_s = silence_s = 0.0
            return _from_pipe(
                descriptor, bytes_max, writer_s=writer_s if named else None, silence_s=silence_s
            )
        os.set_blocking(descriptor, True)
        content = bytearray()
        while len(content) < bytes_max and (
            chunk := os.read(descriptor, min(_CHUNK_BYTES, bytes_max - len(content)))
        ):
            content += chunk
        return bytes(content)
    finally:
        os.close(descriptor)


def _in_event_loop() -> bool:
    import asyncio  # here: only pipes need it

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _from_pipe(
    descriptor: int, bytes_max: int, *, writer_s: float | None, silence_s: float
) -> bytes:
    content = bytearray()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while len(content) < bytes_max:
        try:
            chunk = os.read(descriptor, min(_CHUNK_BYTES, bytes_max - len(content)))
        except BlockingIOError:  # it is open for writing
            if not poll.poll(silence_s * 1000):
                within = f" for {silence_s:g} s" if silence_s else ", and it is not waited for"
                message = f"it is a pipe whose writer has sent nothing{within}"
                raise TimeoutError(errno.ETIMEDOUT, message) from None
            continue
        if chunk:
            content += chunk
        elif content or writer_s is None:
            break
        elif not poll.poll(writer_s * 1000):
            # wakes for the first byte, and for a writer that came and left again
            raise TimeoutError(errno.ETIMEDOUT, "it is a pipe without a writer")
        else:
            writer_s = None
    return bytes(content)
