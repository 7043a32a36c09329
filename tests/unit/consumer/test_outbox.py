"""The changes of one stream in one partition on their way out: what is given, when, and how much is
kept."""

from __future__ import annotations

from collections.abc import Iterable

from watchrelay.consumer.changes import Saved, Why
from watchrelay.consumer.partitions import (
    FOLD_CHANGES,
    ChangeCause,
    Item,
    Outbox,
    PartitionReplica,
    Pending,
)
from watchrelay.contract.control_state import Origin
from watchrelay.contract.records import MarkerRecord
from watchrelay.contract.state import Changed, Held
from watchrelay.contract.wire import Position


def held(value: int) -> Held:
    return Held(b"%d" % value, value, "u", str(value), 1, value)


def cause(offset: int, reason: Why = "watch") -> ChangeCause:
    return ChangeCause(reason, Position(1, offset + 1), offset)


def place(offset: int) -> Saved:
    return Saved("pods", "t", 0, offset, 1, offset, 0, "0" * 16, "", None)


class Partition:
    """A state and its outbox, changed together as a replica does it."""

    def __init__(self, begun: Iterable[tuple[bytes, int]] | None = None) -> None:
        self.held: dict[bytes, Held] = {}
        self.outbox = Outbox()
        self.proven = True
        self.offset = 0
        if begun is not None:
            self.held = {key: held(value) for key, value in begun}
            self.outbox.continue_from(place(0))
            self.outbox.catch_up()

    def begin(self) -> None:
        self.outbox.begin(self.held, cause(self.offset, "initial"))

    def put(self, key: bytes, value: int | None) -> None:
        self.offset += 1
        before, after = self.held.pop(key, None), None if value is None else held(value)
        if after is not None:
            self.held[key] = after
        self.outbox.add(Changed(key, before, after), cause(self.offset), proven=self.proven)

    def take(self) -> Item | None:
        return self.outbox.take(self.held, proven=self.proven)

    def given(self) -> list[tuple[bytes, int | None, int | None, str]]:
        """Everything that may be given now: key, before, after, reason."""

        def value(one: Held | None) -> int | None:
            return None if one is None else one.value_hash

        return [
            (item.key, value(item.before), value(item.after), item.cause.reason)
            for item in iter(self.take, None)
        ]


def test_nothing_is_given_before_the_state_is_proven_and_then_each_object_once_as_it_is() -> None:
    partition = Partition()
    partition.put(b"a", 1)
    partition.put(b"b", 1)
    partition.put(b"a", None)
    partition.put(b"c", 1)
    assert partition.given() == []
    partition.begin()
    assert partition.given() == [(b"b", None, 1, "initial"), (b"c", None, 1, "initial")]
    assert partition.given() == []


def test_what_changes_before_the_state_was_given_is_given_as_it_is_then() -> None:
    partition = Partition()
    for key in (b"a", b"b", b"c"):
        partition.put(key, 1)
    partition.begin()
    partition.put(b"a", 2)
    partition.put(b"b", None)
    partition.put(b"d", 1)
    assert sorted(partition.given()) == [
        (b"a", None, 2, "initial"),
        (b"c", None, 1, "initial"),
        (b"d", None, 1, "watch"),
    ]


def test_what_changes_while_the_state_is_given_follows_it() -> None:
    partition = Partition()
    for key in (b"a", b"b"):
        partition.put(key, 1)
    partition.begin()
    first = partition.take()
    assert first is not None
    assert first.key == b"a"
    partition.put(b"a", 2)
    partition.put(b"a", 3)
    partition.put(b"b", None)
    assert partition.given() == [(b"a", 1, 3, "watch")]
    partition.put(b"a", 4)
    partition.put(b"a", None)
    assert partition.given() == [(b"a", 3, 4, "watch"), (b"a", 4, None, "watch")], (
        "from here on each change is given"
    )


def test_what_is_not_proven_is_held_back_and_comes_as_the_difference() -> None:
    partition = Partition([(b"a", 1), (b"b", 1), (b"c", 1)])
    partition.put(b"a", 2)
    partition.proven = False
    partition.put(b"a", 3)
    partition.put(b"b", 2)
    partition.put(b"b", 1)
    partition.put(b"c", None)
    partition.put(b"d", 1)
    partition.put(b"d", None)
    assert partition.given() == [(b"a", 1, 2, "watch")], "what was proven before is given"
    partition.proven = True
    assert partition.given() == [(b"a", 2, 3, "watch"), (b"c", 1, None, "watch")]


def test_what_a_former_life_may_have_given_is_given_also_where_nothing_is_left_of_it() -> None:
    partition = Partition([(b"a", 1), (b"b", 1)])
    partition.outbox.continue_from(place(0))
    partition.proven = False
    partition.put(b"a", 2)
    partition.put(b"a", 1)
    partition.put(b"brief", 1)
    partition.put(b"brief", None)
    partition.put(b"brief again", 1)
    partition.put(b"brief again", None)
    partition.outbox.catch_up()
    partition.put(b"brief again", 1)
    partition.put(b"b", 2)
    partition.put(b"b", 1)
    partition.put(b"new", 1)
    partition.put(b"new", None)
    partition.proven = True
    assert partition.given() == [
        (b"a", 1, 1, "watch"),
        (b"brief", 1, None, "watch"),
        (b"brief again", None, 1, "watch"),
    ]


