"""Settings of the interpreter's garbage collector and the allocator: fewer collections, less idle
memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Iterator

from watchrelay.core import clock

_YOUNG_OBJECTS = 50_000
"""Objects made, less those freed, until the collector looks at the young ones. What flows through
here is free of cycles, and one chunk of events makes more than the default of 700: the collector
took 9 % of all CPU."""


_TRIM_EVERY_S = 5.0
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


@contextlib.contextmanager
def lean_import() -> Iterator[None]:
    """While in it, OpenSSL finds no certificates of the system. From here on the collector rests
    until `tune_collector`: what is imported stays, and each look at it takes 40 ms. Use: around the
    first import of the context.

    aiohttp reads the certificates when it is imported, for a context that none of our requests uses
    (each has its own, kube/auth/tls.py): 50 ms and 2 MB. Source: aiohttp/connector.py,
    `_SSL_CONTEXT_VERIFIED`.
    """
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
    """Give free memory back to the system, where the C library can (glibc): imports and lists leave
    holes that it keeps otherwise."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


class HeapTrimmer:
    """Trims when it is called, but not more often than every few seconds: 200 streams that start
    together are trimmed for a few times."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def __call__(self) -> None:
        now_s = clock.now_s()
        if now_s >= self._next_s:
            self._next_s = now_s + _TRIM_EVERY_S
            trim_heap()
