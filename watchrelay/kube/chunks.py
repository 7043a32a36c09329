"""HTTP's chunked framing, as far as it is plain: digits, a line break, the bytes, a line break.

Everything else (extensions, the last chunk, trailers, damage) is left to aiohttp.
"""

from __future__ import annotations

from typing import Final

_SIZE_BYTES_MAX: Final = 8
_HEAD_BYTES_MAX: Final = _SIZE_BYTES_MAX + len(b"\r\n")
_BEGUN_BYTES_MAX: Final = 64 << 10


def whole_chunks(data: memoryview) -> tuple[list[memoryview], int]:
    """The contents of the chunks with which `data` begins, as views of it, and where the first one
    begins that is not whole or not plain. Use the views before the buffer is filled again."""
    parts: list[memoryview] = []
    at = 0
    head = bytes(data[:_HEAD_BYTES_MAX])
    while (span := _span(head)) is not None:
        begin, stop = at + span[0], at + span[1]
        after = bytes(data[stop : stop + 2 + _HEAD_BYTES_MAX])
        if not after.startswith(b"\r\n"):
            break
        parts.append(data[begin:stop])
        at, head = stop + 2, after[2:]
    return parts, at


def is_begun(data: bytes) -> bool:
    """Whether `data` may be the begin of a plain chunk that is short and holds no whole line."""
    if len(data) < _SIZE_BYTES_MAX and b"\n" not in data:
        return True
    span = _span(data[:_HEAD_BYTES_MAX])
    return (
        span is not None
        and len(data) < min(span[1], _BEGUN_BYTES_MAX)
        and data.find(b"\n", span[0]) < 0
    )


def _span(head: bytes) -> tuple[int, int] | None:
    """Where the content of the chunk that begins with `head` begins, and where it would end: from
    the begin of the chunk."""
    end = head.find(b"\r\n")
    digits = head[:end]
    if end < 0 or not digits.isalnum() or digits.startswith(b"0"):
        return None
    try:
        return end + 2, end + 2 + int(digits, 16)
    except ValueError:
        return None
