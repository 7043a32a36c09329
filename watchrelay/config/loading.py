"""Finds, reads and checks the config: `Settings` with `defaults` merged, or `ConfigError` with
every problem in file order. The only reader of the environment."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any, Final, NoReturn

from pydantic import ValidationError

from watchrelay.config.refusals import Refusal, refusals
from watchrelay.config.settings import Settings, with_defaults
from watchrelay.config.sources import Given
from watchrelay.config.translate import explain
from watchrelay.config.tree import Path, read_yaml, show
from watchrelay.core.errors import ConfigError, ConfigProblem
from watchrelay.core.files import read_bounded

CONFIG_VARIABLE: Final = "WATCHRELAY_CONFIG"
DEFAULT_PATHS: Final = ("watchrelay.yaml", "/etc/watchrelay/config.yaml")

FILE_BYTES_MAX: Final = 1 << 20
"""What fits in a ConfigMap; no config comes near it."""

_ROUNDS_MAX: Final = 8
_STAND_INS: Final[dict[tuple[str, ...], Any]] = {
    ("cluster",): "x",
    ("kafka",): {"bootstrapServers": ["x:1"]},
    ("kafka", "bootstrapServers"): ["x:1"],
    ("resources",): [{"resource": "pods"}],
    ("resources", "*"): {"resource": "pods"},
    ("resources", "*", "resource"): "pods",
}
"""Put in place of required values that are missing or wrong, so that everything else can still be
checked in the same run."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid config and where it came from.

    Attributes:
        settings: with `defaults` merged.
        file: None when all is from the environment and `--set`.
        given: the values as written, with their lines.
    """

    settings: Settings
    file: FilePath | None
    given: Given

    def problem(self, path: Path, message: str, hint: str = "") -> ConfigProblem:
        """A problem with the value at `path`, with its file and line."""
        return _located(self.given, (path,), message, hint)[1]

    def problems_of(self, settings: Settings) -> list[ConfigProblem]:
        """The conflicts within `settings`, a variant of these settings; with the lines of this
        file."""
        found = [_refused(self.given, refusal) for refusal in refusals(settings, self.given.has)]
        return [problem for _, problem in sorted(found, key=lambda item: item[0])]


def load_settings(
    config: str | None = None, sets: Sequence[str] = (), *, environ: Mapping[str, str] | None = None
) -> Settings:
    """The settings of file, environment and `--set`; the later wins. Entries of `resources` have
    `defaults` merged in.

    Args:
        config: the value of `-c`.
        sets: the values of `--set`.
        environ: default: the environment of the process.

    Raises:
        ConfigError: with every problem found (exit code 78).
        ValueError: when a `--set` is not path=value at all (exit code 2).
    """
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
    if missing is not None and (
        config is not None or environ.get(CONFIG_VARIABLE) or not given.value
    ):
        raise ConfigError([missing, *(problem for _, problem in given.problems)])
    settings, found = _check(given)
    if found:
        ordered = [problem for _, problem in sorted(found, key=lambda item: item[0])]
        raise ConfigError(_once([missing, *ordered] if missing else ordered))
    return Loaded(settings, file, given)


def _take_file(given: Given, file: FilePath) -> None:
    source = str(file)
    tree = read_yaml(_read_text(file), source)

    def refuse(message: str, hint: str) -> NoReturn:
        raise ConfigError([ConfigProblem(message, source=source, line=1, hint=hint)])

    if tree.value is None:
        refuse("the file is empty", "it needs at least cluster, kafka and resources")
    if not isinstance(tree.value, dict):
        kind = "a list" if isinstance(tree.value, list) else "a single value"
        refuse(
            f"the top of the file must be a mapping of keys, not {kind}",
            "cluster:, kafka:, resources: are not indented",
        )
    given.take_tree(tree, source)


def _read_text(file: FilePath) -> str:
    source, line = str(file), None
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
        message, hint = (
            f"not UTF-8: byte 0x{error.object[error.start]:02x}",
            "save the file as UTF-8",
        )
    raise ConfigError([ConfigProblem(message, source=source, line=line, hint=hint)])


def _check(given: Given) -> tuple[Settings, list[tuple[tuple[int, int], ConfigProblem]]]:
    """The settings, and every problem; the settings are valid only when there is none."""
    found = list(given.problems)
    raw = copy.deepcopy(given.value)
    broken: set[Path] = set()
    for _ in range(_ROUNDS_MAX):
        try:
            settings = with_defaults(Settings.model_validate(raw))
            break
        except ValidationError as error:
            void: set[Path] = set()
            for detail in error.errors(include_url=False):
                path = tuple(detail["loc"])
                if detail["type"] == "too_short" and detail["input"]:
                    continue  # counted without the items that are wrong themselves
                if not _touches(path, broken):
                    message, hint = explain(detail, path, given.written.get(path))
                    found.append(_located(given, (path,), message, hint))
                void.add(_set_aside(raw, path))
            broken |= void
    else:
        raise AssertionError("a config was set aside piece by piece and still does not validate")
    found.extend(
        _refused(given, refusal)
        for refusal in refusals(settings, given.has)
        if not any(
            _touches(concerned, broken)
            for path in refusal.paths
            for concerned in _with_default(path)
        )
    )
    return settings, found


def _touches(path: Path, broken: set[Path]) -> bool:
    return any(path[: len(bad)] == bad for bad in broken)


def _with_default(path: Path) -> list[Path]:
    """`path`, and the key of `defaults` that can set it."""
    return [path, ("defaults", path[2])] if len(path) == 3 and path[0] == "resources" else [path]


def _set_aside(raw: Any, path: Path) -> Path:
    """Take the value at `path` out of `raw` (an item takes its whole list along), or put a stand-in
    there; returns what is void now."""
    while path and isinstance(path[-1], int) and path[:-1] != ("resources",):
        path = path[:-1]
    pattern = tuple("*" if isinstance(part, int) else part for part in path)
    here = raw
    for depth, part in enumerate(path[:-1]):
        if not isinstance(here, (dict, list)):
            return _set_aside(raw, path[:depth])
        at: Any = part  # a key in a mapping, an index in a list
        if here[at] is None:
            here[at] = {}
        here = here[at]
    if pattern in _STAND_INS:
        here[path[-1]] = copy.deepcopy(_STAND_INS[pattern])
    elif isinstance(here, dict):
        here.pop(path[-1], None)
    return path


def _located(
    given: Given, paths: tuple[Path, ...], message: str, hint: str
) -> tuple[tuple[int, int], ConfigProblem]:
    """The problem at the first of `paths` that was given, itself or in `defaults`; else at the
    section around the first."""
    candidates = [candidate for path in paths for candidate in _with_default(path)]
    path = next((candidate for candidate in candidates if given.has(candidate)), paths[0])
    origin = given.origin(path)
    problem = ConfigProblem(
        message, path=show(path), source=origin.source, line=origin.line, hint=hint
    )
    return origin.order, problem


def _refused(given: Given, refusal: Refusal) -> tuple[tuple[int, int], ConfigProblem]:
    hint = refusal.hint
    if refusal.other:
        origin = given.origin(refusal.other)
        hint = (
            f"{show(refusal.other)} is "
            f"{f'on line {origin.line}' if origin.line else f'from {origin.source}'}; {hint}"
        )
    return _located(given, refusal.paths, refusal.message, hint)


def _once(problems: list[ConfigProblem]) -> list[ConfigProblem]:
    """Each problem once, whichever of several entries led to it."""
    return [replace(problem) for problem in dict.fromkeys(problems)]


def find_file(
    config: str | None, environ: Mapping[str, str]
) -> tuple[FilePath | None, ConfigProblem | None]:
    """The config file to read, or the problem that there is none: `-c`, else $WATCHRELAY_CONFIG,
    else `DEFAULT_PATHS`.

    An empty variable counts as not set, as with $KUBECONFIG; an empty `-c` is an error: a script's
    variable was not set.
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
        if _exists(path):
            return path, None
        return None, _absent(named, source)
    for usual in DEFAULT_PATHS:
        if _exists(FilePath(usual)):
            return FilePath(usual), None
    looked = " and ".join(DEFAULT_PATHS)
    return None, ConfigProblem(
        "no config file", hint=f"name one with -c FILE or ${CONFIG_VARIABLE}; looked for {looked}"
    )


def _absent(named: str, source: str) -> ConfigProblem:
    """Why `named` cannot be read; a dangling link is reported as one, for `ls` shows a file."""
    path = FilePath(named)
    try:
        if path.is_symlink():
            return ConfigProblem(
                f"is a link to {path.readlink()}, which is not there",
                source=named,
                hint=f"named by {source}",
            )
    except OSError:
        pass
    if named == "-":
        return ConfigProblem(
            "there is no such file", source=named, hint="/dev/stdin is standard input"
        )
    return ConfigProblem("there is no such file", source=named, hint=f"named by {source}")


def _exists(path: FilePath) -> bool:
    """False when there is no such file; where that cannot be determined, reading it reports why."""
    try:
        return path.exists()
    except OSError:
        return True
