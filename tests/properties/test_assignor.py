"""Whatever members report, each stream has one owner, and who may keep a stream keeps it."""

from __future__ import annotations

import zlib

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.support.extent import examples
from watchrelay.replicas.assignor import (
    OLD_PLAN_MS,
    MemberAssignment,
    MemberMetadata,
    assign_streams,
    decode_assignment,
    decode_metadata,
    encode,
    summarize,
)

NOW_MS = 1_800_000_000_000
_streams = st.sampled_from([f"s{number}" for number in range(8)])
_numbers = st.dictionaries(_streams, st.integers(1, 5), max_size=8)


@st.composite
def _members(draw: st.DrawFn) -> dict[str, MemberMetadata]:
    """Up to five members with one of three configs, of which each has its own order."""
    ages = (0, OLD_PLAN_MS - 1, OLD_PLAN_MS, 2 * OLD_PLAN_MS)
    configs = [
        (
            (draw(st.integers(0, 2)), NOW_MS - draw(st.sampled_from(ages))),
            draw(st.dictionaries(_streams, st.sampled_from("ab"), max_size=8)),
        )
        for _ in range(3)
    ]
    members = {}
    for number in range(draw(st.integers(1, 5))):
        order, plans = config = draw(st.sampled_from(configs))
        members[f"m{number}"] = MemberMetadata(
            holder=f"holder-{number}",
            config_order=order,
            plans={stream: f"{stream}-{plan}" for stream, plan in plans.items()},
            assigned=draw(_numbers),
            writing=draw(_numbers),
            warm=tuple(draw(st.sets(_streams, max_size=4))),
            fit=draw(st.booleans()),
            leaving=draw(st.booleans()),
            config_hash=f"config {configs.index(config)}",
        )
    return members


_weights = st.dictionaries(_streams, st.sampled_from((0.5, 1.0, 5.0, 20.0, 100.0)), max_size=8)


def _able(members: dict[str, MemberMetadata]) -> list[str]:
    fit = [name for name, each in members.items() if each.fit and not each.leaving]
    return fit or [name for name, each in members.items() if not each.leaving] or [*members]


def _candidates(members: dict[str, MemberMetadata], stream: str) -> list[str]:
    able = [name for name in _able(members) if stream in members[name].plans]
    return able or [name for name in members if stream in members[name].plans]


def _order(members: dict[str, MemberMetadata], name: str, stream: str) -> tuple[int, int]:
    plan = members[name].plans[stream]
    return max(each.config_order for each in members.values() if plan in each.plans.values())


def _owners(assignments: dict[str, MemberAssignment]) -> dict[str, str]:
    return {stream: name for name, each in assignments.items() for stream in each.own}


@settings(max_examples=examples(400))
@given(_members(), _weights, st.integers(0, 3), st.booleans(), st.randoms())
def test_each_stream_has_one_able_owner_and_all_the_standbys_there_can_be(
    members: dict[str, MemberMetadata],
    weights: dict[str, float],
    standbys: int,
    balance: bool,
    rng: object,
) -> None:
    found, even = assign_streams(
        members, weights=weights, standbys=standbys, now_ms=NOW_MS, balance=balance
    )
    shuffled = list(members.items())
    rng.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a Random
    assert (found, even) == assign_streams(
        dict(shuffled), weights=weights, standbys=standbys, now_ms=NOW_MS, balance=balance
    )
    streams = {stream for each in members.values() for stream in each.plans}
    assert sorted(stream for each in found.values() for stream in each.own) == sorted(streams)
    owners = _owners(found)
    for stream in streams:
        owner, candidates = owners[stream], _candidates(members, stream)
        assert owner in candidates
        warm = [name for name, each in found.items() if stream in each.warm]
        others = [
            name for name in _able(members) if stream in members[name].plans and name != owner
        ]
        assert set(warm) <= set(others)
        assert len(warm) == min(standbys, len(others))
        former = found[owner].own[stream]
        writers = {
            each.holder: each.writing[stream] for each in members.values() if stream in each.writing
        }
        if former:
            assert former != members[owner].holder
            assert writers[former] == max(writers.values())
    on_the_way = any(former for each in found.values() for former in each.own.values())
    assert even or not balance or on_the_way


