"""A watch and a list mean the same, however their bytes are cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.kube.served import PODS, bookmark, dumps, failure_status, line, listed, pod
from watchrelay.kube.page import PageReader
from watchrelay.kube.stream import FrameStream
from watchrelay.model.frames import Failure, Frame, ObjectFrame, Page

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | _text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_text, inner, max_size=3),
    max_leaves=8,
)
_pods = st.builds(
    lambda name, version, spec, extra: {**pod(name, str(version)), "spec": spec, "zz": extra},
    _text.filter(lambda name: bool(name) and "/" not in name),
    st.integers(1, 2**70),
    _values,
    _values | st.lists(st.just({"metadata": {"name": "},{"}}), max_size=3),
)
_lines = st.one_of(
    st.builds(line, st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), _pods),
    st.builds(bookmark, st.integers(1, 9999).map(str)),
    st.sampled_from(
        [
            b"\n",
            b"\r\n",
            b"junk\n",
            b'{"type":"ADDED","object":null}\n',
            line("ERROR", failure_status(410, "Gone")),
        ]
    ),
)


def _cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(bounds)]


def _comparable(frames: list[Frame]) -> list[object]:
    return [(type(f.error), str(f.error)) if isinstance(f, Failure) else f for f in frames]


def _decoded(chunks: list[bytes]) -> list[object]:
    stream = FrameStream(PODS)
    frames = [frame for chunk in chunks for frame in stream.feed(chunk)]
    return _comparable(frames + stream.finish())


def _page(chunks: list[bytes]) -> Page:
    reader = PageReader(PODS)
    for chunk in chunks:
        reader.feed(chunk)
    return reader.finish()


@settings(max_examples=200, deadline=None)
@given(st.lists(_lines, max_size=6), st.lists(st.integers(0), max_size=12))
def test_frames_do_not_depend_on_where_the_chunks_were_cut(
    lines: list[bytes], places: list[int]
) -> None:
    data = b"".join(lines)
    assert _decoded(_cut(data, places)) == _decoded([data])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(0), max_size=6))
def test_no_bytes_crash_a_stream(data: bytes, places: list[int]) -> None:
    assert _decoded(_cut(data, places)) == _decoded([data])


@settings(max_examples=200, deadline=None)
@given(st.lists(_pods, max_size=6), st.lists(st.integers(0), max_size=12), st.booleans())
def test_a_page_holds_the_objects_that_a_watch_would_bring(
    pods: list[dict[str, object]], places: list[int], named: bool
) -> None:
    items = (
        pods
        if named
        else [{k: v for k, v in p.items() if k not in {"kind", "apiVersion"}} for p in pods]
    )
    page = _page(_cut(dumps(listed(*items, token="next")), places))
    watched = [frame for p in pods for frame in FrameStream(PODS).feed(line("ADDED", p))]
    assert page.failures == ()
    assert (page.resource_version, page.continue_token) == ("100", "next")
    assert [_bytes(frame) for frame in page.objects] == [
        _bytes(frame) for frame in watched if isinstance(frame, ObjectFrame)
    ]


def _bytes(frame: ObjectFrame) -> list[tuple[str, bytes]]:
    return [(key, bytes(raw)) for key, raw in frame.fields.items()]
