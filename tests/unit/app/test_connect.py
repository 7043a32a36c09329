"""What `topics` and `validate --connect` print of each fact."""

from __future__ import annotations

import pytest

from watchrelay.app.connect import BAD_CONFIG, Fact


@pytest.mark.parametrize(
    ("what", "said", "line"),
    [
        ("topic a", "topic a is refused: x", "error: topic a is refused: x"),
        ("kafka", "kafka at b:1 is not usable", "error: kafka at b:1 is not usable"),
        ("kubernetes", "kubernetes: no way in", "error: kubernetes: no way in"),
        ("topic a", "does not exist yet", "error: topic a: does not exist yet"),
        ("topic a", "topic ab is refused", "error: topic a: topic ab is refused"),
    ],
)
def test_a_fact_names_what_it_is_about_once(what: str, said: str, line: str) -> None:
    assert str(Fact(what, said, "error", BAD_CONFIG)) == line
