"""What belongs to other parts of a split stream is left out of watches and lists as it arrives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

from tests.unit.kube.served import PODS, bookmark, dumps, line, pod
from watchrelay.contract.partitioning import partition_of
from watchrelay.kube.page import PageReader
from watchrelay.kube.part_filter import PartFilter
from watchrelay.kube.stream import FrameReader
from watchrelay.model.frames import Bookmark, Failure, Frame, ObjectFrame
from watchrelay.model.resources import PartKeys, Selection

PARTITIONS = 6
NAMES = [f"p{number}" for number in range(60)]


def part(*own: int, prefix: bytes = b"") -> Selection:
    return replace(PODS, part=PartKeys(prefix, PARTITIONS, frozenset(own)))


def names(frames: list[Frame]) -> list[str]:
    return [each.name for each in frames if isinstance(each, ObjectFrame)]


def own_names(*own: int, prefix: str = "") -> list[str]:
    return [
        name for name in NAMES if partition_of(f"{prefix}shop/{name}".encode(), PARTITIONS) in own
    ]


def chunks(data: bytes, size: int) -> Iterator[bytes]:
    for begin in range(0, len(data), size):
        yield data[begin : begin + size]


@pytest.mark.parametrize("size", [7, 300, 1 << 20])
@pytest.mark.parametrize("prefix", ["", "pods/"])
def test_a_watch_gives_the_objects_of_the_part_wherever_it_is_cut(size: int, prefix: str) -> None:
    foreign: list[int] = []
    stream = FrameReader(part(0, 1, prefix=prefix.encode()), count_foreign=foreign.append)
    data = b"".join(line("ADDED", pod(name, "8")) for name in NAMES)
    frames = [frame for chunk in chunks(data, size) for frame in stream.feed(chunk)]
    assert names(frames) == own_names(0, 1, prefix=prefix)
    assert sum(foreign) == len(NAMES) - len(frames)
    assert 0 < len(frames) < len(NAMES)


def test_the_parts_have_each_object_once() -> None:
    data = b"".join(line("MODIFIED", pod(name, "8")) for name in NAMES)
    found = [name for own in range(PARTITIONS) for name in names(FrameReader(part(own)).feed(data))]
    assert sorted(found) == sorted(NAMES)


def test_of_a_block_the_lines_of_the_part_are_left_as_they_came_wherever_they_are() -> None:
    (own, *_), (foreign, *_) = own_names(0, 1, 2), own_names(3, 4, 5)
    ours, other = (line("ADDED", pod(name, "8")).rstrip(b"\n") for name in (own, foreign))
    for lines in product((ours, other, b"", b"damaged"), repeat=4):
        counted: list[int] = []
        keys = PartKeys(b"", PARTITIONS, frozenset({0, 1, 2}))
        part_filter = PartFilter(keys, PODS.resource, counted.append)
        kept = [each for each in lines if each != other]
        assert part_filter.own_lines(b"\n".join(lines)) == b"\n".join(kept)
        assert sum(counted) == len(lines) - len(kept)


def test_bookmarks_and_errors_reach_every_part_and_what_is_damaged_too() -> None:
    error = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n'
    broken = b'{"type":"ADDED","object":{"metadata":{"name":"x",\n'
    data = line("ADDED", pod(NAMES[0], "8")) + broken + bookmark("9") + error
    for own in range(PARTITIONS):
        kinds = [type(each) for each in FrameReader(part(own)).feed(data)]
        assert kinds[-3:] == [Failure, Bookmark, Failure]
        assert len(kinds) == 3 + (NAMES[0] in own_names(own))


def test_what_follows_the_last_line_break_is_filtered_too() -> None:
    for own in range(PARTITIONS):
        stream = FrameReader(part(own))
        stream.feed(line("ADDED", pod(NAMES[1], "8")).rstrip(b"\n"))
        assert names(stream.finish()) == [NAMES[1]] * (NAMES[1] in own_names(own))


@pytest.mark.parametrize("size", [50, 1 << 20])
def test_a_list_gives_the_objects_of_the_part(size: int) -> None:
    foreign: list[int] = []
    items = b",".join(dumps(pod(name, "8")) for name in NAMES)
    body = (
        b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":['
        + items
        + b"]}"
    )
    reader = PageReader(part(2, 5), count_foreign=foreign.append)
    for chunk in chunks(body, size):
        reader.feed(chunk)
    page = reader.finish()
    assert [each.name for each in page.objects] == own_names(2, 5)
    assert (page.resource_version, page.failures) == ("9", ())
    assert sum(foreign) == len(NAMES) - len(page.objects)
