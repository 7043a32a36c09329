"""Decompression in pieces, up to a bound.

aiokafka 0.14 unpacks a batch in one step and has no bound: a crafted batch of 12 KB becomes
gigabytes.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from typing import Final

import cramjam

STATE_BYTES_MAX: Final = 128 * 1024 * 1024
"""Of one batch of a state topic. A relay packs up to 512 KiB into a batch, or one record that is
larger. A tool that copies the topics may pack more into a batch; compressed it still has to stay
under `max.message.bytes`."""
PIECE_BYTES: Final = 256 * 1024
WHOLE_BYTES_MAX: Final = 40 * 1024 * 1024
"""Of one record, and of what a codec unpacks in one step only. A relay takes no object over 32 MiB,
and no format contains it twice."""

_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
NAMES: Final = {_GZIP: "gzip", _SNAPPY: "snappy", _LZ4: "lz4", _ZSTD: "zstd"}
_XERIAL = b"\x82SNAPPY\x00"
"""Before blocks of snappy that each carry their length. Source: snappy-java, `SnappyCodec`, which
the Java client of Kafka writes."""
_XERIAL_BYTES = 16
_SKIPPED, _SKIPPED_MASK = 0x184D2A50, 0xFFFFFFF0
"""Frames of lz4 with what is no data."""
_LZ4_MAGIC, _LZ4_PLAIN = 0x184D2204, 0x80000000
_LZ4_GROWS = 255
"""A byte of a block makes at most this number. Source: LZ4 block format, "Compression ratio"."""
_LZ4_ALONE = 0x20
"""The blocks of a frame are compressed without those before. Java clients and brokers take no
others."""
_ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
"""Of levels up to 19. Levels above it have up to 128 MiB, of which memory holds what has content.
Source: RFC 8878, section 3.1.1.1.2."""
_ZSTD_WINDOW_BYTES_MAX = 128 * 1024 * 1024
_FED_BYTES = 16 * 1024
_BLOCKS_MAX = 50_000
"""Of one batch, pieces included: those of a batch of the largest size come to 4,096 as the Java
client writes them, and each takes time, even if it is empty."""
_VARINT_MAX = 10
_CUT = "a record that ends after its batch"


class TooLarge(Exception):
    """The result would exceed this number of bytes."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"more than {limit_bytes:,} bytes")
        self.limit_bytes = limit_bytes


class Broken(Exception):
    """The data is not valid for its codec, or ends too early."""


class Misshapen(Exception):
    """A record is not as it should be, going on from "a record that"."""


_INVALID = (
    cramjam.DecompressionError,
    OSError,
    zlib.error,
    struct.error,
    IndexError,
)


