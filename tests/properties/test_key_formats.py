"""What a stream keeps of its topic, and whether it may conflict there, is the same whether all
descriptions are gone over or counts of them are kept."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.extent import examples
from tests.unit.plan.test_key_formats import NODES, PODS, spec
from watchrelay.model.streams import StreamSpec
from watchrelay.plan.described import KeyFormats, topic_conflict

_NAMES = [f"s{number}" for number in range(6)]
Described = dict[str, dict[str, object]]


@st.composite
def _streams(draw: st.DrawFn) -> StreamSpec:
    entry: dict[str, Any] = draw(
        st.sampled_from(
            [
                {},
                {"namespaces": ["a"], "scope": "cluster"},
                {"namespaces": ["a", "b"], "scope": "cluster"},
                {"namespaces": ["c"], "scope": "cluster"},
                {"excludeNamespaces": ["a"]},
                {"fieldSelector": "metadata.name=x"},
                {"fieldSelector": "metadata.name=y"},
            ]
        )
    )
    count = draw(st.sampled_from([None, 1, 3]))
    return spec(
        draw(st.sampled_from(_NAMES)),
        PODS if "namespaces" in entry else draw(st.sampled_from([PODS, NODES])),
        prefixed=draw(st.booleans()),
        topic=draw(st.sampled_from(["t", "u"])),
        **entry,
        **({} if count is None else {"partitions": count}),
    )


_changes = st.lists(st.one_of(_streams(), st.sampled_from(_NAMES)), max_size=12)
"""A stream is described, or no longer."""


def _changed(described: Described, change: StreamSpec | str) -> Described:
    if isinstance(change, str):
        return {stream: each for stream, each in described.items() if stream != change}
    return {**described, change.stream: {**change.description, "epochBase": 1}}


@given(_changes, st.lists(_streams(), min_size=1, max_size=4))
@settings(max_examples=examples(300), deadline=None)
def test_counts_kept_through_changes_are_those_of_all_descriptions(
    changes: list[StreamSpec | str], planned: list[StreamSpec]
) -> None:
    described, formats = Described(), KeyFormats()
    for change in changes:
        described = _changed(described, change)
        formats.take(described)
    afresh = KeyFormats(described)
    for stream in planned:
        kept = formats.kept(stream)
        assert kept == afresh.kept(stream)
        assert formats.shape(stream.topic) == afresh.shape(stream.topic)
        others = [afresh.kept(each) for each in planned]
        if topic_conflict(kept, others, described):
            assert formats.may_conflict(kept)


@given(_changes, _streams())
@settings(max_examples=examples(300), deadline=None)
def test_where_a_topic_has_one_shape_a_stream_keeps_it_once_it_is_described(
    changes: list[StreamSpec | str], stream: StreamSpec
) -> None:
    described = Described()
    for change in changes:
        described = _changed(described, change)
    formats = KeyFormats(described)
    shape, kept = formats.shape(stream.topic), formats.kept(stream)
    if shape is None or not described or formats.may_conflict(kept):
        return
    formats.take(_changed(described, kept))
    if formats.shape(stream.topic) == shape:
        again = formats.kept(stream)
        assert (again.partitions, again.description) == (kept.partitions, kept.description)
