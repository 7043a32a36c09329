"""Garbage collector and allocator: fewer collections, less idle memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from watchrelay.core import clock

_YOUNG_OBJECTS = 50_000
"""New objects until the young ones are collected. What flows through here has no cycles, and a
chunk of events makes more than the default of 700: the collector took 9 % of all CPU."""

NEEDED_BYTES: Final = 208 << 20
"""More than the 180 MiB that a relay of a few objects was seen to take under foreign records on its
control topic, and under bombs on all of its topics (`tests/integration/test_bombs_embedded.py`)."""
_LIMIT_FILE = Path("/sys/fs/cgroup/memory.max")
_TRIM_EVERY_S = 5.0
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


@contextlib.contextmanager
def lean_import() -> Iterator[None]:
    """While in it, OpenSSL finds no certificates of the system. From here on the collector rests
    until `tune_collector`: what is imported stays, and each look at it takes 40 ms. Use: around the
    first import of aiohttp, which reads them for a context that none of our requests uses (50 ms,
    2 MB). Source: aiohttp/connector.py, `_SSL_CONTEXT_VERIFIED`."""
    gc.disable()
    held = {name: os.environ.get(name) for name in _CERTIFICATES}
    os.environ.update(dict.fromkeys(_CERTIFICATES, "/nonexistent"))
    try:
        yield
    finally:
        for name, value in held.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def tune_collector() -> None:
    """Whatever is alive now stays out of collections; they become rare. Call it when everything is
    imported and built, or what follows must be waited for."""
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(_YOUNG_OBJECTS, 20, 50)
    trim_heap()


def trim_heap() -> None:
    """Give free memory back to the system where the C library can: imports and lists leave
    holes."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


def too_small(file: Path = _LIMIT_FILE) -> str:
    """What is wrong with the memory limit of the container (cgroup v2), and the cure; "" where
    there is none, or it is enough."""
    try:
        limit_bytes = int(file.read_text())
    except (OSError, ValueError):  # no such file, or "max"
        return ""
    if limit_bytes >= NEEDED_BYTES:
        return ""
    return (
        f"the memory limit of this container is {limit_bytes >> 20} MiB, and what others write to "
        f"the topics can take up to {NEEDED_BYTES >> 20} MiB beside the objects: raise "
        "resources.limits.memory"
    )


class HeapTrimmer:
    """Trims when it is called, but only every few seconds, however many streams start together."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def __call__(self) -> None:
        now_s = clock.now_s()
        if now_s >= self._next_s:
            self._next_s = now_s + _TRIM_EVERY_S
            trim_heap()
