"""What is left of an object that is too large."""

from __future__ import annotations

import json
import random

import pytest

from watchrelay.model.paths import LAST_APPLIED
from watchrelay.publish.trim import next_smaller, packed_max, trim


def noise(size: int) -> str:
    return random.Random(size).randbytes(size // 2).hex()


def object_of(*, managed: int = 0, applied: int = 0, spec: int = 0, labels: int = 0) -> bytes:
    metadata = {
        "name": "a",
        "namespace": "shop",
        "uid": "u",
        "resourceVersion": "7",
        "labels": {"x": noise(labels)},
        "annotations": {LAST_APPLIED: noise(applied), "kept": "yes"},
        "managedFields": [noise(managed)],
    }
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"x": noise(spec)}}
    ).encode()


def test_what_fits_compressed_is_left_alone() -> None:
    value = object_of() + b" " * 100_000
    assert trim(value, 2000) == (value, "")


def test_fields_go_before_the_object_does() -> None:
    part, trimmed = trim(object_of(managed=8000, applied=8000), 2000)
    left = json.loads(part)
    assert trimmed == "fields"
    assert "managedFields" not in left["metadata"]
    assert left["metadata"]["annotations"] == {"kept": "yes"}
    assert "spec" in left


@pytest.mark.parametrize("annotations", [b"null", b"[]", b'"x"'])
def test_annotations_that_are_no_map_are_no_reason_to_stop(annotations: bytes) -> None:
    value = b'{"metadata":{"name":"a","annotations":%b,"managedFields":"%b"}}' % (
        annotations,
        noise(8000).encode(),
    )
    assert trim(value, 2000) == (
        b'{"metadata":{"name":"a","annotations":%b}}' % annotations,
        "fields",
    )


def test_then_metadata_alone_is_left() -> None:
    part, trimmed = trim(object_of(managed=8000, spec=8000), 2000)
    left = json.loads(part)
    assert trimmed == "stub"
    assert set(left) == {"apiVersion", "kind", "metadata"}
    assert left["metadata"]["labels"]


def test_metadata_that_is_itself_too_large_keeps_the_names() -> None:
    part, trimmed = trim(object_of(labels=8000), 2000)
    assert trimmed == "stub"
    assert json.loads(part)["metadata"] == {
        "name": "a",
        "namespace": "shop",
        "uid": "u",
        "resourceVersion": "7",
    }


def test_step_by_step_there_is_always_less_until_there_is_nothing_to_leave_out() -> None:
    value, trimmed, steps = object_of(managed=100, spec=100, labels=100), "", []
    while (step := next_smaller(value, trimmed)) is not None:  # type: ignore[arg-type]
        assert len(step[0]) < len(value)
        value, trimmed = step
        steps.append(trimmed)
    assert steps == ["fields", "stub", "stub"]


def test_an_object_without_those_fields_skips_to_the_stub() -> None:
    assert next_smaller(b'{"kind":"Pod","metadata":{"name":"a"},"spec":{}}', "") == (
        b'{"kind":"Pod","metadata":{"name":"a"}}',
        "stub",
    )


def test_a_topic_with_a_tiny_limit_lets_nothing_through_untrimmed() -> None:
    assert packed_max(100) == 0
    assert 900_000 < packed_max(1 << 20) < 1 << 20
