"""Turns one object's raw JSON into an `ObjectFrame`, split into fields: every object of a list, and
those of a watch that `TypedLines` does not take.

The values of a frame are views into the buffer that was received: copy what is kept, or the whole
buffer stays in memory.
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec
from msgspec import Raw

from watchrelay.core.text import BROKEN_JSON
from watchrelay.model.frames import FrameType, ObjectFrame
from watchrelay.model.resources import Resource

Fields = dict[str, Raw]

_fields: msgspec.json.Decoder[Fields] = msgspec.json.Decoder(Fields)
_text: msgspec.json.Decoder[str | None] = msgspec.json.Decoder(str | None)
decode_fields = _fields.decode
decode_text = _text.decode

DEPTH_MAX: Final = 500
"""Levels of maps and lists in one object, its own map counted. Readers of any language must decode
what is published: Python and Jackson stop at about 1000 levels, less what encloses them."""

_STRING: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+'
"""One without an end goes up to the end of the text: else each escaped quote in it would be tried
as the begin of another one, in quadratic time."""
_TOKEN: Final = re.compile(_STRING + rb"|[\[\]{},:]", re.DOTALL)
_STRINGS: Final = re.compile(_STRING, re.DOTALL)
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_OUTLINE_BYTES_MAX: Final = 4 << 20
_OUTLINE_TOKENS_MAX: Final = 1 << 16
"""Of an object whose name is looked for: some 20 ms."""
_TOKENS_AT_ONCE: Final = 1 << 14

_TWICE: Final = "a JSON object has the same key twice"
TOO_DEEP: Final = f"it is nested too deeply: more than {DEPTH_MAX} levels"


class Odd(ValueError):
    """Something does not follow the protocol. The message never quotes the object."""


def compact_size(fields: Fields) -> int:
    """Length in bytes of `fields` written as a JSON object without whitespace: shorter than what
    came if it had a duplicate key."""
    return sum(map(len, fields)) + sum(map(len, fields.values())) + 4 * len(fields) + 1


def refuse_too_deep(data: bytes, levels: int = DEPTH_MAX) -> None:
    """Pass if the JSON in `data` is not nested deeper than `levels`. Raises: Odd."""
    if too_deep(data, levels):
        raise Odd(TOO_DEEP)


def too_deep(data: bytes, levels: int = DEPTH_MAX) -> bool:
    """Whether the JSON in `data` is nested deeper than `levels`. Slow only where it closes more
    maps and lists than that."""
    # To replace and compare lengths counts in half the time that `count` takes (1.6 us for 5 KB).
    if len(data) - len(data.replace(b"}", b"").replace(b"]", b"")) <= levels:
        return False
    depth = 0
    for bracket in _STRINGS.sub(b"", data).translate(None, _NO_BRACKETS):
        if bracket in b"{[":
            depth += 1
            if depth > levels:
                return True
        else:
            depth -= 1
    return False


def outline(data: bytes) -> dict[str, bytes]:
    """The members of a JSON object, values unchanged, found by brackets and quotes alone, even
    where no decoder accepts them.

    A duplicate key has no value; anything but an object has no members. Of an object that is very
    large the end is not looked at: the last value that is found may be cut. Slow.
    """
    members: dict[str, bytes] = {}
    key: str | None = None
    string, depth, begin = b"", 0, 0
    tokens = _TOKEN.finditer(data, 0, _OUTLINE_BYTES_MAX)
    for token in islice(tokens, _OUTLINE_TOKENS_MAX):
        sign = token[0]
        if sign in {b"}", b"]"}:
            depth -= 1
        if key is not None and ((depth == 1 and sign == b",") or depth == 0):
            members[key] = b"" if key in members else data[begin : token.start()].strip()
            key = None
        if depth == 0 and sign != b"{":
            return members
        if sign in {b"{", b"["}:
            depth += 1
        elif depth == 1 and sign == b":" and key is None:
            try:
                key = decode_text(string)
            except BROKEN_JSON:
                key = None
            begin = token.end()
        string = sign
    if key is not None and (len(data) > _OUTLINE_BYTES_MAX or next(tokens, None)):
        members[key] = b"" if key in members else data[begin:]
    return members


def split_items(rest: bytes) -> Iterator[bytes | int | None]:
    """Each item of an array after its `[`, then where its `]` is; ends without that place where the
    array has no end, or no comma between two items. None now and then within a large item.

    By brackets and quotes alone, so that an item may be nested without limit or hold what is no
    JSON. Slow.
    """
    depth = begin = count = 0
    last: int | None = None
    """The end of a map or list in the item that is looked at."""
    for number, token in enumerate(_TOKEN.finditer(rest)):
        at, sign = token.start(), token[0]
        if number % _TOKENS_AT_ONCE == 0:
            yield None
        if sign in {b"{", b"["}:
            if depth == 0 and (last is not None or rest[begin:at].strip()):
                return
            depth += 1
        elif sign in {b"}", b"]"}:
            depth -= 1
            last = token.end()
        if depth < 0 or (depth == 0 and sign == b","):
            item = rest[begin:at].strip()
            if item or count or depth == 0:
                yield item
            if depth < 0:
                yield at
                return
            begin, last, count = token.end(), None, count + 1


def about(data: bytes) -> tuple[str, str] | None:
    """Namespace and name of an object that cannot be decoded; None where they cannot be read
    either."""
    metadata = outline(outline(data).get("metadata", b""))
    try:
        name = decode_text(metadata["name"])
        namespace = decode_text(metadata.get("namespace", b"null"))
    except (KeyError, *BROKEN_JSON):
        return None
    return (namespace or "", name) if name else None


class ObjectReader:
    """Makes frames of objects of one resource.

    `fields` of a frame begins with apiVersion and kind, the rest follows as it came. A list of a
    built-in resource leaves both out of its items; those of the resource fill them in. With
    `metadata_only` both are always the resource's own, and of the object's other fields only
    `metadata` is kept, whether the server trimmed or not. Source: docs/watch-facts.md 1.3, 9.1,
    9.2.
    """

    def __init__(self, resource: Resource, *, metadata_only: bool = False) -> None:
        self._metadata_only = metadata_only
        kind = json.dumps(resource.kind, ensure_ascii=False).encode()
        api_version = json.dumps(resource.api_version, ensure_ascii=False).encode()
        self._kind, self._api_version = Raw(kind), Raw(api_version)

    def read(self, verb: FrameType, fields: Fields) -> ObjectFrame:
        """The frame of an object.

        Raises: Odd, or one of `BROKEN_JSON`, if the object has no usable metadata.
        """
        raw = fields.get("metadata")
        if raw is None:
            raise Odd("the object has no metadata")
        metadata = decode_fields(raw)
        if compact_size(metadata) != len(raw):
            refuse_duplicates(bytes(raw), metadata)
        try:
            name = decode_text(metadata["name"])
            version = decode_text(metadata["resourceVersion"])
        except KeyError as error:
            raise Odd(f"the object has no metadata.{error.args[0]}") from None
        uid = metadata.get("uid")
        namespace = metadata.get("namespace")
        within = "" if namespace is None else decode_text(namespace) or ""
        if not name or not version:
            what = "resourceVersion" if name else "name"
            raise Odd(f"the object's metadata.{what} is empty")
        if "/" in name or "/" in within:
            raise Odd("the object's namespace or name contains a slash")
        kept = {"apiVersion": self._api_version, "kind": self._kind}
        if self._metadata_only:
            kept["metadata"] = raw
        else:
            kept.update(fields)
        return ObjectFrame(
            verb,
            within,
            name,
            "" if uid is None else decode_text(uid) or "",
            version,
            kept,
            metadata,
            compact_size(fields),
        )

    def read_deleted(self, line: bytes) -> ObjectFrame | None:
        """The frame of a deletion whose line is nested too deeply: nothing but its metadata counts.
        None for any other line."""
        parts = outline(line)
        if parts.get("type") != b'"DELETED"':
            return None
        metadata = outline(parts.get("object", b"")).get("metadata", b"")
        try:
            return self.read("DELETED", {"metadata": Raw(metadata)})
        except (*BROKEN_JSON, Odd):
            return None


def refuse_duplicates(data: bytes, fields: Fields) -> bool:
    """Pass if `data`, of which `fields` is the top level, has no duplicate key: which one counts is
    undefined.

    Returns: Whether that holds for all that is in it too.

    Raises: Odd. Slow (the whole tree is built) where the length does not prove it: asked only if
    `compact_size` is not the length.
    """
    first = next(iter(fields), "")
    blanks = 2 * len(fields) - 1  # as `json.dumps` of Python writes by default
    spaced = data.startswith(b'": ', 2 + len(first)) and compact_size(fields) + blanks == len(data)
    if spaced:
        return False
    if fields and data.isascii():
        # an escape of six bytes is one character, of a key too
        blanks = len(data) - len(data.translate(None, b" \t\r\n\\"))
        if len(data) - compact_size(fields) > 6 * blanks:
            raise Odd(_TWICE)
    collects = gc.isenabled()
    gc.disable()  # to look through the tree again and again while it grows takes most of the time
    try:
        # Only keys are looked at: a number stays text, for Python makes no int of more than
        # 4300 digits.
        json.loads(data, object_pairs_hook=_unique, parse_int=str, parse_float=str)
    finally:
        if collects:
            gc.enable()
    return True


def _unique(pairs: list[tuple[str, object]]) -> None:
    if len({key for key, _ in pairs}) != len(pairs):
        raise Odd(_TWICE)


def why(error: Exception) -> str:
    """What is wrong, in words that quote nothing of the object."""
    if isinstance(error, Odd):
        return str(error)
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    if isinstance(error, RecursionError):
        return TOO_DEEP
    if isinstance(error, msgspec.ValidationError):
        return "it has not the shape of a Kubernetes object"
    return "it is not JSON"
