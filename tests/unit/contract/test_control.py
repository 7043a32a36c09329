"""Records of a control topic: claims about epochs, descriptions and what is passed over."""

import random

import pytest

from watchrelay.contract.control import control_value
from watchrelay.contract.control_state import ControlState, Origin, StreamControl, remembered
from watchrelay.core.errors import RecordRefused
from watchrelay.model.parts import Part


def read(*records: tuple[str, dict[str, object] | None]) -> ControlState:
    state = ControlState()
    for offset, (key, value) in enumerate(records):
        state.read(offset, key.encode(), None if value is None else control_value(value))
    return state


def epoch(held: StreamControl) -> int | None:
    return held.epoch_of(held)


def claim(instance: str, holder: str = "h") -> tuple[str, dict[str, object] | None]:
    return "claim/pods", {"instance": instance, "holder": holder}


def described(base: int) -> tuple[str, dict[str, object] | None]:
    return "stream/pods", {"topic": "t", "partitions": 1, "epochBase": base}


def test_the_epoch_is_the_base_and_the_offset_of_the_claim() -> None:
    assert epoch(read(described(10), claim("a")).of("pods")) == 11
    assert epoch(read(described(10), claim("a"), claim("b", "other")).of("pods")) == 12


def test_a_repeated_instance_is_no_new_claim() -> None:
    held = read(described(1), claim("a"), claim("a")).of("pods")
    assert (epoch(held), held.instances) == (2, {"a": 1})
    late = read(described(1), claim("a", "first"), claim("b", "second"), claim("a", "first")).of(
        "pods"
    )
    assert (epoch(late), late.holder) == (3, "second")


def test_of_claims_without_end_the_newest_are_remembered() -> None:
    claims = [claim(str(number)) for number in range(1, 1000)]
    state = read(described(1), *claims, claim("999"), claim("950"))
    held = state.of("pods")
    assert (epoch(held), held.instances["999"], held.instances["950"]) == (1000, 999, 950)
    known = dict(held.instances)
    assert len(known) == 100
    for offset, (key, value) in enumerate(claims, 1):
        state.read(offset, key.encode(), control_value(value or {}))
        assert (epoch(held), held.instances) == (1000, known), "it was read before"


def test_a_claim_without_description_has_no_epoch_yet() -> None:
    assert epoch(read(claim("a")).of("pods")) is None
    assert epoch(read(claim("a"), described(5)).of("pods")) == 5


def test_a_description_of_an_older_writer_does_not_lower_epochs() -> None:
    held = read(described(50), claim("a"), described(1)).of("pods")
    assert epoch(held) == 51
    assert held.description == {"topic": "t", "partitions": 1, "epochBase": 1}


def test_the_newest_release_is_known_and_no_claim() -> None:
    held = read(
        described(1), claim("a"), ("release/pods", {"epoch": 2}), ("release/pods", {"epoch": 1})
    ).of("pods")
    assert (held.released, epoch(held), held.holder) == (2, 2, "h")
    assert read(("release/pods", {"epoch": 2}), ("release/pods", None)).of("pods").released == 2
    assert read(claim("a")).of("pods").released == -1


def test_transactional_ids_of_all_claims_are_known() -> None:
    def naming(instance: str, ids: object) -> tuple[str, dict[str, object] | None]:
        return "claim/pods", {"instance": instance, "holder": "h", "ids": ids}

    first, second, odd = naming("a", ["x", "y"]), naming("b", ["x", "z"]), naming("c", "w")
    assert read(described(1), first, second, claim("d")).of("pods").ids == ("y", "x", "z")
    held = read(described(1), first, odd).of("pods")
    assert (held.ids, epoch(held)) == (("x", "y"), 3), "an odd field is as if it were absent"


def test_null_forgets_index_and_description_but_no_claim() -> None:
    held = read(
        described(1),
        claim("a"),
        ("snapshot/pods", {"snapshot": "2-1"}),
        ("snapshot/pods", None),
        ("stream/pods", None),
    ).of("pods")
    assert (held.index, held.description, epoch(held)) == (None, None, 2)


