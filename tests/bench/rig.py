"""What every benchmark of the whole relay needs: the broker, the source, and the relay on a core of
its own.

Room: tests. In: how many objects and events. Out: a running relay, its CPU seconds and memory, and
where its topic ends. The relay runs on core 1; whatever it talks to, and this process, on core 0.
On a machine with one core they share it.
"""

from __future__ import annotations

import compileall
import contextlib
import functools
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import watchrelay
from tests.support.daemon import Daemon, relay_config
from tests.support.embedded import EmbeddedBroker
from tests.support.pace import measure_for
from tests.support.parts import parts_directory
from tests.support.process import PartError, Workspace, wait_until
from tests.support.realparts import KafkaBroker

_CORES = sorted(os.sched_getaffinity(0))
RELAY_CORE, OTHER_CORE = _CORES[-1], _CORES[0]
PARTITIONS = 6
_TICKS = os.sysconf("SC_CLK_TCK")
_REST_S = 0.5
"""A relay is at rest when it used next to nothing in so long."""


def wait_for(claim: str, condition: Callable[[], object], *, deadline_s: float = 120.0) -> None:
    """Return once `condition` is true. Raises: PartError."""
    try:
        wait_until(claim, condition, deadline_s=deadline_s)
    except TimeoutError as late:
        raise PartError(str(late)) from None


class SourceProcess:
    """`tests.bench.source` as a process of its own on the other core; a context manager."""

    def __init__(self, *, objects: int, events: int = 0, streaming: bool = False) -> None:
        argv = [
            sys.executable,
            "-m",
            "tests.bench.source",
            "--objects",
            str(objects),
            "--events",
            str(events),
        ]
        argv += ["--streaming"] if streaming else []
        self._child = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._said: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self.asked_s = 0.0
        """When the first request came since this was set to 0 (monotonic)."""
        self.lists = 0
        """Requests for a list so far: pages and streaming lists."""
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
            else:
                self._said.put(words)
        self._said.put(["ended", ""])

    def _next(self, word: str) -> str:
        words = self._said.get(timeout=120.0)
        if words[0] != word:
            raise PartError(f"the source said {words}")
        return words[1]

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
    """What a process has used. Units: `cpu_s` user and system; `waited_s` ready to run, another
    ran; `rss` and `peak` bytes."""

    cpu_s: float
    waited_s: float
    rss: int
    peak: int


