"""A memory limit of the container below what a relay needs is reported, with the cure."""

from pathlib import Path

import pytest

from watchrelay.daemon.memory import NEEDED_BYTES, too_small


@pytest.mark.parametrize("limit", ["max\n", f"{NEEDED_BYTES}\n", "", "odd\n"])
def test_a_limit_that_is_enough_or_cannot_be_read_is_not_complained_of(
    tmp_path: Path, limit: str
) -> None:
    file = tmp_path / "memory.max"
    assert too_small(file) == ""
    file.write_text(limit)
    assert too_small(file) == ""


def test_a_limit_that_is_too_small_is_named_with_its_cure(tmp_path: Path) -> None:
    file = tmp_path / "memory.max"
    file.write_text(f"{128 << 20}\n")
    warning = too_small(file)
    assert "is 128 MiB" in warning
    assert "resources.limits.memory" in warning
