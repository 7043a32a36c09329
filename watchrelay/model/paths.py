"""Paths into an object, as `drop`, `redact`, `ignoreChanges` and `publishWhen` name them:
`spec.containers[*].env`, `data.*`, `metadata.annotations["a.b/c"]`."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final


class Wild(Enum):
    """A step that names no key: any key of a map, or every item of a list."""

    KEY = "*"
    ITEM = "[*]"


Step = str | Wild
Path = tuple[Step, ...]

PROTECTED: Final = ("name", "namespace", "uid", "resourceVersion")
"""Keys of `metadata` that no path removes or hides: the record key and the order need them."""

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
NEVER_COUNT: Final[tuple[Path, ...]] = (
    ("metadata", "resourceVersion"),
    ("metadata", "generation"),
    ("metadata", "managedFields"),
    ("metadata", "annotations", LAST_APPLIED),
)
"""What follows from a change of other fields: a change of these alone does not count."""

_KEY = re.compile(r'[^.\[\]"*\s]+|\*')
_QUOTED = re.compile(r'\["((?:[^"\\]|\\["\\])*)"\]')
_BARE = re.compile(r'[^.\[\]"*\s]+')


def parse_path(text: str) -> Path:
    """As `path_of`, for what may be dropped or redacted. The inverse of `format_path`.

    Raises: ValueError, one line: the text is no path, or names a protected key."""
    path = path_of(text)
    _refuse_protected(text, path)
    return path


def parse_ignored(text: str) -> Path:
    """As `path_of`, for `ignoreChanges`. Raises: ValueError, one line."""
    path = path_of(text)
    if path in {("metadata",), ("metadata", "uid"), ("metadata", "deletionTimestamp")}:
        raise ValueError(
            f"{text!r}: uid and deletionTimestamp always count; name other keys of metadata"
        )
    return path


def parse_counted(text: str) -> Path:
    """As `path_of`, for `publishWhen`. Raises: ValueError, one line."""
    path = path_of(text)
    if any(covers(each, path) for each in NEVER_COUNT):
        raise ValueError(
            f"{text!r}: never counts by itself; name the fields whose changes are to be "
            "published, such as spec"
        )
    return path


def path_of(text: str) -> Path:
    """The steps that `text` names, at least one; the first is never `Wild.ITEM`.

    Raises: ValueError, one line: the text is no path."""
    if not text:
        raise ValueError("the path is empty")
    if text.startswith(("$", "/")):
        raise ValueError(f"{text!r}: a path starts with a key, as in spec.containers[*].env")
    steps: list[Step] = []
    at = 0
    while at < len(text):
        at = _step(text, at, steps)
    return tuple(steps)


def covers(path: Path, other: Path) -> bool:
    """Whether `other` leads to nothing but what is at or within `path`."""
    return len(path) <= len(other) and all(
        step == beside or (step is Wild.KEY and isinstance(beside, str))
        for step, beside in zip(path, other, strict=False)
    )


def _step(text: str, at: int, steps: list[Step]) -> int:
    """Append the step that starts at `at`; returns where the next one starts."""
    if text.startswith("[*]", at):
        if not steps:
            raise ValueError(f"{text!r}: a path starts with a key, not with [*]")
        steps.append(Wild.ITEM)
        return at + 3
    if quoted := _QUOTED.match(text, at):
        steps.append(re.sub(r"\\(.)", r"\1", quoted[1]))
        return quoted.end()
    if text[at] == "[":
        raise ValueError(
            f'{text!r}: only [*] and ["quoted key"] are allowed in brackets (at character {at + 1})'
        )
    if steps:
        if text[at] != ".":
            raise ValueError(f"{text!r}: a dot or a bracket is missing at character {at + 1}")
        at += 1
    key = _KEY.match(text, at)
    if key is None:
        raise ValueError(f"{text!r}: a key is missing at character {at + 1}")
    steps.append(Wild.KEY if key[0] == "*" else key[0])
    return key.end()


def _refuse_protected(text: str, path: Path) -> None:
    if path in {("apiVersion",), ("kind",)}:
        raise ValueError(f"{text!r}: apiVersion and kind always stay")
    if path == ("metadata",) or (path[0] == "metadata" and path[1] in PROTECTED):
        raise ValueError(
            f"{text!r}: metadata and its {', '.join(PROTECTED)} always stay; name other keys of "
            "metadata"
        )


def format_path(path: Path) -> str:
    """The shortest text that `parse_path` turns into `path`."""
    text = ""
    for step in path:
        if step is Wild.ITEM:
            text += "[*]"
        elif isinstance(step, Wild) or _BARE.fullmatch(step):
            key = step.value if isinstance(step, Wild) else step
            text += f".{key}" if text else key
        else:
            escaped = step.replace("\\", "\\\\").replace('"', '\\"')
            text += f'["{escaped}"]'
    return text
