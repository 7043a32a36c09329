"""A part of a split stream: a range of its topic's partitions with a writer of its own. Pure.

The id of a part is that of the stream, `%`, and its place: `pods%0/4`.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_PLACE: Final = re.compile(r"(0|[1-9]\d{0,5})/([1-9]\d{0,5})")


class Part(NamedTuple):
    """Part `place` of `of`, from 0; a stream that is not split is part 0 of 1."""

    place: int = 0
    of: int = 1

    def partitions(self, total: int) -> tuple[int, ...]:
        """Those of `total` partitions that belong to the part."""
        return tuple(
            partition for partition in range(total) if partition * self.of // total == self.place
        )

    def overlaps(self, other: Part, total: int) -> bool:
        """Whether one of `total` partitions belongs to both; a stream that is not split has all."""
        if 1 in (self.of, other.of):
            return True
        return not set(self.partitions(total)).isdisjoint(other.partitions(total))


def part_id(stream: str, part: Part) -> str:
    """`pods%0/4`; the stream itself where it is not split."""
    return stream if part.of == 1 else f"{stream}%{part.place}/{part.of}"


def stream_and_part(writer: str) -> tuple[str, Part]:
    """What `part_id` was made of. Raises: ValueError: `%` is followed by no part."""
    stream, percent, place = writer.partition("%")
    if not percent:
        return writer, Part()
    found = _PLACE.fullmatch(place)
    part = Part(int(found[1]), int(found[2])) if found else Part()
    if not stream or part.of < 2 or part.place >= part.of:
        raise ValueError(f"{place!r} is no part: <place>/<of> is read, as in pods%0/4")
    return stream, part
