"""`watchrelay version`."""

from __future__ import annotations

import argparse

from watchrelay import __version__
from watchrelay.cli.options import Command

_LIBRARIES = ("aiohttp", "aiokafka", "msgspec", "pydantic", "zstandard")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json",
        action="store_true",
        help="also the versions of Python and of the main dependencies, as JSON",
    )


def version(*, json: bool) -> int:
    """Print the version; as JSON, those of Python and of the main dependencies too."""
    if not json:
        print(f"watchrelay {__version__}")
        return 0
    import platform
    from importlib import metadata

    from watchrelay.cli.output import print_json

    def installed(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    print_json(
        {
            "version": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(terse=True),
            "libraries": {name: installed(name) for name in _LIBRARIES},
        }
    )
    return 0


COMMAND = Command("print the version", "Prints the version.", version, _add_arguments)
