"""What waits to be handed out, and what it comes to when nobody takes it."""

from __future__ import annotations

from watchrelay.consumer.changes import FOLD_CHANGES, Change, ChangeVerb, Pending, Problem, Problems, Saved, folded_of
from watchrelay.model.records import Position


def change(key: bytes, verb: ChangeVerb, offset: int = 0, *, new: bytes | None = b"2", old: bytes | None = b"1") -> Change:
    return Change("pods", "t", 0, key, verb, new, old, "u", "9", "watch", Position(1, offset + 1), offset, proven=True)


def place(offset: int) -> Saved:
    return Saved("pods", "t", 0, offset, 1, offset, 0, "0" * 16, "", None)


def everything(pending: Pending) -> list[Change]:
    taken = []
    while (one := pending.take()) is not None:
        taken.append(one)
    return taken


def test_changes_come_in_order_and_a_place_counts_once_all_before_it_are_handed_out() -> None:
    pending = Pending()
    first, second = change(b"a", "added", 0), change(b"a", "modified", 2)
    for item in (first, place(2), second, place(4)):
        pending.add(item)
    assert not pending.saved
    assert pending.take() == first
    assert pending.take() == second
    assert pending.saved["pods", 0].offset == 2
    assert pending.take() is None
    assert pending.saved["pods", 0].offset == 4


def test_what_nobody_takes_never_outgrows_the_state() -> None:
    pending = Pending()
    for number in range(5 * FOLD_CHANGES):
        pending.add(change(b"k%d" % (number % 10), "modified", number, new=b"%d" % number))
        if number % 100 == 99:
            pending.add(place(number + 1))
    taken = everything(pending)
    assert len(taken) <= FOLD_CHANGES
    assert {one.key: one.object for one in taken} == {b"k%d" % (n % 10): b"%d" % n for n in range(5 * FOLD_CHANGES - 10, 5 * FOLD_CHANGES)}
    assert pending.saved["pods", 0].offset == 5 * FOLD_CHANGES


def test_two_changes_of_an_object_come_to_one() -> None:
    added = change(b"a", "added", 0, new=b"1", old=None)
    modified = change(b"a", "modified", 1, new=b"2", old=b"1")
    deleted = change(b"a", "deleted", 2, new=None, old=b"2")
    one = folded_of(added, modified)
    assert one is not None
    assert (one.verb, one.object, one.old, one.offset) == ("added", b"2", None, 1)
    assert folded_of(one, deleted) is None
    gone = folded_of(modified, deleted)
    assert gone is not None
    assert (gone.verb, gone.old) == ("deleted", b"1")
    back = folded_of(gone, change(b"a", "added", 3, new=b"1", old=None))
    assert back is None, "the object is what it was"
    other = folded_of(gone, change(b"a", "added", 3, new=b"3", old=None))
    assert other is not None
    assert (other.verb, other.object, other.old) == ("modified", b"3", b"1")


def test_problems_are_counted_each_once_and_never_grow_without_bound() -> None:
    problems = Problems()
    for number in range(1000):
        problems.add(Problem("foreign", "t", 0, number, "no headers"))
    assert [(each.count, each.offset) for each in problems.all()] == [(1000, 0)]
    for number in range(1000):
        problems.add(Problem("foreign", "t", 0, number, f"header {number}"))
    assert len(problems.all()) == 100
    assert sum(each.count for each in problems.all()) == 2000
