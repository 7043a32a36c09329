"""What others may write to the control topic, against the bounds of what is read and kept of it."""

import json
import tracemalloc

import pytest

from watchrelay.contract.control import REQUESTS_MAX, VALUES_MAX, parse_control
from watchrelay.contract.control_state import KEPT_BYTES, KEPT_BYTES_A_STREAM, ControlState
from watchrelay.contract.records import PARTITIONS_MAX
from watchrelay.core.errors import RecordRefused

CLAIM = b'{"instance":"a","x":"%b"}'


def test_a_value_of_too_many_values_is_refused_by_name_before_it_is_decoded() -> None:
    fits = VALUES_MAX - CLAIM.count(b",") - CLAIM.count(b"{")
    assert parse_control(b"claim/pods", CLAIM % (b"," * fits)).value
    for mark in (b",", b"[", b"{"):
        with pytest.raises(RecordRefused, match="control record with 700,001 commas and opening"):
            parse_control(b"claim/pods", CLAIM % (b"," * fits + mark))
    with pytest.raises(RecordRefused, match="700,000 are taken"):
        parse_control(b"claim/pods", b"{" * 700_001)  # no JSON: it is not looked at


@pytest.mark.parametrize(
    ("key", "field", "most", "why"),
    [
        (b"snapshot/pods", '"partitions":[%s]', PARTITIONS_MAX, "length <= 100000"),
        (b"snapshot/pods", '"requests":[%s]', REQUESTS_MAX, "length <= 10000"),
        (b"claim/pods", '"from":{"snapshot":"1-1","begin":[%s]}', 200_008, "200,010 are taken"),
    ],
)
def test_a_field_of_too_many_values_is_left_out_by_name(
    key: bytes, field: str, most: int, why: str
) -> None:
    each = {"partitions": '{"partition":0,"begin":1}', "requests": '"r"'}.get(field[1:-6], "1")
    name = field[1:].partition('"')[0]
    for count, is_taken in ((most, True), (most + 1, False)):
        value = '{"instance":"a",%s}' % (field % ",".join([each] * count))
        read = parse_control(key, value.encode())
        assert read.value is not None
        assert (name in read.value) == is_taken
        assert (f"field {name}: " in read.odd and why in read.odd) != is_taken


def test_large_fields_of_another_version_are_passed_over_and_small_ones_kept() -> None:
    small, large = {"more": [1] * 900}, {"more": [1] * 1100}
    for more, kept in ((small, small), (large, {})):
        value = json.dumps({"epoch": 3, **more}).encode()
        assert parse_control(b"release/pods", value).value == {"epoch": 3, **kept}


def part_claim(place: int) -> bytes:
    claim = {"instance": "a", "holder": f"h{place}", "partitions": [place]}
    return json.dumps(claim).encode()


def flooded(wanted: tuple[str, ...]) -> ControlState:
    """A control topic with a stream of two parts, and more foreign records than are kept: parts of
    it, other streams, and large values."""
    state = ControlState(wanted)
    state.read(0, b"stream/pods", b'{"topic":"t","partitions":2,"epochBase":1}')
    for place in range(2):
        state.read(1 + place, b"claim/pods%%%d/2" % place, part_claim(place))
    for number in range(3000):
        state.read(100 + number, b"release/pods%%%d/3000" % number, b'{"epoch":1}')
        state.read(10_000 + number, b"snapshot/other%d" % number, b"{}")
    wide = json.dumps({"instance": "i", "partitions": [*range(50_000)]}).encode()
    listed = json.dumps({"partitions": [{"partition": 1, "begin": 1}] * 20_000}).encode()
    for number in range(20):
        state.read(20_000 + number, b"claim/wide%d" % number, wide)
        state.read(30_000 + number, b"snapshot/wide%d" % number, listed)
    return state


def test_whatever_others_write_what_is_kept_of_the_control_topic_has_a_bound() -> None:
    tracemalloc.start()
    try:
        state = flooded(("pods",))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < KEPT_BYTES + KEPT_BYTES_A_STREAM
    assert state.forgotten > 3000
    held = state.of("pods")
    assert [getattr(each, "holder", "") for each in held.owners(2)] == ["h0", "h1"]
    assert held.described is not None
    assert state.of("wide19").claimed == 20_019
    assert "wide0" not in state.streams, "of other streams those claimed last are kept"
    assert "other0" not in state.streams


def test_of_one_stream_the_parts_claimed_last_are_kept() -> None:
    state = ControlState()
    state.read(0, b"stream/pods", b'{"topic":"t","partitions":100000,"epochBase":1}')
    value = json.dumps({"instance": "i", "partitions": [*range(50_000)]}).encode()
    for number in range(20):
        state.read(1 + number, b"claim/pods%%%d/20" % number, value)
    held = state.of("pods")
    kept = len(held.parts)
    assert 5 < kept < 20
    assert list(held.parts) == [f"pods%{number}/20" for number in range(20 - kept, 20)]
    assert held.owners(8)[7] is held.parts["pods%19/20"]
    assert held.described is not None, "a stream goes after its parts"


def test_a_stream_of_the_config_is_known_by_the_row_of_its_part() -> None:
    state = flooded(("pods%0/2", "pods%1/2"))
    assert {*state.of("pods").parts} >= {"pods%0/2", "pods%1/2"}
