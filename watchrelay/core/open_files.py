"""How many files this process may have open: each watch is a connection, and each is a file."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress

CURE = (
    "raise its limit of open files: `ulimit -n`, LimitNOFILE of the service or of the container "
    "runtime; or share the streams among replicas"
)
_WANTED = 65_536
"""Enough for all streams of a process; a program that a plugin starts may close all up to the
limit, one by one, so it is not raised further."""
_RESERVED = 256
"""Not for watches: brokers, HTTP clients, lookups, plugins and files."""


def raise_limit() -> None:
    """Raise the soft limit of this process up to the hard one: 1024 is usual, for programs that
    use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def refuse_reserved(number: int) -> None:
    """Pass if the file `number`, the lowest that was free, leaves `_RESERVED` for others, or half
    of a small limit. Raises: OSError (EMFILE)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and number >= limit - min(_RESERVED, limit // 2):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def limit_text() -> str:
    """What to show of EMFILE."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"this process may have {limit} files open, too few for its watches"
