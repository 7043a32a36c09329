"""Programs that print a credential: run with bounds on time and on what they print."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, cast

STDERR_BYTES_MAX = 64 * 1024
"""How much of the end of stderr is kept."""
_PIPES_GRACE_S = 1.0
_running: set[int] = set()
"""The process groups of programs that have not ended."""
_REAP_TIMEOUT_S = 5.0


class Ended(NamedTuple):
    """A program that has ended. `code` is negative for a signal; `stdout` is None if it was longer
    than the bound, for which the program was killed."""

    code: int
    stdout: bytes | None
    stderr: bytes


async def run_program(
    command: Sequence[str],
    *,
    timeout_s: float,
    stdout_bytes_max: int,
    stderr: bool = False,
    env: Mapping[str, str] | None = None,
) -> Ended:
    """Run a program in a process group of its own, without stdin.

    Args:
        stderr: keep the end of it; else it is dropped.
        env: None: this process's.

    Raises: OSError or ValueError if it cannot be started; TimeoutError, its process group then
    being dead."""
    transport, collector = await asyncio.get_running_loop().subprocess_exec(
        lambda: _Collector(stdout_bytes_max),
        *command,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE if stderr else subprocess.DEVNULL,
        env=None if env is None else dict(env),
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            await collector.exited.wait()
        # A helper that the program left running may hold the pipes open; what the program itself
        # wrote is read within the grace.
        with suppress(TimeoutError):
            async with asyncio.timeout(_PIPES_GRACE_S):
                await collector.closed.wait()
    finally:
        if not collector.exited.is_set():
            collector.kill_group()
            with suppress(TimeoutError):
                async with asyncio.timeout(_REAP_TIMEOUT_S):
                    await collector.exited.wait()
        transport.close()
    return Ended(transport.get_returncode() or 0, collector.stdout, collector.stderr)


class _Collector(asyncio.SubprocessProtocol):
    """Keeps what is printed up to the bounds, and signals when the program and its pipes are
    done."""

    def __init__(self, stdout_bytes_max: int) -> None:
        self.stdout: bytes | None = b""
        self.stderr = b""
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()
        self._bytes_max = stdout_bytes_max
        self._pid = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pid = cast("asyncio.SubprocessTransport", transport).get_pid()
        _running.add(self._pid)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.stderr = (self.stderr + data)[-STDERR_BYTES_MAX:]
        elif self.stdout is not None:
            self.stdout += data
            if len(self.stdout) > self._bytes_max:
                self.stdout = None
                self.kill_group()

    def process_exited(self) -> None:
        _running.discard(self._pid)
        self.exited.set()

    def connection_lost(self, _error: Exception | None) -> None:
        self.exited.set()
        self.closed.set()

    def kill_group(self) -> None:
        _kill_group(self._pid)


def kill_programs() -> None:
    """Kill those that run, with their children: this process is about to end. By any thread."""
    for group in tuple(_running):
        _kill_group(group)


def _kill_group(pid: int) -> None:
    # The group bears the program's own pid (a session of its own), which is not free for others
    # until the program is reaped.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
