"""`watchrelay version`.

Room: commands. In: parsed arguments. Out: the version on stdout.
"""

from __future__ import annotations

import argparse
import json
import platform
from importlib import metadata

from watchrelay import __version__

_MATTERS = ("aiohttp", "aiokafka", "msgspec", "pydantic", "zstandard")


def run(args: argparse.Namespace) -> int:
    """Print the version, or with --json those of Python and of the libraries that matter too."""
    if not args.json:
        print(f"watchrelay {__version__}")
        return 0
    libraries = {name: _version(name) for name in _MATTERS}
    found = {
        "version": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "libraries": libraries,
    }
    print(json.dumps(found))
    return 0


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
