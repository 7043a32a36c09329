"""Ends from a seed: what hangs, when one or two signals come, and whether the process ends within
`GRACE_S` after the drain, with the exit code and the line that docs/restart.md promises."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz import seeds
from tests.fuzz.seeds import Played
from tests.support import pace
from tests.support.embedded import EmbeddedCluster
from tests.support.faultproxy import FaultProxy
from tests.support.hanging import (
    GRACE_S,
    HELD_LOOP,
    NO_NAME_SERVER,
    NOISY,
    Relay,
    full_pipe,
    is_alive,
    kubeconfig,
    plugin,
    seconds_to_end,
)
from tests.support.process import wait_until
from watchrelay.demo.kafka import EmbeddedKafka

LOOKUP_KAFKA, LOOKUP_API, PLUGIN = "lookup of Kafka", "lookup of the API server", "plugin"
MUTE_KAFKA, MUTE_API = "mute Kafka", "mute API server"
CONFIG, KUBECONFIG = "config is a pipe", "kubeconfig is a pipe"
NOISE, UNREAD, LOOP, VIEWERS = "noise", "unread stderr", "held loop", "viewers that read nothing"
ANYWHERE = (NOISE, UNREAD, LOOP, VIEWERS, CONFIG)
ALONE = (*ANYWHERE, LOOKUP_KAFKA, LOOKUP_API, MUTE_KAFKA, MUTE_API, KUBECONFIG, PLUGIN)
WORKING = (*ANYWHERE, MUTE_KAFKA, MUTE_API)
"""With an API server and a Kafka that answer until the signal comes."""
STOPPED, LATE = "stopped", "shutdown did not end in time, the process ends without it"
_BEGUN = r"""
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever started us
from watchrelay.cli import signals
install = signals.install_signal_handlers
def begin(argv):
    install(argv)
    os.write(1, b"begun\n")
signals.install_signal_handlers = begin
"""
_NO_DEADLINE = r"""
from watchrelay.core.deadline import Deadline
Deadline.within = lambda *_: None
"""
_MUTE_MS = 300_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed plays. `after_s`: seconds from the moment to each of the signals."""

    hangs: frozenset[str]
    works: bool
    begun: bool
    """The moment is that of the signal handlers; else that of the first answer, or the hold."""
    after_s: tuple[float, ...]
    number: signal.Signals
    hups: int
    drain_s: int


def plan_of(seed: int) -> Plan:
    """The same for the same seed."""
    rng = Random(f"ends {seed}")
    works = rng.random() < 0.4
    kinds = WORKING if works else ALONE
    after_s = [rng.choice([0.0, 0.0, 0.1, 0.4, 1.2])]
    if rng.random() < 0.4:
        after_s.append(rng.choice([0.0, 0.0, 0.01, 0.3, 1.0]))
    return Plan(
        hangs=frozenset(rng.sample(kinds, rng.choice([0, 1, 1, 2, 2, 3, 4]))),
        works=works,
        begun=not works and rng.random() < 0.3,
        after_s=tuple(after_s),
        number=rng.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGINT]),
        hups=rng.choice([0, 0, 1, 50]),
        drain_s=rng.choice([1, 2, 3]),
    )


