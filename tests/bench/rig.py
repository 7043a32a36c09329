"""What every benchmark of the whole relay needs: the broker, the source, and the relay on a core of
its own, beside the programs that it is measured against.

Input: how many objects. Output: running programs, their CPU seconds and memory, and where their
topics end. What is measured runs on the last core; whatever it talks to, and this process, on the
first. On a machine with one core they share it.
"""

from __future__ import annotations

import compileall
import contextlib
import functools
import os
import queue
import shutil
import statistics
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.daemon import Daemon, relay_config
from tests.support.embedded import EmbeddedBroker
from tests.support.pace import measure_for
from tests.support.parts import parts_directory
from tests.support.process import PartError, Process, Workspace, wait_until
from tests.support.realparts import KafkaBroker

_CORES = sorted(os.sched_getaffinity(0))
RELAY_CORE, OTHER_CORE = _CORES[-1], _CORES[0]
PARTITIONS = 6
RELAY, BEFORE, FLOOR, GO_RAW = "relay", "the tree before", "floor", "go-raw"
_ROOT = Path(__file__).parents[2]
_TICKS = os.sysconf("SC_CLK_TCK")
_REST_S = 0.5
"""A relay is at rest when it used next to nothing in so long."""


def wait_for(claim: str, condition: Callable[[], object], *, deadline_s: float = 120.0) -> None:
    """Return once `condition` is true. Raises: PartError."""
    try:
        wait_until(claim, condition, deadline_s=deadline_s)
    except TimeoutError as late:
        raise PartError(str(late)) from None


