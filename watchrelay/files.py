"""Whether a file is still the one that was read.

Room: below every room. In: a path. Out: a mark that is another whenever the file is.
"""

from __future__ import annotations

import os
from pathlib import Path

Mark = tuple[object, ...]


def mark_of(path: str | Path) -> Mark:
    """Where `path` leads now, and the stat of what is there; empty when there is nothing.

    The path is followed anew each time: in a mounted ConfigMap or Secret it leads through a link into a directory that is replaced as a
    whole, and editors put another file in its place. What is watched by its inode sees neither.
    """
    try:
        real = Path(os.path.realpath(path))
        stat = real.stat()
    except OSError:
        return ()
    return str(real), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
