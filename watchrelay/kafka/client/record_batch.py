"""Packs records into record batches of format version 2, compressed with zstd.

The size of a batch is known before it is sent, and its bytes stay the same however often it is
sent. aiokafka's builder takes half as long again (level 3, checksum over the uncompressed bytes,
each header name encoded each time) and knows the compressed size only after it has handed the batch
over.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

import zstandard
from aiokafka.record.util import calc_crc32c

from watchrelay.contract.headers import HeaderBlock, varint
from watchrelay.contract.wire import WireRecord

OVERHEAD_BYTES = 61
"""Header of a record batch. Source: Kafka protocol guide, "Record Batch"."""

_ZSTD, _TRANSACTIONAL = 4, 16
_MAGIC = 2
_NO_LEADER_EPOCH = -1
_BEFORE_CHECKED = struct.Struct(">qiibI")
"""The checksum, its last field, covers everything after it."""
_CHECKED = struct.Struct(">hiqqqhii")
_LEVEL = 1
"""On batches of pods level 1 is both faster and smaller than level 3 (365 against 439 bytes per
record of 3.7 KB)."""


class _Varints(dict[int, bytes]):
    """Number -> its varint, made on first use: lengths and places repeat, and a look-up costs a
    tenth of the sum."""

    def __missing__(self, number: int) -> bytes:
        encoded = varint(number)
        if number < _KEPT_BELOW:
            self[number] = encoded
        return encoded


_KEPT_BELOW = 1 << 15
_BESIDE_BYTES = 4096
"""More than key and headers of a record have, but for one that somebody has made large."""
_NULL = b"\x01"
_PLAIN = b"\x00\x00"
"""No attributes, and no time after the batch's: all records of a batch carry the time at which it
was packed."""
_VARINTS = _Varints()


def _prefix(records: Sequence[WireRecord], most: int, batch_bytes: int) -> tuple[int, list[bytes]]:
    """How many of the first records, at least one and at most `most`, have `batch_bytes` together,
    uncompressed; and their parts.

    A record is not put together by itself: each part is copied once, when the batch is joined, and
    no block of 4 KB per record is asked of the allocator and given back. That was a sixth of what
    packing a pod cost.
    """
    count, size, parts, varints = 0, OVERHEAD_BYTES, list[bytes](), _VARINTS
    for key, value, headers in records:
        block = headers.encoded if type(headers) is HeaderBlock else HeaderBlock.of(headers).encoded
        if value is None:
            value_length, value = _NULL, b""
        else:
            value_length = varints[len(value)]
        key_length, place = varints[len(key)], varints[count]
        length = varints[
            beside := len(_PLAIN)
            + len(place)
            + len(key_length)
            + len(key)
            + len(value_length)
            + len(value)
            + len(block)
        ]
        size += len(length) + beside
        if parts and (size > batch_bytes or count == most):
            break
        count += 1
        parts += (length, _PLAIN, place, key_length, key, value_length, value, block)
    return count, parts


class Limits(Protocol):
    """Of the bytes of a batch: `batch_bytes` before compression, `message_bytes` after it."""

    batch_bytes: int
    message_bytes: int


class PackedBatch:
    """A batch of `count` records, from when it is packed until it is answered. `raw_bytes` is
    their size before compression, `size` that of the whole, which Kafka compares with
    `max.message.bytes`.

    `data`: its bytes under the producer that sends it, the same however often it is sent; b"" until
    it is stamped. `packed_s`: when it was packed (loop time). `unresolved`: an attempt may be in
    the log.
    """

    __slots__ = (
        "_attributes",
        "_body",
        "_packed_ms",
        "count",
        "data",
        "packed_s",
        "raw_bytes",
        "sequence",
        "size",
        "tries",
        "unresolved",
    )

    def __init__(
        self, body: bytes, count: int, *, raw_bytes: int, packed_ms: int, compressed: bool
    ) -> None:
        self.count, self.raw_bytes, self.size = count, raw_bytes, OVERHEAD_BYTES + len(body)
        self._body, self._packed_ms = body, packed_ms
        self._attributes = _ZSTD if compressed else 0
        self.data = b""
        self.packed_s = 0.0
        self.sequence = self.tries = 0
        self.unresolved = False

    def stamp(
        self, producer_id: int, epoch: int, sequence: int, *, transactional: bool = False
    ) -> None:
        """Make `data`; `sequence` is that of the first record."""
        self.sequence, count, at = sequence, self.count, self._packed_ms
        attributes = self._attributes | (_TRANSACTIONAL if transactional else 0)
        checked = (
            _CHECKED.pack(attributes, count - 1, at, at, producer_id, epoch, sequence, count)
            + self._body
        )
        length = len(checked) + _BEFORE_CHECKED.size - 12
        self.data = (
            _BEFORE_CHECKED.pack(0, length, _NO_LEADER_EPOCH, _MAGIC, calc_crc32c(checked))
            + checked
        )


class Packer:
    """Packs records. One per sink: it owns the compressor's working memory."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL)

    def pack(
        self,
        records: Sequence[WireRecord],
        *,
        most: int,
        limits: Limits,
        now_ms: int,
    ) -> PackedBatch | int:
        """The first records as one batch: at most `most`, and of the sizes in `limits`. A record
        over `batch_bytes` gets a batch of its own.

        Returns: the batch; or the index of a record that is over `message_bytes` by itself,
        compressed. The first of those that are much over it is found before anything is packed.
        """
        batch_bytes, limit_bytes = limits.batch_bytes, limits.message_bytes
        packed = self._packed(records, most, batch_bytes, now_ms)
        if packed.count < len(records) or packed.size > limit_bytes:
            for index, record in enumerate(records):
                if len(record.value or b"") + _BESIDE_BYTES > limit_bytes:
                    alone = self._packed((record,), 1, batch_bytes, now_ms)
                    if alone.size > limit_bytes:
                        return index
        while packed.size > limit_bytes:
            if packed.count == 1:
                return 0
            packed = self._packed(records, packed.count // 2, batch_bytes, now_ms)
        return packed

    def _packed(
        self, records: Sequence[WireRecord], most: int, batch_bytes: int, now_ms: int
    ) -> PackedBatch:
        count, parts = _prefix(records, most, batch_bytes)
        raw = b"".join(parts)
        body = self._compressor.compress(raw)
        compressed = len(body) < len(raw)
        return PackedBatch(
            body if compressed else raw,
            count,
            raw_bytes=len(raw),
            packed_ms=now_ms,
            compressed=compressed,
        )
