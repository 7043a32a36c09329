"""The keys of the config: the kind of each, its name in the environment, and the key that a wrong
name probably means."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, Union, get_args, get_origin

from pydantic import SecretStr

from watchrelay.config.fields import Section
from watchrelay.config.settings import Settings
from watchrelay.config.tree import Path, show

Kind = Literal["section", "sections", "list", "integer", "flag", "text", "command"]

ENV_PREFIX: Final = "WATCHRELAY_"


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the config.

    Attributes:
        kind: what it holds; "sections" is a list of sections.
        section: the class of the section, or of the items of the list.
        secret: no message shows its value.
    """

    kind: Kind
    section: type[Section] | None = None
    secret: bool = False


def field_name(section: Section, key: str | int) -> str:
    """The attribute of `section` that a file writes as `key`."""
    return next(name for name, info in type(section).model_fields.items() if info.alias == key)


@cache
def keys_of(section: type[Section]) -> dict[str, Key]:
    """The keys of a section, as files write them."""
    return {
        str(info.alias or name): Key("command")
        if name == "token_command"
        else _key(info.annotation)
        for name, info in section.model_fields.items()
    }


def find(path: Path) -> Key | None:
    """The key at `path`; None when there is none. An item of a list of sections is a section, an
    item of another list a text."""
    found: Key | None = Key("section", Settings)
    for part in path:
        if found is not None and found.kind in ("sections", "list") and isinstance(part, int):
            found = Key("section", found.section) if found.section else Key("text")
        elif (
            found is not None
            and found.kind == "section"
            and found.section
            and isinstance(part, str)
        ):
            found = keys_of(found.section).get(part)
        else:
            return None
    return found


def every_key(section: type[Section] = Settings, before: Path = ()) -> Iterator[Path]:
    """Every path of the config, with index 0 for items of lists of sections."""
    for name, key in keys_of(section).items():
        path = (*before, name)
        yield path
        if key.section:
            yield from every_key(key.section, path if key.kind == "section" else (*path, 0))


def env_segment(key: str) -> str:
    """`minInsyncReplicas` as the environment writes it: `MIN_INSYNC_REPLICAS`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).upper()


def env_name(path: Path) -> str:
    """The variable that sets `path`."""
    return ENV_PREFIX + "__".join(
        str(part) if isinstance(part, int) else env_segment(part) for part in path
    )


_INDEX = re.compile(r"[0-9]{1,9}")


def env_path(name: str) -> Path | None:
    """The path that the variable `name` sets; None when there is no such key."""
    path: list[str | int] = []
    section: type[Section] | None = Settings
    listed = False
    for segment in name.removeprefix(ENV_PREFIX).split("__"):
        if listed:
            if not _INDEX.fullmatch(segment):
                return None
            path.append(int(segment))
            listed = False
            continue
        if section is None:
            return None
        match = next(
            (
                (key, found)
                for key, found in keys_of(section).items()
                if env_segment(key) == segment
            ),
            None,
        )
        if match is None:
            return None
        path.append(match[0])
        section, listed = match[1].section, match[1].kind == "sections"
    return tuple(path)


def nearest_env(name: str) -> str:
    """The variable that `name` probably means, or ""."""
    indexed = re.sub(r"__\d+(?=__|$)", "__0", name)
    return _closest(indexed, [env_name(path) for path in every_key()])


def nearest_key(path: Path) -> str:
    """The key that `path` probably means, as people write it, or "": a sibling first, else the same
    key in another section."""
    *parents, wrong = path
    if not isinstance(wrong, str):
        return ""
    key = find(tuple(parents))
    siblings = list(keys_of(key.section)) if key and key.section else []
    plain = {_plain(sibling): sibling for sibling in siblings}
    close = plain.get(_plain(wrong)) or _closest(wrong, siblings)
    if close:
        return close
    elsewhere = [other for other in every_key() if _plain(str(other[-1])) == _plain(wrong)]
    return show(elsewhere[0]).replace("[0]", "[]") if elsewhere else ""


def _plain(key: str) -> str:
    return key.replace("_", "").replace("-", "").lower()


def _closest(word: str, words: list[str]) -> str:
    return next(iter(difflib.get_close_matches(word, words, n=1, cutoff=0.7)), "")


def _key(annotation: Any) -> Key:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return Key("section", annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return _key(next(part for part in get_args(annotation) if part is not type(None)))
    if get_origin(annotation) is tuple:
        item = get_args(annotation)[0]
        return (
            Key("sections", item)
            if isinstance(item, type) and issubclass(item, Section)
            else Key("list")
        )
    if hasattr(annotation, "__metadata__"):
        return _key(get_args(annotation)[0])
    if annotation is bool:
        return Key("flag")
    return Key("integer") if annotation is int else Key("text", secret=annotation is SecretStr)
