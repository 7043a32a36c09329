"""The form of `--set path.to.key=VALUE`.

Room: config. In: one argument. Out: the path and the text of the value.
"""

from __future__ import annotations

import re

_KEY = r"[A-Za-z][A-Za-z0-9]*"
_PART = rf"(?:\.{_KEY}|\.[0-9]{{1,9}}|\[[0-9]{{1,9}}\])"
_BEGINNING = re.compile(rf"{_KEY}{_PART}{{0,20}}")
_PATH = re.compile(rf"{_KEY}{_PART}{{0,20}}\Z")
"""Up to 21 parts: no key of the config is deeper, and what reads the values goes down by recursion."""


def parse_set(text: str) -> tuple[tuple[str | int, ...], str]:
    """`kafka.partitions=3` or `resources[0].labelSelector=app=web`, as path and value.

    Raises: ValueError when it has not that form at all (exit code 2); whether the key exists is not asked here.
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals:
        raise ValueError(f'"{_shown(text)}" has no "=": write path.to.key=VALUE')
    if not _PATH.match(name):
        raise ValueError(f'"{_shown(name)}" is not a path: write path.to.key=VALUE, as in kafka.partitions=3 or resources[0].name=web')
    parts = re.findall(r"[A-Za-z][A-Za-z0-9]*|[0-9]+", name)
    return tuple(int(part) if part.isdecimal() else part for part in parts), value


def _shown(text: str) -> str:
    """As much of `text` as is a path: what stands behind `kafka.security.password:` is nobody's to read."""
    found = _BEGINNING.match(text)
    path = found[0] if found else ""
    return text if path == text else f"{path}..."
