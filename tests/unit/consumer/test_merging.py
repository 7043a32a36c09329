"""Records of several partitions in order of time."""

from __future__ import annotations

from random import Random

from watchrelay.consumer.reader import Merge


def test_what_was_read_comes_in_order_of_time_and_each_partition_in_its_own() -> None:
    merge = Merge[int, str]()
    merge.add(0, [(10, "a1"), (30, "a2"), (20, "a3")])
    merge.add(1, [(15, "b1"), (25, "b2")])
    assert merge.take(()) == ["a1", "b1", "b2", "a2", "a3"]
    assert not merge
    assert merge.take(()) == []


def test_nothing_is_given_past_a_partition_of_which_more_is_to_be_read() -> None:
    merge = Merge[int, str]()
    merge.add(0, [(10, "a1"), (40, "a2")])
    assert merge.take({0, 1}) == []
    merge.add(1, [(20, "b1"), (30, "b2")])
    assert merge.take({0, 1}) == ["a1", "b1", "b2"]
    assert 0 in merge
    assert 1 not in merge
    assert merge.take({0}) == ["a2"], "the other one has come to its end"


def test_equal_times_keep_the_order_in_which_they_were_read() -> None:
    merge = Merge[str, int]()
    for number in range(20):
        merge.add(f"p{number % 3}", [(5, number)])
    assert merge.take(()) == list(range(20))


def test_however_it_is_read_the_whole_is_in_order() -> None:
    for seed in range(50):
        random = Random(seed)
        logs = {
            place: sorted(random.sample(range(1000), random.randrange(0, 60))) for place in range(4)
        }
        ends = {place: len(log) for place, log in logs.items()}
        at, merge, given = dict.fromkeys(logs, 0), Merge[int, int](), list[int]()
        while behind := {place for place, end in ends.items() if at[place] < end}:
            for place in [each for each in behind if each not in merge][: random.randrange(1, 5)]:
                more = logs[place][at[place] : at[place] + random.randrange(1, 9)]
                at[place] += len(more)
                merge.add(place, [(time, time) for time in more])
            given += merge.take({place for place, end in ends.items() if at[place] < end})
        given += merge.take(())
        assert given == sorted(number for log in logs.values() for number in log)
