"""A synthetic API server, namespaces: config maps that change there at a rate, whatever is done to
replicas meanwhile."""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import time
from collections.abc import Iterator
from typing import Self

from tests.support.embedded import EmbeddedCluster
from tests.support.pace import pace_to

_TICK_S = 0.02
_NAMES = 20


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
        due_s, due = time.monotonic(), 0.0
        while not self._over.is_set():
            with self._lock:
                due += self.per_s * _TICK_S
                count, due = int(due), due % 1
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
