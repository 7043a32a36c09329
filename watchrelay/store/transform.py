"""Which part of an object is published: `drop` and `redact`, the defaults, and without the payload
of a Secret.

No object is decoded as a whole: only the maps that a path enters are split into keys and raw
values, one level at a time, so every value that no path names keeps its bytes (numbers that no
float can hold, the server's way of escaping).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Union

import msgspec
from msgspec import Raw

from watchrelay.core.text import BROKEN_JSON
from watchrelay.model.frames import ABSENT, ObjectFrame, TypedObject
from watchrelay.model.paths import (
    LAST_APPLIED,
    PROTECTED,
    Path,
    Wild,
    format_path,
    parse_path,
)
from watchrelay.model.resources import Resource

REDACTED: Final = Raw(b'"<redacted>"')

_LAST_APPLIED_MARK: Final = b"last-applied-configuration"
_ESCAPE: Final = b"\\"
_NULL: Final = b"null"
_MAP, _LIST = b"{["

# A subtree on its way out: raw as it came, or split one level for each level that a path entered.
_Value = Union[Raw, dict[str, "_Value"], list["_Value"]]  # noqa: UP007 - "|" takes no name that is not there yet

split_map = msgspec.json.Decoder(dict[str, Raw]).decode
split_list = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode
_encode_into = msgspec.json.Encoder().encode_into
_WRITING = bytearray()
"""Shared output buffer, grown to the largest object already; a new one would grow for each."""


_Do = Literal["enter", "keep", "redact", "drop"]


@dataclass(slots=True)
class Node:
    """What to do at one place: `keys` takes precedence over `other` (any other key); `items` is
    each item of a list. `sealed`: a map of secrets; any other value in its place is redacted whole.
    """

    do: _Do = "enter"
    keys: dict[str, Node] = field(default_factory=dict)
    other: Node | None = None
    items: Node | None = None
    sealed: bool = False


_KEEP: Final = Node("keep")


def _grow(steps: Path, do: _Do) -> Node:
    node = Node(do)
    for step in reversed(steps):
        if step is Wild.ITEM:
            node = Node(items=node)
        elif isinstance(step, Wild):
            node = Node(other=node)
        else:
            node = Node(keys={step: node})
    return node


def _merge(left: Node | None, right: Node | None) -> Node | None:
    """One tree that does what both do; drop takes precedence over redact, redact over enter."""
    if left is None or right is None:
        return left or right
    stronger: tuple[_Do, ...] = ("keep", "drop", "redact")
    for do in stronger:
        if do in {left.do, right.do}:
            return Node(do)
    keys: dict[str, Node] = {}
    for key in (*left.keys, *right.keys):
        merged = _merge(left.keys.get(key, left.other), right.keys.get(key, right.other))
        assert merged is not None, "a key of either tree is in their union"
        keys[key] = merged
    return Node(
        keys=keys,
        other=_merge(left.other, right.other),
        items=_merge(left.items, right.items),
        sealed=left.sealed or right.sealed,
    )


def tree_of(paths: Iterable[Path], do: _Do) -> Node:
    """The paths in one tree, with `do` at the end of each."""
    root = Node()
    for path in paths:
        root = _merge(root, _grow(path, do)) or root
    return root


def _tree(dropped: Iterable[Path], hidden: Iterable[Path], *, sealed: Iterable[str]) -> Node | None:
    """All paths in one tree; None when there are none."""
    root: Node | None = None
    for path in dropped:
        root = _merge(root, _grow(path, "drop"))
    for path in hidden:
        root = _merge(root, _grow(path, "redact"))
    for key in sealed:
        root = _merge(root, Node(keys={key: Node(other=Node("redact"), sealed=True)}))
    return None if root is None else _protect(root)


def _protect(root: Node) -> Node:
    """`root`, but for what every object needs: apiVersion and kind, and the identity within
    metadata."""
    metadata = root.keys.get("metadata", root.other)
    if metadata is None:
        return root
    if metadata.do != "enter":
        metadata = Node(other=Node(metadata.do))
    if metadata.other is not None:
        metadata = Node(keys=metadata.keys | dict.fromkeys(PROTECTED, _KEEP), other=metadata.other)
    named = {} if root.other is None else {"apiVersion": _KEEP, "kind": _KEEP}
    return Node(keys=root.keys | named | {"metadata": metadata}, other=root.other)


def _prune_map(values: dict[str, _Value], node: Node) -> None:
    known, other = node.keys, node.other
    for key in [key for key in known if key in values] if other is None else list(values):
        child = known.get(key, other)
        assert child is not None, "a key that is unknown was looked at for `other`"
        if child.do == "drop":
            del values[key]
        elif child.do != "keep":
            values[key] = _pruned(values[key], child)


def _pruned(value: _Value, node: Node) -> _Value:
    """What is left of `value`. A subtree that cannot be decoded is redacted whole."""
    if node.do == "redact":
        return REDACTED
    if isinstance(value, dict):
        _prune_map(value, node)
        return value
    assert isinstance(value, Raw), "a list is split only here"
    first = memoryview(value)[0]
    try:
        if first == _MAP and (node.keys or node.other is not None):
            split: dict[str, _Value] = split_map(value)  # type: ignore[assignment]  # dict is invariant; this one is ours
            _prune_map(split, node)
            return split
        if first == _LIST and node.items is not None and not node.sealed:
            items = split_list(value)
            return [] if node.items.do == "drop" else [_pruned(item, node.items) for item in items]
    except BROKEN_JSON:
        return REDACTED
    return REDACTED if node.sealed and bytes(value) != _NULL else value


def _may_hold_last_applied(annotations: bytes) -> bool:
    return _LAST_APPLIED_MARK in annotations or _ESCAPE in annotations  # keys may have escapes


def _without_last_applied(annotations: Raw) -> _Value:
    """`annotations` without kubectl's copy of the object."""
    held = bytes(annotations)
    if not _may_hold_last_applied(held):
        return annotations
    try:
        split: dict[str, _Value] = split_map(held)  # type: ignore[assignment]  # dict is invariant; this one is ours
    except BROKEN_JSON:
        return REDACTED
    return split if split.pop(LAST_APPLIED, None) is not None else annotations


