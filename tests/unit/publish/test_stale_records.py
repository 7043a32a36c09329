"""Offsets of acknowledgements, and what is between them: the keys to repair."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import pytest

from tests.support.relays import virtual
from watchrelay.contract.records import (
    Foreign,
    LogRecord,
    MarkerRecord,
    ObjectRecord,
    OtherCluster,
)
from watchrelay.core.errors import EpochSpoiled, Fenced, Shared, fenced_by
from watchrelay.publish.stale_records import PAUSE_MAX_S, PAUSE_MIN_S, StaleRecordFinder

HELD = frozenset({b"held"})


def published(key: str, epoch: int, sequence: int) -> ObjectRecord:
    return ObjectRecord(
        "pods", epoch, sequence, "added", key.encode(), b"{}", 1, "u", "5", "watch", "t"
    )


class Between:
    """What is not ours, by partition and offset."""

    def __init__(self, *strange: tuple[int, int, LogRecord], ours: tuple[int, ...] = ()) -> None:
        self.records = {(partition, offset): record for partition, offset, record in strange}
        self.ours = set(ours)
        self.reads: list[dict[int, list[tuple[int, int]]]] = []

    def unacknowledged_ranges(self, partition: int, start: int, stop: int) -> list[tuple[int, int]]:
        return [(offset, offset + 1) for offset in range(start, stop) if offset not in self.ours]

    def log_start(self, partition: int) -> int:
        return 0

    def owns(self, key: bytes) -> bool:
        return not key.startswith(b"another streams")

    async def read(
        self,
        ranges: Mapping[int, Sequence[tuple[int, int]]],
        take: Callable[[int, int, LogRecord], None],
    ) -> None:
        self.reads.append({partition: [*wanted] for partition, wanted in ranges.items()})
        for partition, wanted in ranges.items():
            for offset in (each for start, stop in wanted for each in range(start, stop)):
                if (partition, offset) in self.records:
                    take(partition, offset, self.records[partition, offset])


@virtual
async def test_only_records_between_our_batches_are_read_and_only_stale_keys_are_named() -> None:
    late_copy, former, resend = (
        published("late", 5, 3),
        published("former", 4, 900),
        published("resend", 5, 9),
    )
    between = Between((0, 12, late_copy), (0, 13, former), (0, 14, resend), (0, 15, resend))
    repair = StaleRecordFinder("pods", 5, between, {0: 10, 1: 20}, HELD.__contains__)
    repair.acked(0, [10, 11], 7)
    repair.acked(1, [20], 1)
    assert repair.may_end("5-1", ready_to_end=True)
    repair.acked(0, [15, 16], 9)
    assert not repair.may_end("5-2", ready_to_end=True)
    assert await repair.stale_keys() == dict.fromkeys([(b"late", 0), (b"former", 0)])
    assert repair.may_end("5-2", ready_to_end=True)
    assert between.reads == [{0: [(12, 13), (13, 14), (14, 15)]}, {0: [(15, 17)]}], (
        "all of them at once, and our own batch, to which the copy is compared"
    )


@virtual
async def test_many_gaps_of_several_partitions_are_read_at_once_each_judged_by_its_own_batch() -> (
    None
):
    batches = [(partition, 2 * index + 1) for index in range(50) for partition in (0, 1)]
    ours = ((at, offset, published("ours", 5, offset)) for at, offset in batches)
    between = Between(
        *ours,
        (0, 40, published("late", 5, 40)),
        (0, 60, published("ours", 5, 61)),
        (0, 98, published("former", 4, 900)),
        (1, 0, published("first", 4, 1)),
        (1, 20, published("ours", 5, 21)),
    )
    repair = StaleRecordFinder("pods", 5, between, {0: 0, 1: 0}, HELD.__contains__)
    for partition, offset in batches:
        repair.acked(partition, [offset], offset)
    assert await repair.stale_keys() == dict.fromkeys([(b"late", 0), (b"former", 0), (b"first", 1)])
    gaps = [(offset, offset + 1) for offset in range(0, 100, 2)]
    assert between.reads == [{0: gaps, 1: gaps}, {0: [(61, 62)], 1: [(21, 22)]}]
    repair.acked(1, [102], 101)
    between.records[1, 101] = published("ours", 5, 101)
    with pytest.raises(EpochSpoiled, match=r"partition 1 holds .* sequence 101"):
        await repair.stale_keys()


@virtual
async def test_a_gap_within_one_receipt_is_looked_into_too() -> None:
    repair = StaleRecordFinder(
        "pods", 5, Between((0, 11, published("k", 4, 1))), {0: 10}, HELD.__contains__
    )
    repair.acked(0, [10, 12], 7)
    assert await repair.stale_keys() == {(b"k", 0): None}


@virtual
async def test_a_record_that_readers_ignore_hides_what_is_held_and_what_it_names() -> None:
    unnamed = Foreign(b"held", named=False), Foreign(b"another streams", named=False)
    between = Between(
        (0, 10, unnamed[0]),
        (0, 11, unnamed[1]),
        (0, 12, Foreign(b"gone", named=True)),
        (1, 10, unnamed[0]),
    )
    repair = StaleRecordFinder("pods", 5, between, {0: 10, 1: 10}, HELD.__contains__)
    repair.acked(0, [13], 7)
    repair.acked(1, [11], 7)
    assert await repair.stale_keys() == dict.fromkeys([(b"held", 0), (b"gone", 0), (b"held", 1)])


@virtual
async def test_nothing_is_repaired_under_a_key_of_another_stream() -> None:
    between = Between(
        (0, 10, published("another streams", 5, 3)),
        (0, 11, Foreign(b"another streams too", named=True)),
        (0, 12, published("own", 5, 3)),
    )
    repair = StaleRecordFinder("pods", 5, between, {0: 10}, HELD.__contains__)
    repair.acked(0, [13], 7)
    assert await repair.stale_keys() == {(b"own", 0): None}


@pytest.mark.parametrize(
    ("epoch", "sequence", "raised"),
    [(5, 3, None), (4, 900, None), (5, 7, EpochSpoiled), (6, 1, Shared)],
)
@virtual
async def test_a_marker_of_another_cluster_counts_where_readers_take_it(
    epoch: int, sequence: int, raised: type[Exception] | None
) -> None:
    between = Between((0, 10, OtherCluster(epoch, sequence, "of cluster old")))
    repair = StaleRecordFinder("pods", 5, between, {0: 10}, HELD.__contains__)
    repair.acked(0, [11], 7)
    if raised is None:
        assert await repair.stale_keys() == {}
    else:
        with pytest.raises(raised):
            await repair.stale_keys()


@virtual
async def test_what_other_streams_of_this_process_wrote_is_no_gap() -> None:
    between = Between(ours=(10, 11))
    repair = StaleRecordFinder("pods", 5, between, {0: 10}, HELD.__contains__)
    repair.acked(0, [12], 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10 * PAUSE_MAX_S):
            await repair.stale_keys()
    assert between.reads == []


@virtual
async def test_gaps_that_never_end_are_looked_into_ever_less_often_and_do_not_hold_up_a_snapshot() -> (
    None
):
    repair = StaleRecordFinder("pods", 5, Between(), {0: 0}, HELD.__contains__)
    now_s = asyncio.get_running_loop().time
    for round_ in range(12):
        repair.acked(0, [round_ * 4 + 1], round_ + 1)
        assert not repair.may_end(f"5-{round_}", ready_to_end=True)
        began_s = now_s()
        await repair.stale_keys()
        assert now_s() - began_s == pytest.approx(min(PAUSE_MAX_S, PAUSE_MIN_S * 2**round_))
        repair.acked(0, [round_ * 4 + 3], round_ + 1)
        assert repair.may_end(f"5-{round_}", ready_to_end=True), (
            "a gap that came later does not count"
        )


@virtual
async def test_a_record_of_a_newer_epoch_stops_the_writer() -> None:
    claim = MarkerRecord("pods", 6, 1, "claim", 0, "t", "c", 1)
    repair = StaleRecordFinder("pods", 5, Between((0, 10, claim)), {0: 10}, HELD.__contains__)
    repair.acked(0, [11], 1)
    with pytest.raises(Fenced, match="epoch 6"):
        await repair.stale_keys()


@pytest.mark.parametrize(
    ("key", "sequence", "spoilt"),
    [
        ("a", 1, False),
        ("a", 4, False),
        ("b", 5, False),
        ("b", 4, True),
        ("a", 5, True),
        ("a", 6, True),
        ("a", 10**15, True),
    ],
)
@virtual
async def test_a_strange_record_of_the_epoch_is_a_late_copy_or_spoils_the_epoch(
    key: str, sequence: int, spoilt: bool
) -> None:
    ours = (0, 11, published("a", 5, 4)), (0, 12, published("b", 5, 5))
    repair = StaleRecordFinder(
        "pods",
        5,
        Between((0, 10, published(key, 5, sequence)), *ours, ours=(11, 12)),
        {0: 10},
        HELD.__contains__,
    )
    repair.acked(0, [11, 12], 4)
    if spoilt:
        with pytest.raises(
            EpochSpoiled,
            match=f"partition 0 holds a record with epoch 5 and sequence {sequence}, and this "
            "relay",
        ):
            await repair.stale_keys()
    else:
        assert await repair.stale_keys() == ({(key.encode(), 0): None} if sequence < 4 else {})


def test_a_topic_of_two_clusters_is_reported_as_such_and_not_as_a_newer_writer() -> None:
    shared = ExceptionGroup(
        "", [ExceptionGroup("", [Shared("two clusters")]), Fenced("a newer claim")]
    )
    assert isinstance(fenced_by(shared, "a newer writer"), Shared)
    assert str(fenced_by(shared, "a newer writer")) == "two clusters"
    assert (
        str(fenced_by(ExceptionGroup("", [Fenced("a newer claim")]), "a newer writer"))
        == "a newer writer"
    )
    assert str(fenced_by(ExceptionGroup("", [Fenced("a newer claim")]))) == "a newer claim"