def test_streams_do_not_mix() -> None:
    state = read(described(1), claim("a"), ("snapshot/nodes", {"n": 1}))
    assert state.of("nodes").index == {"n": 1}
    assert epoch(state.of("nodes")) is None
    assert state.of("jobs").index is None


def test_reading_again_changes_nothing() -> None:
    index: tuple[str, dict[str, object] | None] = ("snapshot/pods", {"n": 1})
    records = [described(1), claim("a"), claim("b"), index]
    state = read(*records)
    before = epoch(state.of("pods"))
    for offset, (key, value) in enumerate(records):
        state.read(offset, key.encode(), None if value is None else control_value(value))
    assert epoch(state.of("pods")) == before


FROM = {"snapshot": "2-1", "begin": [4, 5]}


def index(epoch: int) -> tuple[str, dict[str, object] | None]:
    return "snapshot/pods", {
        "snapshot": "9-9",
        "epoch": epoch,
        "partitions": [{"partition": at, "begin": at + 7} for at in range(2)],
    }


def claim_from(instance: str, origin: object) -> tuple[str, dict[str, object] | None]:
    return "claim/pods", {"instance": instance, "holder": "h", "from": origin}


def test_a_writer_starts_to_read_at_the_index_of_the_newest_claim_or_where_that_claim_started() -> (
    None
):
    assert read(described(1)).of("pods").starting_point(2) is None
    assert read(described(1), claim("a")).of("pods").starting_point(2) is None
    assert read(described(1), claim_from("a", FROM)).of("pods").starting_point(2) == FROM
    newest = read(described(1), claim_from("a", FROM), index(2)).of("pods")
    assert newest.starting_point(2) == {"snapshot": "9-9", "begin": [7, 8]}


def test_f3_the_index_of_a_former_writer_does_not_count() -> None:
    held = read(described(1), claim_from("a", None), claim_from("b", FROM), index(2)).of("pods")
    assert epoch(held) == 3
    assert held.starting_point(2) == FROM


@pytest.mark.parametrize(
    "origin",
    [
        [1, 2],
        {"begin": "x"},
        {"begin": [1]},
        {"begin": [1, -1]},
        {"begin": [1, "2"]},
        {"begin": [1, True]},
    ],
)
def test_a_starting_point_that_cannot_be_used_means_the_start(origin: object) -> None:
    assert read(described(1), claim_from("a", origin)).of("pods").starting_point(2) is None


@pytest.mark.parametrize(
    "partitions",
    ["x", [7], [{"partition": [0], "begin": 1}], [{"partition": 0, "begin": "1"}], [{"begin": 1}]],
)
def test_an_index_that_cannot_be_used_means_the_start(partitions: object) -> None:
    index_record: dict[str, object] = {"snapshot": "2-1", "epoch": 2, "partitions": partitions}
    assert (
        read(described(1), claim("a"), ("snapshot/pods", index_record)).of("pods").starting_point(1)
        is None
    )


def test_a_new_control_topic_starts_above_every_epoch_of_the_lost_one() -> None:
    assert read(described(10), claim("a"), claim("b")).of("pods").next_base == 13
    assert read(described(10)).of("pods").next_base == 10, "nobody wrote under it"
    assert read(claim("a")).of("pods").next_base == 1


def test_of_two_lost_topics_the_newer_word_counts_where_it_names_a_claim() -> None:
    first = read(described(10), claim_from("a", FROM))
    restored = read(described(12))
    assert remembered(first, restored).of("pods").starting_point(2) == FROM
    assert remembered(first, restored).of("pods").next_base == 12
    claimed = read(described(12), claim_from("b", None))
    assert remembered(first, claimed).of("pods").next_base == 14
    assert remembered(ControlState(), restored).of("pods").description is not None


@pytest.mark.parametrize(
    ("key", "overwritten"),
    [(b"stream/pods", True), (b"pods", False), (b"other/pods", False), (None, False)],
)
def test_only_a_record_under_the_key_of_the_description_overwrites_it(
    key: bytes | None, overwritten: bool
) -> None:
    state = read(described(1), claim("a"))
    with pytest.raises(RecordRefused):
        state.read(2, key, b"{")
    assert state.of("pods").overwritten == overwritten


