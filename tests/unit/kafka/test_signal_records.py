"""What is a request, and why other records are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchrelay.core.errors import RecordRefused
from watchrelay.kafka.signal_records import (
    SnapshotRequest,
    parse_signal,
    requests_for,
    signal_value,
)


def test_a_request_is_shaped_as_debeziums_signals() -> None:
    assert (
        signal_value(SnapshotRequest("r-1", ("pods",)))
        == b'{"id":"r-1","type":"execute-snapshot","data":{"streams":["pods"]}}'
    )


@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=50),
    st.lists(st.text(max_size=20), min_size=1, max_size=5, unique=True),
)
def test_a_request_reads_back_as_it_was(request_id: str, streams: list[str]) -> None:
    request = SnapshotRequest(request_id, tuple(streams))
    assert parse_signal(signal_value(request)) == request


@pytest.mark.parametrize("count", [1, 1000, 1001, 2500])
def test_however_many_streams_are_wanted_each_record_is_taken(count: int) -> None:
    streams = [f"stream-{number}" for number in range(count)]
    taken = [parse_signal(signal_value(each)) for each in requests_for("x", streams)]
    assert {each.id for each in taken} == {"x"}
    assert [stream for each in taken for stream in each.streams] == streams


def test_what_a_later_version_adds_is_passed_over_and_a_stream_named_twice_is_one() -> None:
    value = b'{"id":"x","type":"execute-snapshot","extra":1,"data":{"streams":["pods","pods"],"type":"incremental"}}'
    assert parse_signal(value) == SnapshotRequest("x", ("pods",))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "without a value"),
        (b"", "not a signal"),
        (b"\xff\xfe", "not a signal"),
        (b'{"id":"x","type":"execute-snapshot","data":{"streams":["\xff"]}}', "not a signal"),
        (b'{"id":"x","type":"execute-snapshot","more":' + b"[" * 100_000, "not a signal"),
        (b"[]", "not a signal"),
        (
            b'{"id":"x\xff","type":"execute-snapshot","data":{"streams":["a"]}}',
            r"not a signal: byte 8 of the value \(0xff\) is not UTF-8",
        ),
        (
            b'{"id":"\xc3\xa4","type":"execute-snapshot","data":{"streams":["a","b\xe9"]}}',
            r"byte 62 of the value \(0xe9\) is not UTF-8",
        ),
        (b'{"type":"execute-snapshot","data":{"streams":["a"]}}', "missing required field `id`"),
        (b'{"id":7,"type":"execute-snapshot","data":{"streams":["a"]}}', r"`str`, got `int` - at `\$.id`"),
        (b'{"id":"x","type":"stop","data":{}}', "type 'stop': only execute-snapshot"),
        (b'{"id":"x","type":"execute-snapshot"}', "missing required field `data`"),
        (b'{"id":"x","type":"execute-snapshot","data":{"streams":"pods"}}', "`array`, got `str`"),
        (b'{"id":"x","type":"execute-snapshot","data":{"streams":[]}}', "'x' names no stream"),
        (b'{"id":"","type":"execute-snapshot","data":{"streams":["a"]}}', "0 bytes"),
        (b'{"id":"' + b"x" * 201 + b'","type":"execute-snapshot","data":{"streams":["a"]}}', "201 bytes"),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused_with_the_reason(value: bytes | None, why: str) -> None:
    with pytest.raises(RecordRefused, match=why):
        parse_signal(value)
