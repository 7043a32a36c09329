"""Record headers in their encoded form, so that headers shared by many records are encoded once.

Source: Kafka protocol guide, "Record": a varint count, then for each header the varint length and
bytes of its name and of its value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

import msgspec

Header = tuple[str, bytes]

UNREADABLE: Final = "\udcff"
"""The only header of a placeholder for an unreadable record, with the reason; it is no UTF-8."""

LENGTHS: Final = 320
"""Values shorter than this have their varint made beforehand."""


def varint(number: int) -> bytes:
    """A number as Kafka writes record lengths: zigzag, seven bits a byte, lowest first."""
    number <<= 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_VARINTS: Final = [varint(length) for length in range(LENGTHS)]


@cache
def _named(name: str) -> bytes:
    """The bytes of the header `name` up to its value's length."""
    encoded = name.encode()
    return varint(len(encoded)) + encoded


def starts_of(name: str) -> list[bytes]:
    """The bytes before the value of the header `name`, by the value's length below `LENGTHS`."""
    start = _named(name)
    return [start + length for length in _VARINTS]


def encode_headers(headers: Iterable[Header]) -> bytes:
    """`headers` one after the other, without their count."""
    parts: list[bytes] = []
    for name, value in headers:
        size = len(value)
        parts += (_named(name), _VARINTS[size] if size < LENGTHS else varint(size), value)
    return b"".join(parts)


class HeaderBlock(msgspec.Struct, frozen=True, gc=False):
    """Headers, encoded, their count first. Iterates and counts like the list of pairs it was
    made of."""

    encoded: bytes

    @classmethod
    def of(cls, headers: Iterable[Header]) -> HeaderBlock:
        """The block of `headers`."""
        held = list(headers)
        return cls(varint(len(held)) + encode_headers(held))

    def extended(self, headers: list[Header]) -> HeaderBlock:
        """The block with `headers` after its own."""
        count, at = _read(self.encoded, 0)
        counted = varint(count + len(headers))
        return HeaderBlock(b"".join((counted, self.encoded[at:], encode_headers(headers))))

    def __iter__(self) -> Iterator[Header]:
        count, at = _read(self.encoded, 0)
        for _ in range(count):
            name, at = _take(self.encoded, at)
            value, at = _take(self.encoded, at)
            yield name.decode(), value

    def __len__(self) -> int:
        return _read(self.encoded, 0)[0]


def _read(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        shift += 7
        at += 1
        if byte < 128:
            return number >> 1, at


def _take(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _read(data, at)
    return data[at : at + length], at + length