@functools.cache
def built(name: str) -> tuple[Path, str]:
    """The program of `tests/bench/NAME`; why it could not be built, if so."""
    script = _ROOT / "tests" / "bench" / "build.sh"
    done = subprocess.run([script, name], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return Path(done.stdout.strip()) / name, ""
    return Path(), (done.stderr.strip().splitlines() or ["no message"])[-1]


class SourceProcess:
    """`tests.bench.source` as a process of its own on the other core; a context manager."""

    def __init__(self, *, objects: int, streaming: bool = False) -> None:
        argv = [sys.executable, "-m", "tests.bench.source", "--objects", str(objects)]
        argv += ["--streaming"] if streaming else []
        self._child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,  # Ctrl-C is for this process alone, which ends that one
        )
        self._printed: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self.asked_s = 0.0
        """When the first request came since this was set to 0 (monotonic)."""
        self.lists = 0
        """Requests for a list so far: pages and streaming lists."""
        self.watched = 0
        """Watches of all pods so far."""
        threading.Thread(target=self._hear, daemon=True).start()
        self.port = int(self._next("port"))

    def _hear(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            words = line.split()
            if words[0] == "asked":
                self.asked_s = self.asked_s or float(words[1])
            elif words[0] == "listed":
                self.lists += 1
            elif words[0] == "watched":
                self.watched += 1
            else:
                self._printed.put(words)
        self._printed.put(["ended", ""])

    def _next(self, word: str) -> str:
        words = self._printed.get(timeout=120.0)
        if words[0] != word:
            raise PartError(f"the source printed {words}")
        return words[1]

    def prepare(self, events: int) -> None:
        """Have so many events made, for the command `flood`."""
        self.order(f"prepare {events}")

    def order(self, command: str) -> None:
        """Give a command, and wait until it is done."""
        self.begin(command)
        self.finish()

    def begin(self, command: str) -> None:
        """Start a command."""
        assert self._child.stdin is not None
        self._child.stdin.write(command + "\n")
        self._child.stdin.flush()

    def finish(self) -> None:
        """Wait until the command is done."""
        self._next("done")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait()


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used. Units: `cpu_s` user and system, with that of children that ended;
    `waited_s` ready to run, another ran; `rss` and `peak` bytes."""

    cpu_s: float
    waited_s: float
    rss: int
    peak: int


def usage(pid: int) -> Usage:
    """What process `pid` has used so far."""
    process = Path(f"/proc/{pid}")
    fields = (process / "stat").read_text("ascii", "replace").rpartition(")")[2].split()
    status = dict(
        line.split(":", 1) for line in (process / "status").read_text("utf-8").splitlines()
    )
    rss, peak = (int(status[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    waited_ns = sum(
        int((task / "schedstat").read_text("ascii").split()[1])
        for task in (process / "task").iterdir()
    )
    return Usage(sum(map(int, fields[11:15])) / _TICKS, waited_ns / 1e9, rss, peak)


def cpu_s(pid: int) -> float:
    """User and system seconds of process `pid`, to the nanosecond: `usage` counts ticks of 10 ms.

    It is the clock that clock_getcpuclockid(3) gives, for which Python has no name.
    """
    return time.clock_gettime((~pid << 3) | 2)


def settle(pid: int, *, deadline_s: float = 60.0) -> None:
    """Return once process `pid` uses next to no CPU: what follows is measured from rest. Raises:
    PartError when it never rests."""
    give_up_s, last = time.monotonic() + deadline_s, usage(pid).cpu_s
    while True:
        measure_for(_REST_S)
        now = usage(pid).cpu_s
        if now - last <= 0.02:
            return
        if time.monotonic() > give_up_s:
            raise PartError(
                f"process {pid} does not come to rest in {deadline_s:.0f} s: it used "
                f"{now - last:.2f} s of the last {_REST_S:g} s"
            )
        last = now


def loop_ms() -> float:
    """Milliseconds that the relay's core takes for the same bit of Python each time: what a second
    of its CPU buys just now."""
    before = os.sched_getaffinity(0)

    def once() -> float:
        began_s, total = time.thread_time(), 0
        for number in range(100_000):
            total += number
        return (time.thread_time() - began_s) * 1e3

    os.sched_setaffinity(0, {RELAY_CORE})
    try:
        return statistics.median(once() for _ in range(5))
    finally:
        os.sched_setaffinity(0, before)


class Program(ABC):
    """A process on the relay's core that fills a topic; a context manager. `launched_s` is
    monotonic."""

    def __init__(self, rig: Rig, source: SourceProcess | None, topic: str, partitions: int) -> None:
        self.source, self.topic, self.partitions = source, topic, partitions
        self.bootstrap, self.launched_s = rig.bootstrap, 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    @abstractmethod
    def _launch(self) -> None: ...

    @abstractmethod
    def _kill(self) -> None: ...

    @abstractmethod
    def stop(self) -> None:
        """End it as an operator would."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """Its process id."""

    @abstractmethod
    def await_published(self) -> None:
        """Return once all that was listed is acknowledged."""

    def start(self) -> None:
        """Launch it, again if it was stopped."""
        self.launched_s = time.monotonic()
        self._launch()
        os.sched_setaffinity(self.pid, {RELAY_CORE})

    @property
    def elapsed_s(self) -> float:
        """Seconds since its launch."""
        return time.monotonic() - self.launched_s

    def used(self) -> Usage:
        """What it has used so far."""
        return usage(self.pid)

    def settle(self) -> None:
        """Return once it is at rest. Raises: PartError."""
        settle(self.pid)

    @contextlib.contextmanager
    def topic_end(self) -> Iterator[Callable[[], int]]:
        """A function that says how many records its topic holds."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "bench", "log_level": 0}
        consumer = Consumer(settings)
        try:
            places = [TopicPartition(self.topic, number) for number in range(self.partitions)]
            yield lambda: sum(
                consumer.get_watermark_offsets(place, timeout=10.0)[1] for place in places
            )
        finally:
            consumer.close()


class Relay(Program):
    """`watchrelay run` against a source, or the API server that a kubeconfig names.

    A stream `pods` unless `resources` says otherwise; the code of `tree`, a directory with a
    package watchrelay, else of this tree.
    """

    def __init__(
        self,
        rig: Rig,
        source: SourceProcess | Path,
        *,
        partitions: int = PARTITIONS,
        tree: Path | None = None,
        resources: list[Any] | None = None,
        more: dict[str, Any] | None = None,
        delivery: str = "idempotent",
        flush_interval: str = "",
    ) -> None:
        self.cluster = cluster = rig.next_cluster()
        kubeconfig = source if isinstance(source, Path) else rig.kubeconfig(source)
        config = relay_config(
            cluster,
            bootstrap=rig.bootstrap,
            kubeconfig=kubeconfig,
            resources=resources or ["pods"],
            kafka={
                "partitions": partitions,
                "delivery": delivery,
                **({"flushInterval": flush_interval} if flush_interval else {}),
            },
        )
        del config["heartbeatInterval"]
        # Neither tree writes byte code: what it finds of it is decided here.
        environment = {"PYTHONPATH": str(tree or _ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        self.daemon = Daemon(
            {**config, **(more or {})}, rig.workspace.path, name=cluster, environment=environment
        )
        super().__init__(
            rig,
            None if isinstance(source, Path) else source,
            f"k8s.{cluster}.core.pods",
            partitions,
        )

    def _launch(self) -> None:
        self.daemon.start()

    def _kill(self) -> None:
        self.daemon.__exit__(None, None, None)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.daemon.pid

    def await_published(self) -> None:
        """Return once the first snapshot is acknowledged and indexed."""
        self.await_snapshots()

    def await_snapshots(self, streams: int = 1, *, deadline_s: float = 120.0) -> None:
        """Return once the first snapshots of `streams` streams are acknowledged and indexed. Its
        log says so: asking it would cost it."""
        self.daemon.wait(
            "first snapshots are complete",
            lambda: len(self.daemon.logged("snapshot complete")) >= streams,
            deadline_s=deadline_s,
        )

    def stop(self) -> None:
        """End it as an operator would. Raises: PartError."""
        if code := self.daemon.stop():
            raise PartError(f"the relay ended with {code}")


class Raw(Program):
    """A program with nothing to it, `tests.bench.floor` or go-raw: it lists, publishes that, says
    "watching", and publishes what it watches. `argv` makes its command, for a topic."""

    def __init__(
        self,
        rig: Rig,
        source: SourceProcess,
        argv: Callable[[str], Sequence[str | Path]],
        partitions: int,
    ) -> None:
        name = f"{rig.next_cluster()}.raw"
        super().__init__(rig, source, name, partitions)
        self._log = rig.workspace.path / f"{name}.log"
        self._process = Process(name, argv(name), log=self._log)

    def __enter__(self) -> Self:
        topic = NewTopic(self.topic, num_partitions=self.partitions, replication_factor=1)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([topic])[self.topic].result(timeout=30.0)
        return super().__enter__()

    def _launch(self) -> None:
        self._process.launch()

    def _kill(self) -> None:
        self._process.kill()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def await_published(self) -> None:
        """Return once all that was listed is acknowledged, and it watches."""
        self._process.await_ready(lambda: "watching" in self._log.read_text(), deadline_s=120.0)

    def stop(self) -> None:
        """End it as an operator would."""
        self._process.stop()


class Rig:
    """Broker and workspace of one run of the benchmarks, and what takes turns; a context manager.

    `rounds` turns of each program count; `before` is a git revision. Raises: PartError for a
    revision that is not there.
    """

    def __init__(self, *, rounds: int = 10, before: str | None = None, freeze_s: float = 0) -> None:
        os.sched_setaffinity(0, {OTHER_CORE})
        self.workspace = Workspace("bench")
        self.real = parts_directory().is_dir()
        self.rounds, self.freeze_s = rounds, freeze_s
        self.relays: dict[str, Path | None] = {RELAY: None}
        if before:
            self.relays[BEFORE] = self._tree_of(before)
        compiled = compileall.compile_dir(_ROOT / "watchrelay", quiet=2)
        self.byte_code = "byte code there" if compiled else "byte code cannot be written"
        self._count = 0

    def _tree_of(self, revision: str) -> Path:
        """The package at that revision, compiled."""
        tree, archive = self.workspace.path / "before", self.workspace.path / "before.tar"
        git = ["git", "-C", str(_ROOT), "archive", "-o", str(archive), revision, "watchrelay"]
        done = subprocess.run(git, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PartError(f"no tree of {revision}: {done.stderr.strip()}")
        tree.mkdir()
        subprocess.run(["tar", "-xf", archive, "-C", tree], check=True)
        compileall.compile_dir(tree, quiet=2)
        return tree

    def kubeconfig(self, source: SourceProcess) -> Path:
        """A kubeconfig for a source."""
        file = self.workspace.path / f"{source.port}.kubeconfig"
        file.write_text(_KUBECONFIG.format(port=source.port))
        return file

    def uncompiled(self) -> Path:
        """A copy of this tree's package without byte code."""
        tree = self.workspace.path / "uncompiled"
        leave_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_ROOT / "watchrelay", tree / "watchrelay", ignore=leave_out)
        return tree

    @property
    def no_go_raw(self) -> str:
        """Why go-raw takes no turns."""
        return built("goraw")[1]

    def programs(
        self, partitions: int = PARTITIONS
    ) -> dict[str, Callable[[SourceProcess], Program]]:
        """How to make what takes turns, by name."""

        def relay(tree: Path | None) -> Callable[[SourceProcess], Program]:
            return lambda source: Relay(self, source, partitions=partitions, tree=tree)

        def raw(*argv: str | Path) -> Callable[[SourceProcess], Program]:
            def made_for(source: SourceProcess) -> Raw:
                more = (str(source.port), self.bootstrap)
                return Raw(
                    self, source, lambda topic: [*argv, *more, topic, str(partitions)], partitions
                )

            return made_for

        made = {name: relay(tree) for name, tree in self.relays.items()}
        made[FLOOR] = raw(sys.executable, "-m", "tests.bench.floor")
        if not self.no_go_raw:
            made = {GO_RAW: raw("env", "GOMAXPROCS=1", built("goraw")[0]), **made}
        return made

    @functools.cached_property
    def _broker(self) -> KafkaBroker | EmbeddedBroker:
        broker = KafkaBroker("4.1", jvm_flags=("-Xmx1g",)) if self.real else EmbeddedBroker()
        broker.__enter__()
        return broker

    @property
    def bootstrap(self) -> str:
        """The broker's address; the first use starts it."""
        return self._broker.bootstrap

    @property
    def real_broker(self) -> KafkaBroker | None:
        """The broker where it is a process of its own; None: it lives in this one, and cannot be
        frozen."""
        return self._broker if isinstance(self._broker, KafkaBroker) else None

    @property
    def broker_name(self) -> str:
        """For the table."""
        return (
            "Apache Kafka 4.1"
            if self.real
            else "librdkafka's mock cluster (real Kafka is not built: `make real`)"
        )

    def next_cluster(self) -> str:
        """A name that no relay used before."""
        self._count += 1
        return f"bench{self._count}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if "_broker" in self.__dict__:
            self._broker.__exit__(None, None, None)
        self.workspace.remove()


_KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: bench, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: nobody, user: {{}}}}]
contexts: [{{name: bench, context: {{cluster: bench, user: nobody}}}}]
current-context: bench
"""
