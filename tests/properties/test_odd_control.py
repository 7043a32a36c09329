"""Any JSON value in any field of a control record is taken or refused, and what is taken breaks
nothing that reads it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.extent import examples
from tests.unit.daemon.conftest import settings_of
from watchrelay.admin.retire import spec_of
from watchrelay.cli.snapshot import answer_text
from watchrelay.contract.control import EPOCH_BASE_MAX, parse_control
from watchrelay.contract.control_state import ControlState, claim_origins
from watchrelay.contract.records import EPOCH_MAX
from watchrelay.core.errors import RecordRefused
from watchrelay.daemon.snapshot_requests import answered
from watchrelay.model.parts import Part
from watchrelay.model.resources import Resource
from watchrelay.plan.described import KeyFormats, deadlocked, pinned_conflict, topic_conflict
from watchrelay.plan.streams import plan_streams

LEGAL: dict[str, dict[str, Any]] = {
    "claim": {
        "holder": "h",
        "instance": "i",
        "version": "1",
        "time": "2026-01-01T00:00:00.000Z",
        "from": {"snapshot": "1-1", "begin": [3]},
        "ids": ["k8s.test.pods"],
        "partitions": [0],
    },
    "release": {"epoch": 7},
    "stream": {
        "topic": "k8s.test.core.pods",
        "partitions": 1,
        "keyFormat": "plain",
        "resource": "pods/v1",
        "namespace": None,
        "selectors": {"labelSelector": "", "fieldSelector": "", "namespaces": ["shop"]},
        "configHash": "0" * 16,
        "epochBase": 1,
    },
    "snapshot": {
        "snapshot": "1-1",
        "epoch": 1,
        "rv": "5",
        "time": "2026-01-01T00:00:00.000Z",
        "count": 1,
        "requests": ["r"],
        "partitions": [{"partition": 0, "begin": 3, "end": 9, "count": 1, "digest": "00"}],
    },
}
FIELDS = [(kind, field) for kind, value in LEGAL.items() for field in value]
WRITERS = ["pods", "pods%0/2", "pods%1/2", "pods%2/3", "pods%0/999999"]

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-1, 3)
    | st.sampled_from([2**31, 2**53 - 1, 2**53, 2**63, 10**40, -(2**63), 1e300, 1.5, -0.0])
)
_texts = st.sampled_from(
    [
        "",
        "1",
        "plain",
        "pods/v1",
        "x" * 5000,
        "\x1b[2J",
        "\u202e",
        "2026-13-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "1-1",
    ]
)
_values = st.recursive(
    _scalars | _texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["namespaces", "begin", "partition", "snapshot"]), inner)
        | st.dictionaries(st.sampled_from(["0", "1", "01", "-1", "999999"]), inner)
    ),
    max_leaves=6,
)
PODS = Resource("", "v1", "pods", "Pod", namespaced=True)
SETTINGS = settings_of(
    [
        "pods",
        {"resource": "pods", "id": "other", "topic": "k8s.test.core.pods", "namespaces": ["shop"]},
    ]
)
PLANNED = [
    each.spec
    for entry in SETTINGS.resources
    for each in plan_streams(SETTINGS, entry, PODS, prefixed=False)
]


def read_all(state: ControlState) -> None:
    """What the relay, its commands and readers do with what was read."""
    held = state.of("pods")
    assert (epoch := held.epoch_of(held)) is None or 0 <= epoch <= EPOCH_MAX
    assert held.epoch_base is None or held.epoch_base <= EPOCH_BASE_MAX
    for partitions in (1, 2):
        for part in (Part(), Part(0, 2), Part(1, 2)):
            own = None if part.of == 1 else part.partitions(partitions)
            start = held.starting_point(partitions, own)
            for origin in claim_origins(start, partitions).values():
                assert origin.offset is None or 0 <= origin.offset < 2**53
            held.newest_index(part)
        held.claimed_by_parts(partitions)
    described = {} if held.description is None else {"pods": held.description}
    formats = KeyFormats(described)
    for spec in map(formats.kept, PLANNED):
        pinned_conflict(spec, held.description)
        topic_conflict(spec, PLANNED, described)
    deadlocked(PLANNED, described)
    for description in described.values():
        try:
            assert spec_of(SETTINGS, "pods", description).partitions > 0
        except RecordRefused:
            assert LEGAL["stream"].keys() - description.keys()
    answered(held.index, "r", 0, 0)
    if held.index is not None:
        assert answer_text("pods", held.index).isprintable()
    for origin in state.origins("pods"):
        assert origin.offset is None or 0 <= origin.offset < 2**53


@settings(max_examples=examples(1500), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(st.sampled_from(FIELDS), _values)
        | st.tuples(st.sampled_from(WRITERS), st.none()),
        max_size=8,
    )
)
@example([(("stream", "selectors"), {"namespaces": 7})])
@example([(("stream", "topic"), ["t"])])
@example([(("stream", "epochBase"), EPOCH_BASE_MAX)])
@example([(("stream", "epochBase"), EPOCH_BASE_MAX + 1)])
@example([(("stream", "epochBase"), 2**53), (("stream", "epochBase"), 7)])
@example([(("snapshot", "requests"), [["r"]]), (("snapshot", "time"), 7)])
def test_any_value_in_any_field_is_taken_or_refused(
    records: list[tuple[tuple[str, str] | str, Any]],
) -> None:
    state, writer = ControlState(), "pods"
    for kind, value in LEGAL.items():
        state.read(0, f"{kind}/pods".encode(), json.dumps(value).encode())
    for offset, (chosen, odd) in enumerate(records, 1):
        if isinstance(chosen, str):  # those that follow are of this writer
            writer = chosen
            continue
        kind, field = chosen
        record = (
            offset,
            f"{kind}/{writer if kind != 'stream' else 'pods'}".encode(),
            json.dumps({**LEGAL[kind], "instance": f"i{offset}", field: odd}).encode(),
        )
        try:
            why = state.read(*record)
        except RecordRefused as error:
            why = str(error)
        assert not why or f"field {field}: " in why
        assert why.isprintable()
        assert len(why) < 2000
        read_all(state)


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_field_that_is_absent_or_twice_breaks_nothing(kind: str, field: str) -> None:
    legal = json.dumps(LEGAL[kind])
    twice = legal[:-1] + f', "{field}": {json.dumps(LEGAL[kind][field])}}}'
    without = json.dumps({name: value for name, value in LEGAL[kind].items() if name != field})
    for text in (legal, twice):
        assert parse_control(f"{kind}/pods".encode(), text.encode()).odd == ""
    state = ControlState()
    for each, value in LEGAL.items():
        with suppress(RecordRefused):
            state.read(
                0,
                f"{each}/pods".encode(),
                (without if each == kind else json.dumps(value)).encode(),
            )
    read_all(state)
