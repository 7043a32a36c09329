"""Finds, reads and checks the config: `Settings` with `defaults` merged, or `ConfigError` with
every problem in file order. The only reader of the environment."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Final

from pydantic import ValidationError

from watchrelay.config.checks import Refusal, refusals
from watchrelay.config.keys import ENV_PREFIX
from watchrelay.config.messages import explain
from watchrelay.config.settings import Settings, with_defaults
from watchrelay.config.sources import SET, Given
from watchrelay.config.tree import Path, read_yaml, show
from watchrelay.core.errors import ConfigError, ConfigProblem
from watchrelay.core.files import may_exist, read_bounded

CONFIG_VARIABLE: Final = "WATCHRELAY_CONFIG"
DEFAULT_PATHS: Final = ("watchrelay.yaml", "/etc/watchrelay/config.yaml")

FILE_BYTES_MAX: Final = 1 << 20
"""What fits in a ConfigMap; no config comes near it."""

_STAND_IN: Final = {
    "cluster": "x",
    "kafka": {"bootstrapServers": ["x:1"]},
    "resources": [{"resource": "pods"}],
}
"""Put in place of required values that are missing or wrong, so that the rest is checked too."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid config, the file (None: all is from environment and `--set`), and the values as
    written."""

    settings: Settings
    file: FilePath | None
    given: Given

    def problem(self, path: Path, message: str, hint: str = "") -> ConfigProblem:
        """A problem with the value at `path`, with its file and line."""
        return _located(self.given, (path,), message, hint)

    def problems_of(self, settings: Settings) -> list[ConfigProblem]:
        """The conflicts within `settings`, a variant of these; with the lines of this file."""
        found = refusals(settings)
        return _in_order([_refused(self.given, refusal) for refusal in found])


def load_settings(
    config: str | None = None, sets: Sequence[str] = (), *, environ: Mapping[str, str] | None = None
) -> Settings:
    """The settings of file (`config` is the value of `-c`), environment and `--set`; the later
    wins. Entries of `resources` have `defaults` merged in.

    Raises: ConfigError with every problem (exit code 78); ValueError: a `--set` is not
    path=value at all (exit code 2)."""
    return load(config, sets, environ=environ).settings


def load(
    config: str | None = None, sets: Sequence[str] = (), *, environ: Mapping[str, str] | None = None
) -> Loaded:
    """As `load_settings`, with the file's path and the origin of every value."""
    environ = os.environ if environ is None else environ
    given = Given()
    file, missing = find_file(config, environ)
    if file is not None:
        _take_file(given, file)
    given.take_environment(environ)
    given.take_sets(sets)
    absent = [missing] if missing else []
    if missing and (config is not None or environ.get(CONFIG_VARIABLE) or not given.value):
        raise ConfigError([*absent, *given.problems])
    settings, found = _check(given)
    if found:
        raise ConfigError([*absent, *_in_order(found)])
    return Loaded(settings, file, given)


def _take_file(given: Given, file: FilePath) -> None:
    source = str(file)
    tree = read_yaml(_read_text(file), source)
    if not isinstance(tree.value, dict):
        what = "the file is empty" if tree.value is None else "the file is not a mapping of keys"
        hint = "it needs at least the keys cluster, kafka and resources"
        raise ConfigError.of(what, source=source, line=1, hint=hint)
    given.take_tree(tree, source)


def _read_text(file: FilePath) -> str:
    line = None
    try:
        raw = read_bounded(file, FILE_BYTES_MAX + 1)
        if len(raw) <= FILE_BYTES_MAX:
            return raw.decode("utf-8-sig")
        message, hint = "is larger than 1 MiB", "is this the config file?"
    except IsADirectoryError:
        message, hint = "is a directory, not a file", ""
    except OSError as error:
        message, hint = f"cannot be read: {error.strerror or error}", ""
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        message, hint = f"not UTF-8: byte 0x{byte:02x}", "save the file as UTF-8"
    raise ConfigError.of(message, source=str(file), line=line, hint=hint)


