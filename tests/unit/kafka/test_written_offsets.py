"""Which offsets between two of ours are not ours."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from watchrelay.kafka.written_offsets import KEPT, WrittenOffsets

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=30)


@given(RANGES, st.integers(0, 60), st.integers(0, 60))
def test_gaps_are_exactly_the_offsets_that_were_not_noted(
    ranges: list[tuple[int, int]], start: int, stop: int
) -> None:
    written, noted = WrittenOffsets(), set[int]()
    for first, count in ranges:
        written.note("t", first, first + count)
        noted.update(range(first, first + count))
    found = [
        offset for first, last in written.gaps("t", start, stop) for offset in range(first, last)
    ]
    assert found == [offset for offset in range(start, stop) if offset not in noted]


def test_places_do_not_mix_and_the_oldest_ranges_are_forgotten() -> None:
    written = WrittenOffsets()
    for number in range(KEPT + 5):
        written.note("a", 2 * number, 2 * number + 1)
    assert written.gaps("b", 0, 3) == [(0, 3)]
    assert written.gaps("a", 0, 3) == [(0, 3)]
    assert written.gaps("a", 2 * KEPT, 2 * KEPT + 3) == [(2 * KEPT + 1, 2 * KEPT + 2)]


def test_a_place_that_is_forgotten_was_never_written() -> None:
    written = WrittenOffsets()
    for place in ("a", "b"):
        written.note(place, 0, 5)
    written.forget(lambda place: place == "a")
    assert (written.gaps("a", 0, 5), written.gaps("b", 0, 5)) == ([(0, 5)], [])
