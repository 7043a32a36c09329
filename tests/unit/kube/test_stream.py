"""What becomes of a watch's bytes, without sockets."""

from __future__ import annotations

import json

import pytest

from tests.unit.kube.served import PODS, WIDGETS, bookmark, dumps, failure_status, line, pod
from watchrelay.core.errors import (
    Expired,
    Forbidden,
    Interrupted,
    Invalid,
    KubeError,
    NotFound,
    Unauthorized,
    Undecodable,
    VersionTooLarge,
)
from watchrelay.kube.stream import FrameReader
from watchrelay.model.frames import Bookmark, Failure, Frame, ObjectFrame
from watchrelay.model.resources import Selection
from watchrelay.store.transform import Transform


def frames_of(*chunks: bytes, selection: Selection = PODS, line_max: int = 32 << 20) -> list[Frame]:
    stream = FrameReader(selection, line_max=line_max)
    frames = [frame for chunk in chunks for frame in stream.feed(chunk)]
    return frames + stream.finish()


def only(*chunks: bytes, selection: Selection = PODS) -> Frame:
    frames = frames_of(*chunks, selection=selection)
    assert len(frames) == 1
    return frames[0]


def the_object(*chunks: bytes, selection: Selection = PODS) -> ObjectFrame:
    frame = only(*chunks, selection=selection)
    assert isinstance(frame, ObjectFrame), frame
    return frame


def the_error(*chunks: bytes) -> KubeError:
    frame = only(*chunks)
    assert isinstance(frame, Failure), frame
    return frame.error


def written(frame: ObjectFrame) -> bytes:
    """The object's bytes, put together again in the order of its fields."""
    return (
        b"{" + b",".join(dumps(key) + b":" + bytes(raw) for key, raw in frame.fields.items()) + b"}"
    )


def test_a_frame_keeps_the_bytes_of_every_field_as_they_came() -> None:
    spelled = (
        b'{"spec":{"a":1.50, "b":[ '
        b']},"kind":"Pod","metadata":{"name":"p","resourceVersion":"7","x":1e2},"apiVersion":"v1"}'
    )
    frame = the_object(b'{"type":"MODIFIED","object":' + spelled + b"}\n")
    assert list(frame.fields) == ["apiVersion", "kind", "spec", "metadata"]
    assert bytes(frame.fields["spec"]) == b'{"a":1.50, "b":[ ]}'
    assert bytes(frame.metadata["x"]) == b"1e2"
    assert (frame.type, frame.name, frame.namespace, frame.uid, frame.resource_version) == (
        "MODIFIED",
        "p",
        "",
        "",
        "7",
    )


def test_the_size_of_a_frame_is_that_of_its_object() -> None:
    assert the_object(line("ADDED", pod("a"))).size == len(dumps(pod("a")))


def test_names_are_decoded_not_copied() -> None:
    raw = b'{"type":"ADDED","object":{"metadata":{"name":"caf\\u00e9-\\ud83d\\ude00","namespace":"n\\u0073","resourceVersion":"1"}}}\n'
    frame = the_object(raw)
    assert (frame.name, frame.namespace) == ("café-😀", "ns")


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\n\n", b"\n \t\r\n", b""])
def test_T19_line_endings_and_blank_lines_do_not_matter(ending: bytes) -> None:
    lines = [
        line("ADDED", pod("a", "1"))[:-1],
        bookmark("2")[:-1],
        line("DELETED", pod("a", "3"))[:-1],
    ]
    data = (ending or b"\n").join(lines) + ending
    assert frames_of(b"\n" + data) == frames_of(b"\n".join(lines) + b"\n")


def test_T19_fifty_events_in_one_chunk_are_fifty_frames_in_order() -> None:
    data = b"".join(line("MODIFIED", pod(f"p{n}", str(n))) for n in range(1, 51))
    frames = frames_of(data)
    assert [frame.resource_version for frame in frames if isinstance(frame, ObjectFrame)] == [
        str(n) for n in range(1, 51)
    ]


