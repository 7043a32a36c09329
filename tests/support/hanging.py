"""`watchrelay run` among parts that hang: lookups, readers of its log, plugins, its own event loop."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.daemon import clean_environment
from tests.support.process import free_port, wait_until

_ROOT = Path(__file__).resolve().parents[2]
DRAIN_S = 2.0
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
        os.write(1, b"held\n")
        threading.Event().wait()
    self.get_loop().call_later(1.0, hold)
    return runner(self, work, **named)
asyncio.Runner.run = run
"""


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
    def running(self, stderr: int = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
        argv = [sys.executable, "-c", self._code, "run", "-c", str(self.file)]
        with subprocess.Popen(
            argv,
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=clean_environment(),
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
        """The exit code after the signal."""
        for _ in range(times):
            self.process.send_signal(number)
        return self.process.wait(timeout=drain_s + 5)


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
