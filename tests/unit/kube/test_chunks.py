"""Chunked framing: what is plain is taken, the rest is left as it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchrelay.kube.watch_frames import is_begun, whole_chunks


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


@given(st.lists(st.binary(min_size=1, max_size=40)), st.integers(0))
def test_whole_chunks_are_taken_and_a_begun_one_is_left(contents: list[bytes], place: int) -> None:
    data = b"".join(map(chunk, contents))
    stop = place % (len(data) + 1)
    ends = [sum(len(chunk(each)) for each in contents[:n]) for n in range(len(contents) + 1)]
    whole = sum(end <= stop for end in ends) - 1
    taken, at = whole_chunks(memoryview(data)[:stop])
    assert (list(map(bytes, taken)), at) == (contents[:whole], ends[whole])


@pytest.mark.parametrize(
    "odd",
    [
        b"0\r\n\r\n",
        b"05\r\nabcde\r\n",
        b"0x5\r\nabcde\r\n",
        b"5;a=b\r\nabcde\r\n",
        b"+5\r\nabcde\r\n",
        b" 5\r\nabcde\r\n",
        b"1_0\r\nabcdefghijklmnop\r\n",
        b"g\r\nabcde\r\n",
        b"\r\n",
        b"5\r\nabcdefg",
        b"5\nabcde\n",
        b"fffffffff\r\n",
    ],
)
def test_what_is_not_plain_is_left_to_others(odd: bytes) -> None:
    taken, at = whole_chunks(memoryview(chunk(b"abc") + odd))
    assert (list(map(bytes, taken)), at) == ([b"abc"], 8)
    assert not is_begun(odd)


def test_only_a_short_begin_without_a_whole_line_may_wait_for_its_rest() -> None:
    begun = b"9\r\nline\nrest\r\n"
    first_line = begun.index(b"\n", 3) + 1
    waits = [is_begun(begun[:stop]) for stop in range(len(begun))]
    assert waits == [stop < first_line for stop in range(len(begun))]
    assert is_begun(b"fffff\r\n" + b"x" * 60_000)
    assert not is_begun(b"fffff\r\n" + b"x" * 70_000)