def test_T19_events_split_at_every_byte_are_the_same_events() -> None:
    first = line("ADDED", pod("a", "1", note="one \u0085two"))
    data = first + b"\r\n" + bookmark("2") + line("DELETED", pod("a", "3"))
    whole = frames_of(data)
    assert len(whole) == 3
    for cut in range(len(data) + 1):
        assert frames_of(data[:cut], data[cut:]) == whole
    assert frames_of(*(data[i : i + 1] for i in range(len(data)))) == whole


def test_a_next_line_character_within_a_string_does_not_end_the_line() -> None:
    frame = the_object(line("ADDED", pod("a", "1", note="one\u0085two\u2028three")))
    assert json.loads(bytes(frame.fields["note"])) == "one\u0085two\u2028three"


def test_a_whole_object_behind_the_last_line_feed_counts_and_a_half_one_does_not() -> None:
    data = line("ADDED", pod("a", "1")) + line("MODIFIED", pod("a", "2"))[:-1]
    assert len(frames_of(data)) == 2
    assert len(frames_of(data[:-1])) == 1
    assert len(frames_of(line("ADDED", pod("a", "1")) + b'{"type":"MODIF')) == 1


def test_blanks_between_tokens_change_nothing_but_the_bytes() -> None:
    compact = the_object(line("ADDED", pod("a", "1")))
    for text in (
        json.dumps({"type": "ADDED", "object": pod("a", "1")}),
        '{ "type" :"ADDED","object":\t' + json.dumps(pod("a", "1")) + " }",
    ):
        frame = the_object(text.encode() + b"\n")
        assert list(frame.fields) == list(compact.fields)
        assert (frame.name, frame.uid, frame.resource_version) == ("a", "uid-a", "1")


@pytest.mark.parametrize(
    "rest", ['"größe":12345', ' "spec": {"x":1}', '"note":"é", "spec":1', '"\\u0061":12345']
)
def test_an_object_that_begins_as_the_server_writes_it_is_whole_however_it_goes_on(
    rest: str,
) -> None:
    start = '{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"1"},'
    text = f"{start}{rest}}}".encode()
    frame = the_object(b'{"type":"ADDED","object":' + text + b"}\n")
    published = Transform.compile(PODS.resource).apply(frame)
    assert json.loads(published) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"type":"ADDED","object":null}', "shape"),
        (b'{"type":"ADDED"}', "shape"),
        (b'{"type":"ADDED","object":{}}', "metadata"),
        (b'{"type":"ADDED","object":{"metadata":"secret"}}', "shape"),
        (b'{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"}}}', "metadata.name"),
        (b'{"type":"ADDED","object":{"metadata":{"name":"secret"}}}', "metadata.resourceVersion"),
        (b'{"type":"ADDED","object":{"metadata":{"name":"","resourceVersion":"1"}}}', "empty"),
        (b'{"type":"ADDED","object":{"metadata":{"name":5,"resourceVersion":"1"}}}', "shape"),
        (b'{"type":"ADDED","object":{"metadata":{"name":"secret","resourceVersion":1}}}', "shape"),
        (b'{"type":"ADDED","object":{"metadata":{"name":"secret/x","resourceVersion":"1"}}}', "slash"),
        (b'{"type":"ADDED","object":{"metadata":{"name":"secret","resourceVersion":"1"},"spec":NaN}}', "not JSON"),
        (b'{"type":"ADDED","object":{"metadata":{"name":"secret","resourceVersion":"1"},"spec":"\xff"}}', "UTF-8"),
        (b'{"type":"ADDED","object":{"metadata":{"name":"\\ud800","resourceVersion":"1"}}}', "not JSON"),
        (b'{"type":"ADDED","object":{"metadata":{"name":"secret","resourceVersion":"1"},"s":1,"s":2}}', "twice"),
        (b'{"type":"ADDED","object":{"metadata":{"name":"secret","name":"other","resourceVersion":"1"}}}', "twice"),
        (b'{"type":"ADDED","type":"DELETED","object":{"metadata":{"name":"secret","resourceVersion":"1"}}}', "twice"),
        (
            b'{"type":"ADDED","object":{"metadata":{"name":"secret","resourceVersion":"1"},"s":'
            + b"[" * 9999
            + b"]" * 9999
            + b"}}",
            "deep",
        ),
        (b'{"type":"ADDED","object":{"metadata":{"name":"secret","resourceVersion":"1"}}} {}', "not JSON"),
        (b'{"type":"SECRET","object":{}}', "unknown"),
        (b'{"type":null,"object":{}}', "no type"),
        (b'{"object":{"metadata":{"name":"secret"}}}', "no type"),
        (b"[]", "shape"),
        (b"<html>secret</html>", "not JSON"),
        (b'{"type":"ADDED","object":{"metadata":{"name":"secret"', "not JSON"),
    ],
)  # fmt: skip
def test_a_damaged_line_is_an_undecodable_in_its_place_and_its_neighbours_are_whole(
    text: bytes, says: str
) -> None:
    before, failure, after = frames_of(
        line("ADDED", pod("a", "1")) + text + b"\n" + line("ADDED", pod("b", "2"))
    )
    assert isinstance(before, ObjectFrame)
    assert isinstance(failure, Failure)
    assert isinstance(after, ObjectFrame)
    assert isinstance(failure.error, Undecodable)
    assert says in str(failure.error)
    assert "secret" not in str(failure.error).lower()
    assert len(str(failure.error)) < 200