@settings(max_examples=examples(400))
@given(_members(), _weights)
def test_a_stream_stays_with_its_writer_then_where_it_was_assigned_unless_the_plan_is_old(
    members: dict[str, MemberMetadata], weights: dict[str, float]
) -> None:
    found, _ = assign_streams(members, weights=weights, standbys=1, now_ms=NOW_MS, balance=False)
    for stream, owner in _owners(found).items():
        candidates = _candidates(members, stream)
        newest = max(_order(members, name, stream) for name in candidates)
        may_keep = [
            name
            for name in candidates
            if _order(members, name, stream) == newest or NOW_MS - newest[1] < OLD_PLAN_MS
        ]
        top = max((each.writing.get(stream, 0) for each in members.values()), default=0)
        writers = [
            name for name, each in members.items() if top and each.writing.get(stream) == top
        ]
        last = max((members[name].assigned.get(stream, 0) for name in candidates), default=0)
        assigned = [
            name for name in candidates if last and members[name].assigned.get(stream) == last
        ]
        if len(writers) == 1 and writers[0] in may_keep:
            assert owner == writers[0]
        elif len(writers) <= 1 and len(assigned) == 1 and assigned[0] in may_keep:
            assert owner == assigned[0]
        elif owner not in (*writers, *assigned):
            assert _order(members, owner, stream) == newest


@settings(max_examples=examples(200))
@given(_members(), _weights)
def test_balance_comes_to_rest(
    members: dict[str, MemberMetadata], weights: dict[str, float]
) -> None:
    for balance in (False, True):  # what is on the way does not move
        found, _ = assign_streams(
            members, weights=weights, standbys=0, now_ms=NOW_MS, balance=balance
        )
        members = {
            name: msgspec.structs.replace(
                each,
                assigned=dict.fromkeys(found[name].own, 9),
                writing=dict.fromkeys(found[name].own, 9),
            )
            for name, each in members.items()
        }
    again, _ = assign_streams(members, weights=weights, standbys=0, now_ms=NOW_MS, balance=True)
    moved = {s for s, owner in _owners(found).items() if _owners(again)[s] != owner}
    assert not moved
    _, even = assign_streams(members, weights=weights, standbys=0, now_ms=NOW_MS, balance=False)
    assert even


@given(_members(), st.integers(0, 2))
def test_messages_come_back_as_they_were(members: dict[str, MemberMetadata], standbys: int) -> None:
    found, _ = assign_streams(members, weights={}, standbys=standbys, now_ms=NOW_MS, balance=False)
    assert {name: decode_metadata(encode(each)) for name, each in members.items()} == members
    assert {name: decode_assignment(encode(each)) for name, each in found.items()} == found


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.binary(max_size=60) | _json.map(lambda value: zlib.compress(msgspec.json.encode(value))))
def test_odd_bytes_are_no_message_or_one_that_can_be_used(data: bytes) -> None:
    metadata = decode_metadata(data)
    assignment = decode_assignment(data)
    assert assignment is None or isinstance(assignment, MemberAssignment)
    if metadata is not None:
        members = {"odd": metadata, "ours": MemberMetadata("ours", plans={"s": "p"})}
        found, _ = assign_streams(members, weights={}, standbys=1, now_ms=NOW_MS, balance=True)
        assert "s" in found["ours"].own or "s" in found["odd"].own


_names = st.sampled_from(
    ["s", "s%0/2", "s%1/2", "s%0/0", "s%2/2", "s%-1/2", "s%0/1", "s%", "%0/2", "", "s%0/9999999"]
) | st.text(max_size=9)
_integers = st.sampled_from([0, -1, 2**53, 2**63, 2**64, -(2**63) - 1, 10**30]) | st.integers()
_sizes = st.sampled_from([1, 1, 1, 200, 2_000])


@st.composite
def _odd_metadata(draw: st.DrawFn) -> bytes:
    """Well-formed metadata of a member that is no replica of this relay."""
    numbers = st.dictionaries(_names, _integers, max_size=4)
    return encode(
        MemberMetadata(
            holder=draw(_names) * draw(_sizes),
            config_order=(draw(_integers), draw(_integers)),
            plans=draw(st.dictionaries(_names, _names, max_size=4)),
            assigned=draw(numbers),
            writing=draw(numbers),
            warm=tuple(draw(st.lists(_names, max_size=4))),
            counter=draw(_integers),
            config_hash=draw(_names) * draw(_sizes),
        )
    )


@settings(max_examples=examples(400))
@given(_odd_metadata(), st.booleans())
def test_whatever_a_member_reports_the_others_can_read_what_they_are_assigned(
    data: bytes,
    balance: bool,
) -> None:
    members = {"ours": MemberMetadata("ours", plans={"own": "p", "s%0/2": "p", "s%1/2": "p"})}
    if (metadata := decode_metadata(data)) is not None:
        members["odd"] = metadata
    found, even = assign_streams(members, weights={}, standbys=1, now_ms=NOW_MS, balance=balance)
    group = summarize(members, found, leader="ours", even=even)
    sent = {name: encode(replace(each, group=group)) for name, each in found.items()}
    assert decode_assignment(sent["ours"]) == replace(found["ours"], group=group)