# ---- parts ---------------------------------------------------------------------------------------


def part_claim(
    part: str, partitions: list[int], origin: object = None
) -> tuple[str, dict[str, object] | None]:
    name = part or "none"
    value = {"instance": name, "holder": name, "from": origin, "partitions": partitions}
    return f"claim/pods{part}", value


def part_index(part: str, epoch: int, **begins: int) -> tuple[str, dict[str, object] | None]:
    partitions = [{"partition": int(name[1:]), "begin": each} for name, each in begins.items()]
    return f"snapshot/pods{part}", {
        "snapshot": f"{epoch}-1",
        "epoch": epoch,
        "partitions": partitions,
    }


def pods(*records: tuple[str, dict[str, object] | None], partitions: int = 2) -> StreamControl:
    about: dict[str, object] = {"topic": "t", "partitions": partitions, "epochBase": 1}
    return read(("stream/pods", about), *records).of("pods")


def test_of_each_partition_the_newest_claim_that_names_it_counts() -> None:
    held = pods(
        claim_from("a", FROM),
        part_claim("%1/2", [1], {"snapshot": {"1": "2-1"}, "begin": {"1": 5}}),
        index(2),
    )
    assert held.starts(2) == {0: Origin(7, "9-9"), 1: Origin(5, "2-1")}
    assert [getattr(each, "holder", None) for each in held.owners(2)] == ["h", "%1/2"]
    both = pods(claim_from("a", FROM), part_claim("%1/2", [1]), claim_from("b", FROM))
    assert both.starts(2) == {0: Origin(4, "2-1"), 1: Origin(5, "2-1")}


def test_an_index_of_a_part_counts_for_the_claim_of_its_epoch_and_its_partitions_alone() -> None:
    claims = part_claim("%0/2", [0]), part_claim("%1/2", [1])
    assert pods(*claims, part_index("%0/2", 2, p0=9)).starts(2) == {0: Origin(9, "2-1")}
    assert pods(*claims, part_index("%0/2", 3, p0=9)).starts(2) == {}
    assert pods(*claims, part_index("%0/2", 2, p1=9)).starts(2) == {}
    assert pods(*claims, part_index("%1/2", 2, p0=9)).starts(2) == {}


def test_a_claim_of_no_partition_takes_none_and_makes_the_index_of_the_whole_old() -> None:
    claims = part_claim("%0/2", [0]), part_claim("%1/2", [1])
    split = pods(claim_from("a", FROM), *claims, index(2))
    assert split.claimed_by_parts(2)
    closed = pods(claim_from("a", FROM), *claims, index(2), part_claim("", []))
    assert not closed.claimed_by_parts(2)
    assert closed.starts(2) == {}
    assert epoch(closed) == 2, "a claim of no partition opens no epoch"


def test_a_claim_of_no_partition_hides_no_claim_that_came_before_it() -> None:
    claims = part_claim("%0/2", [0]), part_claim("%1/2", [1])
    held = pods(*claims, claim_from("late", FROM), part_claim("", []))
    assert held.owners(2) == [held, held]
    assert (held.holder, epoch(held)) == ("h", 4)
    assert held.starts(2) == {0: Origin(4, "2-1"), 1: Origin(5, "2-1")}
    assert not held.claimed_by_parts(2)
    again = part_claim("%0/2", [0])[1] or {}
    taken = pods(
        *claims,
        claim_from("late", FROM),
        part_claim("", []),
        ("claim/pods%0/2", {**again, "instance": "again"}),
    )
    assert [getattr(each, "holder", "") for each in taken.owners(2)] == ["%0/2", "h"]