@pytest.mark.parametrize(
    "key", [b' "spec":', b'"sp\xc3\xa9c":', b'"sp\\u0065c":'], ids=["blank", "not ASCII", "escaped"]
)
@pytest.mark.parametrize(
    "number",
    [b"9" * 5000, b"-" + b"9" * 5000, b"9" * 5000 + b".5e999"],
    ids=["large", "negative", "fraction"],
)
def test_a_number_that_python_cannot_hold_is_relayed_as_it_came(key: bytes, number: bytes) -> None:
    frame = the_object(
        b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"1"},%b{"n":%b}}}\n'
        % (key, number)
    )
    assert bytes(list(frame.fields.values())[-1]) == b'{"n":%b}' % number


@pytest.mark.parametrize(
    "name", ["x" * 1_000_000, "line\nfeed", "nul\0", "ünïcödé", " ", "..", "%2f"]
)
def test_an_odd_name_is_a_name(name: str) -> None:
    assert the_object(line("ADDED", pod(name, "1"))).name == name


@pytest.mark.parametrize("version", ["0123", "abc", "-1", "1.5", "9" * 400, "resource-7f", "é"])
def test_T81_a_version_that_is_no_number_is_a_version(version: str) -> None:
    assert the_object(line("ADDED", pod("a", version))).resource_version == version
    assert only(bookmark(version)) == Bookmark(version)


def test_null_namespace_and_uid_are_empty() -> None:
    frame = the_object(
        b'{"type":"ADDED","object":{"metadata":{"name":"a","namespace":null,"uid":null,"resourceVersion":"1"}}}\n'
    )
    assert (frame.namespace, frame.uid) == ("", "")


@pytest.mark.parametrize(
    "metadata",
    [{"resourceVersion": ""}, {}, {"resourceVersion": None}, None, [], {"resourceVersion": 12}],
)
def test_T32_a_bookmark_without_a_version_moves_nothing(metadata: object) -> None:
    assert only(line("BOOKMARK", {"kind": "Pod", "metadata": metadata})) == Bookmark("")


def test_T32_a_bookmark_with_a_zero_valued_spec_is_only_a_version() -> None:
    assert only(bookmark("12746")) == Bookmark("12746")
    assert only(line("BOOKMARK", {})) == Bookmark("")


@pytest.mark.parametrize(
    ("annotations", "ends"),
    [
        ({"k8s.io/initial-events-end": "true"}, True),
        ({"k8s.io/initial-events-end": "false"}, False),
        ({"k8s.io/initial-events-end": True}, False),
        ({"other": "true"}, False),
        (None, False),
        ("true", False),
    ],
)
def test_the_end_of_the_initial_events_is_marked_by_the_value_true(
    annotations: object, ends: bool
) -> None:
    assert only(bookmark("5", annotations=annotations)) == Bookmark("5", ends)


