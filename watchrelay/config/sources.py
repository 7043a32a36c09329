"""Where values come from: the file, the environment, `--set`; the later wins. Each value remembers
who said it.

Room: config. In: a YAML tree, environment variables, `path=value` texts. Out: sources for
pydantic-settings, which overlays them, and the origin of every path in them.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import yaml
from pydantic.fields import FieldInfo
from pydantic_settings import PydanticBaseSettingsSource

from watchrelay.config.keys import ENV_PREFIX, Key, env_path, find, nearest_env
from watchrelay.config.overrides import parse_set
from watchrelay.config.settings import Settings
from watchrelay.config.tree import Path, Tree, Unreadable, read_yaml, scalar, show
from watchrelay.core.errors import ConfigProblem
from watchrelay.core.text import counted

NOT_SETTINGS: Final = frozenset({"WATCHRELAY_CONFIG", "WATCHRELAY_TOOLS"})
"""Variables that begin like settings and are none: the config file's path, and the cache of the
real test parts."""

_SERVICE_LINK = re.compile(
    r"WATCHRELAY(_[A-Z0-9_]+)?_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)\Z"
)
"""What the kubelet puts into every pod of a namespace that has a Service named watchrelay or
watchrelay-*.
Source: Kubernetes docs, "Service: discovering services, environment variables"."""

_NOTHING: Final = object()


@dataclass(frozen=True, slots=True)
class Origin:
    """Who said a value. Shape: `line` counts from 1, None where there are no lines; `order` sorts
    problems as people read."""

    source: str
    line: int | None
    order: tuple[int, int]


class Source(PydanticBaseSettingsSource):
    """What one place said, with the keys of the file. The library overlays sources: mappings key by
    key, all else as a whole."""

    def __init__(self, said: dict[str, Any]) -> None:
        super().__init__(Settings)
        self.said = said

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The library's question for one field; `__call__` answers for all at once."""
        key = field.alias or field_name
        return self.said.get(key), key, False

    def __call__(self) -> dict[str, Any]:
        return self.said


class FileSource(Source):
    """The config file."""


class EnvironmentSource(Source):
    """The variables WATCHRELAY_A__B."""


class SetSource(Source):
    """The `--set path=value` of the command line."""


class Overlaid(Source):
    """Asked last: adds nothing, and keeps what the sources before it gave together."""

    def __init__(self) -> None:
        super().__init__({})
        self.value: dict[str, Any] = {}

    def __call__(self) -> dict[str, Any]:
        self.value = copy.deepcopy(self.current_state)
        return {}