@pytest.mark.parametrize("seed", range(10))
def test_in_any_order_of_claims_the_newest_that_names_a_partition_owns_it(seed: int) -> None:
    """Claims of the whole, of halves, of quarters and of none, some of them appended again."""
    rng = random.Random(seed)
    halves = [(f"%{each}/2", [2 * each, 2 * each + 1]) for each in range(2)]
    quarters = [(f"%{each}/4", [each]) for each in range(4)]
    for _ in range(200):
        log: list[tuple[str, dict[str, object] | None]] = []
        owners: dict[int, int] = {}
        for offset in range(1, rng.randint(2, 16)):
            if log and rng.random() < 0.2:
                log.append(rng.choice(log))
                continue
            part, named = rng.choice([("", None), ("", []), *halves, *quarters])
            value: dict[str, object] = {"instance": f"i{offset}", "holder": f"h{offset}"}
            if named is not None:
                value["partitions"] = named
            log.append((f"claim/pods{part}", value))
            owners |= dict.fromkeys(range(4) if named is None else named, offset)
        held = pods(*log, partitions=4)
        newest = dict(enumerate(held.owners(4)))
        assert {at: owner.claimed for at, owner in newest.items() if owner} == owners, log


def test_not_all_partitions_claimed_by_parts() -> None:
    assert not pods(claim_from("a", FROM), part_claim("%0/2", [0])).claimed_by_parts(2)
    late = pods(part_claim("%0/2", [0]), part_claim("%1/2", [1]), claim_from("a", FROM))
    assert not late.claimed_by_parts(2)


def test_a_claim_is_given_what_it_starts_from_by_partition_and_reads_that_again() -> None:
    held = pods(
        part_claim("%0/2", [0]),
        part_claim("%1/2", [1]),
        part_index("%0/2", 2, p0=9),
        part_index("%1/2", 3, p1=4),
    )
    own = {"snapshot": {"1": "3-1"}, "begin": {"1": 4}}
    assert held.starting_point(2, [1]) == own
    whole = {"snapshot": {"0": "2-1", "1": "3-1"}, "begin": {"0": 9, "1": 4}}
    assert held.starting_point(2) == whole
    assert pods(claim_from("a", whole)).starts(2) == {0: Origin(9, "2-1"), 1: Origin(4, "3-1")}
    assert pods(claim_from("a", whole)).starting_point(2) == whole
    assert pods(part_claim("%0/2", [0])).starting_point(2, [0]) is None


@pytest.mark.parametrize(
    "origin",
    [
        {"snapshot": "2-1", "begin": {"0": 3}},
        {"snapshot": {"0": "2-1"}, "begin": [3, 4]},
        {"snapshot": {"0": "2-1"}, "begin": {"x": 3}},
        {"snapshot": {"0": "2-1"}, "begin": {"0": "3"}},
        {"snapshot": {"1": "2-1"}, "begin": {"0": 3}},
    ],
)
def test_a_starting_point_by_partition_that_cannot_be_used_means_the_start(origin: object) -> None:
    assert pods(part_claim("%0/2", [0], origin)).starts(2) == {}


@pytest.mark.parametrize(
    "key", [b"claim/pods%2/2", b"claim/pods%0/1", b"claim/%0/2", b"claim/pods%", b"stream/pods%0/2"]
)
def test_keys_of_no_part_are_refused(key: bytes) -> None:
    with pytest.raises(RecordRefused):
        read(described(1)).read(5, key, b'{"instance":"a"}')


def test_epochs_of_a_new_control_topic_are_above_those_of_parts() -> None:
    assert pods(claim("a"), part_claim("%0/2", [0])).next_base == 4


def test_the_index_of_a_part_is_the_oldest_of_the_newest_of_its_partitions() -> None:
    held = pods(
        ("snapshot/pods", {"snapshot": "1-1", "epoch": 1, "partitions": [
            {"partition": each, "begin": 0} for each in range(4)]}),
        part_index("%0/2", 2, p0=9, p1=9),
        part_index("%0/4", 7, p0=20),
        partitions=4,
    )  # fmt: skip
    newest = {
        part: (held.newest_index(part) or {}).get("snapshot")
        for part in (Part(0, 4), Part(1, 4), Part(2, 4), Part(0, 2), Part())
    }
    assert newest == {
        Part(0, 4): "7-1", Part(1, 4): "2-1", Part(2, 4): "1-1", Part(0, 2): "2-1", Part(): "1-1",
    }  # fmt: skip
    assert pods(part_index("%0/2", 2, p0=9)).newest_index(Part()) is None
