"""The daemon in an odd world: some seeds of `make fuzz`, and faults planted to see that they are
found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.oddlines import LINES, LISTS, Source
from tests.fuzz.plan import KEYS, plan_of
from watchrelay.model.resources import Resource

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 10


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line, in a process of its own: it lives in fast time."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.fuzz.world", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_the_daemon_lives_and_ends_right_in_an_odd_world() -> None:
    played = fuzz("--seeds", str(SEEDS))
    assert played.returncode == 0, played.stdout[-20_000:] + played.stderr
    assert f"{SEEDS} seeds" in played.stdout
    assert " 0 failed" in played.stdout


@pytest.mark.parametrize(
    ("plant", "words"), [("claim", "the daemon ended: 75"), ("traceback", "ValueError: planted")]
)
def test_a_planted_fault_is_found(plant: str, words: str) -> None:
    played = fuzz("--seed", "1", "--plant", plant)
    assert played.returncode == 1, played.stdout + played.stderr
    assert words in played.stdout
    assert "seed 1: BROKEN" in played.stdout


def test_a_seed_repeats_its_script() -> None:
    assert [plan_of(seed) for seed in range(50)] == [plan_of(seed) for seed in range(50)]

    def script(seed: int) -> list[str]:
        source = Source(
            Random(seed),
            Resource("g", "v1", "odds", "Odd", namespaced=True),
            "a",
            list,
            lambda: 1000,
            lambda: 1001,
        )
        lines = [make(source) for _ in range(50) for make in LINES.values()]
        return lines + [make(source, "token") for _ in range(50) for make in LISTS.values()]

    assert script(7) == script(7)
    assert script(7) != script(8)


def test_fifty_seeds_hold_every_key_and_every_part() -> None:
    plans = [plan_of(seed) for seed in range(50)]
    odd = [each for plan in plans for each in plan.followed if each.odd]
    assert {key for each in odd for key in each.keys} >= KEYS.keys()
    assert {plan.kafka["format"] for plan in plans} == {"cloudevents", "structured", "debezium"}
    assert {name for plan in plans for name in plan.parts} >= {
        "foreign writer",
        "discovery",
        "server",
    }
    assert {kind for each in odd for kind in each.kinds} >= {*LINES, *LISTS, "statuses", "endings"}
