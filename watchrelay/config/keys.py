"""The keys of the config, by the settings model: types, environment names, nearest names."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Annotated, Any, Final, Union, get_args, get_origin

from watchrelay.config.settings import Settings
from watchrelay.config.tree import Path, show
from watchrelay.config.values import Section

ENV_PREFIX: Final = "WATCHRELAY_"


@cache
def keys_of(section: type[Section]) -> dict[str, Any]:
    """The keys of a section and the type of each: a section, `tuple[...]`, `bool`, `int`, or
    text."""
    return {str(info.alias): _plain_type(info.annotation) for info in section.model_fields.values()}


def _plain_type(annotation: Any) -> Any:
    """`annotation` without what optional and constrained types add to it."""
    while get_origin(annotation) in (Annotated, Union, types.UnionType):
        annotation = get_args(annotation)[0]
    return annotation


def field_name(section: Section, key: str | int) -> str:
    """The attribute of `section` that a file writes as `key`."""
    return next(name for name, info in type(section).model_fields.items() if info.alias == key)


def type_at(path: Path) -> Any:
    """The type of the value at `path`, as in `keys_of`; None when there is no such key."""
    found: Any = Settings
    for part in path:
        if isinstance(part, int):
            found = _plain_type(get_args(found)[0]) if get_origin(found) is tuple else None
        else:
            found = keys_of(found).get(part) if is_section(found) else None
    return found


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Section)


def every_key(section: type[Section] = Settings, before: Path = ()) -> Iterator[Path]:
    """Every path of the config, with index 0 for items of lists of sections."""
    for key, kind in keys_of(section).items():
        path = (*before, key)
        yield path
        if is_section(kind):
            yield from every_key(kind, path)
        elif get_origin(kind) is tuple and is_section(item := get_args(kind)[0]):
            yield from every_key(item, (*path, 0))


def env_name(path: Path) -> str:
    """The variable that sets `path`: `WATCHRELAY_KAFKA__MIN_INSYNC_REPLICAS`."""
    words = (re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", str(part)).upper() for part in path)
    return ENV_PREFIX + "__".join(words)


@cache
def _variables() -> dict[str, Path]:
    paths: tuple[Path, ...] = (("resources", 0), *every_key())
    return {env_name(path): path for path in paths}


_INDEX = re.compile(r"__([0-9]{1,9})(?=__|\Z)")


def env_path(name: str) -> Path | None:
    """The path that the variable `name` sets; None when there is no such key."""
    path = _variables().get(_INDEX.sub("__0", name))
    index = _INDEX.search(name)
    return path and tuple(int(index[1]) if index and part == 0 else part for part in path)


def nearest_env(name: str) -> str:
    """The variable that `name` probably means, or ""."""
    return _closest(_INDEX.sub("__0", name), _variables())


def nearest_key(path: Path) -> str:
    """The key that `path` probably means, or "": a sibling, else the same key in another
    section."""
    section, wrong = type_at(path[:-1]), _without_separators(str(path[-1]))
    siblings = {_without_separators(key): key for key in keys_of(section)}
    if close := _closest(wrong, siblings):
        return siblings[close]
    elsewhere = (key for key in every_key() if _without_separators(str(key[-1])) == wrong)
    return show(next(elsewhere, ())).replace("[0]", "[]")


def _without_separators(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()


def _closest(word: str, words: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(word, words, n=1, cutoff=0.7)), "")
