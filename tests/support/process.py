"""A command line and what "ready" means: a child process that cannot outlive us.

A child is killed by the kernel when the thread that forked it ends, so all children are forked by
one thread that lives as long as this interpreter: a test may start and restart parts from any
thread or event loop.
"""

import atexit
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, Self, TypeVar

T = TypeVar("T")

_POLL_S = 0.05
_POLL_MOST_S = 0.2
_POLL_SHARE = 0.02
_PREFIX = "watchrelay-"
_SWEEP_AGE_S = 60.0
# Runs in the child before the real program: SIGKILL upon the parent's death, and none if it is dead
# already.
_DIE_WITH_PARENT = (
    "import ctypes, os, signal, sys; parent = int(sys.argv[1]); "
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL); os.getppid() == parent or sys.exit(1); "
    "os.execvp(sys.argv[2], sys.argv[2:])"
)
_forker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forker")
# One byte each: who was given a port holds a lock on its byte until its interpreter ends.
_PORTS_GIVEN = Path(tempfile.gettempdir()) / f"watchrelay-ports-{os.getuid()}"
_ports_given: set[int] = set()
_ports_file: IO[bytes] | None = None


class PartError(Exception):
    """A real part did not start, died, or did not become ready in time; the message ends with the
    tail of its log."""


def wait_until(
    claim: str, condition: Callable[[], T], *, deadline_s: float = 60.0, poll_s: float | None = None
) -> T:
    """What `condition` returned once it was true; raises TimeoutError naming the claim that stayed
    false.

    Asked every `poll_s`; without it every 50 ms, and less often the longer it was waited
    already (every 50th of that, at least five times a second): a question costs milliseconds of the
    very machine that works at the answer.
    """
    began = time.monotonic()
    while True:
        outcome = condition()
        if outcome:
            return outcome
        waited_s = time.monotonic() - began
        if waited_s > deadline_s:
            raise TimeoutError(f"not true after {deadline_s:g} s: {claim}")
        time.sleep(poll_s or max(_POLL_S, min(_POLL_SHARE * waited_s, _POLL_MOST_S)))


def free_port() -> int:
    """A loopback port that nobody listens on and no outgoing connection will take while its owner
    is down.

    Source: bind(0) answers from the range of outgoing connections; a client that keeps dialling a
    dead port of that range may be given the same number as its source and connect to itself, and
    the part could not come back to it. For the same reason no port is given twice, to whichever
    worker of the run: a part that is down for a moment finds its port free.
    """
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    draw = random.SystemRandom()
    for attempt in range(200):
        port = (
            draw.randrange(10_000, lowest_outgoing)
            if lowest_outgoing > 12_000 and attempt < 100
            else 0
        )
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            port = int(probe.getsockname()[1])
        if _take_port(port):
            return port
    raise PartError("no free loopback port found")


def _take_port(port: int) -> bool:
    """Whether nobody was given it, in this interpreter or in another one that lives."""
    global _ports_file
    _ports_file = _ports_file or _PORTS_GIVEN.open("ab")
    try:
        # A process never locks itself out, hence the set.
        fcntl.lockf(_ports_file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    if port in _ports_given:
        return False
    _ports_given.add(port)
    return True


def listens(port: int) -> bool:
    """True when a TCP connection to the loopback port succeeds."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Workspace:
    """A directory in memory (/dev/shm, else the temporary directory) that is removed at exit.

    An exclusive lock on a file inside marks it as in use; directories left behind by killed
    runs hold no lock and are swept by the next run, as they would keep their memory until the
    machine restarts.
    """

    def __init__(self, name: str) -> None:
        shm = Path("/dev/shm")
        base = shm if os.access(shm, os.W_OK) else Path(tempfile.gettempdir())
        _sweep(base)
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-", dir=base))
        self._lock = (self.path / ".lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        atexit.register(self.remove)

    def remove(self) -> None:
        """Removes the directory; a second call does nothing."""
        atexit.unregister(self.remove)
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _sweep(base: Path) -> None:
    for lock in base.glob(f"{_PREFIX}*/.lock"):
        try:
            # made just now, perhaps not locked yet
            if time.time() - lock.stat().st_mtime < _SWEEP_AGE_S:
                continue
            with lock.open("r+") as held:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:  # in use by another run, or just removed by it
            continue


class Child(Protocol):
    """A process that we started; see `subprocess.Popen`."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


def execute(argv: Sequence[str], *, stdin: Any = subprocess.DEVNULL, **more: Any) -> Child:
    """Starts a program in a session of its own; the kernel kills it if we are killed."""
    argv = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *argv]
    start = partial(subprocess.Popen, argv, stdin=stdin, start_new_session=True, **more)
    return _forker.submit(start).result()


