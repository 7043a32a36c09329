"""Records of another writer on all topics, over sockets: some seeds of `make fuzz`, and a planted
fault that is found."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.fuzz.test_fuzz import ROOT

SEEDS = 10


def played(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line: each seed has a process of its own."""
    command = [sys.executable, "-m", "tests.fuzz.foreign", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.timeout(900)
def test_readers_end_with_the_servers_state_whatever_another_writer_wrote() -> None:
    found = played("--seeds", str(SEEDS))
    assert found.returncode == 0, found.stdout[-20_000:] + found.stderr
    assert f"{SEEDS} seeds" in found.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("seed", "sign"), [(0, "a reader holds|not proven"), (1, "the table differs")]
)
def test_a_record_that_no_relay_repairs_is_found(seed: int, sign: str) -> None:
    found = played("--seed", str(seed), "--plant")
    assert f"seed {seed}: BROKEN" in found.stdout, found.stdout + found.stderr
    assert re.search(sign, found.stdout)
