"""The program, forked from a process that has imported it: a start takes 0.1 s of the processor
instead of 0.5.

What runs is `watchrelay.__main__.main`, with arguments, environment, directory and output of its
own. What an environment changes before the first import (a preloaded library, the interpreter's own
settings) has no effect on it: such a program has to be executed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, NoReturn

from tests.support.process import Process, execute

_ROOT = Path(__file__).parents[2]
_LONGEST = 1 << 17
"""Bytes of a request."""
_SET_DEATH_SIGNAL = 1


class Forked:
    """A running program, with the interface of `subprocess.Popen`. It is in a session of its own,
    and killed if we are."""

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]
    ) -> None:
        self._end, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        weakref.finalize(self, self._end.close)
        request = json.dumps([argv, dict(environment), str(Path.cwd())]).encode()
        with theirs:
            fds = [theirs.fileno(), out.fileno(), err.fileno()]
            socket.send_fds(_server(), [request], fds)
        self.pid = int(self._end.recv(16))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self.wait(0.0) if wait([self._end], 0.0) else None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises: subprocess.TimeoutExpired."""
        if not wait([self._end], timeout):
            raise subprocess.TimeoutExpired("watchrelay", timeout or 0.0)
        # it stays there: several threads may ask
        self.returncode = int(self._end.recv(16, socket.MSG_PEEK))
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Nothing once it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Program(Process):
    """A `Process` of the program."""

    def _start(self, log: IO[bytes], environment: Mapping[str, str]) -> Forked:
        return Forked(self._argv, environment, log, log)


@functools.cache
def _server() -> socket.socket:
    """Requests to the process that forks; one for each interpreter."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with theirs:
        server = execute([sys.executable, "-m", __name__], stdin=theirs, cwd=_ROOT)
    atexit.register(server.wait)  # and what it took of the processor is ours
    atexit.register(ours.close)
    return ours


def _serve(requests: socket.socket) -> None:
    """Until there is nobody to ask."""
    while True:
        request, fds, _, _ = socket.recv_fds(requests, _LONGEST, 3)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            _fork_and_wait(*json.loads(request), *fds)
        for each in fds:
            os.close(each)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _fork_and_wait(
    argv: list[str], environment: dict[str, str], directory: str, end: int, out: int, err: int
) -> NoReturn:
    _die_with_parent()
    pid = os.fork()
    if pid == 0:
        _die_with_parent()
        os.setsid()
        os.dup2(out, 1)
        os.dup2(err, 2)
        for each in (end, out, err):
            os.close(each)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = argv
        sys.exit(importlib.import_module("watchrelay.__main__").main())
    os.write(end, str(pid).encode())
    os.write(end, str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    os._exit(0)


def _die_with_parent() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _import_program() -> None:
    """All of it but the demo, whose Kafka has threads."""
    from watchrelay.daemon.memory import lean_import

    package = importlib.import_module("watchrelay")
    with lean_import():
        for module in pkgutil.walk_packages(package.__path__, "watchrelay."):
            if not module.name.startswith("watchrelay.demo"):
                importlib.import_module(module.name)
    gc.collect()
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    _import_program()
    _serve(socket.socket(fileno=os.dup(0)))
