"""`watchrelay run` among parts that hang: lookups, readers of its log, plugins, its own event loop."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.daemon import clean_environment
from tests.support.pace import pace
from tests.support.process import free_port, wait_until

_ROOT = Path(__file__).resolve().parents[2]
DRAIN_S = 2.0
GRACE_S = 5.0
"""The 4 s that docs/restart.md promises, and one for a process that waits for its turn beside others:
it ends itself `daemon.CLOSING_S`, 3.5 s, after it has noticed the signal."""
_TICK_S = 0.05
PLAIN = "pass"
NO_NAME_SERVER = r"""
import os, socket, threading
lookup = socket.getaddrinfo
def getaddrinfo(host, *more, **named):
    if host == "silent.example":
        os.write(1, b"asked\n")
        threading.Event().wait()
    return lookup(host, *more, **named)
socket.getaddrinfo = getaddrinfo
"""
NOISY = r"""
import logging, os, threading
def noise():
    while not logging.root.handlers:
        threading.Event().wait(0.01)
    for _ in range(3000):
        logging.getLogger("watchrelay.noise").warning("noise", extra={"text": "x" * 1000})
    os.write(1, b"noisy\n")
threading.Thread(target=noise, daemon=True).start()
"""
HELD_LOOP = r"""
import asyncio, os, threading
runner = asyncio.Runner.run
def run(self, work, **named):
    def hold():
        if not os.path.exists(os.environ.get("HOLD_AFTER", "/")):
            self.get_loop().call_later(0.02, hold)
            return
        os.write(1, b"held\n")
        threading.Event().wait()
    self.get_loop().call_later(1.0, hold)
    return runner(self, work, **named)
asyncio.Runner.run = run
"""
"""From its second second on; where HOLD_AFTER names a file, once that is there."""


def seconds_to_end(
    process: subprocess.Popen[str],
    *,
    at_most_s: float,
    each_tick: Callable[[float], None] = lambda _: None,
) -> float:
    """After how many seconds the process ended, or more than `at_most_s`. What counts is the time in
    which this process ran, too: a machine that pauses is no late end."""
    took_s = 0.0
    while process.poll() is None and took_s <= at_most_s:
        began_s = time.monotonic()
        each_tick(took_s)
        pace(_TICK_S)
        took_s += min(time.monotonic() - began_s, 2 * _TICK_S)
    return took_s


class Relay:
    """`watchrelay run`, in an interpreter that first runs a `prelude`; nothing answers it."""

    def __init__(self, folder: Path, prelude: str = PLAIN, **config: Any) -> None:
        self.port = free_port()
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(kubeconfig())
        self.file = folder / "config.yaml"
        self.config: dict[str, Any] = {
            "cluster": "c",
            "kubernetes": {"kubeconfig": str(self.kubeconfig)},
            "kafka": {"bootstrapServers": ["127.0.0.1:1"]},
            "resources": ["pods"],
            "shutdown": {"drainTimeout": f"{DRAIN_S:g}s"},
            "observe": {"listen": f"127.0.0.1:{self.port}", "logFormat": "json"},
            **config,
        }
        self.config["resources"] = [{"resource": "pods"}]
        self.file.write_text(yaml.safe_dump(self.config))
        self._code = (
            f"{prelude}\nimport sys\nfrom watchrelay.__main__ import main\nsys.exit(main())"
        )
        self.process: subprocess.Popen[str]

    @contextmanager
    def running(
        self, stderr: int = subprocess.PIPE, **environment: str
    ) -> Iterator[subprocess.Popen[str]]:
        argv = [sys.executable, "-c", self._code, "run", "-c", str(self.file)]
        with subprocess.Popen(
            argv,
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=clean_environment(environment),
        ) as self.process:
            try:
                yield self.process
            finally:
                self.process.kill()

    def get(self, path: str) -> str:
        """The body of an answer; "" while there is none."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    def live(self) -> bool:
        return self.get("/livez") == "ok\n"

    def await_live(self) -> None:
        wait_until("/livez answers", self.live)

    def ends_in_time(
        self,
        number: signal.Signals = signal.SIGTERM,
        *,
        times: int = 1,
        drain_s: float = DRAIN_S,
    ) -> int:
        """The exit code after the signal. Raises: AssertionError where it comes too late."""
        for _ in range(times):
            self.process.send_signal(number)
        took_s = seconds_to_end(self.process, at_most_s=drain_s + GRACE_S)
        assert took_s <= drain_s + GRACE_S, f"it has not ended after {took_s:.2f} s"
        return self.process.wait()


def kubeconfig(server: str = "http://127.0.0.1:1", user: Any = None) -> str:
    return yaml.safe_dump(
        {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": user or {}}],
        }
    )


def full_pipe() -> tuple[int, int]:
    """A pipe that takes nothing until it is read; its file description is a blocking one."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.write(writing, b"#" * 4095 + b"\n")
    return reading, writing


def plugin(folder: Path) -> dict[str, Any]:
    """One that neither ends nor listens to SIGTERM, and writes the pid of its child to the file
    `pid`."""
    pid = folder / "pid"
    return {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "sh",
        "args": ["-c", f"trap '' TERM; sleep 600 & echo $! > {pid}.new; mv {pid}.new {pid}; wait"],
        "interactiveMode": "Never",
    }


def is_alive(pid: int) -> bool:
    """A process that has ended and is not reaped is not."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
