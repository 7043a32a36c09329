"""Where values come from: the file, the environment, `--set`; the later wins. The source and line
of each value are kept for messages."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from watchrelay.config.keys import ENV_PREFIX, Key, env_path, find, nearest_env
from watchrelay.config.tree import Path, Tree, read_yaml, scalar, show
from watchrelay.core.errors import ConfigError, ConfigProblem
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


@dataclass(frozen=True, slots=True)
class ValueOrigin:
    """Where a value was written.

    Attributes:
        source: the file, the variable, or `--set`.
        line: counts from 1; None where there are no lines.
        order: sorts problems as people read.
    """

    source: str
    line: int | None
    order: tuple[int, int]


_KEY = r"[A-Za-z][A-Za-z0-9]*"
_PART = rf"(?:\.{_KEY}|\.[0-9]{{1,9}}|\[[0-9]{{1,9}}\])"
_PATH = re.compile(rf"{_KEY}{_PART}{{0,20}}")
"""At most 21 parts: no key of the config is deeper, and values are read by recursion."""


def parse_set(text: str) -> tuple[Path, str]:
    """Path and value of `kafka.partitions=3` or `resources[0].labelSelector=app=web`.

    Raises:
        ValueError: when it has another form (exit code 2). Whether the key exists is not checked.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals:
        raise ValueError(f'"{_path_only(text)}" has no "=": write path.to.key=VALUE')
    if not _PATH.fullmatch(name):
        raise ValueError(
            f'"{_path_only(name)}" is not a path: write path.to.key=VALUE, as in '
            "kafka.partitions=3 or resources[0].name=web"
        )
    parts = re.findall(rf"{_KEY}|[0-9]+", name)
    return tuple(int(part) if part.isdecimal() else part for part in parts), value


def _path_only(text: str) -> str:
    """As much of `text` as is a path: what follows `kafka.security.password:` must not be shown."""
    found = _PATH.match(text)
    path = found[0] if found else ""
    return text if path == text else f"{path}..."


@dataclass(slots=True)
class Given:
    """The values of all sources, one laid over the other: mappings are merged key by key, all else
    is replaced.

    Attributes:
        value: the result, with the keys of the file.
        origins: where each path was written.
        written: see `Tree`.
        problems: each with its place in reading order.
    """

    value: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, ValueOrigin] = field(default_factory=dict)
    written: dict[Path, str] = field(default_factory=dict)
    problems: list[tuple[tuple[int, int], ConfigProblem]] = field(default_factory=list)

    def has(self, path: Path) -> bool:
        """Whether a source sets exactly this path."""
        here: Any = self.value
        for part in path:
            indexes = range(len(here)) if isinstance(here, list) else here
            if not isinstance(here, (dict, list)) or part not in indexes:
                return False
            here = here[part]  # type: ignore[index]  # a key of a mapping or an index of a list
        return True

    def origin(self, path: Path) -> ValueOrigin:
        """Where `path` was written, or the nearest section around it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return ValueOrigin("", None, (0, 0))

    def take_tree(self, tree: Tree, source: str) -> None:
        """Start from the file. `tree.value` must be a mapping."""
        self.value = tree.value
        self.origins = {
            path: ValueOrigin(source, line, (0, line)) for path, line in tree.lines.items()
        }
        self.written = dict(tree.written)
        self.problems.extend(((0, problem.line or 0), problem) for problem in tree.problems)

    def take_environment(self, environ: Mapping[str, str]) -> None:
        """Every WATCHRELAY_* variable; unknown ones become problems."""
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
                self._problem("is not a setting", (), ValueOrigin(name, None, (1, 0)), hint=hint)
            else:
                found.append((path, name))
        for number, (path, name) in enumerate(
            sorted(found, key=lambda item: [(isinstance(p, int), str(p).zfill(6)) for p in item[0]])
        ):
            self._put(path, environ[name], ValueOrigin(name, None, (1, number)))

    def take_sets(self, sets: Iterable[str]) -> None:
        """Each `--set path=value`, in order. Their form was checked by `parse_set`."""
        for number, text in enumerate(sets):
            path, value = parse_set(text)
            self._put(path, value, ValueOrigin("--set", None, (2, number)), yaml_values=True)

    def _put(
        self, path: Path, text: str, origin: ValueOrigin, *, yaml_values: bool = False
    ) -> None:
        key = find(path)
        try:
            text.encode()  # bytes of the operating system that are not UTF-8 are surrogates here
            value: Any = text if key is None else _read(text, key, yaml_values=yaml_values)
        except UnicodeEncodeError:
            self._problem("is not UTF-8", path, origin)
            return
        except ValueError as error:
            self._problem(str(error), path, origin)
            return
        here: Any = self.value
        for depth, (part, following) in enumerate(zip(path, (*path[1:], None), strict=True)):
            if isinstance(here, list) and isinstance(part, int):
                if part > len(here):
                    entries = counted(len(here), "entry", "entries")
                    message = f"there is no [{part}]: the list has {entries}"
                    self._problem(message, path, origin, hint="the first is 0")
                    return
                if part == len(here):
                    here.append(None)
            elif not (isinstance(here, dict) and isinstance(part, str)):
                self._not_a_container(path, depth, origin)
                return
            under = here.get(part) if isinstance(here, dict) else here[part]
            if following is None:
                here[part] = value if _in_list(path) else _overlaid(under, value)
            elif under is None:
                here[part] = [] if isinstance(following, int) else {}
            here = here[part]
        self._record(path, value, origin)

    def _record(self, path: Path, value: Any, origin: ValueOrigin) -> None:
        """`value` is from `origin`, and the origins of the values that it replaces are dropped."""
        if isinstance(value, dict) and not _in_list(path):
            for key, inner in value.items():
                self._record((*path, key), inner, origin)
        else:
            for known in [known for known in self.origins if known[: len(path)] == path]:
                del self.origins[known]
                self.written.pop(known, None)
        for depth in range(1, len(path)):
            # the sections around it, unless another source has them too
            self.origins.setdefault(path[:depth], origin)
        self.origins[path] = origin

    def _not_a_container(self, path: Path, depth: int, origin: ValueOrigin) -> None:
        """Report that `path` goes on below a single value. A section that has a wrong type in the
        file is reported there instead."""
        parent, above = find(path[:depth]), show(path[:depth])
        if parent is None or parent.kind not in ("section", "sections"):
            self._problem(f"{above} is a single value: it has no keys", path, origin)
        elif parent.kind == "sections" and not isinstance(path[depth], int):
            self._problem(f"{above} is a list: write {above}[0]", path, origin)
        elif parent.kind == "section" and isinstance(path[depth], int):
            self._problem("is no list", path, origin)

    def _problem(self, message: str, path: Path, origin: ValueOrigin, *, hint: str = "") -> None:
        problem = ConfigProblem(message, path=show(path), source=origin.source, hint=hint)
        self.problems.append((origin.order, problem))


def _in_list(path: Path) -> bool:
    return any(isinstance(part, int) for part in path)


def _overlaid(under: Any, over: Any) -> Any:
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return over
    return under | {key: _overlaid(under.get(key), value) for key, value in over.items()}


def _read(text: str, key: Key, *, yaml_values: bool) -> Any:
    """The value that `text` means for a key of this kind; text that does not fit stays text, and is
    refused with its path later."""
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
    except ConfigError:
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
