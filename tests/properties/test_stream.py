"""A watch and a list mean the same, however their bytes are cut."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.extent import examples
from tests.unit.kube.served import (
    PODS,
    TYPED_PODS,
    bookmark,
    dumps,
    failure_status,
    line,
    listed,
    pod,
)
from watchrelay.kube.page import PageReader
from watchrelay.kube.stream import FrameReader
from watchrelay.model.frames import Failure, Frame, ObjectFrame, Page
from watchrelay.model.paths import LAST_APPLIED
from watchrelay.store.transform import Transform

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
_typed_lines = st.builds(
    lambda verb, name, version, values: line(
        verb,
        {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "n", "uid": "u", "resourceVersion": version}
            | {"annotations": values[0], "managedFields": values[1]},
            "spec": values[2],
        },
    ),
    st.sampled_from(["ADDED", "MODIFIED", "DELETED"]),
    _text,
    st.integers(1, 2**70).map(str),
    st.tuples(_values | st.just({LAST_APPLIED: "{}", "a": "b"}), _values, _values),
)


def _spaced(text: bytes) -> st.SearchStrategy[bytes]:
    """The line with a blank inserted before, or in place of, one of its structural characters,
    quotes or its line break."""
    places = [at for at, sign in enumerate(text) if sign in b'{}[],:"\n']
    blanks = st.sampled_from([b" ", b"\t", b"\r", b"\n"])
    return st.builds(
        lambda at, blank, more: text[:at] + blank + text[at + more :],
        *(st.sampled_from(places), blanks, st.booleans()),
    )


def _cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(bounds)]


def _comparable(frames: list[Frame]) -> list[object]:
    return [(type(f.error), str(f.error)) if isinstance(f, Failure) else f for f in frames]


def _decoded(chunks: list[bytes]) -> list[object]:
    stream = FrameReader(PODS)
    frames = [frame for chunk in chunks for frame in stream.feed(chunk)]
    return _comparable(frames + stream.finish())


def _page(chunks: list[bytes]) -> Page:
    reader = PageReader(PODS)
    for chunk in chunks:
        reader.feed(chunk)
    return reader.finish()


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(_lines, max_size=6), st.lists(st.integers(0), max_size=12))
def test_frames_do_not_depend_on_where_the_chunks_were_cut(
    lines: list[bytes], places: list[int]
) -> None:
    data = b"".join(lines)
    assert _decoded(_cut(data, places)) == _decoded([data])


@settings(max_examples=examples(200), deadline=None)
@given(
    st.lists(st.one_of(_lines, _typed_lines, _typed_lines.flatmap(_spaced)), max_size=6),
    st.lists(st.integers(0), max_size=12),
)
def test_what_is_published_does_not_depend_on_the_way_that_lines_were_decoded(
    lines: list[bytes], places: list[int]
) -> None:
    quick, careful = FrameReader(TYPED_PODS), FrameReader(PODS)
    cut = [frame for chunk in _cut(b"".join(lines), places) for frame in quick.feed(chunk)]
    whole = careful.feed(b"".join(lines))
    for reader, frames in ((quick, cut), (careful, whole)):
        frames += reader.finish()
    assert list(map(_outcome, cut)) == list(map(_outcome, whole))


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(0), max_size=6))
def test_no_bytes_crash_a_stream(data: bytes, places: list[int]) -> None:
    assert _decoded(_cut(data, places)) == _decoded([data])


@settings(max_examples=examples(200), deadline=None)
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
    watched = [frame for p in pods for frame in FrameReader(PODS).feed(line("ADDED", p))]
    assert page.failures == ()
    assert (page.resource_version, page.continue_token) == ("100", "next")
    assert [_bytes(frame) for frame in page.objects] == [
        _bytes(frame) for frame in watched if isinstance(frame, ObjectFrame)
    ]


def _bytes(frame: ObjectFrame) -> list[tuple[str, bytes]]:
    return [(key, bytes(raw)) for key, raw in frame.fields.items()]


_NAMES = st.sampled_from(["a", "b/c", "", "é", 'q"', "\\"])
_ODD = _values.map(dumps) | st.sampled_from(
    [
        b"[]",
        b'[{"manager":"m","fieldsV1":{"f:a":{}}}]',
        b'[{"x],":"name"},[1]]',
        b'[] ,"name":"b"',
        b'{"kubectl.kubernetes.io/last-applied-configuration":"{}"}',
        b'{"a":"\\u006c"}',
        b'{"managedFields":[{}]}',
    ]
)
_ORDER = [
    *(b"name", b"namespace", b"uid", b"resourceVersion", b"generation"),
    *(b"labels", b"annotations", b"ownerReferences", b"managedFields"),
]
_metadata = st.lists(
    st.tuples(
        st.sampled_from([*_ORDER, b"\\u006eame", b"other"]), st.one_of(_NAMES.map(dumps), _ODD)
    ),
    max_size=4,
)


@settings(max_examples=examples(500), deadline=None)
@given(_metadata, st.booleans(), st.sampled_from([b"ADDED", b"MODIFIED", b"DELETED"]))
def test_typed_and_split_metadata_are_published_as_the_same_bytes(
    more: list[tuple[bytes, bytes]], in_order: bool, verb: bytes
) -> None:
    members = [(b"name", b'"n"'), (b"uid", b'"u"'), (b"resourceVersion", b'"7"'), *more]
    if in_order:
        known = {key: value for key, value in members if key in _ORDER}
        members = sorted(known.items(), key=lambda each: _ORDER.index(each[0]))
    metadata = b",".join(b'"%b":%b' % each for each in members)
    text = b'{"type":"%b","object":{"kind":"Pod","apiVersion":"v1","metadata":{%b},"spec":{}}}\n'
    quick = FrameReader(TYPED_PODS).feed(text % (verb, metadata))
    split = FrameReader(PODS).feed((text % (verb, metadata)).replace(b'{"type":', b'{ "type":'))
    assert [_outcome(frame) for frame in quick] == [_outcome(frame) for frame in split]


def _outcome(frame: Frame) -> object:
    if not isinstance(frame, ObjectFrame):
        return _comparable([frame])
    named = (frame.type, frame.namespace, frame.name, frame.uid, frame.resource_version, frame.size)
    transforms = (
        Transform.compile(PODS.resource),
        Transform.compile(PODS.resource, keep_managed_fields=True),
        Transform.compile(PODS.resource, keep_last_applied=True),
        Transform.compile(PODS.resource, drop=["metadata.labels", "spec"]),
    )
    return named, [transform.apply(frame) for transform in transforms]
