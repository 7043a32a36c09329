"""What counts of an object: `ignoreChanges` and `publishWhen`. A change that is equal in it, under
the same uid, is not published.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec import Raw

from watchrelay.core.text import BROKEN_JSON
from watchrelay.model.paths import NEVER_COUNT, Path, format_path
from watchrelay.store.transform import Node, Transform, split_list, split_map, tree_of

HASH_BYTES: Final = 8
UNKNOWN: Final = bytes(HASH_BYTES)
"""In place of a hash: what counts of the state is not known, so it is equal to none."""
IN_PART: Final = b"\xff" * HASH_BYTES
"""In place of a hash: the topic has not all of the state, so it is equal to none."""

_KEY: Final = secrets.token_bytes(16)
"""Hashes are of values that are redacted later: without the key nothing can be guessed from
them. It never leaves the process, and neither do they."""
_MAP, _LIST = b"{["
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Counting:
    """Hashes of what counts of the objects of one stream. Where `redacts`, the published bytes
    do not tell them: values that count may be hidden in these. `before` is the transform of the
    stream, but that it redacts nothing: what counts is that of its bytes."""

    redacts: bool
    before: Transform
    _ignored: Node
    _published: Node | None
    _described: dict[str, list[str]]

    @classmethod
    def compile(
        cls,
        before: Transform,
        *,
        redacts: bool = False,
        ignored: Iterable[Path] = (),
        published: Iterable[Path] | None = None,
    ) -> Counting:
        """Args: `ignored`: paths that do not count. `published`: those that alone do; None: all."""
        key, paths, only = "ignoreChanges", [*ignored], None
        out = tree_of([*paths, *NEVER_COUNT], "drop")
        if published is not None:
            key, paths = "publishWhen", [*published]
            only = tree_of(paths, "keep")
        return cls(redacts, before, out, only, {key: sorted(map(format_path, paths))})

    def describe(self) -> dict[str, list[str]]:
        """The key of the config and its paths, for the config hash and the description."""
        return dict(self._described)

    def of_value(self, value: bytes) -> bytes:
        """The hash of what counts of these bytes; `UNKNOWN` where they cannot be decoded."""
        try:
            whole = split_map(value)
            ends = split_map(whole["metadata"]).get("deletionTimestamp")
            counted = _encode([ends, _counted(Raw(value), self._ignored, self._published)])
        except (*BROKEN_JSON, KeyError):
            return UNKNOWN
        return blake2b(counted, digest_size=HASH_BYTES, key=_KEY).digest()


def _counted(value: Raw, ignored: Node | None, published: Node | None) -> object:
    """What is left of `value` without what is `ignored`, and of what is `published` alone; a None
    of either says nothing. None where nothing is left: a map that a path enters is then as good as
    absent, for servers omit empty ones. Raises: BROKEN_JSON."""
    if published is not None and published.do == "keep":
        published = None
    if ignored is None and published is None:
        return value
    first = memoryview(value)[0]
    if first == _MAP:
        counted: dict[str, object] = {}
        for key, each in split_map(value).items():
            left = ignored and ignored.keys.get(key, ignored.other)
            asked = published and published.keys.get(key, published.other)
            if (left is None or left.do != "drop") and (published is None or asked is not None):
                part = _counted(each, left, asked)
                if part is not None:
                    counted[key] = part
        return counted or None
    if first == _LIST:
        left, asked = ignored and ignored.items, published and published.items
        if (left is not None and left.do == "drop") or (published is not None and asked is None):
            return None
        if left is None and asked is None:
            return value
        parts = [_counted(each, left, asked) for each in split_list(value)]
        if published is not None:
            return [part for part in parts if part is not None] or None
        return [{} if part is None else part for part in parts]
    return value if published is None else None
