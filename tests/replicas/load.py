"""A synthetic API server, namespaces: config maps that change there at a rate; and when records of
them arrive in Kafka.

Both threads are apart from what hurts the replicas: the longest time without a record of a stream
is then that of the relay.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any, Self

from confluent_kafka import OFFSET_END, Consumer, Message, TopicPartition

from tests.support.embedded import EmbeddedCluster
from tests.support.pace import pace_to
from tests.support.process import wait_until

_TICK_S = 0.02
_NAMES = 20
_MARKER = b"%wr/"
_QUIET_S = 0.5


class Load:
    """The changes; a context manager. `per_s` may be set at any time."""

    def __init__(
        self, cluster: EmbeddedCluster, namespaces: list[str], *, seed: int, per_s: float
    ) -> None:
        self.per_s, self.changes = per_s, 0
        self._cluster, self._namespaces = cluster, namespaces
        self._rng = random.Random(seed)
        self._there: set[tuple[str, str]] = set()
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing changes within the block."""
        with self._lock:
            yield

    @contextlib.contextmanager
    def at(self, per_s: float) -> Iterator[None]:
        """Another rate within the block."""
        before, self.per_s = self.per_s, per_s
        try:
            yield
        finally:
            self.per_s = before

    def _run(self) -> None:
        due_s, owed = time.monotonic(), 0.0
        while not self._over.is_set():
            with self._lock:
                owed += self.per_s * _TICK_S
                count, owed = int(owed), owed % 1
                self._cluster.do(functools.partial(self._change, count))
                self.changes += count
            due_s = max(due_s + _TICK_S, time.monotonic() - 1.0)
            pace_to(due_s)

    def _change(self, count: int) -> None:
        for _ in range(count):
            self._change_one()

    def _change_one(self) -> None:
        registry, rng = self._cluster.registry, self._rng
        namespace, name = rng.choice(self._namespaces), f"c{rng.randrange(_NAMES)}"
        key = namespace, name
        if key in self._there and rng.random() < 0.1:
            registry.delete("configmaps", namespace, name)
            self._there.discard(key)
            return
        write = registry.replace if key in self._there else registry.create
        metadata = {"namespace": namespace, "name": name}
        write("configmaps", {"metadata": metadata, "data": {"n": str(rng.random())}})
        self._there.add(key)


class Arrivals:
    """When records of objects arrive, by stream, from now on; a context manager."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": uuid.uuid4().hex,
                "fetch.wait.max.ms": 10,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        known = self._consumer.list_topics(topic, timeout=10.0).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, each, OFFSET_END) for each in known])
        self._last_s: dict[str, float] = {}
        self._longest_s: dict[str, float] = {}
        self._newest_s = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arrivals", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._over.is_set():
            for message in self._consumer.consume(500, timeout=0.02):
                if message.error() is None and not (message.key() or b"").startswith(_MARKER):
                    self._take(_stream_of(message), time.monotonic())

    def _take(self, stream: str, now_s: float) -> None:
        longest_s = now_s - self._last_s.get(stream, now_s)
        self._longest_s[stream] = max(self._longest_s.get(stream, 0.0), longest_s)
        self._last_s[stream] = self._newest_s = now_s

    def begin(self) -> None:
        """The longest times count from here on."""
        now_s = time.monotonic()
        self._last_s = dict.fromkeys(self._last_s, now_s)
        self._longest_s = {}

    def longest_s(self) -> float:
        """The longest time without a record of a stream since `begin`."""
        return max(self._longest_s.values(), default=0.0)

    def await_quiet(self) -> None:
        """Return once no record has arrived for a while."""
        wait_until("no record arrives", lambda: time.monotonic() - self._newest_s > _QUIET_S)


def _stream_of(message: Message) -> str:
    headers: Any = message.headers() or ()
    return str(dict(headers)["ce_wrstream"], "ascii")