@dataclass(frozen=True, slots=True)
class Transform:
    """Turns frames into published bytes; compiled once per stream, the same for lists and
    watches.

    `redacts`: some values are hidden, so a change may not show in the bytes, and every new
    resourceVersion is published.
    """

    redacts: bool
    _described: Mapping[str, object]
    _root: Node | None
    _drop_managed: bool
    _drop_last_applied: bool
    _metadata_only: bool
    _takes_typed: bool
    """Typed objects are encoded as they are: only managedFields and last-applied are left out."""
    _api_version: Raw
    _kind: Raw
    _begin: bytes
    """`{"apiVersion":...,"kind":...,`, the first bytes of what is published."""

    @classmethod
    def compile(
        cls,
        resource: Resource,
        *,
        drop: Iterable[str] = (),
        redact: Iterable[str] = (),
        keep_managed_fields: bool = False,
        keep_last_applied: bool = False,
        include_secret_data: bool = False,
        metadata_only: bool = False,
    ) -> Transform:
        """The transform of one stream.

        Raises:
            ValueError: One line, for a path that `parse_path` refuses.
        """
        guarded = (resource.group, resource.plural) == ("", "secrets") and not include_secret_data
        dropped, hidden = [parse_path(text) for text in drop], [parse_path(text) for text in redact]
        drop_last_applied = guarded or not keep_last_applied
        root = _tree(
            dropped,
            hidden,
            sealed=("data", "stringData") if guarded and not metadata_only else (),
        )
        api_version, kind = _encode(resource.api_version), _encode(resource.kind)
        return cls(
            redacts=bool(hidden) or (guarded and not metadata_only),
            _described={
                "drop": sorted(format_path(path) for path in dropped),
                "redact": sorted(format_path(path) for path in hidden),
                "managedFields": keep_managed_fields,
                "lastApplied": not drop_last_applied,
                "secretData": not guarded,
                "metadataOnly": metadata_only,
            },
            _root=root,
            _drop_managed=not keep_managed_fields,
            _drop_last_applied=drop_last_applied,
            _metadata_only=metadata_only,
            _takes_typed=root is None and not metadata_only,
            _api_version=Raw(api_version),
            _kind=Raw(kind),
            _begin=b'{"apiVersion":%b,"kind":%b,' % (api_version, kind),
        )

    @property
    def enters(self) -> bool:
        """Whether a path leads into values, so that they are decoded."""
        return self._root is not None

    def describe(self) -> dict[str, object]:
        """Everything that decides the published bytes, for the config hash."""
        return dict(self._described)

    def apply(self, frame: ObjectFrame) -> bytes:
        """The published bytes: apiVersion, kind, then the rest in the order it came. The frame
        stays as it is."""
        whole, split = frame.fields, frame.metadata
        if (typed := frame.typed) is not None:
            if self._takes_typed:
                return self._encoded(typed)
            whole = split_map(_encode(typed))
            split = split_map(whole["metadata"])
        metadata: dict[str, _Value] = {**split}
        if self._drop_managed:
            metadata.pop("managedFields", None)
        if self._drop_last_applied and (annotations := split.get("annotations")) is not None:
            metadata["annotations"] = _without_last_applied(annotations)
        if self._metadata_only:
            fields: dict[str, _Value] = {
                "apiVersion": self._api_version,
                "kind": self._kind,
                "metadata": metadata,
            }
        else:
            fields = {**whole}
            fields["metadata"] = metadata
            order = iter(fields)
            if next(order) != "apiVersion" or next(order, "") != "kind":
                named: dict[str, _Value] = {"apiVersion": self._api_version, "kind": self._kind}
                fields = {key: fields.get(key, value) for key, value in named.items()} | fields
        if self._root is not None:
            _prune_map(fields, self._root)
        _encode_into(fields, _WRITING)
        return bytes(_WRITING)

    def _encoded(self, typed: TypedObject) -> bytes:
        """The published bytes of an object that no path enters."""
        metadata = typed.metadata
        annotations, managed = metadata.annotations, metadata.managed_fields
        if self._drop_last_applied and _may_hold_last_applied(bytes(annotations)):
            metadata.annotations = Raw(_encode(_without_last_applied(annotations)))
        if self._drop_managed:
            metadata.managed_fields = ABSENT
        try:
            _encode_into(typed, _WRITING)
        finally:
            metadata.annotations, metadata.managed_fields = annotations, managed
        # kind and apiVersion change places: those of the resource (`TypedLines`), so as long
        _WRITING[: len(self._begin)] = self._begin
        return bytes(_WRITING)
