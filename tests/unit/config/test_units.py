"""Durations and sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchrelay.config.values import duration_s, duration_text, size_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("10s", 10),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("0", 0),
        (0, 0),
        (0.0, 0),
        ("0s", 0),
        (" 10s ", 10),
    ],
)
def test_a_duration_is_read_as_people_mean_it(text: object, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        10,
        "10",
        1.5,
        "",
        "s",
        "10 s",
        "10S",
        "1h 30m",
        "1d",
        "-5s",
        "nan",
        "inf",
        None,
        [],
        True,
        "99999999h",
    ],
)
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError):
        duration_s(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("64MiB", 64 << 20),
        ("64Mi", 64 << 20),
        ("1GiB", 1 << 30),
        ("512KiB", 512 << 10),
        ("1MB", 10**6),
        ("2k", 2000),
        (7, 7),
        ("7B", 7),
    ],
)
def test_a_size_is_read_as_people_mean_it(text: object, count: int) -> None:
    assert size_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    ["", "MiB", "-1", "1TiB!", "1.5.5MiB", 1.5, True, None, "9" * 30, "9" * 400, int("9" * 400)],
)
def test_what_is_no_size_is_refused(text: object) -> None:
    with pytest.raises(ValueError):
        size_bytes(text)


@given(st.integers(min_value=0, max_value=10**9))
def test_a_duration_survives_being_written(number: int) -> None:
    assert duration_s(duration_text(number / 1000)) == pytest.approx(number / 1000)