@pytest.mark.parametrize(
    ("status", "kind", "retry_after_s"),
    [
        (failure_status(410, "Expired", "too old resource version: 1 (2)"), Expired, 0.0),
        (failure_status("410", "Gone"), Expired, 0.0),
        (failure_status(None, "Expired"), Expired, 0.0),
        (failure_status(500, "InternalError", "boom"), Interrupted, 0.0),
        (failure_status(429, "TooManyRequests", details={"retryAfterSeconds": "4"}), Interrupted, 4.0),
        (failure_status(429, "TooManyRequests", details={"retryAfterSeconds": -4}), Interrupted, 0.0),
        (failure_status(504, "Timeout", "Too large resource version: 2, current: 1"), VersionTooLarge, 0.0),
        (failure_status(500, "", "required storage feature RequestWatchProgress is disabled"), Invalid, 0.0),
        (failure_status(401, "Unauthorized"), Unauthorized, 0.0),
        (failure_status(403, "Forbidden"), Forbidden, 0.0),
        (failure_status(404, "NotFound"), NotFound, 0.0),
        (failure_status(500, "", details={"causes": [None, 5, {"reason": None}]}), Interrupted, 0.0),
        ({}, Interrupted, 0.0),
        (None, Interrupted, 0.0),
        ("boom", Interrupted, 0.0),
    ],
)  # fmt: skip
def test_T31_an_error_line_is_an_error_by_its_code_and_ends_the_stream(
    status: object, kind: type[KubeError], retry_after_s: float
) -> None:
    error = the_error(line("ERROR", status) + line("ADDED", pod("never", "9")))
    assert type(error) is kind
    assert error.retry_after_s == retry_after_s
    if isinstance(error, Invalid):
        assert error.about == "streaming"


def test_T31_an_error_line_without_an_object_ends_the_stream() -> None:
    assert type(the_error(b'{"type":"ERROR"}\n')) is Interrupted


@pytest.mark.parametrize(
    "status", [failure_status(410, "Expired"), {"kind": "Status", "reason": "Gone"}]
)
def test_T31_a_bare_status_line_is_an_error(status: object) -> None:
    assert type(the_error(dumps(status) + b"\n")) is Expired
    assert type(the_error(dumps(status))) is Expired


def test_T23_frames_before_an_error_line_of_the_same_chunk_are_delivered() -> None:
    first, last = frames_of(
        line("ADDED", pod("a", "1")) + line("ERROR", failure_status(410, "Gone"))
    )
    assert isinstance(first, ObjectFrame)
    assert isinstance(last, Failure)


def test_T21_a_line_over_the_limit_ends_the_stream_with_a_typed_error() -> None:
    small, long = line("ADDED", pod("a", "1")), line("ADDED", pod("b", "2", note="x" * 5000))
    for chunks in (
        (small + long,),
        (small, long[:3000], long[3000:]),
        (small + long[:4500], long[4500:]),
        (small + long[:-1],),
    ):
        frames = frames_of(*chunks, line("ADDED", pod("c", "3")), line_max=4000)
        assert [type(frame) for frame in frames] == [ObjectFrame, Failure]
        assert isinstance(frames[1], Failure)
        assert isinstance(frames[1].error, Undecodable)
        assert "metadataOnly" in str(frames[1].error)


def test_a_block_of_many_short_lines_may_be_longer_than_a_line() -> None:
    assert (
        len(frames_of(b"".join(line("ADDED", pod(f"p{n}")) for n in range(100)), line_max=4000))
        == 100
    )


def test_T84_metadata_only_frames_are_trimmed_and_carry_the_real_kind() -> None:
    trimmed = Selection(WIDGETS.resource, metadata_only=True)
    partial = {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": pod("a", "5")["metadata"],
    }
    whole = {
        **pod("a", "5"),
        "kind": "Widget",
        "apiVersion": "example.com/v1",
        "status": {"much": "more"},
    }
    frames = [the_object(line("ADDED", obj), selection=trimmed) for obj in (partial, whole)]
    assert [written(frame) for frame in frames] == [
        dumps({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": partial["metadata"]})
    ] * 2
