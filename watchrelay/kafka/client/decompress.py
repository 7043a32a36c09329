"""Decompression up to a bound.

aiokafka 0.14 has no bound: a crafted batch of 12 KB becomes gigabytes in one step.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Callable
from functools import partial
from typing import Final

import cramjam

UNPACKED_BYTES_MAX: Final = 128 * 1024 * 1024
"""Of one batch. A relay packs up to 512 KiB into a batch, or one record that is larger, and takes
no object over 32 MiB: four times that. A tool that copies the topics may pack more into a batch;
compressed it still has to stay under `max.message.bytes`."""

_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
NAMES: Final = {_GZIP: "gzip", _SNAPPY: "snappy", _LZ4: "lz4", _ZSTD: "zstd"}
_STEP_BYTES = 1024 * 1024
_XERIAL = b"\x82SNAPPY\x00"
"""Before blocks of snappy that each carry their length. Source: snappy-java, `SnappyCodec`, which
the Java client of Kafka writes."""
_XERIAL_BYTES = 16
_SKIPPED, _SKIPPED_MASK = 0x184D2A50, 0xFFFFFFF0
"""Frames with what is no data, of lz4 and of zstd."""
_ZSTD_MAGIC, _ZSTD_BLOCK_BYTES = 0xFD2FB528, 128 * 1024
_ZSTD_REPEATED, _ZSTD_COMPRESSED, _ZSTD_RESERVED = 1, 2, 3
_LZ4_MAGIC = 0x184D2204
_LZ4_GROWS = 255
"""A byte of a block makes at most so many. Source: LZ4 block format, "Compression ratio"."""
_LZ4_PLAIN = 0x80000000


class TooLarge(Exception):
    """The result would exceed the limit."""


class Broken(Exception):
    """The data is not valid for its codec."""


class Unpacker:
    """Decompresses record batches up to `limit_bytes` each."""

    def __init__(self, limit_bytes: int = UNPACKED_BYTES_MAX) -> None:
        self.limit_bytes = limit_bytes
        self._ways: dict[int, Callable[[memoryview], bytes | memoryview]] = {
            _GZIP: self._from_gzip,
            _SNAPPY: self._from_snappy,
            _LZ4: partial(self._into, _lz4_most, cramjam.lz4.decompress_into),
            _ZSTD: partial(self._into, _zstd_most, cramjam.zstd.decompress_into),
        }

    def unpack(self, codec: int, data: memoryview) -> bytes | memoryview:
        """`data` decompressed; no more than the limit, and a step, is in memory at any time.

        Raises: TooLarge, Broken.
        """
        way = self._ways.get(codec)
        if way is None:
            raise Broken(f"codec {codec} is not known")
        try:
            return way(data)
        except (
            cramjam.DecompressionError,
            OSError,
            EOFError,
            zlib.error,
            struct.error,
            IndexError,
        ) as error:
            raise Broken(" ".join(str(error).split())) from error

    def _from_gzip(self, data: memoryview) -> bytes:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            return self._drained(stream.read)

    def _drained(self, read: Callable[[int], bytes]) -> bytes:
        parts, left = list[bytes](), self.limit_bytes
        while part := read(_STEP_BYTES):
            left -= len(part)
            if left < 0:
                raise TooLarge
            parts.append(part)
        return b"".join(parts)

    def _from_snappy(self, data: memoryview) -> bytes:
        if data[: len(_XERIAL)] != _XERIAL:
            return self._snappy_block(data, self.limit_bytes)
        parts, left, at = list[bytes](), self.limit_bytes, _XERIAL_BYTES
        while at < len(data):
            (size,) = struct.unpack_from(">i", data, at)
            if not 0 < size <= len(data) - at - 4:
                raise Broken(f"a block of {size} bytes")
            parts.append(self._snappy_block(data[at + 4 : at + 4 + size], left))
            left -= len(parts[-1])
            at += 4 + size
        return b"".join(parts)

    @staticmethod
    def _snappy_block(data: memoryview, limit_bytes: int) -> bytes:
        """Source: snappy's format description: a block begins with its size, and what does not
        become just that is refused."""
        if cramjam.snappy.decompress_raw_len(data) > limit_bytes:
            raise TooLarge
        return bytes(cramjam.snappy.decompress_raw(data))

    def _into(
        self,
        room_of: Callable[[memoryview], int],
        unpack: Callable[[memoryview, bytearray], int],
        data: memoryview,
    ) -> memoryview:
        """Into room for as much as it can come to, or as may be: nothing is written behind it."""
        most = room_of(data)
        room = bytearray(min(most, self.limit_bytes))
        try:
            size = unpack(data, room)
        except cramjam.DecompressionError as error:
            if most > self.limit_bytes:
                raise TooLarge from error
            raise
        return memoryview(room)[:size]


def _zstd_most(data: memoryview) -> int:
    """What frames of zstd can come to: their declared size, else by the heads of their blocks
    (RFC 8878, 3.1).

    Raises: Broken, struct.error, IndexError.
    """
    at = most = 0
    while at < len(data):
        (magic,) = struct.unpack_from("<I", data, at)
        if magic & _SKIPPED_MASK == _SKIPPED:
            at += 8 + struct.unpack_from("<I", data, at + 4)[0]
            continue
        if magic != _ZSTD_MAGIC:
            raise Broken("not a frame of zstd")
        flags = data[at + 4]
        single = flags >> 5 & 1
        at += 5 + (not single) + (0, 1, 2, 4)[flags & 3]
        size_bytes = (single, 2, 4, 8)[flags >> 6]
        declared = int.from_bytes(data[at : at + size_bytes], "little") + (
            256 if size_bytes == 2 else 0
        )
        at += size_bytes
        last = blocks = 0
        while not last:
            head = (
                int.from_bytes(data[at : at + 3], "little")
                if at + 3 <= len(data)
                else _ZSTD_RESERVED << 1
            )
            last, kind, size = head & 1, head >> 1 & 3, head >> 3
            if kind == _ZSTD_RESERVED:
                raise Broken("a frame of zstd that is cut off, or has a block of no kind")
            blocks += _ZSTD_BLOCK_BYTES if kind == _ZSTD_COMPRESSED else size
            at += 3 + (1 if kind == _ZSTD_REPEATED else size)
        most += declared if size_bytes else blocks
        at += 4 if flags & 4 else 0
    return most


def _lz4_most(data: memoryview) -> int:
    """What frames of LZ4 can come to at most, by the heads of their blocks. Source: LZ4 frame
    format 1.6. Raises: Broken, struct.error."""
    at = most = 0
    while at < len(data):
        (magic,) = struct.unpack_from("<I", data, at)
        if magic & _SKIPPED_MASK == _SKIPPED:
            at += 8 + struct.unpack_from("<I", data, at + 4)[0]
            continue
        flags, sizes = struct.unpack_from("BB", data, at + 4)
        if magic != _LZ4_MAGIC or sizes >> 4 & 7 < 4:
            raise Broken("not a frame of lz4")
        block_bytes = 1 << (8 + 2 * (sizes >> 4 & 7))
        at += 7 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
        while head := struct.unpack_from("<I", data, at)[0]:
            size = head & ~_LZ4_PLAIN
            most += min(block_bytes, size if head & _LZ4_PLAIN else size * _LZ4_GROWS)
            at += 4 + size + (4 if flags & 16 else 0)
        at += 4 + (4 if flags & 4 else 0)
    return most