class Unpacked:
    """The records of a batch as bytes, decompressed as they are read: besides what is read, one
    piece of it is in memory. Every method raises TooLarge where more than `limit_bytes` were
    unpacked, and Broken where the data is not valid for its codec."""

    def __init__(self, codec: int, data: memoryview, limit_bytes: int) -> None:
        """Unpack `data` by the codec's number in Kafka, 0 for none."""
        self._limit_bytes = limit_bytes
        self._pieces = _pieces(codec, data, limit_bytes)
        self._piece: bytes | memoryview = b""
        self._at = self._before = self._count = 0
        """The place in the piece, the bytes before the piece, the pieces so far."""

    @property
    def position(self) -> int:
        """How many bytes were read."""
        return self._before + self._at

    def _advance(self) -> bool:
        """Go on to the next piece; whether there is one."""
        self._before += len(self._piece)
        self._piece, self._at = b"", 0
        try:
            for piece in self._pieces:
                self._count += 1
                if self._count > _BLOCKS_MAX:
                    raise Broken(f"it has more than {_BLOCKS_MAX:,} blocks")
                if self._before + len(piece) > self._limit_bytes:
                    raise TooLarge(self._limit_bytes)
                if piece:
                    self._piece = piece
                    return True
        except _INVALID as error:
            raise Broken(" ".join(str(error).split())) from error
        return False

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer at the end."""
        stop = self._at + size
        if stop <= len(self._piece):
            start, self._at = self._at, stop
            return bytes(self._piece[start:stop])
        whole = io.BytesIO()  # its value is no copy
        while size:
            if self._at == len(self._piece) and not self._advance():
                break
            part = self._piece[self._at : self._at + size]
            whole.write(part)
            self._at += len(part)
            size -= len(part)
        return whole.getvalue()

    def exactly(self, size: int) -> bytes:
        """The next `size` bytes. Raises: Broken where there are fewer."""
        found = self.read(size)
        if len(found) < size:
            raise Broken(_CUT)
        return found

    def skip(self, size: int) -> Iterator[None]:
        """Pass over `size` bytes, a piece at each step of the iterator. Raises: Broken where there
        are fewer."""
        while size > len(self._piece) - self._at:
            size -= len(self._piece) - self._at
            yield
            if not self._advance():
                raise Broken(_CUT)
        self._at += size

    def length(self) -> int:
        """The length of the record that follows. Raises: Broken."""
        try:
            length = self.varint()
        except Misshapen as error:
            raise Broken(f"a record whose length {error}") from error
        if length < 0:
            raise Broken(f"a record of {length} bytes")
        return length

    def varint(self, stop: int | None = None) -> int:
        """The next number, zigzag. Raises: Misshapen where it does not end before `stop`,
        Broken."""
        number = shift = 0
        most = _VARINT_MAX if stop is None else min(_VARINT_MAX, stop - self.position)
        for _ in range(most):
            if self._at == len(self._piece) and not self._advance():
                raise Broken(_CUT)
            byte = self._piece[self._at]
            self._at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number >> 1 ^ -(number & 1)
        raise Misshapen("ends in a number")


def _pieces(codec: int, data: memoryview, limit_bytes: int) -> Iterator[bytes | memoryview]:
    """What `data` comes to. May end by any error of a codec."""
    match codec:
        case 0:
            for at in range(0, len(data), PIECE_BYTES):
                yield data[at : at + PIECE_BYTES]
        case 1:
            yield from _gzip(data)
        case 2:
            yield from _snappy(data, limit_bytes)
        case 3:
            yield from _lz4(data, limit_bytes)
        case 4:
            yield from _zstd(data, limit_bytes)
        case _:
            raise Broken(f"codec {codec} is not known")


def _gzip(data: memoryview) -> Iterator[bytes]:
    """Members, one after the other."""
    at, fed = 0, b""
    while at < len(data) or fed:
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        while not member.eof:
            if not fed:
                fed, at = bytes(data[at : at + _FED_BYTES]), at + _FED_BYTES
                if not fed:
                    raise Broken(_CUT)
            yield member.decompress(fed, PIECE_BYTES)
            fed = member.unconsumed_tail
        fed = member.unused_data


def _snappy(data: memoryview, limit_bytes: int) -> Iterator[bytes]:
    most = min(limit_bytes, WHOLE_BYTES_MAX)
    if data[: len(_XERIAL)] != _XERIAL:
        yield _snappy_block(data, most)
        return
    at = _XERIAL_BYTES
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        if not 0 < size <= len(data) - at - 4:
            raise Broken(f"a block of {size} bytes")
        yield _snappy_block(data[at + 4 : at + 4 + size], most)
        at += 4 + size


def _snappy_block(data: memoryview, limit_bytes: int) -> bytes:
    """Source: snappy's format description: a block begins with its size, and what does not
    become just that is refused."""
    if cramjam.snappy.decompress_raw_len(data) > limit_bytes:
        raise TooLarge(limit_bytes)
    return bytes(cramjam.snappy.decompress_raw(data))


def _lz4(data: memoryview, limit_bytes: int) -> Iterator[bytes | memoryview]:
    """Source: LZ4 frame format 1.6."""
    at = 0
    while at < len(data):
        (magic,) = struct.unpack_from("<I", data, at)
        if magic & _SKIPPED_MASK == _SKIPPED:
            at += 8 + struct.unpack_from("<I", data, at + 4)[0]
            continue
        flags, sizes = struct.unpack_from("BB", data, at + 4)
        if magic != _LZ4_MAGIC or sizes >> 4 & 7 < 4:
            raise Broken("not a frame of lz4")
        if not flags & _LZ4_ALONE:
            yield _lz4_whole(data[at:], min(limit_bytes, WHOLE_BYTES_MAX))
            return
        block_bytes = 1 << (8 + 2 * (sizes >> 4 & 7))
        at += 7 + (8 if flags & 8 else 0) + (4 if flags & 1 else 0)
        while head := struct.unpack_from("<I", data, at)[0]:
            block = data[at + 4 : at + 4 + (head & ~_LZ4_PLAIN)]
            if not head & _LZ4_PLAIN:
                room = bytearray(min(block_bytes, len(block) * _LZ4_GROWS))
                yield memoryview(room)[: cramjam.lz4.decompress_block_into(block, room)]
            else:
                yield block
            at += 4 + (head & ~_LZ4_PLAIN) + (4 if flags & 16 else 0)
        at += 4 + (4 if flags & 4 else 0)


def _lz4_whole(data: memoryview, limit_bytes: int) -> memoryview:
    """Frames whose blocks need those before."""
    room = bytearray(limit_bytes)
    try:
        size = cramjam.lz4.decompress_into(data, room)
    except cramjam.DecompressionError as error:
        if "whole buffer" in str(error):
            raise TooLarge(limit_bytes) from error
        raise
    return memoryview(room)[:size]


def _zstd(data: memoryview, limit_bytes: int) -> Iterator[bytes]:
    import zstandard  # a reader of other batches does not need it

    try:
        wide = zstandard.get_frame_parameters(data).window_size > _ZSTD_WINDOW_BYTES
        most = min(limit_bytes, WHOLE_BYTES_MAX) if wide else limit_bytes
        unpacker = zstandard.ZstdDecompressor(
            max_window_size=_ZSTD_WINDOW_BYTES_MAX if wide else _ZSTD_WINDOW_BYTES
        )
        done = 0
        with unpacker.stream_reader(data, read_across_frames=True) as stream:
            while part := stream.read(PIECE_BYTES):
                done += len(part)
                if done > most:
                    raise TooLarge(most)
                yield part
    except zstandard.ZstdError as error:
        raise Broken(" ".join(str(error).split())) from error