class Round:
    """One seed."""

    def __init__(self, seed: int, *, plant: bool) -> None:
        self.plan = plan_of(seed)
        self.result = Played(seed, events=[str(self.plan)])
        self._plant = plant
        self._stack = ExitStack()
        self._kafka: EmbeddedKafka | None = None
        self._way: FaultProxy | None = None
        self._cluster: EmbeddedCluster | None = None

    def play(self) -> Played:
        """The result; never raises but for what ends the process."""
        with self._stack:
            enter = self._stack.enter_context
            folder = Path(enter(tempfile.TemporaryDirectory(prefix="watchrelay-ends-")))
            try:
                self._life(folder)
            except (TimeoutError, AssertionError, subprocess.TimeoutExpired) as error:
                self.result.broken.append(f"{type(error).__name__}: {error}")
            if self.result.broken:
                log = folder / "log"
                text = log.read_text(errors="replace") if log.exists() else "log not kept"
                lines = [line[:300] for line in text.splitlines() if '"noise"' not in line]
                self.result.events += lines[-30:]
        self.result.counts.update(self.plan.hangs)
        return self.result

    # ---- what is around it -----------------------------------------------------------------------

    def _relay(self, folder: Path) -> Relay:
        plan = self.plan
        preludes = [_BEGUN]
        preludes += [NO_NAME_SERVER] * bool(plan.hangs & {LOOKUP_KAFKA, LOOKUP_API})
        preludes += [NOISY] * (NOISE in plan.hangs) + [HELD_LOOP] * (LOOP in plan.hangs)
        preludes += [_NO_DEADLINE] * self._plant
        kafka: dict[str, Any] = {"bootstrapServers": [self._kafka_address()]}
        if plan.works:
            kafka |= {"replicationFactor": 1, "minInsyncReplicas": 1, "partitions": 3}
        relay = Relay(
            folder,
            "\n".join(preludes),
            kafka=kafka,
            shutdown={"drainTimeout": f"{plan.drain_s}s"},
            heartbeatInterval="1s",
            cluster="ends",
        )
        self._lead(relay, folder)
        return relay

    def _kafka_address(self) -> str:
        if LOOKUP_KAFKA in self.plan.hangs:
            return "silent.example:1"
        if self.plan.works:
            self._kafka = self._stack.enter_context(EmbeddedKafka.start())
            for topic, partitions in (("control", 1), ("signal", 1), ("core.pods", 3)):
                self._kafka.create_topic(f"k8s.ends.{topic}", partitions)
            return self._kafka.bootstrap
        return self._mute() if MUTE_KAFKA in self.plan.hangs else "127.0.0.1:1"

    def _lead(self, relay: Relay, folder: Path) -> None:
        """To an API server, or what is in its place."""
        hangs = self.plan.hangs
        if self.plan.works:
            self._cluster = self._stack.enter_context(EmbeddedCluster(seed=self.result.seed))
            self._way = self._stack.enter_context(FaultProxy(self._cluster.port))
            relay.kubeconfig.write_text(self._cluster.kubeconfig_by(self._way.port).read_text())
            return
        server = "http://127.0.0.1:1"
        if LOOKUP_API in hangs:
            server = "https://silent.example"
        elif MUTE_API in hangs:
            server = f"http://{self._mute()}"
        elif PLUGIN in hangs:
            server = "https://127.0.0.1:1"
        user = {"exec": plugin(folder)} if PLUGIN in hangs else {}
        relay.kubeconfig.write_text(kubeconfig(server, user))
        if KUBECONFIG in hangs:
            relay.kubeconfig.unlink()
            os.mkfifo(relay.kubeconfig)
            self._hold_pipe(relay.kubeconfig)

    def _mute(self) -> str:
        """The address of a server that takes connections and says nothing."""
        server = self._stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=100))
        return f"127.0.0.1:{server.getsockname()[1]}"

    def _hold_pipe(self, path: Path) -> None:
        end = os.open(path, os.O_RDWR)
        self._stack.callback(os.close, end)
        os.write(end, b"# ")

    @contextlib.contextmanager
    def _stderr(self, folder: Path) -> Iterator[int]:
        """Where its log goes."""
        if UNREAD in self.plan.hangs:
            reading, writing = full_pipe()
            try:
                yield writing
            finally:
                os.close(reading)
                os.close(writing)
        else:
            with (folder / "log").open("wb") as log:
                yield log.fileno()

    # ---- its life --------------------------------------------------------------------------------

    def _life(self, folder: Path) -> None:
        relay = self._relay(folder)
        with self._stderr(folder) as stderr, relay.running(stderr=stderr) as process:
            self._await(relay)
            self._trouble(relay)
            for _ in range(self.plan.hups):
                process.send_signal(signal.SIGHUP)
            pace.last(self.plan.after_s[0])
            code, took_s = self._end(process)
        self.result.events.append(f"exit code {code} after {took_s:.2f} s")
        self._judge(code, took_s, folder)

    def _await(self, relay: Relay) -> None:
        """Return at the moment from which on the seed counts."""
        assert relay.process.stdout is not None
        awaited = "held\n" if LOOP in self.plan.hangs and not self.plan.begun else "begun\n"
        while line := relay.process.stdout.readline():
            if line == awaited:
                break
        else:
            raise AssertionError(f"it ended before {awaited!r}")
        if self.plan.begun or LOOP in self.plan.hangs:
            return
        relay.await_live()
        if self.plan.works:
            wait_until("/readyz is 200", lambda: relay.get("/readyz"))

    def _trouble(self, relay: Relay) -> None:
        hangs = self.plan.hangs
        if CONFIG in hangs and not self.plan.begun:
            pipe = relay.file.with_name("pipe")
            os.mkfifo(pipe)
            pipe.rename(relay.file)
            self._hold_pipe(relay.file)
        if VIEWERS in hangs:
            for path in ("/api/events", "/api/streams", "/metrics"):
                for cut in (0, 4):
                    self._view(relay.port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n", cut)
        if self._kafka is not None and MUTE_KAFKA in hangs:
            self._kafka.set_rtt(_MUTE_MS)
        if self._cluster is not None and LOOP not in hangs:
            pod = {"metadata": {"name": "late", "namespace": "a"}, "spec": {}}
            with contextlib.suppress(Exception):  # the namespace may be there already
                self._cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": "a"}})
            self._cluster.request("POST", "/api/v1/namespaces/a/pods", pod)
        if self._way is not None and MUTE_API in hangs:
            self._way.hold()

    def _view(self, port: int, request: str, cut: int) -> None:
        with contextlib.suppress(OSError):
            client = socket.create_connection(("127.0.0.1", port), timeout=2.0)
            self._stack.callback(client.close)
            client.sendall(request[: len(request) - cut].encode())

    def _end(self, process: subprocess.Popen[str]) -> tuple[int, float]:
        """The exit code, and the seconds from the first signal on in which this process had its
        turn, too."""
        process.send_signal(self.plan.number)
        second_s = [*self.plan.after_s[1:]]

        def signal_again(after_s: float) -> None:
            if second_s and after_s >= second_s[0]:
                process.send_signal(self.plan.number)
                second_s.clear()

        at_most_s = 3 * (self.plan.drain_s + GRACE_S)
        took_s = seconds_to_end(process, at_most_s=at_most_s, each_tick=signal_again)
        code = process.poll()
        return -1000 if code is None else code, took_s

    # ---- whether it is right ---------------------------------------------------------------------

    def _judge(self, code: int, took_s: float, folder: Path) -> None:
        plan, broken = self.plan, self.result.broken
        limit_s = plan.drain_s + GRACE_S
        if len(plan.after_s) > 1 and plan.after_s[1] > 0.1:  # two at once may be taken as one
            limit_s = min(limit_s, plan.after_s[1] + GRACE_S)
        if took_s > limit_s:
            broken.append(f"it ended after {took_s:.2f} s, {limit_s:g} s are promised")
        pid = folder / "pid"
        if pid.exists():
            child = int(pid.read_text())
            wait_until("the plugin's child is dead", lambda: not is_alive(child))
        if code not in (0, 1):
            broken.append(f"exit code {code}")
        if UNREAD in plan.hangs:
            return
        lines = (folder / "log").read_text(errors="replace").splitlines()
        closing = [line for line in map(_message, lines) if line.startswith((STOPPED, LATE))]
        if any("Traceback" in line for line in lines):
            broken.append("a traceback is printed")
        if len(closing) > 1:
            broken.append(f"it reports its end twice: {closing}")
        if code == 1 and closing not in ([f"{STOPPED} undrained"], [LATE]):
            broken.append(f"exit code 1 after {closing}")
        if code == 0 and closing == [f"{STOPPED} undrained"]:
            broken.append("exit code 0, though not all was sent")
        if plan.works and not plan.hangs and len(plan.after_s) == 1 and code != 0:
            broken.append(f"nothing hangs, and the exit code is {code}")


def _message(line: str) -> str:
    """What a line of the log says; of the last one also whether all was sent."""
    try:
        held = json.loads(line)
    except ValueError:
        return line.removeprefix("watchrelay: ")
    message = str(held.get("message"))
    return message if held.get("drained", True) else f"{message} undrained"


def play(seed: int, plant: bool = False) -> Played:
    """One seed; with `plant` no deadline ends the process."""
    return Round(seed, plant=plant).play()


if __name__ == "__main__":
    sys.exit(seeds.main("ends", play, fresh=True))
