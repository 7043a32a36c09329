"""What changed in the state of one stream: made by `store/objects.py`, published by `publish/`."""

from __future__ import annotations

import msgspec

HASH_BYTES = 8
_LENGTH_BYTES = 4


def with_length(uid: str) -> bytes:
    """A uid as it is in the content of an entry, behind its length."""
    encoded = uid.encode()
    return len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded


class Entry(msgspec.Struct, gc=False):
    """The latest known state of one object, written by the store and by log recovery alone;
    100,000 of these must fit in 100 MB.

    `content` is its ce_wrhash, its uid `with_length`, and its published bytes, compressed by
    `ObjectCompressor`: apart they would take 110 bytes more. `position` is that of its record while
    the log is recovered, else 0.
    """

    resource_version: str
    partition: int
    content: bytes
    position: int = 0

    @classmethod
    def of(
        cls,
        uid: str,
        resource_version: str,
        value_hash: int,
        partition: int,
        packed: bytes = b"",
        position: int = 0,
    ) -> Entry:
        content = value_hash.to_bytes(HASH_BYTES, "little") + with_length(uid) + packed
        return cls(resource_version, partition, content, position)

    @property
    def hash(self) -> int:
        return int.from_bytes(self.content[:HASH_BYTES], "little")

    @property
    def uid(self) -> str:
        return self.content[HASH_BYTES + _LENGTH_BYTES : self._packed_at].decode()

    @property
    def packed(self) -> bytes:
        """The published bytes, compressed."""
        return self.content[self._packed_at :]

    @packed.setter
    def packed(self, packed: bytes) -> None:
        self.content = self.content[: self._packed_at] + packed

    @property
    def _packed_at(self) -> int:
        length = self.content[HASH_BYTES : HASH_BYTES + _LENGTH_BYTES]
        return HASH_BYTES + _LENGTH_BYTES + int.from_bytes(length, "little")

    def is_of(self, identity: bytes) -> bool:
        """Whether its uid is that of `with_length`."""
        return self.content.startswith(identity, HASH_BYTES)

    def differs(self, rest: bytes) -> bool:
        """Whether uid or published bytes are others; `rest`: what follows the hash in `content`."""
        content = self.content
        return not (content.endswith(rest) and len(content) == HASH_BYTES + len(rest))


class Upserted(msgspec.Struct, gc=False):
    """The object is new or has changed. `uid` and `hash` are those of `entry`, at hand.
    `replaced_hash`: that of the published state before it, None without one. `value`: the published
    bytes; None: unpack `entry.packed`."""

    key: bytes
    entry: Entry
    uid: str
    hash: int
    replaced_hash: int | None
    value: bytes | None


class Removed(msgspec.Struct, gc=False):
    """The object was deleted. `entry` is its last known state; `resource_version` the value of
    ce_wrrv (docs/record-contract.md, section 3)."""

    key: bytes
    entry: Entry
    resource_version: str


ObjectChange = Upserted | Removed
