"""Objects as `tail --output yaml` prints them."""

from __future__ import annotations

import json

import pytest
import yaml

from watchrelay.cli.manifests import yaml_of
from watchrelay.core.errors import RecordRefused
from watchrelay.kube.frame import DEPTH_MAX


@pytest.mark.parametrize("levels", [1, 300, 400, DEPTH_MAX])
def test_an_object_of_any_depth_that_is_published_is_printed(levels: int) -> None:
    value = b'{"kind":' * levels + b'"\xc2\x9b"' + b"}" * levels
    text = yaml_of(value)
    assert text.count("kind") == levels
    assert all(line.isprintable() for line in text.split("\n"))
    if levels == 1:
        assert yaml.safe_load(text) == json.loads(value)


def test_what_is_no_json_is_refused() -> None:
    for value in (b"{", b"\xff", b"[" * 5000 + b"]" * 5000):
        with pytest.raises(RecordRefused, match="the value is not JSON"):
            yaml_of(value)
