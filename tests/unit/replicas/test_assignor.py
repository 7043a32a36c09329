"""Groups that live on: each member reports what it was given before."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable

import msgspec
import pytest

from watchrelay.replicas.assignor import (
    API_STEADY_MS,
    OLD_PLAN_MS,
    OWNERS_BYTES_MAX,
    MemberAssignment,
    MemberMetadata,
    assign_streams,
    by_clock_of_leader,
    decode_metadata,
    encode,
)

SIXTY = {f"s{number}": "plan" for number in range(60)}


class Group:
    """Members that take over at once what they are assigned. `moves` counts, by stream, the
    changes of its owner."""

    def __init__(self, members: Iterable[str], plans: dict[str, str], *, standbys: int = 1) -> None:
        self.members: dict[str, MemberMetadata] = {}
        self.found: dict[str, MemberAssignment] = {}
        self.moves: Counter[str] = Counter()
        self.generation = 0
        self.now_ms = 1_800_000_000_000
        self.standbys = standbys
        self.plans = plans
        self.even = True
        for name in members:
            self.join(name)
        self.assign()

    def join(self, name: str, plans: dict[str, str] | None = None, *, revision: int = 0) -> None:
        self.members[name] = MemberMetadata(
            name,
            config_order=(revision, self.now_ms),
            plans=self.plans if plans is None else plans,
            config_hash=f"config {revision}",
        )

    def change(self, name: str, **fields: object) -> None:
        self.members[name] = msgspec.structs.replace(self.members[name], **fields)

    @property
    def owners(self) -> dict[str, str]:
        return {stream: name for name, each in self.found.items() for stream in each.own}

    @property
    def loads(self) -> list[int]:
        return sorted(len(each.own) for each in self.found.values())

    def assign(self, *, balance: bool = False, weights: dict[str, float] | None = None) -> None:
        """One generation; each member then writes what it owns."""
        former = self.owners
        self.generation += 1
        self.found, self.even = assign_streams(
            self.members,
            weights=weights or {},
            standbys=self.standbys,
            now_ms=self.now_ms,
            balance=balance,
        )
        for name, each in self.members.items():
            own = self.found[name].own
            self.change(
                name,
                assigned={s: each.assigned.get(s, self.generation) for s in own},
                writing={s: each.writing.get(s, self.generation) for s in own},
                warm=self.found[name].warm,
            )
        self.moves.update(s for s, owner in self.owners.items() if former.get(s, owner) != owner)


def test_a_rolling_update_of_three_replicas_moves_each_of_sixty_streams_once() -> None:
    group = Group(["a1", "b1", "c1"], SIXTY)
    assert group.loads == [20, 20, 20]
    for old in ("a1", "b1", "c1"):
        new = old.replace("1", "2")
        group.join(new)
        group.assign()
        assert not group.found[new].own, "a replica that joins takes nothing away"
        group.change(old, leaving=True)
        group.assign()
        assert not group.found[old].own
        del group.members[old]
        group.assign()
    assert set(group.moves.values()) == {1}
    assert len(group.moves) == 60


def test_a_fourth_replica_gets_the_least_number_of_streams_by_balance_alone() -> None:
    group = Group(["a", "b", "c"], SIXTY)
    group.join("d")
    group.assign()
    assert (group.moves.total(), group.even) == (0, False)
    group.assign(balance=True)
    assert group.loads == [15, 15, 15, 15]
    group.assign()
    assert (group.moves.total(), group.even) == (15, True)


def test_a_death_moves_no_stream_of_live_replicas_and_its_own_go_where_they_are_warm() -> None:
    group = Group(["a", "b", "c"], SIXTY)
    before, warm = group.owners, {name: each.warm for name, each in group.found.items()}
    del group.members["b"]
    group.assign()
    for stream, owner in before.items():
        if owner == "b":
            assert stream in warm[group.owners[stream]]
        else:
            assert group.owners[stream] == owner
    assert (
        group.found["a"].own[
            next(s for s, o in before.items() if o == "b" and group.owners[s] == "a")
        ]
        == ""
    )


def test_a_leaving_and_an_unfit_member_hand_over_to_a_member_that_is_able() -> None:
    group = Group(["a", "b", "c"], {"s": "plan"})
    owner = group.owners["s"]
    others = {"a", "b", "c"} - {owner}
    group.change(owner, fit=False)
    found, _ = assign_streams(
        group.members, weights={}, standbys=2, now_ms=group.now_ms, balance=False
    )
    heir = next(name for name, each in found.items() if each.own)
    assert heir in others
    assert found[heir].own == {"s": owner}, "with the holder that hands it over"
    assert [name for name, each in found.items() if each.warm] == sorted(others - {heir})
    for name in others:
        group.change(name, fit=False)
    group.assign()
    assert group.owners["s"] == owner, "where nobody is fit nothing moves"


def test_a_fit_member_takes_from_unfit_ones_once_no_check_of_it_has_failed_for_15_s() -> None:
    group = Group(["a", "b", "c"], SIXTY)
    for first in (True, False):
        for name in "abc":  # an outage of the API server ends, or begins
            group.change(name, fit=first == (name == "a"), api_failed_ms=group.now_ms)
        group.now_ms += API_STEADY_MS - 1
        group.assign()
        assert not group.moves
        assert group.loads == [20, 20, 20]
    group.change("a", fit=True)
    group.now_ms += 1
    group.assign()
    assert not group.moves, "all are fit"
    group.change("b", fit=False)
    group.assign()
    assert group.moves.total() == 20


@pytest.mark.parametrize("unfit", [0, 1])
def test_an_unfit_member_is_given_nothing_while_no_check_of_the_fit_ones_has_succeeded_for_15_s(
    unfit: int,
) -> None:
    group = Group(["a", "b", "c"], {"s": "plan"})
    owner = group.owners["s"]
    others = sorted({"a", "b", "c"} - {owner})
    group.change(others[unfit], fit=False)
    group.change(others[1 - unfit], api_failed_ms=group.now_ms)
    group.change(owner, leaving=True)
    group.assign()
    assert group.owners == {"s": others[1 - unfit]}


def test_the_writer_goes_before_a_newer_assignment() -> None:
    members = {
        "writer": MemberMetadata("writer", plans={"s": "p"}, writing={"s": 7}, assigned={}),
        "next": MemberMetadata("next", plans={"s": "p"}, assigned={"s": 9}),
        "former": MemberMetadata("former", plans={"s": "p"}, writing={"s": 6}),
    }
    found, _ = assign_streams(members, weights={}, standbys=0, now_ms=0, balance=False)
    assert found["writer"].own == {"s": ""}
    del members["writer"], members["former"]
    members["other"] = MemberMetadata("other", plans={"s": "p"}, assigned={"s": 8})
    found, _ = assign_streams(members, weights={}, standbys=0, now_ms=0, balance=False)
    assert found["next"].own == {"s": ""}


def test_an_owner_with_an_old_plan_keeps_its_stream_for_five_minutes() -> None:
    group = Group(["a", "b"], {"s": "old", "t": "old-t"}, standbys=0)
    owner = group.owners["s"]
    other = "b" if owner == "a" else "a"
    new = {"s": "new", "t": "old-t"}
    group.now_ms += 1
    group.change(other, plans=new, config_order=(0, group.now_ms), config_hash="new")
    group.now_ms += OLD_PLAN_MS - 1
    group.assign()
    assert group.owners["s"] == owner
    group.now_ms += 1
    group.assign()
    assert group.owners["s"] == other
    assert group.moves == {"s": 1}, "a stream whose plan is the same in both configs stays"
    group.change(other, fit=False)
    group.assign()
    assert group.owners["s"] == owner, "who is able goes before who has the newest plan"


def test_a_plan_that_differs_by_discovery_alone_moves_no_stream_however_long() -> None:
    for first in "ab":
        group = Group(["a"], {"s": "v1", "t": "v1"}, standbys=0)
        group.now_ms += 1
        group.join("b")
        group.assign(balance=True)
        group.change(first, plans={"s": "v2", "t": "v2"})
        group.now_ms += OLD_PLAN_MS
        group.assign()
        assert group.moves.total() == 1, "by balance"


def test_a_stream_that_nobody_runs_goes_by_the_newest_plan_whatever_its_age() -> None:
    members = {
        "old": MemberMetadata(
            "old", config_order=(3, 900), plans={"s": "p3"}, config_hash="3", warm=("s",)
        ),
        "new": MemberMetadata("new", config_order=(4, 100), plans={"s": "p4"}, config_hash="4"),
    }
    found, _ = assign_streams(members, weights={}, standbys=1, now_ms=1000, balance=True)
    assert found["new"].own == {"s": ""}
    assert found["old"].warm == ("s",)


def test_streams_that_only_some_configs_have() -> None:
    group = Group(["a"], {"s": "p", "removed": "p1"})
    group.join("b", {"s": "p", "added": "p2"}, revision=1)
    group.assign()
    assert group.owners == {"s": "a", "removed": "a", "added": "b"}
    group.join("a", {"s": "p", "added": "p2"}, revision=1)
    group.assign()
    assert group.owners == {"s": group.owners["s"], "added": "b"}


def test_balance_goes_by_weight_and_leaves_small_differences() -> None:
    weights = {"heavy": 100.0} | {f"s{number}": 1.0 for number in range(100)}
    group = Group(["a", "b"], dict.fromkeys(weights, "p"))
    group.assign(balance=True, weights=weights)
    heavy = group.owners["heavy"]
    assert [s for s, owner in group.owners.items() if owner == heavy] == ["heavy"]
    moves = group.moves.total()
    group.assign(balance=True, weights=weights | {"heavy": 115.0})
    assert group.even
    assert group.moves.total() == moves


def test_balance_moves_no_stream_that_leaves_the_loads_as_different_as_before() -> None:
    group = Group(["a", "b"], dict.fromkeys(("s0", "s1", "s2"), "p"))
    group.assign()
    owners = group.owners
    (first, _), _ = sorted(
        ([s for s, owner in owners.items() if owner == name] for name in "ab"), key=len
    )[::-1]
    group.assign(balance=True, weights=dict.fromkeys(owners, 1.0) | {first: 1.05})
    assert group.even
    assert group.owners == owners


def test_a_thousand_streams_over_twenty_members_come_out_even() -> None:
    group = Group([], {})
    plans = {f"deployments.apps@team-{number}": "p" for number in range(1000)}
    for number in range(20):
        group.join(f"relay-{number}", plans)
    group.assign(balance=True)
    assert group.loads == [50] * 20
    for each in group.found.values():
        assert set(each.owners.values()) == {()}, "too large a table"
        assert len(each.owners) == 20


def test_the_table_of_owners_goes_to_all_where_it_is_small() -> None:
    group = Group(["a", "b"], {"s": "p", "t": "p"})
    assert group.found["a"].owners == group.found["b"].owners == {"a": ("s",), "b": ("t",)}
    assert len(msgspec.json.encode(group.found["a"].owners)) < OWNERS_BYTES_MAX


def test_an_age_that_is_late_changes_no_order_of_configs_and_one_by_another_clock_does() -> None:
    now_ms = 1_800_000_000_000
    first = MemberMetadata("a", config_order=(0, now_ms - 8_000), ages_ms=(0, 5_000))
    late = by_clock_of_leader(first, now_ms=now_ms)
    assert late.config_order == first.config_order, "8 s are what a join may take"
    assert late.api_failed_ms == now_ms - 5_000
    for ahead_ms in (-3_600_000, 3_600_000):
        other = MemberMetadata("b", config_order=(2, now_ms - 90 + ahead_ms), ages_ms=(100, 5_000))
        assert by_clock_of_leader(other, now_ms=now_ms).config_order == (2, now_ms - 100)


def test_metadata_of_a_newer_release_is_read_and_a_zip_bomb_is_not() -> None:
    ours = MemberMetadata("a", plans={"s": "p"})
    longer = [*msgspec.to_builtins(ours), "a field of a later release"]
    assert decode_metadata(zlib.compress(msgspec.json.encode(longer))) == ours
    assert decode_metadata(zlib.compress(b'["a"' + b" " * (64 << 20) + b"]")) is None
    assert decode_metadata(encode(ours)[:-1]) is None
    assert decode_metadata(encode(MemberAssignment())) is None
    assert decode_metadata(b"") is None


# ---- split streams -------------------------------------------------------------------------------


def layout(count: int) -> dict[str, str]:
    return {f"pods%{place}/{count}": f"plan {count}" for place in range(count)}


def test_all_parts_of_a_stream_belong_to_the_newest_layout_that_all_know() -> None:
    group = Group(["a", "b", "c"], layout(2))
    assert group.owners.keys() == layout(2).keys()
    for name in ("a", "b"):
        group.join(name, layout(4), revision=1)
        group.assign()
        assert group.owners.keys() == layout(2).keys(), "c does not know the newer one"
    group.join("c", layout(4), revision=1)
    group.assign()
    assert group.owners.keys() == layout(4).keys()
    assert group.loads == [1, 1, 2]


def test_after_five_minutes_the_newest_layout_counts_though_not_all_know_it() -> None:
    group = Group(["a", "b"], layout(2))
    group.join("a", layout(4), revision=1)
    group.now_ms += OLD_PLAN_MS - 1
    group.assign()
    assert group.owners == dict.fromkeys(layout(2), "b")
    group.now_ms += 1
    group.assign()
    assert group.owners == dict.fromkeys(layout(4), "a")


def test_who_comes_back_with_an_older_layout_does_not_bring_it_back() -> None:
    group = Group(["a", "b", "c"], layout(2))
    group.change("c", fit=False)
    for name in ("a", "b"):
        group.join(name, layout(4), revision=1)
    group.now_ms += 60_000
    group.assign()
    assert group.owners.keys() == layout(4).keys(), "c is not able"
    group.change("c", fit=True)
    group.assign()
    assert group.owners.keys() == layout(4).keys()
    assert set(group.owners.values()) == {"a", "b"}


def test_a_layout_that_is_taken_back_before_anyone_writes_it_is_written_by_nobody() -> None:
    group = Group(["a", "b", "c"], layout(2))
    group.join("c", layout(4), revision=1)
    group.join("a", layout(2), revision=2)
    group.assign()
    assert group.owners.keys() == layout(2).keys()


def test_those_who_are_not_able_do_not_delay_the_newest_layout() -> None:
    group = Group(["a", "b"], layout(2))
    group.join("a", layout(3), revision=1)
    group.change("b", leaving=True)
    group.assign()
    assert group.owners == dict.fromkeys(layout(3), "a")


def test_a_part_is_handed_over_by_each_writer_of_one_of_its_partitions() -> None:
    group = Group(["a", "b"], layout(2))
    writers = group.owners
    for name in ("a", "b"):
        group.join(name, layout(3), revision=1)
        own = {part: 7 for part, owner in writers.items() if owner == name}
        group.change(name, writing=own)
    group.assign()
    former = {part: each for name in "ab" for part, each in group.found[name].own.items()}
    first, second = writers["pods%0/2"], writers["pods%1/2"]
    assert former["pods%0/3"] == first
    assert former["pods%2/3"] == second
    assert former["pods%1/3"] in {first, second}, "it has partitions of both"


def test_streams_that_are_not_split_are_not_touched_by_layouts() -> None:
    group = Group(["a", "b"], {**layout(2), "pods@shop": "plan", "nodes": "plan"})
    group.join("a", {**layout(4), "pods@shop": "plan", "nodes": "plan"}, revision=1)
    group.assign()
    assert group.owners.keys() == {*layout(2), "pods@shop", "nodes"}


def test_a_member_that_is_claiming_a_stream_hands_it_over() -> None:
    group = Group(["a"], {"s0": "plan"})
    group.join("b")
    group.change("a", writing={}, beginning=("s0",), plans={})
    group.assign()
    assert group.found["b"].own == {"s0": "a"}, "by now it may write it"


def test_a_member_that_is_claiming_a_stream_hands_it_back_to_the_former_writer() -> None:
    group = Group(["a"], {"s0": "plan"})
    group.join("b")
    group.change("a", writing={"s0": 4})
    group.change("b", writing={}, beginning=("s0",), plans={})
    group.assign()
    assert group.found["a"].own == {"s0": "b"}, "by now it may write it"


def test_balance_leaves_streams_that_are_on_the_way() -> None:
    group = Group(["a"], {f"s{number}": "plan" for number in range(4)})
    group.join("b")
    own = tuple(group.found["a"].own)
    group.change("a", beginning=own)
    group.assign(balance=True)
    assert group.loads == [0, 4], "their logs are being read back"
    assert not group.even, "it is looked again later"
    group.change("a", beginning=own[1:])
    group.assign(balance=True)
    assert group.owners[own[0]] == "b"
    assert group.loads == [1, 3]
    group.change("a", beginning=())
    group.assign(balance=True)
    assert group.loads == [2, 2]
    assert group.even
