"""What a change carries; problems, each counted once."""

from __future__ import annotations

import pytest

from watchrelay.consumer import Change, ObjectUnreadable
from watchrelay.consumer.changes import Problem, ReadProblems
from watchrelay.contract.wire import Position


def change(value: bytes | None, old: bytes | None = None) -> Change:
    return Change(
        "pods", "t", 0, "shop/a", "added", value, old, "u", "9", "watch", Position(1, 1), 0
    )


def test_a_value_is_decoded_when_it_is_asked_for_and_once() -> None:
    made = change(b'{"n":12345678901234567890123,"x":"\\u00e9"}', b'{"n":1}')
    assert made.value == b'{"n":12345678901234567890123,"x":"\\u00e9"}'
    assert made.object["x"] == "\u00e9"
    assert made.object is made.object
    assert made.old == {"n": 1}
    assert change(None).object is None
    assert change(b"{}").old is None
    assert made.proven


@pytest.mark.parametrize("value", [b"", b"{", b'{"a":"\xff"}', b"[" * 100_000])
def test_a_value_that_is_no_json_is_an_error_that_names_the_object_and_its_bytes_stay(
    value: bytes,
) -> None:
    made = change(value)
    with pytest.raises(
        ObjectUnreadable, match=r"^stream pods, key shop/a: the value is not JSON: "
    ):
        _ = made.object
    assert made.value == value


def test_problems_are_counted_each_once_and_never_grow_without_bound() -> None:
    problems = ReadProblems()
    for number in range(1000):
        problems.add(Problem("foreign", "t", 0, number, "no headers"))
    assert [(each.count, each.offset) for each in problems.all()] == [(1000, 0)]
    for number in range(1000):
        problems.add(Problem("foreign", "t", 0, number, f"header {number}"))
    assert len(problems.all()) == 100
    assert sum(each.count for each in problems.all()) == 2000
