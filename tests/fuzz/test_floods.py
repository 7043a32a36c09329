"""Whatever others write, no turn of the daemon's event loop is long: some seeds of `make fuzz`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 10


def flooded(*arguments: str, kind: str = "flooded") -> subprocess.CompletedProcess[str]:
    """The command line, in processes of its own: what else a process does would count."""
    return subprocess.run(
        [sys.executable, "-m", f"tests.fuzz.{kind}", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(900)
def test_no_flood_holds_the_event_loop() -> None:
    played = flooded("--seeds", str(SEEDS))
    assert played.returncode == 0, played.stdout[-20_000:] + played.stderr[-5_000:]
    assert f"{SEEDS} floods, 0 failed" in played.stdout


@pytest.mark.timeout(900)
def test_no_flood_of_the_control_topic_takes_memory_or_holds_the_loop() -> None:
    played = flooded("--seeds", str(SEEDS), kind="controlled")
    assert played.returncode == 0, played.stdout[-20_000:] + played.stderr[-5_000:]
    assert f"{SEEDS} floods, 0 failed" in played.stdout


@pytest.mark.timeout(300)
def test_a_control_topic_of_which_all_is_kept_is_found() -> None:
    played = flooded("--seed", "6", "--plant", kind="controlled")
    assert played.returncode == 1, played.stdout + played.stderr
    assert "MiB: 112 are allowed" in played.stdout


@pytest.mark.timeout(300)
def test_a_loop_that_does_not_yield_is_found() -> None:
    played = flooded("--seed", "0", "--plant")
    assert played.returncode == 1, played.stdout + played.stderr
    assert "flood 0: BROKEN" in played.stdout
    assert "a turn of the loop took" in played.stdout