class Process:
    """One child process with its log; stopped with its owner, at exit, and by the kernel if we are
    killed."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._argv = [str(argument) for argument in argv]
        self._environment = dict(environment or {})
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """The process id; an AssertionError when it was never started."""
        assert self._child is not None, f"{self.name} was not started"
        return self._child.pid

    @property
    def alive(self) -> bool:
        """True from start until the process has ended; a paused one is alive."""
        return self._child is not None and self._child.poll() is None

    def launch(self) -> Self:
        """Starts the program without waiting for it to be ready."""
        assert not self.alive, f"{self.name} is running already"
        if not Path(self._argv[0]).exists() and shutil.which(self._argv[0]) is None:
            raise PartError(f"{self.name}: no program {self._argv[0]}")
        with self.log.open("ab") as log:
            self._child = self._start(log, {**os.environ, **self._environment})
        atexit.register(self.kill)
        return self

    def _start(self, log: IO[bytes], environment: Mapping[str, str]) -> Child:
        return execute(self._argv, stdout=log, stderr=subprocess.STDOUT, env=environment)

    def await_ready(self, ready: Callable[[], object], *, deadline_s: float = 60.0) -> None:
        """Returns once `ready` is true; raises PartError with the log's tail if the process ends or
        the time is up."""

        def ready_or_dead() -> bool:
            return not self.alive or bool(ready())

        try:
            wait_until(f"{self.name} is ready", ready_or_dead, deadline_s=deadline_s)
        except TimeoutError as late:
            raise PartError(f"{late}\n{self.tail()}") from late
        if not self.alive:
            raise PartError(f"{self.name} ended by itself ({self._ending()})\n{self.tail()}")

    def _ending(self) -> str:
        code = self._child.returncode if self._child else None
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def tail(self, lines: int = 25) -> str:
        """The last lines of the log, under a heading that names the part."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join([f"--- {self.name}: last lines of its log", *text.splitlines()[-lines:]])

    def send(self, number: signal.Signals) -> None:
        """Sends the signal to this very process; nothing if it has ended."""
        if self._child is not None:
            self._child.send_signal(number)

    def exit_code(self, deadline_s: float) -> int:
        """Waits for it to end by itself: its exit code, negative for a signal; raises
        subprocess.TimeoutExpired."""
        assert self._child is not None, f"{self.name} was not started"
        code = self._child.wait(deadline_s)
        atexit.unregister(self.kill)
        return code

    def pause(self) -> None:
        """SIGSTOP: sockets stay open, nothing answers. Returns once each thread has stopped, which
        takes a moment on a busy machine."""
        self.send(signal.SIGSTOP)
        wait_until(f"{self.name} has stopped", self._has_stopped)

    def _has_stopped(self) -> bool:
        threads = Path(f"/proc/{self.pid}/task").glob("*/stat")
        return all(each.read_text().rpartition(")")[2].split()[0] == "T" for each in threads)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL and wait; sockets are closed by the kernel, nothing is flushed."""
        self._end(signal.SIGKILL, grace_s=10.0)

    def stop(self, *, grace_s: float = 10.0) -> None:
        """SIGTERM (a paused process is resumed first), SIGKILL once the grace is over."""
        self.resume()
        self._end(signal.SIGTERM, grace_s=grace_s)

    def _end(self, number: signal.Signals, *, grace_s: float) -> None:
        atexit.unregister(self.kill)
        if self._child is None:
            return
        self._child.send_signal(number)
        try:
            self._child.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait(10.0)