def _check(given: Given) -> tuple[Settings, list[ConfigProblem]]:
    """The settings, and every problem; the settings are valid only when there is none."""
    found = list(given.problems)
    broken: set[Path] = set()
    raw = given.value
    try:
        settings = Settings.load(raw)
    except ValidationError as error:
        raw = copy.deepcopy(raw)
        for detail in error.errors(include_url=False):
            path = tuple(detail["loc"])
            if detail["type"] == "too_short" and detail["input"]:
                continue  # counted without the items that are wrong themselves
            message, hint = explain(detail)
            found.append(_located(given, (path,), message, hint))
            broken.add(_set_aside(raw, path))
        settings = Settings.load(raw)
    settings = with_defaults(settings)
    for refusal in refusals(settings):
        concerned = {each for path in refusal.paths for each in _with_default(path)}
        if not any(path[: len(bad)] == bad for path in concerned for bad in broken):
            found.append(_refused(given, refusal))
    return settings, found


def _set_aside(raw: Any, path: Path) -> Path:
    """Take the value at `path` out of `raw` (an item with its whole list), or put a stand-in
    there; what is void now."""
    while isinstance(path[-1], int) and path[:-1] != ("resources",):
        path = path[:-1]
    here, stand_in = raw, _STAND_IN
    for part in path[:-1]:
        if here[part] is None:
            here[part] = {}
        here, stand_in = here[part], _part(stand_in, part)
    replacement = _part(stand_in, path[-1])
    if replacement is None:
        here.pop(path[-1], None)
    else:
        here[path[-1]] = copy.deepcopy(replacement)
    return path


def _part(stand_in: Any, part: str | int) -> Any:
    if isinstance(stand_in, list):
        return stand_in[0]
    return stand_in.get(part) if isinstance(stand_in, dict) else None


def _with_default(path: Path) -> list[Path]:
    """`path`, and the key of `defaults` that can set it."""
    return [path, ("defaults", path[2])] if len(path) == 3 and path[0] == "resources" else [path]


def _located(given: Given, paths: tuple[Path, ...], message: str, hint: str) -> ConfigProblem:
    """The problem at the first of `paths` that was given, itself or in `defaults`."""
    candidates = [candidate for path in paths for candidate in _with_default(path)]
    path = next((candidate for candidate in candidates if candidate in given.origins), paths[0])
    return ConfigProblem(message, show(path), *given.origin(path), hint)


def _refused(given: Given, refusal: Refusal) -> ConfigProblem:
    hint = refusal.hint
    if refusal.other:
        source, line = given.origin(refusal.other)
        place = f"on line {line}" if line else f"from {source}"
        hint = f"{show(refusal.other)} is {place}; {hint}"
    return _located(given, refusal.paths, refusal.message, hint)


def _in_order(problems: list[ConfigProblem]) -> list[ConfigProblem]:
    """Those of the file by line, of the environment, and of `--set`; each once."""
    return sorted(
        dict.fromkeys(problems),
        key=lambda problem: (
            problem.source == SET,
            problem.source.startswith(ENV_PREFIX),
            problem.line or 0,
            problem.source,
        ),
    )


def find_file(
    config: str | None, environ: Mapping[str, str]
) -> tuple[FilePath | None, ConfigProblem | None]:
    """The config file to read, or the problem that there is none: `-c`, else
    $WATCHRELAY_CONFIG, else `DEFAULT_PATHS`. An empty variable counts as not set, as with
    $KUBECONFIG; an empty `-c` is an error: a script's variable was not set."""
    named = environ.get(CONFIG_VARIABLE, "") if config is None else config
    source = CONFIG_VARIABLE if config is None else "-c"
    if (config is not None and not config.strip()) or named.isspace():
        hint = "name the config file, or leave it out for the usual places"
        return None, ConfigProblem("the path is empty", source=source, hint=hint)
    for name in [named] if named else DEFAULT_PATHS:
        if may_exist(FilePath(name)):
            return FilePath(name), None
    if not named:
        looked = " and ".join(DEFAULT_PATHS)
        hint = f"name one with -c FILE or ${CONFIG_VARIABLE}; looked for {looked}"
        return None, ConfigProblem("no config file", hint=hint)
    try:
        message = f"is a link to {FilePath(named).readlink()}, which is not there"
    except OSError:
        message = "there is no such file"
    hint = "/dev/stdin is standard input" if named == "-" else f"named by {source}"
    return None, ConfigProblem(message, source=named, hint=hint)
