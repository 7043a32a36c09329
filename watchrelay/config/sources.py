"""Where values come from: the file, the environment, `--set`; the later wins. The source and line
of each value are kept for messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args, get_origin

from watchrelay.config.keys import ENV_PREFIX, env_path, is_section, nearest_env, type_at
from watchrelay.config.tree import Path, Tree, read_yaml, scalar, show
from watchrelay.core.errors import ConfigError, ConfigProblem
from watchrelay.core.text import counted

NOT_SETTINGS: Final = frozenset({"WATCHRELAY_CONFIG", "WATCHRELAY_TOOLS"})
"""Begin like settings and are none: the config file's path, the cache of the real test parts."""

_SERVICE_LINK = re.compile(
    r"WATCHRELAY(_[A-Z0-9_]+)?_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)\Z"
)
"""What the kubelet puts into every pod beside a Service named watchrelay or watchrelay-*. Source:
Kubernetes docs, "Service: discovering services, environment variables"."""

SET: Final = "--set"
_KEY: Final = r"[A-Za-z][A-Za-z0-9]*"
_PATH = re.compile(rf"{_KEY}(?:\.{_KEY}|\.[0-9]{{1,9}}|\[[0-9]{{1,9}}\]){{0,20}}")
"""At most 21 parts: no key of the config is deeper, and values are placed by recursion."""


def parse_set(text: str) -> tuple[Path, str]:
    """Path and value of `kafka.partitions=3` or `resources[0].labelSelector=app=web`.

    Raises: ValueError: another form (exit code 2). Whether the key exists is not checked."""
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or not _PATH.fullmatch(name):
        # what follows `kafka.security.password:` must not be shown
        found = _PATH.match(name)
        raise ValueError(
            f'"{found[0] if found else ""}..." is not path.to.key=VALUE, as in '
            "kafka.partitions=3 or resources[0].name=web"
        )
    parts = re.findall(rf"{_KEY}|[0-9]+", name)
    return tuple(int(part) if part.isdecimal() else part for part in parts), value


Origin = tuple[str, int | None]
"""Where a value was written: the file, the variable or `--set`; the line from 1, None without."""


@dataclass(slots=True)
class Given:
    """The values of all sources, one laid over the other: mappings are merged key by key, all
    else is replaced; with the place where each was written."""

    value: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, Origin] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)

    def origin(self, path: Path) -> Origin:
        """Where `path` was written, or the nearest section around it."""
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, ("", None))

    def take_tree(self, tree: Tree, source: str) -> None:
        """Start from the file. `tree.value` must be a mapping."""
        self.value = tree.value
        self.origins = {path: (source, line) for path, line in tree.lines.items()}
        self.problems.extend(tree.problems)

    def take_environment(self, environ: Mapping[str, str]) -> None:
        """Every WATCHRELAY_* variable; unknown ones become problems, and settings in lower case."""
        found: list[tuple[Path, str]] = []
        for name in environ:
            if not name.startswith(ENV_PREFIX):
                if name.upper().startswith(ENV_PREFIX) and env_path(name.upper()):
                    hint = f"names are in upper case: {name.upper()}"
                    self.problems.append(ConfigProblem("is not a setting", source=name, hint=hint))
                continue
            if name in NOT_SETTINGS or _SERVICE_LINK.match(name):
                continue
            if path := env_path(name):
                found.append((path, name))
                continue
            near = nearest_env(name)
            hint = (
                f"did you mean {near}?"
                if near
                else "see `watchrelay schema` for the keys; WATCHRELAY_A__B sets a.b"
            )
            self.problems.append(ConfigProblem("is not a setting", source=name, hint=hint))
        # sections before their keys, entries in the order of their numbers
        for path, name in sorted(found, key=lambda item: [str(part).zfill(9) for part in item[0]]):
            self._take(path, environ[name], name)

    def take_sets(self, sets: Iterable[str]) -> None:
        """Each `--set path=value`, in order. Their form was checked by `parse_set`."""
        for text in sets:
            self._take(*parse_set(text), SET)

    def _take(self, path: Path, text: str, source: str) -> None:
        try:
            text.encode()  # bytes of the operating system that are not UTF-8 are surrogates here
            self._lay(path, _read(text, path, quoted=source == SET), (source, None))
        except UnicodeEncodeError:
            self.problems.append(ConfigProblem("is not UTF-8", show(path), source))
        except ValueError as error:
            self.problems.append(ConfigProblem(str(error), show(path), source))

    def _lay(self, path: Path, value: Any, origin: Origin) -> None:
        if isinstance(value, dict) and not any(isinstance(part, int) for part in path):
            for key, inner in value.items():
                self._lay((*path, key), inner, origin)
            return
        self.value = _placed(self.value, path, 0, value)
        for known in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[known]
        for depth in range(1, len(path)):
            # the sections around it, unless another source has them too
            self.origins.setdefault(path[:depth], origin)
        self._record(path, value, origin)

    def _record(self, path: Path, value: Any, origin: Origin) -> None:
        self.origins[path] = origin
        inner = value.items() if isinstance(value, dict) else ()
        for key, each in enumerate(value) if isinstance(value, list) else inner:
            self._record((*path, key), each, origin)


def _placed(under: Any, path: Path, depth: int, value: Any) -> Any:
    """`under`, the value at `path[:depth]`, with `value` at `path`."""
    if depth == len(path):
        return value
    part, above = path[depth], show(path[:depth])
    if isinstance(part, int) and isinstance(under, list | None):
        items = under or []
        if part > len(items):
            entries = counted(len(items), "entry", "entries")
            raise ValueError(f"there is no [{part}]: {above} has {entries}, the first is 0")
        inner = items[part] if part < len(items) else None
        return [*items[:part], _placed(inner, path, depth + 1, value), *items[part + 1 :]]
    if isinstance(part, str) and isinstance(under, dict | None):
        keys = under or {}
        return keys | {part: _placed(keys.get(part), path, depth + 1, value)}
    item = f": write {above}[0]" if isinstance(under, list) else ""
    raise ValueError(f"{above} has no {'keys' if isinstance(part, str) else 'items'}{item}")


def _read(text: str, path: Path, *, quoted: bool) -> Any:
    """The value that `text` means for the key at `path`; what does not fit stays text, and is
    refused later. `quoted`: text may have YAML quotes around it."""
    kind, stripped = type_at(path), text.strip()
    if kind is bool:
        return {"true": True, "false": False}.get(stripped.lower(), text)
    if kind is int:
        found = scalar(stripped)
        return found if type(found) is int else text
    listed = get_origin(kind) is tuple
    if is_section(kind) or (listed and (stripped[:1] == "[" or is_section(get_args(kind)[0]))):
        try:
            tree = read_yaml(text, "")
        except ConfigError:
            raise ValueError("is neither JSON nor YAML") from None
        if tree.problems:
            raise ValueError(tree.problems[0].message)
        return tree.value
    if listed and path[-1] != "tokenCommand":
        parts = re.findall(r'(?:"[^"]*"|[^,"])+', stripped)
        return [_unquoted(part.strip()) for part in parts]
    return _unquoted(text) if quoted else text


def _unquoted(text: str) -> str:
    """Without the YAML quotes around the whole, if there are any."""
    for quote in ('"', "'"):
        if len(text) > 1 and text[0] == text[-1] == quote and quote not in text[1:-1]:
            return text[1:-1]
    return text
