"""The state of a stream by key."""

from __future__ import annotations

import pytest

from watchrelay.consumer.partitions import Objects


@pytest.mark.parametrize("key", ["shop/web", "", "\ud800"])
def test_a_key_that_no_object_can_have_is_not_there(key: str) -> None:
    objects = Objects("pods", {})
    assert key not in objects
    assert objects.get(key) is None
