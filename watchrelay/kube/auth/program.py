"""One short-lived program, run without ever being left behind.

Room: kube. In: a command, its environment, a deadline. Out: its exit code and what it wrote to
stdout. Both pipes are read as they fill, so a program that floods stderr is not stopped by it; on
the deadline, and when we are cancelled, the whole process group is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

STDOUT_BYTES_MAX = 4 * 1024 * 1024
_PIPES_GRACE_S = 1.0
_REAP_TIMEOUT_S = 5.0


class TooMuchOutput(Exception):
    """The program wrote more to stdout than any credential is long."""


class _Collector(asyncio.SubprocessProtocol):
    """Keeps stdout up to a bound, drops stderr (it may hold secrets), and says when the program and
    its pipes are done."""

    def __init__(self) -> None:
        self.stdout = bytearray()
        self.overflowed = False
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd != 1:
            return
        if len(self.stdout) + len(data) > STDOUT_BYTES_MAX:
            self.overflowed = True
        else:
            self.stdout += data

    def process_exited(self) -> None:
        self.exited.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # the base class names it
        self.exited.set()
        self.closed.set()


async def run_program(
    command: Sequence[str], *, env: Mapping[str, str], timeout_s: float
) -> tuple[int, bytes]:
    """Exit code (negative: the signal that ended it) and stdout. stdin is empty, stderr is drained
    and dropped.

    Raises: OSError if it cannot be started; TimeoutError after `timeout_s`, its process group then
    being dead; TooMuchOutput.
    """
    loop = asyncio.get_running_loop()
    transport, collector = await loop.subprocess_exec(
        _Collector,
        *command,
        stdin=subprocess.DEVNULL,
        env=dict(env),
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
            await _kill_group(transport.get_pid(), collector)
        transport.close()
    if collector.overflowed:
        raise TooMuchOutput
    return transport.get_returncode() or 0, bytes(collector.stdout)


async def _kill_group(pid: int, collector: _Collector) -> None:
    # The group bears the program's own pid (a session of its own), which is not free for others
    # until the program is reaped.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(_REAP_TIMEOUT_S):
            await collector.exited.wait()
