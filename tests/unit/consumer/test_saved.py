"""Saved positions given back: each field is looked at, and named where it can never be right."""

from __future__ import annotations

from typing import Any

import pytest

from watchrelay.consumer import PositionsLost, TopicReader
from watchrelay.consumer.saved import UnreachedPositions, saved_from
from watchrelay.contract.control_state import DescribedStream

PLACE: dict[str, Any] = {
    "stream": "pods",
    "topic": "k8s.t.core.pods",
    "partition": 0,
    "offset": 40,
    "epoch": 2,
    "sequence": 30,
    "count": 3,
    "digest": "00000000000000aa",
    "snapshot": "2-1",
    "begin": 4,
}


def reader(resume: Any, **more: Any) -> TopicReader:
    return TopicReader(
        "kafka:9092", **({"control_topic": "k8s.t.control", "resume": resume} | more)
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stream", ""),
        ("stream", 7),
        ("topic", ""),
        ("topic", None),
        ("partition", -1),
        ("partition", "0"),
        ("partition", 100_000),
        ("partition", True),
        ("offset", -1),
        ("offset", 1.5),
        ("offset", 2**70),
        ("epoch", -2),
        ("sequence", 2**53),
        ("count", -1),
        ("digest", "xyz"),
        ("digest", ""),
        ("digest", "00000000000000AA"),
        ("digest", "+0000000000000aa"),
        ("digest", None),
        ("snapshot", None),
        ("begin", 2**70),
        ("begin", -4),
        ("begin", 41),
        ("begin", "4"),
    ],
)
def test_a_field_that_can_never_be_right_is_named_at_construction(
    field: str, value: object
) -> None:
    other = {**PLACE, "partition": 1}
    with pytest.raises(
        ValueError,
        match=rf"resume is not what positions\(\) gave: entry 1, {field}: .*; start without it",
    ):
        reader([other, {**PLACE, field: value}])


def test_a_field_that_is_missing_is_named() -> None:
    for field in PLACE:
        with pytest.raises(ValueError, match=f"entry 0: .*`{field}`"):
            reader([{name: value for name, value in PLACE.items() if name != field}])


@pytest.mark.parametrize("resume", [None, [], (), {}])
def test_nothing_saved_is_no_resumption(resume: object) -> None:
    assert saved_from(resume) == []
    reader(resume)


@pytest.mark.parametrize("resume", [PLACE, "[]", 7, [7], ["pods"], [None], [[PLACE]]])
def test_what_is_no_list_of_places_is_refused(resume: object) -> None:
    with pytest.raises(ValueError, match=r"resume is not what positions\(\) gave"):
        reader(resume)


def test_a_place_that_is_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="entry 2: stream pods, partition 0 is in entry 0 already"):
        reader([PLACE, {**PLACE, "partition": 1}, {**PLACE, "topic": "k8s.other"}])


def test_what_positions_gives_is_taken_back() -> None:
    whole = {**PLACE, "begin": None, "snapshot": ""}
    assert reader([PLACE, {**whole, "partition": 1}]).positions() == [
        PLACE,
        {**whole, "partition": 1},
    ]


def test_a_place_in_a_partition_that_the_stream_has_no_more_is_lost() -> None:
    unreached = UnreachedPositions(saved_from([{**PLACE, "partition": 99}]))
    unreached.compare(
        {
            "nodes": DescribedStream("k8s.t.core.nodes", 1),
            "pods": DescribedStream("k8s.t.core.pods", 100),
        }
    )
    now = {"pods": DescribedStream("k8s.t.core.pods", 3)}
    unreached.compare(now, ["k8s.t.core.nodes"])
    with pytest.raises(
        PositionsLost,
        match=r"k8s.t.core.pods/99, offset 40, cannot .*: the stream has 3 partitions now; start "
        r"without",
    ):
        unreached.compare(now)


def test_a_place_of_a_topic_with_fewer_partitions_is_lost_where_nobody_describes_streams() -> None:
    unreached = UnreachedPositions(
        saved_from([{**PLACE, "partition": 99}, {**PLACE, "topic": "k8s.t.core.others"}])
    )
    unreached.forget("k8s.t.core.others", 0, None, 0, wanted=False)
    assert [each.topic for each in unreached.all()] == ["k8s.t.core.pods"], (
        "what is not read any more is forgotten"
    )
    with pytest.raises(PositionsLost, match="the topic has 1 partition now"):
        unreached.forget("k8s.t.core.pods", 99, None, 1, wanted=True)


def test_a_place_whose_topic_is_described_and_not_there_yet_is_kept() -> None:
    unreached = UnreachedPositions(saved_from([PLACE]))
    unreached.forget(
        "k8s.t.core.pods", 0, {"pods": DescribedStream("k8s.t.core.pods", 1)}, 0, wanted=True
    )
    assert [each.topic for each in unreached.all()] == ["k8s.t.core.pods"]


def test_a_place_of_a_stream_that_was_retired_is_lost_and_one_of_a_topic_that_is_not_wanted_is_forgotten() -> (
    None
):
    unreached = UnreachedPositions(saved_from([PLACE]))
    with pytest.raises(
        PositionsLost,
        match="the control topic no longer describes the stream, so it was retired; start without",
    ):
        unreached.forget("k8s.t.core.pods", 0, {}, 0, wanted=True)
    unreached.forget("k8s.t.core.pods", 0, {}, 0, wanted=False)
    assert not unreached
