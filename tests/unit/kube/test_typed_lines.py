"""Which lines are decoded in one pass, and which are left to the longer ways."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.kube.served import PODS, bookmark, line, pod
from watchrelay.kube.stream import FrameReader
from watchrelay.kube.typed_lines import TypedLines
from watchrelay.model.frames import ObjectFrame
from watchrelay.model.resources import Resource
from watchrelay.store.transform import Transform

TYPED_PODS = replace(PODS, depth_checked=False)
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


def test_one_object_follows_another_on_the_last_line_in_no_way_that_counts() -> None:
    assert read(LINE + LINE.replace(b"\n", b" ") + LINE.rstrip()) is None
    assert read(LINE.rstrip() + b"\r") is None


def test_custom_and_other_resources_are_none_of_its_business() -> None:
    nodes = Resource("", "v1", "nodes", "Node", namespaced=False)
    assert TypedLines(nodes).read(LINE) is None


def test_the_frame_of_a_typed_line_is_left_as_it_came() -> None:
    known = {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}
    known["managedFields"] = {}
    obj = pod("a")
    obj["metadata"] |= known  # type: ignore[operator]  # it is a map
    (frame,) = FrameReader(TYPED_PODS).feed(line("ADDED", obj))
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


def test_a_stream_whose_objects_are_written_otherwise_is_not_tried_twice_for_each() -> None:
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
