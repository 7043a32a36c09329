"""Which file is the config.

Room: config. In: the command line's `-c`, the environment. Out: a path, or the problem that there
is none. Needs nothing of what reads the file, for the daemon looks at the file again and again and
reads it only when it changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Final

from watchrelay.core.errors import ConfigProblem

CONFIG_VARIABLE: Final = "WATCHRELAY_CONFIG"
DEFAULT_PATHS: Final = ("watchrelay.yaml", "/etc/watchrelay/config.yaml")


def find_file(
    config: str | None, environ: Mapping[str, str]
) -> tuple[FilePath | None, ConfigProblem | None]:
    """The config file to read, or the problem that there is none: `-c`, else $WATCHRELAY_CONFIG,
    else the usual places.

    An empty variable is one that is not set, as with $KUBECONFIG; an empty `-c` is a script's
    variable that was not set, and an error.
    """
    named = environ.get(CONFIG_VARIABLE, "") if config is None else config
    source = CONFIG_VARIABLE if config is None else "-c"
    if (config is not None and not config.strip()) or named.isspace():
        return None, ConfigProblem(
            "the path is empty",
            source=source,
            hint="name the config file, or leave it out for the usual places",
        )
    if named:
        path = FilePath(named)
        if _there(path):
            return path, None
        return None, _absent(named, source)
    for usual in DEFAULT_PATHS:
        if _there(FilePath(usual)):
            return FilePath(usual), None
    looked = " and ".join(DEFAULT_PATHS)
    return None, ConfigProblem(
        "no config file", hint=f"name one with -c FILE or ${CONFIG_VARIABLE}; looked for {looked}"
    )


def _absent(named: str, source: str) -> ConfigProblem:
    """Why `named` cannot be read: a link that leads nowhere looks like a file to whoever lists the
    directory."""
    path = FilePath(named)
    try:
        if path.is_symlink():
            return ConfigProblem(
                f"is a link to {path.readlink()}, which is not there",
                source=named,
                hint=f"named by {source}",
            )
    except OSError:
        pass  # then there is nothing to tell about it
    if named == "-":
        return ConfigProblem(
            "there is no such file", source=named, hint="/dev/stdin is standard input"
        )
    return ConfigProblem("there is no such file", source=named, hint=f"named by {source}")


def _there(path: FilePath) -> bool:
    """False when there is no such file; where that cannot be told, reading it says why."""
    try:
        return path.exists()
    except OSError:
        return True