def test_what_waits_as_it_came_and_is_folded_later_is_given_too() -> None:
    partition = Partition([])
    partition.outbox.continue_from(place(0))
    partition.put(b"brief", 1)
    partition.put(b"brief", None)
    partition.outbox.catch_up()
    for number in range(FOLD_CHANGES):
        partition.put(b"a", number)
    given = partition.given()
    assert given == [(b"brief", 1, None, "watch"), (b"a", None, FOLD_CHANGES - 1, "watch")]


def test_a_place_counts_when_all_before_it_was_given() -> None:
    partition = Partition([])
    outbox = partition.outbox
    partition.put(b"a", 1)
    outbox.reach(place(2))
    outbox.reach(place(3))
    partition.put(b"b", 1)
    outbox.reach(place(5))
    passed = []
    while partition.take() is not None:
        outbox.pass_places()
        assert outbox.passed is not None
        passed.append(outbox.passed.offset)
    assert passed == [3, 5]


def test_no_place_counts_while_the_state_is_given() -> None:
    partition = Partition()
    for key in (b"a", b"b"):
        partition.put(key, 1)
    partition.outbox.reach(place(3))
    assert partition.outbox.passed is None
    partition.begin()
    partition.take()
    partition.outbox.pass_places()
    assert partition.outbox.passed is None
    partition.take()
    partition.outbox.pass_places()
    assert partition.outbox.passed == place(3)


def test_the_place_of_an_empty_state_counts_at_once() -> None:
    partition = Partition()
    partition.outbox.reach(place(3))
    partition.begin()
    partition.outbox.pass_places()
    assert partition.outbox.passed == place(3)


def test_what_nobody_takes_never_outgrows_the_state() -> None:
    partition = Partition([])
    for number in range(5 * FOLD_CHANGES):
        partition.put(b"k%d" % (number % 10), number)
        partition.put(b"brief%d" % number, 1)
        partition.put(b"brief%d" % number, None)
        if number % 100 == 99:
            partition.outbox.reach(place(partition.offset + 1))
    given = partition.given()
    assert len(given) <= FOLD_CHANGES
    assert {key: after for key, _, after, _ in given} == {
        b"k%d" % (n % 10): n for n in range(5 * FOLD_CHANGES - 10, 5 * FOLD_CHANGES)
    }
    assert partition.outbox.passed == place(partition.offset + 1)


def test_many_partitions_share_the_bound() -> None:
    pending = Pending()
    replicas = [PartitionReplica("pods", "t", number, Origin()) for number in range(50)]
    for partition_replica in replicas:
        partition_replica.replica.apply(
            MarkerRecord("pods", 1, 1, "heartbeat", partition_replica.partition, "", "c", 50, "9")
        )
        pending.begin(partition_replica, 0)
    for number in range(FOLD_CHANGES // 2):
        for partition_replica in replicas:
            former = partition_replica.replica.held.get(b"a")
            partition_replica.replica.held[b"a"] = held(number)
            pending.add(partition_replica, Changed(b"a", former, held(number)), "watch", number)
    given = list(iter(pending.take, None))
    assert len(replicas) <= len(given) <= FOLD_CHANGES


def test_a_bound_that_shrinks_while_something_is_folded_loses_no_change() -> None:
    partition = Partition([(b"a", 1)])
    partition.put(b"a", 2)
    partition.put(b"b", 1)
    partition.proven = False
    partition.put(b"a", None)
    change = Changed(b"b", held(1), held(2))
    partition.held[b"b"] = held(2)
    # more partitions wait: fewer changes may wait in each
    partition.outbox.add(change, cause(9), proven=False, most=1)
    partition.proven = True
    assert partition.given() == [
        (b"a", 1, 2, "watch"),
        (b"b", None, 1, "watch"),
        (b"a", 2, None, "watch"),
        (b"b", 1, 2, "watch"),
    ]


def test_an_older_place_does_not_take_back_a_newer_one() -> None:
    partition = Partition([])
    partition.proven = False
    partition.put(b"a", 1)
    partition.outbox.reach(place(5))
    partition.put(b"a", None)  # given is nothing, and nothing is left to give
    partition.proven = True
    partition.put(b"b", 1)
    partition.outbox.reach(place(10))
    assert len(partition.given()) == 1
    assert partition.outbox.passed == place(10)


def test_a_partition_that_goes_away_ends_with_a_delete_of_all_that_was_given() -> None:
    partition = Partition([(b"a", 1), (b"b", 1)])
    partition.proven = False
    partition.put(b"b", None)
    partition.put(b"c", 1)
    partition.outbox.close(partition.held, cause(9, "gone"))
    assert partition.given() == [(b"b", 1, None, "watch"), (b"a", 1, None, "gone")]
    never = Partition()
    never.put(b"a", 1)
    never.outbox.close(never.held, cause(9, "gone"))
    assert never.given() == []
