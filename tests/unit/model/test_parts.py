"""Parts of a split stream: ids, and which partitions each has."""

import pytest

from watchrelay.model.parts import Part, part_id, stream_and_part


@pytest.mark.parametrize("total", [1, 2, 3, 4, 7, 12, 100])
def test_the_parts_of_a_stream_have_each_partition_once_in_even_ranges(total: int) -> None:
    for count in range(1, total + 1):
        ranges = [Part(place, count).partitions(total) for place in range(count)]
        assert [each for part in ranges for each in part] == [*range(total)]
        sizes = {len(part) for part in ranges}
        assert max(sizes) - min(sizes) <= 1


def test_an_id_gives_its_stream_and_part_again() -> None:
    assert part_id("pods@shop", Part(3, 4)) == "pods@shop%3/4"
    assert stream_and_part("pods@shop%3/4") == ("pods@shop", Part(3, 4))
    assert (part_id("pods", Part()), stream_and_part("pods")) == ("pods", ("pods", Part()))


@pytest.mark.parametrize("odd", ["pods%", "pods%4/4", "pods%0/1", "%0/2", "pods%00/2", "a%0/2%0/2"])
def test_other_ids_are_refused(odd: str) -> None:
    with pytest.raises(ValueError, match="is no part"):
        stream_and_part(odd)
