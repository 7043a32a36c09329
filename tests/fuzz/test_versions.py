"""Versions of resources that come, end and return: ten seeds, and a planted fault that is detected."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fuzz.test_fuzz import ROOT

SEEDS = 10


def play(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, in a process of its own: it lives in fast time."""
    command = [sys.executable, "-m", "tests.fuzz.versions", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.timeout(600)
def test_no_object_that_exists_is_published_as_deleted_whatever_versions_are_served() -> None:
    played = play("--seeds", str(SEEDS))
    assert played.returncode == 0, played.stdout[-20_000:] + played.stderr
    assert f"{SEEDS} seeds, 0 failed" in played.stdout


@pytest.mark.timeout(300)
def test_an_exact_version_that_is_asked_for_in_place_of_any_is_found() -> None:
    played = (play("--seed", str(seed), "--plant") for seed in range(SEEDS))
    assert any("exists, and is published as deleted" in each.stdout for each in played)
