"""Which lines are decoded in one pass, and which are left to the longer ways."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.unit.kube.served import PODS, TYPED_PODS, bookmark, line, pod
from watchrelay.kube.stream import FrameReader
from watchrelay.kube.typed_lines import TypedLines
from watchrelay.model.frames import Failure, ObjectFrame
from watchrelay.model.paths import LAST_APPLIED
from watchrelay.model.resources import PartKeys, Resource
from watchrelay.store.transform import Transform

LINE = line("MODIFIED", pod("a"))


def read(block: bytes) -> list[ObjectFrame] | None:
    return TypedLines(PODS.resource).read(block)


def test_lines_of_a_built_in_type_are_read_whatever_ends_the_block() -> None:
    for block in (LINE + line("DELETED", pod("b")), (LINE + line("DELETED", pod("b"))).rstrip()):
        frames = read(block)
        assert frames is not None
        assert [(frame.type, frame.name) for frame in frames] == [
            ("MODIFIED", "a"),
            ("DELETED", "b"),
        ]
        assert frames[0].size == len(LINE) - len('{"type":"MODIFIED","object":}\n')


@pytest.mark.parametrize(
    "odd",
    [
        LINE.replace(b'"spec":', b'"spec": '),
        LINE.replace(b"}}\n", b'},"kind":"Pod"}\n'),
        LINE.replace(b'"name":"a"', b'"name":"b","name":"a"'),
        LINE.replace(b'"name":"a"', b'"name":"\\u0061"'),
        LINE.replace(b'"name":"a"', b'"name":""'),
        LINE.replace(b'"name":"a"', b'"name":"a/b"'),
        LINE.replace(b'"name":"a","namespace":"shop"', b'"namespace":"shop","name":"a"'),
        LINE.replace(b'"spec":', b'"unknown":{},"spec":'),
        LINE.replace(b'"Pod"', b'"Node"'),
        LINE.replace(b'"type":"MODIFIED"', b'"type":"ERROR"'),
        LINE.replace(b"\n", b" \n"),
        LINE.replace(b"\n", b" ") + LINE,
        LINE.replace(b"\n", b"\r") + LINE,
        LINE.replace(b'"nodeName":', b'"nodeName":\n'),
        b"\n" + LINE,
        bookmark("7"),
        LINE[:-3],
    ],
)
def test_any_other_line_is_left_to_the_longer_ways(odd: bytes) -> None:
    assert read(LINE + odd + LINE) is None


def test_two_objects_on_the_last_line_are_refused() -> None:
    assert read(LINE + LINE.replace(b"\n", b" ") + LINE.rstrip()) is None
    assert read(LINE.rstrip() + b"\r") is None


EVENT = """involvedObject reason message source firstTimestamp lastTimestamp count type
eventTime series action related reportingComponent reportingInstance"""


@pytest.mark.parametrize(
    ("plural", "kind", "fields"),
    [
        ("nodes", "Node", "spec status"),
        ("configmaps", "ConfigMap", "immutable data binaryData"),
        ("secrets", "Secret", "immutable data type"),
        ("events", "Event", EVENT),
    ],
)
def test_objects_of_each_of_its_kinds_are_read(plural: str, kind: str, fields: str) -> None:
    """In the order of the fields in the types of k8s.io/api/core/v1."""
    resource = Resource("", "v1", plural, kind, namespaced=True)
    rest = fields.split()
    head = {"kind": kind, "apiVersion": "v1", "metadata": pod("a")["metadata"]}
    frames = TypedLines(resource).read(line("ADDED", head | dict.fromkeys(rest, 1)))
    assert frames is not None
    published = Transform.compile(resource, include_secret_data=True).apply(frames[0])
    assert list(json.loads(published)) == ["apiVersion", "kind", "metadata", *rest]


def test_what_is_no_utf_8_is_reported_and_published_by_none() -> None:
    for text in (b'"\xff"', b'"\xed\xa0\x80"'):
        odd = LINE.replace(b'"n1"', text)
        frames = FrameReader(TYPED_PODS).feed(LINE + odd + LINE)
        assert [type(frame) for frame in frames] == [ObjectFrame, Failure, ObjectFrame]


def test_a_part_of_a_stream_gets_the_typed_lines_of_its_own_objects() -> None:
    blocks = [line("ADDED", pod(f"pod-{number}")) for number in range(20)]
    names: list[str] = []
    for own in range(3):
        keys = PartKeys(b"", 3, frozenset({own}))
        reader = FrameReader(replace(TYPED_PODS, part=keys))
        frames = reader.feed(b"".join(blocks))
        assert frames
        for frame in frames:
            assert isinstance(frame, ObjectFrame)
            assert frame.typed is not None
            names.append(frame.name)
    assert sorted(names) == sorted(f"pod-{number}" for number in range(20))


def test_lines_of_another_kind_are_refused() -> None:
    nodes = Resource("", "v1", "nodes", "Node", namespaced=False)
    assert TypedLines(nodes).read(LINE) is None


def test_the_frame_of_a_typed_line_is_left_as_it_came() -> None:
    metadata = {
        "name": "a",
        "resourceVersion": "7",
        "annotations": {LAST_APPLIED: "{}"},
        "managedFields": [],
    }
    (frame,) = FrameReader(TYPED_PODS).feed(line("ADDED", pod("a") | {"metadata": metadata}))
    assert isinstance(frame, ObjectFrame)
    assert frame.typed is not None
    first, whole = (
        Transform.compile(PODS.resource),
        Transform.compile(PODS.resource, keep_managed_fields=True, keep_last_applied=True),
    )
    published = first.apply(frame)
    assert b"managedFields" not in published
    assert b"last-applied" not in published
    assert b"managedFields" in whole.apply(frame)
    assert b"last-applied" in whole.apply(frame)
    assert first.apply(frame) == published


def test_lines_that_are_written_differently_are_not_tried_again() -> None:
    reader = FrameReader(TYPED_PODS)

    def is_typed(block: bytes) -> bool:
        (*_, frame) = reader.feed(block)
        assert isinstance(frame, ObjectFrame)
        return frame.typed is not None

    assert is_typed(LINE)
    assert not is_typed(bookmark("7") + LINE)
    assert is_typed(LINE)
    assert not is_typed(LINE.replace(b'"spec":', b'"unknown":{},"spec":'))
    assert not is_typed(LINE)
