"""A client that may write to a topic may write anything: each record that follows no rule is
refused in one line, and nothing else happens."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from watchrelay.cli.records import as_text
from watchrelay.consumer.reader import TailRecord
from watchrelay.contract.control import COUNT_MAX, VALUE_BYTES_MAX
from watchrelay.contract.control_state import ControlState, Origin
from watchrelay.contract.records import decode
from watchrelay.core.errors import RecordRefused
from watchrelay.daemon.snapshot_requests import answered
from watchrelay.kafka.log_scan import epoch_of, other_cluster
from watchrelay.kafka.signal_records import SIGNAL_BYTES_MAX, STREAMS_MAX, parse_signal

DEEP = b"[" * 100_000 + b"]" * 100_000
HEADERS: dict[str, bytes | None] = {
    "ce_type": b"dev.watchrelay.object.added.v1",
    "ce_wrstream": b"pods",
    "ce_wrepoch": b"1",
    "ce_sequence": b"%020d" % 7,
    "ce_time": b"2026-01-01T00:00:00.000Z",
    "ce_wrreason": b"watch",
    "ce_wrhash": b"0" * 16,
    "ce_wrrv": b"5",
    "content-type": b"application/json",
}
CHANGE = b'{"before":null,"op":"u","after":%b}'
EVENT = b'{"specversion":"1.0","data":%b}'


def one_line(error: BaseException) -> None:
    assert str(error).isprintable(), str(error)
    assert len(str(error)) < 2000


def decoded(key: Any = b"shop/a", value: Any = b"{}", **changed: Any) -> object:
    headers = HEADERS | {
        name.replace("content_type", "content-type"): content for name, content in changed.items()
    }
    return decode(key, value, headers.items())


def test_the_record_that_the_others_are_made_from_is_legal() -> None:
    assert decoded() is not None


@pytest.mark.parametrize(
    "changed",
    [
        {"ce_wrepoch": b"-1"}, {"ce_wrepoch": b" 1"}, {"ce_wrepoch": b"1_0"}, {"ce_wrepoch": b"9" * 21}, {"ce_wrepoch": b"9" * 5000},
        {"ce_sequence": b"\xd9\xa3"}, {"ce_sequence": b""}, {"ce_wrhash": b"-00000000000000f"}, {"ce_wrhash": b"0x0000000000000f"},
        {"ce_wrstream": b"\xff"}, {"ce_time": b"\xff"}, {"ce_wrrv": b"\xff"}, {"content_type": b"text/\x1b[31mhtml\n"},
        {"ce_type": b"\x1b]0;owned\x07" + b"x" * 5000}, {"key": b"\xff\xfe"},
        {"content_type": b"application/cloudevents+json", "value": b"["},
        {"content_type": b"application/cloudevents+json", "value": EVENT % DEEP},
        {"content_type": b"application/cloudevents+json", "value": b'{"specversion":"\xff"}'},
        {"content_type": b"application/cloudevents+json", "value": b'{"specversion":"\\u001b%b"}' % (b"x" * 5000)},
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_read_is_refused_in_one_line(changed: dict[str, bytes]) -> None:
    with pytest.raises(RecordRefused) as caught:
        decoded(**changed)
    one_line(caught.value)


@pytest.mark.parametrize("value", [CHANGE % DEEP, CHANGE % b'"\xff"', b'{"before":' + DEEP])
def test_what_begins_like_a_change_and_is_none_is_an_object(value: bytes) -> None:
    assert getattr(decoded(value=value), "value", None) in {value, value[len(CHANGE) - 3 : -1]}


CONTROL = [
    (b"claim/pods", DEEP), (b"claim/pods", b'{"instance":%b}' % DEEP), (b"claim/pods", b'{"instance":"\xff"}'),
    (b"claim/pods", b'{"instance":7}'), (b"claim/pods", b'{"\\ud800":1}'), (b"stream/pods", b'{"epochBase":true}'),
    (b"stream/pods", b'{"epochBase":-1}'), (b"stream/pods", b'{"epochBase":%d}' % (COUNT_MAX + 1)),
    (b"stream/pods", b'{"epochBase":1e300}'),
    (b"stream/pods", b'{"epochBase":"1"}'), (b"stream/" + b"\x1b[2J" * 9999, b"{}"), (b"\x00" * 9999, b"{}"), (None, b"{}"),
    (b"stream/pods", b'{"epochBase":1}' + b" " * VALUE_BYTES_MAX),
    (b"snapshot/pods", b"[]"), (b"snapshot/pods", b"nul"), (b"other/pods", b"{}"), (b"claim/", b"{}"),
    (b"junk", b"{}"), (b"claim/pods", b"[]"), (b"claim/pods", b"{}"), (b"release/pods", b"{}"), (b"release/pods", b'{"epoch":-1}'),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), CONTROL, ids=range(len(CONTROL)))
def test_a_control_record_that_cannot_be_used_is_refused_and_changes_nothing(
    key: bytes | None, value: bytes
) -> None:
    state = ControlState()
    state.read(0, b"stream/pods", b'{"topic":"t","partitions":2,"epochBase":3}')
    with pytest.raises(RecordRefused) as caught:
        state.read(1, key, value)
    one_line(caught.value)
    assert (state.of("pods").epoch_base, state.of("pods").claimed) == (3, -1)
    assert state.origins("pods") == [Origin(), Origin()]


def test_a_description_cannot_ask_a_reader_for_more_partitions_than_there_are() -> None:
    view = ControlState()
    with pytest.raises(RecordRefused):
        view.read(0, b"stream/pods", b'{"topic":"t","partitions":4000000000,"epochBase":1}')
    assert view.origins("pods") == []


INDEXES: list[object] = [
    None, 7, [], [7], [[]], [{"partition": [0], "begin": 1}], [{"partition": {"a": 1}, "begin": 1}], [{"partition": 0, "begin": -1}],
    [{"partition": 0, "begin": True}], [{"partition": 0, "begin": 1.5}], [{"partition": 0}], [{"partition": 9, "begin": 1}],
    [{"partition": 0, "begin": 2**60}],
]  # fmt: skip


@pytest.mark.parametrize("partitions", INDEXES, ids=map(repr, INDEXES))
def test_an_index_record_that_cannot_be_used_means_the_start(partitions: object) -> None:
    first = {"partition": 0, "begin": 1}
    for index in (
        {"epoch": 3, "snapshot": "s", "partitions": partitions},
        {"epoch": 3, "snapshot": {}, "partitions": [first]},
    ):
        view = ControlState()
        view.read(0, b"claim/pods", b'{"instance":"a","from":{"snapshot":"s","begin":[-4]}}')
        view.read(1, b"stream/pods", b'{"topic":"t","partitions":1,"epochBase":3}')
        view.read(2, b"snapshot/pods", json.dumps(index).encode())
        assert view.origins("pods") == [Origin()]


@pytest.mark.parametrize(
    "time", [None, 7, "", "now", "2026-01-01T00:00:00", "0001-01-01T00:00:00+23:59", "9" * 9999]
)
def test_the_time_of_an_index_record_may_be_anything(time: object) -> None:
    assert answered({"requests": {"a": 1}, "time": time}, "x", 1_000, 1 << 60) is False


@pytest.mark.parametrize(
    "value",
    [
        DEEP,
        b'{"id":"x","type":"execute-snapshot","data":{"streams":["a"],"more":%b}}' % DEEP,
        b'{"id":"x","type":"%b"}' % (b"\\u001b" * 9999),
        b'{"id":"x","type":"execute-snapshot","data":{"streams":["\xff"]}}',
        b'{"id":"\\u001b[2J","type":"execute-snapshot","data":{"streams":[]}}',
        b'{"id":"x","type":"execute-snapshot","data":{"streams":["a"]}}' + b" " * SIGNAL_BYTES_MAX,
        msgspec.json.encode(
            {
                "id": "x",
                "type": "execute-snapshot",
                "data": {"streams": [str(n) for n in range(STREAMS_MAX + 1)]},
            }
        ),
    ],
    ids=range(7),
)
def test_a_signal_that_cannot_be_used_is_refused_in_one_line(value: bytes) -> None:
    with pytest.raises(RecordRefused) as caught:
        parse_signal(value)
    one_line(caught.value)


@pytest.mark.parametrize("header", ["ce_wrstream", "ce_time", "ce_wrrv"])
def test_no_record_moves_the_cursor_of_who_reads_tail(header: str) -> None:
    record = decoded(
        b"shop/a\x1b[2J\nfake", b"{}", **{header: b"2026-01-01T0\x1b]0;x\x07\n\xe2\x80\xae\xc2\x9b"}
    )
    assert as_text(TailRecord("t", 0, 0, record), coloured=False).isprintable()  # type: ignore[arg-type]  # any decoded record


@pytest.mark.parametrize(
    "epoch", [b"9" * 5000, b"9" * 20, b"%d" % (1 << 63), b"%d" % (1 << 53), b"-1", b"", None]
)
def test_an_epoch_that_none_can_be_above_is_no_epoch(epoch: bytes | None) -> None:
    with pytest.raises(RecordRefused) as caught:
        decoded(ce_wrepoch=epoch)
    one_line(caught.value)
    assert epoch_of([("ce_wrstream", b"pods"), ("ce_wrepoch", epoch)], "pods") == 0
    assert (
        epoch_of([("ce_wrstream", b"pods"), ("ce_wrepoch", b"%d" % ((1 << 53) - 1))], "pods")
        == (1 << 53) - 1
    )


def test_an_offset_that_no_client_can_go_to_is_refused() -> None:
    heartbeat = {
        "ce_type": b"dev.watchrelay.heartbeat.v1",
        "ce_wrconfig": b"c",
        "ce_wrpartitions": b"1",
        "ce_wrcount": b"0",
    }
    heartbeat |= {"ce_wrdigest": b"0" * 16, "ce_wrlastsnap": b"1-1"}
    assert decoded(
        b"%wr/heartbeat/pods/0", None, **heartbeat, ce_wrlastsnapoff=b"%d" % ((1 << 63) - 1)
    )
    with pytest.raises(RecordRefused) as caught:
        decoded(b"%wr/heartbeat/pods/0", None, **heartbeat, ce_wrlastsnapoff=b"%d" % (1 << 63))
    one_line(caught.value)


@pytest.mark.parametrize(
    ("partition", "partitions"),
    [(b"0", b"0"), (b"1", b"1"), (b"0", b"9" * 20), (b"9" * 20, b"9" * 20), (b"7", b"6")],
)
def test_a_marker_of_a_partition_that_no_stream_has_is_refused(
    partition: bytes, partitions: bytes
) -> None:
    claim = {"ce_type": b"dev.watchrelay.claim.v1", "ce_wrconfig": b"c"}
    assert decoded(b"%wr/claim/pods/5", None, **claim, ce_wrpartitions=b"6")
    with pytest.raises(RecordRefused, match="a stream has 1 to 100000 partitions") as caught:
        decoded(b"%wr/claim/pods/" + partition, None, **claim, ce_wrpartitions=partitions)
    one_line(caught.value)


def test_the_cluster_that_a_strange_record_names_is_printable_and_short() -> None:
    headers = [
        ("ce_wrstream", b"pods"),
        ("ce_source", b"/clusters/\x1b[2J\n" + b"x" * 99999 + b"/api/v1/pods"),
    ]
    found = other_cluster(headers, "c")
    assert found.isprintable()
    assert len(found) < 500