@dataclass(slots=True)
class Given:
    """All that was said. Shape: `sources`: the one that wins first; `value`: all of them overlaid;
    `written`: see `Tree`."""

    sources: list[Source] = field(default_factory=list)
    value: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, Origin] = field(default_factory=dict)
    written: dict[Path, str] = field(default_factory=dict)
    problems: list[tuple[tuple[int, int], ConfigProblem]] = field(default_factory=list)

    def says(self, path: Path) -> bool:
        """True when this path itself was given, by whatever source."""
        return _at(self.value, path) is not _NOTHING

    def origin(self, path: Path) -> Origin:
        """Who said `path`, or the nearest thing around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return Origin("", None, (0, 0))

    def take_tree(self, tree: Tree, source: str) -> None:
        """The file, first of all sources. `tree.value` must be a mapping."""
        self.sources.insert(0, FileSource(tree.value))
        self.origins = {path: Origin(source, line, (0, line)) for path, line in tree.lines.items()}
        self.written = dict(tree.written)
        self.problems.extend(((0, problem.line or 0), problem) for problem in tree.problems)

    def take_environment(self, environ: Mapping[str, str]) -> None:
        """Every WATCHRELAY_* variable; unknown ones become problems."""
        self.sources.insert(0, EnvironmentSource({}))
        found: list[tuple[Path, str]] = []
        for name in sorted(environ):
            if not name.startswith(ENV_PREFIX) or name in NOT_SETTINGS or _SERVICE_LINK.match(name):
                continue
            path = env_path(name)
            if path is None:
                near = nearest_env(name)
                hint = (
                    f"did you mean {near}?"
                    if near
                    else "see `watchrelay schema` for the keys; WATCHRELAY_A__B sets a.b"
                )
                self._problem(ConfigProblem("is not a setting", source=name, hint=hint), (1, 0))
            else:
                found.append((path, name))
        for number, (path, name) in enumerate(
            sorted(found, key=lambda item: [(isinstance(p, int), str(p).zfill(6)) for p in item[0]])
        ):
            self._put(path, environ[name], Origin(name, None, (1, number)))

    def take_sets(self, sets: Iterable[str]) -> None:
        """Each `--set path=value`, in order. Their form was checked by `parse_set`."""
        self.sources.insert(0, SetSource({}))
        for number, text in enumerate(sets):
            path, value = parse_set(text)
            self._put(path, value, Origin("--set", None, (2, number)), yaml_values=True)

    def _put(self, path: Path, text: str, origin: Origin, *, yaml_values: bool = False) -> None:
        if not _is_text(text):
            self._problem(
                ConfigProblem("is not UTF-8", path=show(path), source=origin.source), origin.order
            )
            return
        key = find(path)
        try:
            value: Any = text if key is None else _read(text, key, yaml_values=yaml_values)
        except ValueError as error:
            self._problem(
                ConfigProblem(str(error), path=show(path), source=origin.source), origin.order
            )
            return
        here: Any = self.sources[0].said
        for depth, (part, following) in enumerate(zip(path, (*path[1:], None), strict=True)):
            if isinstance(here, list) and isinstance(part, int):
                if part > len(here):
                    message = (
                        f"there is no [{part}]: the list has "
                        f"{counted(len(here), 'entry', 'entries')}"
                    )
                    self._problem(
                        ConfigProblem(
                            message, path=show(path), source=origin.source, hint="the first is 0"
                        ),
                        origin.order,
                    )
                    return
                if part == len(here):
                    here.append(None)
            elif not (isinstance(here, dict) and isinstance(part, str)):
                self._not_a_container(path, depth, origin)
                return
            if following is None:
                here[part] = value
            elif (here.get(part) if isinstance(here, dict) else here[part]) is None:
                here[part] = self._begun(
                    path[: depth + 1], [] if isinstance(following, int) else {}
                )
            here = here[part]
        self._record(path, value, origin)

    def _begun(self, path: Path, empty: Any) -> Any:
        """What a source that says something inside `path` starts from: mappings are overlaid key by
        key, so from an empty one; a list is taken as a whole, so from the one beneath; likewise
        from a value of the wrong type, which is then told to whoever said it."""
        beneath = next(
            (
                said
                for source in self.sources[1:]
                if (said := _at(source.said, path)) is not _NOTHING
            ),
            None,
        )
        return (
            empty
            if beneath is None or (isinstance(empty, dict) and isinstance(beneath, dict))
            else copy.deepcopy(beneath)
        )

    def _record(self, path: Path, value: Any, origin: Origin) -> None:
        """`origin` said `value`: what was known of the values that it hides is forgotten."""
        if isinstance(value, dict) and not any(isinstance(part, int) for part in path):
            for key, inner in value.items():
                self._record((*path, key), inner, origin)
        else:
            for known in [known for known in self.origins if known[: len(path)] == path]:
                del self.origins[known]
                self.written.pop(known, None)
        for depth in range(1, len(path)):
            # what stands around it, if nobody else said that
            self.origins.setdefault(path[:depth], origin)
        self.origins[path] = origin

    def _not_a_container(self, path: Path, depth: int, origin: Origin) -> None:
        """Tell that `path` goes on behind a single value; where a section has a wrong type in the
        file, the file is told so instead."""
        parent = find(path[:depth])
        if parent is None or parent.kind not in ("section", "sections"):
            message = f"{show(path[:depth])} is a single value: it has no keys"
            self._problem(
                ConfigProblem(message, path=show(path), source=origin.source), origin.order
            )
        elif isinstance(path[depth], int) != (parent.kind == "sections"):
            message = (
                f"{show(path[:depth])} is a list: write {show(path[:depth])}[0]"
                if parent.kind == "sections"
                else "is no list"
            )
            self._problem(
                ConfigProblem(message, path=show(path), source=origin.source), origin.order
            )

    def _problem(self, problem: ConfigProblem, order: tuple[int, int]) -> None:
        self.problems.append((order, problem))


def _at(value: Any, path: Path) -> Any:
    """The value at `path`, or _NOTHING."""
    for part in path:
        if (isinstance(value, dict) and part in value) or (
            isinstance(value, list) and isinstance(part, int) and part < len(value)
        ):
            value = value[part]  # type: ignore[index]  # a key in a mapping, an index in a list
        else:
            return _NOTHING
    return value


def _is_text(said: str) -> bool:
    """False where the operating system gave bytes that are none; Python keeps them as signs that
    nothing can write."""
    try:
        said.encode()
    except UnicodeEncodeError:
        return False
    return True


def _read(text: str, key: Key, *, yaml_values: bool) -> Any:
    """The value that `text` means for a key of this kind; text that does not fit stays text, and is
    refused with its path."""
    stripped = text.strip()
    if key.kind == "flag":
        return {"true": True, "false": False}.get(stripped.lower(), text)
    if key.kind == "integer":
        found = scalar(stripped)
        return found if isinstance(found, int) and not isinstance(found, bool) else text
    if key.kind == "text":
        return _unquoted(text) if yaml_values else text
    if key.kind == "list" and not stripped.startswith("["):
        return (
            [_unquoted(part.strip()) for part in re.findall(r'(?:"[^"]*"|[^,"])+', stripped)]
            if stripped
            else []
        )
    if key.kind == "command" and not stripped.startswith("["):
        return text
    return _structured(stripped, yaml_values=yaml_values)


def _structured(text: str, *, yaml_values: bool) -> Any:
    """A list or a section: JSON, or for `--set` any YAML."""
    try:
        return json.loads(text)
    except ValueError:
        if not yaml_values:
            raise ValueError("is not JSON: a list or a section is written as JSON here") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    try:
        tree = read_yaml(text, "")
    except (Unreadable, yaml.YAMLError):
        raise ValueError("is neither JSON nor YAML") from None
    if tree.problems:
        raise ValueError(str(replace(tree.problems[0], line=None)))
    return tree.value


def _unquoted(text: str) -> str:
    """Without the YAML quotes around the whole, if there are any."""
    for quote in ('"', "'"):
        if len(text) > 1 and text[0] == text[-1] == quote and quote not in text[1:-1]:
            return text[1:-1]
    return text
