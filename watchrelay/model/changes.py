"""What changed in the state of one stream: made by `store/objects.py`, published by `publish/`."""

from __future__ import annotations

import msgspec


class Entry(msgspec.Struct, gc=False):
    """The latest known state of one object, written by the store and by log recovery alone;
    100,000 of these must fit in 100 MB.

    `hash` is ce_wrhash; `packed` the published bytes, compressed by `ObjectCompressor`;
    `position` that of its record while the log is recovered, else 0."""

    uid: str
    resource_version: str
    hash: int
    partition: int
    packed: bytes
    position: int = 0


class Upserted(msgspec.Struct, gc=False):
    """The object is new or has changed. `replaced_hash`: that of the published state before it,
    None without one. `value`: the published bytes; None: unpack `entry.packed`."""

    key: bytes
    entry: Entry
    replaced_hash: int | None
    value: bytes | None


class Removed(msgspec.Struct, gc=False):
    """The object was deleted. `entry` is its last known state; `resource_version` the value of
    ce_wrrv (docs/record-contract.md, section 3)."""

    key: bytes
    entry: Entry
    resource_version: str


ObjectChange = Upserted | Removed
