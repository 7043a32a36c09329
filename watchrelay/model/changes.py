"""What changed in the state of one stream: made by `store/objects.py`, published by `publish/`."""

from __future__ import annotations

import msgspec

_HASH_BYTES = 8
_LENGTH_BYTES = 4


def length_prefixed(uid: str) -> bytes:
    """A uid as it is in the block of an entry."""
    encoded = uid.encode()
    return len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded


class Entry(msgspec.Struct, gc=False):
    """The latest known state of one object, written by the store and by log recovery alone;
    100,000 of these must fit in 80 MB.

    `block`: 8 bytes of ce_wrhash, 4 bytes of the uid's length, both little-endian; the uid in
    UTF-8; the published bytes, compressed by `ObjectCompressor`. One object in place of three saves
    110 bytes. `position` is that of its record while the log is recovered, else 0.
    """

    resource_version: str
    partition: int
    block: bytes
    position: int = 0

    @classmethod
    def of(
        cls,
        uid: str,
        resource_version: str,
        partition: int,
        *,
        value_hash: int = 0,
        packed: bytes = b"",
        position: int = 0,
    ) -> Entry:
        """Args: `packed`: the published bytes, compressed."""
        tail = length_prefixed(uid) + packed
        return cls.of_tail(resource_version, partition, value_hash, tail, position)

    @classmethod
    def of_tail(
        cls, resource_version: str, partition: int, value_hash: int, tail: bytes, position: int = 0
    ) -> Entry:
        """Args: `tail`: the block without the hash."""
        block = value_hash.to_bytes(_HASH_BYTES, "little") + tail
        return cls(resource_version, partition, block, position)

    @property
    def hash(self) -> int:
        """Its ce_wrhash."""
        return int.from_bytes(self.block[:_HASH_BYTES], "little")

    @property
    def uid(self) -> str:
        block, start = self.block, _HASH_BYTES + _LENGTH_BYTES
        return block[start : start + int.from_bytes(block[_HASH_BYTES:start], "little")].decode()

    @property
    def packed(self) -> bytes:
        """The published bytes, compressed."""
        return self.block[self._packed_at :]

    @packed.setter
    def packed(self, packed: bytes) -> None:
        self.block = self.block[: self._packed_at] + packed

    @property
    def _packed_at(self) -> int:
        length = self.block[_HASH_BYTES : _HASH_BYTES + _LENGTH_BYTES]
        return _HASH_BYTES + _LENGTH_BYTES + int.from_bytes(length, "little")

    def has_uid(self, prefixed: bytes) -> bool:
        """Args: `prefixed`: a uid, `length_prefixed`."""
        return self.block.startswith(prefixed, _HASH_BYTES)

    def has_uid_of(self, other: Entry) -> bool:
        """Whether both are of one object; cheaper than to compare their uids."""
        start, stop = _HASH_BYTES, self._packed_at
        return self.block[start:stop] == other.block[start:stop]

    def has_tail(self, tail: bytes) -> bool:
        """Whether uid and published bytes are these; `tail` as of `of_tail`."""
        block = self.block
        return block.endswith(tail) and len(block) == _HASH_BYTES + len(tail)


class Upserted(msgspec.Struct, gc=False):
    """The object is new or has changed. `uid` and `hash`: copies, so that the writer need
    not decode `entry`. `replaced`: the published state before it, None without one. `value`: the
    published bytes; None: unpack `entry.packed`."""

    key: bytes
    entry: Entry
    uid: str
    hash: int
    replaced: Entry | None
    value: bytes | None


class Removed(msgspec.Struct, gc=False):
    """The object was deleted. `entry` is its last known state; `resource_version` the value of
    ce_wrrv (docs/record-contract.md, section 3)."""

    key: bytes
    entry: Entry
    resource_version: str


ObjectChange = Upserted | Removed
