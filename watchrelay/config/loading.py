"""The config, whole: found, read, overlaid, checked; or every reason why not, together and in file
order.

Room: config. In: the command line's `-c` and `--set`, the environment, the file. Out: `Settings`
with defaults merged, or `ConfigError`. This is the only reader of the environment.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any, Final

from pydantic import ValidationError

from watchrelay.config.locate import CONFIG_VARIABLE
from watchrelay.config.locate import find_file as find_file
from watchrelay.config.refusals import refusals
from watchrelay.config.settings import Settings, with_defaults
from watchrelay.config.sources import Given, Overlaid, Source
from watchrelay.config.translate import explain
from watchrelay.config.tree import Path, Unreadable, read_yaml, show
from watchrelay.config.verdicts import Refusal
from watchrelay.core.errors import ConfigError, ConfigProblem
from watchrelay.core.files import read_bounded

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
    """A good config and where it came from. Shape: `file` is None when environment and `--set` said
    everything."""

    settings: Settings
    file: FilePath | None
    given: Given

    def problem(self, path: Path, message: str, hint: str = "") -> ConfigProblem:
        """A problem with the value at `path`, said with its file and line."""
        return _located(self.given, (path,), message, hint)[1]

    def problems_of(self, settings: Settings) -> list[ConfigProblem]:
        """What cannot stand together in `settings`, which are these but for some values; said with
        this file's lines."""
        found = [_refused(self.given, said) for said in refusals(settings, self.given.says)]
        return [problem for _, problem in sorted(found, key=lambda item: item[0])]


def load_settings(
    config: str | None = None, sets: Sequence[str] = (), *, environ: Mapping[str, str] | None = None
) -> Settings:
    """The settings that file, environment and `--set` give together; the later wins. Entries of
    `resources` have `defaults` merged in.

    Raises: ConfigError with every problem found (exit code 78); ValueError when a `--set` is not
    path=value at all (exit code 2).
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
        config is not None
        or environ.get(CONFIG_VARIABLE)
        or not any(source.said for source in given.sources)
    ):
        raise ConfigError([missing, *(problem for _, problem in given.problems)])
    settings, found = _check(given)
    if found:
        ordered = [problem for _, problem in sorted(found, key=lambda item: item[0])]
        raise ConfigError(_once([missing, *ordered] if missing else ordered))
    return Loaded(settings, file, given)


def _take_file(given: Given, file: FilePath) -> None:
    source = str(file)
    text = _read_text(file)
    try:
        tree = read_yaml(text, source)
    except Unreadable as error:
        raise ConfigError(error.problems) from error
    if tree.value is None:
        raise ConfigError(
            [
                ConfigProblem(
                    "the file is empty",
                    source=source,
                    line=1,
                    hint="it needs at least cluster, kafka and resources",
                )
            ]
        )
    if not isinstance(tree.value, dict):
        kind = "a list" if isinstance(tree.value, list) else "a single value"
        message = f"the top of the file must be a mapping of keys, not {kind}"
        raise ConfigError(
            [
                ConfigProblem(
                    message,
                    source=source,
                    line=1,
                    hint="cluster:, kafka:, resources: stand at the left edge",
                )
            ]
        )
    given.take_tree(tree, source)


def _read_text(file: FilePath) -> str:
    source = str(file)
    try:
        raw = read_bounded(file, FILE_BYTES_MAX + 1)
    except IsADirectoryError as error:
        raise ConfigError([ConfigProblem("is a directory, not a file", source=source)]) from error
    except OSError as error:
        raise ConfigError(
            [ConfigProblem(f"cannot be read: {error.strerror or error}", source=source)]
        ) from error
    if len(raw) > FILE_BYTES_MAX:
        raise ConfigError(
            [ConfigProblem("is larger than 1 MiB", source=source, hint="is this the config file?")]
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        problem = ConfigProblem(
            f"not UTF-8: byte 0x{raw[error.start]:02x}",
            source=source,
            line=line,
            hint="save the file as UTF-8",
        )
        raise ConfigError([problem]) from error


def _check(given: Given) -> tuple[Settings, list[tuple[tuple[int, int], ConfigProblem]]]:
    """The settings, and every problem; the settings mean something only when there is none."""
    found = list(given.problems)
    sources, overlaid = tuple(given.sources), Overlaid()
    broken: set[Path] = set()
    for _ in range(_ROUNDS_MAX):
        try:
            settings = Settings(sources=(*sources, overlaid))  # type: ignore[call-arg] # see settings_customise_sources
            break
        except ValidationError as error:
            raw = overlaid.value
            given.value = given.value or copy.deepcopy(raw)
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
            sources = (Source(raw),)
    else:
        raise AssertionError("a config was set aside piece by piece and still does not validate")
    given.value = given.value or overlaid.value
    settings = with_defaults(settings)
    found.extend(
        _refused(given, refusal)
        for refusal in refusals(settings, given.says)
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
    """`path`, and the key of `defaults` that stands in for it."""
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
    """The problem at the first of `paths` that was given, itself or by `defaults`; else at what
    stands around the first."""
    candidates = [candidate for path in paths for candidate in _with_default(path)]
    path = next((candidate for candidate in candidates if given.says(candidate)), paths[0])
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
