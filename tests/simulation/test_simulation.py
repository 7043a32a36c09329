"""The whole daemon in virtual time: a hundred seeds (`make sim` plays a thousand), exact
replay, and faults planted to see that they are found.

A seed that shows each planted fault (`python -m tests.simulation --plant F5 --seeds 5000` tells how
many of all do):

    F1       23   resume waits for the change that was published last
    F2       50   one epoch for all partitions of a stream
    F3      555   a former writer's index record is believed
    F4      214   a change of config is not on the markers
    F5      152   a snapshot before the replay has caught up
    F6a      11   a marker's count is that of its queueing
    F6b      10   a sequence is taken when a record is queued
    F6c    2318   a marker's frontier is that of its hand-over
    F6d     148   a snapshot goes on while a queue overflows
    F6e      30   a read's value is that of its hand-over
    F6f      10   a collapsed recreate hides the delete
    F6g      11   what came and went stays in the set
    F7      177   stale records are not healed
    F8      156   read again into the state that is held
    F8r       9   read again into the state that is shown
    F9      214   the event id is uid and resourceVersion
    F10       6   a resend is rendered again
    F11     833   the read-back is not proven

and of fewer seeds:

    C1       36   a difference by full content, where not all of it counts
    W1       44   a watch that fails from its cursor is opened there again and again
    F5p       7 of 300   a snapshot between two pieces of a list's differences
    F33      22 of 150   a marker's wrseen is that of its hand-over
    F33o      8 of 150   a marker's wrseen passes the keys that wait
    F33p      6 of 800   a marker's wrseen passes a list that has not ended
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.__main__ import failure
from tests.simulation.planted import PLANTS
from tests.simulation.planted_readers import WRONG_READERS
from tests.simulation.world import run
from tests.support.extent import full, seeds

ROOT = Path(__file__).resolve().parents[2]
SEEDS = seeds(100)
FOUND_BY = {
    "F1": 1,
    "F2": 50,
    "F3": 555,
    "F4": 214,
    "F5": 152,
    "F5p": 22,
    "F6a": 11,
    "F6b": 10,
    "F6c": 2428,
    "F6d": 148,
    "F6e": 16,
    "F6f": 10,
    "F6g": 20,
    "F7": 386,
    "F8": 6,
    "F8r": 9,
    "F9": 214,
    "F10": 151,
    "F11": 1700,
    "F33": 2,
    "F33o": 11,
    "F33p": 264,
    "C1": 36,
    "W1": 44,
}
"""A seed that shows the fault, and is right without it."""
RARE = {"F32"}
"""Of seeds that show it none is known: one run of some 7,000 did once, and of some 20,000 none since,
so it is planted in a log made for it (tests/unit/publish/test_recovery.py)."""

SEARCHED = 150
"""Where a change has moved that seed, so many others are tried before a person has to search."""
WRONG_SEEDS = 20
"""Three of them show the reader that is wrong least often."""


def simulation(*arguments: str, hash_seed: str = "random") -> subprocess.CompletedProcess[str]:
    """The command line, in a process of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_every_promise_holds_in_every_run() -> None:
    played = simulation("--seeds", str(SEEDS))
    assert played.returncode == 0, played.stdout + played.stderr
    assert f"{SEEDS} seeds" in played.stdout
    assert " 0 failed" in played.stdout


def test_a_seed_replays_exactly() -> None:
    for seed in range(0, 3 * seeds(20), 3):
        first, second = run(seed, tracing=True), run(seed, tracing=True)
        assert first.trace == second.trace
        assert first == second


def test_a_seed_replays_exactly_in_another_process_whatever_its_hashes() -> None:
    traces = [
        simulation("--seed", "101", "--trace", hash_seed=hash_seed)
        for hash_seed in ("0", "4711", "1")[: 3 if full() else 2]
    ]
    assert all(each.returncode == 0 for each in traces), traces[0].stdout[-2000:] + traces[0].stderr
    assert len(traces[0].stdout) > 10_000
    assert len({each.stdout for each in traces}) == 1


def test_a_run_that_breaks_a_promise_names_the_command_that_plays_it_again() -> None:
    seed = FOUND_BY["F8r"]
    verdict = run(seed, PLANTS["F8r"].kinds)
    assert f"make sim SEED={seed}\n" in failure(verdict)
    assert verdict.broken[0] in failure(verdict)
    again = simulation("--seed", str(seed), "--plant", "F8r")
    assert again.returncode == 1
    assert verdict.broken[0] in again.stdout


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in PLANTS if name not in RARE])
def test_a_planted_fault_is_found(name: str) -> None:
    plant = PLANTS[name]
    tried = [FOUND_BY[name], *range(SEARCHED)]
    found = next((seed for seed in tried if plant.shown_by(run(seed, plant.kinds).broken)), None)
    assert found is not None, (
        f"search again: python -m tests.simulation --plant {name} --seeds 5000"
    )
    assert run(found, plant.without).broken == [], "the seed is right without the fault"
    if plant.second is not None:
        assert run(found, plant.second).broken == [], "it is not the second rule that is found"


@pytest.mark.full
def test_a_reader_that_is_wrong_is_never_proven() -> None:
    for name, kinds in WRONG_READERS.items():
        verdicts = [run(seed, kinds) for seed in range(WRONG_SEEDS)]
        assert not [
            line for verdict in verdicts for line in verdict.broken if "is proven at" in line
        ], name
        assert any(verdict.alarms for verdict in verdicts), f"{name} is never wrong in these runs"