def usage(pid: int) -> Usage:
    """What process `pid` has used so far."""
    fields = (
        Path(f"/proc/{pid}/stat")
        .read_text(encoding="ascii", errors="replace")
        .rpartition(")")[2]
        .split()
    )
    status = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    )
    rss, peak = (int(status[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    waited_ns = int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1])
    return Usage((int(fields[11]) + int(fields[12])) / _TICKS, waited_ns / 1e9, rss, peak)


def cpu_s(pid: int) -> float:
    """User and system seconds of the threads that process `pid` has, to the nanosecond: `usage`
    counts ticks of 10 ms."""
    return (
        sum(
            int((task / "schedstat").read_text(encoding="ascii").split()[0])
            for task in Path(f"/proc/{pid}/task").iterdir()
        )
        / 1e9
    )


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


@contextlib.contextmanager
def records_of(bootstrap: str, topic: str) -> Iterator[Callable[[], int]]:
    """A function that says how many records the topic holds."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "log_level": 0})
    try:
        places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
        yield lambda: sum(
            consumer.get_watermark_offsets(place, timeout=10.0)[1] for place in places
        )
    finally:
        consumer.close()


class Relay:
    """`watchrelay run` against a source, or the API server that a kubeconfig names; a context
    manager.

    A stream `pods` unless `resources` says otherwise.
    """

    def __init__(
        self,
        rig: Rig,
        source: SourceProcess | Path,
        *,
        resources: list[Any] | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        cluster = rig.next_cluster()
        if isinstance(source, Path):
            kubeconfig = source
        else:
            kubeconfig = rig.workspace.path / f"{cluster}.kubeconfig"
            kubeconfig.write_text(_KUBECONFIG.format(port=source.port))
        kafka = {"partitions": PARTITIONS}
        config = relay_config(
            cluster,
            bootstrap=rig.bootstrap,
            kubeconfig=kubeconfig,
            resources=resources or ["pods"],
            kafka=kafka,
        )
        del config["heartbeatInterval"]
        self._daemon = Daemon(
            {**config, **rig.more, **(more or {})}, rig.workspace.path, name=cluster
        )
        self.cluster = cluster
        self.topic = f"k8s.{cluster}.core.pods"
        self._bootstrap = rig.bootstrap
        self.launched_s = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._daemon.__exit__(kind, error, trace)

    @property
    def pid(self) -> int:
        """The relay's process id."""
        return self._daemon.pid

    @property
    def daemon(self) -> Daemon:
        """The window into it."""
        return self._daemon

    @property
    def elapsed_s(self) -> float:
        """Seconds since its launch."""
        return time.monotonic() - self.launched_s

    def used(self) -> Usage:
        """What it has used so far."""
        return usage(self.pid)

    def await_snapshots(self, streams: int = 1) -> None:
        """Return once the first snapshots of `streams` streams are acknowledged and indexed. Its
        log says so: asking it would cost it."""
        self._daemon.wait(
            "first snapshots are complete",
            lambda: len(self._daemon.said("snapshot complete")) >= streams,
            deadline_s=120.0,
        )

    def stop(self) -> None:
        """End it as an operator would. Raises: PartError."""
        if code := self._daemon.stop():
            raise PartError(f"the relay ended with {code}")

    def start(self) -> None:
        """Launch it, again if it was stopped."""
        self.launched_s = time.monotonic()
        self._daemon.start()
        os.sched_setaffinity(self.pid, {RELAY_CORE})

    def settle(self) -> None:
        """Return once it is at rest. Raises: PartError."""
        settle(self.pid)

    def topic_end(self) -> contextlib.AbstractContextManager[Callable[[], int]]:
        """A function that says how many records the topic holds."""
        return records_of(self._bootstrap, self.topic)


class Floor:
    """`tests.bench.floor` against a source of its own, on the relay's core, taking turns with it; a
    context manager.

    Entering returns when it has listed and watches.
    """

    def __init__(self, rig: Rig, source: SourceProcess) -> None:
        self._rig, self._source = rig, source
        self.topic = f"{rig.next_cluster()}.floor"

    def __enter__(self) -> Self:
        topic = NewTopic(self.topic, num_partitions=PARTITIONS, replication_factor=1)
        admin = AdminClient({"bootstrap.servers": self._rig.bootstrap, "log_level": 0})
        admin.create_topics([topic])[self.topic].result(timeout=30.0)
        argv = [
            sys.executable,
            "-m",
            "tests.bench.floor",
            str(self._source.port),
            self._rig.bootstrap,
            self.topic,
            str(PARTITIONS),
        ]
        self._child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        os.sched_setaffinity(self._child.pid, {RELAY_CORE})
        assert self._child.stdout is not None
        if self._child.stdout.readline() != "watching\n":
            raise PartError("the floor did not come as far as its watch")
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.wait()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    def topic_end(self) -> contextlib.AbstractContextManager[Callable[[], int]]:
        """A function that says how many records its topic holds."""
        return records_of(self._rig.bootstrap, self.topic)


class Rig:
    """Broker and workspace of one run of the benchmarks; a context manager."""

    def __init__(self, more: dict[str, Any] | None = None) -> None:
        os.sched_setaffinity(0, {OTHER_CORE})
        self.workspace = Workspace("bench")
        self.real = parts_directory().is_dir()
        self.more = more or {}
        self.freeze_s = 300.0
        self._count = 0

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
        # as in the image: else each start would compile all sources
        compileall.compile_dir(Path(watchrelay.__file__).parent, quiet=1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if "_broker" in self.__dict__:
            self._broker.__exit__(kind, error, trace)
        self.workspace.remove()


_KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{{name: bench, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: nobody, user: {{}}}}]
contexts: [{{name: bench, context: {{cluster: bench, user: nobody}}}}]
current-context: bench
"""
